"""What a queue with groups keeps in order: the line of each group, and the places that can be claimed.

Both forget places late. One that is gone, or not available any more, is passed over when it comes to the front; whoever
asks brings along how to tell.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

Test = Callable[[int], bool]

STALE_MAX: Final = 64
"""So many places, and as many as still count, may be listed and gone before a list is made anew."""


class GroupLine:
    """A group: the places of its available messages in the order in which they came, and how many are in flight."""

    __slots__ = ("_fresh", "_returned", "front", "held", "waiting")

    def __init__(self) -> None:
        self._fresh: deque[int] = deque()  # as they came in
        self._returned: list[int] = []  # those that came back to their old places, the first one last
        self.waiting = 0
        self.held = 0
        self.front: int | None = None  # the place that is not blocked

    # -- coming and going ---------------------------------------------------------------------------------------

    def join(self, place: int) -> None:
        """A message came in, behind all others."""
        self._fresh.append(place)
        self.waiting += 1

    def unjoin(self, place: int) -> None:
        """The last one to come in did not. It may have been claimed since, and that taken back."""
        if self._fresh and self._fresh[-1] == place:
            self._fresh.pop()
        else:
            self._returned.remove(place)
        self.leave(place)

    def come_back(self, place: int) -> None:
        """A message that was in flight waits again, at its old place."""
        insort(self._returned, place, key=_descending)
        self.waiting += 1

    def uncome_back(self, place: int) -> None:
        """A message that came back did not."""
        self._returned.remove(place)
        self.leave(place)

    def leave(self, place: int) -> None:
        """A message waits no longer: it is gone. Its place is passed over when its turn comes."""
        self.waiting -= 1
        if self.front == place:
            self.front = None

    def take(self, place: int, available: Test) -> None:
        """The first one is claimed."""
        found = self.first(available)
        assert found == place, f"place {place} is claimed before {found}, which is of the same group"
        if self._returned and self._returned[-1] == place:
            self._returned.pop()
        else:
            self._fresh.popleft()
        self.leave(place)
        self.held += 1

    # -- the order ----------------------------------------------------------------------------------------------

    def first(self, available: Test) -> int | None:
        """The place that is before all others."""
        returned, fresh = self._returned, self._fresh
        while returned and not available(returned[-1]):
            returned.pop()
        while fresh and not available(fresh[0]):
            fresh.popleft()
        if returned and not (fresh and fresh[0] < returned[-1]):
            return returned[-1]
        return fresh[0] if fresh else None

    def places(self, available: Test) -> Iterator[int]:
        """All places, in order; only those that are asked for are looked at."""
        return filter(available, heapq.merge(reversed(self._returned), self._fresh))

    def tidy(self, available: Test) -> None:
        """Forget the places that are gone, once they are many."""
        if len(self._fresh) + len(self._returned) > 2 * self.waiting + STALE_MAX:
            self._fresh = deque(filter(available, self._fresh))
            self._returned = list(filter(available, self._returned))


def _descending(place: int) -> int:
    return -place


class Offers:
    """The claimable places of one priority, the oldest first; each of them once."""

    __slots__ = ("_heap", "_listed")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._listed: set[int] = set()

    def add(self, place: int) -> None:
        """A place can be claimed. One that could be before, and was passed by since, is still there."""
        if place not in self._listed:
            self._listed.add(place)
            heapq.heappush(self._heap, place)

    def tidy(self, claimable: Test, count: int) -> None:
        """Forget the places that cannot be claimed any more, once they are many beside the `count` that can."""
        if len(self._heap) > 2 * count + STALE_MAX:
            self._heap = list(filter(claimable, self._heap))
            heapq.heapify(self._heap)
            self._listed = set(self._heap)

    def first(self, claimable: Test) -> int | None:
        """The oldest one."""
        while self._heap and not claimable(self._heap[0]):
            self.pop()
        return self._heap[0] if self._heap else None

    def pop(self) -> int:
        """The oldest one leaves."""
        place = heapq.heappop(self._heap)
        self._listed.discard(place)
        return place
