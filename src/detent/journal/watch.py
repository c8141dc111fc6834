"""Who waits for a journal to grow, and how they are woken: after the commit that made it grow, never before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from detent.errors import LimitExceeded

WAITERS_MAX: Final = 10_000

ANNOUNCED_MAX: Final = 10_000
"""Journals whose last announcement is kept; beyond this all are forgotten, and who asks looks for itself."""


class Watch:
    """Waiters by journal. A waiter is called once, from the committing thread, and must return at once."""

    def __init__(self) -> None:
        self.changed: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiters: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self._announced: dict[str, int] = {}

    def add(self, journal: str, offset: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once the journal's next offset is above `offset`. Returns how to stop waiting.

        Look at the journal again after this: it may have grown just before.
        """
        waiter = (offset, wake)
        with self._lock:
            if sum(map(len, self._waiters.values())) >= WAITERS_MAX:
                raise LimitExceeded(f"{WAITERS_MAX} readers wait already")
            self._waiters.setdefault(journal, []).append(waiter)

        def remove() -> None:
            with self._lock:
                waiters = self._waiters.get(journal, [])
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters:
                    self._waiters.pop(journal, None)

        return remove

    def announced(self, journal: str) -> int | None:
        """The journal's next offset, as it was announced last; None if that is not known.

        Whoever `add`s first and then finds here the offset that he waits for has missed nothing: what is announced
        later wakes him. Of a journal that was deleted it says nothing.
        """
        return self._announced.get(journal)

    def announce(self) -> None:
        """Wake those whose journal has grown far enough in the group that was just committed."""
        changed, self.changed = self.changed, {}
        if len(self._announced) + len(changed) > ANNOUNCED_MAX:
            self._announced.clear()
        self._announced.update(changed)  # before anybody is looked for who waits
        if not self._waiters:
            return
        ready: list[Callable[[], None]] = []
        with self._lock:
            for journal, next_offset in changed.items():
                waiters = self._waiters.get(journal)
                if not waiters:
                    continue
                ready += [wake for offset, wake in waiters if offset < next_offset]
                left = [waiter for waiter in waiters if waiter[0] >= next_offset]
                if left:
                    self._waiters[journal] = left
                else:
                    del self._waiters[journal]
        for wake in ready:
            wake()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._waiters.values()))
