"""What a store can say and do of schedules, sync and async."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from detent.codec.schedule import JOURNAL, QUEUE
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.engine.twins import AwaitedStore, PlainStore, Twin, both
from detent.errors import Conflict, Invalid
from detent.queue.operations import RETENTION_S
from detent.schedule import operations as ops
from detent.schedule.info import ScheduleInfo, schedule_info
from detent.settings.setting import whole_seconds

CHANGE_TRIES: Final = 10
"""How often a schedule is read again that others change meanwhile."""


class ScheduleSettings(TypedDict, total=False):
    """What can be said of a schedule."""

    cron: str | None
    tz: str | None
    every: Duration | None
    start: datetime | None
    queue: str | None
    journal: str | None
    body: bytes | None
    headers: Mapping[str, str] | None
    key: bytes | None
    delay: Duration
    retention: Duration | None
    missed: str
    missed_max: int | None
    paused: bool | None


class _ScheduleCalls(Twin):
    """The schedules of a store: messages that it publishes by itself."""

    @both
    async def schedule(self, name: str, **settings: Unpack[ScheduleSettings]) -> ScheduleInfo:
        """Have a message published at the times of a cron expression, or at an interval: make the schedule, or change
        it to this. One that says this already goes on as it is.

        >>> store.schedule("report", cron="0 6 * * *", tz="Europe/Paris", queue="reports", body=b"daily")
        >>> store.schedule("beat", every="30s", journal="beats")

        `cron` has five fields, and is read in the time zone `tz` (UTC); `every` ticks that long after now, or from
        `start` on. Messages go to a `queue`, with `headers`, `delay` and `retention` as `publish` has them, or to a
        `journal`, with `headers` and a `key`. Without a body they say in JSON which tick they are.

        `missed` says what becomes of ticks that no owner was there for: "last" has one message for all of them, "none"
        none, "all" one each for the newest `missed_max`. A schedule that is `paused` rests; None leaves that as it is.
        """
        return await self._put_schedule(put_of(name, settings))

    @both
    async def create_schedule(self, name: str, **settings: Unpack[ScheduleSettings]) -> ScheduleInfo:
        """The same for a new schedule: `Exists` if there is one of this name."""
        return await self._put_schedule(put_of(name, settings, only="create"))

    @both
    async def change_schedule(self, name: str, **changes: Unpack[ScheduleSettings]) -> ScheduleInfo:
        """Change what is named of a schedule; all else stays. `NotFound` if there is none."""
        for _ in range(CHANGE_TRIES):
            found = schedule_info(await self._one_schedule(name))
            try:
                return await self._put_schedule(
                    put_of(name, merged(found, changes), only="change", edition=found.edition)
                )
            except Conflict:
                continue
        raise Conflict(f"others change the schedule {name!r} all the time: try again")

    async def _put_schedule(self, operation: ops.PutSchedule) -> ScheduleInfo:
        described = await self._ask([operation, ops.DescribeSchedules(name=operation.name)])
        return schedule_info(described[-1].schedules[0])

    @both
    async def find_schedule(self, name: str) -> ScheduleInfo:
        """A schedule by name. `NotFound` if there is none."""
        return schedule_info(await self._one_schedule(name))

    async def _one_schedule(self, name: str) -> ops.ScheduleDescription:
        ops.check_name(name)  # without a name it would be the question for all of them
        found: ops.ScheduleDescription = (await self._do(ops.DescribeSchedules(name=name))).schedules[0]
        return found

    @both
    async def schedules(self, prefix: str = "") -> list[ScheduleInfo]:
        """The schedules, by name."""
        return list(map(schedule_info, await self._listed(partial(ops.DescribeSchedules, prefix), "schedules")))

    @both
    async def pause_schedule(self, name: str) -> None:
        """Let a schedule rest. Ticks that come meanwhile are not missed: there are none."""
        await self._do(ops.PauseSchedule(name, True))

    @both
    async def resume_schedule(self, name: str) -> None:
        """Let a schedule go on, with its first tick after now."""
        await self._do(ops.PauseSchedule(name, False))

    @both
    async def run_schedule(self, name: str) -> str:
        """Have a schedule's message published now, besides its ticks and also while it rests; the id that it has. It is
        published once, at once unless there is a problem."""
        asked: ops.ScheduleAsked = await self._do(ops.AskSchedule(name))
        return asked.id

    @both
    async def delete_schedule(self, name: str) -> None:
        """Forget a schedule. What it has published stays."""
        await self._do(ops.DeleteSchedule(name))


class Schedules(_ScheduleCalls, PlainStore):
    """What a store can do with its schedules."""


class AsyncSchedules(_ScheduleCalls, AwaitedStore):
    """The same, for asyncio."""


def put_of(name: str, given: ScheduleSettings, *, only: Any = "", edition: int = 0) -> ops.PutSchedule:
    """The operation that makes a schedule what it is to be. Checked here too: what cannot be written down cannot be
    sent to an owner elsewhere."""
    unknown = set(given) - set(ScheduleSettings.__annotations__)
    if unknown:
        hint = '; a priority is a header, headers={"priority": "5"}' if "priority" in unknown else ""
        raise Invalid(f"a schedule has no {sorted(unknown)[0]!r}{hint}")
    cron, every = given.get("cron"), given.get("every")
    queue, journal = given.get("queue"), given.get("journal")
    if (queue is None) == (journal is None):
        raise Invalid("say where the messages go: either queue='reports' or journal='reports'")
    if (cron is None) == (every is None):
        raise Invalid("say when: either cron='0 6 * * *' or every='30s'")
    start, retention, missed_max = given.get("start"), given.get("retention"), given.get("missed_max")
    operation = ops.PutSchedule(
        name,
        QUEUE if journal is None else JOURNAL,
        queue or journal or "",
        cron=cron or "",
        tz=given.get("tz") or ("" if cron is None else "UTC"),
        every_ms=0 if every is None else milliseconds(every),
        start_ms=0 if start is None else since_1970_ms(start),
        body=given.get("body"),
        headers=_headers(given.get("headers")),
        key=given.get("key"),
        delay_ms=milliseconds(given.get("delay") or 0),
        retention_s=RETENTION_S if retention is None else whole_seconds(retention),
        missed=given.get("missed") or "last",  # type: ignore[arg-type]
        missed_max=ops.MISSED_MAX if missed_max is None else missed_max,
        paused=given.get("paused"),
        only=only,
        edition=edition,
    )
    _check_types(operation)
    ops.check_put(operation)
    return operation


def _headers(given: Mapping[str, str] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise Invalid(f"headers are a mapping of text to text, not {type(given).__name__}")
    headers = dict(given or {})
    if set(map(type, (*headers, *headers.values()))) - {str}:
        raise Invalid(f"headers are a mapping of text to text, not {headers!r}"[:500])
    return headers


def _check_types(operation: ops.PutSchedule) -> None:
    for what, part in (("body", operation.body), ("key", operation.key)):
        if part is not None and not isinstance(part, bytes):
            raise Invalid(f"the {what} of a schedule is bytes, not {type(part).__name__}: write text.encode()")
    if operation.paused is not None and not isinstance(operation.paused, bool):
        raise Invalid(f"a schedule is paused or not, and not {operation.paused!r}")


_TIMES: Final = frozenset({"cron", "tz", "every", "start"})
_TARGETS: Final = frozenset({"queue", "journal"})


def merged(found: ScheduleInfo, changes: ScheduleSettings) -> ScheduleSettings:
    """What a schedule says, with changes. One that names cron takes the place of every, and the other way round; so do
    queue and journal, with what goes with each of them."""
    says: dict[str, Any] = {name: getattr(found, name) for name in ScheduleSettings.__annotations__}
    says["paused"] = None
    given: dict[str, Any] = dict(changes)
    if given.get("cron") is not None:
        says |= {"every": None, "start": None}
    if given.get("every") is not None:
        says |= {"cron": None, "tz": None}
        if found.every is not None and milliseconds(given["every"]) != found.every / timedelta(milliseconds=1):
            says["start"] = None
    if given.get("queue") is not None:
        says |= {"journal": None, "key": None}
    if given.get("journal") is not None:
        says |= {"queue": None, "delay": 0, "retention": None}
    if given.get("missed") not in {None, "all"}:
        says["missed_max"] = None
    says |= given
    return says  # type: ignore[return-value]
