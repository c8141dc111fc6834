"""Who is at the console: a browser's login, its session, and the proof that a change comes from the console's own page.

A key's token comes once, in the body of the login form, and is forgotten. The browser gets a random id in a cookie
that it sends below the console's path only; the server keeps a digest of the id. So a cookie that leaks opens neither
the API nor the other protocols, and the token is in no page, address, cookie or log.

Without keys the server is as open as its API: to the browsers of this machine, under its own names.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from detent.errors import Denied
from detent.server.access import UNCHECKED, UNKNOWN, Caller
from detent.server.app import FOREIGN_SITES, is_foreign
from detent.server.http import HttpRequest
from detent.server.keys import Key, KeyRing, Unauthenticated

IDLE_S: Final = 3600.0
"""A session that is not used for so long has ended."""

LIFE_S: Final = 12 * 3600.0
"""And so has one that is so old, used or not: a working day."""

SESSIONS_MAX: Final = 1_000
"""Sessions at once; beyond it, the one that was not used for the longest time ends."""

TRIES: Final = 5
TRIES_S: Final = 60.0
"""Wrong tokens from one address within a minute, after which no token is tried."""

ADDRESSES_MAX: Final = 10_000
"""Addresses whose wrong tokens are remembered."""

NOTICES_MAX: Final = 10
"""Messages to a session that no page has shown yet."""

DONE_MAX: Final = 1_000
"""Forms of a session that are remembered as sent, so that the same one sent again acts once."""

HOST_SHOWN_MAX: Final = 100


class TooManyTries(Denied):
    """Wrong tokens came from one address, one after another."""


@dataclass(slots=True, eq=False)
class Session:
    """One browser that has logged in, or any browser of a console without keys."""

    caller: Caller
    csrf: str
    began_s: float
    used_s: float
    named: bool = True
    """Whether it came with a key, and can log out."""
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=NOTICES_MAX))
    """What became of changes, for the next page."""
    done: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Forms that were sent, by the token that each has, and the page that followed."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a form is taken: the same one that comes again waits, and finds that it was sent."""

    def remember(self, once: str, page: str) -> None:
        """A form was sent."""
        self.done[once] = page
        while len(self.done) > DONE_MAX:
            self.done.popitem(last=False)


