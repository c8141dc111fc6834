"""The tables about queues: their settings and numbers, their messages, what has failed, attempts, readers.

All of it is asked of the store's owner, page by page; bodies are read from the store itself where it has files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from detent.codec import queue as records
from detent.codec.published import FOREVER, URI
from detent.errors import NotFound
from detent.queue import QueueInfo, listing
from detent.queue import operations as ops
from detent.remote.contents import AnswerRoom
from detent.settings.queue import QUEUE
from detent.spark.table_columns import (
    BATCH_BYTES,
    BYTES,
    NUMBER,
    SMALL,
    TEXT,
    TEXT_BY_NAME,
    TIME,
    TRUTH,
    Columns,
    Row,
    columns_of,
    settings_row,
)
from detent.store import Store

FAILED_PAGE: Final = 100
"""Failed messages in one answer. Each brings its attempts along, up to some hundred kilobytes in the worst case."""

CONTENT: Final[Columns] = {
    "created_at": TIME,
    "received_at": TIME,
    "headers": TEXT_BY_NAME,
    "body": BYTES,
    "uri": TEXT,
}
"""What a message says itself; all of it null where it is gone, as it is of messages that are done."""

QUEUES: Final[Columns] = {
    "queue": TEXT,
    "created_at": TIME,
    "available": NUMBER,
    "delayed": NUMBER,
    "blocked": NUMBER,
    "in_flight": NUMBER,
    "failed": NUMBER,
    "done": NUMBER,
    "oldest_at": TIME,
    "total_routed": NUMBER,
    "total_acked": NUMBER,
    "total_failed": NUMBER,
    "total_expired": NUMBER,
    "total_purged": NUMBER,
    "catching_up": TRUTH,
    **columns_of(QUEUE),
}

MESSAGES: Final[Columns] = {
    "queue": TEXT,
    "message": NUMBER,
    "state": TEXT,
    "priority": SMALL,
    "attempts": SMALL,
    "visible_at": TIME,
    "expires_at": TIME,
    "claimed_at": TIME,
    "lease_ends_at": TIME,
    "consumer": TEXT,
    "delivery": NUMBER,
    "failed_at": TIME,
    "reason": TEXT,
    "done_at": TIME,
    **CONTENT,
}

FAILED: Final[Columns] = {
    "queue": TEXT,
    "message": NUMBER,
    "failed_at": TIME,
    "reason": TEXT,
    "attempts": SMALL,
    "priority": SMALL,
    "delivery": NUMBER,
    **CONTENT,
}

ATTEMPTS: Final[Columns] = {
    "queue": TEXT,
    "message": NUMBER,
    "number": SMALL,
    "claimed_at": TIME,
    "consumer": TEXT,
    "ended_at": TIME,
    "reason": TEXT,
}

READERS: Final[Columns] = {
    "queue": TEXT,
    "reader": TEXT,
    "generation": NUMBER,
    "opened_at": TIME,
    "acked": NUMBER,
    "assigned": NUMBER,
    "assigned_at": TIME,
}


def queue_names(store: Store) -> list[str]:
    """The names of all queues."""
    return [info.name for info in store.queues()]


def check_queue(store: Store, name: str) -> None:
    """`NotFound` unless there is a queue of this name."""
    try:
        store.queue(name).info()
    except NotFound:
        raise NotFound(
            f"there is no queue {name!r} (option queue); `detent queue ls` lists those of the store, and without the "
            "option the table is about all of them"
        ) from None


def queues(store: Store, name: str) -> Iterator[Row]:
    """One queue, or all of them."""
    for info in [store.queue(name).info()] if name else store.queues():
        yield _queue(info)


def _queue(info: QueueInfo) -> Row:
    return (
        info.name,
        info.created,
        info.available,
        info.delayed,
        info.blocked,
        info.in_flight,
        info.failed,
        info.done,
        info.oldest,
        info.total_routed,
        info.total_acked,
        info.total_failed,
        info.total_expired,
        info.total_purged,
        info.catching_up,
        *settings_row(QUEUE, {setting.shown_as: getattr(info, setting.shown_as) for setting in QUEUE}),
    )


# -- messages ---------------------------------------------------------------------------------------------------


def messages(store: Store, name: str) -> Iterator[Row]:
    """Everything that a queue knows of. What moves on during the read goes from the front to the back of this list, so
    that it is seen twice rather than never."""
    yield from _active(store, name)
    for entry, content in _failed(store, name):
        about = (entry.priority, entry.attempts, None, None, None, None, None, entry.delivery)
        yield (name, entry.message, "failed", *about, entry.failed_ms, entry.reason, None, *content)
    yield from _done(store, name)


def _active(store: Store, name: str) -> Iterator[Row]:
    for entry, content in _listed(store, name):
        held = entry.state == "in flight"
        times = (entry.visible_ms, entry.deadline_ms, entry.claimed_ms, entry.lease_ms)
        yield (
            name,
            entry.message,
            entry.state,
            entry.priority,
            entry.attempts,
            *(None if ms == FOREVER else ms for ms in times),
            entry.consumer if held else None,
            entry.delivery if held else None,
            None,
            None,
            None,
            *content,
        )


def _listed(store: Store, name: str) -> Iterator[tuple[listing.ListedMessage, Row]]:
    """The messages of a queue by place, as long as it is this queue: one that is made anew has other places."""
    after, more, queue = -1, True, None
    while more:
        page: listing.ListedMessages = store.commit([listing.ListMessages(name, after)])[0]
        if queue not in {None, page.queue}:
            return
        queue, more = page.queue, page.more
        yield from _with_content(store, page)
        after = page.messages[-1].place if page.messages else after


def _done(store: Store, name: str) -> Iterator[Row]:
    operation, queue, more = listing.ListDone(name), None, True
    while more:
        page: listing.DoneMessages = store.commit([operation])[0]
        if queue not in {None, page.queue}:
            return
        queue, more = page.queue, page.more
        operation = listing.ListDone(name, page.after, page.below)
        for message, done_ms, attempts in np.frombuffer(page.rows, records.DONE_MESSAGE).tolist():
            nothing = (None,) * 8
            yield (name, message, "done", None, attempts, *nothing, done_ms, *_content(None))


def failed(store: Store, name: str) -> Iterator[Row]:
    """The failed messages of a queue."""
    for entry, content in _failed(store, name):
        about = (entry.failed_ms, entry.reason, entry.attempts, entry.priority, entry.delivery)
        yield (name, entry.message, *about, *content)


def _failed(store: Store, name: str) -> Iterator[tuple[ops.FailedEntry, Row]]:
    after, more = -1, True
    while more:
        page: ops.FailedMessages = store.commit([ops.ListFailed(name, after, FAILED_PAGE)])[0]
        yield from _with_content(store, page)
        after, more = page.messages[-1].message if page.messages else after, page.more


def _with_content(store: Store, page: Any) -> Iterator[tuple[Any, Row]]:
    """The messages of a page with what they say. It came along, or is read from the store, some megabytes at a time."""
    left = page.messages
    while left:
        if page.contents is not None:
            rows = page.contents
        else:
            room = AnswerRoom(BATCH_BYTES)
            rows = store.messages.leading([one.message for one in left], [one.record for one in left], room.fits)
        yield from zip(left, map(_content, rows), strict=False)
        left = left[len(rows) :]


def _content(row: ops.AttachedContent | None) -> Row:
    kind, data, about = row or (0, None, None)
    if data is None or about is None:
        return (None,) * len(CONTENT)
    body, uri = (None, data.decode()) if kind == URI else (data, None)
    return about.created_ms, about.received_ms, about.headers, body, uri


# -- attempts and readers ---------------------------------------------------------------------------------------


def attempts(store: Store, name: str) -> Iterator[Row]:
    """The attempts that came to nothing, of all messages that are not done."""
    after, more = -1, True
    while more:
        page: listing.TriedMessages = store.commit([listing.ListAttempts(name, after)])[0]
        for entry in page.messages:
            for number, attempt in enumerate(entry.attempts, 1):
                yield (name, entry.message, number, *attempt)
            after = entry.message
        more = page.more


def readers(store: Store, name: str) -> Iterator[Row]:
    """The readers of a queue."""
    for reader in store.queue(name).readers():
        assigned = (reader.assigned, reader.assigned_since)
        yield (name, reader.name, reader.generation, reader.opened, reader.acked, *assigned)
