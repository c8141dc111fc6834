"""One message: what it says, where it is, what became of each attempt, and its download."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from detent.errors import Invalid, NotFound
from detent.server.console import wording
from detent.server.console.visit import HEADERS, Page, Visit
from detent.server.http import Response

VIEWS: Final = ("json", "text", "hex")


class Content(NamedTuple):
    """A body as a page shows it."""

    view: str
    shown: str
    size: int
    cut: bool
    views: tuple[str, ...]


def content_of(data: bytes, wanted: str = "") -> Content:
    """A body in the view that is wanted, or in the one that suits it."""
    views = tuple(
        view
        for view in VIEWS
        if view == "hex" or (view == "json" and wording.is_json(data)) or (view == "text" and data)
    )
    suits = "json" if "json" in views else "text" if wording.is_text(data) else "hex"
    view = wanted if wanted in views else suits
    if view == "hex":
        return Content(view, wording.hex_lines(data), len(data), len(data) > wording.HEX_BYTES, views)
    if view == "json":
        shown = wording.json_text(data)
        return Content(view, shown[: wording.SHOWN_BYTES], len(data), len(shown) > wording.SHOWN_BYTES, views)
    head = data[: wording.SHOWN_BYTES]
    return Content(view, wording.plain_text(head), len(data), len(data) > len(head), views)


async def show_message(visit: Visit) -> Response:
    """The message, or what is known of one that is gone."""
    number = visit.name
    try:
        message = await visit.ask("GET", "/v1/messages/{message}", number)
    except NotFound as error:
        return visit.page("gone.html", f"Message {number}", status=404, number=number, error=str(error))
    data = body_of(message)
    content = None if data is None else content_of(data, visit.query.get("view", ""))
    return visit.page("message.html", f"Message {number}", message=message, content=content, uri=uri_of(message))


def body_of(message: Any) -> bytes | None:
    """The bytes of a message; None if it has a URI instead, or is gone."""
    return wording.body_bytes(message.body) if message.body is not msgspec.UNSET else None


def uri_of(message: Any) -> str | None:
    """Where a message's payload is. It is shown as text: the console never asks there, and makes no link of it."""
    return None if message.uri is msgspec.UNSET else message.uri


async def download(visit: Visit) -> Response:
    """The body, as a file: a browser shows none of it."""
    message = await visit.ask("GET", "/v1/messages/{message}", visit.name)
    data = body_of(message)
    if data is None:
        raise Invalid("this message has no body: it has a URI, or its body is gone")
    headers = {**HEADERS, "content-disposition": f'attachment; filename="message-{int(visit.name)}.bin"'}
    return Response(data, type="application/octet-stream", headers=headers)


async def find(visit: Visit) -> Response:
    """A message by its number, or queues by a part of their name."""
    text = visit.query.get("q", "").strip()
    if text.isascii() and text.isdigit():
        return visit.go(visit.link("messages", text))
    return visit.go(visit.link("queues", contains=text))


PAGES: Final = (
    Page("/find", find),
    Page("/messages/{}", show_message),
    Page("/messages/{}/body", download),
)
