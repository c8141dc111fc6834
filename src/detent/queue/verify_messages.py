"""Checking what queues hold, by the state that the state log leads to: attempts, payloads and the metadata log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from detent.codec import log, published
from detent.codec import queue as records
from detent.codec.keys import SUBSYSTEM_LOG, Prefix, u32
from detent.codec.log import LOG_VERSION, EntryKey, SegmentMeta, SeqBlock
from detent.codec.origin import OriginRecord
from detent.codec.published import FOREVER, LOG_KEY, PAYLOAD, Metadata
from detent.codec.queue import ATTEMPTS_KEPT
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt
from detent.kv import View
from detent.queue.bucket import GONE, HELD
from detent.queue.grouped import GroupedState
from detent.queue.holdings import LogSegment
from detent.queue.machine import QueueMachine
from detent.queue.memory import STORES_OWN
from detent.queue.settings import group_of
from detent.queue.state import QueueState

_LOG: Final = Prefix(SUBSYSTEM_LOG, LOG_VERSION)
_TAG_AT: Final = 6

_HOLD: Final = np.dtype(
    [("first", "<u8"), ("message", "<u8"), ("deadline_ms", "<i8"), ("record_count", "<u2"), ("queue", "<u4")]
)
"""One queue's hold on one message, which is in the records that begin with message `first`."""


class Holds:
    """All holds, in the order of the records."""

    def __init__(self, machine: QueueMachine | None) -> None:
        states = [] if machine is None else machine.by_number.values()
        parts = [part for state in states for part in _holds_of(state)]
        rows = np.concatenate(parts) if parts else np.empty(0, _HOLD)
        self.rows = rows[np.lexsort((rows["message"], rows["first"]))]
        self._firsts = np.ascontiguousarray(self.rows["first"])
        self._seen = np.zeros(len(self.rows), bool)

    def of(self, first: int) -> np.ndarray:
        """The holds on messages of one record, which is there."""
        start = int(np.searchsorted(self._firsts, np.uint64(first), "left"))
        end = int(np.searchsorted(self._firsts, np.uint64(first), "right"))
        self._seen[start:end] = True
        return self.rows[start:end]

    def unseen(self) -> Iterator[tuple[int, HeldBody, int]]:
        """The records that were not asked for: first message, some hold on it, how many there are. Then all are
        forgotten to have been seen."""
        rows = self.rows[~self._seen]
        self._seen[:] = False
        firsts, starts, counts = np.unique(rows["first"], return_index=True, return_counts=True)
        for first, start, count in zip(firsts.tolist(), starts.tolist(), counts.tolist(), strict=True):
            yield first, HeldBody(*rows[start].tolist()), count


class HeldBody(NamedTuple):
    """A row of `Holds`."""

    first: int
    message: int
    deadline_ms: int
    record_count: int
    queue: int


def _holds_of(state: QueueState) -> Iterator[np.ndarray]:
    for bucket in state.buckets.values():
        places = np.flatnonzero(np.frombuffer(bucket.states, np.uint8) != GONE)
        rows = np.empty(len(places), _HOLD)
        rows["message"] = np.frombuffer(bucket.messages, "<u8")[places]
        rows["first"] = rows["message"] - np.frombuffer(bucket.offsets, "<u2")[places]
        rows["deadline_ms"] = np.frombuffer(bucket.deadlines, "<i8")[places]
        rows["record_count"] = np.frombuffer(bucket.counts, "<u2")[places]
        rows["queue"] = state.number
        yield rows
    if state.failed:
        rows = np.empty(len(state.failed), _HOLD)
        for index, failed in enumerate(state.failed.values()):
            first = max(0, failed.message - failed.offset)
            rows[index] = (first, failed.message, failed.deadline_ms, failed.record_count, state.number)
        yield rows


