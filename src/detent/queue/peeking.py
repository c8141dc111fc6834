"""Looking into a queue, page by page, without claiming: what is in it, whatever its state. Nothing here changes
anything, and no attempt is counted.

The owner answers from its memory: which messages, in which state (`peek`). Headers and bodies are read from the store
afterwards (`read_page`), in the process that asks, or by the owner's server for a client that has no files.

A page follows the one before it by its cursor: first what is available, delayed, blocked, in flight or assigned, in the
order of their places; then what has failed, by number; then what is done, in the order in which it was done. Places and
records never change, so a cursor stays good, whatever comes and goes meanwhile. A message that stays where it is, is on
one page; one that moves on may be on two, or on none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np

from detent.codec import queue as records
from detent.codec.origin import OriginRecord
from detent.engine import ApplyContext, Operation, Result
from detent.errors import Conflict, Invalid
from detent.queue.bucket import GONE, HELD
from detent.queue.filters import Filter
from detent.queue.listing import STATES, bucket_numbers
from detent.queue.memory import QueueMemory
from detent.queue.operations import DeadLetterMove, Number, PeekedContent
from detent.queue.reader import QueueReader
from detent.queue.state import QueueState

PEEKED_MAX: Final = 1_000
"""Messages on one page; and messages whose headers are read for one page, if a filter or an age is asked for."""

LOOKED_MAX: Final = 20_000
"""Places, failed and done messages that are looked at for one page. Others wait meanwhile: some milliseconds."""

PART_COSTS: Final = 20
"""As how many of these a bucket, or a record of done messages, counts."""

BODY_BYTES_MAX: Final = 4 << 10
"""The first bytes of a body that a page may show: a whole page of them finds room in one answer."""

READ_BYTES_MAX: Final = 32 << 20
"""A page ends once the body records that were read for it have so many bytes."""

LIVE, FAILED, DONE = range(3)
"""The sections of a queue, in the order of their pages."""

ALL_STATES: Final = ("available", "delayed", "blocked", "in flight", "assigned", "failed", "done")
_LIVE_STATES: Final = frozenset(ALL_STATES[:5])

Cursor = tuple[int, int, int, int]
"""After which message a page begins: its section; its place, its number, or the number of its record; of done messages
the time and the row in the record as well."""

START: Final[Cursor] = (LIVE, -1, 0, -1)


_Last = Annotated[int, msgspec.Meta(ge=-1, le=1 << 62)]


class PeekMessages(Operation, frozen=True, tag=True, array_like=True):
    """Some messages of a queue after a cursor, of these states (all, if none is named). Changes nothing.

    `number` is the queue's that the cursor is of; 0 for any. `filter` and the ages (since the message was published, in
    milliseconds) are for what reads the headers; so is how many bytes of each body to show.
    """

    queue: str
    after: tuple[Number, _Last, Number, _Last] = START
    number: Number = 0
    states: list[str] = msgspec.field(default_factory=list)
    priority: Number | None = None
    limit: Number = 100
    filter: str | None = None
    older_ms: Number | None = None
    newer_ms: Number | None = None
    body_bytes: Number = 0

    @property
    def reads_headers(self) -> bool:
        """Whether it depends on its headers, or the time when it was published, if a message is wanted."""
        return self.filter is not None or self.older_ms is not None or self.newer_ms is not None


class PeekedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as the owner sees it. `record` is -1 for a done one, of which only the number is known."""

    message: int
    record: int
    state: str
    attempts: int
    earlier: int
    priority: int
    at_ms: int
    deadline_ms: int
    cursor: tuple[int, int, int, int]
    consumer: str = ""
    delivery: int = 0
    reason: str = ""


class PeekedMessages(Result, frozen=True, tag=True, array_like=True):
    """A page; the next one begins after `after`, if there is more. `contents` are added like those of
    :class:`detent.queue.operations.ClaimedMessages`, and with them all that the headers decide."""

    queue: int
    now_ms: int
    messages: list[PeekedMessage]
    after: tuple[int, int, int, int]
    more: bool
    contents: list[PeekedContent | None] | None = None


