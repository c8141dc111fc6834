"""Who waits for something to claim, and how they are woken: after the commit that made it claimable, never before."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from detent.errors import LimitExceeded

WAITERS_MAX: Final = 10_000

logger = logging.getLogger("detent.queue")


class Claimable(Protocol):
    """A queue that can say how much there is to claim."""

    @property
    def claimable(self) -> int: ...


def _nobody_looks(_: int) -> None:
    """Without a housekeeper."""


class QueueWatch:
    """Waiters by queue, first come, first woken. A waiter is called once, from the committing thread, and must return
    at once; as many are woken as there are messages to claim."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, deque[Callable[[], None]]] = {}
        self.timer: Callable[[int], None] = _nobody_looks

    def add(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once there is something to claim. Returns how to stop waiting.

        Try to claim after this: something may have come just before.
        """
        with self._lock:
            if sum(map(len, self._waiters.values())) >= WAITERS_MAX:
                raise LimitExceeded(f"{WAITERS_MAX} consumers wait already")
            self._waiters.setdefault(queue, deque()).append(wake)

        def remove() -> None:
            with self._lock:
                waiters = self._waiters.get(queue)
                if waiters is not None:
                    if wake in waiters:
                        waiters.remove(wake)
                    if not waiters:
                        del self._waiters[queue]

        return remove

    def announce(self, queues: Mapping[str, Claimable], next_ms: int | None) -> None:
        """Wake those whose queue has something to claim, or is gone; for the others, have the next timer looked at."""
        if not self._waiters:
            return
        if next_ms is not None:
            self.timer(next_ms)
        ready: list[Callable[[], None]] = []
        with self._lock:
            for name, waiters in list(self._waiters.items()):
                state = queues.get(name)
                count = len(waiters) if state is None else min(len(waiters), state.claimable)
                ready += [waiters.popleft() for _ in range(count)]
                if not waiters:
                    del self._waiters[name]
        for wake in ready:
            try:
                wake()
            except Exception:
                logger.exception("a waiting consumer could not be woken")

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._waiters.values()))
