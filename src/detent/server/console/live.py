"""The bell: a stream of server-sent events that says that something has changed, and never what.

A page that hears it asks for its changing part again, with the rights of its session. What each visitor may see is
looked at about once a second, and only while a page listens: all pages of visitors with the same rights share the look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from detent.errors import DetentError, Unavailable
from detent.queue import surveying
from detent.server.access import EVERYTHING, Grant, Kind
from detent.server.console.entrance import Entrance, Session
from detent.server.console.visit import HEADERS
from detent.server.http import HttpRequest, Response
from detent.server.route import patterns_of
from detent.shard import operations as shards

if TYPE_CHECKING:
    from detent.store import AsyncStore

LOOK_S: Final = 1.0
"""How often the store is looked at while a page listens."""

LOOK_SHARE: Final = 20
REST_MAX_S: Final = 5.0
"""A look that takes long, because there are many queues, is followed by a rest of so many times its length, up to so
many seconds: what needs attention is on a page within ten."""

PING_S: Final = 10.0
"""How often a stream that has nothing to say says so, and its session is looked at: within this time a key that is
revoked ends its streams."""

KINDS: Final[tuple[Kind, ...]] = ("queue", "journal", "consumer")

LOOKED_MAX: Final = 1_000
"""Journals and consumers that a look sees, of each kind the first by name."""

STREAMS_MAX: Final = 100
"""Streams at once. A page that gets none asks for its part every few seconds."""

logger = logging.getLogger("detent.server.console")


class Patterns(NamedTuple):
    """The names that a visitor may see, of each kind."""

    queues: tuple[str, ...]
    journals: tuple[str, ...]
    consumers: tuple[str, ...]


class _Look:
    """What visitors with the same rights see: a count that grows with each change."""

    def __init__(self) -> None:
        self.changes = 0
        self.changed = asyncio.Condition()
        self.listeners = 0
        self.task: asyncio.Task[None] | None = None


class Bell:
    """All streams of a console."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._looks: dict[Patterns, _Look] = {}
        self._streams = 0
        self._closing = asyncio.Event()

    async def close(self) -> None:
        """End all streams."""
        self._closing.set()
        looks = list(self._looks.values())
        for look in looks:
            async with look.changed:
                look.changed.notify_all()
        tasks = [look.task for look in looks if look.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def listen(self, request: HttpRequest, entrance: Entrance, session: Session) -> Response:
        """A stream for one page; `Unavailable` if there are too many."""
        if self._streams >= STREAMS_MAX or self._closing.is_set():
            raise Unavailable("the console has as many live pages as it serves: this one asks every few seconds")
        headers = {**HEADERS, "x-accel-buffering": "no"}
        return Response(self._stream(request, entrance, session), type="text/event-stream", headers=headers)

    async def _stream(self, request: HttpRequest, entrance: Entrance, session: Session) -> AsyncIterator[bytes]:
        patterns = Patterns(*(tuple(patterns_of(session.caller, kind)) for kind in KINDS))
        gone = asyncio.create_task(request.disconnected())
        self._streams += 1
        look = self._join(patterns)
        try:
            yield b"retry: 3000\n\n"
            seen = look.changes
            while not gone.done() and not self._closing.is_set() and entrance.still(session):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_S), look.changed:
                        await look.changed.wait_for(lambda: look.changes != seen or self._closing.is_set())  # noqa: B023
                if gone.done() or self._closing.is_set() or not entrance.still(session):
                    return
                yield b"data: same\n\n" if look.changes == seen else b"data: changed\n\n"
                seen = look.changes
        finally:
            gone.cancel()
            self._streams -= 1
            self._leave(patterns, look)

    def _join(self, patterns: Patterns) -> _Look:
        look = self._looks.get(patterns)
        if look is None:
            look = self._looks[patterns] = _Look()
            look.task = asyncio.create_task(self._watch(look, patterns))
        look.listeners += 1
        return look

    def _leave(self, patterns: Patterns, look: _Look) -> None:
        look.listeners -= 1
        if look.listeners == 0:
            del self._looks[patterns]
            if look.task is not None:
                look.task.cancel()

    async def _watch(self, look: _Look, patterns: Patterns) -> None:
        """Look again and again, for as long as a page listens."""
        before: Any = None
        while True:
            began = time.monotonic()
            try:
                now: Any = await self._seen(patterns)
            except DetentError as error:
                now = str(error)  # the pages will say it better
            if before is not None and now != before:
                async with look.changed:
                    look.changes += 1
                    look.changed.notify_all()
            before = now
            await asyncio.sleep(max(LOOK_S, min(REST_MAX_S, LOOK_SHARE * (time.monotonic() - began))))

    async def _seen(self, patterns: Patterns) -> Any:
        """What visitors with these patterns would see change: the counts of queues, how far journals are, and how far
        consumers."""
        asked = [
            surveying.SurveyQueues(patterns=list(patterns.queues), limit=0),
            shards.DescribeConsumers(limit=LOOKED_MAX),
        ]
        found, consumers = await self._store.commit(asked)
        journals = await asyncio.to_thread(self._store.reader.extents_listed, LOOKED_MAX)
        return (
            found.totals,
            found.unmatched,
            [(one.name, one.next_offset, one.first_offset) for one in journals
             if _matches(one.name, patterns.journals)],
            [(one.name, one.paused, one.states) for one in map(_without_leases, consumers.consumers)
             if _matches(one.name, patterns.consumers)],
        )  # fmt: skip


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern == EVERYTHING or Grant("read", "*", pattern).allows("read", "*", name) for pattern in patterns)


def _without_leases(one: shards.ConsumerDescription) -> shards.ConsumerDescription:
    """A consumer as it is between two changes: what is left of a lease is another number at each look."""
    states = [msgspec.structs.replace(state, lease_ms=0) for state in one.states]
    return msgspec.structs.replace(one, states=states)
