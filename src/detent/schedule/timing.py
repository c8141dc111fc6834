"""When a schedule ticks: the rule, pure. By a cron expression in a time zone, or by an interval.

A tick is a time in milliseconds since 1970; ticks only rise. Where the clocks of a zone change, cron does what Debian's
does. An expression whose minute or hour begins with a star goes on as if nothing had happened: each hour that there is
has its ticks, the repeated one twice, the missing one none. Any other names times of the day, and each of these ticks
once a day: one that the day does not have ticks at the first minute that it has after that, and one that comes twice
ticks the first time.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from detent.codec.schedule import NO_TIME
from detent.durations import at_1970_ms, since_1970_ms
from detent.errors import Invalid

FIELDS: Final = 5
"""Minute, hour, day of the month, month, day of the week. Cronsim reads a sixth for seconds, and treats the changes of
clocks differently then; `every` is there for what ticks more often."""

SHORT_FORMS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

LATEST: Final = datetime(9940, 1, 1, tzinfo=UTC)
LATEST_MS: Final = since_1970_ms(LATEST)
"""No tick is looked for after this: the years of `datetime` end at 9999, and one look may span fifty."""

FIRST_WINDOW_MS: Final = 60_000
WINDOW_GROWTH: Final = 4
"""How far before now the newest ticks are looked for at first, and by how much that grows until they are found: a cron
expression is only read forwards, and a year of minutes has half a million ticks."""

SCANNED_MAX: Final = 500
"""Ticks that are counted one by one where a schedule was not looked at for long; a cron tick takes up to 0.2 ms."""


class Newest(NamedTuple):
    """The newest ticks of a time that has passed, oldest first, and how many there were before them, as far as they
    were counted."""

    ticks: tuple[int, ...]
    earlier: int


class Timing(Protocol):
    """When something ticks."""

    def after(self, time_ms: int) -> int:
        """The first tick after a time; `NO_TIME` if there is none."""
        ...

    def newest(self, first_ms: int, now_ms: int, count: int) -> Newest:
        """The newest `count` ticks from `first_ms`, which is one, up to now."""
        ...


class IntervalTiming(NamedTuple):
    """Ticks as far apart as `every_ms`; one of them is at `tick_ms`."""

    every_ms: int
    tick_ms: int

    def after(self, time_ms: int) -> int:
        """The first tick after a time; `NO_TIME` at the end of all dates."""
        tick_ms = self.tick_ms + ((time_ms - self.tick_ms) // self.every_ms + 1) * self.every_ms
        return tick_ms if tick_ms <= LATEST_MS else NO_TIME

    def newest(self, first_ms: int, now_ms: int, count: int) -> Newest:
        """The newest ticks up to now."""
        due = (now_ms - first_ms) // self.every_ms + 1
        kept = min(due, count)
        return Newest(tuple(first_ms + index * self.every_ms for index in range(due - kept, due)), due - kept)


class CronTiming(NamedTuple):
    """Ticks of a cron expression in a time zone."""

    cron: str
    zone: tzinfo

    def after(self, time_ms: int) -> int:
        """The first tick after a time; `NO_TIME` if the next fifty years have none."""
        begin = at_1970_ms(time_ms)
        if begin >= LATEST:
            return NO_TIME
        for tick in CronSim(self.cron, begin.astimezone(self.zone)):
            tick_ms = _ms(tick)
            if tick_ms > time_ms:  # in an hour that comes twice, local times do not say which one they are of
                return tick_ms
        return NO_TIME

    def newest(self, first_ms: int, now_ms: int, count: int) -> Newest:
        """The newest ticks up to now. Of a long time, those before are counted up to a bound."""
        ticks: list[int] = []
        tick_ms = first_ms
        while tick_ms != NO_TIME and tick_ms <= now_ms and len(ticks) < max(count, SCANNED_MAX):
            ticks.append(tick_ms)
            tick_ms = self.after(tick_ms)
        if tick_ms == NO_TIME or tick_ms > now_ms:
            kept = ticks[-count:] if count else []
            return Newest(tuple(kept), len(ticks) - len(kept))
        return Newest(self._before(first_ms, now_ms, count), len(ticks))

    def _before(self, first_ms: int, now_ms: int, count: int) -> tuple[int, ...]:
        """The newest of many ticks, without going through all of them."""
        window_ms = FIRST_WINDOW_MS
        while True:
            found: deque[int] = deque(maxlen=count)
            tick_ms = self.after(max(first_ms - 1, now_ms - window_ms))
            while tick_ms != NO_TIME and tick_ms <= now_ms:
                found.append(tick_ms)
                tick_ms = self.after(tick_ms)
            if len(found) == count or now_ms - window_ms < first_ms:
                return tuple(found)
            window_ms *= WINDOW_GROWTH


def cron_timing(cron: str, tz: str) -> CronTiming:
    """The ticks of an expression in a zone; `Invalid` unless both can be read, and the expression ever ticks."""
    zone = read_zone(tz)
    _check_cron(cron)
    return CronTiming(expanded(cron), zone)


def expanded(cron: str) -> str:
    """An expression with five fields."""
    return SHORT_FORMS.get(cron.lower(), cron)


@lru_cache(maxsize=1024)
def _check_cron(cron: str) -> None:
    fields = expanded(cron).split()
    if len(fields) != FIELDS:
        raise Invalid(
            f"{cron!r} is not a cron expression: write five fields - minute, hour, day of the month, month, day of "
            f"the week - such as '0 6 * * mon-fri', or one of {', '.join(SHORT_FORMS)}"
        )
    try:
        first = next(CronSim(expanded(cron), datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise Invalid(f"{cron!r} is not a cron expression: {str(error).lower()}") from None
    if first is None:
        raise Invalid(f"{cron!r} never comes: no day is what it asks for")


def read_zone(tz: str) -> tzinfo:
    """A time zone by its name; `Invalid` if there is none."""
    try:
        return UTC if tz == "UTC" else ZoneInfo(tz)
    except (KeyError, ValueError, OSError):  # OSError: a folder of zones, such as "Europe"
        raise Invalid(f"there is no time zone {tz!r}: write its name as in Europe/Paris, or UTC") from None


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
