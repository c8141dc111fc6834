"""The decisions of `sequence.decide` for a whole block at once.

Three facts make the state machine a handful of passes over columns, for any input:

* `last_ack` before a row is the highest clock among the producer's earlier messages that are not CONTINUE_TXN, because
  an ACK or an OUTSIDE either raises it to its own clock or leaves it alone.
* So it is known in advance which rows end a span: every ACK, and every OUTSIDE above `last_ack`. They cut a
  producer's rows into segments in which `last_ack` is constant.
* Within a segment, the accepted messages are the CONTINUE rows that exceed `last_ack` and all CONTINUE rows before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detent.errors import Invalid, LimitExceeded
from detent.message.block import Carried, Clocks, Codes, Rows, SequencedBlock, sequence_block_scalar
from detent.message.grouping import group_rows, running_max
from detent.message.sequence import NO_SPAN, Outcome, ProducerState, first_sight
from detent.message.uuids import ACK_TXN, CONTINUE_TXN

__all__ = ["BLOCK_ROWS_MAX", "SCALAR_ROWS_MAX", "sequence_block", "sequence_block_columns", "sequence_block_scalar"]

BLOCK_ROWS_MAX: Final = 1 << 31
"""Two row numbers must fit one 64-bit word when the commit order is sorted."""

SCALAR_ROWS_MAX: Final = 120
"""Up to this many rows the plain loop is faster: the columns have a fixed cost."""

Mask = NDArray[np.bool_]

_REFUSED_ACKS: Final = np.array([Outcome.ACK_DUPLICATE, Outcome.ACK_DEEP_ROLLBACK], np.uint8)
_STAND_ALONE: Final = np.array([Outcome.OUTSIDE_COMMIT, Outcome.OUTSIDE_OVER_SPAN], np.uint8)
_ACCEPTED_ACKS: Final = np.array([Outcome.ACK_EMPTY, Outcome.ACK_COMMIT], np.uint8)


def sequence_block(
    producers: Clocks,
    clocks: Clocks,
    flags: NDArray[np.uint16],
    base: int,
    states: Mapping[int, ProducerState],
    *,
    floor: int = 0,
) -> SequencedBlock:
    """Sequence a block whose row 0 stands at position `base`.

    `producers` holds the six bytes of each producer as an integer, `states` what is known of producers before the
    block; a producer that is missing there is seen for the first time. `floor` is the clock at or below which such a
    producer is refused. Give the result's `states` (merged over the old ones) to the next block.
    """
    n = len(clocks)
    if not len(producers) == n == len(flags):
        raise Invalid(f"columns differ in length: {len(producers)} producers, {n} clocks, {len(flags)} flags")
    if n > BLOCK_ROWS_MAX:
        raise LimitExceeded(f"a block of {n} rows is over the limit of {BLOCK_ROWS_MAX}")
    if n <= SCALAR_ROWS_MAX:
        return sequence_block_scalar(producers, clocks, flags, base, states, floor=floor)
    return sequence_block_columns(producers, clocks, flags, base, states, floor=floor)


def sequence_block_columns(
    producers: Clocks,
    clocks: Clocks,
    flags: NDArray[np.uint16],
    base: int,
    states: Mapping[int, ProducerState],
    *,
    floor: int = 0,
) -> SequencedBlock:
    """The same as `sequence_block`, always by columns."""
    outcomes = np.empty(len(clocks), np.uint8)
    untracked = np.flatnonzero(clocks == 0)
    outcomes[untracked] = Outcome.OUTSIDE_COMMIT
    tracked = np.flatnonzero(clocks) if len(untracked) else None
    table = _ProducerTable.build(producers, clocks, flags, tracked, states)
    if floor:
        table = table.above_floor(floor, outcomes)
    if not bool(((table.flags == CONTINUE_TXN) | (table.flags == ACK_TXN)).any()):
        return _stand_alone(table, outcomes)
    segments = _segments(table, outcomes)
    spans = _spans(table, segments, outcomes)
    order, carried = _commit(table, segments, spans, outcomes, untracked)
    after, pending = _end(table, segments, spans, base)
    ended = (table.begin != NO_SPAN) & (segments.first < segments.last)
    closed = set(table.producers[ended].tolist())
    return SequencedBlock(outcomes, after, order, carried, closed, pending)


@dataclass(frozen=True, slots=True)
class _ProducerTable:
    """The tracked rows of a block, sorted by producer, and what was known of each producer before."""

    rows: Rows
    clocks: Clocks
    flags: NDArray[np.uint16]
    producers: Clocks
    starts: Rows
    """Where each producer's rows begin; one more at the end."""
    known: Mask
    last_ack: Clocks
    max_clock: Clocks
    begin: Rows

    @classmethod
    def build(
        cls,
        producers: Clocks,
        clocks: Clocks,
        flags: NDArray[np.uint16],
        tracked: Rows | None,
        states: Mapping[int, ProducerState],
    ) -> _ProducerTable:
        groups = group_rows(producers if tracked is None else producers[tracked])
        rows = groups.rows if tracked is None else tracked[groups.rows]
        if len(groups.producers) > 1 or tracked is not None:
            clocks, flags = clocks[rows], flags[rows]
        found = [states.get(producer) for producer in groups.producers.tolist()]
        known = np.array([state is not None for state in found], np.bool_)
        firsts = clocks[groups.starts[:-1]].tolist()
        before = [state or first_sight(clock) for state, clock in zip(found, firsts, strict=True)]
        return cls(
            rows,
            clocks,
            flags,
            groups.producers,
            groups.starts,
            known,
            np.array([state.last_ack for state in before], np.uint64),
            np.array([state.max_clock for state in before], np.uint64),
            np.array([state.begin for state in before], np.int64),
        )

    def above_floor(self, floor: int, outcomes: Codes) -> _ProducerTable:
        """Without the rows that unknown producers have before their first clock above the floor."""
        above = self.clocks > np.uint64(floor)
        lengths = np.diff(self.starts)
        refused_at_first = ~self.known & ~above[self.starts[:-1]]
        if not bool(refused_at_first.any()):
            return self
        index = np.arange(len(above), dtype=np.int64)
        first_above = np.minimum.reduceat(np.where(above, index, len(above)), self.starts[:-1])
        keep = index >= np.repeat(np.where(refused_at_first, first_above, 0), lengths)
        outcomes[self.rows[~keep]] = Outcome.BELOW_FLOOR
        left = np.add.reduceat(keep, self.starts[:-1], dtype=np.int64)
        stay = left > 0
        starts = np.concatenate(([0], np.cumsum(left[stay])))
        clocks = self.clocks[keep]
        # A producer that was refused at first is seen for the first time at the row that is left.
        fresh = clocks[starts[:-1]] - np.uint64(1)
        return _ProducerTable(
            self.rows[keep],
            clocks,
            self.flags[keep],
            self.producers[stay],
            starts,
            self.known[stay],
            np.where(self.known[stay], self.last_ack[stay], fresh),
            np.where(self.known[stay], self.max_clock[stay], fresh),
            self.begin[stay],
        )


