"""Reading the queues back: the last checkpoint, then the state log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from detent.codec import log, published, statelog
from detent.codec import queue as records
from detent.codec.log import SEQUENCE_BLOCK_KEY, SegmentMeta, SequenceAllocator
from detent.codec.origin import OriginRecord
from detent.codec.published import FOREVER
from detent.codec.queue import AVAILABLE, Config, InFlight, QueueCursor, Watermark
from detent.codec.reader import READER, ReaderRecord, decode_reader_key
from detent.codec.statelog import (
    AckedAssignment,
    AssignStep,
    ClaimStep,
    Ended,
    Expired,
    MoveStep,
    PublishStep,
    Routed,
    Unclaimed,
)
from detent.errors import Corrupt
from detent.kv import View
from detent.queue import assigning, housekeeping, moving, publishing
from detent.queue.bucket import AVAILABLE as AVAILABLE_STATES
from detent.queue.bucket import HELD, Bucket
from detent.queue.grant import OpenClaim
from detent.queue.grouped import GroupedState
from detent.queue.holdings import LIVE, LogSegment, messages_in
from detent.queue.memory import QueueMemory
from detent.queue.state import REPLAYED, QueueState

Origins = dict[tuple[int, int], int]
"""By queue and message: how often a dead letter was claimed before it came there."""


def load(memory: QueueMemory, view: View) -> None:
    """Fill an empty memory."""
    memory.now_ms = REPLAYED
    stored = view.get(records.WATERMARK.raw)
    watermark = Watermark(0, 0, 1) if stored is None else Watermark.decode(stored)
    memory.log_end, memory.next_delivery = watermark.log_end, watermark.next_delivery
    memory.first_record = memory.next_record = watermark.next_record
    memory.allocator = SequenceAllocator.load(view.get(SEQUENCE_BLOCK_KEY))
    stored = view.get(records.NEXT_QUEUE.raw)
    if stored is not None:
        memory.next_queue = records.decode_number(stored, "next queue")
    stored = view.get(records.DEDUP_WINDOW.raw)
    if stored is not None:
        memory.dedup_window_ms = records.decode_number(stored, "dedup window")
    for key, value in view.scan(*log.segment_range()):
        segment = LogSegment(log.decode_segment_key(key), SegmentMeta.decode(value).start_seq)
        memory.holdings.add_segment(segment)
    _load_queues(memory, view)
    held = _load_buckets(memory, view)
    _load_readers(memory, view)
    origins = _load_origins(memory, view)
    memory.holdings.load(messages_in(held))
    _note_cursors(memory)
    _replay(memory, view, origins)
    _arm(memory, view)


def _load_queues(memory: QueueMemory, view: View) -> None:
    for key, value in view.scan(*records.CONFIG.range()):
        name, config = _name(key), Config.decode(value)
        state = memory.queues[name] = memory.by_number[config.number] = memory.new_state(name, config, 0)
        _load_cursor(state, view)
    for key, value in view.scan(*records.DELETED.range()):
        del key
        config = Config.decode(value)
        state = memory.deleted[config.number] = memory.by_number[config.number] = memory.new_state("", config, 0)
        state.deleted = True
        _load_cursor(state, view)
    _load_cursor(memory.own, view)


def _name(key: bytes) -> str:
    try:
        return key[3:].decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"a queue's name is not UTF-8: {error}") from error


def _load_cursor(state: QueueState, view: View) -> None:
    stored = view.get(records.cursor_key(state.number))
    if stored is not None:
        state.set_cursor(QueueCursor.decode(stored))


def _load_buckets(memory: QueueMemory, view: View) -> list[np.ndarray]:
    """Every queue's buckets and failed messages; the numbers of all messages that are held, once for each holder."""
    held: list[np.ndarray] = []
    for key, value in view.scan(*records.ACTIVE.range()):
        number, bucket_number = records.decode_queue_key(records.ACTIVE, key)
        state = _known(memory, number)
        available, in_flight, groups = records.decode_active(value)
        rows = _rows(available, in_flight)
        held.append(rows["message"])
        _add_bucket(state, bucket_number, rows, in_flight, groups)
    for key, value in view.scan(*records.FAILED.range()):
        number, bucket_number = records.decode_queue_key(records.FAILED, key)
        state = _known(memory, number)
        for failed in records.decode_failed(value):
            state.add_failed(failed)
        held.append(np.array(list(state.failed_buckets.get(bucket_number, ())), np.uint64))
        state.dirty_failed.clear()
    for state in memory.by_number.values():
        number, length = divmod(state.next_place, state.size)
        if length and number not in state.buckets:
            no_groups = () if state.config.group_header else None
            state.buckets[number] = Bucket.of(number, np.empty(0, AVAILABLE), length, no_groups)
        if isinstance(state, GroupedState):
            state.load_groups()
    return held


