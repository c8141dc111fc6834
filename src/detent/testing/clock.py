"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from detent.durations import Duration, at_1970_ms, milliseconds, since_1970_ms
from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.store import Store

STEPS_MAX: Final = 100_000
"""Steps of housekeeping after which a store is taken to be stuck: each does thousands of things."""


class Clock:
    """A clock for tests: it stands still, and goes on by what `advance` says.

    >>> clock = Clock()
    >>> bus.send_local(Reminder(1), delay="10m")
    >>> clock.advance("10m")
    >>> bus.drain()

    It starts at the whole second that is now, or where you say. Called like a function it answers seconds since 1970,
    as `time.time` does, which is what ``Bus(clock=...)`` takes. Times of a database are the database's own.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._ms = int(time.time()) * 1000 if start is None else since_1970_ms(start)
        self._lock = threading.Lock()
        self._followers: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self._ms / 1000

    def __repr__(self) -> str:
        return f"Clock({self.now.isoformat()})"

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return at_1970_ms(self._ms).astimezone(UTC)

    def ms(self) -> int:
        """The time in milliseconds since 1970, which is what a store's engine takes."""
        return self._ms

    def advance(self, by: Duration) -> datetime:
        """Let time go by, such as "10m", and have everything happen that is due by then: leases end, delayed messages
        can be had, what is too old goes. The time that it is now."""
        if isinstance(by, int | float):  # which could not be told from seconds
            raise Invalid(f"say how long, with its unit: clock.advance('{by}s'), or a timedelta")
        with self._lock:
            self._ms += milliseconds(by)
            followers = list(self._followers)
        for follow in followers:
            follow()
        return self.now

    @contextmanager
    def drives(self, store: Store) -> Iterator[None]:
        """Have a store that was opened with ``Store(..., now_ms=clock.ms)`` do what is due whenever time goes by."""

        def follow() -> None:
            _keep_house(store)

        with self._lock:
            self._followers.append(follow)
        try:
            yield
        finally:
            with self._lock:
                self._followers.remove(follow)


def _keep_house(store: Store) -> None:
    """Do all that is due, in the calling thread: a thread that wakes by itself does not know that time was moved."""
    from detent.remote import LocalOwner

    owner = store._connection.current
    if not isinstance(owner, LocalOwner):
        return
    engine = owner.engine
    for _ in range(STEPS_MAX):
        engine.keep_house()
        due_ms = engine.next_due_ms()
        if due_ms is None or due_ms > engine.now_ms():
            return
    raise Invalid(f"the housekeeping of {store.url} comes to no end at {engine.now_ms()}")
