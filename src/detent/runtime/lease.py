"""**Lease**: something that is held for a time, and kept by saying so again before the time is over.

A message that a handler works on (SQS: its visibility timeout), a delivery of the bus, a file's announcement, a member
of a consumer with its shards: each is taken, renewed, lost or given back in the same way. `Leases` is the table of what
is held; `KeepLeases` is the one task that renews what is due, in a thread or on an event loop.

A lease is counted from before it was asked for, by a clock that is not set, so that a slow answer makes it due early
and not late. What is missed costs work done twice, and never a message: the effect is committed behind a fence.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from detent.runtime.task import Maybe, Next, Task

EXTEND_SHARE: Final = 3
"""A lease is renewed when a third of it is over: two more tries fit into the rest."""

RETRY_S: Final = 1.0
"""How long after a try that failed the next one comes, at most."""

RETRY_SHARE: Final = 6
"""And at most such a part of the lease."""

GATHER_SHARE: Final = 10
"""What is due within such a part of its lease is renewed along with what is due now: one question for many."""

LOOK_S: Final = 1.0
"""How often the table is looked at when nothing is due. A machine that slept may wake late in a lease, and no wait
counts the sleep. Also when nothing is held: what is taken then is due after the next look, and does not wake the
keeper, which would cost as much as the message."""

Thing = TypeVar("Thing")

logger = logging.getLogger("detent.runtime")


class Lease(Generic[Thing]):
    """One thing that is held."""

    __slots__ = ("due_s", "is_lost", "key", "length_s", "thing")

    def __init__(self, key: Hashable, thing: Thing, due_s: float, length_s: float) -> None:
        self.key = key
        self.thing = thing
        self.due_s = due_s
        self.length_s = length_s
        self.is_lost = False


class Leases(Generic[Thing]):
    """What is held, and when each is to be renewed. For any thread."""

    def __init__(self, *, share: float = EXTEND_SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._held: dict[Hashable, Lease[Thing]] = {}
        self._lock = threading.Lock()
        self._looks_at = 0.0
        self.sooner: Callable[[], None] = lambda: None
        """Called when something is due before the keeper would look."""

    def __len__(self) -> int:
        return len(self._held)

    def take(self, key: Hashable, thing: Thing, length_s: float, asked_s: float | None = None) -> Lease[Thing]:
        """Hold this from now on; it was asked for at that time, for so long."""
        since_s = self._clock() if asked_s is None else asked_s
        lease = Lease(key, thing, since_s + length_s / self._share, length_s)
        with self._lock:
            self._held[key] = lease
            is_sooner = lease.due_s < self._looks_at
        if is_sooner:
            self.sooner()
        return lease

    def renewed(self, lease: Lease[Thing], length_s: float | None = None, asked_s: float | None = None) -> None:
        """It lasts from when that was asked for its whole length again."""
        if length_s is not None:
            lease.length_s = length_s
        lease.due_s = (self._clock() if asked_s is None else asked_s) + lease.length_s / self._share

    def lost(self, lease: Lease[Thing]) -> None:
        """Another process has it, or will."""
        lease.is_lost = True
        self.give_back(lease.key)

    def give_back(self, key: Hashable) -> Thing | None:
        """Hold this no longer; what it was, if it was held."""
        with self._lock:
            lease = self._held.pop(key, None)
        return None if lease is None else lease.thing

    def held(self) -> list[Thing]:
        """All that is held now."""
        with self._lock:
            return [lease.thing for lease in self._held.values()]

    # -- for the keeper -----------------------------------------------------------------------------------------

    def due(self) -> list[Lease[Thing]]:
        """What is to be renewed now. Each is due again soon, unless it is said to be renewed or lost before."""
        now = self._clock()
        with self._lock:
            if not any(lease.due_s <= now for lease in self._held.values()):
                return []
            found = [one for one in self._held.values() if one.due_s <= now + one.length_s / GATHER_SHARE]
        for lease in found:
            lease.due_s = now + min(RETRY_S, lease.length_s / RETRY_SHARE)
        return found

    def next_s(self, most_s: float = math.inf) -> float:
        """How long until something is to be renewed, or so long at most."""
        now = self._clock()
        with self._lock:
            self._looks_at = min((lease.due_s for lease in self._held.values()), default=now + most_s)
            self._looks_at = min(self._looks_at, now + most_s)
        return max(0.0, self._looks_at - now)


Extend = Callable[[Sequence[Lease[Any]]], Maybe[None]]
"""Renews leases, and says of each that it is `renewed` or `lost`. One of which it says nothing is tried again soon."""


class KeepLeases(Task):
    """The keeper: renews in time what a table holds. Stop it last: what is waited for at the end is still held."""

    kind = "leases"

    def __init__(self, name: str, leases: Leases[Any], extend: Extend) -> None:
        super().__init__(name)
        self._leases = leases
        self._extend = extend
        leases.sooner = lambda: self.wake()  # noqa: PLW0108 - its supervisor sets it later

    def step(self) -> Maybe[Next]:
        """Renew what is due."""
        due = self._leases.due()
        try:
            extended = self._extend(due) if due else None
        except Exception as error:  # noqa: BLE001 - the next try comes before the leases end
            self._is_late(error)
        else:
            if inspect.isawaitable(extended):
                return self._when(extended)
        return self._leases.next_s(LOOK_S)

    async def _when(self, extended: Awaitable[None]) -> Next:
        try:
            await extended
        except Exception as error:  # noqa: BLE001 - the same
            self._is_late(error)
        return self._leases.next_s(LOOK_S)

    def _is_late(self, error: Exception) -> None:
        logger.warning("%s: leases could not be renewed, trying again: %s", self.name, error)