class MessageCheck:
    """Checks attempts, payloads and the metadata log. Without a machine, each record by itself."""

    def __init__(
        self,
        view: View,
        tally: Tally,
        machine: QueueMachine | None,
        numbers: Iterable[int],
        names: Mapping[int, str],
    ) -> None:
        self._view = view
        self._tally = tally
        self._machine = machine
        self._numbers = numbers
        self._names = names
        self._holds = Holds(machine)

    def findings(self) -> Iterator[Finding]:
        """Check all of it."""
        if self._machine is not None:
            self._tally.counts.queued += int(np.isin(self._holds.rows["queue"], list(self._names)).sum())
            if self._machine.next_record > self._machine.first_record:
                yield from self._counted(self._machine)
        yield from self._attempts()
        yield from self._origins()
        yield from self._payloads()
        yield from LogCheck(self._view, self._tally, self._machine, self._holds, self._names).findings()

    def _counted(self, machine: QueueMachine) -> Iterator[Finding]:
        """The state log counts the holds along; a wrong count loses a payload, or keeps it for ever."""
        found, counts = np.unique(self._holds.rows["message"], return_counts=True)
        for message, count in zip(found.tolist(), counts.tolist(), strict=True):
            counted = machine.holdings.count(message)
            if counted != count:
                problem = f"the state log leads to {counted} holds on message {message}, which {count} queues have"
                yield Finding(record_at(records.WATERMARK.raw), problem)

    # -- attempts -----------------------------------------------------------------------------------------------

    def _attempts(self) -> Iterator[Finding]:
        for number in self._numbers:
            state = None if self._machine is None else self._machine.by_number.get(number)
            past = None if state is None or state.deleted else _PastAttempts(state)
            for key, value in self._tally.scan(self._view, *records.ATTEMPTS.range(u32(number))):
                try:
                    _, message = records.decode_queue_key(records.ATTEMPTS, key)
                    attempts = records.decode_attempts(value)
                    if not 0 < len(attempts) <= ATTEMPTS_KEPT:
                        raise Corrupt(f"{len(attempts)} attempts of a message")
                    problem = None if past is None else past.check(message, len(attempts))
                except Corrupt as error:
                    problem = str(error)
                if problem is not None:
                    yield Finding(record_at(key, queue=self._names.get(number)), problem)
            for message, count in () if past is None else past.unseen():
                key = records.queue_key(records.ATTEMPTS, number, message)
                problem = f"nothing is kept of the {count} past attempts of message {message}"
                yield Finding(record_at(key, queue=self._names.get(number)), problem)

    # -- dead letters -------------------------------------------------------------------------------------------

    def _origins(self) -> Iterator[Finding]:
        """A message whose origin is told is in the queue, or has left it since the last checkpoint."""
        for number in self._numbers:
            state = None if self._machine is None else self._machine.by_number.get(number)
            known = None if state is None or state.deleted else state
            held = set() if known is None else known.holds(np.fromiter(known.origins, np.uint64, len(known.origins)))
            for key, value in self._tally.scan(self._view, *records.ORIGIN.range(u32(number))):
                try:
                    _, message = records.decode_queue_key(records.ORIGIN, key)
                    OriginRecord.decode(value)
                    if known is not None and message not in held and message not in known.old_origins:
                        raise Corrupt(f"the origin of message {message}, which is not in this queue")
                except Corrupt as error:
                    yield Finding(record_at(key, queue=self._names.get(number)), str(error))

    # -- payloads -----------------------------------------------------------------------------------------------

    def _payloads(self) -> Iterator[Finding]:
        freed = {} if self._machine is None else self._machine.holdings.freed
        for key, value in self._tally.scan(self._view, *PAYLOAD.range()):
            try:
                reader = PAYLOAD.reader(key, "payload key")
                first = reader.u64()
                reader.finish()
                payloads = published.decode_payloads(value)
            except Corrupt as error:
                yield Finding(record_at(key), str(error))
                continue
            self._tally.counts.body_bytes += sum(len(data) for _, data in payloads.values())
            for index, (kind, data) in payloads.items():
                if kind == published.URI and not _is_text(data):
                    yield Finding(record_at(key), f"the URI of message {first + index} is not UTF-8")
            if self._machine is None:
                continue
            holds = self._holds.of(first)
            held = {message - first for message in holds["message"].tolist()}
            for index in sorted(held - payloads.keys()):
                who = self._who(int(holds["queue"][holds["message"] == np.uint64(first + index)][0]))
                yield Finding(record_at(key), f"the payload of message {first + index} is missing, which {who} has")
            orphans = sorted(payloads.keys() - held)
            if orphans and first not in freed:
                problem = f"the payload of message {first + orphans[0]} is kept, and nobody has the message"
                yield Finding(record_at(key), problem)
        if self._machine is not None:
            for first, hold, count in self._holds.unseen():
                problem = (
                    f"no payload record begins with message {first}, and {count} messages are said to be in it: "
                    f"{hold.message} of {self._who(hold.queue)}"
                )
                yield Finding(record_at(published.payload_key(first)), problem)

    def _who(self, queue: int) -> str:
        return holder(queue, self._names)


def holder(queue: int, names: Mapping[int, str]) -> str:
    """How a finding names who has a message."""
    if queue == STORES_OWN:
        return "the store itself"
    return f"queue {names[queue]!r}" if queue in names else f"queue number {queue}, which is deleted,"


