"""Handlers that run at times: `@bus.every("30s")`, `@bus.every(cron="0 6 * * *")`. Each has a schedule of the store,
whose messages are ticks; a tick is a message like any other, with its mark, its transaction and its retries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from detent.bus.messages import CONTENT_TYPE, TYPE, JsonSerializer, message, name_of
from detent.schedule.handle import ScheduleSettings, put_of


@dataclass(frozen=True)
class Tick:
    """What a handler that runs at times is called with: its schedule's name, and the time that it is for, whenever the
    message comes."""

    schedule: str
    tick: datetime


class Ticking(NamedTuple):
    """A schedule that an app needs, and the class of its messages."""

    name: str
    kind: type[Tick]
    settings: ScheduleSettings

    def said(self, queue: str, **more: Any) -> ScheduleSettings:
        """All that the schedule says, for the queue of the app."""
        headers = {TYPE: name_of(self.kind), CONTENT_TYPE: JsonSerializer.content_type}
        return {**self.settings, "queue": queue, "headers": headers, **more}  # type: ignore[typeddict-item]


def new_ticking(name: str, app: str, settings: ScheduleSettings) -> Ticking:
    """A schedule of an app; `Invalid` unless there can be such a schedule. Its ticks have a class of their own, so that
    they come to the handlers of this schedule alone."""
    kind = message(f"tick.{name.replace('/', '.').replace('=', '-').replace('+', '-')}")(type("Tick", (Tick,), {}))
    ticking = Ticking(name, kind, settings)
    put_of(name, ticking.said(app))
    return ticking
