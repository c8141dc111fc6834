"""What the owner does by itself for the queues, in bounded steps: timers, catching up, collecting, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from detent.codec import log, published, statelog
from detent.codec import queue as records
from detent.codec.published import LOG_KEY, Metadata
from detent.codec.queue import NOT_KEPT
from detent.codec.statelog import Run
from detent.engine import Context, Done, Operation, Result
from detent.kv import View
from detent.queue import checkpoint, claiming, publishing
from detent.queue import operations as ops
from detent.queue.failures import EXPIRE_FAILED
from detent.queue.grant import Grant
from detent.queue.holdings import LIVE, Segment
from detent.queue.places import EXPIRE, REVEAL
from detent.queue.router import filter_of
from detent.queue.settings import group_of, priority_of
from detent.queue.state import FORGET_DONE, QueueState
from detent.queue.timers import TimerWheel

if TYPE_CHECKING:
    from detent.queue.machine import QueueMachine

TIMERS_PER_STEP: Final = 4_096
LEASES_PER_GROUP: Final = 1_000
"""Messages whose leases end in one group. The claim that brings a group to this is its last one, so there can be more
by what one claim gave out. Each message that becomes a dead letter costs up to 50 microseconds, and every caller of the
store waits for that."""

CATCH_UP_STEP: Final = 10_000
"""Messages of the log that a queue reads in one step."""

COLLECT_RECORDS: Final = 2_000
"""Records removed in one step, of each kind."""

COLLECT_BUCKETS: Final = 10
DEDUP: Final = ("dedup",)

QUIET_MS: Final = 60_000
"""The newest segment of the log goes like the others, once nothing was published for so long. In a busy store its turn
comes anyway, and each one costs a few records."""


class Work:
    """What is to be done, and what the timers for it are set to."""

    def __init__(self) -> None:
        self.done_due: set[int] = set()
        self.dedup_due = False
        self._done_ms: dict[int, int] = {}
        self._dedup_ms = published.FOREVER

    def arm_done(self, wheel: TimerWheel, state: QueueState, from_ms: int) -> None:
        """Look at a queue's done messages when the first of them is to be forgotten."""
        retention_s = state.config.done_retention_s
        if retention_s in {0, NOT_KEPT}:
            return
        at_ms = from_ms + retention_s * 1000 + 1
        if at_ms < self._done_ms.get(state.number, published.FOREVER):
            self._done_ms[state.number] = at_ms
            wheel.add(at_ms, (FORGET_DONE, state.number))

    def arm_dedup(self, wheel: TimerWheel, expires_ms: int) -> None:
        """Look at the dedup keys when the first of them has been held for its time."""
        at_ms = expires_ms + 1
        if at_ms < self._dedup_ms:
            self._dedup_ms = at_ms
            wheel.add(at_ms, DEDUP)

    def fired(self, name: Any) -> None:
        """A timer of this went off."""
        if name == DEDUP:
            self._dedup_ms = published.FOREVER
            self.dedup_due = True
        else:
            self._done_ms.pop(name[1], None)
            self.done_due.add(name[1])


# -- timers -----------------------------------------------------------------------------------------------------


def advance(machine: QueueMachine, now_ms: int) -> None:
    """Fire the timers that are due, and those that this sets and that are due as well.

    It belongs to no transaction and is not taken back with one: whatever the group does, this has happened. Leases that
    a group has no room for keep their timers for the next one: they are over all the same, and refuse their receipts.
    Other timers do not wait for them: what has ended its retention must not be claimed.
    """
    if now_ms != machine.now_ms:
        machine.may_end = LEASES_PER_GROUP  # this is another group: one has the same time all along
    machine.now_ms = now_ms
    due_ms = machine.wheel.next_ms()
    if due_ms is None or due_ms > now_ms or machine.may_end <= 0:
        return
    left = TIMERS_PER_STEP
    later: list[Grant] = []
    while left > 0 and (names := machine.wheel.due(now_ms, left)):
        left -= len(names)
        machine.fired = True
        over: list[Grant] = []
        for name in names:
            if isinstance(name, Grant):
                (over if machine.may_end > 0 else later).append(name)
                machine.may_end -= len(name.held)
        claiming.expire_leases(machine, over, now_ms)
        for name in names:
            if not isinstance(name, Grant):
                _fire(machine, name, now_ms)
    for grant in later:
        machine.wheel.add(grant.lease_ms, grant)


