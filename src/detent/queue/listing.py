"""Lists of what a queue has, page by page: its messages, those that are done, the attempts that came to nothing.

Each page shows the queue as it was when the page was made. What moves on meanwhile may be on two pages, or on none.
Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from detent.codec import queue as records
from detent.codec.published import FOREVER
from detent.engine import Context, Operation, Result
from detent.errors import Invalid
from detent.kv import View
from detent.queue.bucket import BLOCKED, GONE, HELD, HIDDEN, READY, Bucket
from detent.queue.memory import QueueMemory
from detent.queue.moving import history
from detent.queue.operations import Attached, Number
from detent.queue.state import QueueState

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


def list_messages(memory: QueueMemory, op: ListMessages, context: Context) -> Result:
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
    """The buckets from one on, in order. They mostly follow each other, and then nobody looks at them all."""
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


def list_done(memory: QueueMemory, op: ListDone, context: Context) -> Result:
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


def list_attempts(memory: QueueMemory, op: ListAttempts, context: Context) -> Result:
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
