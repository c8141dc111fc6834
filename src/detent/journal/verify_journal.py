"""Checking one journal, inside one view: every record of it, and that they agree with each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from detent.codec import block
from detent.codec import journal as records
from detent.codec.journal import Fragment, IndexRecord, IndexRun, IndexSegment, JournalHead, Listing, ProducerRecord
from detent.codec.keys import u32
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, Invalid
from detent.journal import operations as ops
from detent.journal.verify_order import CommitOrder, Disagreement, IndexColumns
from detent.kv import View
from detent.message import FLAGS_MAX, NO_SPAN

PRODUCER_BYTES: Final = block.PRODUCER_BYTES
SUFFIX_BYTES: Final = {records.HEAD: 0, records.PRODUCER: PRODUCER_BYTES, records.SPAN: PRODUCER_BYTES + 8,
                       records.INDEX: 8, records.BLOCK: 8, records.ROLLED_BACK: PRODUCER_BYTES}  # fmt: skip
"""How long the key of each kind is after journal and kind; a register's is as long as its name."""


def check_batch(batch: Any) -> None:
    """`Corrupt` unless all rows of a block or fragment can be read: Arrow's own checks trust the buffers."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise Corrupt(f"the rows are not whole: {error}") from error
    for field in block.SCHEMA:
        if not field.nullable and batch.column(field.name).null_count:
            raise Corrupt(f"the column {field.name} has nulls")


class _Intervals:
    """The positions that the index has named so far. Neighbours join, so that few intervals say it all."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Add [start, end); False when a part of it was there."""
        at = bisect_right(self._starts, start)
        if (at and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end):
            return False
        joins_before = at > 0 and self._ends[at - 1] == start
        joins_after = at < len(self._starts) and self._starts[at] == end
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_before:
            self._ends[at - 1] = end
        elif joins_after:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
        return True

    def forget_below(self, position: int) -> None:
        """Nothing is added below this position any more."""
        count = bisect_right(self._ends, position)
        del self._starts[:count], self._ends[:count]


