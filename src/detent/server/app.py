"""The application: finds out who asks, hands the request to the part that answers it, and turns errors into answers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from detent.errors import DetentError
from detent.remote import wire
from detent.server.access import ANYBODY, Caller
from detent.server.http import Receive, Request, Response, Scope, Send

if TYPE_CHECKING:
    from detent.store import AsyncStore

RETRY_AFTER_S: Final = 1
"""What a client is told to wait when too much waits already."""

logger = logging.getLogger("detent.server")


class Part(Protocol):
    """A part of the server: it says which requests are its own, and answers them."""

    def owns(self, request: Request) -> bool:
        """Whether this request is for this part; by method, path and headers alone."""
        ...

    async def answer(self, request: Request, caller: Caller) -> Response:
        """Answer it. A `DetentError` becomes the answer that says so."""
        ...

    def refuse(self, request: Request, error: DetentError) -> Response:
        """How this part says that something is wrong."""
        ...


class Application:
    """All parts behind one port, as ASGI."""

    def __init__(self, store: AsyncStore, parts: list[Part]) -> None:
        self.store = store
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        began = time.monotonic()
        response = await self._answer(request)
        await response.send(send)
        logger.info(
            "%s %s %s %d %.1f ms",
            request.client,
            request.method,
            request.path[:200].encode("unicode_escape").decode(),
            response.status,
            (time.monotonic() - began) * 1000,
        )

    async def _answer(self, request: Request) -> Response:
        part = next((part for part in self._parts if part.owns(request)), None)
        try:
            request.check()
            if part is None:
                return problem(404, "NotFound", f"there is no {request.method} {request.path} here")
            return await part.answer(request, ANYBODY)
        except DetentError as error:
            return refusal(error) if part is None else part.refuse(request, error)


def refusal(error: DetentError) -> Response:
    """An error as Detent's own API says it."""
    status, body = wire.encode_problem(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in {429, 503} else {}
    return Response(body, status=status, type=wire.PROBLEM_TYPE, headers=headers)


def problem(status: int, name: str, message: str) -> Response:
    """An error that is no exception."""
    return Response.json({"error": name, "message": message}, status)
