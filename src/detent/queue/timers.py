"""One timer wheel for all queues: leases, delays, retention, forgetting done messages and dedup keys.

It holds times and names, and is driven by the engine's clock alone. A far timer costs one entry in the slot of its
second; the timers of the current second stand in a heap, so that each fires at its own millisecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final

from detent.codec.published import FOREVER

SLOT_MS: Final = 1024
"""The width of a slot. A queue with leases of hours has thousands of slots, whatever it delivers."""


class TimerWheel:
    """Names that become due. The same name may stand in it for several times; to set one again does no harm."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[tuple[int, Hashable], None]] = {}
        self._order: list[int] = []
        self._near: list[tuple[int, int, Hashable]] = []
        self._near_slot = -1
        self._serial = 0

    def __len__(self) -> int:
        return len(self._near) + sum(map(len, self._slots.values()))

    def add(self, due_ms: int, name: Hashable) -> None:
        """Have `name` come out of `due` once it is `due_ms`; what has no time is not waited for."""
        if due_ms == FOREVER:
            return
        slot = due_ms // SLOT_MS
        if slot <= self._near_slot:
            self._serial += 1
            heapq.heappush(self._near, (due_ms, self._serial, name))
            return
        names = self._slots.get(slot)
        if names is None:
            names = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        names[due_ms, name] = None

    def cancel(self, due_ms: int, name: Hashable) -> None:
        """Forget a timer; a step that gets it all the same must find that there is nothing to do."""
        names = self._slots.get(due_ms // SLOT_MS)
        if names is not None:
            names.pop((due_ms, name), None)

    def next_ms(self) -> int | None:
        """When to look again: not later than the next timer is due."""
        if self._near:
            return self._near[0][0]
        while self._order and not self._slots[self._order[0]]:
            del self._slots[heapq.heappop(self._order)]
        return self._order[0] * SLOT_MS if self._order else None

    def due(self, now_ms: int, limit: int) -> list[Hashable]:
        """At most `limit` names whose time has come, earliest first; they are forgotten here."""
        slot = now_ms // SLOT_MS
        while self._order and self._order[0] <= slot:
            for due_ms, name in self._slots.pop(heapq.heappop(self._order)):
                self._serial += 1
                heapq.heappush(self._near, (due_ms, self._serial, name))
        self._near_slot = max(self._near_slot, slot)
        found: list[Hashable] = []
        while self._near and self._near[0][0] <= now_ms and len(found) < limit:
            found.append(heapq.heappop(self._near)[2])
        return found