def _fire(machine: QueueMachine, name: Any, now_ms: int) -> None:
    kind = name[0]
    if kind == FORGET_DONE or name == DEDUP:
        machine.housekeeper.fired(name)
        return
    state = machine.by_number.get(name[1])
    if state is None:
        return
    if kind == REVEAL:
        state.reveal(name[2], now_ms)
    elif kind == EXPIRE:
        places = state.to_expire(name[2], now_ms)
        if places:
            machine.log_step(statelog.encode_expired(statelog.EXPIRE, state.number, places), None)
            state.remove(places, "expired")
    elif kind == EXPIRE_FAILED:
        messages = state.failed_to_expire(name[2], now_ms)
        if messages:
            machine.log_step(statelog.encode_expired(statelog.EXPIRE_FAILED, state.number, messages), None)
            state.drop_failed(messages, "expired")


def run_timers(machine: QueueMachine, op: ops.Advance, context: Context) -> Result:
    """The housekeeper fires the timers, which every operation does before anything else."""
    del op
    if not machine.steps:
        context.idle += 1
        machine.committed()  # what has become visible needs no commit, and somebody may wait for it
    return Done()


# -- what is due ------------------------------------------------------------------------------------------------


def due(machine: QueueMachine, now_ms: int) -> Iterator[Operation]:
    """The steps that there are to take now."""
    if machine.published_ms is None:
        machine.published_ms = now_ms  # by another owner, some time before
    next_ms = machine.wheel.next_ms()
    if machine.fired or (next_ms is not None and next_ms <= now_ms):
        yield ops.Advance()
    for state in list(machine.behind.values()):
        if not state.config.paused:
            yield ops.CatchUp(state.number)
    if _to_collect(machine, now_ms):
        yield ops.Collect()
    if (machine.next_record > machine.first_record or machine.steps) and checkpoint.is_due(machine, now_ms):
        yield ops.Checkpoint()
    machine.look_ms = next_look_ms(machine, now_ms)
    machine.committed()  # once more: whoever was woken before may have gone away, and others still wait


def next_look_ms(machine: QueueMachine, now_ms: int) -> int | None:
    """When there is something to do."""
    behind = machine.behind
    if _to_collect(machine, now_ms) or (behind and any(not state.config.paused for state in behind.values())):
        return now_ms
    times = (machine.wheel.next_ms(), quiet_ms(machine))
    return min((at for at in times if at is not None), default=None)


def quiet_ms(machine: QueueMachine) -> int | None:
    """When the newest segment of the log goes as well, if nothing more is published; None if messages need it."""
    if machine.published_ms is None or not machine.holdings.newest_is_dead(machine.passed(), machine.log_end):
        return None
    return machine.published_ms + QUIET_MS


def _to_collect(machine: QueueMachine, now_ms: int) -> bool:
    work = machine.housekeeper
    quiet = quiet_ms(machine)
    if quiet is not None and quiet <= now_ms:
        return True
    return bool(
        machine.deleted
        or work.done_due
        or work.dedup_due
        or machine.holdings.dead_segment(machine.passed()) is not None
    )


def request_checkpoint(machine: QueueMachine, op: ops.Checkpoint, context: Context) -> Result:
    """The group in progress ends with a checkpoint."""
    del context
    machine.checkpoint_wanted = True
    if op.closing:
        block = machine.allocator.give_back()
        if block is not None:
            machine.write(log.SEQUENCE_BLOCK_KEY, block.encode(), None)
    return Done()


# -- catching up ------------------------------------------------------------------------------------------------


