"""Publishing: body, metadata, routing and dedup keys of new messages, all in the publishing transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from detent.codec import log, published
from detent.codec import queue as records
from detent.codec.group import GROUP_BYTES_MAX
from detent.codec.log import SEQUENCE_BLOCK_KEY, SegmentMeta
from detent.codec.published import FOREVER, LOG_KEY, RECORD_BYTES_MAX, RECORD_MESSAGES_MAX
from detent.codec.statelog import Run, encode_published
from detent.engine import ApplyContext
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.filters import addressed_queue
from detent.queue.holdings import LogSegment, Undo
from detent.queue.memory import QueueMemory, Target, filter_of
from detent.queue.settings import PRIORITY_HEADER, PRIORITY_MAX, is_priority

_NO_HEADERS: Final[dict[str, str]] = {}
ADDRESS: Final = "queue"
"""The header by which queues with the default filter know what is theirs."""

TIME_MS_MAX: Final = 1 << 53
"""Times beyond this (285,000 years) are mistakes."""


def publish(memory: QueueMemory, op: ops.Publish, context: ApplyContext) -> ops.PublishedMessages:
    """New messages come in. Duplicates take no number."""
    sizes = ops.check_publish(op)
    now_ms = context.now_ms
    created_ms = now_ms if op.created_ms is None else op.created_ms
    visible_ms = (now_ms if op.visible_ms is None else op.visible_ms) + op.delay_ms
    if min(created_ms, visible_ms) < 0 or max(created_ms, visible_ms) > TIME_MS_MAX:
        raise Invalid("times are milliseconds since 1970, below 2**53")
    if op.to:
        check_address(memory, op)
    if memory.router.group_headers and op.headers is not None:
        _check_groups(memory, op.headers, op.to)
    if op.headers is not None:
        _check_addresses(op.headers, op.to)
        _check_priorities(memory, op.headers, op.to)
    undo = None if context.last else context.undo
    bodies, headers = op.bodies, op.headers
    keys: Sequence[str | None] = ()
    duplicates: list[tuple[int, int]] = []
    if op.dedup_keys is not None:
        keys = _own_keys(memory.queue(op.to).number, op.dedup_keys) if op.to else op.dedup_keys
        fresh, duplicates = _first_seen(memory, keys, now_ms)
        bodies = [bodies[index] for index in fresh]
        sizes = [sizes[index] for index in fresh]
        if headers is not None and len(headers) > 1:
            headers = [headers[index] for index in fresh]
    if not bodies:
        if not duplicates:
            raise Invalid("there is nothing to publish")
        return ops.PublishedMessages(0, 0, duplicates)
    times = (created_ms, now_ms, visible_ms, op.retention_s)
    kind = published.URI if op.uri else published.BYTES_INLINE
    first = _allocate(memory, len(bodies), now_ms, undo)
    for start, end in _records(sizes):
        shared = headers if headers is None or len(headers) == 1 else headers[start:end]
        value = published.encode_payloads(kind, bodies[start:end], sizes[start:end])
        memory.write(published.payload_key(first + start), value, undo)
        _publish_record(memory, first + start, end - start, shared, times, undo)
    if op.dedup_keys is not None:
        duplicates = _hold_keys(memory, keys, duplicates, first, now_ms, op.retention_s, undo)
    return ops.PublishedMessages(first, len(bodies), duplicates)


def check_address(memory: QueueMemory, op: ops.Publish) -> None:
    """A producer that publishes to a queue means that queue: it is there, and takes all of the messages."""
    state = memory.queue(op.to)
    addressed = addressed_queue(state.config.filter) == op.to
    for headers in op.headers or [_NO_HEADERS]:
        if not (headers.get("queue") == op.to if addressed else filter_of(state).matches(headers)):
            raise Invalid(
                f"the filter of {op.to!r} does not match these headers: it takes {state.config.filter}; add what it "
                "asks for, or publish to whichever queues match with store.publish"
            )


def _check_groups(memory: QueueMemory, given: list[dict[str, str]], to: str | None) -> None:
    """A header that names the group in some queue that would get the message is not too long for that."""
    names = set(memory.router.group_headers.values())
    for headers in given:
        sizes = {name: len(headers[name].encode()) for name in names if name in headers}
        if max(sizes.values(), default=0) <= GROUP_BYTES_MAX:
            continue
        for state, _, group in memory.router.targets(headers):
            if group is not None and sizes[state.config.group_header] > GROUP_BYTES_MAX:
                size = f"has at most {GROUP_BYTES_MAX} bytes, not {sizes[state.config.group_header]}"
                header = f"the header {state.config.group_header!r} names the group of a message in"
                error = Invalid(f"{header} {state.name!r}, and {size}")
                if state.name != to:
                    error.quoting("queue", state.name, f"{header} a queue that it goes to, and {size}")
                raise error


def _check_addresses(given: list[dict[str, str]], to: str) -> None:
    """A header that says to which queue a message goes is a name that a queue can have."""
    for headers in given:
        address = headers.get(ADDRESS)
        if address is None or (to and address == to):
            continue
        try:
            ops.check_name(address)
        except Invalid as error:
            raise Invalid(f"the header {ADDRESS!r} says to which queue a message goes: {error}") from error


def _check_priorities(memory: QueueMemory, given: list[dict[str, str]], to: str | None) -> None:
    """A header that says the priority in some queue that would get the message is a priority. For a message that no
    queue takes, it is the header that queues have unless they say otherwise."""
    names = memory.router.priority_headers
    for headers in given:
        wrong = {name for name in names if name in headers and not is_priority(headers[name])}
        if not wrong:
            continue
        targets = memory.router.targets(headers)
        if not targets and PRIORITY_HEADER in wrong:
            raise Invalid(_no_priority(PRIORITY_HEADER, headers))
        for state, _, _ in targets:
            name = state.config.priority_header
            if name in wrong:
                error = Invalid(_no_priority(name, headers))
                if state.name != to and name != PRIORITY_HEADER:
                    error.quoting("queue", state.name, "a header is not a priority in a queue that the message goes to")
                raise error


def _no_priority(name: str, headers: dict[str, str]) -> str:
    return f"the header {name!r} is a priority, a number from 0 (first) to {PRIORITY_MAX}, and not {headers[name]!r}"


def write_segment(memory: QueueMemory, segment: LogSegment, now_ms: int, undo: Undo | None) -> None:
    """Put down that the log goes on in this segment."""
    memory.write(log.segment_key(segment.number), SegmentMeta(segment.start, now_ms).encode(), undo)
    memory.write(log.listing_key(segment.number, LOG_KEY), log.LISTING_VALUE, undo)


def _allocate(memory: QueueMemory, count: int, now_ms: int, undo: Undo | None) -> int:
    """Numbers for new messages, and a new segment of the log if it is time for one."""
    first, block = memory.allocator.allocate(count)
    if block is not None:
        memory.writes[SEQUENCE_BLOCK_KEY] = block.encode()  # stays, even if the transaction does not
    if memory.holdings.needs_segment(first, memory.log_end):
        segments = memory.holdings.segments
        segment = LogSegment(segments[-1].number + 1 if segments else log.FIRST_SEGMENT, first)
        memory.holdings.add_segment(segment)
        if undo is not None:
            undo.append(memory.holdings.drop_last_segment)
        write_segment(memory, segment, now_ms, undo)
    memory.published_ms = now_ms
    if undo is not None:
        undo.append(partial(setattr, memory, "log_end", memory.log_end))
    memory.log_end = first + count
    return first


def _records(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """How bodies of these sizes are spread over records: bounds of messages that share one."""
    count = len(sizes)
    if count == 1 or (count <= RECORD_MESSAGES_MAX and sum(sizes) <= RECORD_BYTES_MAX):
        yield 0, count
        return
    start = size = 0
    for index, length in enumerate(sizes):
        if index > start and (index - start >= RECORD_MESSAGES_MAX or size + length > RECORD_BYTES_MAX):
            yield start, index
            start, size = index, 0
        size += length
    yield start, count


def _publish_record(
    memory: QueueMemory,
    first: int,
    count: int,
    headers: list[dict[str, str]] | None,
    times: tuple[int, int, int, int],
    undo: Undo | None,
) -> None:
    """The metadata of messages that share a record, and their way into the queues."""
    if headers is None or len(headers) == 1:
        one = _NO_HEADERS if headers is None else headers[0]
        entry = published.encode_plain_metadata(first, count, *times, published.encode_headers(one))
        runs = [(0, count, memory.router.targets(one))]
    else:
        entry = published.encode_metadata(first, *times, [published.encode_headers(one) for one in headers])
        runs = list(_runs(memory, headers))
    memory.write(memory.holdings.entry_key(first), entry, undo)
    memory.published.append(first)
    if undo is not None:
        undo.append(partial(_unpublish, memory))
    _, received_ms, visible_ms, retention_s = times
    deadline_ms = received_ms + retention_s * 1000 if retention_s else FOREVER
    for start, end, targets in runs:
        run = Run(first + start, end - start, start, count, visible_ms, deadline_ms)
        numbered = [(state.number, priority, group) for state, priority, group in targets]
        memory.log_step(encode_published(run, numbered), undo)
        deliver(memory, run, targets, received_ms, undo)


def _unpublish(memory: QueueMemory) -> None:
    memory.published.pop()


def _runs(memory: QueueMemory, headers: list[dict[str, str]]) -> Iterator[tuple[int, int, Sequence[Target]]]:
    """Bounds of neighbours that go the same way."""
    start, targets = 0, memory.router.targets(headers[0])
    for index in range(1, len(headers)):
        if headers[index] == headers[index - 1]:
            continue
        next_targets = memory.router.targets(headers[index])
        if next_targets != targets:
            yield start, index, targets
            start, targets = index, next_targets
    yield start, len(headers), targets


def deliver(memory: QueueMemory, run: Run, targets: Sequence[Target], now_ms: int, undo: Undo | None) -> None:
    """Put messages into their queues; those that match none stay with the store."""
    memory.holdings.hold(run.first, run.length, max(1, len(targets)), undo)
    for state, priority, group in targets:
        state.route(run, priority, now_ms, undo, group)
    if not targets:
        memory.own.route(run._replace(visible_ms=0), 0, now_ms, undo)


# -- dedup keys -------------------------------------------------------------------------------------------------


def _own_keys(queue: int, keys: Sequence[str | None]) -> list[str | None]:
    """Keys of one queue. Its number comes first, not its name: a queue that is made anew has seen nothing yet. Keys of
    the store have no zero byte, so none of them is also a queue's."""
    return [None if key is None else records.own_dedup_key(queue, key) for key in keys]