def _load_readers(memory: QueueMemory, view: View) -> None:
    """Every queue's readers, each with the messages that are assigned to it. Those of a deleted queue are gone, and
    what was assigned to them is no reader's."""
    unclaimed = {number: state.assigned_deliveries() for number, state in memory.by_number.items()}
    for key, value in view.scan(*READER.range()):
        number, name = decode_reader_key(key)
        record = ReaderRecord.decode(value)
        _known(memory, number).load_reader(name, record, unclaimed[number].pop(name, []))
    for number, left in unclaimed.items():
        if left and not memory.by_number[number].deleted:
            raise Corrupt(f"messages of queue number {number} are assigned to {min(left)!r}, which is no reader of it")


def _load_origins(memory: QueueMemory, view: View) -> Origins:
    """How often dead letters were claimed before they came to their queues. A record is written when its message comes,
    and goes with a checkpoint: so there may be some of messages that the state log has yet to bring."""
    found: Origins = {}
    for key, value in view.scan(*records.ORIGIN.range()):
        number, message = records.decode_queue_key(records.ORIGIN, key)
        earlier = found[number, message] = OriginRecord.decode(value).earlier
        _known(memory, number).origins[message] = earlier
    return found


def _known(memory: QueueMemory, number: int) -> QueueState:
    state = memory.by_number.get(number)
    if state is None:
        raise Corrupt(f"there are messages of queue number {number}, and no such queue")
    return state


def _rows(available: np.ndarray, in_flight: list[InFlight]) -> np.ndarray:
    if not in_flight:
        return available
    rows = np.empty(len(in_flight), AVAILABLE)
    for index, flying in enumerate(in_flight):
        rows[index] = (
            flying.message,
            flying.priority,
            0,
            flying.deadline_ms,
            flying.attempts,
            flying.place,
            flying.offset,
            flying.record_count,
        )
    return np.concatenate((available, rows))


def _add_bucket(
    state: QueueState,
    number: int,
    rows: np.ndarray,
    in_flight: list[InFlight],
    groups: Sequence[bytes | None] | None,
) -> None:
    full, length = divmod(state.next_place, state.size)
    length = state.size if number < full else length
    if number > full or (len(rows) and int(rows["place"].max()) >= length):
        raise Corrupt(f"bucket {number} of queue number {state.number} has places that were never given out")
    if not len(rows) and number < full:
        return  # the first one is stored even when it is empty
    if state.config.group_header:
        groups = groups or [None] * len(rows)
    elif groups is not None:
        raise Corrupt(f"bucket {number} of queue number {state.number} has groups, and the queue has none")
    bucket = state.buckets[number] = Bucket.of(number, rows, length, groups)
    state.hidden += len(rows) - len(in_flight)
    grants: dict[tuple[int, int, str], OpenClaim] = {}
    for flying in in_flight:
        name = (flying.claimed_ms, flying.lease_ms, flying.consumer)
        grant = grants.get(name)
        if grant is None:
            grant = grants[name] = OpenClaim(state.number, *name)
            state.wheel.add(flying.lease_ms, grant)
        grant.held[flying.message] = None
        bucket.states[flying.place] = HELD
        state.flights[flying.message] = (number * state.size + flying.place, flying.delivery, grant)


def _note_cursors(memory: QueueMemory) -> None:
    memory.behind = {number: s for number, s in memory.by_number.items() if s.next_message != LIVE and not s.deleted}
    memory.holdings.unread_from = min((state.next_message for state in memory.behind.values()), default=LIVE)
    for state in memory.queues.values():
        if state.number not in memory.behind:
            memory.router.add(state)


def _arm(memory: QueueMemory, view: View) -> None:
    """Set the timers that the replayed state calls for."""
    for state in memory.by_number.values():
        for bucket in state.buckets.values():
            state.arm_reveal(bucket, bucket.next_reveal_ms())
            state.arm_expire(bucket, bucket.next_expire_ms())
        if state.done_kept:
            memory.housekeeper.done_due.add(state.number)
    memory.housekeeper.dedup_due = any(True for _ in view.scan(*records.DEDUP_EXPIRY.range(), limit=1))


# -- the state log ----------------------------------------------------------------------------------------------


def _replay(memory: QueueMemory, view: View, origins: Origins) -> None:
    for key, value in view.scan(*records.STATE_LOG.range()):
        number = int.from_bytes(key[3:], "big")
        if number != memory.next_record:
            raise Corrupt(f"the state log goes on with record {number} where {memory.next_record} belongs")
        for step in statelog.decode_steps(value):
            _apply(memory, step, origins)
        memory.next_record += 1
        memory.log_bytes += len(value)


