"""Schedules: when they tick, how far they are; pause, resume, run now, delete."""

from __future__ import annotations

from typing import Final

from detent.server.console.messages import content_of
from detent.server.console.visit import Form, Page, Visit
from detent.server.console.wording import body_bytes
from detent.server.http import Response

ROWS: Final = 100
TICKS: Final = 8

SCHEDULE: Final = "/v1/schedules/{schedule}"


async def list_schedules(visit: Visit) -> Response:
    """Schedules by name: when, where to, the next tick and the last one."""
    asked = visit.asked("prefix", "after")
    found = await visit.ask("GET", "/v1/schedules", query={**asked, "limit": ROWS})
    return visit.page("schedules.html", "Schedules", found=found, asked=asked)


async def show_schedule(visit: Visit) -> Response:
    """One of them: its next ticks, its message, how far it is."""
    one = await visit.ask("GET", SCHEDULE, visit.name, query={"ticks": TICKS})
    body = body_bytes(one.body)
    content = None if body is None else content_of(body, visit.query.get("view", ""))
    return visit.page("schedule.html", visit.name, one=one, content=content)


async def pause(visit: Visit, form: Form) -> Response:
    """Let a schedule rest, or go on."""
    rests = form.text("to") == "paused"
    await visit.ask("POST", f"{SCHEDULE}/{'pause' if rests else 'resume'}", visit.name)
    words = "rests: it has no ticks until it is resumed" if rests else "goes on with its first tick after now"
    return visit.go(visit.link("schedules", visit.name), f"{visit.name} {words}.")


async def run(visit: Visit, form: Form) -> Response:
    """Have its message published now."""
    del form
    asked = await visit.ask("POST", f"{SCHEDULE}/run", visit.name)
    return visit.go(visit.link("schedules", visit.name), f"{asked.id} was asked for: it is published once.")


async def ask_delete(visit: Visit) -> Response:
    """What a deletion would remove."""
    one = await visit.ask("GET", SCHEDULE, visit.name, query={"ticks": 1})
    return visit.page("schedule_gone.html", f"Delete {visit.name}?", one=one)


async def delete(visit: Visit, form: Form) -> Response:
    """Forget it."""
    del form
    await visit.ask("DELETE", SCHEDULE, visit.name)
    return visit.go(visit.link("schedules"), f"{visit.name} is deleted. What it has published stays.")


PAGES: Final = (
    Page("/schedules", list_schedules),
    Page("/schedules/{}", show_schedule),
    Page("/schedules/{}/pause", None, pause),
    Page("/schedules/{}/run", None, run),
    Page("/schedules/{}/delete", ask_delete, delete),
)