def _first_seen(
    memory: QueueMemory, keys: Sequence[str | None], now_ms: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """The messages that are new, and (index, first message) of the others; -1 - index if that is in this publish."""
    fresh: list[int] = []
    duplicates: list[tuple[int, int]] = []
    seen: dict[str, int] = {}
    with memory.reader.view() as view:
        for index, key in enumerate(keys):
            if key is None:
                fresh.append(index)
            elif key in seen:
                duplicates.append((index, -1 - seen[key]))
            elif (known := _held(memory.stored(records.dedup_key(key), view), now_ms)) is not None:
                duplicates.append((index, known))
            else:
                seen[key] = len(fresh)
                fresh.append(index)
    return fresh, duplicates


def _held(stored: bytes | None, now_ms: int) -> int | None:
    if stored is None:
        return None
    message, expires_ms = records.decode_dedup(stored)
    return message if expires_ms >= now_ms else None


def _hold_keys(
    memory: QueueMemory,
    keys: Sequence[str | None],
    duplicates: list[tuple[int, int]],
    first: int,
    now_ms: int,
    retention_s: int,
    undo: Undo | None,
) -> list[tuple[int, int]]:
    """Remember the keys of new messages. Answers the duplicates, those within the publish with their numbers."""
    expires_ms = now_ms + max(memory.dedup_window_ms, retention_s * 1000) if retention_s else FOREVER
    skipped = {index for index, _ in duplicates}
    message = first
    for index, key in enumerate(keys):
        if index in skipped:
            continue
        if key is not None:
            memory.write(records.dedup_key(key), records.encode_dedup(message, expires_ms), undo)
            if expires_ms < FOREVER:
                memory.write(records.dedup_expiry_key(expires_ms, message), key.encode(), undo)
                memory.housekeeper.arm_dedup(memory.wheel, expires_ms)
        message += 1
    return [(index, first - 1 - known if known < 0 else known) for index, known in duplicates]
