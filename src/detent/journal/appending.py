"""How messages enter a journal: stamped in the order of appends, sequenced, and put into the committed index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from detent.codec import block, foreign
from detent.codec import journal as records
from detent.codec.journal import IndexSegment, OpenSpan, ProducerRecord
from detent.codec.keys import u64
from detent.engine import ApplyContext
from detent.errors import ClockAhead, ClockBehind, Conflict, Invalid, LimitExceeded, NotFound, ProducerTaken
from detent.journal import operations as ops
from detent.journal.chunks import times
from detent.journal.memory import JournalMemory
from detent.journal.spans import ProducerStates, is_done, open_span_key, refuse_roll_back
from detent.journal.state import JournalState, Span
from detent.kv import View
from detent.message import (
    ACK_TXN,
    CLOCK_AHEAD_NS,
    FLAGS_MAX,
    NO_SPAN,
    OUTSIDE_TXN,
    TICK,
    Outcome,
    ProducerState,
    SequencedBlock,
    as_unix_ns,
    clock_of_ns,
    latest_clock,
    sequence_block,
)

BULK_ROWS = 64
"""From this many messages on, an append is put into columns by itself instead of being gathered row by row."""

PRODUCERS_PER_APPEND_MAX = 100_000
"""Producers in one append; each has a record that is written with it."""


def append(memory: JournalMemory, op: ops.Append, context: ApplyContext) -> ops.Appended:
    """Messages without UUIDs: the owner stamps them here, inside the order of appends, so no clock can land late."""
    bodies = op.bodies
    if len(bodies) == 1 and op.keys is None and op.headers is None and len(bodies[0]) <= block.MESSAGE_BYTES_MAX:
        state = _state_for_own(memory, op.journal, context)
        state.rows_chunk().add_plain(bodies[0], memory.producer_bytes, memory.reserve_clocks(1, context.now_ms))
        return _commit_own(memory, state, 1)
    rows, size, sizes = ops.check_append(op)
    state = _state_for_own(memory, op.journal, context)
    if rows >= BULK_ROWS:
        content = block.content_of(op.bodies, op.keys, op.headers, sizes)
        _add_own(memory, state, rows, content, size + rows * ops.MESSAGE_WEIGHT, context)
    else:
        clock = memory.reserve_clocks(rows, context.now_ms)
        clocks = range(clock, clock + rows * TICK, TICK)
        producers = memory.producer_bytes * rows
        state.rows_chunk().add(op.bodies, op.keys, op.headers, producers, clocks, [OUTSIDE_TXN] * rows, size)
    return _commit_own(memory, state, rows)


def append_packed(memory: JournalMemory, op: ops.AppendPacked, context: ApplyContext) -> ops.Appended:
    """Many bodies in one piece: the columns are made without looking at any of them."""
    content = ops.unpack(op)
    rows = len(op.sizes) // 4
    state = _state_for_own(memory, op.journal, context)
    _add_own(memory, state, rows, content, len(op.blob) + rows * ops.MESSAGE_WEIGHT, context)
    return _commit_own(memory, state, rows)


def _state_for_own(memory: JournalMemory, journal: str, context: ApplyContext) -> JournalState:
    """The journal, ready for an append that cannot fail any more: as a last operation it has nothing to take back."""
    state = memory.state_for_append(journal, context)
    if context.last:
        state.touched = True
    else:
        state.touch(context.undo)
    return state


def _add_own(
    memory: JournalMemory, state: JournalState, rows: int, content: list[Any], size: int, context: ApplyContext
) -> None:
    """Stamp whole columns at once."""
    clock = memory.reserve_clocks(rows, context.now_ms)
    clocks = np.arange(clock, clock + rows * TICK, TICK, dtype=np.uint64)
    producers = memory.producer_bytes * rows
    now_ms = times(rows, context.now_ms)
    state.add_batch(block.stamped(rows, producers, clocks, bytes(2 * rows), now_ms, content), size)


def _commit_own(memory: JournalMemory, state: JournalState, rows: int) -> ops.Appended:
    """Rows stamped by the owner itself cannot be duplicates: all of them are committed at once."""
    position, offset = state.next_position, state.next_offset
    state.own_producer, state.own_clock = memory.producer, memory.clock
    state.commit_run(position, rows)
    state.next_position += rows
    return ops.Appended(position, rows, offset, rows)


def append_stamped(memory: JournalMemory, op: ops.AppendStamped, context: ApplyContext) -> ops.Appended:
    """Messages that carry their own UUIDs."""
    rows, size, _ = ops.check_append(op)
    if len(op.producers) != rows * block.PRODUCER_BYTES or len(op.clocks) != rows or len(op.flags) != rows:
        raise Invalid("each message needs 6 bytes of producer, a clock and flags")
    if not 0 <= op.deadline_ms <= ops.SPAN_DEADLINE_MS_MAX:
        raise Invalid(f"a transaction stays open for at most {ops.SPAN_DEADLINE_MS_MAX} ms, not {op.deadline_ms}")
    if not all(0 <= clock < 1 << 64 for clock in op.clocks) or not all(0 <= flags <= FLAGS_MAX for flags in op.flags):
        raise Invalid("a clock has 64 bits, flags have 10")
    if op.journal not in memory.names and all(flags == ACK_TXN for flags in op.flags):
        raise NotFound(
            f"there is no journal {op.journal!r} to acknowledge anything in: does it belong to another store?"
        )
    state = memory.state_for_append(op.journal, context)
    state.touch(context.undo)
    producers = [int.from_bytes(op.producers[i : i + 6], "big") for i in range(0, 6 * rows, 6)]
    columns = (
        np.array(producers, np.uint64),
        np.array(op.clocks, np.uint64),
        np.array(op.flags, np.uint16),
    )
    _check_clocks(state, columns, context.now_ms)
    if op.begun and is_done(memory, state, op, producers[0]):
        return ops.Appended(state.next_position, 0, state.next_offset, 0)
    position = state.next_position
    state.rows_chunk().add(op.bodies, op.keys, op.headers, op.producers, op.clocks, op.flags, size)
    return _sequence(memory, state, position, columns, size, context, fresh=op.fresh, deadline_ms=op.deadline_ms)


def append_batch(memory: JournalMemory, op: ops.AppendBatch, context: ApplyContext) -> ops.Appended:
    """An Arrow batch, stamped or not."""
    batch = _read_batch(op)
    rows = batch.num_rows
    state = memory.state_for_append(op.journal, context)
    state.touch(context.undo)
    position = state.next_position
    if op.stamped:
        columns = _stamp_columns(batch)
        _check_clocks(state, columns, context.now_ms)
        timed = batch.set_column(3, block.SCHEMA.field(3), _time_array(rows, context.now_ms))
        state.add_batch(timed, op.size())
        return _sequence(memory, state, position, columns, op.size(), context)
    _add_own(memory, state, rows, list(batch.columns), op.size(), context)
    return _commit_own(memory, state, rows)


def _time_array(rows: int, now_ms: int) -> Any:
    return pa.Array.from_buffers(block.TIMESTAMP, rows, [None, pa.py_buffer(times(rows, now_ms))])


def _read_batch(op: ops.AppendBatch) -> Any:
    if op.size() > ops.APPEND_BYTES_MAX:
        raise LimitExceeded(f"an append of {op.size()} bytes is over {ops.APPEND_BYTES_MAX}: write a fragment")
    if isinstance(op.data, pa.RecordBatch):
        return _checked(op.data)  # made by this process, in the right schema
    try:
        batch = foreign.read_stamped(op.data) if op.stamped else foreign.read_content(op.data)
    except Invalid as error:
        raise Invalid(f"this is no record batch of messages: {error}") from error
    return _checked(batch)


def _checked(batch: Any) -> Any:
    if not 1 <= batch.num_rows <= ops.APPEND_ROWS_MAX:
        raise Invalid(f"an append has 1 to {ops.APPEND_ROWS_MAX} messages, not {batch.num_rows}")
    block.check_content(batch)
    return batch


def _stamp_columns(batch: Any) -> tuple[Any, Any, Any]:
    """Producers as integers, clocks and flags, as numpy arrays without going through Python objects."""
    rows, start = batch.num_rows, batch.column(0).offset
    raw = np.frombuffer(batch.column(0).buffers()[1], np.uint8, rows * 6, start * 6).reshape(rows, 6)
    wide = np.zeros((rows, 8), np.uint8)
    wide[:, 2:] = raw
    producers = wide.view(">u8").reshape(rows).astype(np.uint64)
    clocks = np.asarray(batch.column(1).to_numpy(zero_copy_only=False), np.uint64)
    flags = np.asarray(batch.column(2).to_numpy(zero_copy_only=False), np.uint16)
    if flags.max() > FLAGS_MAX:
        raise Invalid("flags have 10 bits")
    return producers, clocks, flags


def _check_clocks(state: JournalState, columns: tuple[Any, Any, Any], now_ms: int) -> None:
    """Refuse clocks far ahead of the owner's time. That is not before the journal's last change: where the wall clock
    was set back, publishers that have seen the later time go on."""
    owner_ns = max(now_ms, state.updated_ms) * 1_000_000
    clock = int(columns[1].max())
    if clock > latest_clock(owner_ns):
        ahead_s = (as_unix_ns(clock) - owner_ns) // 1_000_000_000
        raise ClockAhead(
            f"a message of producer {int(columns[0][columns[1].argmax()]):012x} has a clock {ahead_s} s ahead of the "
            f"owner's time, and at most {CLOCK_AHEAD_NS // 1_000_000_000} s are allowed: set the clock of the memory "
            "that publishes, or that of the owner",
            clock_of_ns(owner_ns),
        )


def _sequence(
    memory: JournalMemory,
    state: JournalState,
    position: int,
    columns: tuple[Any, Any, Any],
    size: int,
    context: ApplyContext,
    *,
    fresh: bool = False,
    deadline_ms: int = 0,
) -> ops.Appended:
    """Decide what each message does, and let it do that. `size` is about what all of them occupy; with `fresh` none may
    be a duplicate. Transactions that begin here may stay open for `deadline_ms`, if that is longer than the journal
    says."""
    producers, clocks, flags = columns
    offset, rows = state.next_offset, len(clocks)
    state.settle_own(context.now_ms)
    with memory.read() as view:
        done = sequence_block(producers, clocks, flags, position, ProducerStates(state, view), floor=state.clock_floor)
        _refuse(state, done, columns)
        if fresh:
            _refuse_duplicates(state, done, producers)
        refuse_roll_back(memory, state, done.closed, columns)
        _commit(state, done, position, view)
        _close_spans(state, done, view, context)
        _remember_producers(memory, state, done, size // rows, deadline_ms, context)
        _keep_pending(state, done, position, clocks, view, context)
    state.next_position += rows
    return ops.Appended(position, rows, offset, state.next_offset - offset)


def _refuse(state: JournalState, done: SequencedBlock, columns: tuple[Any, Any, Any]) -> None:
    producers, clocks, _ = columns
    if len(done.states) > PRODUCERS_PER_APPEND_MAX:
        raise LimitExceeded(f"one append has messages of at most {PRODUCERS_PER_APPEND_MAX} producers")
    bad = done.outcomes == Outcome.OUTSIDE_OVER_SPAN
    if bad.any():
        producer = int(producers[bad.argmax()])
        raise Conflict(
            f"producer {producer:012x} has an open transaction in {state.name!r} and publishes outside of it; "
            "acknowledge first, or use another producer"
        )
    bad = done.outcomes == Outcome.BELOW_FLOOR
    if bad.any():
        raise _behind(state, int(producers[bad.argmax()]), int(clocks[bad.argmax()]))


def _behind(state: JournalState, producer: int, clock: int) -> ClockBehind:
    behind_s = (as_unix_ns(state.clock_floor) - as_unix_ns(clock)) // 1_000_000_000
    return ClockBehind(
        f"producer {producer:012x} is unknown to {state.name!r}, and its clock is {behind_s} s below the floor that "
        "forgotten producers have left: its messages may be old duplicates. If they are new, set the clock of the "
        "memory that publishes; a new producer helps only if its clock starts above the floor",
        state.name,
        state.clock_floor,
    )


_IS_DUPLICATE: Final = np.zeros(len(Outcome), np.bool_)
_IS_DUPLICATE[[Outcome.OUTSIDE_DUPLICATE, Outcome.CONTINUE_DUPLICATE, Outcome.CONTINUE_OLDER_IN_SPAN]] = True


def _refuse_duplicates(state: JournalState, done: SequencedBlock, producers: Any) -> None:
    """Their publisher has never sent them before, so another process publishes under its producer."""
    bad = _IS_DUPLICATE[done.outcomes]
    if bad.any():
        producer = int(producers[bad.argmax()])
        raise ProducerTaken(
            f"{int(bad.sum())} of {len(bad)} messages would be taken for duplicates in {state.name!r}: another process "
            f"has published under producer {producer:012x}, with later clocks. None of them was published; publish "
            "them again with a new publisher"
        )


def _commit(state: JournalState, done: SequencedBlock, position: int, view: View) -> None:
    """Put what became committed into the index, in commit order; messages of earlier appends come in at their place."""
    start = 0
    order = done.order
    for carried in done.carried:
        _commit_rows(state, order[start : carried.at], position)
        for segment in state.span(carried.producer, view).segments:
            part = _clip(segment, carried.above, carried.through)
            if part is not None:
                state.commit_run(part.position, part.rows)
        start = carried.at
    _commit_rows(state, order[start:], position)


def _commit_rows(state: JournalState, order: Any, position: int) -> None:
    if not len(order):
        return
    ends = np.flatnonzero(np.diff(order) != 1)
    starts = np.concatenate(([0], ends + 1))
    lengths = np.diff(np.concatenate((starts, [len(order)])))
    for base, count in zip((order[starts] + position).tolist(), lengths.tolist(), strict=True):
        state.commit_run(base, count)


def _clip(segment: IndexSegment, above: int, through: int) -> IndexSegment | None:
    """The messages of a segment with above < clock <= through."""
    position, count, clock, step = segment
    if clock > through or clock + (count - 1) * step <= above:
        return None
    step = max(step, 1)
    skip = max(0, (above - clock) // step + 1) if clock <= above else 0
    keep = min(count, (through - clock) // step + 1)
    return IndexSegment(position + skip, keep - skip, clock + skip * step, step) if keep > skip else None


def _close_spans(state: JournalState, done: SequencedBlock, view: View, context: ApplyContext) -> None:
    """Spans from earlier appends that were committed or rolled back leave no records."""
    for producer in done.closed:
        for key in state.span(producer, view).keys:
            state.put(state.writes, key, None, context.undo)
        state.put(state.spans, producer, Span([], []), context.undo)


def _remember_producers(
    memory: JournalMemory,
    state: JournalState,
    done: SequencedBlock,
    row_bytes: int,
    deadline_ms: int,
    context: ApplyContext,
) -> None:
    now_ms = context.now_ms
    for producer, new in done.states.items():
        old = state.producers.get(producer)
        opened = old.opened_ms if old is not None and old.begin == new.begin else now_ms
        if new.begin == NO_SPAN:
            opened = 0
        before = 0 if old is None else old.pending_bytes
        pending = len(done.pending.get(producer, ())) * row_bytes
        if old is not None and old.begin == new.begin:
            pending += before
        state.pending_bytes = max(0, state.pending_bytes + pending - before)
        known = ProducerRecord(new.last_ack, new.max_clock, new.begin, opened, now_ms, False, pending)
        state.set_producer(producer, known, context.undo)
        state.newest_clock = max(state.newest_clock, new.max_clock)
        _note_span(memory, state, producer, new, OpenSpan(opened, deadline_ms), context)


def _keep_pending(
    state: JournalState, done: SequencedBlock, position: int, clocks: Any, view: View, context: ApplyContext
) -> None:
    """Messages of transactions that are still open: where they stand, until their ACK comes."""
    for producer, rows in done.pending.items():
        segments = list(_segments(rows, clocks, position))
        key = records.part(state.id, records.SPAN, producer.to_bytes(6, "big") + u64(segments[0].position))
        state.put(state.writes, key, records.encode_segments(segments), context.undo)
        known = state.span(producer, view)
        state.put(state.spans, producer, Span([*known.keys, key], known.segments + segments), context.undo)


def _note_span(
    memory: JournalMemory,
    state: JournalState,
    producer: int,
    new: ProducerState,
    opened: OpenSpan,
    context: ApplyContext,
) -> None:
    """Keep the list of open spans, which the deadline is measured from and which retention must not pass."""
    known = state.open.get(producer)
    if new.begin == (NO_SPAN if known is None else known):
        return
    name = (state.id, producer)
    if new.begin == NO_SPAN and state.first_offset:
        state.reclaim_due = True  # the span may have been all that kept some blocks
    state.put(memory.open_spans, name, None if new.begin == NO_SPAN else opened, context.undo)
    state.put(state.open, producer, None if new.begin == NO_SPAN else new.begin, context.undo)
    value = None if new.begin == NO_SPAN else opened.encode()
    state.put(state.writes, open_span_key(*name), value, context.undo)


def _segments(rows: Any, clocks: Any, position: int) -> Iterator[IndexSegment]:
    """Rows and their clocks as few arithmetic progressions."""
    if len(rows) == 1:
        yield IndexSegment(position + int(rows[0]), 1, int(clocks[rows[0]]), 1)
        return
    chosen = clocks[rows]
    gaps, steps = np.diff(rows) != 1, np.diff(chosen)
    # A new segment begins after a gap in the rows, and where the step differs from the one before it.
    cut = gaps.copy()
    cut[1:] |= (steps[1:] != steps[:-1]) & ~gaps[:-1]
    starts = np.concatenate(([0], np.flatnonzero(cut) + 1))
    ends = np.concatenate((starts[1:], [len(rows)]))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        step = int(chosen[start + 1] - chosen[start]) if end - start > 1 else 1
        yield IndexSegment(position + int(rows[start]), end - start, int(chosen[start]), step)