class JournalCheck:
    """Checks one journal. `findings` yields what is wrong."""

    def __init__(self, view: View, name: str, listing: Listing, tally: Tally) -> None:
        self._view = view
        self._name = name
        self._id = listing.journal
        self._tally = tally
        self._head = JournalHead(*(0,) * len(JournalHead._fields))
        self._open: dict[int, int] = {}
        self._spans: dict[int, list[IndexSegment]] = {}
        self._fragments = 0
        self._fragment_bytes = 0
        self._last_watermark = 0
        self._order: CommitOrder | None = None

    def findings(self) -> Iterator[Finding]:
        """Check everything, the small records first."""
        yield from self._unknown()
        key = records.part(self._id, records.HEAD)
        stored = self._view.get(key)
        if stored is None:
            yield Finding(record_at(key, self._name), "the journal has no head record")
            return
        try:
            self._head = JournalHead.decode(stored)
        except Corrupt as error:
            yield Finding(record_at(key, self._name), str(error))
            return
        self._tally.counts.messages += self._head.next_offset - self._head.first_offset
        yield from self._check_head(key)
        yield from self._check_registers()
        self._read_open()
        whole = True
        for finding in self._check_index():
            whole = False
            yield finding
        self._order = CommitOrder(self._view, self._id, self._head) if whole else None
        yield from self._check_blocks()
        yield from self._check_spans()
        yield from self._check_producers()

    def _at(self, key: bytes, problem: str) -> Finding:
        return Finding(record_at(key, self._name), problem)

    def _scan(self, kind: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """The well-formed records of a kind: (key, what follows the kind, value)."""
        start, end = records.part_range(self._id, kind)
        for key, value in self._view.scan(start, end):
            suffix = key[len(start) :]
            if len(suffix) == SUFFIX_BYTES.get(kind, len(suffix)):
                yield key, suffix, value

    def _unknown(self) -> Iterator[Finding]:
        """Records of a kind that does not exist, or with a key of the wrong length."""
        start, end = records.PART.key(u32(self._id)), records.PART.key(u32(self._id + 1))
        known = {*SUFFIX_BYTES, records.REGISTER}
        at = start
        while True:
            # Kind by kind: the keys of the known kinds are looked at where their values are.
            found = next(iter(self._view.scan(at, end, limit=1)), None)
            if found is None:
                return
            kind = found[0][len(start) : len(start) + 1]
            at = start + bytes([kind[0] + 1]) if kind[0] < 0xFF else end
            for key, value in self._view.scan(start + kind, at):
                self._tally.saw(key, value)
                if kind not in known:
                    yield self._at(key, f"a record of unknown kind {kind.hex()}")
                elif len(key) - len(start) - 1 != SUFFIX_BYTES.get(kind, len(key) - len(start) - 1):
                    yield self._at(key, f"a key of {len(key)} bytes is malformed for kind {kind.hex()}")

    def _check_head(self, key: bytes) -> Iterator[Finding]:
        head = self._head
        if not head.first_position <= head.reclaim_to <= head.next_position:
            problem = (
                f"rows up to {head.reclaim_to} are reclaimable, outside [{head.first_position}, {head.next_position}]"
            )
            yield self._at(key, problem)
        if head.clock_floor > head.newest_clock:
            yield self._at(key, f"the clock floor {head.clock_floor} is above the newest clock {head.newest_clock}")

    def _check_registers(self) -> Iterator[Finding]:
        count = 0
        for key, suffix, value in self._scan(records.REGISTER):
            count += 1
            try:
                ops.check_register(suffix.decode(), value.decode())
            except (UnicodeDecodeError, Invalid) as error:
                yield self._at(key, f"a malformed register: {error}")
        if count > ops.REGISTERS_MAX:
            key = records.part(self._id, records.REGISTER)
            yield self._at(key, f"{count} registers, where {ops.REGISTERS_MAX} are allowed")

    def _read_open(self) -> None:
        """The registry of open spans; its malformed records are found where the store's own records are checked."""
        for key, value in self._view.scan(*records.OPEN_SPAN.range(u32(self._id))):
            with suppress(Corrupt):
                if len(key) == 13:
                    self._open[int.from_bytes(key[7:], "big")] = records.OpenSpan.decode(value).opened_ms

    # -- the committed index ------------------------------------------------------------------------------------

    def _check_index(self) -> Iterator[Finding]:
        head = self._head
        named = _Intervals()
        at: int | None = None
        begun, key = False, records.part(self._id, records.INDEX)
        for key, suffix, value in self._scan(records.INDEX):
            offset = int.from_bytes(suffix, "big")
            try:
                record = records.decode_index(value)
            except Corrupt as error:
                yield self._at(key, str(error))
                at = None
                continue
            if at is not None and offset != at:
                yield self._at(key, f"the committed index is at offset {at} and goes on at {offset}")
            elif not begun and offset > head.first_offset:
                yield self._at(key, f"the committed index begins at {offset}, the journal at {head.first_offset}")
            at, begun = offset + record.messages, True
            yield from self._check_runs(key, offset, record, named)
        # A journal whose messages were all forgotten has no index: it begins where it ends.
        end = (0 if begun else head.first_offset) if at is None else at
        if end != head.next_offset:
            yield self._at(key, f"the committed index ends at offset {end}, the journal at {head.next_offset}")
        yield from self._check_fragment_counts()

    def _check_runs(self, key: bytes, offset: int, record: IndexRecord, named: _Intervals) -> Iterator[Finding]:
        head, below = self._head, self._last_watermark
        for run in record.runs:
            if run.fragment:
                yield from self._check_fragment_run(key, offset, run)
                offset += run.rows
                continue
            skip = max(0, head.first_offset - offset)
            start, end = run.base + skip, run.base + run.rows
            offset += run.rows
            if start >= end:
                continue  # below the first offset: its rows may be gone
            if start < head.first_position or end > head.next_position:
                stored = f"[{head.first_position}, {head.next_position})"
                yield self._at(key, f"a run names positions [{start}, {end}), and stored are {stored}")
            elif start < head.reclaim_to:
                yield self._at(key, f"a run names position {start}, and rows below {head.reclaim_to} are given up")
            elif start < below:
                yield self._at(key, f"a run names position {start}, below the watermark {below} of an earlier record")
            elif not named.add(start, end):
                yield self._at(key, f"positions in [{start}, {end}) are in the committed index twice")
        if record.watermark > head.next_position:
            yield self._at(key, f"the watermark {record.watermark} is past the end, {head.next_position}")
            return
        self._last_watermark = max(below, record.watermark)
        named.forget_below(self._last_watermark)

    def _check_fragment_run(self, key: bytes, offset: int, run: IndexRun) -> Iterator[Finding]:
        name = f"fragment {run.fragment.hex()}"
        stored = self._view.get(records.FRAGMENT.key(run.fragment))
        if stored is None:
            yield self._at(key, f"offset {offset} names {name}, which has no record")
            return
        try:
            fragment = Fragment.decode(stored)
        except Corrupt:
            return  # found where the fragment records are checked
        self._fragments += 1
        self._fragment_bytes += fragment.size
        expected = (self._id, offset, 0, fragment.rows)
        if (fragment.journal, fragment.first_offset, run.base, run.rows) != expected:
            yield self._at(
                key,
                f"offset {offset} names rows {run.base} to {run.base + run.rows} of {name}, whose record says: all "
                f"{fragment.rows} rows at offset {fragment.first_offset} of journal number {fragment.journal}",
            )

    def _check_fragment_counts(self) -> Iterator[Finding]:
        head, found = self._head, (self._fragments, self._fragment_bytes)
        if found != (head.fragments, head.fragment_bytes):
            yield self._at(
                records.part(self._id, records.HEAD),
                f"the head counts {head.fragments} fragments of {head.fragment_bytes} bytes, "
                f"the index names {found[0]} of {found[1]} bytes",
            )

    # -- blocks -------------------------------------------------------------------------------------------------

    def _check_blocks(self) -> Iterator[Finding]:
        head = self._head
        at, blocks, size = head.first_position, 0, 0
        for key, suffix, value in self._scan(records.BLOCK):
            base = int.from_bytes(suffix, "big")
            blocks += 1
            size += len(value)
            if base != at:
                yield self._at(key, f"a block begins at position {base}, where {at} comes next")
                self._order = None
            rows, problem = self._check_block(base, value)
            if isinstance(problem, Disagreement):
                yield self._in_index(problem)
            elif problem is not None:
                yield self._at(key, problem)
            if problem is not None:
                self._order = None
            at = base + rows
            self._tally.counts.rows += rows
            self._tally.did(len(value))
        self._tally.counts.blocks += blocks
        key = records.part(self._id, records.HEAD)
        if at != head.next_position:
            yield self._at(key, f"the blocks end at position {at}, the journal at {head.next_position}")
            self._order = None
        if (blocks, size) != (head.blocks, head.block_bytes):
            problem = f"the head counts {head.blocks} blocks of {head.block_bytes} bytes"
            yield self._at(key, f"{problem}, stored are {blocks} of {size} bytes")
        if self._order is not None:
            left_over = self._order.finish()
            if left_over is not None:
                yield self._in_index(left_over)

    def _in_index(self, found: Disagreement) -> Finding:
        """A finding at the index record that holds the offset."""
        start, _ = records.part_range(self._id, records.INDEX)
        end = records.index_key(self._id, found.offset) + b"\x00"
        key = next((key for key, _ in self._view.scan(start, end, reverse=True, limit=1)), start)
        return self._at(key, found.problem)

    def _check_block(self, base: int, value: bytes) -> tuple[int, str | Disagreement | None]:
        """How many rows it has, and what is wrong with it or with what the index makes of it."""
        rows = 0
        try:
            head = block.decode_head(value)
            rows = head.rows
            batch = block.decode_block(value)
            check_batch(batch)
        except Corrupt as error:
            return rows, str(error)
        times = batch.column(3).cast("int64").to_numpy()
        if times.min() < head.first_time or times.max() > head.last_time:
            return rows, "rows were published outside of the times that the block's head says"
        columns = IndexColumns(base, batch)
        if columns.flags.max() > FLAGS_MAX:
            return rows, f"flags {columns.flags.max():#x} are more than 10 bits"
        if self._order is not None:
            problem = self._order.add_block(columns)
            if not self._order.reliable:
                self._order = None
            return rows, problem
        return rows, None

    # -- producers and open transactions ------------------------------------------------------------------------

    def _check_spans(self) -> Iterator[Finding]:
        head, first_keys = self._head, dict[int, bytes]()
        for key, suffix, value in self._scan(records.SPAN):
            producer, position = int.from_bytes(suffix[:PRODUCER_BYTES], "big"), records.number_at_end(key)
            try:
                segments = records.decode_segments(value)
            except Corrupt as error:
                yield self._at(key, str(error))
                continue
            if segments[0].position != position:
                yield self._at(key, f"its rows begin at position {segments[0].position}, its key says {position}")
            outside = [s for s in segments if s.position < head.first_position or _end(s) > head.next_position]
            if outside:
                yield self._at(key, f"it names rows at {outside[0].position}, outside of what is stored")
                continue
            first_keys.setdefault(producer, key)
            self._spans.setdefault(producer, []).extend(segments)
        for producer, segments in self._spans.items():
            if self._order is not None:
                problem = self._order.check_span(producer, segments)
                if problem is not None:
                    yield self._at(first_keys[producer], f"the open transaction of {producer:012x}: {problem}")

    def _check_producers(self) -> Iterator[Finding]:
        for key, suffix, value in self._scan(records.PRODUCER):
            producer = int.from_bytes(suffix, "big")
            try:
                stored = ProducerRecord.decode(value)
            except Corrupt as error:
                yield self._at(key, str(error))
                continue
            for problem in self._producer_problems(producer, stored):
                yield self._at(key, f"producer {producer:012x}: {problem}")
        yield from self._check_rolled_back()
        for producer in self._open:
            key = records.OPEN_SPAN.key(u32(self._id), producer.to_bytes(PRODUCER_BYTES, "big"))
            yield self._at(key, f"an open transaction is listed, and producer {producer:012x} has none")
        for producer in self._spans:
            key = records.part(self._id, records.SPAN, producer.to_bytes(PRODUCER_BYTES, "big"))
            yield self._at(key, f"there are pending rows of producer {producer:012x}, which has no open transaction")
        if self._order is not None:
            for producer, clock in self._order.forgotten():
                key = records.part(self._id, records.PRODUCER, producer.to_bytes(PRODUCER_BYTES, "big"))
                yield self._at(key, f"producer {producer:012x} has no record, and its clock {clock} is above the floor")

    def _check_rolled_back(self) -> Iterator[Finding]:
        """What is left of producers whose transaction was rolled back, and which are forgotten otherwise."""
        for key, suffix, value in self._scan(records.ROLLED_BACK):
            producer = f"producer {suffix.hex()}"
            try:
                clock = records.decode_number(value, "rolled back producer")
            except Corrupt as error:
                yield self._at(key, str(error))
                continue
            if clock > self._head.clock_floor:
                yield self._at(key, f"{producer} is forgotten with clock {clock}, which is above the floor")
            if self._view.get(records.part(self._id, records.PRODUCER, suffix)) is not None:
                yield self._at(key, f"{producer} is rolled back for good, and remembered as if it were not")

    def _producer_problems(self, producer: int, stored: ProducerRecord) -> Iterator[str]:
        if stored.last_ack > stored.max_clock or stored.max_clock > self._head.newest_clock:
            clocks = f"{stored.last_ack}, {stored.max_clock} and {self._head.newest_clock}"
            yield f"acknowledged clock, highest clock and the journal's newest are not in order: {clocks}"
        if stored.begin != NO_SPAN:
            yield from self._open_problems(producer, stored)
        elif stored.max_clock != stored.last_ack and not stored.aborted:
            yield f"clock {stored.max_clock} is above {stored.last_ack}, the acknowledged one, and nothing is open"
        if self._order is not None:
            problem = self._order.check_producer(producer, stored)
            if problem is not None:
                yield problem

    def _open_problems(self, producer: int, stored: ProducerRecord) -> Iterator[str]:
        """The open transaction of a producer is in the registry, and its span records fit."""
        if stored.aborted:
            yield "it is rolled back for good, and open"
        if stored.begin < max(self._last_watermark, self._head.reclaim_to):
            limit = f"watermark {self._last_watermark}, given up below {self._head.reclaim_to}"
            yield f"its open transaction begins at {stored.begin}, below what the index allows: {limit}"
        opened = self._open.pop(producer, None)
        if opened is None:
            yield "its open transaction is not listed, so that it has no deadline"
        elif opened != stored.opened_ms:
            yield f"its transaction was opened at {stored.opened_ms} ms, the list says {opened} ms"
        segments = self._spans.pop(producer, None)
        if segments is None:
            yield "its open transaction has no record of pending rows"
            return
        last = segments[-1].clock + (segments[-1].rows - 1) * segments[-1].step
        if (segments[0].position, last) != (stored.begin, stored.max_clock):
            yield (
                f"its open transaction runs from position {stored.begin} to clock {stored.max_clock}; the pending "
                f"rows from position {segments[0].position} to clock {last}"
            )


def _end(segment: IndexSegment) -> int:
    return segment.position + segment.rows


__all__ = ["JournalCheck", "check_batch"]
