"""The decision at the heart of exactly-once reading: what does this message do, given what its producer did before?

Appends are at least once, so a journal can hold a message twice, and it holds the messages of transactions that were
never acknowledged. Two clocks for each producer settle both. A message at or below `last_ack` is a duplicate. Pending
messages form one *span* per producer, in strictly growing clocks; the producer's ACK commits the part of the span up
to the ACK's clock and rolls back the rest.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from detent.message.clock import COUNTER_BITS, STEP_NS, clock_of_ns
from detent.message.uuids import ACK_TXN, CONTINUE_TXN

NO_SPAN: Final = -1
"""The `begin` of a producer that has no open span."""


class Outcome(IntEnum):
    """What one message did. The values are stable and fit a byte."""

    OUTSIDE_COMMIT = 0
    """Commits this message."""
    OUTSIDE_DUPLICATE = 1
    """Seen before, dropped."""
    OUTSIDE_OVER_SPAN = 2
    """Commits this message and drops the producer's open span. A producer that mixes both is broken: you may refuse."""
    CONTINUE_BEGIN = 3
    """Opens a span."""
    CONTINUE_EXTEND = 4
    """Joins the open span."""
    CONTINUE_DUPLICATE = 5
    """Acknowledged before, dropped."""
    CONTINUE_OLDER_IN_SPAN = 6
    """Not above the newest message of the open span, dropped."""
    ACK_EMPTY = 7
    """Acknowledges, but nothing was pending."""
    ACK_COMMIT = 8
    """Commits the span up to the ACK's clock; messages above it roll back."""
    ACK_DUPLICATE = 9
    """Seen before, and nothing is open: no effect."""
    ACK_CLEAN_ROLLBACK = 10
    """Repeats the last ACK: the open span rolls back."""
    ACK_DEEP_ROLLBACK = 11
    """Older than the last ACK: the open span rolls back. What was committed stays committed."""
    BELOW_FLOOR = 12
    """From an unknown producer, at or below the floor that pruned producers left: may be a duplicate, dropped."""

    @property
    def delivers(self) -> bool:
        """Whether there is something to deliver: committed messages, or an ACK that took effect."""
        return _DELIVERS[self]

    @property
    def closes(self) -> bool:
        """Whether the producer has no open span afterwards, having perhaps had one before."""
        return _CLOSES[self]


def _marked(*outcomes: Outcome) -> tuple[bool, ...]:
    """One flag for each outcome: an index is several times faster than a set of enum members."""
    return tuple(outcome in outcomes for outcome in Outcome)


_DELIVERS: Final = _marked(Outcome.OUTSIDE_COMMIT, Outcome.OUTSIDE_OVER_SPAN, Outcome.ACK_EMPTY, Outcome.ACK_COMMIT)
_CLOSES: Final = _marked(
    Outcome.OUTSIDE_OVER_SPAN, Outcome.ACK_COMMIT, Outcome.ACK_CLEAN_ROLLBACK, Outcome.ACK_DEEP_ROLLBACK
)


class ProducerState(NamedTuple):
    """All that is remembered of one producer in one journal.

    `max_clock` is never below `last_ack`, and without an open span the two are equal.
    """

    last_ack: int
    """Clock of the last acknowledged message; everything at or below it is a duplicate. Never falls."""
    max_clock: int
    """Clock of the newest message of the open span, or `last_ack` when there is none."""
    begin: int = NO_SPAN
    """Position of the first message of the open span, or NO_SPAN."""

    @property
    def is_open(self) -> bool:
        """Whether a span is open."""
        return self.begin != NO_SPAN


def first_sight(clock: int) -> ProducerState:
    """The state of a producer just before its first message: whatever its clock, that message is accepted."""
    before = max(clock - 1, 0)
    return ProducerState(before, before, NO_SPAN)


