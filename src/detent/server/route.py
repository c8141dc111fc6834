"""A route of the HTTP API: what is asked, who may ask it, what travels; one call of it; and long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from detent.durations import milliseconds
from detent.errors import Denied, Invalid, LimitExceeded
from detent.server import tracing
from detent.server.access import EVERYTHING, RIGHTS, Caller, Kind, Right
from detent.server.http import HttpRequest, Response
from detent.server.limits import ClaimSizes
from detent.server.models import AnswerModel
from detent.server.receipts import QueueNumbers
from detent.server.series import Series

if TYPE_CHECKING:
    from detent.store import AsyncStore


import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Self


class Poll:
    """One answer that waits: until its time is over, its client has gone, or the server closes.

    >>> async with Poll(request, closing, wait_ms) as poll:
    ...     while not found and poll.left_ms:
    ...         await poll.race(queue.wait("5s"))
    """

    def __init__(self, request: HttpRequest, closing: asyncio.Event, wait_ms: int) -> None:
        self._request = request
        self._closing = closing
        self._deadline = time.monotonic() + wait_ms / 1000
        self._ends: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._ends = [asyncio.create_task(self._request.disconnected()), asyncio.create_task(self._closing.wait())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends:
            end.cancel()
        await asyncio.wait(self._ends)

    @property
    def abandoned(self) -> bool:
        """Whether the client has gone, or this server stops before it can answer."""
        return any(end.done() for end in self._ends)

    @property
    def left_ms(self) -> int:
        """How long there still is to wait."""
        return 0 if self.abandoned else max(0, int((self._deadline - time.monotonic()) * 1000))

    async def race(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something wait that registers a waiter somewhere; it has taken it back when this returns."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, *self._ends], return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()


ARROW: Final = "application/vnd.apache.arrow.stream"

IDEMPOTENCY_KEY: Final = "idempotency-key"


Body = TypeVar("Body")
Query = TypeVar("Query")


@dataclass(frozen=True, slots=True)
class Service:
    """What all calls share."""

    store: AsyncStore
    numbers: QueueNumbers
    closing: asyncio.Event
    wait_ms_max: int
    sizes: ClaimSizes
    series: Series | None = None


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[Body, Query]):
    """One request whose route is found and whose caller may ask it: the name in its path, its body and its query."""

    service: Service
    route: Route
    request: HttpRequest
    caller: Caller
    name: str
    body: Body
    query: Query

    @property
    def store(self) -> AsyncStore:
        """The store."""
        return self.service.store

    def wait_ms(self, wait: str | float | None) -> int:
        """How long the caller wants to wait; `LimitExceeded` if that is too long for a connection to stay silent."""
        wanted = 0 if wait is None else milliseconds(wait)
        if wanted > self.service.wait_ms_max:
            raise LimitExceeded(f"a request waits at most {self.service.wait_ms_max} ms, not {wanted}: ask again then")
        return wanted

    def poll(self, wait_ms: int) -> Poll:
        """Wait for something, as long as the caller does."""
        return Poll(self.request, self.service.closing, wait_ms)

    async def still_allowed(self) -> None:
        """`Denied` if the caller's key was revoked, or lost its rights, since the request came: for an answer that
        takes its time, before anything is given out. Who asks now, the application knows (`Request.recheck`)."""
        if self.request.recheck is not None:
            self.route.authorize(await self.request.recheck(), self.name)

    def traced(self, count: int) -> None:
        """How many messages this was about, for tracing."""
        tracing.note(self.request, tracing.BATCH_COUNT, count)

    def idempotency_key(self) -> str | None:
        """The key that the request's header gives the one message in it."""
        key = self.request.headers.get(IDEMPOTENCY_KEY)
        if key is not None and not (key.isascii() and key.isprintable() and key):
            raise Invalid("an Idempotency-Key is printable ASCII text; others go into the message's dedup_key")
        return key

    def refuse_idempotency_key(self, what: str) -> None:
        """A caller that sends a key relies on it: where there is none, it has to know."""
        if IDEMPOTENCY_KEY in self.request.headers:
            raise Invalid(f"{what} takes no Idempotency-Key: check and set a register in the same transaction instead")


Answer = AnswerModel | Response
Handler = Callable[[ApiCall[Any, Any]], Awaitable[Answer]]

NAMED: Final[tuple[Kind, ...]] = ("queue", "journal", "consumer", "schedule")
"""Kinds of what a path can name."""

Need = Right | Literal["any"] | None
"""The right that a route needs on what its path names, or on the whole store if it names nothing; "any" is any of them,
None is for routes that look for themselves, with the body or the list before them."""


@dataclass(frozen=True)
class Route:
    """One line of the API's table. The rest of what is known of it is its handler's docstring."""

    method: str
    path: str
    handler: Handler
    summary: str
    need: Need
    answer: Any
    body: Any = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    errors: tuple[int, ...] = (404,)
    bulk: Handler | None = None
    """Who takes a body that is an Arrow stream."""
    arrow: bool = False
    """Whether it can answer with an Arrow stream."""

    @cached_property
    def kind(self) -> Kind | None:
        """What the name in the path is of."""
        return next((kind for kind in NAMED if f"{{{kind}}}" in self.path), None)

    @cached_property
    def takes_key(self) -> bool:
        """Whether the header Idempotency-Key means something here."""
        return self.body is not None and self.path.endswith("/messages") and self.bulk is None

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """What takes the body apart."""
        return msgspec.json.Decoder(self.body)

    def authorize(self, caller: Caller, name: str) -> None:
        """`Denied` unless the caller may ask this of what the path names."""
        if self.need is None:
            return
        if self.need == "any":
            if self.kind is not None and not may_see(caller, self.kind, name):
                raise Denied(f"{caller.name} may not look at the {self.kind} {name!r}")
        elif self.kind is None:
            caller.require_everywhere(self.need)
        else:
            caller.require(self.need, self.kind, name)


def may_see(caller: Caller, kind: Kind, name: str) -> bool:
    """Whether a caller has anything to do with a queue, journal or schedule."""
    return any(caller.may(right, kind, name) for right in RIGHTS)


def patterns_of(caller: Caller, kind: Kind) -> list[str]:
    """The patterns of the names with which a caller has anything to do, as `may_see` tells."""
    found = {grant.pattern for grant in caller.grants if grant.kind in {kind, EVERYTHING}}
    return [EVERYTHING] if EVERYTHING in found else sorted(found)


def may_everywhere(caller: Caller, right: Right) -> bool:
    """Whether a caller has a right on the whole store."""
    try:
        caller.require_everywhere(right)
    except Denied:
        return False
    return True
