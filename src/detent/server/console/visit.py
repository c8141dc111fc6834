"""One visit to a page: who came, what was asked, and the ways to answer it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec

from detent.errors import Denied, Invalid
from detent.server.access import Kind, Right
from detent.server.console.entrance import Session, cookies
from detent.server.console.render import Clock, Links, render
from detent.server.console.wording import body_bytes, line_text, visible_text
from detent.server.http import HttpRequest, Response

if TYPE_CHECKING:
    from detent.server.api import Api
    from detent.server.console.entrance import Entrance

FORM_BYTES_MAX: Final = 17 << 20
"""A form may carry the largest body that a message may have, and its other fields."""

FORM_FIELDS_MAX: Final = 2_000

HTML: Final = "text/html; charset=utf-8"

PARTIAL_HEADER: Final = "hx-request"
"""What htmx sends with its requests: they get the part of a page that changes."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with none at all, browsers send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What each answer of the console says to browsers."""

LOOK_COOKIE: Final = "detent-look"
"""What a browser has chosen: a zone and colours, with a bar between them."""

THEMES: Final = ("light", "dark")


@dataclass(frozen=True, slots=True)
class Console:
    """What all visits share."""

    api: Api
    entrance: Entrance
    links: Links
    place: str
    """What the store is called on its pages."""
    trouble: Callable[[], str]
    """Why the store takes no commits; nothing, where it does or cannot say."""


class Visit:
    """One request of a browser that has a session."""

    def __init__(self, console: Console, request: HttpRequest, session: Session) -> None:
        self.console = console
        self.request = request
        self.session = session
        self.names: list[str] = []
        self.said = ""
        self.link = console.links

    @property
    def name(self) -> str:
        """The name in the path."""
        return self.names[0]

    @cached_property
    def query(self) -> dict[str, str]:
        """The fields of the address, without those that are empty."""
        return {name: value for name, value in self.request.query().items() if value}

    def asked(self, *names: str) -> dict[str, str]:
        """Some fields of the address; those that are not there are empty."""
        return {name: self.query.get(name, "") for name in names}

    @cached_property
    def _look(self) -> tuple[str, str]:
        zone, _, theme = cookies(self.request).get(LOOK_COOKIE, "").partition("|")
        return zone, theme if theme in THEMES else ""

    @cached_property
    def clock(self) -> Clock:
        """How this browser wants its times."""
        return Clock(self._look[0])

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The pages that lead to all others, and their names."""
        found = [
            ("", "Overview"), ("queues", "Queues"), ("journals", "Journals"), ("running", "Running"),
            ("schedules", "Schedules"), ("ledgers", "Ledgers"),
        ]  # fmt: skip
        if self.may_everywhere("read"):
            found.append(("store", "Store"))
        if self.console.entrance.takes_tokens and self.may_everywhere("admin"):
            found.append(("keys", "Keys"))
        return found

    def line(self, value: Any) -> str:
        """The beginning of a text or of bytes in an answer."""
        return line_text(body_bytes(value))

    def line_of(self, message: Any) -> str:
        """The beginning of a message's body, or where its payload is."""
        if message.body is not msgspec.UNSET:
            return line_text(body_bytes(message.body))
        return "" if message.uri is msgspec.UNSET else visible_text(message.uri)

    @property
    def is_partial(self) -> bool:
        """Whether htmx asks for the part of the page that changes."""
        return PARTIAL_HEADER in self.request.headers

    def may(self, right: Right, kind: Kind, name: str) -> bool:
        """Whether the visitor has a right."""
        return self.session.caller.may(right, kind, name)

    def may_everywhere(self, right: Right) -> bool:
        """Whether the visitor has a right on the whole store."""
        try:
            self.session.caller.require_everywhere(right)
        except Denied:
            return False
        return True

    async def ask(self, method: str, path: str, name: str = "", *, query: Any = None, body: Any = None) -> Any:
        """Ask the API, as this visitor: rights, limits and answers are its own. `body` and `query` are what a request
        would carry; fields of the query that are empty are left out."""
        asked = {field: value for field, value in (query or {}).items() if value != ""}
        return await self.console.api.ask(self.request, self.session.caller, method, path, name, query=asked, body=body)

    # -- answers ------------------------------------------------------------------------------------------------

    def page(self, template: str, title: str, *, status: int = 200, **values: Any) -> Response:
        """A page, or the part of it that htmx asked for."""
        notices: list[str] = []
        if not self.is_partial:
            notices = list(self.session.notices)
            self.session.notices.clear()
        body = render(
            template,
            visit=self,
            link=self.link,
            clock=self.clock,
            title=title,
            notices=notices,
            theme=self._look[1],
            here=self.request.raw_path.decode("latin-1"),
            trouble_of_store=self.console.trouble(),
            **values,
        )
        return Response(body, status=status, type=HTML, headers=HEADERS)

    def once(self) -> str:
        """What makes one form the same form, however often it is sent."""
        return secrets.token_urlsafe(12)

    @property
    def csrf(self) -> str:
        """What proves that a form is of this session."""
        return self.session.csrf

    def go(self, page: str, notice: str = "", *, cookie: str = "") -> Response:
        """Show another page after a change, and say what became of it."""
        if notice:
            self.session.notices.append(notice)
            self.said = notice
        headers = {**HEADERS, "location": page}
        if cookie:
            headers["set-cookie"] = cookie
        return Response(status=303, type=HTML, headers=headers)


class Form:
    """The fields of a form. `Invalid` says which one is wrong."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    @classmethod
    async def of(cls, request: HttpRequest) -> Form:
        """What a request carries."""
        if request.content_type != "application/x-www-form-urlencoded":
            raise Invalid("a form of the console is sent as application/x-www-form-urlencoded")
        data = await request.body(FORM_BYTES_MAX)
        try:
            return cls(
                parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict")
            )
        except ValueError as error:
            raise Invalid(f"this is not a form: {error}") from error

    def text(self, name: str) -> str:
        """A field; empty if it is not there."""
        return next((value for known, value in self._fields if known == name), "")

    def texts(self, name: str) -> list[str]:
        """All fields of a name, such as those of boxes that are ticked."""
        return [value for known, value in self._fields if known == name]


Handler = Callable[[Visit], Awaitable[Response]]
ChangeHandler = Callable[[Visit, Form], Awaitable[Response]]


class Page:
    """One address of the console: what shows it, and what takes its form. ``{}`` in the path is a name."""

    __slots__ = ("change", "path", "show")

    def __init__(self, path: str, show: Handler | None = None, change: ChangeHandler | None = None) -> None:
        self.path = path
        self.show = show
        self.change = change
