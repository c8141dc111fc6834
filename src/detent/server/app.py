"""The application: finds out who asks, hands the request to the part that answers it, and turns errors into answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar, runtime_checkable

import msgspec

from detent import spans
from detent.errors import Denied, DetentError, Fenced, NotOwner, OutcomeUnknown, Unavailable
from detent.remote import rights, wire
from detent.remote.handing import hand_over
from detent.server import sigv4
from detent.server.access import UNCHECKED, UNKNOWN, Caller
from detent.server.http import JSON_BYTES_MAX, HttpRequest, Receive, Response, Scope, Send, WrongEncoding
from detent.server.keys import KeyRing, Unauthenticated
from detent.server.tracing import Tracing

RETRY_AFTER_S: Final = 1
"""What a client is told to wait when too much waits already."""

HEALTH: Final = "/healthz"
"""Whether the process lives, whatever else it may do."""

LEADER_HEADER: Final = "detent-leader"
"""The URL of the server that owns the store, in answers of one that does not."""

PATH_LOGGED_MAX: Final = 200
"""Characters of a path that go into the log."""

HOST_SHOWN_MAX: Final = 100
"""Characters of a foreign name that go into the answer which refuses it."""

FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
"""What a browser says of a request that a page of another origin makes. A site is all ports of a machine, so even the
same one does not make it ours."""

FAILED: Final = "the server failed to answer this; its log says why"

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("detent.server")


class Part(Protocol):
    """A part of the server: it says which requests are its own, and answers them."""

    name: str

    def owns(self, request: HttpRequest) -> bool:
        """Whether this request is for this part; by method, path and headers alone."""
        ...

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer it. A `DetentError` becomes the answer that says so."""
        ...

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """How this part says that something is wrong."""
        ...

    async def close(self) -> None:
        """The server stops: answer those who wait, and end what runs in the background."""
        ...


@runtime_checkable
class Gate(Protocol):
    """A part that finds out by itself who asks, because its clients have no keys in hand: they are browsers."""

    def who_asks(self, request: HttpRequest) -> Caller:
        """The caller; `Denied` if this must not be answered at all."""
        ...


