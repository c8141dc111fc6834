"""From the committing thread to an event loop: one wake-up for a whole group of answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from detent.engine import Ticket


class Dispatcher:
    """Brings tickets to futures of one loop. Waking a loop costs a system call, and lets the loop's thread run before
    the next answer is in, so a group of answers shares one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[Ticket] = deque()
        self._scheduled = False

    def deliver(self, tickets: list[Ticket]) -> None:
        """The callback for tickets whose `waiter` is a future of this loop."""
        self._ready.extend(tickets)
        if not self._scheduled and not self._loop.is_closed():
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop was closed at this moment: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Lowered before the queue is emptied: an answer that arrives in between is scheduled again, never lost.
        self._scheduled = False
        while self._ready:
            ticket = self._ready.popleft()
            if not ticket.waiter.done():
                ticket.waiter.set_result(ticket)
