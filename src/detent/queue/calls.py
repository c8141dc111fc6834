"""From the arguments that users give to operations, and from results to what users get; the same for sync and async."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import repeat
from typing import Any, overload

import msgspec

from detent import spans
from detent.codec.origin import OriginRecord
from detent.codec.published import FOREVER, URI
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.info import QueuedMessage, QueuePage, dead_letters_of, time_of
from detent.queue.message import Outgoing, Published
from detent.queue.peeking import ALL_STATES, START, PeekedMessage, PeekedMessages, PeekMessages, read_page
from detent.queue.reader import Content, ContentColumns, QueueReader
from detent.settings.queue import QUEUE, QueueSettings
from detent.settings.setting import whole_seconds

Message = bytes | Outgoing
"""What can be published: a body, or a message with more to say."""


def settings(queue: str, given: QueueSettings) -> ops.Settings:
    """Settings as an operation carries them. A filter of None is the one that a queue has by itself."""
    return ops.Settings(**QUEUE.stored(queue, given))


def check_number(value: int | None, what: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise Invalid(f"{what} is a number from 0 on, not {value!r}")
    return value


def optional_ms(value: Duration | None) -> int | None:
    return None if value is None else milliseconds(value)


def outgoing(message: Message, headers: Mapping[str, str] | None, options: Mapping[str, Any]) -> Outgoing:
    """One message to publish, with what was said beside it."""
    if isinstance(message, Outgoing):
        if options or headers:
            raise Invalid("an Outgoing says everything itself: put headers and options into it")
        return message
    unknown = set(options) - _OPTIONS
    if unknown:
        hint = '; a priority is a header, headers={"priority": "5"}' if "priority" in unknown else ""
        raise Invalid(f"publish has no option {sorted(unknown)[0]!r}; it has {', '.join(sorted(_OPTIONS))}{hint}")
    return Outgoing(message, headers or {}, **options)


_OPTIONS = {field.name for field in fields(Outgoing)} - {"body", "headers"}


def publish(messages: Sequence[Outgoing], queue: str | None = None) -> list[ops.Publish]:
    """Operations that publish these messages, in order: neighbours whose times agree share one."""
    operations: list[ops.Publish] = []
    group: list[Outgoing] = []
    shared: tuple[Any, ...] | None = None
    for message in messages:
        about = _about(message)
        if group and about != shared:
            operations.append(_publish(group, shared, queue))
            group = []
        group.append(message)
        shared = about
    if not group:
        raise Invalid("there is nothing to publish")
    operations.append(_publish(group, shared, queue))
    return operations


def _about(message: Outgoing) -> tuple[bool, int | None, int | None, int, int]:
    """What the messages of one operation have in common."""
    if message.visible_at is not None and message.delay is not None:
        raise Invalid("a message has a delay or a time from which it is visible, not both")
    if message.uri is not None and message.body:
        raise Invalid("a message has a body or a URI, not both")
    return (
        message.uri is not None,
        None if message.created is None else time_ms(message.created),
        None if message.visible_at is None else time_ms(message.visible_at),
        0 if message.delay is None else milliseconds(message.delay),
        ops.RETENTION_S if message.retention is None else whole_seconds(message.retention),
    )


def _publish(group: list[Outgoing], shared: Any, queue: str | None) -> ops.Publish:
    uri, created_ms, visible_ms, delay_ms, retention_s = shared
    bodies = [_body(message) for message in group]
    headers = _headers([spans.with_trace(message.headers) or {} for message in group], queue)
    keys = [message.dedup_key for message in group]
    dedup_keys = None if all(key is None for key in keys) else keys
    return ops.Publish(bodies, headers, uri, created_ms, visible_ms, delay_ms, retention_s, dedup_keys, queue or "")


def _body(message: Outgoing) -> bytes:
    if message.uri is not None:
        try:
            return message.uri.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise Invalid(f"a URI is text: {error}") from error
    body = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise Invalid(f"a body is bytes, not {type(body).__name__}: write text.encode(), or json.dumps(value).encode()")


def _headers(given: list[Mapping[str, str]], queue: str | None) -> list[dict[str, str]] | None:
    """Headers for each message, or one for all when they agree; with the address, if there is one."""
    for headers in given:
        if not isinstance(headers, Mapping) or set(map(type, (*headers, *headers.values()))) - {str}:
            raise Invalid(f"headers are a mapping of text to text, not {headers!r}"[:500])
        if queue is not None and headers.get("queue", queue) != queue:
            raise Invalid(f"the header 'queue' says to which queue a message goes; it goes to {queue!r}")
    first = given[0]
    if all(headers is first or headers == first for headers in given):
        given = [first]
    if queue is None:
        return None if len(given) == 1 and not first else [dict(headers) for headers in given]
    return [{**headers, "queue": queue} for headers in given]


def _shared_headers(headers: Mapping[str, str] | None, queue: str | None) -> list[dict[str, str]] | None:
    """The headers of messages that share them."""
    headers = spans.with_trace(headers)
    if headers:
        return _headers([headers], queue)
    return None if queue is None else [{"queue": queue}]


def publish_plain(bodies: Sequence[bytes], headers: Mapping[str, str] | None, queue: str | None) -> ops.Publish:
    """The operation for bodies that share their headers and have nothing else to say."""
    if set(map(type, bodies)) - {bytes}:
        raise Invalid("a body is bytes: write text.encode(), or json.dumps(value).encode()")
    return ops.Publish(list(bodies), _shared_headers(headers, queue), to=queue or "")


def operations_for(messages: Iterable[Message], headers: Mapping[str, str] | None, queue: str | None) -> list[Any]:
    """Operations that publish many messages."""
    listed = list(messages)
    if set(map(type, listed)) == {bytes}:
        return [ops.Publish(listed, _shared_headers(headers, queue), to=queue or "")]  # type: ignore[arg-type]
    if not listed:
        return []
    if headers and any(isinstance(message, Outgoing) for message in listed):
        raise Invalid("an Outgoing says everything itself: put the headers into it")
    whole = [message if isinstance(message, Outgoing) else Outgoing(message, headers or {}) for message in listed]
    return publish(whole, queue)


class PublishedMany(Sequence[Published]):
    """What became of each of many messages, in the order in which they were given."""

    def __init__(self, results: Sequence[ops.PublishedMessages]) -> None:
        self._results = results
        self._first = results[0].first if len(results) == 1 and not results[0].duplicates else None
        self._count = sum(result.count + len(result.duplicates) for result in results)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Published: ...

    @overload
    def __getitem__(self, index: slice) -> list[Published]: ...

    def __getitem__(self, index: int | slice) -> Published | list[Published]:
        if self._first is not None:
            numbers = range(self._first, self._first + self._count)[index]
            return Published(numbers) if isinstance(numbers, int) else list(map(Published, numbers))
        return published(self._results)[index]

    def __iter__(self) -> Iterator[Published]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return self[:] == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])


def published(results: Iterable[ops.PublishedMessages]) -> list[Published]:
    """What became of each message, in the order in which they were given."""
    found: list[Published] = []
    for result in results:
        duplicates = dict(result.duplicates)
        number = result.first
        for index in range(result.count + len(duplicates)):
            first = duplicates.get(index)
            if first is None:
                found.append(Published(number))
                number += 1
            else:
                found.append(Published(first, first))
    return found


def claim(queue: str, count: int, lease: Duration | None, consumer: str) -> ops.Claim:
    """The operation of a claim."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise Invalid(f"how many messages to claim is a number, not {count!r}")
    return ops.Claim(queue, count, optional_ms(lease), consumer)