def _stand_alone(table: _ProducerTable, outcomes: Codes) -> SequencedBlock:
    """The block of a stream without transactions, which needs none of the segments."""
    leads, lasts = table.starts[:-1], table.starts[1:] - 1
    fresh = np.empty(len(table.clocks), np.bool_)
    fresh[1:] = table.clocks[1:] > table.clocks[:-1]
    fresh[leads] = table.clocks[leads] > table.last_ack
    newest = table.clocks[lasts]
    if not bool(fresh.all()):
        group = np.repeat(np.arange(len(leads)), np.diff(table.starts))
        after = np.maximum(running_max(table.clocks, group), table.last_ack[group])
        newest = after[lasts]
        fresh[1:] = after[1:] > after[:-1]
        fresh[leads] = after[leads] > table.last_ack
        outcomes[table.rows[~fresh]] = Outcome.OUTSIDE_DUPLICATE
    outcomes[table.rows[fresh]] = Outcome.OUTSIDE_COMMIT
    moved = newest > table.last_ack
    ended = np.flatnonzero(moved & (table.begin != NO_SPAN))
    for group_number in ended.tolist():
        at = slice(table.starts[group_number], table.starts[group_number + 1])
        outcomes[table.rows[at][np.argmax(fresh[at])]] = Outcome.OUTSIDE_OVER_SPAN
    columns = (newest, np.where(moved, newest, table.max_clock), np.where(moved, NO_SPAN, table.begin))
    values = map(ProducerState, *(column.tolist() for column in columns))
    states = dict(zip(table.producers.tolist(), values, strict=True))
    order = np.flatnonzero((outcomes == Outcome.OUTSIDE_COMMIT) | (outcomes == Outcome.OUTSIDE_OVER_SPAN))
    return SequencedBlock(outcomes, states, order, [], set(table.producers[ended].tolist()), {})


