"""What journals forget, and when: retention, transactions past their deadline, idle producers, deleted journals.

Everything is an operation of the engine, in bounded steps, so that no caller waits long behind it and a crash between
two steps loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from detent.codec import block
from detent.codec import journal as records
from detent.codec.journal import Fragment, IndexRun, ProducerRecord
from detent.codec.keys import u32
from detent.engine import ApplyContext, Done, Operation, Result
from detent.errors import Corrupt
from detent.journal import operations as ops
from detent.journal.memory import JournalMemory
from detent.journal.spans import holder_of, is_overdue, open_span_key
from detent.journal.state import JournalState
from detent.kv import View
from detent.message import NO_SPAN, idle_below

STEP_RECORDS: Final = 1000
"""Records that one housekeeping step looks at or removes: a few milliseconds."""

RETAIN_EVERY_MS: Final = 5_000
PRUNE_EVERY_MS: Final = 60_000

ABORTED_HORIZONS: Final = 30
"""How many horizons the whole record of a producer with a rolled back transaction is kept. After that a smaller one
says for good that it is refused: what it sends later would be half of that transaction."""

logger = logging.getLogger("detent.journal")


class JournalHousekeeper:
    """Decides what is due, and applies it."""

    def __init__(self, memory: JournalMemory) -> None:
        self._memory = memory
        self._next_retain: dict[int, int] = {}
        self._next_prune: dict[int, int] = {}
        self._prune_from: dict[int, bytes] = {}
        self._told: set[tuple[int, int]] = set()
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.Retain: self._retain,
            ops.AbortSpan: self._abort,
            ops.PruneProducers: self._prune,
            ops.Reap: self._reap,
        }

    def reset(self) -> None:
        """Memory was dropped: look at everything again."""
        self._next_retain.clear()
        self._next_prune.clear()
        self._prune_from.clear()
        self._told.clear()

    def set_back(self, by_ms: int) -> None:
        """Open spans were begun by a clock that was ahead: have them begun as much earlier."""
        memory = self._memory
        undo: list[Callable[[], None]] = []
        for (journal, producer), opened in list(memory.open_spans.items()):
            state = memory.state(memory.by_id[journal])
            state.touch(undo)
            with memory.read() as view:
                known = state.producer(producer, view)
            assert known is not None, "an open span is of a producer that is known"
            begun = opened._replace(opened_ms=max(0, opened.opened_ms - by_ms))
            state.set_producer(producer, known._replace(opened_ms=begun.opened_ms), undo)
            state.put(memory.open_spans, (journal, producer), begun, undo)
            state.put(state.writes, open_span_key(journal, producer), begun.encode(), undo)

    def due(self, now_ms: int) -> Iterator[Operation]:
        """What should be done now."""
        memory = self._memory
        for (journal, producer), span in list(memory.open_spans.items()):
            if is_overdue(memory, journal, span, now_ms):
                holder = holder_of(memory, span)
                if holder is None:
                    yield ops.AbortSpan(journal, producer)
                else:
                    self._tell_held(journal, producer, holder)
        for journal in list(memory.deleted):
            yield ops.Reap(journal)
        for listing in list(memory.names.values()):
            if (listing.retention_ms or listing.retention_bytes) and now_ms >= self._next_retain.get(
                listing.journal, 0
            ):
                self._next_retain[listing.journal] = now_ms + RETAIN_EVERY_MS
                yield ops.Retain(listing.journal)
        for state in memory.loaded():
            if state.reclaim_due and now_ms >= self._next_retain.get(state.id, 0):
                yield ops.Retain(state.id)
            if state.listing.producer_horizon_ms and now_ms >= self._next_prune.get(state.id, 0):
                self._next_prune[state.id] = now_ms + PRUNE_EVERY_MS
                yield ops.PruneProducers(state.id)

    # -- retention ----------------------------------------------------------------------------------------------

    def _retain(self, op: ops.Retain, context: ApplyContext) -> Result:
        state = self._memory.state(self._memory.by_id[op.journal])
        before, dropped = self._too_much(state, context.now_ms)
        if before > state.first_offset or state.reclaim_due:
            self.trim(state, before, context, dropped)
            self._next_retain[op.journal] = context.now_ms + 1  # there may be more, for the next tick
        return Done()

    def _too_much(self, state: JournalState, now_ms: int) -> tuple[int, int]:
        """The offset below which everything is too old or too much, and the bytes that it has in blocks.

        Whole blocks and fragments only. What an open transaction holds, its own messages and blocks that it keeps
        although all theirs were dropped, does not count: or the same surplus would be dropped again and again.
        """
        listing, offset, dropped = state.listing, state.first_offset, 0
        oldest_ms = now_ms - listing.retention_ms if listing.retention_ms else 0
        surplus = 0
        if listing.retention_bytes:
            held = state.block_bytes - state.dropped_bytes - state.pending_bytes + state.fragment_bytes
            surplus = held - listing.retention_bytes
        if not oldest_ms and surplus <= 0:
            return offset, 0
        with self._memory.read() as view:
            for count, size, last_ms, in_block in self._pieces(state, view):
                if last_ms >= oldest_ms and surplus <= 0:
                    break
                offset += count
                surplus -= size
                dropped += size if in_block else 0
        return min(offset, state.next_offset), dropped

    def _pieces(self, state: JournalState, view: View) -> Iterator[tuple[int, int, int, bool]]:
        """The journal's durable front in pieces: (committed messages, bytes, newest time, whether in a block)."""
        looked_at = 0
        for offset, run in runs_from(view, state.id, state.first_offset):
            if run.fragment:
                stored = view.get(records.FRAGMENT.key(run.fragment))
                if stored is None:
                    raise Corrupt(f"the index at offset {offset} names a fragment that has no record")
                fragment = Fragment.decode(stored)
                yield run.rows, fragment.size, fragment.adopted_ms, False
                looked_at += 1
                continue
            for base, value in blocks_from(view, state.id, run.base):
                head = block.decode_head(value)
                first, last = max(base, run.base), min(base + head.rows, run.base + run.rows)
                if first < last:
                    yield last - first, len(value) * (last - first) // head.rows, head.last_time, True
                looked_at += 1
                if base + head.rows >= run.base + run.rows or looked_at > STEP_RECORDS:
                    break
            if looked_at > STEP_RECORDS:
                return

    def trim(self, state: JournalState, before: int, context: ApplyContext, dropped: int = 0) -> None:
        """Forget the committed messages below `before`, and remove what nothing refers to any more, in one step.

        `dropped` are the bytes that these messages have in blocks, as far as they were counted.
        """
        state.touch(context.undo)
        state.dropped_bytes += dropped
        state.first_offset = max(state.first_offset, before)
        with self._memory.read() as view:
            self._drop_index(state, view, context)
            state.reclaim_to = max(state.reclaim_to, self._reclaimable(state, view))
            state.reclaim_due = self._drop_blocks(state, view, context)

    def _drop_index(self, state: JournalState, view: View, context: ApplyContext) -> None:
        """Remove the index records below the front, and cut the one that reaches across it."""
        start, _ = records.part_range(state.id, records.INDEX)
        end = records.index_key(state.id, state.first_offset)
        unwritten = {offset for offset, _, _ in state.full_records}
        for key, value in view.scan(start, end, limit=STEP_RECORDS):
            offset = records.number_at_end(key)
            if key in state.writes:
                continue  # dropped by an earlier step of this group
            if offset in unwritten:
                return  # the group has added to it: its turn comes when that is durable
            is_tail = bool(state.tail) and offset == state.tail_offset
            watermark, runs = records.decode_index(value)
            runs = state.tail if is_tail else runs
            kept = list(runs)
            while kept and offset + kept[0].rows <= state.first_offset:
                run = kept.pop(0)
                offset += run.rows
                if run.fragment:
                    self._drop_fragment(state, run, view, context)
            if len(kept) == len(runs):
                return
            state.put(state.writes, key, None, context.undo)
            if is_tail:
                state.tail, state.tail_offset, state.index_dirty = kept, offset, True
            elif kept:
                cut = records.encode_index(watermark, kept)
                state.put(state.writes, records.index_key(state.id, offset), cut, context.undo)
            if kept:
                return

    def _drop_fragment(self, state: JournalState, run: IndexRun, view: View, context: ApplyContext) -> None:
        """With the last of its rows a fragment belongs to no journal; the sweeper then takes object and record."""
        key = records.FRAGMENT.key(run.fragment)
        record = self._memory.fragment(run.fragment, view)
        if record is not None and record.journal:
            self._memory.write(key, record._replace(journal=0).encode(), context)
            state.fragments -= 1
            state.fragment_bytes -= record.size

    @staticmethod
    def _reclaimable(state: JournalState, view: View) -> int:
        """The position below which no committed message that is left, and no open span, has a row."""
        low = state.watermark
        if state.first_offset >= state.next_offset:
            return low
        if state.first_offset >= state.tail_offset:
            offset, runs = state.tail_offset, state.tail
        else:
            key = records.index_key(state.id, state.first_offset + 1)
            start, _ = records.part_range(state.id, records.INDEX)
            stored = next(iter(view.scan(start, key, reverse=True, limit=1)), None)
            if stored is None:
                return state.first_position  # the record is in this group only: wait for the next step
            offset, record = records.number_at_end(stored[0]), records.decode_index(stored[1])
            runs, low = record.runs, min(low, record.watermark)
        for run in runs:
            if offset + run.rows > state.first_offset and not run.fragment:
                low = min(low, run.base + max(0, state.first_offset - offset))
            offset += run.rows
        return low

    @staticmethod
    def _drop_blocks(state: JournalState, view: View, context: ApplyContext) -> bool:
        """Remove blocks from the front. True when there may be more of them."""
        start, end = records.part_range(state.id, records.BLOCK)
        for key, value in view.scan(start, end, limit=STEP_RECORDS):
            if key in state.writes:
                continue  # dropped by an earlier step of this group
            base, rows = records.number_at_end(key), block.decode_head(value).rows
            if base + rows > state.reclaim_to:
                return False
            state.put(state.writes, key, None, context.undo)
            state.first_position = base + rows
            state.blocks -= 1
            state.block_bytes -= len(value)
            state.dropped_bytes = max(0, state.dropped_bytes - len(value))
        return state.first_position < state.reclaim_to

    # -- transactions past their deadline, idle producers ------------------------------------------------------

    def _abort(self, op: ops.AbortSpan, context: ApplyContext) -> Result:
        """Roll the span back for good. Its producer is refused from now on: an ACK that covers only the messages sent
        after this would commit a torn transaction."""
        memory = self._memory
        state = memory.state(memory.by_id[op.journal])
        opened = memory.open_spans.get((op.journal, op.producer))
        if opened is None or holder_of(memory, opened) is not None:
            return Done()  # acknowledged, or held, by a transaction of this very group
        state.touch(context.undo)
        with memory.read() as view:
            known = state.producer(op.producer, view)
            span = state.span(op.producer, view)
        assert known is not None, "an open span is of a producer that is known"
        for key in span.keys:
            state.put(state.writes, key, None, context.undo)
        state.put(state.spans, op.producer, None, context.undo)
        state.put(state.open, op.producer, None, context.undo)
        state.put(memory.open_spans, (op.journal, op.producer), None, context.undo)
        state.put(state.writes, open_span_key(op.journal, op.producer), None, context.undo)
        # What it had acknowledged before stays known: a shard may send such an acknowledgement again.
        aborted = ProducerRecord(known.last_ack, known.max_clock, NO_SPAN, 0, context.now_ms, True)
        state.set_producer(op.producer, aborted, context.undo)
        state.pending_bytes = max(0, state.pending_bytes - known.pending_bytes)
        state.aborted_spans += 1
        state.reclaim_due = True
        logger.warning(
            "journal %s: the transaction of producer %012x, open since position %d, passed its deadline of %d ms: "
            "it was rolled back, and the producer is refused from now on",
            state.name, op.producer, known.begin, max(state.listing.span_deadline_ms, opened.deadline_ms),
        )  # fmt: skip
        return Done()

    def _tell_held(self, journal: int, producer: int, holder: str) -> None:
        """Warn once of what stays open past its deadline: it holds back the journal's retention."""
        if (journal, producer) in self._told:
            return
        self._told.add((journal, producer))
        logger.warning(
            "journal %s: the transaction of producer %012x passed its deadline, and stays open: the checkpoint in the "
            "journal %s has promised it. Start that consumer, or delete it with its recovery log",
            self._memory.by_id[journal], producer, holder,
        )  # fmt: skip

    def _prune(self, op: ops.PruneProducers, context: ApplyContext) -> Result:
        """Forget producers that are idle by the journal's own clock. The floor keeps their duplicates out."""
        memory = self._memory
        state = memory.state(memory.by_id[op.journal])
        now_ns, horizon_ns = context.now_ms * 1_000_000, state.listing.producer_horizon_ms * 1_000_000
        limits = [idle_below(state.newest_clock, now_ns, count * horizon_ns) for count in (1, ABORTED_HORIZONS)]
        start, end = records.part_range(op.journal, records.PRODUCER)
        resume = self._prune_from.pop(op.journal, start)
        looked_at, key = 0, start
        floor = state.clock_floor
        dropped = []
        with memory.read() as view:
            for key, value in view.scan(resume, end, limit=STEP_RECORDS):
                looked_at += 1
                producer = int.from_bytes(key[-6:], "big")
                known = state.producers.get(producer) or ProducerRecord.decode(value)
                if known.begin == NO_SPAN and known.max_clock < limits[known.aborted]:
                    dropped.append((producer, key, known))
                    floor = max(floor, known.max_clock)
        if looked_at == STEP_RECORDS:
            self._prune_from[op.journal] = key + b"\x00"
            self._next_prune[op.journal] = 0
        if dropped:
            state.touch(context.undo)
            state.clock_floor = floor
            for producer, key, known in dropped:
                state.put(state.producers, producer, None, context.undo)
                state.put(state.writes, key, None, context.undo)
                if known.aborted:
                    gone = records.encode_number(known.last_ack)
                    state.put(state.writes, state.rolled_back_key(producer), gone, context.undo)
        return Done()

    # -- deleted journals ---------------------------------------------------------------------------------------

    def _reap(self, op: ops.Reap, context: ApplyContext) -> Result:
        memory = self._memory
        start = records.PART.key(u32(op.journal))
        end = records.PART.key(u32(op.journal + 1))
        with memory.read() as view:
            found = list(view.scan(start, end, limit=STEP_RECORDS))
            for key, value in found:
                for run in records.decode_index(value).runs if key[7:8] == records.INDEX else ():
                    known = memory.fragment(run.fragment, view) if run.fragment else None
                    if known is not None:
                        gone = known._replace(journal=0).encode()
                        memory.write(records.FRAGMENT.key(run.fragment), gone, context)
                memory.write(key, None, context)
        if len(found) < STEP_RECORDS:
            memory.write(records.DELETED.key(u32(op.journal)), None, context)
            memory.write(records.FORMER_ENDS.key(u32(op.journal)), None, context)
            memory.deleted.discard(op.journal)
            context.undo.append(lambda: memory.deleted.add(op.journal))
        return Done()


def runs_from(view: View, journal: int, offset: int) -> Iterator[tuple[int, IndexRun]]:
    """The runs of the durable index from an offset on, the first one cut to begin there: (offset, run)."""
    start, end = records.part_range(journal, records.INDEX)
    first = next(iter(view.scan(start, records.index_key(journal, offset + 1), reverse=True, limit=1)), None)
    if first is None:
        return
    for key, value in view.scan(first[0], end):
        at = records.number_at_end(key)
        for run in records.decode_index(value).runs:
            skip = max(0, offset - at)
            if skip < run.rows:
                yield at + skip, IndexRun(run.base + skip, run.rows - skip, run.fragment)
            at += run.rows


def blocks_from(view: View, journal: int, position: int) -> Iterator[tuple[int, bytes]]:
    """Stored blocks from the one that holds a position on: (base, value)."""
    start, end = records.part_range(journal, records.BLOCK)
    first = next(iter(view.scan(start, records.block_key(journal, position + 1), reverse=True, limit=1)), None)
    if first is None:
        return
    yield records.number_at_end(first[0]), first[1]
    for key, value in view.scan(first[0] + b"\x00", end):
        yield records.number_at_end(key), value
