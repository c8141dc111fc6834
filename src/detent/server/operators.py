"""What operators and their tools ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from detent.errors import Denied, DetentError, Unavailable
from detent.server.access import Caller
from detent.server.app import HEALTH, refusal
from detent.server.http import HttpRequest, Response
from detent.server.metrics import Metrics
from detent.server.metrics_state import QUEUES_SHOWN, StoreState, look

if TYPE_CHECKING:
    from detent.engine import Trouble
    from detent.store import AsyncStore

logger = logging.getLogger("detent.server")

READY, METRICS = "/readyz", "/metrics"

LOCALSTACK: Final = "/_localstack/health"
"""Where set-ups that were made for LocalStack ask whether SQS is there."""

STORE: Final = "store"
"""What a grant on metrics names: there is one page of them."""

READY_S: Final = 2.0
"""How long the store may take to say that it is there."""

LOOK_S: Final = 8.0
"""How long a look at the store may take for a page of metrics: Prometheus gives a scrape 10 seconds."""

STUCK_S: Final = 30.0
"""How long commits may fail, or one may take, before the server calls itself dead. An object store that is away for a
moment is waited for: a new process would find it away, too."""

PROBES: Final = frozenset({HEALTH, READY, METRICS, LOCALSTACK})
"""Asked every few seconds, so that the log has them only when their answer changes."""

PUBLIC: Final = frozenset({HEALTH, READY, LOCALSTACK})
"""Asked by load balancers and supervisors, which have no key; they say nothing about what is stored."""


FENCED: Final = "another process owns the store, and this server commits no more"

FULL: Final = "new messages: the disk of the store is full; what makes room goes on"
"""A server whose disk is full stays ready: acknowledging and trimming are what makes room."""


class Committing(Protocol):
    """What says whether a store can be written: its engine."""

    def trouble(self) -> Trouble | None:
        """Why it does not commit now."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing but what makes room."""
        ...


class Operators:
    """The pages ``/healthz``, ``/readyz`` and ``/metrics``, and LocalStack's page of health."""

    name = "operators"

    def __init__(
        self, store: AsyncStore, metrics: Metrics, engine: Committing, queues_shown: int = QUEUES_SHOWN
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._engine = engine
        self._queues_shown = queues_shown
        self.draining = False
        self._looking = asyncio.Lock()  # one page at a time: who asks more often waits

    def owns(self, request: HttpRequest) -> bool:
        """By its path."""
        return request.path in PROBES

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer one page."""
        if request.method not in {"GET", "HEAD"}:
            return Response.json({"error": "Invalid", "message": f"{request.path} is read with GET"}, 405)
        if request.path == HEALTH:
            return self._alive()
        if request.path == READY:
            return await self._ready()
        if request.path == LOCALSTACK:
            await self._ready()
            return Response.json({"services": {"sqs": "running"}})
        _require_metrics(caller)
        async with self._looking:
            state = await self._look()
            engine = self._engine
            make = partial(self._metrics.page, state, engine.trouble(), is_full=engine.is_full)
            page = await asyncio.to_thread(make)  # a large one takes a tenth of a second
        return Response(page, type=CONTENT_TYPE_LATEST)

    async def _look(self) -> StoreState | None:
        """The store, if it answers. Where it does not, the page says so, and what the server itself has counted."""
        try:
            return await asyncio.wait_for(look(self._store, self._metrics.now_ms, self._queues_shown), LOOK_S)
        except (DetentError, TimeoutError) as error:
            logger.warning("the metrics of this scrape have nothing of the store, which does not answer: %r", error)
            return None

    def _alive(self) -> Response:
        """Whether this process is of use, or a supervisor should start another one."""
        trouble = self._engine.trouble()
        if trouble is not None and trouble.is_final:
            raise Unavailable(f"{FENCED}: {trouble.reason}")
        if trouble is not None and trouble.seconds >= STUCK_S:
            raise Unavailable(f"nothing could be committed for {trouble.seconds:.0f} s: {trouble.reason}")
        return Response.json({"status": "alive"})

    async def _ready(self) -> Response:
        """Whether a transaction would go through: the owner answers, commits, and is not about to stop."""
        if self.draining:
            raise Unavailable("the server is shutting down")
        trouble = self._engine.trouble()
        if trouble is not None and trouble.is_final:
            raise Unavailable(f"{FENCED}: {trouble.reason}")
        if trouble is not None and trouble.seconds >= READY_S:
            raise Unavailable(f"the store takes no commits since {trouble.seconds:.0f} s: {trouble.reason}")
        try:
            await asyncio.wait_for(self._store.unmatched(), READY_S)
        except TimeoutError as error:
            raise Unavailable(f"the store does not answer within {READY_S:.0f} s") from error
        except DetentError as error:  # whatever it is: load balancers know no status but 503
            raise Unavailable(f"the store takes no transactions: {error}") from error
        if self._engine.is_full:
            return Response.json({"status": "ready", "refuses": FULL})
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
    if not caller.may("read", "metrics", STORE):
        raise Denied(
            f"{caller.name} may not read the metrics: that takes the grant read:metrics:*, which "
            "`detent token create NAME --preset metrics` gives"
        )
