"""When schedules tick: cron in a zone whose clocks change, intervals, and the newest ticks of a long time."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from detent.codec.schedule import NO_TIME
from detent.errors import Invalid
from detent.schedule.timing import SCANNED_MAX, IntervalTiming, Timing, cron_timing
from scheduleworld import ms

PARIS = "Europe/Paris"  # +1, from 2026-03-29 01:00 UTC until 2026-10-25 01:00 UTC +2


def ticks(cron: str, tz: str, start: str, count: int) -> list[str]:
    timing, at, found = cron_timing(cron, tz), ms(start), []
    for _ in range(count):
        at = timing.after(at)
        found.append(datetime.fromtimestamp(at / 1000, UTC).isoformat()[:16])
    return found


def test_time_of_day_follows_the_zone() -> None:
    assert ticks("0 6 * * *", PARIS, "2026-03-27T12:00", 3) == [
        "2026-03-28T05:00", "2026-03-29T04:00", "2026-03-30T04:00",
    ]  # fmt: skip


def test_time_of_day_in_a_gap_ticks_once_at_its_end() -> None:
    """02:30 does not exist on the 29th: 03:00 does, which is 01:00 UTC."""
    assert ticks("30 2 * * *", PARIS, "2026-03-28T00:00", 3) == [
        "2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30",
    ]  # fmt: skip
    assert ticks("0,30 2 * * *", PARIS, "2026-03-29T00:00", 2) == ["2026-03-29T01:00", "2026-03-30T00:00"]


def test_time_of_day_that_comes_twice_ticks_the_first_time() -> None:
    assert ticks("30 2 * * *", PARIS, "2026-10-24T12:00", 2) == ["2026-10-25T00:30", "2026-10-26T01:30"]


@pytest.mark.parametrize("start", ["2026-10-25T00:30", "2026-10-25T00:45", "2026-10-25T01:05", "2026-10-25T01:30"])
def test_second_pass_of_an_hour_has_no_tick_of_a_day(start: str) -> None:
    assert ticks("30 2 * * *", PARIS, start, 1) == ["2026-10-26T01:30"]


def test_hourly_ticks_go_on_through_gap_and_overlap() -> None:
    assert ticks("0 * * * *", PARIS, "2026-03-29T00:00", 3) == [
        "2026-03-29T01:00", "2026-03-29T02:00", "2026-03-29T03:00",
    ]  # fmt: skip
    assert ticks("*/30 * * * *", PARIS, "2026-10-24T23:50", 5) == [
        "2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2026-10-25T02:00",
    ]  # fmt: skip


def test_half_hour_zones_and_gaps() -> None:
    """Lord Howe's clocks change by half an hour: on 2026-10-04, 02:00 becomes 02:30."""
    assert ticks("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", 2) == ["2026-10-03T15:30", "2026-10-04T15:15"]


@pytest.mark.parametrize("cron", ["* * * * *", "*/7 */3 * * *", "30 2 * * *", "0,15,59 1-3 * * *", "0 0 29 2 *"])
@pytest.mark.parametrize("tz", [PARIS, "America/New_York", "Australia/Lord_Howe", "UTC", "America/Sao_Paulo"])
def test_ticks_rise_and_do_not_depend_on_where_one_looks_from(cron: str, tz: str) -> None:
    chance = random.Random(cron + tz)
    timing = cron_timing(cron, tz)
    for start in ("2026-03-08T05:00", "2026-03-28T22:00", "2026-10-03T14:00", "2026-10-24T22:30", "2018-11-04T01:00"):
        at, found = ms(start), []
        for _ in range(60):
            at = timing.after(at)
            found.append(at)
        assert all(one < other for one, other in pairwise(found))
        for one, other in pairwise(found):
            assert timing.after(chance.randrange(one, other)) == other


@pytest.mark.parametrize("timing", [cron_timing("*/5 * * * *", PARIS), IntervalTiming(300_000, ms("2026-01-01T00:00"))])
@pytest.mark.parametrize("count", [1, 3, SCANNED_MAX + 40])
@pytest.mark.parametrize("hours", [0, 1, 30, 60])
def test_newest_ticks_are_the_last_ones_up_to_now(timing: Timing, count: int, hours: int) -> None:
    first = ms("2026-10-24T12:00")
    now = first + hours * 3_600_000 + 17
    every, at = [], first
    while at <= now:
        every.append(at)
        at = timing.after(at)
    found = timing.newest(first, now, count)
    assert list(found.ticks) == every[-count:]
    if len(every) < SCANNED_MAX or isinstance(timing, IntervalTiming):
        assert found.earlier == max(0, len(every) - count)


def test_newest_tick_of_years_is_found_without_going_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    timing = cron_timing("* * 1 1 *", "UTC")  # each minute of one day a year
    after = type(timing).after

    def counted(self: object, at: int) -> int:
        nonlocal looks
        looks += 1
        return after(self, at)  # type: ignore[arg-type]

    monkeypatch.setattr(type(timing), "after", counted)
    found = timing.newest(ms("2001-01-01T00:00"), ms("2026-06-01T00:00"), 1)
    assert found.ticks == (ms("2026-01-01T23:59"),)
    assert looks < 5_000


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("", "five fields"),
        ("0 6 * *", "five fields"),
        ("0 0 6 * * *", "five fields"),
        ("61 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 */31 2 SUN#5", "never comes"),
        ("x * * * *", "bad minute"),
        ("@often", "five fields"),
    ],
)
def test_refuses_what_never_ticks(cron: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        cron_timing(cron, "UTC")


@pytest.mark.parametrize(
    "tz", ["", "Europe", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "Europe/Paris\0", "x" * 64]
)
def test_refuses_what_is_not_a_zone(tz: str) -> None:
    with pytest.raises(Invalid, match="no time zone"):
        cron_timing("0 6 * * *", tz)


def test_short_forms_are_expressions() -> None:
    assert ticks("@daily", "UTC", "2026-01-01T12:00", 1) == ["2026-01-02T00:00"]
    assert ticks("@Hourly", "UTC", "2026-01-01T12:00", 1) == ["2026-01-01T13:00"]


def test_there_is_an_end_of_time() -> None:
    assert cron_timing("0 6 * * *", "UTC").after(ms("9995-01-01T00:00")) == NO_TIME
    assert IntervalTiming(60_000, ms("9939-12-31T23:59")).after(ms("9939-12-31T23:59:30")) == ms("9940-01-01T00:00")
    assert IntervalTiming(60_000, ms("9939-12-31T23:59")).after(ms("9940-01-01T00:00")) == NO_TIME
