"""Which open transactions are not rolled back yet: those that may wait for longer than their journal says, and those
that a checkpoint in this store has promised to acknowledge.

A checkpoint that is kept in a journal of the store, a consumer's recovery log, *holds* the transactions whose
acknowledgements it has. As long as that journal exists, no deadline ends them, and no older acknowledgement rolls them
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from detent.codec import journal as records
from detent.codec.journal import OpenSpan
from detent.codec.keys import u32
from detent.engine import Context, Done, Result
from detent.errors import Fenced, Invalid, NotFound, RollBackHeld
from detent.journal import operations as ops
from detent.message import ACK_TXN, NO_SPAN
from detent.message.uuids import PRODUCER_BYTES

if TYPE_CHECKING:
    from detent.journal.machine import JournalMachine
    from detent.journal.state import JournalState


def open_span_key(journal: int, producer: int) -> bytes:
    return records.OPEN_SPAN.key(u32(journal), producer.to_bytes(6, "big"))


def is_overdue(machine: JournalMachine, journal: int, span: OpenSpan, now_ms: int) -> bool:
    """Whether an open transaction has passed its deadline: its journal's, or its own where that is longer."""
    deadline_ms = machine.names[machine.by_id[journal]].span_deadline_ms
    return bool(deadline_ms) and now_ms - span.opened_ms > max(deadline_ms, span.deadline_ms)


def holder_of(machine: JournalMachine, span: OpenSpan) -> str | None:
    """The journal whose checkpoint holds an open transaction; None if none does, or if that journal was deleted."""
    return machine.by_id.get(span.holder) if span.holder else None


def hold(machine: JournalMachine, op: ops.HoldSpan, context: Context) -> Result:
    """Hold what is pending, in the transaction that makes the checkpoint durable. `Fenced` if it is not pending: the
    checkpoint would promise what is lost."""
    holder = machine.names.get(op.holder)
    if holder is None:
        raise NotFound(f"there is no journal {op.holder!r} to hold a transaction for")
    state = machine.state(op.journal)
    state.touch(context.undo)
    if len(op.producer) != PRODUCER_BYTES:
        raise Invalid(f"a producer has {PRODUCER_BYTES} bytes, not {len(op.producer)}")
    producer = int.from_bytes(op.producer, "big")
    with machine.read() as view:
        known = state.producer(producer, view)
        is_open = known is not None and known.begin != NO_SPAN
        segments = state.span(producer, view).segments if is_open else []
    if known is None or not segments or segments[0].clock != op.begun or known.max_clock >= op.clock:
        raise Fenced(
            f"the transaction of producer {producer:012x} that a checkpoint promises to acknowledge is not pending in "
            f"{op.journal!r}: it was rolled back. Start over with a new publisher"
        )
    held = machine.open_spans[state.id, producer]._replace(holder=holder.journal, held_clock=op.clock)
    state.put(machine.open_spans, (state.id, producer), held, context.undo)
    state.put(state.writes, open_span_key(state.id, producer), held.encode(), context.undo)
    return Done()


def refuse_roll_back(
    machine: JournalMachine, state: JournalState, closed: Iterable[int], columns: tuple[Any, Any, Any]
) -> None:
    """`RollBackHeld` if an acknowledgement would close a held transaction and is not the promised one, or a later
    one."""
    for producer in closed:
        span = machine.open_spans.get((state.id, producer))
        holder = None if span is None else holder_of(machine, span)
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