@dataclass(frozen=True, slots=True)
class _Segments:
    """Each producer's rows, cut after every row that ends a span. `last_ack` is constant within a segment."""

    first: Rows
    """The number of each producer's first segment."""
    last: Rows
    """The number of each producer's last segment, which no row ends."""
    start: Rows
    last_ack: Clocks
    max_clock: Clocks
    begin: Rows
    closers: Rows
    """Index of the rows that end a span, that is every segment but the last of each producer."""
    closed: Rows
    """The number of the segment each of them ends."""


def _segments(table: _ProducerTable, outcomes: Codes) -> _Segments:
    group_of = np.repeat(np.arange(len(table.producers)), np.diff(table.starts))
    others = np.flatnonzero(table.flags != CONTINUE_TXN)
    clocks, group = table.clocks[others], group_of[others]
    after = np.maximum(running_max(clocks, group), table.last_ack[group])
    before = np.empty_like(after)
    before[1:] = after[:-1]
    leads = np.flatnonzero(np.diff(group, prepend=-1))
    before[leads] = table.last_ack[group[leads]]

    closes = (clocks > before) | (table.flags[others] == ACK_TXN)
    if not bool(closes.all()):
        outcomes[table.rows[others[~closes]]] = Outcome.OUTSIDE_DUPLICATE
        others, group, after = others[closes], group[closes], after[closes]

    closed = np.arange(len(others)) + group
    per_group = np.bincount(group, minlength=len(table.producers))
    last = np.cumsum(per_group + 1) - 1
    first = last - per_group
    count = len(others) + len(table.producers)
    start = np.empty(count, np.int64)
    last_ack = np.empty(count, np.uint64)
    start[first], start[closed + 1] = table.starts[:-1], others + 1
    last_ack[first], last_ack[closed + 1] = table.last_ack, after
    max_clock = last_ack.copy()
    max_clock[first] = table.max_clock
    begin = np.full(count, NO_SPAN, np.int64)
    begin[first] = table.begin
    return _Segments(first, last, start, last_ack, max_clock, begin, others, closed)


@dataclass(frozen=True, slots=True)
class _Spans:
    """The accepted CONTINUE rows, in segment order."""

    index: Rows
    clocks: Clocks
    count: Rows
    """How many each segment has."""
    start: Rows
    """Where each segment's begin in `index`."""


def _spans(table: _ProducerTable, segments: _Segments, outcomes: Codes) -> _Spans:
    is_continue = table.flags == CONTINUE_TXN
    index = np.flatnonzero(is_continue)
    counts = np.zeros(len(segments.start), np.int64)
    if len(index) == 0:
        return _Spans(index, table.clocks[:0], counts, counts)
    before = np.concatenate(([0], np.cumsum(is_continue)))
    start = before[segments.start]
    counts = np.diff(start, append=len(index))
    clocks = table.clocks[index]
    limit = np.maximum(segments.last_ack, segments.max_clock)

    filled = np.flatnonzero(counts)
    leads = start[filled]
    rising = np.empty(len(index), np.bool_)
    rising[1:] = clocks[1:] > clocks[:-1]
    rising[leads] = clocks[leads] > limit[filled]
    if not bool(rising.all()):
        segment = np.repeat(np.arange(len(counts)), counts)
        reached = np.empty_like(clocks)
        reached[1:] = running_max(clocks, segment)[:-1]
        reached[leads] = limit[filled]
        accepted = clocks > np.maximum(reached, limit[segment])
        dropped = ~accepted
        repeats = clocks[dropped] <= segments.last_ack[segment[dropped]]
        outcomes[table.rows[index[dropped]]] = np.where(
            repeats, Outcome.CONTINUE_DUPLICATE, Outcome.CONTINUE_OLDER_IN_SPAN
        )
        index, clocks = index[accepted], clocks[accepted]
        counts = np.bincount(segment[accepted], minlength=len(counts))
        start = np.cumsum(counts) - counts
    outcomes[table.rows[index]] = Outcome.CONTINUE_EXTEND
    begun = start[(counts > 0) & (segments.begin == NO_SPAN)]
    outcomes[table.rows[index[begun]]] = Outcome.CONTINUE_BEGIN
    return _Spans(index, clocks, counts, start)


