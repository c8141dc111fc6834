"""Journals: the list; one journal with its messages, readers and registers; searching, following, appending."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from detent.errors import Invalid, NotFound
from detent.server.console.messages import content_of
from detent.server.console.queues import headers_of
from detent.server.console.visit import Form, Page, Visit
from detent.server.console.wording import body_bytes
from detent.server.http import Response

ROWS: Final = 50

READERS_MAX: Final = 1_000
"""Consumers that are asked whether they read a journal."""

EXTENT: Final = ("first_offset", "next_offset", "blocks", "block_bytes", "fragments", "fragment_bytes", "open_spans",
                 "aborted_spans")  # fmt: skip

KNOWN: Final = frozenset({"name", "id", "messages", "created", "updated", "registers", "first_position",
                          "next_position", *EXTENT})  # fmt: skip
"""What is said of a journal besides its settings."""


async def list_journals(visit: Visit) -> Response:
    """The list."""
    asked = visit.asked("prefix", "after")
    found = await visit.ask("GET", "/v1/journals", query={**asked, "limit": ROWS})
    return visit.page("journals.html", "Journals", found=found, asked=asked)


async def show_journal(visit: Visit) -> Response:
    """One journal, with a page of its messages: the newest, those from an offset or a time on, or what was found."""
    name = visit.name
    journal = await visit.ask("GET", "/v1/journals/{journal}", name)
    asked = visit.asked("from", "at", "text", "filter")
    page, trouble = None, ""
    if visit.may("read", "journal", name):
        try:
            page = await _messages(visit, journal, asked)
        except (Invalid, NotFound) as error:
            trouble = str(error)
    settings = [(field, getattr(journal, field)) for field in journal.__struct_fields__ if field not in KNOWN]
    return visit.page(
        "journal.html",
        name,
        journal=journal,
        page=page,
        trouble=trouble,
        asked=asked,
        rows=ROWS,
        settings=settings,
        readers=await _readers(visit, name),
        searched=bool(asked["text"] or asked["filter"]),
    )


async def _messages(visit: Visit, journal: Any, asked: dict[str, str]) -> Any:
    start = asked["from"]
    if asked["at"] and not start:
        at = _time(visit, asked["at"])
        found = await visit.ask("GET", "/v1/journals/{journal}/offset", visit.name, query={"at": at})
        start = str(found.offset)
    if asked["text"] or asked["filter"]:
        query = {"from": start, "text": asked["text"], "filter": asked["filter"], "limit": ROWS}
        return await visit.ask("GET", "/v1/journals/{journal}/search", visit.name, query=query)
    if not start:
        start = str(max(journal.first_offset, journal.next_offset - ROWS))
    return await visit.ask("GET", "/v1/journals/{journal}/messages", visit.name, query={"from": start, "limit": ROWS})


def _time(visit: Visit, text: str) -> str:
    """A time as the form has it; in the browser's zone, unless it says another."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"a time is written as 2026-01-31 12:00, not {text[:50]!r}") from error
    return (given if given.tzinfo else given.replace(tzinfo=visit.clock.zone)).isoformat()


async def _readers(visit: Visit, name: str) -> list[tuple[Any, int]]:
    """The consumers that read the journal and may be seen, and how many messages of it wait for each."""
    found = await visit.ask("GET", "/v1/consumers", query={"limit": READERS_MAX})
    return [
        (one, sum(shard.lag.get(name, 0) for shard in one.shards)) for one in found.consumers if name in one.journals
    ]


async def show_entry(visit: Visit) -> Response:
    """One message of a journal."""
    name, offset = visit.names
    if not (offset.isascii() and offset.isdigit()):
        raise Invalid(f"{offset[:50]!r} is not an offset")
    number = int(offset)
    found = await visit.ask(
        "GET", "/v1/journals/{journal}/messages", name, query={"from": number, "to": number + 1, "limit": 1}
    )
    message = found.messages[0]
    data = body_bytes(message.body) or b""
    return visit.page(
        "entry.html",
        f"{name} {offset}",
        name=name,
        message=message,
        content=content_of(data, visit.query.get("view", "")),
        key=None if message.key is None else body_bytes(message.key),
        journey=await visit.ask("GET", "/v1/journals/{journal}/journey", name, query={"offset": number}),
    )


async def show_append(visit: Visit) -> Response:
    """A form for a message."""
    journal = await visit.ask("GET", "/v1/journals/{journal}", visit.name)
    return visit.page("append.html", f"Append to {visit.name}", journal=journal)


async def append(visit: Visit, form: Form) -> Response:
    """Append one message."""
    entry: dict[str, Any] = {
        "body": form.text("body").replace("\r\n", "\n"),
        "headers": headers_of(form.text("headers")),
    }
    if form.text("key"):
        entry["key"] = form.text("key")
    done = await visit.ask("POST", "/v1/journals/{journal}/messages", visit.name, body=entry)
    return visit.go(visit.link("journals", visit.name, done.offset), f"Appended at offset {done.offset}.")


async def trim(visit: Visit, form: Form) -> Response:
    """Forget the messages below an offset."""
    before = form.text("before")
    if not (before.isascii() and before.isdigit()):
        raise Invalid(f"say which offset is the first to keep, not {before[:50]!r}")
    done = await visit.ask("POST", "/v1/journals/{journal}/trim", visit.name, body={"before": int(before)})
    return visit.go(visit.link("journals", visit.name), f"{visit.name} now begins at offset {done.first_offset}.")


PAGES: Final = (
    Page("/journals", list_journals),
    Page("/journals/{}", show_journal),
    Page("/journals/{}/append", show_append, append),
    Page("/journals/{}/trim", None, trim),
    Page("/journals/{}/{}", show_entry),
)
