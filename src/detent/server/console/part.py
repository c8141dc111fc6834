"""The console as a part of the server: which requests are its own, and how each finds its page."""

from __future__ import annotations

import html
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from detent.errors import Denied, DetentError, Invalid, NotFound
from detent.remote.wire import encode_problem
from detent.server.access import Caller
from detent.server.api import Api
from detent.server.console import (
    journals,
    logging_in,
    messages,
    overview,
    preferences,
    queues,
    running,
    schedules,
    storing,
)
from detent.server.console.assets import send_asset
from detent.server.console.entrance import Entrance, TooManyTries
from detent.server.console.live import Bell
from detent.server.console.render import Links
from detent.server.console.visit import HEADERS, HTML, Console, Form, Page, Visit
from detent.server.http import HttpRequest, Response

if TYPE_CHECKING:
    from detent.store import AsyncStore

PATH: Final = "/console"

PAGES: Final = (
    *overview.PAGES, *queues.PAGES, *messages.PAGES, *journals.PAGES, *running.PAGES, *schedules.PAGES,
    *storing.PAGES, *preferences.PAGES,
)  # fmt: skip

_TABLE: Final = {tuple(page.path.strip("/").split("/")): page for page in PAGES}

logger = logging.getLogger("detent.server.console")


class ConsolePart:
    """Pages for browsers. What they show and change goes through the API, as the caller whose session it is."""

    name = "console"

    def __init__(
        self,
        store: AsyncStore,
        api: Api,
        entrance: Entrance,
        *,
        place: str,
        trouble: Callable[[], str] = str,
    ) -> None:
        self._console = Console(api, entrance, Links(entrance.path), place, trouble)
        self._path = entrance.path.encode()
        self._entrance = entrance
        self._bell = Bell(store)

    def owns(self, request: HttpRequest) -> bool:
        """Whether this is below the console's path; or the server's first page, as a browser asks for it."""
        if request.raw_path == b"/":
            return request.method in {"GET", "HEAD"} and not request.raw_query and _is_browser(request)
        return request.raw_path == self._path or request.raw_path.startswith(self._path + b"/")

    def who_asks(self, request: HttpRequest) -> Caller:
        """The caller whose session it is."""
        return self._entrance.caller(request)

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Find the page, and have it shown or its form taken."""
        del caller
        if request.raw_path == b"/":
            return Response(status=307, type=HTML, headers={**HEADERS, "location": self._entrance.path})
        segments = self._segments(request)
        if segments[:1] == ["static"] and len(segments) == 2:
            return send_asset(request, segments[1])
        if segments and segments[0] in logging_in.NAMES:
            return await logging_in.answer(self._console, request, segments)
        session = self._entrance.session(request)
        if session is None:
            return logging_in.lead_there(self._console, request)
        if segments == ["live"]:
            return self._bell.listen(request, self._entrance, session)
        visit = Visit(self._console, request, session)
        try:
            page, visit.names = _find(segments)
            if request.method in {"GET", "HEAD"} and page.show is not None:
                return await page.show(visit)
            if request.method == "POST" and page.change is not None:
                return await self._change(visit, page)
        except DetentError as error:
            return _trouble(visit, error)
        raise Invalid(f"{request.method} is not for this address")

    async def _change(self, visit: Visit, page: Page) -> Response:
        """Take a form: of this session, from a page of its own, and once."""
        assert page.change is not None
        form = await Form.of(visit.request)
        session = visit.session
        self._entrance.check_change(visit.request, session, form.text("csrf"))
        once = form.text("once")
        async with session.changing:
            known = session.done.get(once)
            if known is not None:
                return visit.go(known)
            try:
                done = await page.change(visit, form)
            except DetentError as error:
                logger.info("a change was refused", extra=_line(visit, form, type(error).__name__))
                raise
            logger.info("a change", extra=_line(visit, form, "done"))
            if once and "location" in done.headers:
                session.remember(once, done.headers["location"])
        return done

    def _segments(self, request: HttpRequest) -> list[str]:
        """The parts of the path below the console's, decoded once."""
        below = request.raw_path[len(self._path) :].strip(b"/")
        if not below:
            return []
        try:
            return [unquote_to_bytes(segment).decode() for segment in below.split(b"/")]
        except UnicodeDecodeError as error:
            raise Invalid(f"the address is not UTF-8: {error}") from error

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """A page that says what is wrong, for those who have no session."""
        status = status_of(error)
        text = f"<!doctype html><html lang=en><title>Detent</title><h1>{status}</h1><p>{html.escape(str(error))}</p>"
        del request
        return Response(text.encode("utf-8", "replace"), status=status, type=HTML, headers=HEADERS)

    async def close(self) -> None:
        """End the streams, so that the server can stop."""
        await self._bell.close()


def _is_browser(request: HttpRequest) -> bool:
    """Whether the client wants a page. One that signs, or has a token, wants something else."""
    return "text/html" in request.headers.get("accept", "") and "authorization" not in request.headers


def _find(segments: list[str]) -> tuple[Page, list[str]]:
    """The page of an address, and the names in it."""
    for path, page in _TABLE.items():
        if path == ("",) and not segments:
            return page, []
        if len(path) == len(segments):
            pairs = list(zip(path, segments, strict=True))
            if all(part in {"{}", segment} for part, segment in pairs):
                return page, [segment for part, segment in pairs if part == "{}"]
    raise NotFound("there is no such page here")


def _trouble(visit: Visit, error: DetentError) -> Response:
    """What went wrong, as a page of the console; after a form, the page that it was sent from says it."""
    return visit.page(
        "trouble.html", "That did not work", status=status_of(error), error=str(error), kind=type(error).__name__
    )


def status_of(error: DetentError) -> int:
    """The status of an answer that is an error."""
    if isinstance(error, TooManyTries):
        return 429
    return 403 if isinstance(error, Denied) else encode_problem(error)[0]


def _line(visit: Visit, form: Form, outcome: str) -> dict[str, object]:
    """What the log says of a change: who asked for what, and what became of it, with how many messages;
    nothing of what a message holds."""
    return {
        "caller": visit.session.caller.name,
        "change": "/".join(visit.request.path.split("/")[2:])[:200],
        "about": form.text("about")[:200],
        "outcome": outcome,
        "said": visit.said,
    }
