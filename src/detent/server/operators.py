"""What operators and their tools ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from detent.errors import Denied, DetentError, Unavailable
from detent.server.access import Caller
from detent.server.app import HEALTH, refusal
from detent.server.http import HttpRequest, Response
from detent.server.metrics import Metrics
from detent.server.metrics_state import look

if TYPE_CHECKING:
    from detent.store import AsyncStore

READY, METRICS = "/readyz", "/metrics"

STORE: Final = "store"
"""What a grant on metrics names: there is one page of them."""

READY_S: Final = 2.0
"""How long the store may take to say that it is there."""

PUBLIC: Final = frozenset({HEALTH, READY})
"""Asked by load balancers and supervisors, which have no key; they say nothing about what is stored."""


class Operators:
    """The pages ``/healthz``, ``/readyz`` and ``/metrics``."""

    name = "operators"

    def __init__(self, store: AsyncStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self.draining = False
        self._looking = asyncio.Lock()  # one page at a time: who asks more often waits

    def owns(self, request: HttpRequest) -> bool:
        """By its path."""
        return request.path in {HEALTH, READY, METRICS}

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer one page."""
        if request.method not in {"GET", "HEAD"}:
            return Response.json({"error": "Invalid", "message": f"{request.path} is read with GET"}, 405)
        if request.path == HEALTH:
            return Response.json({"status": "alive"})
        if request.path == READY:
            return await self._ready()
        _require_metrics(caller)
        async with self._looking:
            state = await look(self._store, self._metrics.now_ms)
            page = await asyncio.to_thread(self._metrics.page, state)  # a large one takes a tenth of a second
        return Response(page, type=CONTENT_TYPE_LATEST)

    async def _ready(self) -> Response:
        """Whether a transaction would go through: the owner answers, and is not about to stop."""
        if self.draining:
            raise Unavailable("the server is shutting down")
        try:
            await asyncio.wait_for(self._store.unmatched(), READY_S)
        except TimeoutError as error:
            raise Unavailable(f"the store does not answer within {READY_S:.0f} s") from error
        except DetentError as error:  # whatever it is: load balancers know no status but 503
            raise Unavailable(f"the store takes no transactions: {error}") from error
        return Response.json({"status": "ready"})

    async def close(self) -> None:
        """From now on the server is not ready."""
        self.draining = True

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """In Detent's own form."""
        del request
        return refusal(error)


def _require_metrics(caller: Caller) -> None:
    """`Denied` unless the caller may read the metrics. They name everything in the store, and show no message."""
    if not caller.may("consume", "metrics", STORE):
        raise Denied(
            f"{caller.name} may not read the metrics: that takes the grant consume:metrics:*, which "
            "`detent token create NAME --preset metrics` gives"
        )
