"""The first page: what needs attention, what the store holds, and the queues whose messages wait longest."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from detent.server.console import curves
from detent.server.console.visit import Page, Visit
from detent.server.console.wording import messages_text, number_text, span_text
from detent.server.http import Response

OLDEST_SHOWN: Final = 8
FAILED_SHOWN: Final = 8

LEASES_WAITED: Final = 10
"""A message that has waited for so many leases of its queue waits too long."""

PAUSED_SHOWN: Final = 8

CONSUMERS_LOOKED: Final = 100
"""Consumers that the page looks at, the first by name: each costs a look at its journals."""


SCHEDULES_LOOKED: Final = 100
"""Schedules that the page looks at, the first by name."""


class Concern(NamedTuple):
    """Something that needs attention: how urgent, what, where, a number, and the page that shows more."""

    level: str
    title: str
    where: str
    what: str
    page: str


async def show(visit: Visit) -> Response:
    """The overview."""
    oldest = await visit.ask("GET", "/v1/queues", query={"sort": "oldest", "limit": OLDEST_SHOWN})
    concerns = await find_concerns(visit, oldest)
    return visit.page(
        "overview.html",
        "Overview",
        totals=oldest.totals,
        oldest=oldest.queues,
        concerns=concerns,
        charts=await curves.of_queue(visit),
        span=curves.span_of(visit),
    )


def wait_s(visit: Visit, queue: Any) -> float | None:
    """For how long the oldest message of a queue has waited."""
    return visit.clock.age_s(queue.oldest)


async def find_concerns(visit: Visit, oldest: Any) -> list[Concern]:
    """What needs attention, the most urgent first."""
    found: list[Concern] = []
    running = await visit.ask("GET", "/v1/consumers", query={"limit": CONSUMERS_LOOKED})
    for one in running.consumers:
        page = visit.link("running", one.name)
        if one.state == "failed":
            found.append(Concern("bad", f"{one.kind.capitalize()} fails", one.name, one.error, page))
        elif one.state == "stopped" and one.lag:
            what = f"no process works on it, and {number_text(one.lag)} wait"
            found.append(Concern("warn", f"{one.kind.capitalize()} stopped", one.name, what, page))
    timed = await visit.ask("GET", "/v1/schedules", query={"limit": SCHEDULES_LOOKED})
    for one in timed.schedules:
        if one.problem:
            found.append(Concern("bad", "Schedule fails", one.name, one.problem, visit.link("schedules", one.name)))
    for queue in oldest.queues:
        waited, lease = wait_s(visit, queue), _seconds(queue.lease)
        if waited is not None and waited > LEASES_WAITED * lease and not queue.paused:
            what = f"the oldest of {messages_text(queue.available)} has waited for {span_text(waited)}"
            found.append(Concern("warn", "Waits long", queue.name, what, visit.link("queues", queue.name)))
    failed = await visit.ask("GET", "/v1/queues", query={"sort": "failed", "state": "failed", "limit": FAILED_SHOWN})
    for queue in failed.queues:
        found.append(
            Concern(
                "warn", "Failed messages", queue.name, f"{messages_text(queue.failed)} gave up after the last attempt",
                visit.link("queues", queue.name, state="failed"),
            )
        )  # fmt: skip
    paused = await visit.ask("GET", "/v1/queues", query={"sort": "available", "state": "paused", "limit": PAUSED_SHOWN})
    for queue in paused.queues:
        if queue.available:
            what = f"{messages_text(queue.available)} in it, until it is resumed"
            found.append(Concern("info", "Paused", queue.name, what, visit.link("queues", queue.name)))
    return found


def _seconds(duration: str) -> float:
    from detent.durations import milliseconds

    return milliseconds(duration) / 1000


PAGES: Final = (Page("", show),)
