"""What of a transaction is refused because its beginning is gone, and which acknowledgements were taken before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from detent.errors import Fenced, Invalid, NotFound
from detent.journal import operations as ops
from detent.journal.state import JournalState
from detent.kv import View
from detent.message import ACK_TXN, NO_SPAN, ProducerState, clock_of_ns, is_forgotten

if TYPE_CHECKING:
    from detent.journal.machine import JournalMachine


def is_done(machine: JournalMachine, state: JournalState, op: ops.AppendStamped, producer: int) -> bool:
    """Refuse the rest of a transaction whose beginning is not pending. True for an acknowledgement that was taken
    before and must not be stored again: another transaction is open by now, which it would roll back; or its producer
    is forgotten, or refused since a later transaction of it was rolled back."""
    if op.flags == [ACK_TXN] and _was_taken(machine, state, op.clocks[0], producer):
        return True
    if len(set(op.flags)) != 1 or op.producers != op.producers[:6] * len(op.flags):
        raise Invalid("messages of one transaction are of one producer, and all pending or all acknowledgements")
    with machine.read() as view:
        known = ProducerStates(state, view).get(producer)
        span = state.span(producer, view).segments if known is not None and known.is_open else []
    if span and span[0].clock == op.begun:
        return False
    if op.flags[0] == ACK_TXN and known is not None and op.clocks[0] <= known.last_ack:
        return bool(span)
    if clock_of_ns(state.listing.created_ms * 1_000_000) > op.begun:
        raise NotFound(f"the journal {state.name!r} was made anew, and the messages of this transaction are gone")
    raise Fenced(
        f"the first messages of a transaction of producer {producer:012x} are not pending in {state.name!r}: it was "
        "rolled back, or the store was restored from an older copy; nothing of it will be committed. Start over with "
        "a new publisher"
    )


def _was_taken(machine: JournalMachine, state: JournalState, clock: int, producer: int) -> bool:
    """Whether the acknowledgement with this clock was taken before its producer was forgotten or refused. A producer
    with an open transaction is never forgotten, so the one that is acknowledged was closed; and what was rolled back is
    above the last clock that was acknowledged."""
    with machine.read() as view:
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
