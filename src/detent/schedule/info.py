"""What a store answers of its schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from detent.codec.schedule import JOURNAL, NO_TIME, QUEUE
from detent.durations import at_1970_ms, since_1970_ms
from detent.errors import Invalid
from detent.schedule.operations import ScheduleDescription
from detent.schedule.timing import IntervalTiming, cron_timing

UPCOMING_MAX = 1_000
"""Ticks that are worked out for one answer: each takes up to 0.2 ms, rare ones more."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule: what it says, and how far it is.

    It has either `cron` and `tz` or `every` (which began at `start`, if that was said), and either `queue` or
    `journal`. `next` is the tick that comes next, None for one that rests; `last` is the last one that was published,
    at `published_at`. `published` counts messages, `skipped` ticks that were missed and not made up for; of a schedule
    that was not looked at for long, not all are counted. `waiting` are messages that were asked for by hand and are not
    published yet. `problem` says why messages that are due could not be published; the owner tries again.
    """

    name: str
    cron: str | None
    tz: str | None
    every: timedelta | None
    start: datetime | None
    queue: str | None
    journal: str | None
    body: bytes | None
    headers: dict[str, str]
    key: bytes | None
    delay: timedelta
    retention: timedelta
    missed: str
    missed_max: int
    paused: bool
    next: datetime | None
    last: datetime | None
    published_at: datetime | None
    published: int
    skipped: int
    waiting: int
    problem: str
    created: datetime
    updated: datetime
    edition: int

    def upcoming(self, count: int = 5) -> list[datetime]:
        """The next ticks, as it stands; none while it rests."""
        if type(count) is not int or not 0 <= count <= UPCOMING_MAX:
            raise Invalid(f"up to {UPCOMING_MAX} ticks are worked out at once, not {count!r}")
        found: list[datetime] = []
        tick_ms = NO_TIME if self.next is None else since_1970_ms(self.next)
        if self.cron is not None and self.tz is not None:
            after = cron_timing(self.cron, self.tz).after
        else:
            assert self.every is not None
            after = IntervalTiming(round(self.every.total_seconds() * 1000), tick_ms).after
        while tick_ms != NO_TIME and len(found) < count:
            found.append(at_1970_ms(tick_ms))
            tick_ms = after(tick_ms)
        return found


def schedule_info(found: ScheduleDescription) -> ScheduleInfo:
    """A description as users see it."""
    definition, state = found.definition, found.state
    return ScheduleInfo(
        name=found.name,
        cron=definition.cron or None,
        tz=definition.tz or None,
        every=timedelta(milliseconds=definition.every_ms) if definition.every_ms else None,
        start=_time(definition.start_ms),
        queue=definition.place if definition.target == QUEUE else None,
        journal=definition.place if definition.target == JOURNAL else None,
        body=definition.body,
        headers=dict(definition.headers),
        key=definition.key,
        delay=timedelta(milliseconds=definition.delay_ms),
        retention=timedelta(seconds=definition.retention_s),
        missed=definition.missed,
        missed_max=definition.missed_max,
        paused=definition.paused,
        next=None if definition.paused else _time(state.next_ms),
        last=_time(state.last_ms),
        published_at=_time(state.published_ms),
        published=state.published,
        skipped=state.skipped,
        waiting=len(state.asked),
        problem=found.problem,
        created=at_1970_ms(definition.created_ms),
        updated=at_1970_ms(definition.updated_ms),
        edition=definition.edition,
    )


def _time(time_ms: int) -> datetime | None:
    return None if time_ms == NO_TIME else at_1970_ms(time_ms)