def _apply(memory: QueueMemory, step: statelog.Step, origins: Origins) -> None:
    try:
        if isinstance(step, PublishStep):
            targets = [(_known(memory, number), priority, group) for number, priority, group in step.targets]
            publishing.deliver(memory, step.run, targets, REPLAYED, None)
            memory.log_end = step.run.first + step.run.length
        elif isinstance(step, Routed):
            housekeeping.routed(memory, _known(memory, step.queue), step.next_message, step.runs, REPLAYED)
        elif isinstance(step, ClaimStep):
            _known(memory, step.queue).grant(
                step.places, step.claimed_ms, step.lease_ms, step.first_delivery, step.consumer, None
            )
            memory.next_delivery = max(memory.next_delivery, step.first_delivery + len(step.places))
        elif isinstance(step, Expired):
            _apply_expired(_known(memory, step.queue), step)
        elif isinstance(step, MoveStep):
            source, target = _known(memory, step.queue), _known(memory, step.target)
            named = ((target.number, message) for message, _, _ in step.messages)
            earlier = {message: origins[number, message] for number, message in named if (number, message) in origins}
            moving.move(source, target, step.at_ms, step.messages, earlier, REPLAYED, None)
        elif isinstance(step, AssignStep):
            state = _known(memory, step.queue)
            assigning.apply_assigned(state, step.reader, step.places, step.assigned_ms, step.first_delivery, None)
            memory.next_delivery = max(memory.next_delivery, step.first_delivery + len(step.places))
        elif isinstance(step, AckedAssignment):
            assigning.apply_acked(_known(memory, step.queue), step.reader, step.at_ms, None)
        elif isinstance(step, Unclaimed):
            _known(memory, step.queue).put_back(step.messages, step.at_ms, REPLAYED, None)
        else:
            _apply_ended(_known(memory, step.queue), step)
    except (AssertionError, LookupError, ArithmeticError) as error:
        raise Corrupt(f"the state log does not fit its checkpoint: {error}") from error


def _apply_expired(state: QueueState, step: Expired) -> None:
    if step.kind == statelog.EXPIRE:
        state.remove(step.numbers, "expired")
    else:
        state.drop_failed(step.numbers, "expired")


def _apply_ended(state: QueueState, step: Ended) -> None:
    if step.kind == statelog.ACK:
        state.ack(step.messages, step.at_ms, None)
    elif step.kind == statelog.EXTEND:
        state.extend(step.messages, step.until_ms, None)
    else:
        for message in step.messages:
            if step.kind == statelog.FAIL:
                state.fail(message, step.at_ms, step.reason, None)
            else:
                state.give_back(message, step.at_ms, step.until_ms, step.reason, REPLAYED, None)


# -- a clock that was ahead -------------------------------------------------------------------------------------

Received = Callable[[int, int], int]
"""When a message was published, by its number and its place in its record."""


def set_back(memory: QueueMemory, by_ms: int, now_ms: int, view: View) -> None:
    """The store was written under a clock that was ahead: what leases and delays had left then, they have left. The
    next checkpoint, in the commit of the next group, writes it. Retention and dedup keys stay as they are recorded:
    what came under that clock is kept for so much longer."""
    known: dict[int, int] = {}
    received = partial(_received_ms, memory, view, known)
    for state in memory.by_number.values():
        if not state.deleted:
            _set_back_leases(state, by_ms)
            for bucket in list(state.buckets.values()):
                _set_back_delays(state, bucket, by_ms, now_ms, received)
    memory.checkpoint_wanted = True


def _set_back_leases(state: QueueState, by_ms: int) -> None:
    """What is assigned to a reader has no end, and keeps it."""
    for grant in {flight[2] for flight in state.flights.values() if not flight[2].is_assigned}:
        state.wheel.cancel(grant.lease_ms, grant)
        grant.lease_ms = max(0, grant.lease_ms - by_ms)
        grant.claimed_ms = max(0, grant.claimed_ms - by_ms)
        state.wheel.add(grant.lease_ms, grant)
        state.touched = True
        for message in grant.held:
            state.buckets[state.flights[message][0] // state.size].dirty = True


def _set_back_delays(state: QueueState, bucket: Bucket, by_ms: int, now_ms: int, received: Received) -> None:
    """A back-off is set back. So is what is delayed since it was published, unless that was before the clock was ahead:
    then its time was right."""
    waits = np.isin(np.frombuffer(bucket.states, np.uint8), list(AVAILABLE_STATES))
    visible = np.frombuffer(bucket.visible, "<i8")
    changed = False
    for row in np.flatnonzero(waits & (visible > now_ms) & (visible != FOREVER)).tolist():
        if bucket.attempts[row] or received(bucket.messages[row], bucket.offsets[row]) > now_ms:
            bucket.visible[row] -= by_ms
            changed = True
    if changed:
        state.touched = bucket.dirty = True
        state.rearm_reveal(bucket)


def _received_ms(memory: QueueMemory, view: View, known: dict[int, int], message: int, offset: int) -> int:
    first = message - offset
    if first not in known:
        entry = view.get(memory.holdings.entry_key(first))
        known[first] = 0 if entry is None else published.decode_metadata(entry)[0].received_ms
    return known[first]
