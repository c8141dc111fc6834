"""What the owner remembers of one queue: its buckets, who holds what until when, what has failed.

Every change here is made twice in the same way: when it happens, and when the state log is replayed. A change that
belongs to a transaction says how to take it back.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final

import numpy as np

from detent.codec.published import FOREVER
from detent.codec.queue import BUCKET_EXPONENT_MAX, NOT_KEPT, Attempt, Config, Cursor, Failed
from detent.codec.statelog import Run
from detent.queue.bucket import AVAILABLE, GONE, HELD, HIDDEN, READY, Bucket
from detent.queue.filters import Filter
from detent.queue.holdings import Holdings, Undo
from detent.queue.timers import TimerWheel

FAIR_EVERY: Final = 16
"""Of so many messages claimed while several priorities wait, the last is the oldest, whatever its priority. So a stream
of urgent messages leaves at least 1/16 of the deliveries to the others, and each message comes to the front in time."""

REPLAYED: Final = -1
"""The time of a replayed step: all that comes in is hidden until the clock is looked at."""

REVEAL, EXPIRE, EXPIRE_FAILED, FORGET_DONE = "reveal", "expire", "expire failed", "forget done"
"""What a timer of a queue is for."""


class Grant:
    """What one claim gave out: a lease on some messages, all until the same time."""

    __slots__ = ("claimed_ms", "consumer", "held", "lease_ms", "queue")

    def __init__(self, queue: int, claimed_ms: int, lease_ms: int, consumer: str) -> None:
        self.queue = queue
        self.claimed_ms = claimed_ms
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.held: dict[int, None] = {}


Flight = tuple[int, int, Grant]
"""A message in flight: its place, which delivery this is, and the lease. (A plain tuple: claims make thousands.)"""

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


def _ended(counter: str) -> int:
    """The time at which messages go, as far as their retention is concerned: past it, or before it."""
    return FOREVER if counter == "expired" else REPLAYED


_ZEROS: Final = array("H", bytes(2 * 10**BUCKET_EXPONENT_MAX))
_ONES: Final = array("H", [1]) * 10**BUCKET_EXPONENT_MAX


class QueueState:
    """One queue."""

    def __init__(self, name: str, config: Config, cursor: Cursor, wheel: TimerWheel, holdings: Holdings) -> None:
        self.name = name
        self.number = config.number
        self.config = config
        self.filter: Filter | None = None
        self.wheel = wheel
        self._holdings = holdings
        self.size: int = 10**config.bucket_exponent
        self.buckets: dict[int, Bucket] = {}
        self.heads: dict[int, list[int]] = {}  # by priority, a heap of the buckets that may have something to claim
        self.ready: dict[int, int] = {}  # by priority, how many can be claimed
        self.hidden = 0
        self.flights: dict[int, Flight] = {}
        self.failed: dict[int, Failed] = {}
        self.failed_buckets: dict[int, set[int]] = {}
        self.failed_due: dict[int, int] = {}  # the timers of failed buckets
        self.turn = 0
        self.deleted = False
        self.set_cursor(cursor)
        # What the next checkpoint writes.
        self.touched = False
        self.dead_buckets: set[int] = set()
        self.dirty_failed: set[int] = set()
        self.new_attempts: dict[int, list[Attempt]] = {}
        self.old_attempts: set[int] = set()
        self.done_messages, self.done_times, self.done_attempts = array("Q"), array("q"), array("H")

    def set_cursor(self, cursor: Cursor) -> None:
        """Stand where this says, having counted what it says."""
        (
            self.next_message,
            self.next_place,
            self.generation,
            self.done_records,
            self.routed,
            self.acked,
            self.failures,
            self.expired,
            self.purged,
            self.done_kept,
        ) = cursor

    @property
    def cursor(self) -> Cursor:
        """What the queue's cursor record says now."""
        return Cursor(
            self.next_message,
            self.next_place,
            self.generation,
            self.done_records,
            self.routed,
            self.acked,
            self.failures,
            self.expired,
            self.purged,
            self.done_kept,
        )

    @property
    def available(self) -> int:
        """Messages that nobody holds, visible or not."""
        return self.hidden + sum(self.ready.values())

    @property
    def claimable(self) -> int:
        """Messages that the next claim would find."""
        return 0 if self.config.paused else sum(self.ready.values())

    # -- routing ------------------------------------------------------------------------------------------------

    def route(self, run: Run, priority: int, now_ms: int, undo: Undo | None) -> None:
        """Messages come in, behind all others. Whoever calls this has noted that the queue holds them."""
        self.touched = True
        state = READY if run.visible_ms <= now_ms else HIDDEN
        left = run
        while left.length:
            bucket = self._tail()
            room = self.size - len(bucket)
            part = left if left.length <= room else left._replace(length=room)
            place = bucket.append(part, priority, state)
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
                bucket.ready = None  # nobody comes near it for a while
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

    # -- claiming -----------------------------------------------------------------------------------------------

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

    def grant(
        self,
        places: Sequence[int],
        claimed_ms: int,
        lease_ms: int,
        first_delivery: int,
        consumer: str,
        undo: Undo | None,
    ) -> list[int]:
        """The messages at these places are claimed; their numbers."""
        self.touched = True
        grant = Grant(self.number, claimed_ms, lease_ms, consumer)
        groups = self.spread(places)
        messages = picked("messages", groups)
        hidden: list[int] = []
        for bucket, rows in groups:
            hidden += self._hold(bucket, rows)
        deliveries = range(first_delivery, first_delivery + len(places))
        self.flights.update(zip(messages, zip(places, deliveries, repeat(grant)), strict=False))
        grant.held = dict.fromkeys(messages)
        self.turn += len(places)
        self.wheel.add(lease_ms, grant)
        if undo is not None:
            undo.append(partial(self._ungrant, grant, hidden))
        return messages

    def _hold(self, bucket: Bucket, rows: range | list[int]) -> list[int]:
        """Available places of a bucket become held ones. Answers those that were hidden, as replayed ones are."""
        states, attempts = bucket.states, bucket.attempts
        bucket.dirty = True
        count = len(rows)
        if isinstance(rows, range) and states.count(READY, rows.start, rows.stop) == count:
            span = slice(rows.start, rows.stop)
            if attempts[span] == _ZEROS[:count]:
                states[span] = bytes((HELD,)) * count
                attempts[span] = _ONES[:count]
                for priority, number in Counter(bucket.priorities[span]).items():
                    self._uncount(priority, READY, number)
                return []
        hidden = [bucket.number * self.size + row for row in rows if states[row] == HIDDEN]
        ready = rows if not hidden else [row for row in rows if states[row] != HIDDEN]
        for priority, count in Counter(pick(bucket.priorities, ready) if ready else ()).items():
            self._uncount(priority, READY, count)
        self.hidden -= len(hidden)
        for row in rows:
            assert states[row] in AVAILABLE, f"place {row} of bucket {bucket.number} is claimed and not available"
            states[row] = HELD
            attempts[row] += 1
        return hidden

    def _ungrant(self, grant: Grant, hidden: list[int]) -> None:
        self.wheel.cancel(grant.lease_ms, grant)
        self.turn -= len(grant.held)
        for message in list(grant.held):
            place = self.flights.pop(message)[0]
            bucket, row = self._at(place)
            bucket.attempts[row] -= 1
            state = HIDDEN if place in hidden else READY
            if state == READY:
                bucket.offer(row)
            else:
                bucket.states[row] = state
            self._count(bucket, bucket.priorities[row], state)
        grant.held.clear()

    def spread(self, places: Sequence[int]) -> Rows:
        """Places sorted by their bucket; their order stays."""
        size = self.size
        first = places[0] // size
        count, base = len(places), first * size
        if (places[0] + count - base) <= size and places == list(range(places[0], places[0] + count)):
            return [(self.buckets[first], range(places[0] - base, places[0] - base + count))]
        if min(places) // size == max(places) // size == first:
            return [(self.buckets[first], [place - base for place in places])]
        groups = groupby(places, lambda place: place // size)
        return [(self.buckets[number], [place % size for place in group]) for number, group in groups]

    def _at(self, place: int) -> tuple[Bucket, int]:
        return self.buckets[place // self.size], place % self.size

    def attempts_of(self, message: int) -> int:
        """How often a message in flight was claimed."""
        bucket, row = self._at(self.flights[message][0])
        return bucket.attempts[row]

    # -- ends of claims -----------------------------------------------------------------------------------------

    def _land(self, messages: Sequence[int], undo: Undo | None) -> tuple[Rows, list[Flight]]:
        """These messages are no longer in flight; their places are the caller's."""
        self.touched = True
        landed = list(map(self.flights.pop, messages))
        groups = self.spread([flight[0] for flight in landed])
        for bucket, _ in groups:
            bucket.dirty = True
        grants = {flight[2] for flight in landed}
        whole = len(grants) == 1 and len(landed[0][2].held) == len(messages)
        for message, flight in () if whole else zip(messages, landed, strict=True):
            del flight[2].held[message]
        for grant in grants:
            if whole:
                grant.held.clear()
            if not grant.held:
                self.wheel.cancel(grant.lease_ms, grant)
        if undo is not None:
            undo.append(partial(self._unland, messages, landed))
        return groups, landed

    def _unland(self, messages: Sequence[int], landed: list[Flight]) -> None:
        for message, flight in zip(messages, landed, strict=True):
            place, _, grant = flight
            self.flights[message] = flight
            if not grant.held:
                self.wheel.add(grant.lease_ms, grant)
            grant.held[message] = None
            bucket, row = self._at(place)
            bucket.states[row] = HELD

    def ack(self, messages: Sequence[int], at_ms: int, undo: Undo | None) -> None:
        """These are done."""
        groups, _ = self._land(messages, undo)
        attempts = picked("attempts", groups)
        self._vacate(groups, undo)
        self._release(messages, groups, at_ms, undo)
        if max(attempts) > 1:
            for message, count in zip(messages, attempts, strict=True):
                if count > 1:
                    self._forget_attempts(message, undo)
        self._tally("acked", len(messages), undo)
        if self.config.done_retention_s == NOT_KEPT:
            return
        self.done_messages.extend(messages)
        self.done_times.extend([at_ms] * len(messages))
        self.done_attempts.extend(attempts)
        self._tally("done_kept", len(messages), undo)
        if undo is not None:
            undo.append(partial(self._undone, len(messages)))

    def _release(self, messages: Sequence[int], groups: Rows, at_ms: int, undo: Undo | None) -> None:
        """The queue holds these messages no more."""
        offsets, counts, deadlines = (picked(name, groups) for name in ("offsets", "counts", "deadlines"))
        self._holdings.release_many(messages, offsets, counts, deadlines, at_ms, undo)

    def _undone(self, count: int) -> None:
        for column in (self.done_messages, self.done_times, self.done_attempts):
            del column[len(column) - count :]

    def give_back(self, message: int, at_ms: int, visible_ms: int, reason: str, now_ms: int, undo: Undo | None) -> None:
        """The message becomes available again, at its old place, at `visible_ms`."""
        ((bucket, (row,)),), ((_, _, grant),) = self._land([message], undo)
        old = bucket.visible[row]
        if bucket.deadlines[row] <= at_ms:
            visible_ms = FOREVER  # its retention ended while it was in flight: it goes with the next timer
        state = READY if visible_ms <= now_ms else HIDDEN
        bucket.visible[row] = visible_ms
        self._note_attempt(message, Attempt(grant.claimed_ms, grant.consumer, at_ms, reason), undo)
        if state == READY:
            bucket.offer(row)
        else:
            bucket.states[row] = HIDDEN
            self.arm_reveal(bucket, visible_ms)
        self._count(bucket, bucket.priorities[row], state)
        self.arm_expire(bucket, bucket.deadlines[row])
        if undo is not None:
            undo.append(partial(self._take_back, bucket, row, old, state))

    def _take_back(self, bucket: Bucket, row: int, visible_ms: int, state: int) -> None:
        bucket.visible[row] = visible_ms
        bucket.ready = None  # it would be offered twice when it comes back again
        self._uncount(bucket.priorities[row], state)

    def fail(self, message: int, at_ms: int, reason: str, undo: Undo | None) -> None:
        """The message has failed for good; the queue's policy says whether it is kept."""
        ((bucket, (row,)),), ((_, delivery, grant),) = self._land([message], undo)
        offset, count = bucket.offsets[row], bucket.counts[row]
        failed = Failed(
            message,
            at_ms,
            bucket.attempts[row],
            bucket.priorities[row],
            bucket.deadlines[row],
            delivery,
            offset,
            count,
            reason,
        )
        self._vacate([(bucket, [row])], undo)
        self._tally("failures", 1, undo)
        if self.config.failed_policy == "discard":
            self._forget_attempts(message, undo)
            self._holdings.release(message, offset, count, failed.deadline_ms, at_ms, undo)
            return
        self._note_attempt(message, Attempt(grant.claimed_ms, grant.consumer, at_ms, reason), undo)
        self.add_failed(failed)
        if undo is not None:
            undo.append(partial(self._unfail, message))

    def extend(self, messages: Sequence[int], lease_ms: int, undo: Undo | None) -> None:
        """The leases on these messages end at another time."""
        self.touched = True
        grants: dict[Grant, Grant] = {}
        for message in messages:
            flight = self.flights[message]
            place, _, old = flight
            new = grants.get(old)
            if new is None:
                new = grants[old] = Grant(self.number, old.claimed_ms, lease_ms, old.consumer)
                self.wheel.add(lease_ms, new)
            self._move(message, flight, old, new)
            bucket, _ = self._at(place)
            bucket.dirty = True
            if undo is not None:
                undo.append(partial(self._move_back, message, flight, new))

    def _move(self, message: int, flight: Flight, old: Grant, new: Grant) -> None:
        self.flights[message] = (flight[0], flight[1], new)
        new.held[message] = None
        del old.held[message]
        if not old.held:
            self.wheel.cancel(old.lease_ms, old)

    def _move_back(self, message: int, flight: Flight, new: Grant) -> None:
        old = flight[2]
        if not old.held:
            self.wheel.add(old.lease_ms, old)
        self._move(message, flight, new, old)

    def _tally(self, counter: str, count: int, undo: Undo | None) -> None:
        value: int = getattr(self, counter)
        setattr(self, counter, value + count)
        if undo is not None:
            undo.append(partial(setattr, self, counter, value))

    def _vacate(self, groups: Rows, undo: Undo | None) -> None:
        """These places are left for good. A bucket that nobody is in any more goes."""
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
        bucket.listed.clear()  # whoever looks for it under a priority finds it gone, and drops it there
        self._disarm(bucket)
        if bucket.stored:
            self.dead_buckets.add(bucket.number)

    # -- available messages that go -----------------------------------------------------------------------------

    def remove(self, places: Sequence[int], counter: str) -> None:
        """Available messages go: their retention has ended, or somebody purges them. Never taken back."""
        if not places:
            return
        self.touched = True
        groups = self.spread(places)
        messages = picked("messages", groups)
        for bucket, rows in groups:
            bucket.dirty = True
            for row in rows:
                state = bucket.states[row]
                assert state in AVAILABLE, f"place {row} of bucket {bucket.number} is not available"
                self._uncount(bucket.priorities[row], state)
                if bucket.attempts[row]:
                    self._forget_attempts(bucket.messages[row], None)
        self._vacate(groups, None)
        self._release(messages, groups, _ended(counter), None)
        self._tally(counter, len(places), None)

    def available_places(self, bucket: Bucket) -> list[int]:
        """The places of a bucket's available messages, oldest first."""
        base = bucket.number * self.size
        places: list[int] = (bucket.available()["place"].astype(np.int64) + base).tolist()
        return places

    def land_all(self) -> None:
        """The queue is deleted: what was in flight is merely there, and nobody's."""
        if not self.flights:
            return
        groups, landed = self._land(list(self.flights), None)
        for bucket, rows in groups:
            for row in rows:
                bucket.states[row] = HIDDEN
        self.hidden += len(landed)

    # -- looking for messages -----------------------------------------------------------------------------------

    def places_of(self, messages: np.ndarray) -> list[int]:
        """The places of those of these messages that are available here."""
        if not len(messages) or not self.available:
            return []
        found: list[int] = []
        for bucket in self.buckets.values():
            table = bucket.available()
            rows = table["place"][np.isin(table["message"], messages)]
            found += [bucket.number * self.size + row for row in rows.tolist()]
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

    def place_of(self, message: int) -> int | None:
        """The place of a message that is available or in flight here."""
        flight = self.flights.get(message)
        if flight is not None:
            return flight[0]
        places = self.places_of(np.array([message], np.uint64))
        return places[0] if places else None

    def holds(self, messages: np.ndarray) -> set[int]:
        """Those of these messages that the queue has: available, in flight or failed."""
        held = {message for message in messages.tolist() if message in self.flights or message in self.failed}
        for place in self.places_of(messages):
            bucket, row = self._at(place)
            held.add(bucket.messages[row])
        return held

    # -- failed messages ----------------------------------------------------------------------------------------

    def failed_bucket(self, message: int) -> int:
        """The record that holds a failed message."""
        return message // int(self.size)

    def add_failed(self, failed: Failed) -> None:
        """Remember a failed message, which is held."""
        number = self.failed_bucket(failed.message)
        self.failed[failed.message] = failed
        self.failed_buckets.setdefault(number, set()).add(failed.message)
        self.dirty_failed.add(number)
        if failed.deadline_ms < self.failed_due.get(number, FOREVER):
            self.failed_due[number] = failed.deadline_ms
            self.wheel.add(failed.deadline_ms, (EXPIRE_FAILED, self.number, number))

    def _unfail(self, message: int) -> None:
        self._remove_failed(message)

    def _remove_failed(self, message: int) -> Failed:
        number = self.failed_bucket(message)
        self.failed_buckets[number].remove(message)
        if not self.failed_buckets[number]:
            del self.failed_buckets[number]
            due = self.failed_due.pop(number, None)
            if due is not None:
                self.wheel.cancel(due, (EXPIRE_FAILED, self.number, number))
        self.dirty_failed.add(number)
        return self.failed.pop(message)

    def drop_failed(self, messages: Sequence[int], counter: str | None) -> list[Failed]:
        """Failed messages go: purged, expired, or (without a counter) elsewhere, still held. Never taken back."""
        self.touched = True
        found = [self._remove_failed(message) for message in messages]
        for failed in found:
            self._forget_attempts(failed.message, None)
            if counter is not None:
                place = (failed.offset, failed.record_count, failed.deadline_ms)
                self._holdings.release(failed.message, *place, _ended(counter), None)
        if counter is not None:
            self._tally(counter, len(found), None)
        return found

    def failed_to_expire(self, number: int, now_ms: int) -> list[int]:
        """The messages of a failed bucket whose retention has ended; its timer is set for the others."""
        messages = self.failed_buckets.get(number, set())
        due = sorted(message for message in messages if self.failed[message].deadline_ms <= now_ms)
        left = min((at for m in messages if (at := self.failed[m].deadline_ms) > now_ms), default=FOREVER)
        self.failed_due.pop(number, None)
        if left < FOREVER:
            self.failed_due[number] = left
            self.wheel.add(left, (EXPIRE_FAILED, self.number, number))
        return due

    # -- attempts -----------------------------------------------------------------------------------------------

    def _note_attempt(self, message: int, attempt: Attempt, undo: Undo | None) -> None:
        self.new_attempts.setdefault(message, []).append(attempt)
        if undo is not None:
            undo.append(partial(self._unnote_attempt, message))

    def _unnote_attempt(self, message: int) -> None:
        attempts = self.new_attempts[message]
        attempts.pop()
        if not attempts:
            del self.new_attempts[message]

    def _forget_attempts(self, message: int, undo: Undo | None) -> None:
        new = self.new_attempts.pop(message, None)
        added = message not in self.old_attempts
        self.old_attempts.add(message)
        if undo is not None:
            undo.append(partial(self._unforget_attempts, message, new, added))

    def _unforget_attempts(self, message: int, new: list[Attempt] | None, added: bool) -> None:
        if new is not None:
            self.new_attempts[message] = new
        if added:
            self.old_attempts.discard(message)

    # -- timers -------------------------------------------------------------------------------------------------

    def arm_reveal(self, bucket: Bucket, at_ms: int) -> None:
        """Look at the bucket when a hidden message becomes visible."""
        if at_ms < bucket.reveal_ms:
            bucket.reveal_ms = at_ms
            self.wheel.add(at_ms, (REVEAL, self.number, bucket.number))

    def arm_expire(self, bucket: Bucket, at_ms: int) -> None:
        """Look at the bucket when a message's retention ends."""
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
        if next_ms > now_ms:
            self.arm_expire(bucket, next_ms)
        else:
            self._rearm_after(bucket, now_ms)
        base = number * self.size
        return [base + row for row in rows]

    def _rearm_after(self, bucket: Bucket, now_ms: int) -> None:
        later = [d for d, s in zip(bucket.deadlines, bucket.states, strict=True) if s in {HIDDEN, READY} and d > now_ms]
        if later:
            self.arm_expire(bucket, min(later))
