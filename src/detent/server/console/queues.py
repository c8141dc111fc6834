"""Queues: the list, one queue with its messages, and what changes a queue."""

from __future__ import annotations

from typing import Any, Final

from detent.errors import Invalid
from detent.server.console import curves
from detent.server.console.visit import Form, Page, Visit
from detent.server.console.wording import messages_text
from detent.server.http import Response

ROWS: Final = 50
"""Rows of a list on one page."""

SAMPLES: Final = 3
"""Messages that a page shows before a change of many."""

SORTS: Final = {
    "name": "name", "available": "available", "in_flight": "in flight", "failed": "failed", "delayed": "delayed",
    "oldest": "longest wait", "routed": "published", "acked": "done",
}  # fmt: skip
STATES: Final = {
    "": "all", "available": "with available messages", "in_flight": "with messages in flight",
    "failed": "with failed messages", "delayed": "with delayed messages", "paused": "paused",
}  # fmt: skip

MESSAGE_STATES: Final = ("available", "delayed", "blocked", "in flight", "assigned", "failed", "done")

SETTINGS: Final = (
    "filter", "max_attempts", "lease", "max_lease", "backoff", "max_backoff", "failed_policy", "dead_letter",
    "dead_letter_retention", "done_retention", "priority_header", "group_header", "description",
)  # fmt: skip
"""Settings in the order in which a page shows them."""


async def list_queues(visit: Visit) -> Response:
    """The list, sorted and cut by the store."""
    asked = visit.asked("contains", "state", "sort", "after")
    found = await visit.ask("GET", "/v1/queues", query={**asked, "limit": ROWS})
    return visit.page("queues.html", "Queues", found=found, asked=asked, sorts=SORTS, states=STATES)


async def show_queue(visit: Visit) -> Response:
    """One queue: what is in it, its settings, and a page of its messages."""
    queue = await visit.ask("GET", "/v1/queues/{queue}", visit.name)
    asked = visit.asked("state", "filter", "cursor")
    page, trouble = None, ""
    if visit.may("read", "queue", visit.name):
        try:
            page = await visit.ask(
                "GET", "/v1/queues/{queue}/messages", visit.name, query={**asked, "limit": ROWS, "body_bytes": 512}
            )
        except Invalid as error:  # a filter with a slip of the pen, or a cursor of another queue
            trouble = str(error)
    return visit.page(
        "queue.html",
        visit.name,
        queue=queue,
        page=page,
        trouble=trouble,
        asked=asked,
        states=MESSAGE_STATES,
        charts=await curves.of_queue(visit, visit.name),
        settings=[(name, getattr(queue, name)) for name in SETTINGS if hasattr(queue, name)],
    )


# -- publishing -----------------------------------------------------------------------------------------------------


async def show_publish(visit: Visit) -> Response:
    """A form for a message."""
    queue = await visit.ask("GET", "/v1/queues/{queue}", visit.name)
    return visit.page("publish.html", f"Publish to {visit.name}", queue=queue, given={}, trouble="")


async def publish(visit: Visit, form: Form) -> Response:
    """Publish a message. What the form says is kept if it is refused."""
    given = {name: form.text(name) for name in ("body", "headers", "delay", "dedup_key")}
    message: dict[str, Any] = {"body": given["body"].replace("\r\n", "\n"), "headers": headers_of(given["headers"])}
    message |= {name: given[name] for name in ("delay", "dedup_key") if given[name]}
    done = await visit.ask("POST", "/v1/queues/{queue}/messages", visit.name, body=message)
    one = done.messages[0]
    if one.duplicate_of is not None:
        notice = f"The dedup key is known: message {one.duplicate_of} has it, and nothing was published."
    else:
        notice = f"Message {one.id} is published."
    return visit.go(visit.link("messages", one.id), notice)


def headers_of(text: str) -> dict[str, str]:
    """Headers, a line each: ``name: value``."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise Invalid(f"a header is written as name: value, not {line[:100]!r}")
        found[name.strip()] = value.strip()
    return found


# -- changes of the queue -------------------------------------------------------------------------------------------


async def pause(visit: Visit, form: Form) -> Response:
    """Pause the queue, or resume it."""
    paused = form.text("to") == "paused"
    await visit.ask("PATCH", "/v1/queues/{queue}", visit.name, body={"paused": paused})
    notice = "gives out nothing and takes in nothing until it is resumed" if paused else "goes on"
    return visit.go(visit.link("queues", visit.name), f"The queue {visit.name} {notice}.")


async def ask_redrive(visit: Visit) -> Response:
    """What a redrive would do: how many, and some of them."""
    return await _confirm(visit, "redrive", "failed")


async def ask_purge(visit: Visit) -> Response:
    """What a purge would remove: how many, and some of them."""
    state = visit.query.get("state", "failed")
    if state not in {"available", "failed"}:
        raise Invalid(f"failed or available messages can be purged, not {state[:50]!r}")
    return await _confirm(visit, "purge", state)


async def _confirm(visit: Visit, verb: str, state: str) -> Response:
    queue = await visit.ask("GET", "/v1/queues/{queue}", visit.name)
    wanted = {"available": "available,delayed,blocked"}.get(state, state)
    page = await visit.ask(
        "GET", "/v1/queues/{queue}/messages", visit.name,
        query={"state": wanted, "limit": SAMPLES, "body_bytes": 512},
    )  # fmt: skip
    count = queue.failed if state == "failed" else queue.available + queue.delayed + queue.blocked
    title = f"{verb.capitalize()} {visit.name}"
    return visit.page("confirm.html", title, queue=queue, page=page, verb=verb, state=state, count=count)


async def redrive(visit: Visit, form: Form) -> Response:
    """Try failed messages again: those that are named, or all."""
    chosen = [int(number) for number in form.texts("message") if number.isascii() and number.isdigit()]
    wanted: dict[str, Any] = {"messages": chosen} if chosen else {"all": True}
    if form.text("to"):
        wanted["to"] = form.text("to")
    done = await visit.ask("POST", "/v1/queues/{queue}/redrive", visit.name, body=wanted)
    notice = f"{messages_text(done.messages)} can be claimed again in {done.to}."
    return visit.go(visit.link("queues", visit.name), notice)


async def purge(visit: Visit, form: Form) -> Response:
    """Remove failed messages for good, or those that wait."""
    chosen = [int(number) for number in form.texts("message") if number.isascii() and number.isdigit()]
    state = form.text("state")
    wanted: dict[str, Any] = {"messages": chosen} if chosen else {state: True}
    if not chosen and state not in {"available", "failed"}:
        raise Invalid("say what goes: failed or available messages")
    done = await visit.ask("POST", "/v1/queues/{queue}/purge", visit.name, body=wanted)
    return visit.go(visit.link("queues", visit.name), f"{messages_text(done.messages)} gone from {visit.name}.")


PAGES: Final = (
    Page("/queues", list_queues),
    Page("/queues/{}", show_queue),
    Page("/queues/{}/publish", show_publish, publish),
    Page("/queues/{}/pause", None, pause),
    Page("/queues/{}/redrive", ask_redrive, redrive),
    Page("/queues/{}/purge", ask_purge, purge),
)
