"""A queue with groups: within a group, messages are given out strictly in the order in which they came.

Of each group one message at most is not blocked: its first one, while none of the group is in flight (or, in a queue
with `group_overlap`, none that came before it). Only that one has a time to wait for, or is offered to consumers; all
that stand behind it are not looked at until it is gone. So a claim costs what it takes, however many are blocked.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from detent.codec.published import FOREVER
from detent.codec.queue import Config, QueueCursor
from detent.codec.statelog import Run
from detent.queue import places as places_module
from detent.queue.bucket import AVAILABLE, BLOCKED, HELD, HIDDEN, READY, Bucket
from detent.queue.grant import Flight
from detent.queue.holdings import Holdings, Undo
from detent.queue.places import Rows
from detent.queue.state import QueueState
from detent.queue.timers import TimerWheel

Test = Callable[[int], bool]

STALE_MAX: Final = 64
"""So many places, and as many as still count, may be listed and gone before a list is made anew."""


class GroupLine:
    """A group: the places of its messages, available and in flight, in the order in which they came."""

    __slots__ = ("_fresh", "_returned", "front", "held", "waiting")

    def __init__(self) -> None:
        self._fresh: deque[int] = deque()  # as they came in
        self._returned: list[int] = []  # those that came back to their old places, the first one last
        self.waiting = 0
        self.held: list[int] = []  # the places of those in flight, the first one first
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
        self.hold(place)

    def hold(self, place: int) -> None:
        """One is in flight."""
        insort(self.held, place)

    def let_go(self, place: int) -> None:
        """One is not in flight any more."""
        del self.held[bisect_left(self.held, place)]

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

    def is_held_back(self, place: int, overlap: bool) -> bool:
        """Whether messages in flight keep an available one from being claimed: any, or (`overlap`) earlier ones."""
        return bool(self.held) and not (overlap and place < self.held[0])

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

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[int]:
        return iter(self._heap)

    @property
    def top(self) -> int:
        """The oldest one, whether it can still be claimed or not."""
        return self._heap[0]

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


Clock = Callable[[], int]


class GroupedState(QueueState):
    """One queue with groups. What it adds to any queue: who stands behind whom."""

    def __init__(
        self, name: str, config: Config, cursor: QueueCursor, wheel: TimerWheel, holdings: Holdings, clock: Clock
    ) -> None:
        super().__init__(name, config, cursor, wheel, holdings)
        self._clock = clock
        self.lines: dict[bytes, GroupLine] = {}
        self.offers: dict[int, Offers] = {}
        self._set_up()

    def _set_up(self) -> None:
        """What a kind of groups has beside."""

    # -- one place ---------------------------------------------------------------------------------------------------

    def group_at(self, place: int) -> bytes | None:
        """The group of the message at a place."""
        bucket, row = self._at(place)
        assert bucket.groups is not None
        return bucket.groups[row]

    def _is_available(self, place: int) -> bool:
        bucket = self.buckets.get(place // self.size)
        return bucket is not None and bucket.states[place % self.size] in AVAILABLE

    def _is_ready(self, priority: int, place: int) -> bool:
        bucket, row = self.buckets.get(place // self.size), place % self.size
        if bucket is None or row >= len(bucket):
            return False
        return bucket.states[row] == READY and bucket.priorities[row] == priority

    def _visible_state(self, visible_ms: int) -> int:
        return READY if visible_ms <= self._clock() else HIDDEN

    def _count(self, bucket: Bucket, priority: int, state: int, count: int = 1) -> None:
        del bucket
        if state == BLOCKED:
            self.blocked += count
        elif state == HIDDEN:
            self.hidden += count
        else:
            self.ready[priority] = self.ready.get(priority, 0) + count

    def _uncount(self, priority: int, state: int, count: int = 1) -> None:
        if state == BLOCKED:
            self.blocked -= count
        else:
            super()._uncount(priority, state, count)
            if priority not in self.ready:
                self.offers.pop(priority, None)  # all that is left in them is gone

    def _set(self, place: int, state: int) -> None:
        """A place that is not counted becomes available in one of the ways to be so."""
        bucket, row = self._at(place)
        priority = bucket.priorities[row]
        bucket.states[row] = state
        self._count(bucket, priority, state)
        if state == READY:
            self._offer(priority, place)
        elif state == HIDDEN:
            self.arm_reveal(bucket, bucket.visible[row])

    def _change(self, place: int, state: int) -> None:
        """A place that is available becomes so in another way."""
        bucket, row = self._at(place)
        if bucket.states[row] != state:
            self._uncount(bucket.priorities[row], bucket.states[row])
            self._set(place, state)

    def _offer(self, priority: int, place: int) -> None:
        offers = self.offers.get(priority)
        if offers is None:
            offers = self.offers[priority] = Offers()
        offers.tidy(partial(self._is_ready, priority), self.ready[priority])
        offers.add(place)

    # -- groups ------------------------------------------------------------------------------------------------------

    def _line(self, group: bytes) -> GroupLine:
        line = self.lines.get(group)
        if line is None:
            line = self.lines[group] = GroupLine()
        return line

    def settle(self, groups: Iterable[bytes]) -> None:
        """After any change: of each group the first one waits for its time or can be claimed, unless one of the group
        is in flight that holds it back; the others are blocked. A group that has nothing any more is forgotten."""
        for group in groups:
            line = self.lines.get(group)
            if line is None:
                continue
            if not line.waiting and not line.held:
                del self.lines[group]
                continue
            front = line.first(self._is_available)
            if front is not None and line.is_held_back(front, self.config.group_overlap):
                front = None
            if line.front is not None and line.front != front:
                self._change(line.front, BLOCKED)
            line.front = front
            if front is not None:
                bucket, row = self._at(front)
                self._change(front, self._visible_state(bucket.visible[row]))
            line.tidy(self._is_available)

    def load_groups(self) -> None:
        """All buckets are there: stand in line."""
        for number in sorted(self.buckets):
            bucket = self.buckets[number]
            assert bucket.groups is not None
            for row, group in enumerate(bucket.groups):
                if group is None or not bucket.states[row]:
                    continue
                if bucket.states[row] == HELD:
                    self._line(group).hold(number * self.size + row)
                else:
                    self._change(number * self.size + row, BLOCKED)
                    self._line(group).join(number * self.size + row)
        self.settle(list(self.lines))

    # -- coming in ---------------------------------------------------------------------------------------------------

    def _tail(self) -> Bucket:
        bucket = super()._tail()
        if bucket.groups is None:
            bucket.groups = []
            bucket.ready = None  # what can be claimed stands in `offers`, for all buckets
        return bucket

    def route(self, run: Run, priority: int, now_ms: int, undo: Undo | None, group: bytes | None = None) -> None:
        """Messages come in, behind all others, and behind those of their group in particular."""
        first = self.next_place
        if group is None:
            state = READY if run.visible_ms <= now_ms else HIDDEN
            self._come_in(run, priority, state, undo, None)
            for place in range(first, first + run.length) if state == READY else ():
                self._offer(priority, place)
            return
        self._come_in(run, priority, BLOCKED, undo, group)
        line = self._line(group)
        for place in range(first, first + run.length):
            line.join(place)
        self.settle((group,))

    def _unroute(self, bucket: Bucket, place: int, priority: int, state: int) -> None:
        del state  # the first of a group is in another one since
        assert bucket.groups is not None
        groups = {group for group in bucket.groups[place:] if group is not None}
        for row in reversed(range(place, len(bucket))):
            self._uncount(priority, bucket.states[row])
            group = bucket.groups[row]
            if group is not None:
                self.lines[group].unjoin(bucket.number * self.size + row)
        count = len(bucket) - place
        bucket.cut(place)
        self.next_place -= count
        self.routed -= count
        self.settle(groups)

    # -- claiming ----------------------------------------------------------------------------------------------------

    def choose(self, limit: int) -> list[int]:
        """The next places to claim: by priority, then age; every now and then the oldest of all. Whatever is chosen of
        a group lets the next one of it be chosen by the same claim, before those of other groups that are as urgent: so
        a small claim holds few groups back."""
        chosen: list[int] = []
        left, turn = dict(self.ready), self.turn
        lines: dict[bytes, Iterator[int]] = {}
        following: dict[int, list[int]] = {}  # by priority, what stands behind those that are chosen
        fair_turn = places_module.FAIR_EVERY - 1
        after: int | None = None  # what stands behind the one that was chosen last
        while left and len(chosen) < limit:
            by_age = len(left) > 1 and turn % places_module.FAIR_EVERY == fair_turn
            priority = min(left)
            if after is not None and (by_age or self._priority_at(after) != priority):
                heapq.heappush(following.setdefault(self._priority_at(after), []), after)
                after = None
            if by_age:
                priority = min(left, key=lambda each: self._oldest(each, following))
            place = self._pop(priority, following) if after is None else after
            chosen.append(place)
            turn += 1
            left[priority] -= 1
            if not left[priority]:
                del left[priority]
            after = self._next_in_line(place, lines)
            if after is not None:
                left[self._priority_at(after)] = left.get(self._priority_at(after), 0) + 1
        return chosen

    def _priority_at(self, place: int) -> int:
        bucket, row = self._at(place)
        return bucket.priorities[row]

    def unchoose(self, places: Sequence[int]) -> None:
        """Places that were chosen are not claimed after all. Those behind the first of a group were never offered."""
        for place in places:
            bucket, row = self._at(place)
            if bucket.states[row] == READY:
                self._offer(bucket.priorities[row], place)

    def _oldest(self, priority: int, following: dict[int, list[int]]) -> int:
        offers = self.offers.get(priority)
        offered = None if offers is None else offers.first(partial(self._is_ready, priority))
        found = [*([] if offered is None else [offered]), *following.get(priority, [])[:1]]
        assert found, f"queue {self.number} has counted messages that are not there"
        return min(found)

    def _pop(self, priority: int, following: dict[int, list[int]]) -> int:
        place = self._oldest(priority, following)
        behind = following.get(priority)
        return heapq.heappop(behind) if behind and behind[0] == place else self.offers[priority].pop()

    def _next_in_line(self, place: int, lines: dict[bytes, Iterator[int]]) -> int | None:
        """What the same claim may take after a place of a group, if its time has come."""
        group = self.group_at(place)
        if group is None:
            return None
        line = lines.get(group)
        if line is None:
            line = lines[group] = self.lines[group].places(self._is_available)
            next(line)  # the place itself
        after = next(line, None)
        if after is None or self.lines[group].is_held_back(after, self.config.group_overlap):
            return None
        bucket, row = self._at(after)
        return after if self._visible_state(bucket.visible[row]) == READY else None

    def _hold(self, bucket: Bucket, rows: range | list[int], often: list[int]) -> list[int]:
        hidden: list[int] = []
        groups: dict[bytes, None] = {}
        bucket.dirty = True
        for row in rows:
            place, state = bucket.number * self.size + row, bucket.states[row]
            assert state in AVAILABLE, f"place {row} of bucket {bucket.number} is claimed and not available"
            self._uncount(bucket.priorities[row], state)
            group = self.group_at(place)
            if group is not None:
                self._line(group).take(place, self._is_available)
                groups[group] = None
            elif state == HIDDEN:
                hidden.append(place)
            bucket.states[row] = HELD
            self._count_attempt(bucket, row, often)
        self.settle(groups)
        return hidden

    def _unhold(self, bucket: Bucket, row: int, state: int) -> None:
        group = self.group_at(bucket.number * self.size + row)
        if group is not None:
            self.lines[group].let_go(bucket.number * self.size + row)
        self._return(bucket, row, state)

    # -- ends of claims ----------------------------------------------------------------------------------------------

    def _land(self, messages: Sequence[int], undo: Undo | None) -> tuple[Rows, list[Flight]]:
        places = [self.flights[message][0] for message in messages]
        found = [(group, place) for place in places if (group := self.group_at(place)) is not None]
        groups = [group for group, _ in found]
        if undo is not None:
            undo.append(partial(self.settle, groups))  # taken back last, when all else is as it was
        landed = super()._land(messages, undo)
        for group, place in found:
            self.lines[group].let_go(place)
        if undo is not None:
            undo.append(partial(self._hold_again, found))
        self.settle(groups)
        return landed

    def _hold_again(self, found: list[tuple[bytes, int]]) -> None:
        for group, place in found:
            self._line(group).hold(place)

    def reconfigured(self) -> None:
        """What holds a group back may be another thing now."""
        self.settle(list(self.lines))

    def _return(self, bucket: Bucket, row: int, state: int) -> None:
        place = bucket.number * self.size + row
        group = self.group_at(place)
        if group is None:
            self._set(place, state)
            return
        self._set(place, BLOCKED)
        self._line(group).come_back(place)
        self.settle((group,))

    def _take_back(self, bucket: Bucket, row: int, visible_ms: int, state: int) -> None:
        del state  # it may be blocked since, or not any more
        place = bucket.number * self.size + row
        self._uncount(bucket.priorities[row], bucket.states[row])
        bucket.visible[row] = visible_ms
        bucket.states[row] = HELD
        group = self.group_at(place)
        if group is not None:
            self.lines[group].uncome_back(place)

    def land(self, messages: Sequence[int]) -> None:
        """The queue is deleted or purged: what was in flight is merely there, and no consumer's."""
        groups, _ = self._land(messages, None) if messages else ([], [])
        for bucket, rows in groups:
            for row in rows:
                self._return(bucket, row, HIDDEN)
                self.arm_expire(bucket, bucket.deadlines[row])

    # -- what goes, what is shown ------------------------------------------------------------------------------------

    def remove(self, places: Sequence[int], counter: str) -> None:
        """Available messages go, and let those of their groups go on that stand behind them."""
        groups = [self.group_at(place) for place in places]
        super().remove(places, counter)
        for place, group in zip(places, groups, strict=True):
            if group is not None:
                self.lines[group].leave(place)
        self.settle({group for group in groups if group is not None})

    def reveal(self, number: int, now_ms: int) -> None:
        """A bucket's hidden messages become visible, as far as their time has come. Blocked ones have no time."""
        bucket = self.buckets.get(number)
        if bucket is None:
            return
        for row in bucket.due_to_show(now_ms):
            self._change(number * self.size + row, READY)
        bucket.reveal_ms = FOREVER
        self.arm_reveal(bucket, bucket.next_reveal_ms())
