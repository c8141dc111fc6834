"""The application: finds out who asks, hands the request to the part that answers it, and turns errors into answers."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Final, Protocol

from detent.errors import DetentError
from detent.remote import wire
from detent.server import sigv4
from detent.server.access import ANYBODY, NOBODY, Caller
from detent.server.http import JSON_BYTES_MAX, Receive, Request, Response, Scope, Send
from detent.server.keys import KeyRing, Unauthenticated
from detent.server.tracing import Tracing

RETRY_AFTER_S: Final = 1
"""What a client is told to wait when too much waits already."""

PATH_LOGGED_MAX: Final = 200
"""Characters of a path that go into the log."""

logger = logging.getLogger("detent.server")


class Part(Protocol):
    """A part of the server: it says which requests are its own, and answers them."""

    name: str

    def owns(self, request: Request) -> bool:
        """Whether this request is for this part; by method, path and headers alone."""
        ...

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Answer it. A `DetentError` becomes the answer that says so."""
        ...

    def refuse(self, request: Request, error: DetentError) -> Response:
        """How this part says that something is wrong."""
        ...

    async def close(self) -> None:
        """The server stops: answer those who wait, and end what runs in the background."""
        ...


class Counting(Protocol):
    """Who counts the requests."""

    def request(self, part: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        ...


class Application:
    """All parts behind one port, as ASGI. Without keys, anybody may do anything."""

    def __init__(
        self,
        parts: list[Part],
        *,
        keys: KeyRing | None = None,
        public: frozenset[str] = frozenset(),
        counting: Counting | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._parts = parts
        self._keys = keys
        self._public = public
        self._counting = counting
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        request = Request(scope, receive)
        part = next((part for part in self._parts if part.owns(request)), None)
        if self._tracing is None:
            response = await self._answer(request, part)
        else:
            with self._tracing.span(request) as end:
                response = await self._answer(request, part)
                end(response.status)
        await response.send(send)
        self._note(request, "none" if part is None else part.name, response.status, time.monotonic() - began)

    async def _answer(self, request: Request, part: Part | None) -> Response:
        try:
            request.check()
            caller = await self._caller(request)
            if part is None:
                return problem(404, "NotFound", f"there is no {request.method} {request.path} here")
            return await part.answer(request, caller)
        except DetentError as error:
            return refusal(error) if part is None else part.refuse(request, error)

    async def _caller(self, request: Request) -> Caller:
        """Who asks: by a bearer token, or by a signature over the whole request."""
        if self._keys is None:
            return ANYBODY
        if request.path in self._public:
            return NOBODY
        given = request.headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        if kind.lower() == "bearer":
            return self._keys.by_token(token.strip())
        if sigv4.is_signed(request):
            return sigv4.caller_of(request, await request.body(JSON_BYTES_MAX), self._keys, datetime.now(UTC))
        raise Unauthenticated("this server wants to know who asks: send a bearer token, or sign the request")

    def _note(self, request: Request, part: str, status: int, seconds: float) -> None:
        """One line for each request, and nothing of what it carried."""
        if self._counting is not None:
            self._counting.request(part, request.method, status, seconds)
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                "request",
                extra={
                    "client": request.client,
                    "method": request.method[:16],
                    "path": request.path[:PATH_LOGGED_MAX],
                    "status": status,
                    "ms": round(seconds * 1000, 1),
                },
            )


def refusal(error: DetentError) -> Response:
    """An error as Detent's own API says it."""
    status, body = wire.encode_problem(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in {429, 503} else {}
    if isinstance(error, Unauthenticated):
        status, headers = 401, {"www-authenticate": 'Bearer realm="detent"'}
    return Response(body, status=status, type=wire.PROBLEM_TYPE, headers=headers)


def problem(status: int, name: str, message: str) -> Response:
    """An error that is no exception."""
    return Response.json({"error": name, "message": message}, status)
