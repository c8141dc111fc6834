"""The pages before a session: the login form, links that open a session, and the way out."""

from __future__ import annotations

import logging
import re
from typing import Final
from urllib.parse import unquote

from detent.errors import Denied, NotFound
from detent.server.app import FOREIGN_SITES
from detent.server.console.entrance import TooManyTries
from detent.server.console.render import render
from detent.server.console.visit import HEADERS, HTML, Console, Form
from detent.server.http import HttpRequest, Response

NAMES: Final = frozenset({"login", "logout", "enter"})
"""The first segments of addresses that need no session."""

_INSIDE: Final = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
"""What may follow the console's path in an address that a login leads to."""

logger = logging.getLogger("detent.server.console")


def lead_there(console: Console, request: HttpRequest) -> Response:
    """The login, for a browser without a session. One that followed a link from elsewhere sends no cookie; it is asked
    to load the page again from here, and sends it then."""
    if request.headers.get("sec-fetch-site") in FOREIGN_SITES:
        return _page("again.html", console, here=_address(request))
    if request.method not in {"GET", "HEAD"} or "hx-request" in request.headers:
        return _page("login.html", console, status=401, next=console.links(), error="Your session has ended.")
    return Response(
        status=303, type=HTML, headers={**HEADERS, "location": console.links("login", next=_address(request))}
    )


def _address(request: HttpRequest) -> str:
    query = request.raw_query.decode("latin-1")
    return request.raw_path.decode("latin-1") + (f"?{query}" if query else "")


async def answer(console: Console, request: HttpRequest, segments: list[str]) -> Response:
    """One of these pages."""
    first, entrance = segments[0], console.entrance
    if first == "enter" and len(segments) == 2 and request.method == "GET":
        return _go(console.links(), entrance.enter(request, segments[1]))
    if len(segments) > 1:
        raise NotFound("there is no such page here")
    if first == "logout" and request.method == "POST":
        session = entrance.session(request)
        if session is not None:
            form = await Form.of(request)
            entrance.check_change(request, session, form.text("csrf"))
        return _go(console.links("login"), entrance.log_out(request))
    if first == "login" and request.method == "POST":
        return await _log_in(console, request)
    if first == "login" and request.method in {"GET", "HEAD"}:
        if entrance.session(request) is not None:
            return _go(inside(console, request.query().get("next", "")))
        return _page("login.html", console, next=request.query().get("next", ""), error="")
    raise NotFound("there is no such page here")


async def _log_in(console: Console, request: HttpRequest) -> Response:
    entrance = console.entrance
    form = await Form.of(request)
    entrance.check_origin(request)
    try:
        cookie = entrance.log_in(request, form.text("token"))
    except Denied as error:
        logger.warning("a login was refused", extra={"client": request.client})
        status = 429 if isinstance(error, TooManyTries) else 403
        return _page("login.html", console, status=status, next=form.text("next"), error=str(error))
    logger.info("a login", extra={"client": request.client})
    return _go(inside(console, form.text("next")), cookie)


def inside(console: Console, address: str) -> str:
    """An address, if it is one of the console's; else its first page."""
    path = console.links()
    below = address[len(path) :]
    climbs = any(unquote(segment) in {".", ".."} for segment in below.partition("?")[0].split("/"))
    return address if address.startswith(path) and _INSIDE.fullmatch(below) and not climbs else path


def _go(page: str, cookie: str = "") -> Response:
    headers = {**HEADERS, "location": page}
    if cookie:
        headers["set-cookie"] = cookie
    return Response(status=303, type=HTML, headers=headers)


def _page(template: str, console: Console, *, status: int = 200, **values: str) -> Response:
    body = render(template, link=console.links, takes_tokens=console.entrance.takes_tokens, theme="", **values)
    return Response(body, status=status, type=HTML, headers=HEADERS)