def _commit(
    table: _ProducerTable, segments: _Segments, spans: _Spans, outcomes: Codes, untracked: Rows
) -> tuple[Rows, list[Carried]]:
    closed = segments.closed
    rows, clocks = table.rows[segments.closers], table.clocks[segments.closers]
    is_ack = table.flags[segments.closers] == ACK_TXN
    is_open = ((spans.count > 0) | (segments.begin != NO_SPAN))[closed].astype(np.uint8)
    last_ack = segments.last_ack[closed]
    acks = np.where(clocks > last_ack, _ACCEPTED_ACKS[is_open], _REFUSED_ACKS[is_open])
    acks[(clocks == last_ack) & (is_open == 1)] = Outcome.ACK_CLEAN_ROLLBACK
    codes = np.where(is_ack, acks, _STAND_ALONE[is_open])
    outcomes[rows] = codes
    commits = codes == Outcome.ACK_COMMIT
    alone = rows[~is_ack]
    if len(untracked):
        alone = np.concatenate((alone, untracked))
    bits = len(outcomes).bit_length()
    words = _commit_words(table, segments, spans, commits, alone, bits=bits)
    carries = np.flatnonzero(commits & (segments.begin[closed] != NO_SPAN))
    carries = carries[np.argsort(rows[carries])]
    group = closed[carries] - carries
    at = np.searchsorted(words, rows[carries] << bits)
    columns = (at, table.producers[group], last_ack[carries], clocks[carries])
    carried = [Carried(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    words &= (1 << bits) - 1
    return words, carried


def _commit_words(
    table: _ProducerTable, segments: _Segments, spans: _Spans, commits: Mask, alone: Rows, *, bits: int
) -> Rows:
    """The committed rows in commit order, each with the row that committed it in the upper bits.

    `commits` tells which closers are ACKs that commit their span; `alone` are the rows that commit themselves.
    """
    if not bool(commits.any()):
        mask = np.zeros(1 << bits, np.bool_)
        mask[alone] = True
        alone = np.flatnonzero(mask)
        return (alone << bits) | alone
    acks, closed = segments.closers[commits], segments.closed[commits]
    committed_by = np.full(len(spans.count), -1, np.int64)
    committed_by[closed] = table.rows[acks]
    by = np.repeat(committed_by, spans.count)
    keep = by >= 0
    through = np.zeros(len(spans.count), np.uint64)
    through[closed] = table.clocks[acks]
    filled = closed[spans.count[closed] > 0]
    if bool((spans.clocks[(spans.start + spans.count - 1)[filled]] > through[filled]).any()):
        keep &= spans.clocks <= np.repeat(through, spans.count)
    if not bool(keep.all()):
        by, index = by[keep], spans.index[keep]
    else:
        index = spans.index
    by <<= bits
    by |= table.rows[index]
    words = np.concatenate((by, (alone << bits) | alone)) if len(alone) else by
    if not bool((words[1:] > words[:-1]).all()):
        words.sort()
    return words


def _end(
    table: _ProducerTable, segments: _Segments, spans: _Spans, base: int
) -> tuple[dict[int, ProducerState], dict[int, Rows]]:
    """The producers' states after the block, and the rows of the spans that stay open."""
    last = segments.last
    count = spans.count[last]
    max_clock, begin = segments.max_clock[last], segments.begin[last]
    start = spans.start[last]
    grown = np.flatnonzero(count)
    max_clock[grown] = spans.clocks[(start + count - 1)[grown]]
    begun = grown[begin[grown] == NO_SPAN]
    begin[begun] = table.rows[spans.index[start[begun]]] + base
    producers = table.producers.tolist()
    columns = (segments.last_ack[last].tolist(), max_clock.tolist(), begin.tolist())
    states = dict(zip(producers, map(ProducerState, *columns), strict=True))
    pending = {}
    for group, at, length in zip(grown.tolist(), start[grown].tolist(), count[grown].tolist(), strict=True):
        pending[producers[group]] = table.rows[spans.index[at : at + length]]
    return states, pending
