"""What a schedule has to publish by now, and how it goes on from there: the rule, pure.

The newest tick that is due is on time if it is hardly late; all others were missed. A schedule says whether missed
ticks are dropped, made up for by one message, or by a message each. A tick that was published is never published again,
also when the clock was set back before it: the state remembers runs of such ticks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from detent.codec.schedule import ALL, NO_TIME, NONE, RUNS_KEPT, ScheduleDefinition, ScheduleState
from detent.schedule.operations import timing_of
from detent.schedule.timing import IntervalTiming, Newest, Timing

ON_TIME_MS: Final = 60_000
"""A tick that is published within this time of its own was not missed: another process takes a store over in less."""

STEP_TICKS: Final = 100
STEP_BYTES: Final = 8 << 20
"""Messages of one schedule in one transaction, and about how many bytes they have; the others come with the next."""


class Due(NamedTuple):
    """What to publish, oldest first, and the state after that."""

    ticks: tuple[int, ...]
    asked: tuple[int, ...]
    state: ScheduleState


def is_due(definition: ScheduleDefinition, state: ScheduleState, now_ms: int) -> bool:
    """Whether there is anything to publish or to pass over by now."""
    return bool(state.asked) or due_ms(definition, state) <= now_ms


def due_ms(definition: ScheduleDefinition, state: ScheduleState) -> int:
    """When there is something to do; far in the future if that is never."""
    if state.asked:
        return NO_TIME
    return NEVER_MS if definition.paused or state.next_ms == NO_TIME else state.next_ms


NEVER_MS: Final = 1 << 62


def plan(definition: ScheduleDefinition, state: ScheduleState, now_ms: int) -> Due:
    """What is due by now."""
    room = max(1, min(STEP_TICKS, STEP_BYTES // (1 + len(definition.body or b""))))
    asked = state.asked[:room]
    after = state._replace(step=state.step + 1, asked=state.asked[len(asked) :])
    if asked:
        after = after._replace(published_ms=now_ms, published=state.published + len(asked))
    if definition.paused or state.next_ms == NO_TIME or state.next_ms > now_ms:
        return Due((), asked, after)
    timing = timing_of(definition, state.next_ms)
    found = _to_publish(definition, timing, state, now_ms)
    ticks = found.ticks[:room]
    following = timing.after(ticks[-1] if len(ticks) < len(found.ticks) else now_ms)
    if definition.cron:
        following = _not_in(state.runs, timing, following)
    after = after._replace(next_ms=following, skipped=state.skipped + found.earlier)
    if ticks:
        after = after._replace(
            last_ms=ticks[-1],
            published_ms=now_ms,
            published=after.published + len(ticks),
            runs=_with(state.runs, ticks, timing, now_ms),
        )
    return Due(ticks, asked, after)


def _to_publish(definition: ScheduleDefinition, timing: Timing, state: ScheduleState, now_ms: int) -> Newest:
    """The ticks to publish of those from the next one up to now; the others are passed over."""
    found = timing.newest(state.next_ms, now_ms, definition.missed_max if definition.missed == ALL else 1)
    if definition.missed == NONE and now_ms - found.ticks[-1] > ON_TIME_MS:
        return Newest((), found.earlier + 1)
    if definition.cron:  # an interval keeps off what was published
        fresh = (tick for tick in found.ticks if _not_in(state.runs, timing, tick) == tick)
        return Newest(tuple(fresh), found.earlier)
    return found


def first_after(definition: ScheduleDefinition, state: ScheduleState, now_ms: int) -> int:
    """The tick that comes next when a schedule begins, or goes on after a rest."""
    if definition.cron:
        timing = timing_of(definition, NO_TIME)
        return _not_in(state.runs, timing, timing.after(now_ms))
    if definition.start_ms > now_ms:
        return definition.start_ms
    grid_ms = state.next_ms or definition.start_ms or now_ms
    return _off_runs(state.runs, definition.every_ms, IntervalTiming(definition.every_ms, grid_ms).after(now_ms))


def set_back(definition: ScheduleDefinition, state: ScheduleState, by_ms: int, now_ms: int) -> ScheduleState:
    """How a schedule goes on when the clock is set back to now. An interval keeps the time that it has left; its ticks
    are never at a time that a published one had. A cron expression goes by the clock, without what was published."""
    after = state._replace(step=state.step + 1)
    if state.next_ms == NO_TIME or (definition.every_ms and definition.start_ms >= state.next_ms):
        return after
    if definition.cron:
        return after._replace(next_ms=first_after(definition, state, now_ms))
    return after._replace(next_ms=_off_runs(state.runs, definition.every_ms, max(1, state.next_ms - by_ms)))


# -- runs of published ticks --------------------------------------------------------------------------------------

Runs = tuple[tuple[int, int], ...]


def _with(runs: Runs, ticks: tuple[int, ...], timing: Timing, now_ms: int) -> Runs:
    """The runs with these ticks, which follow one another."""
    first, last = ticks[0], ticks[-1]
    if runs and runs[-1][1] < first and timing.after(runs[-1][1]) == first:
        return (*runs[:-1], (runs[-1][0], last))
    return _shortened((*runs, (first, last)), now_ms)


def _shortened(runs: Runs, now_ms: int) -> Runs:
    """As many runs as are kept: two become one, which takes what was passed over between them for published. Those
    that are over by now are chosen first: between one of them and one of a time to come may lie years."""
    if len(runs) <= RUNS_KEPT:
        return runs
    over = [run for run in runs if run[1] <= now_ms]
    one, other = (over if len(over) > 1 else runs)[:2]
    joined = (min(one[0], other[0]), max(one[1], other[1]))
    return (joined, *(run for run in runs if run not in {one, other}))


def _not_in(runs: Runs, timing: Timing, tick_ms: int) -> int:
    """The first tick from this one on that was not published."""
    while tick_ms != NO_TIME:
        last = next((last for first, last in runs if first <= tick_ms <= last), None)
        if last is None:
            return tick_ms
        tick_ms = timing.after(last)
    return NO_TIME


def _off_runs(runs: Runs, every_ms: int, next_ms: int) -> int:
    """The first time from this one on from which an interval meets no tick that was published."""
    while any(last >= next_ms and (next_ms - first) % every_ms == 0 for first, last in runs):
        next_ms += 1
    return next_ms
