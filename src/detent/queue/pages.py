"""From the arguments of a look into a queue to its operation, and from the answer to a page; the same for sync and
async."""

from __future__ import annotations

from collections.abc import Iterable

from detent.codec.published import FOREVER, URI
from detent.durations import Duration
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.calls import check_number, optional_ms
from detent.queue.info import QueuedMessage, QueuePage, dead_letters_of, time_of
from detent.queue.peeking import ALL_STATES, START, PeekedMessage, PeekedMessages, PeekMessages, read_page
from detent.queue.reader import QueueReader


def peek(
    queue: str,
    limit: int,
    states: str | Iterable[str] | None,
    filter: str | None,
    priority: int | None,
    older_than: Duration | None,
    newer_than: Duration | None,
    payload_bytes: int,
    cursor: str | None,
) -> PeekMessages:
    """The operation of a look into a queue."""
    for value, what in ((limit, "limit"), (priority, "priority"), (payload_bytes, "payload_bytes")):
        check_number(value, what)
    named = [states] if isinstance(states, str) else list(states or ())
    if set(map(type, named)) - {str}:
        raise Invalid(f"states are {', '.join(ALL_STATES)}, not {named!r}"[:500])
    number, after = (0, START) if cursor is None else parse_cursor(cursor)
    return PeekMessages(
        queue,
        after,
        number,
        named,
        priority,
        limit,
        filter,
        optional_ms(older_than),
        optional_ms(newer_than),
        payload_bytes,
    )


def parse_cursor(text: str) -> tuple[int, tuple[int, int, int, int]]:
    """A cursor's text: the queue's number, and after which message of it the page begins. -1 is written as nothing."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) != 5 or not all(not part or (part.isascii() and part.isdigit() and len(part) < 20) for part in parts):
        raise Invalid(f"{text!r} is no cursor: that is what the page before this one answered"[:500])
    number, section, after, at_ms, row = (int(part) if part else -1 for part in parts)
    return max(0, number), (max(0, section), after, max(0, at_ms), row)


def queue_page(queue: str, reader: QueueReader, op: PeekMessages, page: PeekedMessages) -> QueuePage:
    """A page as users see it."""
    # An answer without messages need not bring contents, also where there are no files to read.
    whole = page if page.contents is not None or not page.messages else read_page(reader, op, page)
    contents = whole.contents or []
    found = [_queued(queue, one, content) for one, content in zip(whole.messages, contents, strict=True)]
    cursor = (whole.queue, *whole.after) if whole.more else None
    text = None if cursor is None else ".".join("" if part < 0 else str(part) for part in cursor)
    return QueuePage(found, text)


def _queued(queue: str, one: PeekedMessage, content: ops.PeekedContent | None) -> QueuedMessage:
    is_uri = content is not None and content.kind == URI
    data = b"" if content is None else content.data
    move = None if content is None else content.move
    return QueuedMessage(
        message=one.message,
        queue=queue,
        state=one.state,
        at=time_of(one.at_ms),
        attempts=one.attempts,
        total_attempts=one.earlier + one.attempts,
        priority=one.priority,
        consumer=one.consumer,
        delivery=one.delivery,
        reason=one.reason,
        created=None if content is None else time_of(content.created_ms),
        received=None if content is None else time_of(content.received_ms),
        expires=None if content is None or one.deadline_ms == FOREVER else time_of(one.deadline_ms),
        headers={} if content is None else content.headers,
        payload=b"" if is_uri else data,
        size=None if content is None else content.size,
        uri=data.decode(errors="ignore") if is_uri else None,
        dead_letter=None if move is None else dead_letters_of([move])[0],
    )
