"""Which producers a journal forgets: one rule, for its owner and for those who sequence its raw rows themselves.

A journal cannot remember every producer that it ever had. So its owner forgets the idle ones, and keeps one number of
all of them, the *floor*: the highest clock that any of them had. A message of an unknown producer at or below the floor
may be an old duplicate. The owner refuses it, so it is never stored.

Idle is who lies further behind the newest clock of the journal than the horizon. Clocks come from publishers and may be
wrong, so the owner's own time bounds them twice: a message far ahead of it is refused, and the newest clock counts as
no later than it. Without the second, one publisher whose clock runs ahead would make all others look idle.

Only the owner can decide this: whether a producer was still known when a row was stored depends on when the owner
looked, which the rows do not say. A reader of raw rows that forgets on its own account may drop what the journal has
committed. So it asks for the journal's floor (`JournalInfo.clock_floor`) before it reads, and forgets what the owner
has forgotten by then: nothing of such a producer at or below the floor can follow.
"""

from __future__ import annotations

from typing import Final

from detent.message.clock import COUNTER_BITS, STEP_NS, clock_of_ns
from detent.message.sequence import NO_SPAN, ProducerState

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
