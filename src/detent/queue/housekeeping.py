"""What the owner does by itself for the queues, in bounded steps: timers, catching up, collecting, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from detent.codec import log, published, statelog
from detent.codec import queue as records
from detent.codec.published import LOG_KEY, Metadata
from detent.codec.queue import NOT_KEPT
from detent.codec.statelog import Run
from detent.engine import ApplyContext, Done, Operation, Result
from detent.kv import View
from detent.queue import checkpoint, claiming, publishing
from detent.queue import operations as ops
from detent.queue.failures import EXPIRE_FAILED
from detent.queue.grant import OpenClaim
from detent.queue.holdings import LIVE, LogSegment
from detent.queue.memory import DEDUP, QueueMemory, filter_of
from detent.queue.places import EXPIRE, REVEAL
from detent.queue.settings import group_of, priority_of
from detent.queue.state import FORGET_DONE, QueueState

TIMERS_PER_STEP: Final = 4_096
CATCH_UP_STEP: Final = 10_000
"""Messages of the log that a queue reads in one step."""

COLLECT_RECORDS: Final = 2_000
"""Records removed in one step, of each kind."""

COLLECT_BUCKETS: Final = 10

QUIET_MS: Final = 60_000
"""The newest segment of the log goes like the others, once nothing was published for so long. In a busy store its turn
comes anyway, and each one costs a few records."""


# -- timers -----------------------------------------------------------------------------------------------------


def advance(memory: QueueMemory, now_ms: int) -> None:
    """Fire the timers that are due, and those that this sets and that are due as well.

    It belongs to no transaction and is not taken back with one: whatever the group does, this has happened. Leases that
    a group has no room for keep their timers for the next one: they are over all the same, and refuse their receipts.
    Other timers do not wait for them: what has ended its retention must not be claimed.
    """
    if now_ms != memory.now_ms:
        memory.allow_leases()  # this is another group: one has the same time all along
    memory.now_ms = now_ms
    due_ms = memory.wheel.next_ms()
    if due_ms is None or due_ms > now_ms or memory.may_end <= 0:
        return
    left = TIMERS_PER_STEP
    later: list[OpenClaim] = []
    while left > 0 and (names := memory.wheel.due(now_ms, left)):
        left -= len(names)
        memory.fired = True
        over: list[OpenClaim] = []
        for name in names:
            if isinstance(name, OpenClaim):
                (over if memory.may_end > 0 else later).append(name)
                memory.may_end -= len(name.held)
        claiming.expire_leases(memory, over, now_ms)
        for name in names:
            if not isinstance(name, OpenClaim):
                _fire(memory, name, now_ms)
    for grant in later:
        memory.wheel.add(grant.lease_ms, grant)


def _fire(memory: QueueMemory, name: Any, now_ms: int) -> None:
    kind = name[0]
    if kind == FORGET_DONE or name == DEDUP:
        memory.housekeeper.fired(name)
        return
    state = memory.by_number.get(name[1])
    if state is None:
        return
    if kind == REVEAL:
        state.reveal(name[2], now_ms)
    elif kind == EXPIRE:
        places = state.to_expire(name[2], now_ms)
        if places:
            memory.log_step(statelog.encode_expired(statelog.EXPIRE, state.number, places), None)
            state.remove(places, "expired")
    elif kind == EXPIRE_FAILED:
        messages = state.failed_to_expire(name[2], now_ms)
        if messages:
            memory.log_step(statelog.encode_expired(statelog.EXPIRE_FAILED, state.number, messages), None)
            state.drop_failed(messages, "expired")


def run_timers(memory: QueueMemory, op: ops.Advance, context: ApplyContext) -> Result:
    """The housekeeper fires the timers, which every operation does before anything else."""
    del op
    if not memory.steps:
        context.idle += 1
        memory.committed()  # what has become visible needs no commit, and a caller may wait for it
    return Done()


# -- what is due ------------------------------------------------------------------------------------------------


def due(memory: QueueMemory, now_ms: int) -> Iterator[Operation]:
    """The steps that there are to take now."""
    if memory.published_ms is None:
        memory.published_ms = now_ms  # by another owner, some time before
    next_ms = memory.wheel.next_ms()
    if memory.fired or (next_ms is not None and next_ms <= now_ms):
        yield ops.Advance()
    for state in list(memory.behind.values()):
        if not state.config.paused:
            yield ops.CatchUp(state.number)
    if _to_collect(memory, now_ms):
        yield ops.Collect()
    if (memory.next_record > memory.first_record or memory.steps) and checkpoint.is_due(memory, now_ms):
        yield ops.WriteCheckpoint()
    memory.look_ms = next_look_ms(memory, now_ms)
    memory.committed()  # once more: a caller that was woken may have gone away, and others wait


def next_look_ms(memory: QueueMemory, now_ms: int) -> int | None:
    """When there is something to do."""
    behind = memory.behind
    if _to_collect(memory, now_ms) or (behind and any(not state.config.paused for state in behind.values())):
        return now_ms
    times = (memory.wheel.next_ms(), quiet_ms(memory))
    return min((at for at in times if at is not None), default=None)


def quiet_ms(memory: QueueMemory) -> int | None:
    """When the newest segment of the log goes as well, if nothing more is published; None if messages need it."""
    if memory.published_ms is None or not memory.holdings.newest_is_dead(memory.passed(), memory.log_end):
        return None
    return memory.published_ms + QUIET_MS


def _to_collect(memory: QueueMemory, now_ms: int) -> bool:
    work = memory.housekeeper
    quiet = quiet_ms(memory)
    if quiet is not None and quiet <= now_ms:
        return True
    return bool(
        memory.deleted or work.done_due or work.dedup_due or memory.holdings.dead_segment(memory.passed()) is not None
    )


def request_checkpoint(memory: QueueMemory, op: ops.WriteCheckpoint, context: ApplyContext) -> Result:
    """The group in progress ends with a checkpoint."""
    del context
    memory.checkpoint_wanted = True
    if op.closing:
        block = memory.allocator.give_back()
        if block is not None:
            memory.write(log.SEQUENCE_BLOCK_KEY, block.encode(), None)
    return Done()


# -- catching up ------------------------------------------------------------------------------------------------


def catch_up(memory: QueueMemory, op: ops.CatchUp, context: ApplyContext) -> Result:
    """A queue that is behind reads some more of the log, and takes what matches its filter and still exists."""
    state = memory.behind.get(op.queue)
    if state is None or state.config.paused:
        context.idle += 1
        return Done()
    matching = filter_of(state).matches
    runs: list[tuple[Run, int, bytes | None]] = []
    read, at = 0, state.next_message
    with memory.reader.view() as view:
        for entry in entries_from(memory, view, at):
            for index, message in enumerate(entry):
                stays = memory.holdings.count(message.message) and message.deadline_ms >= context.now_ms
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
    memory.log_step(statelog.encode_routed(state.number, at, runs), None)
    routed(memory, state, at, runs, context.now_ms)
    return Done()


def routed(
    memory: QueueMemory,
    state: QueueState,
    next_message: int,
    runs: Sequence[tuple[Run, int, bytes | None]],
    now_ms: int,
) -> None:
    """A queue has read up to a message, and takes these. Once at the end, it takes part in publishes."""
    for run, priority, group in runs:
        memory.holdings.hold(run.first, run.length, 1, None)
        state.route(run, priority, now_ms, None, group)
    taken = np.array([run.first for run, _, _ in runs], np.uint64)
    places = memory.own.places_of(taken)
    if places:
        memory.own.remove(places, "purged")  # the store need not keep what a queue has
    state.next_message = next_message
    state.touched = True
    if next_message == LIVE:
        memory.behind.pop(state.number, None)
        memory.router.add(state)
    memory.note_behind()


def entries_from(memory: QueueMemory, view: View, start: int) -> Iterator[list[Metadata]]:
    """The log's entries from a message on: those that are durable, then those of the group in progress."""
    segments = memory.holdings.segments
    for index, segment in enumerate(segments):
        end = segments[index + 1].start if index + 1 < len(segments) else None
        if end is not None and end <= start:
            continue
        first, last = log.entry_range(segment.number, LOG_KEY, max(0, start - segment.start))
        for key, value in view.scan(first, last):
            if key not in memory.writes:
                yield published.decode_metadata(value)
    for first_message in memory.published:
        if first_message >= start:
            entry = memory.writes[memory.holdings.entry_key(first_message)]
            assert entry is not None
            yield published.decode_metadata(entry)