# -- in the owner ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """A page in the making: what is wanted, and how much may still be looked at."""

    memory: QueueMemory
    state: QueueState
    wanted: frozenset[str]
    priority: int | None
    room: int
    after: Cursor
    left: int

    def may_be(self, priority: int) -> bool:
        return self.priority is None or priority == self.priority


def peek(memory: QueueMemory, op: PeekMessages, context: ApplyContext) -> Result:
    """A page of a queue's messages, as far as the owner's memory tells."""
    context.idle += 1
    state = memory.queue(op.queue)
    _check(op, state)
    wanted = frozenset(op.states or ALL_STATES)
    room = PEEKED_MAX if op.reads_headers else op.limit
    search = _Search(memory, state, wanted, op.priority, room, op.after, LOOKED_MAX)
    found: list[PeekedMessage] = []
    more = False
    for section, look in ((LIVE, _live), (FAILED, _failed), (DONE, _done)):
        if section < search.after[0]:
            continue
        if section > search.after[0]:
            search.after = (section, -1, 0, -1)
        for message in look(search):
            found.append(message)
            search.after = message.cursor
            if len(found) == search.room:
                break
        more = len(found) == search.room or search.left <= 0
        if more:
            break
    return PeekedMessages(state.number, context.now_ms, found, search.after, more)


def _check(op: PeekMessages, state: QueueState) -> None:
    if not 1 <= op.limit <= PEEKED_MAX:
        raise Invalid(f"a page has 1 to {PEEKED_MAX} messages, not {op.limit}")
    if op.body_bytes > BODY_BYTES_MAX:
        raise Invalid(f"a page shows up to {BODY_BYTES_MAX} bytes of a body, not {op.body_bytes}")
    unknown = set(op.states) - set(ALL_STATES)
    if unknown:
        raise Invalid(f"a message has no state {min(unknown)!r}; there are {', '.join(ALL_STATES)}")
    if op.number and op.number != state.number:
        raise Conflict(f"the cursor is of an earlier queue {op.queue!r}: begin without one")
    if op.after[0] > DONE:
        raise Invalid("a cursor is what the page before this one answered")
    if op.filter is not None:
        Filter(op.filter)


def _live(search: _Search) -> Iterator[PeekedMessage]:
    """Messages at their places, from the cursor on."""
    state = search.state
    if not search.wanted & _LIVE_STATES:
        return
    first, start = divmod(search.after[1] + 1, state.size)
    for number in bucket_numbers(state, first):
        bucket = state.buckets[number]
        rows = np.flatnonzero(np.frombuffer(bucket.states, np.uint8)[start if number == first else 0 :] != GONE)
        for row in (rows + (start if number == first else 0)).tolist():
            search.left -= 1
            search.after = (LIVE, number * state.size + row, 0, -1)
            message = _at_place(search, number, row)
            if message is not None:
                yield message
            if search.left <= 0:
                return
        search.left -= PART_COSTS
        if search.left <= 0:
            return


def _at_place(search: _Search, number: int, row: int) -> PeekedMessage | None:
    state, bucket = search.state, search.state.buckets[number]
    if not search.may_be(bucket.priorities[row]):
        return None
    message, name, at_ms = bucket.messages[row], STATES[bucket.states[row]], bucket.visible[row]
    consumer, delivery = "", 0
    if bucket.states[row] == HELD:
        _, delivery, grant = state.flights[message]
        name, at_ms = ("assigned", grant.claimed_ms) if grant.is_assigned else (name, grant.lease_ms)
        consumer = grant.consumer
    if name not in search.wanted:
        return None
    record, attempts = message - bucket.offsets[row], bucket.attempts[row]
    about = (attempts, state.origins.get(message, 0), bucket.priorities[row], at_ms, bucket.deadlines[row])
    return PeekedMessage(message, record, name, *about, search.after, consumer, delivery)


