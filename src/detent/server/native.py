"""Detent's own clients: `detent.open("https://...")` talks to this part, in the protocol of the owner's socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from detent.errors import DetentError
from detent.remote import wire
from detent.remote.app import is_native
from detent.server.access import Caller
from detent.server.app import problem, refusal
from detent.server.http import HttpRequest, Response
from detent.server.tracing import ERROR_TYPE, note

if TYPE_CHECKING:
    from detent.store import AsyncStore

TRANSACTIONS: Final = "/v1/transactions"


class NativePart:
    """Answers the wire protocol (see :mod:`detent.remote.wire`) for callers, each as far as it may."""

    name = "native"

    def __init__(self, store: AsyncStore) -> None:
        self._app = store.owner_app()

    def owns(self, request: HttpRequest) -> bool:
        """Whether this request is for this part."""
        return is_native(request.path)

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer it. Transactions come under their own type, which no page of a browser can send without asking."""
        if request.path == TRANSACTIONS and request.method == "POST" and request.content_type != wire.TRANSACTION_TYPE:
            return problem(415, "WrongType", f"transactions are sent as {wire.TRANSACTION_TYPE}")
        reply = await self._app.answer(request.scope, request.replay(), caller)
        return Response(reply.body, status=reply.status, type=reply.type, headers=reply.headers, undo=reply.undo)

    async def close(self) -> None:
        """Answer everybody who waits, and who asks again at once."""
        self._app.end_waits()

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """How the client library is told what is wrong."""
        note(request, ERROR_TYPE, type(error).__name__)
        return refusal(error)