# -- collecting -------------------------------------------------------------------------------------------------


def collect(memory: QueueMemory, op: ops.Collect, context: ApplyContext) -> Result:
    """Remove a bounded number of records that are not needed any more."""
    del op
    now_ms = context.now_ms
    work = memory.housekeeper
    with memory.reader.view() as view:
        for number in list(work.done_due):
            _forget_done(memory, number, now_ms, view)
        if work.dedup_due:
            _forget_expired_keys(memory, now_ms, view)
        for state in list(memory.deleted.values()):
            _reap(memory, state, view)
        quiet = quiet_ms(memory)
        if quiet is not None and quiet <= now_ms:
            publishing.write_segment(memory, memory.holdings.end_newest(memory.log_end), now_ms, None)
        segment = memory.holdings.dead_segment(memory.passed())
        if segment is not None:
            _drop_segment(memory, segment, view)
    memory.checkpoint_wanted = True
    return Done()


def _forget_done(memory: QueueMemory, number: int, now_ms: int, view: View) -> None:
    work, state = memory.housekeeper, memory.by_number.get(number)
    if state is None or state.deleted or state.config.done_retention_s == 0:
        work.done_due.discard(number)
        return
    retention_s = state.config.done_retention_s
    before_ms = now_ms + 1 if retention_s == NOT_KEPT else now_ms - retention_s * 1000
    # The first record is the empty one that a queue begins with; one more than a step removes tells whether to go on.
    scan = view.scan(*records.queue_range(records.DONE, number), limit=COLLECT_RECORDS + 2)
    for count, (key, value) in enumerate(scan):
        if len(key) == records.EMPTY_DONE_KEY_BYTES or memory.writes.get(key, value) is None:
            continue
        _, done_ms, _ = records.decode_done_key(key)
        if done_ms >= before_ms:
            work.done_due.discard(number)
            work.arm_done(memory.wheel, state, done_ms)
            return
        if count > COLLECT_RECORDS:
            return
        memory.write(key, None, None)
        state.done_kept -= len(records.decode_done(value))
        state.touched = True
    if retention_s == NOT_KEPT and len(state.done_messages):
        return  # of a time when they were kept; the checkpoint of this group writes them, the next step removes them
    work.done_due.discard(number)
    if len(state.done_messages):
        work.arm_done(memory.wheel, state, state.done_times[0])


