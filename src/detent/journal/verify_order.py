"""Which rows of a journal are committed, and in which order: worked out again from the rows themselves.

The committed index was written once, by the owner, from what it remembered of each producer. Here the same decisions
are made again from nothing but the stored blocks, and compared with the index position by position.

Where a journal was never trimmed, the two must be equal. Where blocks are gone, the past of some producers is unknown:
a stored row may be the duplicate of one that is gone. So a producer's rows may be missing from the index until the
first one that is in it; from then on both sides know the same of this producer, and must agree.

Where producers were forgotten (the clock floor is not 0), one that came back was seen for the first time again. That
makes no difference as long as its clocks rise, as they should. A producer whose rows were accepted out of order is
doubtful, and no finding rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.codec.journal import IndexSegment, JournalHead, ProducerRecord
from detent.journal.housekeeping import runs_from
from detent.kv import View
from detent.message import CONTINUE_TXN, NO_SPAN, Outcome, ProducerState, SequencedBlock, sequence_block
from detent.message.grouping import group_rows, running_max

Numbers = NDArray[np.int64]

_NEVER_SEEN: Final = ProducerState(0, 0, NO_SPAN)
_NONE: Final = np.empty(0, np.int64)
_ACCEPTED: Final = np.array(
    [Outcome.OUTSIDE_COMMIT, Outcome.OUTSIDE_OVER_SPAN, Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND], np.uint8
)


class Disagreement(NamedTuple):
    """Where the index and the rows part."""

    offset: int
    problem: str


class IndexColumns:
    """What decides over the rows of a block, as arrays."""

    __slots__ = ("base", "clocks", "flags", "producers")

    def __init__(self, base: int, batch: Any) -> None:
        rows = batch.num_rows
        start = batch.column(0).offset
        raw = np.frombuffer(batch.column(0).buffers()[1], np.uint8)[start * 6 : (start + rows) * 6]
        wide = np.zeros((rows, 8), np.uint8)
        wide[:, 2:] = raw.reshape(rows, 6)
        self.base = base
        self.producers = wide.view(">u8").reshape(rows).astype(np.uint64)
        self.clocks = batch.column(1).to_numpy().astype(np.uint64)
        self.flags = batch.column(2).to_numpy().astype(np.uint16)


class _IndexStream:
    """The positions that the index names, in order, without holding more of them than are compared at once."""

    def __init__(self, view: View, journal: int, offset: int) -> None:
        self._runs = ((at, run) for at, run in runs_from(view, journal, offset) if not run.fragment)
        self._positions = _NONE
        self._offsets = _NONE
        self._rest: tuple[int, int, int] = (0, 0, 0)

    def peek(self, count: int) -> Numbers:
        """The next positions: `count` of them, or fewer at the end."""
        positions, offsets = [self._positions], [self._offsets]
        missing = count - len(self._positions)
        while missing > 0:
            offset, base, rows = self._rest
            if not rows:
                found = next(self._runs, None)
                if found is None:
                    break
                offset, base, rows = found[0], found[1].base, found[1].rows
            take = min(rows, missing)
            positions.append(np.arange(base, base + take, dtype=np.int64))
            offsets.append(np.arange(offset, offset + take, dtype=np.int64))
            self._rest = (offset + take, base + take, rows - take)
            missing -= take
        if len(positions) > 1:
            self._positions, self._offsets = np.concatenate(positions), np.concatenate(offsets)
        return self._positions[:count]

    def offset(self, ahead: int = 0) -> int:
        """The offset of a position that was peeked at."""
        return int(self._offsets[ahead])

    def consume(self, count: int) -> None:
        self._positions, self._offsets = self._positions[count:], self._offsets[count:]


class _Expected:
    """Rows that a block commits, in commit order."""

    __slots__ = ("clocks", "in_span", "positions", "producers")

    def __init__(self, positions: Numbers, producers: Any, clocks: Any, in_span: Any) -> None:
        self.positions = positions
        self.producers = producers
        self.clocks = clocks
        self.in_span = in_span

    def after(self, start: int) -> _Expected:
        return _Expected(self.positions[start:], self.producers[start:], self.clocks[start:], self.in_span[start:])


class CommitOrder:
    """Sequences a journal's blocks again, and compares what comes out with what is stored."""

    def __init__(self, view: View, journal: int, head: JournalHead) -> None:
        self._head = head
        self._index = _IndexStream(view, journal, head.first_offset)
        self._started = head.first_offset == 0
        self.complete = head.first_position == 0
        """Whether all rows that were ever appended are still there."""
        self.reliable = True
        """False once a row was met whose meaning depends on rows that are gone: nothing more can be said then."""
        # A span that passed its deadline was rolled back without a row that says so. Its producer is refused, until
        # it is forgotten: then it may come back, above the floor, and what it left pending below is dead.
        self._dead_through = head.clock_floor if head.aborted_spans else 0
        self._known: set[int] = set()
        self._highest: dict[int, int] = {}
        self._doubtful: set[int] = set()
        self._states: dict[int, ProducerState] = {}
        self._pending: dict[int, list[tuple[Numbers, Any]]] = {}

    def add_block(self, columns: IndexColumns) -> Disagreement | None:
        """Sequence the next block. Answers what is wrong with the index, if anything is."""
        if not self.complete:
            for producer in np.unique(columns.producers).tolist():
                self._states.setdefault(producer, _NEVER_SEEN)
        done = sequence_block(columns.producers, columns.clocks, columns.flags, columns.base, self._states)
        forgetful = not self.complete or self._head.clock_floor > 0
        if forgetful and bool((done.outcomes == Outcome.OUTSIDE_OVER_SPAN).any()):
            # The owner refuses such rows. So in truth this one is a duplicate and the span still open, or the span was
            # rolled back before: what decides is gone.
            self.reliable = False
            return None
        if self._head.clock_floor:
            self._note_disorder(columns, done)
        problem = self._match(self._expected(columns, done))
        for producer in done.closed:
            self._pending.pop(producer, None)
        for producer, rows in done.pending.items():
            self._pending.setdefault(producer, []).append((rows + columns.base, columns.clocks[rows]))
        self._states.update(done.states)
        return problem

    def _note_disorder(self, columns: IndexColumns, done: SequencedBlock) -> None:
        """Find the producers with accepted rows below clocks that they had before."""
        groups = group_rows(columns.producers)
        clocks = columns.clocks[groups.rows]
        group = np.repeat(np.arange(len(groups.producers), dtype=np.int64), np.diff(groups.starts))
        names = groups.producers.tolist()
        before = np.array([self._highest.get(name, 0) for name in names], np.uint64)
        high = np.maximum(running_max(clocks, group), before[group])
        prior = np.empty_like(high)
        prior[1:] = high[:-1]
        prior[groups.starts[:-1]] = before
        late = np.isin(done.outcomes[groups.rows], _ACCEPTED) & (clocks != 0) & (clocks < prior)
        self._doubtful.update(groups.producers[group[late]].tolist())
        self._highest.update(zip(names, high[groups.starts[1:] - 1].tolist(), strict=True))

    def finish(self) -> Disagreement | None:
        """After the last block: the index must be at its end too."""
        left = self._index.peek(1)
        if not len(left):
            return None
        offset = self._index.offset()
        problem = f"offset {offset} names position {left[0]}, which is not committed there: it is "
        return Disagreement(offset, problem + "pending, rolled back, a duplicate, an acknowledgement or out of order")

    # -- comparing with the index -------------------------------------------------------------------------------

    def _expected(self, columns: IndexColumns, done: SequencedBlock) -> _Expected:
        pieces: list[_Expected] = []
        start = 0
        for carried in done.carried:
            pieces.append(self._rows(columns, done.order[start : carried.at]))
            for positions, clocks in self._pending.get(carried.producer, ()):
                keep = (clocks > np.uint64(carried.above)) & (clocks <= np.uint64(carried.through))
                count = int(keep.sum())
                producers = np.full(count, carried.producer, np.uint64)
                pieces.append(_Expected(positions[keep], producers, clocks[keep], np.ones(count, np.bool_)))
            start = carried.at
        pieces.append(self._rows(columns, done.order[start:]))
        if len(pieces) == 1:
            return pieces[0]
        return _Expected(
            np.concatenate([piece.positions for piece in pieces]),
            np.concatenate([piece.producers for piece in pieces]),
            np.concatenate([piece.clocks for piece in pieces]),
            np.concatenate([piece.in_span for piece in pieces]),
        )

    @staticmethod
    def _rows(columns: IndexColumns, rows: Numbers) -> _Expected:
        in_span = (columns.flags[rows] == CONTINUE_TXN) & (columns.clocks[rows] != 0)
        return _Expected(rows + columns.base, columns.producers[rows], columns.clocks[rows], in_span)

    def _match(self, expected: _Expected) -> Disagreement | None:
        if not self._started:
            # Rows in front of the first offset that is left may still be stored; none of them is in the index.
            first = self._index.peek(1)
            found = np.flatnonzero(expected.positions == first[0]) if len(first) else _NONE
            if not len(found):
                return None
            self._started = True
            expected = expected.after(int(found[0]))
        count = len(expected.positions)
        if np.array_equal(self._index.peek(count), expected.positions):
            self._index.consume(count)
            if not self.complete:
                # A row with clock 0 always commits: it tells nothing of its producer.
                self._known.update(np.unique(expected.producers[expected.clocks != 0]).tolist())
            return None
        return self._walk(expected)

    def _walk(self, expected: _Expected) -> Disagreement | None:
        """Row by row, where the two sides differ."""
        found = self._index.peek(len(expected.positions)).tolist()
        at = 0
        rows = zip(
            expected.positions.tolist(),
            expected.producers.tolist(),
            expected.clocks.tolist(),
            expected.in_span.tolist(),
            strict=True,
        )
        for position, producer, clock, in_span in rows:
            if at < len(found) and found[at] == position:
                at += 1
                if clock:
                    self._known.add(producer)
            elif not self._may_be_missing(producer, clock, in_span):
                offset, there = self._head.next_offset, "the index ends"
                if at < len(found):
                    offset = self._index.offset(at)
                    there = f"offset {offset} names position {found[at]}"
                row = f"position {position} (producer {producer:012x}, clock {clock})"
                return Disagreement(offset, f"{there}, where {row} is committed")
        self._index.consume(at)
        return None

    def _may_be_missing(self, producer: int, clock: int, in_span: bool) -> bool:
        if self._is_uncertain(producer):
            return True
        return in_span and clock <= self._dead_through

    def _is_uncertain(self, producer: int) -> bool:
        return producer in self._doubtful or not (self.complete or producer in self._known)

    # -- comparing with what is stored of producers -------------------------------------------------------------

    def check_producer(self, producer: int, stored: ProducerRecord) -> str | None:
        """Compare a stored producer with the rows. Each one is asked for once."""
        state = self._states.pop(producer, None)
        if state is None:
            return "no stored row is from this producer" if self.complete else None
        if self._is_uncertain(producer):
            return None
        if stored.aborted:
            if not state.is_open or stored.max_clock != state.max_clock:
                return f"it says that a transaction was rolled back at clock {stored.max_clock}; the rows show none"
            return None
        if stored.begin != state.begin and not (self._dead_through and NO_SPAN < state.begin < stored.begin):
            return f"it says that its open transaction begins at {stored.begin}, the rows say {state.begin}"
        same = (stored.last_ack, stored.max_clock) == (state.last_ack, state.max_clock)
        # A producer that was forgotten and came back was seen for the first time twice, the second time later.
        later = stored.last_ack >= state.last_ack and stored.max_clock >= state.max_clock
        if same or (self._head.clock_floor and later):
            return None
        return (
            f"it is acknowledged to clock {stored.last_ack} and reaches {stored.max_clock}; "
            f"the rows say {state.last_ack} and {state.max_clock}"
        )

    def check_span(self, producer: int, segments: list[IndexSegment]) -> str | None:
        """Compare a producer's stored span with its pending rows."""
        pieces = self._pending.get(producer, [])
        positions = np.concatenate([piece for piece, _ in pieces] or [_NONE])
        clocks = np.concatenate([piece for _, piece in pieces] or [_NONE.astype(np.uint64)])
        steps = [np.arange(segment.rows, dtype=np.uint64) for segment in segments]
        stored = np.concatenate([s.position + step.astype(np.int64) for s, step in zip(segments, steps, strict=True)])
        stored_clocks = np.concatenate(
            [np.uint64(s.clock) + np.uint64(s.step) * step for s, step in zip(segments, steps, strict=True)]
        )
        if self._is_uncertain(producer):
            # Some of the rows may be duplicates of what is gone: the span holds the others.
            chosen = np.isin(positions, stored)
            positions, clocks = positions[chosen], clocks[chosen]
        alive = (clocks > np.uint64(self._dead_through)) | np.isin(positions, stored)
        positions, clocks = positions[alive], clocks[alive]
        if np.array_equal(positions, stored) and np.array_equal(clocks, stored_clocks):
            return None
        return f"it names {len(stored)} pending rows that differ from the {len(positions)} that the blocks hold"

    def forgotten(self) -> Iterator[tuple[int, int]]:
        """Producers with rows but without a record, which the clock floor does not cover: (producer, clock)."""
        for producer, state in self._states.items():
            if state.max_clock > self._head.clock_floor:
                yield producer, state.max_clock