def catch_up(machine: QueueMachine, op: ops.CatchUp, context: Context) -> Result:
    """A queue that is behind reads some more of the log, and takes what matches its filter and still exists."""
    state = machine.behind.get(op.queue)
    if state is None or state.config.paused:
        context.idle += 1
        return Done()
    matching = filter_of(state).matches
    runs: list[tuple[Run, int, bytes | None]] = []
    read, at = 0, state.next_message
    with machine.reader.view() as view:
        for entry in entries_from(machine, view, at):
            for index, message in enumerate(entry):
                stays = machine.holdings.count(message.message) and message.deadline_ms >= context.now_ms
                if stays and matching(message.headers):
                    run = Run(message.message, 1, index, len(entry), message.visible_ms, message.deadline_ms)
                    config, headers = state.config, message.headers
                    runs.append((run, priority_of(config, headers), group_of(config, headers)))
            at = entry[-1].message + 1
            read += len(entry)
            if read >= CATCH_UP_STEP:
                break
    if read < CATCH_UP_STEP:
        at = LIVE  # it has read all there is
    machine.log_step(statelog.encode_routed(state.number, at, runs), None)
    routed(machine, state, at, runs, context.now_ms)
    return Done()


def routed(
    machine: QueueMachine,
    state: QueueState,
    next_message: int,
    runs: Sequence[tuple[Run, int, bytes | None]],
    now_ms: int,
) -> None:
    """A queue has read up to a message, and takes these. Once at the end, it takes part in publishes."""
    for run, priority, group in runs:
        machine.holdings.hold(run.first, run.length, 1, None)
        state.route(run, priority, now_ms, None, group)
    taken = np.array([run.first for run, _, _ in runs], np.uint64)
    places = machine.own.places_of(taken)
    if places:
        machine.own.remove(places, "purged")  # the store need not keep what a queue has
    state.next_message = next_message
    state.touched = True
    if next_message == LIVE:
        machine.behind.pop(state.number, None)
        machine.router.add(state)
    machine.note_behind()


def entries_from(machine: QueueMachine, view: View, start: int) -> Iterator[list[Metadata]]:
    """The log's entries from a message on: those that are durable, then those of the group in progress."""
    segments = machine.holdings.segments
    for index, segment in enumerate(segments):
        end = segments[index + 1].start if index + 1 < len(segments) else None
        if end is not None and end <= start:
            continue
        first, last = log.entry_range(segment.number, LOG_KEY, max(0, start - segment.start))
        for key, value in view.scan(first, last):
            if key not in machine.writes:
                yield published.decode_metadata(value)
    for first_message in machine.published:
        if first_message >= start:
            entry = machine.writes[machine.holdings.entry_key(first_message)]
            assert entry is not None
            yield published.decode_metadata(entry)


# -- collecting -------------------------------------------------------------------------------------------------


def collect(machine: QueueMachine, op: ops.Collect, context: Context) -> Result:
    """Remove a bounded number of records that nobody needs."""
    del op
    now_ms = context.now_ms
    work = machine.housekeeper
    with machine.reader.view() as view:
        for number in list(work.done_due):
            _forget_done(machine, number, now_ms, view)
        if work.dedup_due:
            _forget_keys(machine, now_ms, view)
        for state in list(machine.deleted.values()):
            _reap(machine, state, view)
        quiet = quiet_ms(machine)
        if quiet is not None and quiet <= now_ms:
            publishing.write_segment(machine, machine.holdings.end_newest(machine.log_end), now_ms, None)
        segment = machine.holdings.dead_segment(machine.passed())
        if segment is not None:
            _drop_segment(machine, segment, view)
    machine.checkpoint_wanted = True
    return Done()


def _forget_done(machine: QueueMachine, number: int, now_ms: int, view: View) -> None:
    work, state = machine.housekeeper, machine.by_number.get(number)
    if state is None or state.deleted or state.config.done_retention_s == 0:
        work.done_due.discard(number)
        return
    retention_s = state.config.done_retention_s
    before_ms = now_ms + 1 if retention_s == NOT_KEPT else now_ms - retention_s * 1000
    # The first record is the empty one that a queue begins with; one more than a step removes tells whether to go on.
    scan = view.scan(*records.queue_range(records.DONE, number), limit=COLLECT_RECORDS + 2)
    for count, (key, value) in enumerate(scan):
        if len(key) == records.EMPTY_DONE_KEY_BYTES or machine.writes.get(key, value) is None:
            continue
        _, done_ms, _ = records.decode_done_key(key)
        if done_ms >= before_ms:
            work.done_due.discard(number)
            work.arm_done(machine.wheel, state, done_ms)
            return
        if count > COLLECT_RECORDS:
            return
        machine.write(key, None, None)
        state.done_kept -= len(records.decode_done(value))
        state.touched = True
    if retention_s == NOT_KEPT and len(state.done_messages):
        return  # of a time when they were kept; the checkpoint of this group writes them, the next step removes them
    work.done_due.discard(number)
    if len(state.done_messages):
        work.arm_done(machine.wheel, state, state.done_times[0])