class Counting(Protocol):
    """Who counts the requests."""

    def request(self, part: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        ...


class ServerApplication:
    """All parts behind one port, as ASGI. Without keys, any caller may do anything; then `hosts` says which values of
    the header `Host` a request may have. Of `probes`, which tools ask all the time, the log has what is new."""

    def __init__(
        self,
        parts: list[Part],
        *,
        keys: KeyRing | None = None,
        public: frozenset[str] = frozenset(),
        probes: frozenset[str] = frozenset(),
        hosts: Callable[[str], bool] | None = None,
        counting: Counting | None = None,
        tracing: Tracing | None = None,
        refusing: Callable[[], NotOwner | None] = lambda: None,
    ) -> None:
        """`refusing` says why this server may not answer for the store now, if it may not."""
        self._refusing = refusing
        self._parts = parts
        self._keys = keys
        self._public = public
        self._probed = dict.fromkeys(probes, 200)  # the status of each one's last answer
        self._hosts = hosts
        self._counting = counting
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. An unforeseen failure is answered too, with nothing but that it happened."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        request = HttpRequest(scope, receive)
        part: Part | None = None
        response: Response | None = None
        try:
            part = next((part for part in self._parts if part.owns(request)), None)
            # What it publishes goes on with its trace. Set in any case: the request before may have begun this task.
            spans.asked.set(spans.context_of(request.headers))
            response = await self._traced(request, part)
            await hand_over(response.send, scope, receive, send, response.undo)
        except Exception:
            if response is not None and response.started:
                self._note(request, part, response.status, began)
                raise
            logger.exception("a request failed")
            response = _refuse(request, part, DetentError(FAILED))
            await response.send(send)
        self._note(request, part, response.status, began)

    async def _traced(self, request: HttpRequest, part: Part | None) -> Response:
        if self._tracing is None:
            return await self._answer(request, part)
        with self._tracing.span(request) as end:
            response = await self._answer(request, part)
            end(response.status)
        return response

    async def _answer(self, request: HttpRequest, part: Part | None) -> Response:
        caller: Caller | None = None
        try:
            request.check()
            caller = await self._caller(request, part)
            request.caller = caller.name
            request.recheck = partial(self._caller, request, part)
            if part is None:
                return problem(404, "NotFound", f"there is no {request.method} {request.path} here")
            self._require_owner(request)
            response = await part.answer(request, caller)
            if request.method == "GET":
                self._require_owner(request)  # what was read may be older by now than what the next owner has
            return response
        except DetentError as error:
            if isinstance(error, Fenced | Unavailable) and not isinstance(error, OutcomeUnknown):
                error = self._refusing() or error  # nothing was applied, and here it cannot be
            return _refuse(request, part, rights.told(caller, error))

    def _require_owner(self, request: HttpRequest) -> None:
        refused = None if request.path == HEALTH else self._refusing()
        if refused is not None:
            raise refused

    async def _caller(self, request: HttpRequest, part: Part | None) -> Caller:
        """Who asks: by a bearer token, by a signature over the whole request, or as the part says."""
        keys = self._keys
        if isinstance(part, Gate):
            return _known(part.who_asks, request)
        if keys is None or request.path in self._public:
            self._check_page(request)
            return UNCHECKED if keys is None else UNKNOWN
        given = request.headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        if kind.lower() == "bearer":
            return _known(keys.by_token, token.strip())
        if sigv4.is_signed(request):
            claim = _known(sigv4.claim_of, request, keys, datetime.now(UTC))
            body = await request.body(JSON_BYTES_MAX)
            return _known(sigv4.verify, request, claim, body, keys)
        raise Unauthenticated("this server wants to know who asks: send a bearer token, or sign the request")

    def _check_page(self, request: HttpRequest) -> None:
        """`Denied` to what a browser of this machine sends for another site's page, where no secret keeps it out: a
        page of another origin, or one that has made its own name lead to this machine."""
        if is_foreign(request):
            raise Denied(
                "a browser sent this for a page of another origin: give the server keys (`detent token create`, "
                "--keys) and have the page send a token"
            )
        host = request.headers.get("host", "")
        if self._hosts is not None and not self._hosts(host):
            raise Denied(
                f"without keys this server answers to the names of its own machine, not to {host[:HOST_SHOWN_MAX]!r}: "
                "ask for localhost or 127.0.0.1, or give it keys (`detent token create`, --keys)"
            )

    def _note(self, request: HttpRequest, part: Part | None, status: int, began: float) -> None:
        """One line for each request, and nothing of what it carried."""
        seconds = time.monotonic() - began
        if self._counting is not None:
            self._counting.request("none" if part is None else part.name, request.method, status, seconds)
        level = logging.INFO
        if (before := self._probed.get(request.path)) is not None:
            self._probed[request.path] = status
            level = logging.DEBUG if status == before else logging.INFO
        if logger.isEnabledFor(level):
            who = {"caller": request.caller} if request.caller else {}
            logger.log(
                level,
                "request",
                extra={
                    "client": request.client,
                    **who,
                    "method": request.method[:16],
                    "path": request.path[:PATH_LOGGED_MAX],
                    "status": status,
                    "ms": round(seconds * 1000, 1),
                },
            )


def is_foreign(request: HttpRequest) -> bool:
    """Whether a browser says that another origin's page makes this request. Other clients say nothing of the kind."""
    headers = request.headers
    if headers.get("sec-fetch-site") in FOREIGN_SITES:
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    _, _, place = origin.partition("://")  # the scheme does not matter: a proxy in front may speak another one
    return not place or place.lower() != headers.get("host", "").lower()


def _known(find: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Ask the keys. What is wrong with themselves, and where they are, is the operator's affair and no stranger's."""
    try:
        return find(*arguments, **options)
    except Denied:
        raise
    except Exception as error:
        logger.exception("the keys cannot be used")
        raise Unavailable("the server cannot tell now who asks; its log says why") from error


def _refuse(request: HttpRequest, part: Part | None, error: DetentError) -> Response:
    return refusal(error) if part is None else part.refuse(request, error)


def refusal(error: DetentError) -> Response:
    """An error as Detent's own API says it."""
    if isinstance(error, WrongEncoding):
        return problem(415, "WrongType", str(error))
    status, body = wire.encode_problem(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in {429, 503} else {}
    if isinstance(error, NotOwner) and error.leader:
        headers[LEADER_HEADER] = error.leader
    if isinstance(error, Unauthenticated):
        status, headers = 401, {"www-authenticate": 'Bearer realm="detent"'}
    return Response(body, status=status, type=wire.PROBLEM_TYPE, headers=headers)


def problem(status: int, name: str, message: str) -> Response:
    """An error that is not an exception."""
    return Response(msgspec.json.encode(wire.Problem(name, message)), status=status, type=wire.PROBLEM_TYPE)