def deliveries(kind: type[Any], store: Any, queue: str, reader: QueueReader, result: ops.ClaimedMessages) -> list[Any]:
    """The claimed messages with their content. One whose content is gone meanwhile has ended its retention, and is left
    out: no consumer could use it."""
    if result.contents is None:
        found = reader.columns(result.messages, result.records)
    else:
        found = columns(result.contents)
    first, count = result.first_delivery, len(result.messages)
    every = map(
        kind,
        repeat(store),
        repeat(queue),
        repeat(result.queue),
        result.messages,
        range(first, first + count),
        found.kinds,
        found.bodies,
        found.about,
        result.attempts,
        result.priorities,
        repeat(result.lease_ms),
        repeat(result.length_ms),
    )
    if result.earlier:
        origins = reader.origins(result.queue, named_origins(result)) if result.origins is None else result.origins
        every = map(with_origin, every, result.earlier, map(origins.get, result.messages))
    return list(every) if not found.gone else [delivery for delivery in every if delivery._data is not None]


def named_origins(result: ops.ClaimedMessages | ops.HeldMessages) -> list[int]:
    """The claimed messages that came as dead letters."""
    return [message for message, earlier in zip(result.messages, result.earlier, strict=False) if earlier]


def with_origin(delivery: Any, earlier: int, stored: bytes | None) -> Any:
    """A delivery that says which queues gave its message up before."""
    delivery.earlier_attempts = earlier
    if stored is not None:
        delivery.dead_letters = dead_letters_of(OriginRecord.decode(stored).moves)
    return delivery


def columns(contents: ops.Attached) -> ContentColumns:
    """What came with an answer, side by side."""
    rows = [(0, None, None) if row is None else row for row in contents]
    kinds, bodies, about = (list(column) for column in zip(*rows, strict=True))
    return ContentColumns(kinds, bodies, about, bodies.count(None))


