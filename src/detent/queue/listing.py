"""What queues are and have: descriptions, where a message is; and lists, page by page, of messages, of those that
failed or are done, of the attempts that came to nothing.

Each page shows the queue as it was when the page was made. What moves on meanwhile may be on two pages, or on none.
Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from detent.codec import published
from detent.codec import queue as records
from detent.codec.origin import OriginRecord
from detent.codec.published import FOREVER
from detent.engine import ApplyContext, Operation, Result
from detent.errors import Invalid, LimitExceeded
from detent.kv import View
from detent.queue import operations as ops
from detent.queue.bucket import BLOCKED, GONE, HELD, HIDDEN, READY, Bucket
from detent.queue.memory import QueueMemory
from detent.queue.moving import history, origin_of
from detent.queue.operations import Attached, Number
from detent.queue.settings import settings_of
from detent.queue.state import QueueState

MESSAGE_MAX: Final = (1 << 62) - 1
FAILED_MAX: Final = 1_000
"""Failed messages in one answer."""

FAILED_TEXT_MAX: Final = 4 << 20
"""Bytes of reasons and consumers after which a list of failed messages ends early: one message can have 100 KiB of
them, and the owner makes the list while every caller waits."""

TRIED_BYTES: Final = 32
"""What the times and lengths of an attempt add to its words."""

DONE_RECORDS_SEARCHED: Final = 1_000
DONE_MESSAGES_SEARCHED: Final = 1_000_000
"""Records of done messages, and about how many messages in them, that a search for one message looks through, newest
first. Everybody else waits meanwhile: a few milliseconds."""


def describe(memory: QueueMemory, op: ops.DescribeQueues, context: ApplyContext) -> Result:
    """Queues by name."""
    context.idle += 1
    if op.queue is not None:
        names = [memory.queue(op.queue).name]
    else:
        names = sorted(name for name in memory.queues if name.startswith(op.prefix))
        names = names[: op.limit] if op.limit else names
    with memory.reader.view() as view:
        found = [described(memory, memory.queues[name], view) for name in names]
    return ops.QueueDescriptions(found, memory.own.ready.get(0, 0), memory.dedup_window_ms)


def described(memory: QueueMemory, state: QueueState, view: View) -> ops.QueueDescription:
    """One queue."""
    return ops.QueueDescription(
        name=state.name,
        number=state.number,
        created_ms=state.config.created_ms,
        settings=settings_of(state.config),
        behind=state.number in memory.behind,
        available=sum(state.ready.values()),
        delayed=state.hidden,
        in_flight=len(state.flights),
        failed=len(state.failed),
        done_kept=state.done_kept,
        routed=state.routed,
        acked=state.acked,
        failures=state.failures,
        expired=state.expired,
        purged=state.purged,
        oldest_ms=_oldest_ms(memory, state, view),
        priorities=dict(sorted(state.ready.items())),
        blocked=state.blocked,
        blocked_delayed=state.blocked_until_later(memory.now_ms),
        dead_lettered=state.dead_lettered,
    )


def _oldest_ms(memory: QueueMemory, state: QueueState, view: View) -> int:
    """When the oldest message that can be claimed was received; 0 if there is none."""
    for number in sorted(state.buckets) if state.ready else ():
        bucket = state.buckets[number]
        row = bucket.states.find(READY)
        if row >= 0:
            offset = bucket.offsets[row]
            entry = memory.stored(memory.holdings.entry_key(bucket.messages[row] - offset), view)
            return 0 if entry is None else published.decode_metadata(entry)[offset].received_ms
    return 0


def list_failed(memory: QueueMemory, op: ops.ListFailed, context: ApplyContext) -> Result:
    """Failed messages, with the attempts that led there."""
    context.idle += 1
    state = memory.queue(op.queue)
    if not 1 <= op.limit <= FAILED_MAX:
        raise Invalid(f"a list has 1 to {FAILED_MAX} messages, not {op.limit}")
    messages = sorted(message for message in state.failed if message > op.after)
    entries: list[ops.FailedEntry] = []
    left = FAILED_TEXT_MAX
    with memory.reader.view() as view:
        for failed in (state.failed[message] for message in messages[: op.limit]):
            past = history(state, failed.message, view)
            moves = moves_of(origin_of(memory, state, failed.message, view))
            entries.append(
                ops.FailedEntry(
                    failed.message,
                    failed.message - failed.offset,
                    failed.failed_ms,
                    failed.attempts,
                    failed.priority,
                    failed.delivery,
                    failed.reason,
                    past,
                    moves,
                )
            )
            left -= _text(failed.reason, past) + sum(_text(move.reason, move.history) for move in moves)
            if left <= 0:
                break
    return ops.FailedMessages(entries, len(messages) > len(entries))


def _text(reason: str, attempts: Sequence[ops.Tried]) -> int:
    """About how many bytes a reason and attempts take in an answer."""
    return len(reason) + sum(TRIED_BYTES + len(consumer) + len(why) for _, consumer, _, why in attempts)


def find_message(memory: QueueMemory, op: ops.FindMessage, context: ApplyContext) -> Result:
    """Where a message is."""
    if not 0 <= op.message <= MESSAGE_MAX:
        raise Invalid(f"messages are numbered from 0 on, not {op.message}")
    if len(op.queues) > ops.QUEUES_MAX:
        raise LimitExceeded(f"a message is looked for in at most {ops.QUEUES_MAX} queues, not {len(op.queues)}")
    context.idle += 1
    named = [memory.queues[name] for name in dict.fromkeys(op.queues) if name in memory.queues]
    record, found = -1, []
    holders = memory.holdings.count(op.message)
    with memory.reader.view() as view:
        for state in named if op.queues else (memory.own, *memory.queues.values()):
            # Once all holders are found, no other queue has it.
            held = _find_held(memory, state, op.message, view) if holders else None
            if held is None:
                done = None if op.message >= memory.log_end else _find_done(state, op.message, view)
                found += [] if done is None else [done]
                continue
            holders -= 1
            record = op.message - held[0]
            if state is not memory.own:
                found.append(held[1])
    return ops.MessageFound(record, found)


def moves_of(origin: OriginRecord) -> list[ops.DeadLetterMove]:
    """The moves of a dead letter as an answer has them."""
    return [ops.DeadLetterMove(*move[:-1], list(move.history)) for move in origin.moves]


def _find_held(memory: QueueMemory, state: QueueState, message: int, view: View) -> tuple[int, ops.MessageState] | None:
    """Its place in its record and its state, if the queue has the message."""
    moves = moves_of(origin_of(memory, state, message, view))
    failed = state.failed.get(message)
    if failed is not None:
        where = ops.MessageState(
            state.name,
            "failed",
            failed.attempts,
            failed.priority,
            failed.failed_ms,
            "",
            failed.reason,
            failed.delivery,
            history(state, message, view),
            moves,
        )
        return failed.offset, where
    place = state.place_of(message)
    if place is None:
        return None
    bucket, row = state.buckets[place // state.size], place % state.size
    flight = state.flights.get(message)
    name, at_ms, consumer, delivery = "available", bucket.visible[row], "", 0
    if flight is not None:
        _, delivery, grant = flight
        name, at_ms = ("assigned", grant.claimed_ms) if grant.is_assigned else ("in flight", grant.lease_ms)
        consumer = grant.consumer
    elif bucket.states[row] == HIDDEN:
        name = "delayed"
    elif bucket.states[row] == BLOCKED:
        name = "blocked"
    where = ops.MessageState(
        state.name,
        name,
        bucket.attempts[row],
        bucket.priorities[row],
        at_ms,
        consumer,
        "",
        delivery,
        history(state, message, view),
        moves,
    )
    return bucket.offsets[row], where


def _find_done(state: QueueState, message: int, view: View) -> ops.MessageState | None:
    """What the queue knows of a message that is done there: the newest of what it keeps is looked through."""
    if not state.done_kept:
        return None
    for index in np.flatnonzero(np.frombuffer(state.done_messages, "<u8") == np.uint64(message)).tolist():
        return ops.MessageState(state.name, "done", state.done_attempts[index], 0, state.done_times[index])
    start, end = records.queue_range(records.DONE, state.number)
    left = DONE_MESSAGES_SEARCHED
    for _, value in view.scan(start, end, reverse=True, limit=DONE_RECORDS_SEARCHED):
        table = records.decode_done(value)
        for row in table[table["message"] == np.uint64(message)].tolist():
            return ops.MessageState(state.name, "done", row[2], 0, row[1])
        left -= len(table)
        if left <= 0:
            break
    return None


LISTED_MAX: Final = 1_000
"""Messages on one page. Everybody else waits while it is made: about a millisecond."""

ATTEMPTS_BYTES: Final = 1 << 20
"""A page of attempts ends when it has about so many bytes: a message can have some hundred kilobytes of reasons."""

DONE_BYTES: Final = 1 << 20
"""Stored records of done messages on one page; one alone has up to 900 kB."""

STATES: Final = {HIDDEN: "delayed", READY: "available", HELD: "in flight", BLOCKED: "blocked"}


class ListMessages(Operation, frozen=True, tag=True, array_like=True):
    """The messages at the places after one: available, delayed, blocked or in flight. Changes nothing."""

    queue: str
    after: int = -1
    limit: Number = LISTED_MAX


class ListDone(Operation, frozen=True, tag=True, array_like=True):
    """The messages that are done and kept. The first page says where the next one starts, and which records had been
    written when it was made: `below` those, no later page has what the first one had. Changes nothing."""

    queue: str
    after: tuple[Number, Number] | None = None
    below: Number | None = None


class ListAttempts(Operation, frozen=True, tag=True, array_like=True):
    """Attempts that came to nothing, of the messages after a message number, failed or not. Changes nothing."""

    queue: str
    after: int = -1
    limit: Number = LISTED_MAX


class ListedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message at its place. `lease_ms` and what follows it are of one in flight."""

    place: int
    message: int
    record: int
    state: str
    attempts: int
    priority: int
    visible_ms: int
    deadline_ms: int
    lease_ms: int = FOREVER
    claimed_ms: int = FOREVER
    consumer: str = ""
    delivery: int = 0


