"""What the owner remembers of one journal, and how a refused transaction is taken back out of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from detent.codec import journal as records
from detent.codec.journal import IndexRun, IndexSegment, JournalHead, Listing, ProducerRecord
from detent.codec.keys import u32
from detent.journal.chunks import ArrowChunk, Chunk, RowsChunk, encode_chunk
from detent.kv import Batch, View
from detent.message import NO_SPAN

PRODUCERS_LOADED_MAX: Final = 100_000
"""States of producers kept in memory for one journal; the rest is read when needed."""

_EMPTY_HEAD: Final = JournalHead(*(0,) * len(JournalHead._fields))
_MISSING: Final = object()


class Span(NamedTuple):
    """A producer's pending messages, and the keys of the records that hold them."""

    keys: list[bytes]
    segments: list[IndexSegment]


class JournalState:
    """One journal: head, registers, the end of its index, the producers seen lately, and what the group adds."""

    def __init__(self, name: str, listing: Listing, view: View | None) -> None:
        self.name = name
        self.listing = listing
        self.id = listing.journal
        prefix = records.part(self.id, b"")
        self._head_key = prefix + records.HEAD
        self._index_prefix = prefix + records.INDEX
        self._block_prefix = prefix + records.BLOCK
        self._producer_prefix = prefix + records.PRODUCER
        self.producers: dict[int, ProducerRecord] = {}
        self.spans: dict[int, Span] = {}
        self.open: dict[int, int] = {}  # producer -> where its open span begins
        self.registers: dict[str, str] = {}
        self.tail_offset = 0
        self.tail: list[IndexRun] = []
        head = _EMPTY_HEAD
        if view is not None:
            stored = view.get(self._head_key)
            head = _EMPTY_HEAD if stored is None else JournalHead.decode(stored)
            self._load_small(view)
        (
            self.first_position,
            self.next_position,
            self.first_offset,
            self.next_offset,
            self.blocks,
            self.block_bytes,
            self.fragments,
            self.fragment_bytes,
            self.dropped_bytes,
            self.pending_bytes,
            self.reclaim_to,
            self.clock_floor,
            self.newest_clock,
            self.aborted_spans,
            self.updated_ms,
        ) = head
        self.reclaim_due = self.first_offset > 0  # whether there may be blocks that nothing refers to
        # What the group in progress adds.
        self.chunks: list[Chunk] = []
        self.full_records: list[tuple[int, list[IndexRun], int]] = []
        self.writes: dict[bytes, bytes | None] = {}
        self.dirty_producers: set[int] = set()
        self.touched = False
        self.index_dirty = False
        self.own_producer = self.own_clock = 0  # what the owner itself has stamped in this group, up to which clock

    def _load_small(self, view: View) -> None:
        start, end = records.part_range(self.id, records.REGISTER)
        self.registers = {key[len(start) :].decode(): value.decode() for key, value in view.scan(start, end)}
        for key, value in view.scan(*records.part_range(self.id, records.INDEX), reverse=True, limit=1):
            self.tail_offset = records.number_at_end(key)
            self.tail = list(records.decode_index(value).runs)
        start, end = records.OPEN_SPAN.key(u32(self.id)), records.OPEN_SPAN.key(u32(self.id + 1))
        for key, _ in view.scan(start, end):
            producer = int.from_bytes(key[-6:], "big")
            state = self.producer(producer, view)
            assert state is not None
            self.open[producer] = state.begin

    # -- producers and spans ------------------------------------------------------------------------------------

    def producer(self, producer: int, view: View) -> ProducerRecord | None:
        """What is known of a producer, read from the store when it is not in memory."""
        known = self.producers.get(producer)
        if known is None:
            stored = view.get(self._producer_prefix + producer.to_bytes(6, "big"))
            if stored is not None:
                known = self.producers[producer] = ProducerRecord.decode(stored)
        return known

    def rolled_back_key(self, producer: int) -> bytes:
        """Where it stands that a transaction of a forgotten producer was rolled back."""
        return records.part(self.id, records.ROLLED_BACK, producer.to_bytes(6, "big"))

    def rolled_back(self, producer: int, view: View) -> int | None:
        """The last clock that a producer had acknowledged which is not known any more, and of which a transaction was
        rolled back; None if none was."""
        key = self.rolled_back_key(producer)
        stored = self.writes[key] if key in self.writes else view.get(key)
        return None if stored is None else records.decode_number(stored, "rolled back producer")

    def settle_own(self, now_ms: int) -> None:
        """Note once what the group's plain appends mean for the owner's own producer."""
        if self.own_clock:
            clock, self.own_clock = self.own_clock, 0
            self.producers[self.own_producer] = ProducerRecord(clock, clock, NO_SPAN, 0, now_ms, False)
            self.dirty_producers.add(self.own_producer)
            self.newest_clock = max(self.newest_clock, clock)

    def span(self, producer: int, view: View) -> Span:
        """The pending messages of a producer, in the order in which they were appended."""
        known = self.spans.get(producer)
        if known is None:
            prefix = records.part(self.id, records.SPAN, producer.to_bytes(6, "big"))
            stored = list(view.scan(prefix, prefix + b"\xff" * 9))
            known = Span([key for key, _ in stored], [s for _, v in stored for s in records.decode_segments(v)])
            self.spans[producer] = known
        return known

    # -- the committed index ------------------------------------------------------------------------------------

    def commit_run(self, base: int, count: int, fragment: bytes = b"") -> None:
        """Give the next `count` offsets to rows from `base` on."""
        tail = self.tail
        self.index_dirty = True
        if tail and not fragment:
            last = tail[-1]
            if not last.fragment and last.base + last.rows == base:
                tail[-1] = IndexRun(last.base, last.rows + count)
                self.next_offset += count
                return
        if not tail:
            self.tail_offset = self.next_offset
        elif len(tail) >= records.RUNS_PER_RECORD:
            self.full_records.append((self.tail_offset, tail, self.watermark))
            self.tail = tail = []
            self.tail_offset = self.next_offset
        tail.append(IndexRun(base, count, fragment))
        self.next_offset += count

    @property
    def watermark(self) -> int:
        """No run that is added from now on begins below this position."""
        return min(self.open.values()) if self.open else self.next_position

    # -- appending ----------------------------------------------------------------------------------------------

    def rows_chunk(self) -> RowsChunk:
        """Where the next rows go."""
        if self.chunks:
            last = self.chunks[-1]
            if isinstance(last, RowsChunk) and not last.full:
                return last
        chunk = RowsChunk(self.next_position)
        self.chunks.append(chunk)
        return chunk

    def add_batch(self, batch: Any, size: int) -> None:
        """Take a whole record batch of about `size` bytes, already stamped."""
        self.chunks.append(ArrowChunk(self.next_position, batch, size))

    # -- taking back --------------------------------------------------------------------------------------------

    def touch(self, undo: list[Callable[[], None]]) -> None:
        """Remember the state as it is, so that a refused transaction leaves no trace; mark the journal as changed."""
        last = self.chunks[-1] if self.chunks else None
        rows = len(last.bodies) if isinstance(last, RowsChunk) else 0
        saved = (
            self._scalars(), self.tail_offset, tuple(self.tail), self.index_dirty, self.touched,
            len(self.full_records), len(self.chunks), rows, self.own_producer, self.own_clock, self.reclaim_due,
        )  # fmt: skip
        undo.append(partial(self._restore, saved))
        self.touched = True

    def _scalars(self) -> JournalHead:
        return JournalHead(
            self.first_position, self.next_position, self.first_offset, self.next_offset, self.blocks, self.block_bytes,
            self.fragments, self.fragment_bytes, self.dropped_bytes, self.pending_bytes, self.reclaim_to,
            self.clock_floor, self.newest_clock, self.aborted_spans, self.updated_ms,
        )  # fmt: skip

    def _restore(self, saved: tuple[Any, ...]) -> None:
        (
            scalars, self.tail_offset, tail, self.index_dirty, self.touched,
            full, chunks, rows, self.own_producer, self.own_clock, self.reclaim_due,
        ) = saved  # fmt: skip
        for field, value in zip(JournalHead._fields, scalars, strict=True):
            setattr(self, field, value)
        self.tail = list(tail)
        del self.full_records[full:]
        del self.chunks[chunks:]
        if self.chunks and isinstance(self.chunks[-1], RowsChunk):
            self.chunks[-1].truncate(rows)

    def put(self, mapping: dict[Any, Any], key: Any, value: Any, undo: list[Callable[[], None]]) -> None:
        """Change one entry of one of this journal's dictionaries (None removes it from memory), undoably."""
        if value is None and mapping is not self.writes:
            undo.append(partial(_put_back, mapping, key, mapping.pop(key, _MISSING)))
        else:
            set_undoably(mapping, key, value, undo)

    def set_producer(self, producer: int, state: ProducerRecord, undo: list[Callable[[], None]]) -> None:
        """Change what is known of a producer."""
        self.put(self.producers, producer, state, undo)
        self.dirty_producers.add(producer)

    # -- writing ------------------------------------------------------------------------------------------------

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Put everything the group changed into its batch."""
        self.settle_own(now_ms)
        for chunk in self.chunks:
            for base, value in encode_chunk(chunk, now_ms):
                batch.put(self._block_prefix + base.to_bytes(8, "big"), value)
                self.blocks += 1
                self.block_bytes += len(value)
        for offset, runs, watermark in self.full_records:
            batch.put(self._index_prefix + offset.to_bytes(8, "big"), records.encode_index(watermark, runs))
        if self.index_dirty and self.tail:
            key = self._index_prefix + self.tail_offset.to_bytes(8, "big")
            batch.put(key, records.encode_index(self.watermark, self.tail))
        if self.writes:
            batch.extend(self.writes)
        # After the removals: a producer that was forgotten and came back in the same group must be remembered.
        for producer in self.dirty_producers:
            known = self.producers.get(producer)
            if known is not None:
                batch.put(self._producer_prefix + producer.to_bytes(6, "big"), known.encode())
        self.updated_ms = now_ms
        batch.put(
            self._head_key,
            records.encode_head(
                self.first_position, self.next_position, self.first_offset, self.next_offset, self.blocks,
                self.block_bytes, self.fragments, self.fragment_bytes, self.dropped_bytes, self.pending_bytes,
                self.reclaim_to, self.clock_floor, self.newest_clock, self.aborted_spans, now_ms,
            ),
        )  # fmt: skip
        self._start_group()

    def _start_group(self) -> None:
        self.chunks = []
        self.full_records = []
        self.writes = {}
        self.dirty_producers = set()
        self.touched = False
        self.index_dirty = False
        if len(self.producers) > PRODUCERS_LOADED_MAX:
            self.producers.clear()
        if len(self.spans) > PRODUCERS_LOADED_MAX:
            self.spans.clear()


def set_undoably(mapping: dict[Any, Any], key: Any, value: Any, undo: list[Callable[[], None]]) -> None:
    """Set one entry; the undo list learns how to take that back."""
    undo.append(partial(_put_back, mapping, key, mapping.get(key, _MISSING)))
    mapping[key] = value


def _put_back(mapping: dict[Any, Any], key: Any, old: Any) -> None:
    if old is _MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = old
