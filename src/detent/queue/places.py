"""The places of one queue: messages in buckets, which of them can be claimed, and the timers that change that."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np

from detent.codec.published import FOREVER
from detent.codec.queue import Config
from detent.codec.statelog import Run
from detent.queue.bucket import AVAILABLE, GONE, HIDDEN, READY, Bucket
from detent.queue.holdings import Undo
from detent.queue.timers import TimerWheel

FAIR_EVERY: Final = 16
"""Of so many messages claimed while several priorities wait, the last is the oldest, whatever its priority. So a stream
of urgent messages leaves at least 1/16 of the deliveries to the others, and each message comes to the front in time."""

REVEAL, EXPIRE = "reveal", "expire"
"""What a timer of a bucket is for."""

Rows = list[tuple[Bucket, "range | list[int]"]]
"""Places, sorted by their bucket, in order. Neighbours are a range: then whole slices change at once."""


def pick(column: Any, rows: Sequence[int]) -> Sequence[int]:
    """Some values of a column, in one step."""
    if isinstance(rows, range):
        values: Sequence[int] = column[rows.start : rows.stop]
        return values
    return (column[rows[0]],) if len(rows) == 1 else itemgetter(*rows)(column)


def picked(name: str, groups: Rows) -> list[int]:
    """The values of a column at these places."""
    if len(groups) == 1:
        return list(pick(getattr(groups[0][0], name), groups[0][1]))
    return [value for bucket, rows in groups for value in pick(getattr(bucket, name), rows)]


class Places:
    """The buckets of one queue."""

    next_place: int
    routed: int

    def __init__(self, config: Config, wheel: TimerWheel) -> None:
        self.number = config.number
        self.config = config
        self.wheel = wheel
        self.size: int = 10**config.bucket_exponent
        self.buckets: dict[int, Bucket] = {}
        self.heads: dict[int, list[int]] = {}  # by priority, a heap of the buckets that may have something to claim
        self.ready: dict[int, int] = {}  # by priority, how many can be claimed
        self.hidden = 0
        self.blocked = 0  # behind others of their groups, if the queue has groups
        self.turn = 0
        # What the next checkpoint writes.
        self.touched = False
        self.dead_buckets: set[int] = set()

    @property
    def available(self) -> int:
        """Messages that no consumer holds, visible or not."""
        return self.hidden + self.blocked + sum(self.ready.values())

    @property
    def claimable(self) -> int:
        """Messages that the next claim would find."""
        return 0 if self.config.paused else sum(self.ready.values())

    def blocked_until_later(self, now_ms: int) -> int:
        """How many of the blocked messages would have to wait for their time as well. They are counted when they
        are asked for, bucket by bucket; nothing else depends on it."""
        if not self.blocked:
            return 0
        return sum(bucket.blocked_until_later(now_ms) for bucket in self.buckets.values())

    # -- coming in ---------------------------------------------------------------------------------------------------

    def route(self, run: Run, priority: int, now_ms: int, undo: Undo | None, group: bytes | None = None) -> None:
        """Messages come in, behind all others. The caller has noted that the queue holds them."""
        assert group is None, f"queue {self.number} has no groups"
        self._come_in(run, priority, READY if run.visible_ms <= now_ms else HIDDEN, undo, None)

    def _come_in(self, run: Run, priority: int, state: int, undo: Undo | None, group: bytes | None) -> None:
        self.touched = True
        left = run
        while left.length:
            bucket = self._tail()
            room = self.size - len(bucket)
            part = left if left.length <= room else left._replace(length=room)
            place = bucket.append(part, priority, state, group)
            bucket.dirty = True
            self.next_place += part.length
            self.routed += part.length
            self._count(bucket, priority, state, part.length)
            if state == HIDDEN:
                self.arm_reveal(bucket, part.visible_ms)
            self.arm_expire(bucket, part.deadline_ms)
            if undo is not None:
                undo.append(partial(self._unroute, bucket, place, priority, state))
            if len(bucket) == self.size and len(self.buckets) > 2:
                bucket.ready = None  # no claim comes near it for a while
            if part is left:
                break
            done = part.length
            left = left._replace(first=left.first + done, offset=left.offset + done, length=left.length - done)

    def _unroute(self, bucket: Bucket, place: int, priority: int, state: int) -> None:
        count = len(bucket) - place
        bucket.cut(place)
        self.next_place -= count
        self.routed -= count
        self._uncount(priority, state, count)

    def _tail(self) -> Bucket:
        number, length = divmod(self.next_place, self.size)
        bucket = self.buckets.get(number)
        if bucket is None:
            assert length == 0, f"bucket {number} of queue {self.number} is missing"
            bucket = self.buckets[number] = Bucket(number)
        return bucket

    def _count(self, bucket: Bucket, priority: int, state: int, count: int = 1) -> None:
        """So many more messages of the bucket are available."""
        if state == HIDDEN:
            self.hidden += count
            return
        self.ready[priority] = self.ready.get(priority, 0) + count
        self._list(bucket, priority)

    def _list(self, bucket: Bucket, priority: int) -> None:
        """Know a bucket as one that has something to claim."""
        if priority not in bucket.listed:
            bucket.listed.add(priority)
            heapq.heappush(self.heads.setdefault(priority, []), bucket.number)

    def _uncount(self, priority: int, state: int, count: int = 1) -> None:
        if state == HIDDEN:
            self.hidden -= count
            return
        left = self.ready[priority] - count
        assert left >= 0, f"queue {self.number} has counted {left} messages of priority {priority}"
        if left:
            self.ready[priority] = left
        else:
            del self.ready[priority]

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose(self, limit: int) -> list[int]:
        """The next places to claim: by priority, then age; every now and then the oldest of all."""
        places: list[int] = []
        left = dict(self.ready)
        turn = self.turn
        while left and len(places) < limit:
            several = len(left) > 1
            if several and turn % FAIR_EVERY == FAIR_EVERY - 1:
                priority, taken = self._take_oldest(left)
            else:
                priority = min(left)
                until_fair = FAIR_EVERY - 1 - turn % FAIR_EVERY if several else limit
                taken = self._take(priority, min(limit - len(places), until_fair, left[priority]))
            assert taken, f"queue {self.number} has counted messages that are not there"
            places += taken
            turn += len(taken)
            left[priority] -= len(taken)
            if not left[priority]:
                del left[priority]
        return places

    def unchoose(self, places: Sequence[int]) -> None:
        """Places that were chosen are not claimed after all."""
        for place in places:
            bucket, row = self._at(place)
            bucket.offer(row)
            self._list(bucket, bucket.priorities[row])

    def _take(self, priority: int, limit: int) -> list[int]:
        heads = self.heads[priority]
        while heads:
            bucket = self.buckets.get(heads[0])
            rows = [] if bucket is None else bucket.take(priority, limit)
            if rows:
                base = heads[0] * self.size
                return [base + row for row in rows]
            heapq.heappop(heads)
            if bucket is not None:
                bucket.listed.discard(priority)
        return []

    def _take_oldest(self, priorities: Iterable[int]) -> tuple[int, list[int]]:
        """The claimable message that has waited longest, of any of these priorities."""
        best: tuple[int, int] | None = None
        for priority in priorities:
            heads = self.heads[priority]
            while True:
                bucket = self.buckets.get(heads[0])
                row = None if bucket is None else bucket.first(priority)
                if row is not None:
                    break
                heapq.heappop(heads)
                if bucket is not None:
                    bucket.listed.discard(priority)
            place = heads[0] * self.size + row
            if best is None or place < best[0]:
                best = place, priority
        assert best is not None
        return best[1], self._take(best[1], 1)

    # -- finding -----------------------------------------------------------------------------------------------------

    def spread(self, places: Sequence[int]) -> Rows:
        """Places sorted by their bucket; their order stays."""
        size = self.size
        first = places[0] // size
        count, base = len(places), first * size
        if count == 1:
            return [(self.buckets[first], [places[0] - base])]
        if (places[0] + count - base) <= size and places == list(range(places[0], places[0] + count)):
            return [(self.buckets[first], range(places[0] - base, places[0] - base + count))]
        if min(places) // size == max(places) // size == first:
            return [(self.buckets[first], [place - base for place in places])]
        groups = groupby(places, lambda place: place // size)
        return [(self.buckets[number], [place % size for place in group]) for number, group in groups]

    def _at(self, place: int) -> tuple[Bucket, int]:
        return self.buckets[place // self.size], place % self.size

    def available_places(self, bucket: Bucket) -> list[int]:
        """The places of a bucket's available messages, oldest first."""
        base = bucket.number * self.size
        places: list[int] = (bucket.available()["place"].astype(np.int64) + base).tolist()
        return places

    def places_of(self, messages: np.ndarray) -> list[int]:
        """The places of those of these messages that are available here."""
        if not len(messages) or not self.available:
            return []
        wanted = np.sort(messages)
        numbers: list[int] = wanted.tolist()
        found: list[int] = []
        for bucket in self.buckets.values():
            if not len(bucket):
                continue
            lowest, highest = bucket.span()
            start = bisect_left(numbers, lowest)
            if start < len(numbers) and numbers[start] <= highest:
                rows = bucket.find(wanted[start : bisect_right(numbers, highest)])
                found += [bucket.number * self.size + row for row in rows]
        return found

    def places_of_priority(self, priority: int, before: int) -> list[int]:
        """The places of available messages of one priority that are older than a message."""
        if not self.available:
            return []
        found: list[int] = []
        for bucket in self.buckets.values():
            table = bucket.available()
            rows = table["place"][(table["priority"] == priority) & (table["message"] < np.uint64(before))]
            found += [bucket.number * self.size + row for row in rows.tolist()]
        return found

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _vacate(self, groups: Rows, undo: Undo | None) -> None:
        """These places are left for good. A bucket that is empty goes."""
        died: list[Bucket] = []
        for bucket, rows in groups:
            states = bucket.states
            if isinstance(rows, range):
                states[rows.start : rows.stop] = bytes((GONE,)) * len(rows)
            else:
                for row in rows:
                    states[row] = GONE
            bucket.live -= len(rows)
            if not bucket.live and len(bucket) == self.size:
                self._bury(bucket)
                died.append(bucket)
        if undo is not None:
            undo.append(partial(self._unvacate, groups, died))

    def _unvacate(self, groups: Rows, died: list[Bucket]) -> None:
        for bucket, rows in groups:
            bucket.live += len(rows)
        for bucket in died:
            self.buckets[bucket.number] = bucket
            self.dead_buckets.discard(bucket.number)
            self.arm_expire(bucket, min(bucket.deadlines))

    def _bury(self, bucket: Bucket) -> None:
        del self.buckets[bucket.number]
        bucket.listed.clear()  # a look for it under a priority finds it gone, and drops it there
        self._disarm(bucket)
        if bucket.stored:
            self.dead_buckets.add(bucket.number)

    # -- timers ------------------------------------------------------------------------------------------------------

    def arm_reveal(self, bucket: Bucket, at_ms: int) -> None:
        """Look at the bucket when a hidden message becomes visible."""
        if at_ms < bucket.reveal_ms:
            bucket.reveal_ms = at_ms
            self.wheel.add(at_ms, (REVEAL, self.number, bucket.number))

    def rearm_reveal(self, bucket: Bucket) -> None:
        """The times of hidden messages have changed."""
        self.wheel.cancel(bucket.reveal_ms, (REVEAL, self.number, bucket.number))
        bucket.reveal_ms = FOREVER
        self.arm_reveal(bucket, bucket.next_reveal_ms())

    def arm_expire(self, bucket: Bucket, deadline_ms: int) -> None:
        """Look at the bucket when a message is older than its retention."""
        at_ms = deadline_ms + 1
        if at_ms < bucket.expire_ms:
            bucket.expire_ms = at_ms
            self.wheel.add(at_ms, (EXPIRE, self.number, bucket.number))

    def _disarm(self, bucket: Bucket) -> None:
        self.wheel.cancel(bucket.reveal_ms, (REVEAL, self.number, bucket.number))
        self.wheel.cancel(bucket.expire_ms, (EXPIRE, self.number, bucket.number))
        bucket.reveal_ms = bucket.expire_ms = FOREVER

    def reveal(self, number: int, now_ms: int) -> None:
        """A bucket's hidden messages become visible, as far as their time has come."""
        bucket = self.buckets.get(number)
        if bucket is None:
            return
        for priority, count in bucket.reveal(now_ms).items():
            self.hidden -= count
            self._count(bucket, priority, READY, count)
        bucket.reveal_ms = FOREVER
        self.arm_reveal(bucket, bucket.next_reveal_ms())

    def to_expire(self, number: int, now_ms: int) -> list[int]:
        """The places of a bucket whose retention has ended; its timer is set for the others."""
        bucket = self.buckets.get(number)
        if bucket is None:
            return []
        rows = bucket.due_to_expire(now_ms)
        bucket.expire_ms = FOREVER
        next_ms = bucket.next_expire_ms()
        if next_ms >= now_ms:
            self.arm_expire(bucket, next_ms)
        else:
            self._rearm_after(bucket, now_ms)
        base = number * self.size
        return [base + row for row in rows]

    def _rearm_after(self, bucket: Bucket, now_ms: int) -> None:
        later = [d for d, s in zip(bucket.deadlines, bucket.states, strict=True) if s in AVAILABLE and d >= now_ms]
        if later:
            self.arm_expire(bucket, min(later))
