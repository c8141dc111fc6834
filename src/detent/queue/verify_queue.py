"""Checking one queue's records of the last checkpoint: its buckets, what has failed, what is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from detent.codec import queue as records
from detent.codec.keys import u32
from detent.codec.published import FOREVER, RECORD_MESSAGES_MAX
from detent.codec.queue import Config, Failed, InFlight, QueueCursor, Watermark
from detent.codec.reader import READER, ReaderRecord, decode_reader_key, reader_key
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, LimitExceeded
from detent.kv import View
from detent.queue import operations as ops
from detent.queue.memory import STORES_OWN, UNMATCHED, UNREAD
from detent.queue.reader_operations import READER_BYTES_MAX, check_reader

_WHERE: Final = np.dtype([("message", "<u8"), ("offset", "<u2"), ("count", "<u2")])
"""Which record a message's body and metadata are in."""


class QueueCheck:
    """Checks one queue. `findings` yields what is wrong."""

    def __init__(
        self,
        view: View,
        tally: Tally,
        name: str | None,
        config: Config,
        cursor: QueueCursor,
        watermark: Watermark,
        *,
        deleted: bool,
    ) -> None:
        self._view = view
        self._tally = tally
        self._name = name
        self._number = config.number
        self._size = 10**config.bucket_exponent
        self._cursor = cursor
        self._watermark = watermark
        self._deleted = deleted
        self._held: list[tuple[bytes, np.ndarray]] = []
        self._deliveries: set[int] = set()
        self._grouped = bool(config.group_header)
        self._overlap = config.group_overlap or config.group_fair
        self._flying: dict[bytes, tuple[int, str]] = {}  # by group, which claim has messages of it
        self._assigned: dict[str, dict[int, int]] = {}  # by reader, deliveries in flight without an end, and since when

    def findings(self) -> Iterator[Finding]:
        """Check everything but attempts, which are compared with the state that the state log leads to."""
        yield from self._active()
        yield from self._readers()
        yield from self._failed()
        yield from self._twice()
        yield from self._done()

    def _at(self, key: bytes, problem: str) -> Finding:
        return Finding(record_at(key, queue=self._name), problem)

    def _active(self) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *records.ACTIVE.range(u32(self._number))):
            try:
                _, bucket = records.decode_queue_key(records.ACTIVE, key)
                available, in_flight, groups = records.decode_active(value)
            except Corrupt as error:
                yield self._at(key, str(error))
                continue
            flying = np.array([(m.message, m.offset, m.record_count) for m in in_flight], _WHERE)
            yield from self._hold(key, np.concatenate((available[list(_WHERE.names or ())].astype(_WHERE), flying)))
            places = [*available["place"].tolist(), *(message.place for message in in_flight)]
            last = max(places, default=0)
            if last >= self._size:
                yield self._at(key, f"place {last} is outside of a bucket of {self._size}")
            elif places and bucket * self._size + last >= self._cursor.next_place:
                place = bucket * self._size + last
                problem = f"place {place} is taken, and the next one to be given out is {self._cursor.next_place}"
                yield self._at(key, problem)
            if self._number == STORES_OWN:
                if in_flight:
                    yield self._at(key, f"message {in_flight[0].message} of the store's own is in flight")
                if not np.isin(available["priority"], (UNMATCHED, UNREAD)).all():
                    yield self._at(key, "a message of the store's own is kept for no known reason")
            for message in in_flight:
                yield from self._in_flight(key, message)
            if groups is not None:
                yield from self._groups(key, groups[len(available) :], in_flight)

    def _groups(self, key: bytes, groups: list[bytes | None], in_flight: list[InFlight]) -> Iterator[Finding]:
        if not self._grouped:
            yield self._at(key, "its messages are in groups, and the queue has none")
        for group, message in zip(groups, in_flight, strict=True):
            claim = (message.claimed_ms, message.consumer)
            if group is not None and not self._overlap and self._flying.setdefault(group, claim) != claim:
                problem = f"message {message.message}, in flight, was claimed while another of group {group!r} was"
                yield self._at(key, problem)

    def _in_flight(self, key: bytes, message: InFlight) -> Iterator[Finding]:
        name = f"message {message.message}, in flight,"
        if message.claimed_ms < 0 or message.lease_ms < 0:  # which is later, a clock that was set back decides
            problem = f"{name} was claimed at {message.claimed_ms} and its lease ends at {message.lease_ms}"
            yield self._at(key, problem)
        if not message.attempts:
            yield self._at(key, f"{name} was never claimed")
        assigned = message.lease_ms == FOREVER
        if assigned:
            self._assigned.setdefault(message.consumer, {})[message.delivery] = message.claimed_ms
        if len(message.consumer.encode()) > (READER_BYTES_MAX if assigned else ops.CONSUMER_BYTES_MAX):
            yield self._at(key, f"{name} has a consumer's label that is too long")
        yield from self._delivery(key, name, message.delivery)
        if message.delivery in self._deliveries:
            yield self._at(key, f"{name} has delivery number {message.delivery}, as another one has")
        self._deliveries.add(message.delivery)

    def _delivery(self, key: bytes, name: str, delivery: int) -> Iterator[Finding]:
        following = self._watermark.next_delivery
        if not 0 < delivery < following:
            yield self._at(key, f"{name} has delivery number {delivery}, and the next one is {following}")

    # -- readers ------------------------------------------------------------------------------------------------

    def _readers(self) -> Iterator[Finding]:
        """Readers and what is in flight without an end agree. A deleted queue has no readers any more, and what was
        assigned to them goes with it."""
        for key, value in self._tally.scan(self._view, *READER.range(u32(self._number))):
            try:
                _, name = decode_reader_key(key)
                check_reader(name)
                record = ReaderRecord.decode(value)
            except (Corrupt, LimitExceeded) as error:
                yield self._at(key, str(error))
                continue
            if self._deleted or self._number == STORES_OWN:
                yield self._at(key, f"the reader {name!r} of a queue that nobody reads")
            yield from self._reader(key, name, record)
        for name, deliveries in self._assigned.items():
            if not self._deleted:
                key = reader_key(self._number, name)
                yield self._at(key, f"{len(deliveries)} messages are assigned to {name!r}, which is no reader")

    def _reader(self, key: bytes, name: str, record: ReaderRecord) -> Iterator[Finding]:
        following = self._watermark.next_delivery
        if record.generation >= following or record.first_delivery + record.length > following:
            yield self._at(key, f"the reader {name!r} has numbers that come next: they go on at {following}")
        if record.opened_ms < 0 or record.assigned_ms < 0:
            yield self._at(key, f"the reader {name!r} has an impossible time")
        found = self._assigned.pop(name, {})
        expected = range(record.first_delivery, record.first_delivery + record.length)
        if sorted(found) != list(expected):
            yield self._at(
                key,
                f"the reader {name!r} has {record.length} messages from delivery {record.first_delivery} on, and "
                f"{len(found)} others are in flight for it",
            )
        elif set(found.values()) - {record.assigned_ms}:
            yield self._at(key, f"messages of the reader {name!r} were assigned at another time than it says")

    # -- what is held -------------------------------------------------------------------------------------------

    def _hold(self, key: bytes, rows: np.ndarray) -> Iterator[Finding]:
        """Messages that a record says are here: whether they can be."""
        self._held.append((key, rows["message"]))
        counts, offsets, end = rows["count"], rows["offset"], self._watermark.log_end
        outside = (offsets >= counts) | (counts > RECORD_MESSAGES_MAX) | (rows["message"] < offsets)
        if outside.any():
            message, offset, count = rows[outside][0].tolist()
            yield self._at(key, f"message {message} cannot be at {offset} in a record of {count}")
        beyond = rows["message"] >= np.uint64(end)
        if beyond.any():
            yield self._at(key, f"message {int(rows['message'][beyond][0])} is here, and the log ends at {end}")

    def _failed(self) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *records.FAILED.range(u32(self._number))):
            try:
                _, bucket = records.decode_queue_key(records.FAILED, key)
                failed = records.decode_failed(value)
            except Corrupt as error:
                yield self._at(key, str(error))
                continue
            rows = np.array([(m.message, m.offset, m.record_count) for m in failed], _WHERE)
            yield from self._hold(key, rows)
            if self._number == STORES_OWN and failed:
                yield self._at(key, f"message {failed[0].message} of the store's own has failed")
            for message in failed:
                yield from self._failed_message(key, bucket, message)

    def _failed_message(self, key: bytes, bucket: int, message: Failed) -> Iterator[Finding]:
        name = f"message {message.message}, failed,"
        if message.message // self._size != bucket:
            yield self._at(key, f"{name} belongs to record {message.message // self._size}, not {bucket}")
        if not message.attempts:
            yield self._at(key, f"{name} was never claimed")
        if message.failed_ms < 0 or len(message.reason.encode()) > ops.REASON_BYTES_MAX:
            yield self._at(key, f"{name} has an impossible time or reason")
        yield from self._delivery(key, name, message.delivery)

    def _twice(self) -> Iterator[Finding]:
        """A queue has a message once, whether it is available, in flight or failed."""
        numbers = np.concatenate([part for _, part in self._held]) if self._held else np.empty(0, np.uint64)
        found, counts = np.unique(numbers, return_counts=True)
        for message in found[counts > 1].tolist():
            key = next(key for key, part in reversed(self._held) if message in part)
            yield self._at(key, f"message {message} is in this queue twice")

    def _done(self) -> Iterator[Finding]:
        kept, whole = 0, True
        for key, value in self._tally.scan(self._view, *records.DONE.range(u32(self._number))):
            try:
                if len(key) == records.EMPTY_DONE_KEY_BYTES:
                    if value != records.EMPTY_ARRAY:
                        raise Corrupt("the record that done messages begin with is not empty")
                    continue
                _, last_ms, number = records.decode_done_key(key)
                messages = records.decode_done(value)
                kept += len(messages)
                if not len(messages):
                    raise Corrupt("a record without done messages")
                newest = int(messages["done_ms"].max())
                if newest != last_ms:
                    raise Corrupt(f"its key says that the last of its messages was done at {last_ms}, not {newest}")
            except Corrupt as error:
                whole = False
                yield self._at(key, f"done messages: {error}")
                continue
            if number >= self._cursor.done_records:
                yield self._at(key, f"record {number} of done messages, and {self._cursor.done_records} comes next")
            if (messages["message"] >= np.uint64(self._watermark.log_end)).any():
                yield self._at(key, f"a message is done, and the log ends at {self._watermark.log_end}")
            if not messages["attempts"].all():
                yield self._at(key, "a message is done that was never claimed")
        if whole and not self._deleted and kept != self._cursor.done_kept:
            problem = f"{kept} done messages are kept, and the cursor counts {self._cursor.done_kept}"
            yield self._at(records.cursor_key(self._number), problem)
