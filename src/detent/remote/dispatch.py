"""From the committing thread to an event loop: one wake-up for a whole group of answers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from detent.engine import Ticket


def caller_on(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], object]], None]:
    """`call_soon` of the loop that runs in this thread, for any thread; from its own it costs no system call."""
    thread = threading.get_ident()

    def call_soon(function: Callable[[], object]) -> None:
        if threading.get_ident() == thread:
            loop.call_soon(function)
        else:
            loop.call_soon_threadsafe(function)

    return call_soon


class Dispatcher:
    """Brings tickets to futures of one loop. Waking a loop costs a system call, and lets the loop's thread run before
    the next answer is in, so a group of answers shares one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[Ticket], None]) -> None:
        """`lost` gets the tickets whose callers have gone."""
        self._loop = loop
        self._lost = lost
        self._thread = threading.get_ident()
        self._ready: deque[Ticket] = deque()
        self._scheduled = False

    def deliver(self, tickets: list[Ticket]) -> None:
        """The callback for tickets whose `waiter` is a future of this loop."""
        for ticket in tickets:
            if ticket.waiter.done():
                self._lost(ticket)
            else:
                self._ready.append(ticket)
        if threading.get_ident() == self._thread or self._loop.is_closed():  # the loop itself has committed, or ended
            self._drain()
        elif not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # it was closed at this moment
                self._drain()

    def _drain(self) -> None:
        # Lowered before the queue is emptied: an answer that arrives in between is scheduled again, never lost.
        self._scheduled = False
        while self._ready:
            ticket = self._ready.popleft()
            waiter, ticket.waiter = ticket.waiter, None  # else the two hold each other, and all that they carry
            if not waiter.done() and not self._loop.is_closed():
                waiter.set_result(ticket)
            else:
                self._lost(ticket)