def _forget_expired_keys(memory: QueueMemory, now_ms: int, view: View) -> None:
    """Dedup keys whose time is over; one that was taken again since has a later entry in the index."""
    for count, (key, value) in enumerate(view.scan(*records.DEDUP_EXPIRY.range(), limit=COLLECT_RECORDS + 1)):
        expires_ms, message = records.decode_dedup_expiry_key(key)
        if expires_ms >= now_ms:
            memory.housekeeper.dedup_due = False
            memory.housekeeper.arm_dedup(memory.wheel, expires_ms)
            return
        if count == COLLECT_RECORDS:
            return
        memory.write(key, None, None)
        held = records.DEDUP.raw + value
        stored = memory.stored(held, view)
        if stored is not None and records.decode_dedup(stored) == (message, expires_ms):
            memory.write(held, None, None)
    memory.housekeeper.dedup_due = False


def _reap(memory: QueueMemory, state: QueueState, view: View) -> None:
    """Some records of a deleted queue."""
    state.land(list(state.flights))
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
    left = COLLECT_RECORDS - forget_keys(memory, state.number, view, memory.log_end)
    for prefix in (records.DONE, records.ATTEMPTS, records.ORIGIN, records.ACTIVE, records.FAILED):
        for key, _ in view.scan(*records.queue_range(prefix, state.number), limit=left):
            memory.write(key, None, None)
            left -= 1
    for key in [key for key in memory.writes if records.belongs_to(key, state.number)]:
        memory.write(key, None, None)  # made, and deleted, in this very group
    if left > 0:
        memory.write(records.cursor_key(state.number), None, None)
        memory.write(records.deleted_key(state.number), None, None)
        del memory.deleted[state.number], memory.by_number[state.number]


def forget_keys(memory: QueueMemory, number: int, view: View, below: int) -> int:
    """Forget some of a queue's own dedup keys, of messages below a number, and what the index by time says of them; how
    many there were."""
    start, end = records.own_dedup_range(number)
    fresh = [key for key in memory.writes if start <= key and (end is None or key < end)]  # of this very group
    forgotten = 0
    for key in chain(fresh, (key for key, _ in view.scan(start, end))):
        stored = memory.stored(key, view)
        message, expires_ms = (below, 0) if stored is None else records.decode_dedup(stored)
        if message >= below:
            continue
        memory.write(key, None, None)
        if expires_ms < published.FOREVER:
            memory.write(records.dedup_expiry_key(expires_ms, message), None, None)
        forgotten += 1
        if forgotten == COLLECT_RECORDS:
            break
    return forgotten


def _drop_segment(memory: QueueMemory, segment: LogSegment, view: View) -> None:
    """Some entries of a log segment of which no queue holds anything; at last the segment itself."""
    first, last = log.entry_range(segment.number, LOG_KEY)
    removed = 0
    for key, _ in view.scan(first, last, limit=COLLECT_RECORDS):
        memory.write(key, None, None)
        removed += 1
    for key in [key for key in memory.writes if first <= key and (last is None or key < last)]:
        memory.write(key, None, None)  # published, and done with, in this very group
    if removed < COLLECT_RECORDS:
        memory.write(log.listing_key(segment.number, LOG_KEY), None, None)
        memory.write(log.segment_key(segment.number), None, None)
        memory.holdings.drop_segment(segment)