def decide(
    flags: int, clock: int, state: ProducerState | None, position: int, floor: int = 0
) -> tuple[Outcome, ProducerState | None]:
    """What a message does, and the producer's state after it.

    `state` is None for a producer that is not known. `position` is where the message stands in the journal. `floor` is
    the highest clock of the producers that were pruned from this journal: see `Outcome.BELOW_FLOOR`.

    A message with clock 0 is not sequenced: it always commits and leaves no trace.

    >>> outcome, state = decide(1, 100, None, position=0)
    >>> outcome.name, state
    ('CONTINUE_BEGIN', ProducerState(last_ack=99, max_clock=100, begin=0))
    >>> outcome, state = decide(2, 200, state, position=1)
    >>> outcome.name, state
    ('ACK_COMMIT', ProducerState(last_ack=200, max_clock=200, begin=-1))
    """
    if clock == 0:
        return Outcome.OUTSIDE_COMMIT, state
    if state is None:
        if clock <= floor:
            return Outcome.BELOW_FLOOR, None
        state = first_sight(clock)
    if flags == CONTINUE_TXN:
        return _continue(clock, state, position)
    if flags == ACK_TXN:
        return _ack(clock, state)
    return _outside(clock, state)


def _outside(clock: int, state: ProducerState) -> tuple[Outcome, ProducerState]:
    if clock <= state.last_ack:
        return Outcome.OUTSIDE_DUPLICATE, state
    outcome = Outcome.OUTSIDE_COMMIT if state.begin == NO_SPAN else Outcome.OUTSIDE_OVER_SPAN
    return outcome, ProducerState(clock, clock, NO_SPAN)


def _continue(clock: int, state: ProducerState, position: int) -> tuple[Outcome, ProducerState]:
    last_ack, max_clock, begin = state
    if clock <= last_ack:
        return Outcome.CONTINUE_DUPLICATE, state
    if clock <= max_clock:
        return Outcome.CONTINUE_OLDER_IN_SPAN, state
    if begin == NO_SPAN:
        return Outcome.CONTINUE_BEGIN, ProducerState(last_ack, clock, position)
    return Outcome.CONTINUE_EXTEND, ProducerState(last_ack, clock, begin)


def _ack(clock: int, state: ProducerState) -> tuple[Outcome, ProducerState]:
    last_ack, _, begin = state
    if clock > last_ack:
        outcome = Outcome.ACK_EMPTY if begin == NO_SPAN else Outcome.ACK_COMMIT
        return outcome, ProducerState(clock, clock, NO_SPAN)
    if begin == NO_SPAN:
        return Outcome.ACK_DUPLICATE, state
    # last_ack stays although the ACK may lie below it: lowering it would let a message be committed twice.
    outcome = Outcome.ACK_CLEAN_ROLLBACK if clock == last_ack else Outcome.ACK_DEEP_ROLLBACK
    return outcome, ProducerState(last_ack, last_ack, NO_SPAN)


CLOCK_AHEAD_NS: Final = 15 * 60 * 1_000_000_000
"""How far a message's clock may lie ahead of the owner's time. Clocks that nothing sets differ by minutes; what is
further ahead is a mistake, or meant to be taken for the newest for ever."""


def latest_clock(owner_ns: int) -> int:
    """The highest clock that an owner takes at this time of its own."""
    return clock_of_ns(owner_ns + CLOCK_AHEAD_NS)


def idle_below(newest: int, owner_ns: int, horizon_ns: int) -> int:
    """The clock below which a producer is idle. `newest` is the highest clock of the journal."""
    return min(newest, clock_of_ns(owner_ns)) - ticks(horizon_ns)


def is_forgotten(state: ProducerState, floor: int) -> bool:
    """Whether a producer counts as unknown under this floor. One with an open span never does."""
    return state.begin == NO_SPAN and state.max_clock <= floor


def ticks(duration_ns: int) -> int:
    """A time as a difference of clocks."""
    return duration_ns // STEP_NS << COUNTER_BITS