def _failed(search: _Search) -> Iterator[PeekedMessage]:
    """Failed messages by number: record by record, so that one page does not sort them all."""
    state, after = search.state, search.after[1]
    if "failed" not in search.wanted:
        return
    numbers = [number for number in state.failed_buckets if number >= state.failed_bucket(after + 1)]
    heapq.heapify(numbers)
    while numbers:
        for message in sorted(state.failed_buckets[heapq.heappop(numbers)]):
            if message <= after:
                continue
            search.left -= 1
            search.after = (FAILED, message, 0, -1)
            failed = state.failed[message]
            if search.may_be(failed.priority):
                about = (failed.attempts, state.origins.get(message, 0), failed.priority, failed.failed_ms)
                yield PeekedMessage(
                    message,
                    message - failed.offset,
                    "failed",
                    *about,
                    failed.deadline_ms,
                    search.after,
                    "",
                    failed.delivery,
                    failed.reason,
                )
            if search.left <= 0:
                return


def _done(search: _Search) -> Iterator[PeekedMessage]:
    """Done messages, record by record. Those that no checkpoint has written stand where it will write them."""
    if "done" not in search.wanted or search.priority is not None:
        return
    for number, table in _done_records(search):
        start = search.after[3] + 1 if number == search.after[1] else 0
        for row, (message, done_ms, attempts) in enumerate(table[start : start + search.left].tolist(), start):
            search.left -= 1
            search.after = (DONE, number, done_ms, row)
            yield PeekedMessage(message, -1, "done", attempts, 0, 0, done_ms, 0, search.after)
        search.left -= PART_COSTS
        if search.left <= 0:
            return


def _done_records(search: _Search) -> Iterator[tuple[int, np.ndarray]]:
    state, (_, after, at_ms, _) = search.state, search.after
    _, end = records.queue_range(records.DONE, state.number)
    with search.memory.reader.view() as view:
        for key, value in view.scan(records.done_key(state.number, at_ms, max(after, 0)), end):
            number = records.decode_done_key(key)[2]
            if number >= after:
                yield number, records.decode_done(value)
    table = state.done_table()
    for index, start in enumerate(range(0, len(table), records.DONE_PER_RECORD)):
        if state.done_records + index >= after:
            yield state.done_records + index, table[start : start + records.DONE_PER_RECORD]


# -- in the process that asks, or in the owner's server ----------------------------------------------------------


def read_page(reader: QueueReader, op: PeekMessages, page: PeekedMessages) -> PeekedMessages:
    """The page with the contents of its messages, without those that are not wanted for their headers or their age. It
    ends early where the bodies that were read are large."""
    wanted = None if op.filter is None else Filter(op.filter)
    stored = [one for one in page.messages if one.record >= 0]
    origins = reader.origins(page.queue, [one.message for one in stored if one.earlier])
    found: list[PeekedMessage] = []
    contents: list[PeekedContent | None] = []
    after, more, left = page.after, page.more, READ_BYTES_MAX
    with reader.heads() as heads:
        for index, one in enumerate(page.messages):
            about = heads.metadata(one.message, one.record) if one.record >= 0 else None
            received_ms = None if about is None else about.received_ms
            is_wanted = _is_old_enough(op, page.now_ms, received_ms)
            if is_wanted and wanted is not None:
                is_wanted = about is not None and wanted.matches(about.headers)
            if is_wanted:
                found.append(one)
                contents.append(None)
                if about is not None:
                    size, kind, data = heads.body(one.message, one.record, op.body_bytes)
                    left -= heads.read
                    move = _last_move(origins.get(one.message))
                    contents[-1] = PeekedContent(
                        about.headers,
                        about.created_ms,
                        about.received_ms,
                        kind,
                        size,
                        data,
                        move,
                    )
            if (len(found) == op.limit or left <= 0) and index + 1 < len(page.messages):
                after, more = one.cursor, True
                break
    return msgspec.structs.replace(page, messages=found, contents=contents, after=after, more=more)


def _is_old_enough(op: PeekMessages, now_ms: int, received_ms: int | None) -> bool:
    """Whether a message was published in the time that is asked for. Of a done one that is not known."""
    if op.older_ms is None and op.newer_ms is None:
        return True
    if received_ms is None:
        return False
    age_ms = now_ms - received_ms
    return (op.older_ms is None or age_ms >= op.older_ms) and (op.newer_ms is None or age_ms <= op.newer_ms)


def _last_move(stored: bytes | None) -> DeadLetterMove | None:
    """The last queue that gave a message up, without the attempts there: `find_message` has them."""
    if stored is None:
        return None
    return DeadLetterMove(*OriginRecord.decode(stored).moves[-1][:-1], [])
