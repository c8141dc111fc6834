"""The HTTP API's routes for schedules, and what they do: for the console too, with the rights of its caller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from detent.errors import Conflict
from detent.schedule import ScheduleInfo
from detent.schedule import operations as ops
from detent.schedule.handle import CHANGE_TRIES, ScheduleSettings, merged, put_of
from detent.schedule.info import schedule_info
from detent.server.access import Caller
from detent.server.http import Response
from detent.server.limits import LIST_MAX, ListQuery, check_count
from detent.server.models import RequestModel
from detent.server.models_schedules import ScheduleList, ScheduleRequest, ScheduleRun, ShownSchedule, shown_schedule
from detent.server.route import ApiCall, Route, may_see

if TYPE_CHECKING:
    from detent.store import AsyncStore

TICKS_MAX: Final = 100
"""Next ticks in one answer: each is worked out, which takes up to 0.2 ms."""


class TicksQuery(RequestModel, kw_only=True):
    """How many of the next ticks to show."""

    ticks: Annotated[int, Meta(ge=0, le=TICKS_MAX)] = 5


# -- for any caller with rights -------------------------------------------------------------------------------------


async def visible_schedules(
    store: AsyncStore, caller: Caller, prefix: str, after: str, limit: int
) -> tuple[list[ScheduleInfo], bool]:
    """A page of the schedules on which a caller has any right, by name, and whether there are more."""
    found: list[ScheduleInfo] = []
    more = True
    while more:
        (page,) = await store.commit([ops.DescribeSchedules(prefix, after, min(limit + 1, ops.PAGE_MAX))])
        seen = [schedule_info(one) for one in page.schedules if may_see(caller, "schedule", one.name)]
        found += seen[: limit + 1 - len(found)]
        more = page.more and len(found) <= limit
        after = page.schedules[-1].name if more else ""
    return found[:limit], len(found) > limit


async def put_schedule(
    store: AsyncStore, caller: Caller, name: str, settings: ScheduleSettings, *, only: str = "", edition: int = 0
) -> tuple[ScheduleInfo, bool]:
    """Make a schedule what it is to be; and whether it is new. What it publishes it publishes for the caller, who needs
    that right too."""
    operation = put_of(name, settings, only=only, edition=edition)
    caller.require("admin", "schedule", name)
    caller.require("publish", operation.target, operation.place)
    done, found = await store.commit([operation, ops.DescribeSchedules(name=name)])
    return schedule_info(found.schedules[0]), done.new


async def change_schedule(store: AsyncStore, caller: Caller, name: str, changes: ScheduleSettings) -> ScheduleInfo:
    """Change what is named of a schedule."""
    caller.require("admin", "schedule", name)
    for _ in range(CHANGE_TRIES):
        found = await store.find_schedule(name)
        settings = merged(found, changes)
        try:
            return (await put_schedule(store, caller, name, settings, only="change", edition=found.edition))[0]
        except Conflict:
            continue
    raise Conflict(f"others change the schedule {name!r} all the time: try again")


# -- routes ---------------------------------------------------------------------------------------------------------


async def list_schedules(call: ApiCall[None, ListQuery]) -> ScheduleList:
    """The schedules that the caller has any right on, by name."""
    query = call.query
    check_count(query.limit, LIST_MAX, "schedules in an answer")
    found, more = await visible_schedules(call.store, call.caller, query.prefix, query.after, query.limit)
    return ScheduleList(schedules=list(map(shown_schedule, found)), next=found[-1].name if more else None)


async def declare_schedule(call: ApiCall[ScheduleRequest, None]) -> Response:
    """Make a schedule: 201; or change the one of this name to what is said: 200. One that says this already goes on as
    it is. `paused` left out leaves that as it is. Needs `publish` on the queue or journal that it names, too."""
    info, new = await put_schedule(call.store, call.caller, call.name, call.body.settings())
    return Response.json(shown_schedule(info), 201 if new else 200)


async def configure_schedule(call: ApiCall[ScheduleRequest, None]) -> ShownSchedule:
    """Change what is named; all else stays. With other times a schedule begins anew. Needs `publish` on the queue or
    journal that it goes to, too."""
    return shown_schedule(await change_schedule(call.store, call.caller, call.name, call.body.settings()))


async def show_schedule(call: ApiCall[None, TicksQuery]) -> ShownSchedule:
    """What a schedule says, how far it is, and its next ticks."""
    info = await call.store.find_schedule(call.name)
    return await asyncio.to_thread(shown_schedule, info, call.query.ticks)


async def delete_schedule(call: ApiCall[None, None]) -> Response:
    """Forget a schedule. What it has published stays."""
    await call.store.delete_schedule(call.name)
    return Response(status=204)


async def pause_schedule(call: ApiCall[None, None]) -> ShownSchedule:
    """Let a schedule rest. Ticks that come meanwhile are not missed: there are none."""
    await call.store.pause_schedule(call.name)
    return shown_schedule(await call.store.find_schedule(call.name))


async def resume_schedule(call: ApiCall[None, None]) -> ShownSchedule:
    """Let a schedule go on, with its first tick after now."""
    await call.store.resume_schedule(call.name)
    return shown_schedule(await call.store.find_schedule(call.name))


async def run_schedule(call: ApiCall[None, None]) -> ScheduleRun:
    """Publish a schedule's message now, besides its ticks, also while it rests. It is published once, at once unless
    there is a problem. A request that is sent again asks for another one."""
    return ScheduleRun(id=await call.store.run_schedule(call.name))


SCHEDULE: Final = "/v1/schedules/{schedule}"

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/schedules", list_schedules, "List schedules", None, ScheduleList, query=ListQuery, errors=()),
    Route(
        "PUT", SCHEDULE, declare_schedule, "Make or change a schedule", "admin", ShownSchedule,
        body=ScheduleRequest, status=201, other_statuses=(200,),
    ),
    Route(
        "PATCH", SCHEDULE, configure_schedule, "Change a schedule", "admin", ShownSchedule,
        body=ScheduleRequest, errors=(404, 409),
    ),
    Route("GET", SCHEDULE, show_schedule, "Show a schedule", "read", ShownSchedule, query=TicksQuery),
    Route("DELETE", SCHEDULE, delete_schedule, "Delete a schedule", "admin", None, status=204),
    Route("POST", f"{SCHEDULE}/pause", pause_schedule, "Let a schedule rest", "admin", ShownSchedule),
    Route("POST", f"{SCHEDULE}/resume", resume_schedule, "Let a schedule go on", "admin", ShownSchedule),
    Route("POST", f"{SCHEDULE}/run", run_schedule, "Publish a schedule's message now", "publish", ScheduleRun),
)  # fmt: skip
"""What can be asked of schedules."""
