"""Schedules in the JSON of the HTTP API."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from detent.schedule import ScheduleInfo
from detent.schedule.handle import ScheduleSettings
from detent.server.models import (
    AnswerModel,
    Base64Text,
    DurationText,
    Encoded,
    GivenDuration,
    RequestModel,
    Time,
    TimeText,
    duration_text,
    time_text,
    to_bytes,
    to_text,
)


class ScheduleRequest(RequestModel, kw_only=True):
    """What a schedule says. When: `cron`, five fields in the time zone `tz` (UTC), or `every`, a duration, from `start`
    on. Where to: a `queue` or a `journal`. Without a `body` (or with null) messages say in JSON which tick they are;
    `headers` go with both; `delay` and `retention` with a queue, `key` with a journal.

    `missed` says what becomes of ticks that no owner was there for: "last" has one message for all of them, "none"
    none, "all" one each for the newest `missed_max`."""

    cron: str | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    every: GivenDuration | UnsetType = UNSET
    start: Time | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    journal: str | UnsetType = UNSET
    body: str | Encoded | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    key: str | Encoded | UnsetType | None = UNSET
    delay: GivenDuration | UnsetType = UNSET
    retention: GivenDuration | UnsetType = UNSET
    missed: Literal["none", "last", "all"] | UnsetType = UNSET
    missed_max: int | UnsetType = UNSET
    paused: bool | UnsetType = UNSET

    def settings(self) -> ScheduleSettings:
        """What is named, as the library takes it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        named = {name: value for name, value in given.items() if value is not UNSET}
        for what in ("body", "key"):
            if named.get(what) is not None:
                named[what] = to_bytes(named[what], f"the {what}")
        return named  # type: ignore[return-value]


class ShownSchedule(AnswerModel, kw_only=True):
    """A schedule: what it says, and how far it is. `next` is null while it rests; `upcoming` are its next ticks, where
    they were asked for. `last` is the last tick that was published, at `published_at`; `published` counts messages,
    `skipped` ticks that were missed and not made up for. `waiting` messages were asked for by hand and are not
    published yet; `problem` says why."""

    name: str
    cron: str | None
    tz: str | None
    every: DurationText | None
    start: TimeText | None
    queue: str | None
    journal: str | None
    body: str | Base64Text | None
    headers: dict[str, str]
    key: str | Base64Text | None
    delay: DurationText
    retention: DurationText
    missed: str
    missed_max: int
    paused: bool
    next: TimeText | None
    upcoming: list[TimeText]
    last: TimeText | None
    published_at: TimeText | None
    published: int
    skipped: int
    waiting: int
    problem: str | None
    created: TimeText
    updated: TimeText


class ScheduleList(AnswerModel, kw_only=True):
    """Schedules by name; `next` is the name to go on `after`, if there are more."""

    schedules: list[ShownSchedule]
    next: str | None


class ScheduleRun(AnswerModel, kw_only=True):
    """The message that was asked for: what its header `detent-id` says."""

    id: str


def shown_schedule(info: ScheduleInfo, ticks: int = 0) -> ShownSchedule:
    """A schedule as an answer has it, with so many of its next ticks."""
    return ShownSchedule(
        name=info.name,
        cron=info.cron,
        tz=info.tz,
        every=None if info.every is None else duration_text(info.every),
        start=_time(info.start),
        queue=info.queue,
        journal=info.journal,
        body=None if info.body is None else to_text(info.body),
        headers=info.headers,
        key=None if info.key is None else to_text(info.key),
        delay=duration_text(info.delay),
        retention=duration_text(info.retention),
        missed=info.missed,
        missed_max=info.missed_max,
        paused=info.paused,
        next=_time(info.next),
        upcoming=[time_text(tick) for tick in info.upcoming(ticks)],
        last=_time(info.last),
        published_at=_time(info.published_at),
        published=info.published,
        skipped=info.skipped,
        waiting=info.waiting,
        problem=info.problem or None,
        created=time_text(info.created),
        updated=time_text(info.updated),
    )


def _time(time: datetime | None) -> str | None:
    return None if time is None else time_text(time)