def _may_keep(published_ms: int, deadline_ms: int) -> bool:
    """Whether a message that was published with one deadline may have another one: a dead letter may have a later one,
    also where it was redriven to, and where the store keeps it for a queue that has yet to read of it."""
    return deadline_ms == published_ms or published_ms < deadline_ms < FOREVER


def _groups_of(state: GroupedState) -> dict[int, bytes | None]:
    """The groups of a queue's messages, but for those that have failed."""
    found: dict[int, bytes | None] = {}
    for bucket in state.buckets.values():
        rows = np.flatnonzero(np.frombuffer(bucket.states, np.uint8) != GONE).tolist()
        found.update((bucket.messages[row], bucket.groups[row]) for row in rows if bucket.groups is not None)
    return found


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _PastAttempts:
    """How many attempts of each message of a queue have come to nothing."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        messages, past = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for bucket in state.buckets.values():
            states = np.frombuffer(bucket.states, np.uint8)
            ended = np.frombuffer(bucket.attempts, "<u2").astype(np.int64) - (states == HELD)
            tried = (states != GONE) & (ended > 0)
            messages.append(np.frombuffer(bucket.messages, "<u8")[tried])
            past.append(ended[tried])
        messages.append(np.fromiter(state.failed, np.uint64, len(state.failed)))
        past.append(np.array([failed.attempts for failed in state.failed.values()], np.int64))
        numbers = np.concatenate(messages)
        order = np.argsort(numbers)
        self._messages, self._past = numbers[order], np.concatenate(past)[order]
        self._seen = np.zeros(len(order), bool)

    def check(self, message: int, stored: int) -> str | None:
        """What is wrong with a record of so many attempts of a message."""
        if message in self._state.old_attempts:
            return None  # it goes with the next checkpoint
        at = int(np.searchsorted(self._messages, np.uint64(message)))
        if at == len(self._messages) or int(self._messages[at]) != message:
            return f"attempts of message {message}, which is not in this queue, or was not tried before"
        self._seen[at] = True
        found = min(ATTEMPTS_KEPT, stored + len(self._state.new_attempts.get(message, ())))
        if found != min(ATTEMPTS_KEPT, int(self._past[at])):
            return f"{found} past attempts are kept of message {message}, which had {int(self._past[at])}"
        return None

    def unseen(self) -> Iterator[tuple[int, int]]:
        """Messages with past attempts of which neither a record nor the state log tells: (message, attempts)."""
        rows = np.flatnonzero(~self._seen)
        for message, past in zip(self._messages[rows].tolist(), self._past[rows].tolist(), strict=True):
            if min(ATTEMPTS_KEPT, len(self._state.new_attempts.get(message, ()))) != min(ATTEMPTS_KEPT, past):
                yield message, past


class LogCheck:
    """Checks the metadata log: all records of its subsystem."""

    def __init__(
        self, view: View, tally: Tally, machine: QueueMachine | None, holds: Holds, names: Mapping[int, str]
    ) -> None:
        self._view = view
        self._tally = tally
        self._machine = machine
        self._holds = holds
        self._names = names
        self._segments: list[LogSegment] = []
        self._listed: set[int] = set()
        self._begun: dict[int, int] = {}  # the first entry of each segment
        self._reserved = 0
        self._end = 0
        states = () if machine is None else machine.by_number.values()
        self._grouped = {state.number: state for state in states if isinstance(state, GroupedState)}
        self._groups = {number: _groups_of(state) for number, state in self._grouped.items()}

    def findings(self) -> Iterator[Finding]:
        """Look at every record; what describes the log comes before its entries."""
        for key, value in self._tally.scan(self._view, *_LOG.range()):
            tag = key[_TAG_AT] if len(key) > _TAG_AT else None
            try:
                if tag == log.TAG_SEQUENCE:
                    if key != log.SEQUENCE_BLOCK_KEY:
                        raise Corrupt(f"a key of {len(key)} bytes is malformed")
                    self._reserved = SeqBlock.decode(value).end
                elif tag == log.TAG_SEGMENT:
                    self._segment(key, value)
                elif tag == log.TAG_LISTING:
                    self._listing(key, value)
                elif tag == log.TAG_ENTRY:
                    yield from self._entry(key, value)
                else:
                    raise Corrupt("a record of the log with an unknown tag")
            except Corrupt as error:
                yield Finding(record_at(key), str(error))
        yield from self._ends()

    def _segment(self, key: bytes, value: bytes) -> None:
        segment = LogSegment(log.decode_segment_key(key), SegmentMeta.decode(value).start_seq)
        before = self._segments[-1] if self._segments else None
        self._segments.append(segment)
        if before is not None and segment.start <= before.start:
            raise Corrupt(f"segment {segment.number} of the log begins at {segment.start}, the one before it later")

    def _listing(self, key: bytes, value: bytes) -> None:
        number, user_key = log.decode_listing(key, value)
        if user_key != LOG_KEY:
            raise Corrupt(f"a listing of the unknown log {user_key!r}")
        if not any(segment.number == number for segment in self._segments):
            raise Corrupt(f"a listing of segment {number}, which does not exist")
        self._listed.add(number)

    def _entry(self, key: bytes, value: bytes) -> Iterator[Finding]:
        where = EntryKey.decode(key)
        if where.key != LOG_KEY:
            raise Corrupt(f"an entry of the unknown log {where.key!r}")
        index = bisect_right(self._segments, where.segment, key=lambda segment: segment.number) - 1
        if index < 0 or self._segments[index].number != where.segment:
            raise Corrupt(f"an entry of segment {where.segment}, which does not exist")
        entry = published.decode_metadata(value)
        first, end = entry[0].message, entry[-1].message + 1
        self._begun.setdefault(where.segment, where.relative)
        belongs = self._segments[index].start + where.relative
        if first != belongs:
            raise Corrupt(f"an entry that begins with message {first} stands where {belongs} belongs")
        if first < self._end:
            raise Corrupt(f"an entry that begins with message {first}, and the one before it ends at {self._end}")
        self._end = end
        if index + 1 < len(self._segments) and end > self._segments[index + 1].start:
            raise Corrupt(f"an entry that ends at {end}, and another segment begins before that")
        if self._machine is None:
            return
        if end > self._machine.log_end:
            yield Finding(record_at(key), f"an entry that ends at {end}, and the log ends at {self._machine.log_end}")
        yield from self._compare(key, first, entry)

    def _compare(self, key: bytes, first: int, entry: list[Metadata]) -> Iterator[Finding]:
        deadlines = [message.deadline_ms for message in entry]
        for _, message, deadline_ms, count, queue in self._holds.of(first).tolist():
            if (
                count == len(entry)
                and 0 <= message - first < count
                and _may_keep(deadlines[message - first], deadline_ms)
            ):
                yield from self._compare_group(key, queue, entry[message - first])
                continue
            who = holder(queue, self._names)
            if count != len(entry) or not 0 <= message - first < count:
                there = f"message {message} of an entry of {count}"
                yield Finding(record_at(key), f"{who} has {there}, and this one has {len(entry)}")
                continue
            kept = f"message {message} is kept until {deadlines[message - first]}"
            yield Finding(record_at(key), f"{kept}, by {who} until {deadline_ms}")

    def _compare_group(self, key: bytes, queue: int, message: Metadata) -> Iterator[Finding]:
        if queue not in self._grouped or message.message not in self._groups[queue]:
            return  # a queue without groups, or a message that has failed and is in none
        group, expected = self._groups[queue][message.message], group_of(self._grouped[queue].config, message.headers)
        if group != expected:
            problem = f"message {message.message} belongs to group {expected!r}, and is in {group!r} of"
            yield Finding(record_at(key), f"{problem} {holder(queue, self._names)}")

    def _ends(self) -> Iterator[Finding]:
        for index, segment in enumerate(self._segments):
            key = log.segment_key(segment.number)
            if segment.number not in self._listed:
                yield Finding(record_at(key), f"segment {segment.number} of the log is not listed")
            held = self._machine is None or any(self._machine.holdings.live[index : index + 1])
            going = not held and index + 1 < len(self._segments)
            # The newest one, if it was begun because nothing was published for a while.
            ahead = self._machine is not None and segment.start == self._machine.log_end and not held
            if self._begun.get(segment.number) != 0 and not going and not ahead:
                problem = f"segment {segment.number} of the log has no entry at its start, {segment.start}"
                yield Finding(record_at(key), problem)
        if self._machine is None:
            return
        if self._machine.log_end > self._reserved:
            problem = f"message {self._machine.log_end - 1} is there, and numbers from {self._reserved} on are free"
            yield Finding(record_at(log.SEQUENCE_BLOCK_KEY), problem)
        for first, hold, count in self._holds.unseen():
            problem = (
                f"no log entry begins with message {first}, and {count} messages are said to be in it: "
                f"{hold.message} of {holder(hold.queue, self._names)}"
            )
            yield Finding(record_at(published.payload_key(first)), problem)