class Entrance:
    """The sessions of a console. With `keys` a browser logs in with a token; with a `code` it comes by a link that
    opens one session; with neither, any browser of this machine may come in."""

    def __init__(
        self,
        *,
        keys: KeyRing | None = None,
        hosts: Callable[[str], bool] | None = None,
        path: str = "/console",
        secure: bool = False,
        by_link: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._keys = keys
        self._hosts = hosts
        self._secure = secure
        self._by_link = by_link
        self._clock = clock
        self._codes: set[str] = set()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        now = clock()
        self._open = Session(UNCHECKED, secrets.token_urlsafe(32), now, now, named=False)

    @property
    def takes_tokens(self) -> bool:
        """Whether a browser logs in with a key."""
        return self._keys is not None

    def listed_keys(self) -> list[Key]:
        """The keys of the server."""
        return [] if self._keys is None else self._keys.listed()

    # -- who asks -----------------------------------------------------------------------------------------------

    def check_page(self, request: HttpRequest) -> None:
        """`Denied` to requests under a foreign name, and to those that another origin's page makes. Another page may
        lead here, as a link does: its browser opens the page, and nothing of it reaches the other origin."""
        host = request.headers.get("host", "")
        if self._hosts is not None and not self._hosts(host):
            raise Denied(
                f"this console answers to the names of its own machine, not to {host[:HOST_SHOWN_MAX]!r}: ask for "
                "localhost or 127.0.0.1"
            )
        if is_foreign(request) and not _leads_here(request):
            raise Denied("a browser sent this for a page of another origin: use the console's own pages")

    def session(self, request: HttpRequest) -> Session | None:
        """The session of a request, if it has one that still counts."""
        if self._keys is None and not self._by_link:
            return self._open
        identity = self._cookie(request)
        if not identity:
            return None
        digest = _digest(identity)
        session = self._sessions.get(digest)
        if session is None:
            return None
        if not self._counts(session):
            del self._sessions[digest]
            return None
        session.used_s = self._clock()
        self._sessions.move_to_end(digest)
        return session

    def _counts(self, session: Session) -> bool:
        now = self._clock()
        if now - session.used_s > IDLE_S or now - session.began_s > LIFE_S:
            return False
        return self._keys is None or self._keys.still_knows(session.caller)

    def still(self, session: Session) -> bool:
        """Whether a session goes on: for an answer that takes its time."""
        if session is self._open:
            return True
        return self._counts(session) and any(known is session for known in self._sessions.values())

    def caller(self, request: HttpRequest) -> Caller:
        """Who asks; with no rights at all before a login."""
        self.check_page(request)
        session = self.session(request)
        return UNKNOWN if session is None else session.caller

    # -- coming and going ---------------------------------------------------------------------------------------

    def log_in(self, request: HttpRequest, token: str) -> str:
        """A new session for a token; the header that gives it to the browser. `Unauthenticated` if it is wrong,
        `TooManyTries` after too many wrong ones."""
        if self._keys is None:
            raise Unauthenticated("this console takes no tokens")
        address = request.client.rpartition(":")[0]
        self._check_tries(address)
        try:
            caller = self._keys.by_token(token.strip())
        except Unauthenticated:
            self._note_wrong(address)
            raise
        return self._begin(request, caller)

    def _check_tries(self, address: str) -> None:
        tries = self._wrong.get(address)
        while tries and self._clock() - tries[0] > TRIES_S:
            tries.popleft()
        if tries and len(tries) >= TRIES:
            raise TooManyTries("there were too many wrong tokens from this address: try again in a minute")

    def _note_wrong(self, address: str) -> None:
        self._wrong.setdefault(address, deque(maxlen=TRIES)).append(self._clock())
        self._wrong.move_to_end(address)
        while len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)

    def new_code(self) -> str:
        """A code that opens one session, for a link that this machine's user is shown."""
        code = secrets.token_urlsafe(32)
        self._codes.add(_digest(code))
        return code

    def enter(self, request: HttpRequest, code: str) -> str:
        """A new session for the code of a link, which is worth nothing after it."""
        digest = _digest(code)
        if digest not in self._codes:
            raise Unauthenticated("this link was used already: start `detent console` again for a new one")
        self._codes.discard(digest)
        return self._begin(request, UNCHECKED)

    def _begin(self, request: HttpRequest, caller: Caller) -> str:
        identity = secrets.token_urlsafe(32)
        now = self._clock()
        self._sessions[_digest(identity)] = Session(caller, secrets.token_urlsafe(32), now, now)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return self._header(request, identity)

    def log_out(self, request: HttpRequest) -> str:
        """End the session; the header that takes it from the browser."""
        self._sessions.pop(_digest(self._cookie(request)), None)
        return self._header(request, "", "; Max-Age=0")

    def _header(self, request: HttpRequest, identity: str, more: str = "") -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._cookie_name(request)}={identity}; Path={self.path}; HttpOnly; SameSite=Strict{secure}{more}"

    def _cookie_name(self, request: HttpRequest) -> str:
        """Browsers send a cookie to all ports of a machine, so each server's has a name of its own."""
        _, port = request.scope.get("server") or ("", 0)
        return f"{'__Secure-' if self._secure else ''}detent-session-{port}"

    def _cookie(self, request: HttpRequest) -> str:
        return cookies(request).get(self._cookie_name(request), "")

    # -- changes ------------------------------------------------------------------------------------------------

    @staticmethod
    def check_origin(request: HttpRequest) -> None:
        """`Denied` unless the request says that it comes from a page of the console's own origin, as browsers do."""
        headers = request.headers
        if is_foreign(request) or not ("origin" in headers or headers.get("sec-fetch-site") == "same-origin"):
            raise Denied("a change has to come from the console's own page: the request does not say its origin")

    def check_change(self, request: HttpRequest, session: Session, proof: str) -> None:
        """`Denied` unless a change comes from a form of this session, on a page of the console's own origin."""
        self.check_origin(request)
        if not hmac.compare_digest(proof.encode(), session.csrf.encode()):
            raise Denied("this form is of another session, or of none: load the page again, and send it from there")


def cookies(request: HttpRequest) -> dict[str, str]:
    """The cookies of a request; none if they cannot be read."""
    try:
        jar: SimpleCookie = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def _leads_here(request: HttpRequest) -> bool:
    """Whether a browser opens a page because of a link elsewhere: what it gets is shown to its user alone."""
    headers = request.headers
    return (
        request.method in {"GET", "HEAD"}
        and headers.get("sec-fetch-site") in FOREIGN_SITES
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and "origin" not in headers
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