class Fetching:
    """The steps that fetch the content of claimed messages that found no room in the claim's answer."""

    def __init__(self, claimed: ops.ClaimedMessages) -> None:
        self._claimed = claimed
        self._rows = list(claimed.contents or ())
        self._origins = dict(claimed.origins or {})
        self._missing = [index for index, row in enumerate(self._rows) if row is None]

    @property
    def more(self) -> bool:
        """Whether some are still missing."""
        return bool(self._missing)

    def next_step(self) -> ops.ReadHeld:
        """The operation of the next step."""
        claimed = self._claimed
        messages = [claimed.messages[index] for index in self._missing]
        return ops.ReadHeld(claimed.queue, messages, [claimed.first_delivery + index for index in self._missing])

    def did(self, step: ops.HeldMessages) -> None:
        """Take what came. What is no longer held is another consumer's: it stays without content, and is left out."""
        came = dict(zip(step.messages, step.contents or (), strict=True))
        self._origins.update(step.origins or {})
        left = []
        for index in self._missing:
            message = self._claimed.messages[index]
            self._rows[index] = came.get(message)
            if message in came and came[message] is None:
                left.append(index)
        self._missing = left

    def complete(self) -> ops.ClaimedMessages:
        """The claim with all its contents."""
        origins = None if self._claimed.origins is None else self._origins
        return msgspec.structs.replace(self._claimed, contents=self._rows, origins=origins)


def failed_contents(reader: QueueReader, page: ops.FailedMessages) -> list[Content | None]:
    """The contents of a page of failed messages."""
    if not page.messages:
        return []  # an answer without messages need not bring contents, also where there are no files to read
    if page.contents is not None:
        return list(map(_content, page.contents))
    return reader.contents([entry.message for entry in page.messages], [entry.record for entry in page.messages])


def found_content(reader: QueueReader, message: int, found: ops.MessageFound) -> Content | None:
    """The content of a message that was looked for, if it is stored."""
    if found.record < 0:
        return None
    if found.contents is not None:
        return _content(found.contents[0]) if found.contents else None
    return reader.contents([message], [found.record])[0]


def _content(row: ops.AttachedContent | None) -> Content | None:
    if row is None:
        return None
    kind, body, about = row
    return None if body is None or about is None else (kind, body, about)


def time_ms(time: datetime) -> int:
    """A time in milliseconds."""
    if not isinstance(time, datetime):
        raise Invalid(f"a time is a datetime, not {type(time).__name__}")
    ms = since_1970_ms(time)
    if ms < 0:
        raise Invalid(f"{time.isoformat()} is before 1970, where times begin here")
    return ms


class _Steps:
    """The steps of a long operation: messages that are named, so many at a time; or all, each step from where the one
    before it says."""

    def __init__(self, queue: str, messages: Iterable[int] | None) -> None:
        self._queue = queue
        self._left = None if messages is None else list(messages)
        self._from = -1
        self.more = self._left != []
        self.total = 0

    def _named(self) -> list[int] | None:
        return None if self._left is None else self._left[: ops.STEP_MESSAGES]

    def did(self, step: ops.Moved) -> None:
        """That step is done."""
        self.total += step.count
        self._from, self.more = step.after, step.more
        if self._left is not None:
            del self._left[: ops.STEP_MESSAGES]
            self.more = bool(self._left)


class Redriving(_Steps):
    """The steps of a redrive, from the first message to the last."""

    def __init__(self, queue: str, messages: Iterable[int] | None, filter: str | None, to: str | None) -> None:
        super().__init__(queue, messages)
        self._filter, self._to = filter, to

    def next_step(self) -> ops.Redrive:
        """The operation of the next step."""
        return ops.Redrive(self._queue, self._named(), self._filter, self._to, self._from)


class Purging(_Steps):
    """The steps of a purge: of what is there when it begins, not of what comes meanwhile."""

    def __init__(
        self,
        queue: str,
        available: bool,
        failed: bool,
        messages: Iterable[int] | None,
        in_flight: bool,
        keys: bool,
    ) -> None:
        super().__init__(queue, messages)
        self._kinds = (available, failed)
        self._more = (in_flight, keys)

    def next_step(self) -> ops.Purge:
        """The operation of the next step."""
        return ops.Purge(self._queue, *self._kinds, self._named(), self._from, *self._more)


def peek(
    queue: str,
    limit: int,
    states: str | Iterable[str] | None,
    filter: str | None,
    priority: int | None,
    older_than: Duration | None,
    newer_than: Duration | None,
    body_bytes: int,
    cursor: str | None,
) -> PeekMessages:
    """The operation of a look into a queue."""
    for value, what in ((limit, "limit"), (priority, "priority"), (body_bytes, "body_bytes")):
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
        body_bytes,
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
        body=b"" if is_uri else data,
        size=None if content is None else content.size,
        uri=data.decode(errors="ignore") if is_uri else None,
        dead_letter=None if move is None else dead_letters_of([move])[0],
    )