class ListedMessages(Result, frozen=True, tag=True, array_like=True):
    """Messages by place, and the number of their queue: another one of that name has places of its own. For `contents`
    see :class:`detent.queue.operations.ClaimedMessages`; a page ends where they have no room."""

    queue: int
    messages: list[ListedMessage]
    more: bool
    contents: Attached | None = None


class DoneMessages(Result, frozen=True, tag=True, array_like=True):
    """Done messages, as their records have them: see :data:`detent.codec.queue.DONE_MESSAGE`."""

    queue: int
    rows: bytes
    after: tuple[int, int]
    below: int
    more: bool


class TriedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message, and its attempts that came to nothing: when each began, by whom, when it ended and why."""

    message: int
    attempts: list[tuple[int, str, int, str]]


class TriedMessages(Result, frozen=True, tag=True, array_like=True):
    """Messages with their attempts, by number."""

    messages: list[TriedMessage]
    more: bool


def _check(after: int, limit: int) -> None:
    if after < -1:
        raise Invalid(f"a list starts after -1 or what the page before it ended with, not after {after}")
    if not 1 <= limit <= LISTED_MAX:
        raise Invalid(f"a list has 1 to {LISTED_MAX} messages, not {limit}")


def list_messages(memory: QueueMemory, op: ListMessages, context: ApplyContext) -> Result:
    """Messages by place."""
    context.idle += 1
    state = memory.queue(op.queue)
    _check(op.after, op.limit)
    first, row = divmod(op.after + 1, state.size)
    found: list[ListedMessage] = []
    for number in bucket_numbers(state, first):
        room = op.limit + 1 - len(found)
        found += _listed(state, state.buckets[number], row if number == first else 0, room)
        if len(found) > op.limit:
            break
    return ListedMessages(state.number, found[: op.limit], len(found) > op.limit)


def bucket_numbers(state: QueueState, first: int) -> Iterator[int]:
    """The buckets from one on, in order. They mostly follow each other, and then not all are looked at."""
    number = first
    while number in state.buckets:
        yield number
        number += 1
    yield from sorted(other for other in state.buckets if other > number)


def _listed(state: QueueState, bucket: Bucket, start: int, limit: int) -> list[ListedMessage]:
    """Up to `limit` messages of a bucket, from a row on."""
    places = np.flatnonzero(np.frombuffer(bucket.states, np.uint8)[start:] != GONE)[:limit] + start
    found = []
    for row in places.tolist():
        message = bucket.messages[row]
        about = (
            bucket.number * state.size + row,
            message,
            message - bucket.offsets[row],
            STATES[bucket.states[row]],
            bucket.attempts[row],
            bucket.priorities[row],
            bucket.visible[row],
            bucket.deadlines[row],
        )
        if bucket.states[row] == HELD:
            _, delivery, grant = state.flights[message]
            found.append(ListedMessage(*about, grant.lease_ms, grant.claimed_ms, grant.consumer, delivery))
        else:
            found.append(ListedMessage(*about))
    return found


def list_done(memory: QueueMemory, op: ListDone, context: ApplyContext) -> Result:
    """Done messages: on the first page what no checkpoint has written yet, then record by record."""
    context.idle += 1
    state = memory.queue(op.queue)
    below, parts = op.below, []
    if below is None:
        below = state.done_records
        parts.append(state.done_table().tobytes())
    start, end = records.queue_range(records.DONE, state.number)
    after = op.after or (0, 0)
    if op.after is not None:
        start = records.done_key(state.number, *op.after) + b"\0"
    size, more = 0, False
    with memory.reader.view() as view:
        for key, value in view.scan(start, end):
            if len(key) == records.EMPTY_DONE_KEY_BYTES:
                continue  # what the queue was created with
            _, done_ms, number = records.decode_done_key(key)
            if number >= below:
                continue  # it was written since the first page, which had what it says
            if size >= DONE_BYTES:
                more = True
                break
            parts.append(records.decode_done(value).tobytes())
            size += len(value)
            after = done_ms, number
    return DoneMessages(state.number, b"".join(parts), after, below, more)


def list_attempts(memory: QueueMemory, op: ListAttempts, context: ApplyContext) -> Result:
    """Attempts by message."""
    context.idle += 1
    state = memory.queue(op.queue)
    _check(op.after, op.limit)
    found: list[TriedMessage] = []
    size = 0
    with memory.reader.view() as view:
        messages = _tried(state, op.after, op.limit + 1, view)
        for message in messages[: op.limit]:
            attempts = history(state, message, view)
            found.append(TriedMessage(message, list(attempts)))
            size += sum(len(consumer) + len(reason) for _, consumer, _, reason in attempts)
            if size >= ATTEMPTS_BYTES:
                break
    return TriedMessages(found, len(found) < len(messages))


def _tried(state: QueueState, after: int, limit: int, view: View) -> list[int]:
    """The first messages after one that have attempts: stored ones, and some since the last checkpoint."""
    start = records.queue_key(records.ATTEMPTS, state.number, after + 1)
    _, end = records.queue_range(records.ATTEMPTS, state.number)
    stored = (records.decode_queue_key(records.ATTEMPTS, key)[1] for key, _ in view.scan(start, end))
    known = islice((message for message in stored if message not in state.old_attempts), limit)
    return sorted({*known, *(message for message in state.new_attempts if message > after)})[:limit]
