"""Open transactions ("spans"): which are not rolled back yet, and what is refused because its beginning is gone.

Some may wait for longer than their journal says, and a checkpoint in this store may have promised to acknowledge some.
A checkpoint that is kept in a journal of the store, a consumer's recovery log, *holds* the transactions whose
acknowledgements it has. As long as that journal exists, no deadline ends them, and no older acknowledgement rolls them
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from detent.codec import journal as records
from detent.codec.journal import OpenSpan
from detent.codec.keys import u32
from detent.engine import ApplyContext, Done, Result
from detent.errors import Fenced, Invalid, NotFound, RollBackHeld
from detent.journal import operations as ops
from detent.journal.memory import JournalMemory
from detent.journal.state import JournalState
from detent.kv import View
from detent.message import ACK_TXN, NO_SPAN, ProducerState, clock_of_ns, is_forgotten
from detent.message.uuids import PRODUCER_BYTES


def open_span_key(journal: int, producer: int) -> bytes:
    return records.OPEN_SPAN.key(u32(journal), producer.to_bytes(6, "big"))


def is_overdue(memory: JournalMemory, journal: int, span: OpenSpan, now_ms: int) -> bool:
    """Whether an open transaction has passed its deadline: its journal's, or its own where that is longer."""
    deadline_ms = memory.names[memory.by_id[journal]].span_deadline_ms
    return bool(deadline_ms) and now_ms - span.opened_ms > max(deadline_ms, span.deadline_ms)


def holder_of(memory: JournalMemory, span: OpenSpan) -> str | None:
    """The journal whose checkpoint holds an open transaction; None if none does, or if that journal was deleted."""
    return memory.by_id.get(span.holder) if span.holder else None


def hold(memory: JournalMemory, op: ops.HoldSpan, context: ApplyContext) -> Result:
    """Hold what is pending, in the transaction that makes the checkpoint durable. `Fenced` if it is not pending: the
    checkpoint would promise what is lost."""
    holder = memory.names.get(op.holder)
    if holder is None:
        raise NotFound(f"there is no journal {op.holder!r} to hold a transaction for")
    state = memory.state(op.journal)
    state.touch(context.undo)
    if len(op.producer) != PRODUCER_BYTES:
        raise Invalid(f"a producer has {PRODUCER_BYTES} bytes, not {len(op.producer)}")
    producer = int.from_bytes(op.producer, "big")
    with memory.read() as view:
        known = state.producer(producer, view)
        is_open = known is not None and known.begin != NO_SPAN
        segments = state.span(producer, view).segments if is_open else []
    if known is None or not segments or segments[0].clock != op.begun or known.max_clock >= op.clock:
        raise Fenced(
            f"the transaction of producer {producer:012x} that a checkpoint promises to acknowledge is not pending in "
            f"{op.journal!r}: it was rolled back. Start over with a new publisher"
        )
    held = memory.open_spans[state.id, producer]._replace(holder=holder.journal, held_clock=op.clock)
    state.put(memory.open_spans, (state.id, producer), held, context.undo)
    state.put(state.writes, open_span_key(state.id, producer), held.encode(), context.undo)
    return Done()


def refuse_roll_back(
    memory: JournalMemory, state: JournalState, closed: Iterable[int], columns: tuple[Any, Any, Any]
) -> None:
    """`RollBackHeld` if an acknowledgement would close a held transaction and is not the promised one, or a later
    one."""
    for producer in closed:
        span = memory.open_spans.get((state.id, producer))
        holder = None if span is None else holder_of(memory, span)
        if span is None or holder is None:
            continue
        producers, clocks, flags = columns
        lowest = int(clocks[(producers == producer) & (flags == ACK_TXN)].min())
        if lowest < span.held_clock:
            raise RollBackHeld(
                f"an acknowledgement would roll back what producer {producer:012x} has pending in {state.name!r}, and "
                f"the checkpoint in {holder!r} has promised it to readers: start that consumer, which acknowledges it, "
                "or delete the consumer with its recovery log",
                holder,
            )


# -- the rest of a transaction ----------------------------------------------------------------------------------


def is_done(memory: JournalMemory, state: JournalState, op: ops.AppendStamped, producer: int) -> bool:
    """Refuse the rest of a transaction whose beginning is not pending. True for an acknowledgement that was taken
    before and must not be stored again: another transaction is open by now, which it would roll back; or its producer
    is forgotten, or refused since a later transaction of it was rolled back."""
    if op.flags == [ACK_TXN] and _was_taken(memory, state, op.clocks[0], producer):
        return True
    if len(set(op.flags)) != 1 or op.producers != op.producers[:6] * len(op.flags):
        raise Invalid("messages of one transaction are of one producer, and all pending or all acknowledgements")
    with memory.read() as view:
        known = ProducerStates(state, view).get(producer)
        span = state.span(producer, view).segments if known is not None and known.is_open else []
    if span and span[0].clock == op.begun:
        return False
    if op.flags[0] == ACK_TXN and known is not None and op.clocks[0] <= known.last_ack:
        return bool(span)
    if clock_of_ns((state.listing.born_ms or state.listing.created_ms) * 1_000_000) > op.begun:
        raise NotFound(f"the journal {state.name!r} was made anew, and the messages of this transaction are gone")
    raise Fenced(
        f"the first messages of a transaction of producer {producer:012x} are not pending in {state.name!r}: it was "
        "rolled back, or the store was restored from an older copy; nothing of it will be committed. Start over with "
        "a new publisher"
    )


def _was_taken(memory: JournalMemory, state: JournalState, clock: int, producer: int) -> bool:
    """Whether the acknowledgement with this clock was taken before its producer was forgotten or refused. A producer
    with an open transaction is never forgotten, so the one that is acknowledged was closed; and what was rolled back is
    above the last clock that was acknowledged."""
    with memory.read() as view:
        known = state.producer(producer, view)
        if known is None:
            last = state.rolled_back(producer, view)
            return 0 < clock <= (state.clock_floor if last is None else last)
    if known.aborted:
        return clock <= known.last_ack
    return known.begin == NO_SPAN and known.max_clock <= state.clock_floor and 0 < clock <= state.clock_floor


class ProducerStates(Mapping[int, ProducerState]):
    """The journal's producers as the sequencing functions want them, read when asked for."""

    def __init__(self, state: JournalState, view: View) -> None:
        self._state = state
        self._view = view

    def __getitem__(self, producer: int) -> ProducerState:
        known = self._state.producer(producer, self._view)
        if known is None:
            aborted = self._state.rolled_back(producer, self._view) is not None
        else:
            aborted = known.aborted
        if aborted:
            raise Fenced(
                f"a transaction of producer {producer:012x} in {self._state.name!r} passed its deadline and was rolled "
                "back; this producer is refused: start over with a new one"
            )
        found = None if known is None else ProducerState(known.last_ack, known.max_clock, known.begin)
        if found is None or is_forgotten(found, self._state.clock_floor):
            raise KeyError(producer)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._state.producers)

    def __len__(self) -> int:
        return len(self._state.producers)