def _forget_keys(machine: QueueMachine, now_ms: int, view: View) -> None:
    """Dedup keys whose time is over; one that was taken again since has a later entry in the index."""
    for count, (key, value) in enumerate(view.scan(*records.DEDUP_EXPIRY.range(), limit=COLLECT_RECORDS + 1)):
        expires_ms, message = records.decode_dedup_expiry_key(key)
        if expires_ms >= now_ms:
            machine.housekeeper.dedup_due = False
            machine.housekeeper.arm_dedup(machine.wheel, expires_ms)
            return
        if count == COLLECT_RECORDS:
            return
        machine.write(key, None, None)
        held = records.DEDUP.raw + value
        stored = machine.stored(held, view)
        if stored is not None and records.decode_dedup(stored) == (message, expires_ms):
            machine.write(held, None, None)
    machine.housekeeper.dedup_due = False


def _reap(machine: QueueMachine, state: QueueState, view: View) -> None:
    """Some records of a deleted queue."""
    state.land_all()
    for number in list(state.buckets)[:COLLECT_BUCKETS]:
        bucket = state.buckets[number]
        state.remove(state.available_places(bucket), "purged")
        if number in state.buckets:  # the last one, which was not full
            bucket.dirty = True
    failed = list(state.failed)[: COLLECT_BUCKETS * state.size]
    if failed:
        state.drop_failed(failed, "purged")
    if state.failed or any(bucket.live for bucket in state.buckets.values()):
        return
    left = COLLECT_RECORDS - _forget_own_keys(machine, state.number, view)
    for prefix in (records.DONE, records.ATTEMPTS, records.ORIGIN, records.ACTIVE, records.FAILED):
        for key, _ in view.scan(*records.queue_range(prefix, state.number), limit=left):
            machine.write(key, None, None)
            left -= 1
    for key in [key for key in machine.writes if records.belongs_to(key, state.number)]:
        machine.write(key, None, None)  # made, and deleted, in this very group
    if left > 0:
        machine.write(records.cursor_key(state.number), None, None)
        machine.write(records.deleted_key(state.number), None, None)
        del machine.deleted[state.number], machine.by_number[state.number]


def _forget_own_keys(machine: QueueMachine, number: int, view: View) -> int:
    """Some dedup keys of a deleted queue, and what the index by time says of them; how many."""
    start, end = records.own_dedup_range(number)
    held = [key for key, _ in view.scan(start, end, limit=COLLECT_RECORDS)]
    held += [key for key in machine.writes if start <= key and (end is None or key < end)]  # of this very group
    for key in held:
        stored = machine.stored(key, view)
        if stored is not None:
            message, expires_ms = records.decode_dedup(stored)
            machine.write(key, None, None)
            if expires_ms < published.FOREVER:
                machine.write(records.dedup_expiry_key(expires_ms, message), None, None)
    return min(len(held), COLLECT_RECORDS)


def _drop_segment(machine: QueueMachine, segment: Segment, view: View) -> None:
    """Some entries of a log segment of which nobody holds anything; at last the segment itself."""
    first, last = log.entry_range(segment.number, LOG_KEY)
    removed = 0
    for key, _ in view.scan(first, last, limit=COLLECT_RECORDS):
        machine.write(key, None, None)
        removed += 1
    for key in [key for key in machine.writes if first <= key and (last is None or key < last)]:
        machine.write(key, None, None)  # published, and done with, in this very group
    if removed < COLLECT_RECORDS:
        machine.write(log.listing_key(segment.number, LOG_KEY), None, None)
        machine.write(log.segment_key(segment.number), None, None)
        machine.holdings.drop_segment(segment)
