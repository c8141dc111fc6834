"""A queue whose groups are tenants that share it: no order within a group, and no tenant starves the others.

A claim takes the most urgent messages first, as ever. Of those that are as urgent it takes one of the group that has
the fewest messages in flight, and of that group the oldest: so a tenant that sends a million messages, or whose
messages take long, delays its own. Every now and then it takes the oldest of all, so that no group waits for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from detent.codec.statelog import Run
from detent.queue import places as places_module
from detent.queue.bucket import AVAILABLE, HELD, HIDDEN, READY, Bucket
from detent.queue.grant import Flight
from detent.queue.grouped import STALE_MAX, GroupedState, Offers, Test
from detent.queue.holdings import Undo
from detent.queue.places import Rows
from detent.queue.state import QueueState

Group = bytes | None
"""A tenant. Messages without the header are one tenant together."""


class FairOffers:
    """The claimable places of one priority, by age and by group."""

    __slots__ = ("_ages", "_flying", "_groups", "_turns")

    def __init__(self, flying: Callable[[Group], int]) -> None:
        self._flying = flying
        self._ages = Offers()
        self._groups: dict[Group, Offers] = {}
        self._turns: list[tuple[int, int, Group]] = []
        """A heap of groups by what they have in flight and their oldest place, as these were once. A group stands in it
        more than once; its newest entry says how it is."""

    def add(self, place: int, group: Group) -> None:
        """A place can be claimed."""
        self._ages.add(place)
        offers = self._groups.get(group)
        if offers is None:
            offers = self._groups[group] = Offers()
        offers.add(place)
        self.turn(group)

    def turn(self, group: Group) -> None:
        """A group has fewer messages in flight, or an older one to give out."""
        offers = self._groups.get(group)
        if offers is not None and offers:
            heapq.heappush(self._turns, (self._flying(group), offers.top, group))

    def oldest(self, claimable: Test) -> int | None:
        """The place that has waited longest."""
        return self._ages.first(claimable)

    def fairest(self, claimable: Test) -> int | None:
        """The oldest place of the group that has the fewest messages in flight."""
        while self._turns:
            group = self._turns[0][2]
            offers = self._groups.get(group)
            place = None if offers is None else offers.first(claimable)
            if place is None:
                heapq.heappop(self._turns)
                self._groups.pop(group, None)
                continue
            turn = (self._flying(group), place, group)
            if turn == self._turns[0]:
                return place
            heapq.heapreplace(self._turns, turn)
        return None

    def tidy(self, claimable: Test, count: int, group_at: Callable[[int], Group]) -> None:
        """Forget what cannot be claimed any more, once that is much beside the `count` places that can."""
        if max(len(self._ages), len(self._turns)) <= 2 * count + STALE_MAX:
            return
        left = [place for place in self._ages if claimable(place)]
        self._ages, self._groups, self._turns = Offers(), {}, []
        for place in left:
            self.add(place, group_at(place))


class FairState(GroupedState):
    """One queue that tenants share. Its groups hold nothing back, so none of its messages is blocked."""

    def _set_up(self) -> None:
        self.fair: dict[int, FairOffers] = {}
        self.flying: dict[Group, int] = {}
        self._taking: dict[Group, int] = {}  # what the claim that is being made has chosen

    def _flying(self, group: Group) -> int:
        return self.flying.get(group, 0) + self._taking.get(group, 0)

    def _fly(self, groups: Sequence[Group], by: int) -> None:
        """Some messages of these groups are in flight, or are not any more."""
        for group in groups:
            count = self.flying.pop(group, 0) + by
            if count:
                self.flying[group] = count
        if by < 0:
            for group in set(groups):
                for offers in self.fair.values():
                    offers.turn(group)

    def _groups_at(self, bucket: Bucket, rows: range | list[int]) -> list[Group]:
        assert bucket.groups is not None
        return [bucket.groups[row] for row in rows]

    def load_groups(self) -> None:
        """All buckets are there: count what is in flight."""
        for bucket in self.buckets.values():
            held = [row for row in range(len(bucket)) if bucket.states[row] == HELD]
            self._fly(self._groups_at(bucket, held), 1)

    def reconfigured(self) -> None:
        """Nothing depends on the settings."""

    # -- places ------------------------------------------------------------------------------------------------------

    def _offer(self, priority: int, place: int) -> None:
        offers = self.fair.get(priority)
        if offers is None:
            offers = self.fair[priority] = FairOffers(self._flying)
        offers.tidy(partial(self._is_ready, priority), self.ready[priority], self.group_at)
        offers.add(place, self.group_at(place))

    def _uncount(self, priority: int, state: int, count: int = 1) -> None:
        super()._uncount(priority, state, count)
        if priority not in self.ready:
            self.fair.pop(priority, None)  # all that is left in them is gone

    def route(self, run: Run, priority: int, now_ms: int, undo: Undo | None, group: bytes | None = None) -> None:
        """Messages come in."""
        first, state = self.next_place, READY if run.visible_ms <= now_ms else HIDDEN
        self._come_in(run, priority, state, undo, group)
        for place in range(first, first + run.length) if state == READY else ():
            self._offer(priority, place)

    def _unroute(self, bucket: Bucket, place: int, priority: int, state: int) -> None:
        del state  # each of them may be in another one since
        for row in range(place, len(bucket)):
            self._uncount(priority, bucket.states[row])
        count = len(bucket) - place
        bucket.cut(place)
        self.next_place -= count
        self.routed -= count

    def _return(self, bucket: Bucket, row: int, state: int) -> None:
        self._set(bucket.number * self.size + row, state)

    def _take_back(self, bucket: Bucket, row: int, visible_ms: int, state: int) -> None:
        del state
        self._uncount(bucket.priorities[row], bucket.states[row])
        bucket.visible[row] = visible_ms
        bucket.states[row] = HELD

    def remove(self, places: Sequence[int], counter: str) -> None:
        """Available messages go."""
        QueueState.remove(self, places, counter)

    # -- claiming ----------------------------------------------------------------------------------------------------

    def choose(self, limit: int) -> list[int]:
        """The next places to claim: by priority, then by what their groups have in flight, then age; every now and then
        the oldest of all."""
        chosen: dict[int, None] = {}
        left, turn = dict(self.ready), self.turn
        fair_turn = places_module.FAIR_EVERY - 1
        while left and len(chosen) < limit:
            if turn % places_module.FAIR_EVERY == fair_turn:
                place, priority = min((self._next(each, chosen, by_age=True), each) for each in left)
            else:
                priority = min(left)
                place = self._next(priority, chosen, by_age=False)
            chosen[place] = None
            group = self.group_at(place)
            self._taking[group] = self._taking.get(group, 0) + 1
            turn += 1
            left[priority] -= 1
            if not left[priority]:
                del left[priority]
        self._taking.clear()
        return list(chosen)

    def _next(self, priority: int, chosen: dict[int, None], *, by_age: bool) -> int:
        offers = self.fair[priority]

        def claimable(place: int) -> bool:
            return place not in chosen and self._is_ready(priority, place)

        place = offers.oldest(claimable) if by_age else offers.fairest(claimable)
        assert place is not None, f"queue {self.number} has counted messages that are not there"
        return place

    def _hold(self, bucket: Bucket, rows: range | list[int], often: list[int]) -> list[int]:
        hidden: list[int] = []
        bucket.dirty = True
        for row in rows:
            state = bucket.states[row]
            assert state in AVAILABLE, f"place {row} of bucket {bucket.number} is claimed and not available"
            self._uncount(bucket.priorities[row], state)
            if state == HIDDEN:
                hidden.append(bucket.number * self.size + row)
            bucket.states[row] = HELD
            self._count_attempt(bucket, row, often)
        self._fly(self._groups_at(bucket, rows), 1)
        return hidden

    def _unhold(self, bucket: Bucket, row: int, state: int) -> None:
        self._fly(self._groups_at(bucket, [row]), -1)
        self._return(bucket, row, state)

    def _land(self, messages: Sequence[int], undo: Undo | None) -> tuple[Rows, list[Flight]]:
        groups = [self.group_at(self.flights[message][0]) for message in messages]
        landed = QueueState._land(self, messages, undo)
        self._fly(groups, -1)
        if undo is not None:
            undo.append(partial(self._fly, groups, 1))
        return landed
