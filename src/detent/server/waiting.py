"""Long polls: answers that wait for something to come, for as long as their client does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from detent.server.http import Request


class Poll:
    """One answer that waits: until its time is over, its client has gone, or the server closes.

    >>> async with Poll(request, closing, wait_ms) as poll:
    ...     while not found and poll.left_ms:
    ...         await poll.race(queue.wait("5s"))
    """

    def __init__(self, request: Request, closing: asyncio.Event, wait_ms: int) -> None:
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
