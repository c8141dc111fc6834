"""What the owner remembers of one queue: its places, who holds what until when, what has failed.

Every change here is made twice in the same way: when it happens, and when the state log is replayed. A change that
belongs to a transaction says how to take it back.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Final

import numpy as np

from detent.codec.published import FOREVER
from detent.codec.queue import BUCKET_EXPONENT_MAX, DONE_MESSAGE, NOT_KEPT, AttemptRecord, Config, Failed, QueueCursor
from detent.queue import operations as ops
from detent.queue.bucket import AVAILABLE, HELD, HIDDEN, READY, Bucket
from detent.queue.failures import FailedList
from detent.queue.filters import Filter
from detent.queue.grant import Flight, OpenClaim
from detent.queue.holdings import Holdings, Undo
from detent.queue.places import Places, Rows, pick, picked
from detent.queue.readers import Readers
from detent.queue.timers import TimerWheel

REPLAYED: Final = -1
"""The time of a replayed step: all that comes in is hidden until the clock is looked at."""

FORGET_DONE: Final = "forget done"
"""What a timer of done messages is for."""


def _ended(counter: str) -> int:
    """The time at which messages go, as far as their retention is concerned: past it, or before it."""
    return FOREVER if counter == "expired" else REPLAYED


_ZEROS: Final = array("H", bytes(2 * 10**BUCKET_EXPONENT_MAX))
_ONES: Final = array("H", [1]) * 10**BUCKET_EXPONENT_MAX


class QueueState(Places, FailedList, Readers):
    """One queue."""

    def __init__(self, name: str, config: Config, cursor: QueueCursor, wheel: TimerWheel, holdings: Holdings) -> None:
        Places.__init__(self, config, wheel)
        FailedList.__init__(self)
        Readers.__init__(self)
        self.name = name
        self.filter: Filter | None = None
        self._holdings = holdings
        self.flights: dict[int, Flight] = {}
        self.deleted = False
        self.set_cursor(cursor)
        # What the next checkpoint writes.
        self.done_messages, self.done_times, self.done_attempts = array("Q"), array("q"), array("H")

    def set_cursor(self, cursor: QueueCursor) -> None:
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
            self.dead_lettered,
        ) = cursor

    @property
    def cursor(self) -> QueueCursor:
        """What the queue's cursor record says now."""
        return QueueCursor(
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
            self.dead_lettered,
        )

    def take_over(self, empty: QueueState) -> None:
        """Go on as a queue that has no messages does; this one has other rules for those that come."""
        self.set_cursor(empty.cursor)
        self.turn, self.touched = empty.turn, True
        self.done_messages, self.done_times, self.done_attempts = (
            empty.done_messages,
            empty.done_times,
            empty.done_attempts,
        )
        self.dirty_failed, self.old_attempts = empty.dirty_failed, empty.old_attempts
        self.old_origins = empty.old_origins
        self.readers, self.dirty_readers = empty.readers, empty.dirty_readers
        self.buckets, self.dead_buckets = empty.buckets, empty.dead_buckets
        for bucket in self.buckets.values():
            bucket.groups = [None] * len(bucket) if self.config.group_header else None
            bucket.ready = None
            bucket.listed.clear()

    def _tally(self, counter: str, count: int, undo: Undo | None) -> None:
        value: int = getattr(self, counter)
        setattr(self, counter, value + count)
        if undo is not None:
            undo.append(partial(setattr, self, counter, value))

    # -- claiming ----------------------------------------------------------------------------------------------------

    def grant(
        self,
        places: Sequence[int],
        claimed_ms: int,
        lease_ms: int,
        first_delivery: int,
        consumer: str,
        undo: Undo | None,
    ) -> tuple[list[int], Rows]:
        """The messages at these places are claimed; their numbers, and where they are."""
        self.touched = True
        grant = OpenClaim(self.number, claimed_ms, lease_ms, consumer)
        groups = self.spread(places)
        messages = picked("messages", groups)
        hidden: list[int] = []
        often: list[int] = []
        for bucket, rows in groups:
            hidden += self._hold(bucket, rows, often)
        deliveries = range(first_delivery, first_delivery + len(places))
        self.flights.update(zip(messages, zip(places, deliveries, repeat(grant)), strict=False))
        grant.held = dict.fromkeys(messages)
        self.turn += len(places)
        self.wheel.add(lease_ms, grant)
        if undo is not None:
            undo.append(partial(self._ungrant, grant, hidden, often))
        return messages, groups

    def _hold(self, bucket: Bucket, rows: range | list[int], often: list[int]) -> list[int]:
        """Available places of a bucket become held ones. Answers those that were hidden, as replayed ones are; those
        that were claimed so often that they are not counted on join `often`."""
        states, attempts = bucket.states, bucket.attempts
        bucket.dirty = True
        count = len(rows)
        if count == 1 and states[rows[0]] == READY and attempts[rows[0]] < ops.ATTEMPTS_MAX:
            row = rows[0]
            states[row] = HELD
            attempts[row] += 1
            self._uncount(bucket.priorities[row], READY)
            return []
        if isinstance(rows, range) and states.count(READY, rows.start, rows.stop) == count:
            span = slice(rows.start, rows.stop)
            if attempts[span] == _ZEROS[:count]:
                states[span] = bytes((HELD,)) * count
                attempts[span] = _ONES[:count]
                self._uncount_span(bucket, rows)
                return []
        hidden = [bucket.number * self.size + row for row in rows if states[row] == HIDDEN]
        ready = rows if not hidden else [row for row in rows if states[row] != HIDDEN]
        for priority, count in Counter(pick(bucket.priorities, ready) if ready else ()).items():
            self._uncount(priority, READY, count)
        self.hidden -= len(hidden)
        for row in rows:
            assert states[row] in AVAILABLE, f"place {row} of bucket {bucket.number} is claimed and not available"
            states[row] = HELD
            self._count_attempt(bucket, row, often)
        return hidden

    def _count_attempt(self, bucket: Bucket, row: int, often: list[int]) -> None:
        if bucket.attempts[row] < ops.ATTEMPTS_MAX:
            bucket.attempts[row] += 1
        else:
            often.append(bucket.number * self.size + row)

    def _uncount_span(self, bucket: Bucket, rows: range) -> None:
        priorities, count = bucket.priorities, len(rows)
        first = priorities[rows.start]
        if priorities.count(first, rows.start, rows.stop) == count:
            self._uncount(first, READY, count)
            return
        for priority, number in Counter(priorities[rows.start : rows.stop]).items():
            self._uncount(priority, READY, number)

    def _ungrant(self, grant: OpenClaim, hidden: list[int], often: list[int]) -> None:
        self.wheel.cancel(grant.lease_ms, grant)
        self.turn -= len(grant.held)
        for message in list(grant.held):
            place = self.flights.pop(message)[0]
            bucket, row = self._at(place)
            if place not in often:
                bucket.attempts[row] -= 1
            self._unhold(bucket, row, HIDDEN if place in hidden else READY)
        grant.held.clear()

    def _unhold(self, bucket: Bucket, row: int, state: int) -> None:
        """A place that was held was not: the claim is taken back."""
        self._return(bucket, row, state)

    def _return(self, bucket: Bucket, row: int, state: int) -> None:
        """A place that was held is available again."""
        if state == READY:
            bucket.offer(row)
        else:
            bucket.states[row] = HIDDEN
            self.arm_reveal(bucket, bucket.visible[row])
        self._count(bucket, bucket.priorities[row], state)

    def attempts_of(self, message: int) -> int:
        """How often a message in flight was claimed."""
        bucket, row = self._at(self.flights[message][0])
        return bucket.attempts[row]

    def record_of(self, message: int) -> int:
        """The first message of the record that holds a message in flight."""
        return message - self.offset_of(message)

    def offset_of(self, message: int) -> int:
        """Where a message in flight is in its record."""
        bucket, row = self._at(self.flights[message][0])
        return bucket.offsets[row]

    # -- ends of claims ----------------------------------------------------------------------------------------------

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
        self._forget_origins(messages, undo)
        self._tally("acked", len(messages), undo)
        if self.config.done_retention_s == NOT_KEPT:
            return
        count = len(messages)
        self.done_messages.extend(messages)
        self.done_times.extend(array("q", (at_ms,)) * count)
        self.done_attempts.extend(attempts)
        self._tally("done_kept", count, undo)
        if undo is not None:
            undo.append(partial(self._undone, count))

    def _forget_origins(self, messages: Sequence[int], undo: Undo | None) -> None:
        for message in messages if self.origins else ():
            self.forget_origin(message, undo)

    def done_table(self) -> np.ndarray:
        """The done messages that no checkpoint has written yet, as their records will have them."""
        table = np.empty(len(self.done_messages), DONE_MESSAGE)
        table["message"] = self.done_messages
        table["done_ms"] = self.done_times
        table["attempts"] = self.done_attempts
        return table

    def _undone(self, count: int) -> None:
        for column in (self.done_messages, self.done_times, self.done_attempts):
            del column[len(column) - count :]

    def give_back(self, message: int, at_ms: int, visible_ms: int, reason: str, now_ms: int, undo: Undo | None) -> None:
        """The message becomes available again, at its old place, at `visible_ms`."""
        ((bucket, (row,)),), ((_, _, grant),) = self._land([message], undo)
        self._note_attempt(message, AttemptRecord(grant.claimed_ms, grant.consumer, at_ms, reason), undo)
        self._come_back(bucket, row, at_ms, visible_ms, now_ms, undo)

    def put_back(self, messages: Sequence[int], at_ms: int, now_ms: int, undo: Undo | None) -> None:
        """These are available again at once, at their old places, as if they had not been claimed."""
        groups, _ = self._land(messages, undo)
        for bucket, rows in groups:
            for row in rows:
                attempts = bucket.attempts[row]
                if attempts < ops.ATTEMPTS_MAX:  # there the count has stopped
                    bucket.attempts[row] = attempts - 1
                if undo is not None:
                    undo.append(partial(bucket.attempts.__setitem__, row, attempts))
                self._come_back(bucket, row, at_ms, at_ms, now_ms, undo)

    def _come_back(self, bucket: Bucket, row: int, at_ms: int, visible_ms: int, now_ms: int, undo: Undo | None) -> None:
        """A place that was held is available again, from `visible_ms` on."""
        old = bucket.visible[row]
        if bucket.deadlines[row] < at_ms:
            visible_ms = FOREVER  # its retention ended while it was in flight: it goes with the next timer
        state = READY if visible_ms <= now_ms else HIDDEN
        bucket.visible[row] = visible_ms
        self._return(bucket, row, state)
        self.arm_expire(bucket, bucket.deadlines[row])
        if undo is not None:
            undo.append(partial(self._take_back, bucket, row, old, state))

    def _take_back(self, bucket: Bucket, row: int, visible_ms: int, state: int) -> None:
        bucket.visible[row] = visible_ms
        bucket.ready = None  # it would be offered twice when it comes back again
        self._uncount(bucket.priorities[row], state)

    def _give_up(self, message: int, at_ms: int, reason: str, undo: Undo | None) -> tuple[Failed, OpenClaim]:
        """The message leaves its place after its last attempt, and is still held."""
        ((bucket, (row,)),), ((_, delivery, grant),) = self._land([message], undo)
        failed = Failed(
            message,
            at_ms,
            bucket.attempts[row],
            bucket.priorities[row],
            bucket.deadlines[row],
            delivery,
            bucket.offsets[row],
            bucket.counts[row],
            reason,
        )
        self._vacate([(bucket, [row])], undo)
        self._tally("failures", 1, undo)
        return failed, grant

    def hand_over(self, message: int, at_ms: int, undo: Undo | None) -> Failed:
        """The message was given up and goes to another queue, which holds it from now on."""
        failed, _ = self._give_up(message, at_ms, "", undo)
        self._forget_attempts(message, undo)
        self.forget_origin(message, undo)
        self._tally("dead_lettered", 1, undo)
        return failed

    def fail(self, message: int, at_ms: int, reason: str, undo: Undo | None) -> None:
        """The message has failed for good; the queue's policy says whether it is kept. What a dead letter queue could
        not take is."""
        failed, grant = self._give_up(message, at_ms, reason, undo)
        if self.config.failed_policy == "discard" and not self.config.dead_letter:
            self._forget_attempts(message, undo)
            self.forget_origin(message, undo)
            place = (failed.offset, failed.record_count, failed.deadline_ms)
            self._holdings.release(message, *place, at_ms, undo)
            return
        self._note_attempt(message, AttemptRecord(grant.claimed_ms, grant.consumer, at_ms, reason), undo)
        self.add_failed(failed)
        if undo is not None:
            undo.append(partial(self._unfail, message))

    def reconfigured(self) -> None:
        """The queue has other settings."""

    def land(self, messages: Sequence[int]) -> None:
        """The queue is deleted or purged: what was in flight is merely there, and no consumer's."""
        if not messages:
            return
        groups, landed = self._land(messages, None)
        for bucket, rows in groups:
            for row in rows:
                bucket.states[row] = HIDDEN
                self.arm_expire(bucket, bucket.deadlines[row])  # as an owner does that takes over
        self.hidden += len(landed)

    # -- extending ---------------------------------------------------------------------------------------------------

    def extend(self, messages: Sequence[int], lease_ms: int, undo: Undo | None) -> None:
        """The leases on these messages end at another time."""
        self.touched = True
        grants: dict[OpenClaim, OpenClaim] = {}
        for message in messages:
            flight = self.flights[message]
            place, _, old = flight
            new = grants.get(old)
            if new is None:
                new = grants[old] = OpenClaim(self.number, old.claimed_ms, lease_ms, old.consumer)
                self.wheel.add(lease_ms, new)
            self._move(message, flight, old, new)
            bucket, _ = self._at(place)
            bucket.dirty = True
            if undo is not None:
                undo.append(partial(self._move_back, message, flight, new))

    def _move(self, message: int, flight: Flight, old: OpenClaim, new: OpenClaim) -> None:
        self.flights[message] = (flight[0], flight[1], new)
        new.held[message] = None
        del old.held[message]
        if not old.held:
            self.wheel.cancel(old.lease_ms, old)

    def _move_back(self, message: int, flight: Flight, new: OpenClaim) -> None:
        old = flight[2]
        if not old.held:
            self.wheel.add(old.lease_ms, old)
        self._move(message, flight, new, old)

    # -- what goes ---------------------------------------------------------------------------------------------------

    def remove(self, places: Sequence[int], counter: str) -> None:
        """Available messages go: their retention has ended, or they are purged. Never taken back."""
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
        self._forget_origins(messages, None)
        self._vacate(groups, None)
        self._release(messages, groups, _ended(counter), None)
        self._tally(counter, len(places), None)

    def drop_failed(self, messages: Sequence[int], counter: str | None) -> list[Failed]:
        """Failed messages go: purged, expired, or (without a counter) elsewhere, still held. Never taken back."""
        self.touched = True
        found = [self._remove_failed(message) for message in messages]
        for failed in found:
            self._forget_attempts(failed.message, None)
            if counter is not None:
                self.forget_origin(failed.message, None)
                place = (failed.offset, failed.record_count, failed.deadline_ms)
                self._holdings.release(failed.message, *place, _ended(counter), None)
        if counter is not None:
            self._tally(counter, len(found), None)
        return found

    def _release(self, messages: Sequence[int], groups: Rows, at_ms: int, undo: Undo | None) -> None:
        """The queue holds these messages no more."""
        offsets, counts, deadlines = (picked(name, groups) for name in ("offsets", "counts", "deadlines"))
        self._holdings.release_many(messages, offsets, counts, deadlines, at_ms, undo)

    # -- looking for messages ----------------------------------------------------------------------------------------

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
