"""Reading the queues back: the last checkpoint, then the state log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from detent.codec import log, statelog
from detent.codec import queue as records
from detent.codec.log import SEQUENCE_BLOCK_KEY, SegmentMeta, SequenceAllocator
from detent.codec.origin import Origin
from detent.codec.queue import AVAILABLE, Config, Cursor, InFlight, Watermark
from detent.codec.reader import READER, ReaderRecord, decode_reader_key
from detent.codec.statelog import (
    AckedAssignment,
    Assigned,
    Claimed,
    Ended,
    Expired,
    Moved,
    Published,
    Routed,
    Unclaimed,
)
from detent.errors import Corrupt
from detent.kv import View
from detent.queue import assigning, housekeeping, moving, publishing
from detent.queue.bucket import HELD, Bucket
from detent.queue.grant import Grant
from detent.queue.grouped import GroupedState
from detent.queue.holdings import LIVE, Segment, messages_in
from detent.queue.state import REPLAYED, QueueState

if TYPE_CHECKING:
    from detent.queue.machine import QueueMachine


Origins = dict[tuple[int, int], int]
"""By queue and message: how often a dead letter was claimed before it came there."""


def load(machine: QueueMachine, view: View) -> None:
    """Fill an empty memory."""
    machine.now_ms = REPLAYED
    stored = view.get(records.WATERMARK.raw)
    watermark = Watermark(0, 0, 1) if stored is None else Watermark.decode(stored)
    machine.log_end, machine.next_delivery = watermark.log_end, watermark.next_delivery
    machine.first_record = machine.next_record = watermark.next_record
    machine.allocator = SequenceAllocator.load(view.get(SEQUENCE_BLOCK_KEY))
    stored = view.get(records.NEXT_QUEUE.raw)
    if stored is not None:
        machine.next_queue = records.decode_number(stored, "next queue")
    stored = view.get(records.DEDUP_WINDOW.raw)
    if stored is not None:
        machine.dedup_window_ms = records.decode_number(stored, "dedup window")
    for key, value in view.scan(*log.segment_range()):
        segment = Segment(log.decode_segment_key(key), SegmentMeta.decode(value).start_seq)
        machine.holdings.add_segment(segment)
    _load_queues(machine, view)
    held = _load_buckets(machine, view)
    _load_readers(machine, view)
    origins = _load_origins(machine, view)
    machine.holdings.load(messages_in(held))
    _note_cursors(machine)
    _replay(machine, view, origins)
    _arm(machine, view)


def _load_queues(machine: QueueMachine, view: View) -> None:
    for key, value in view.scan(*records.CONFIG.range()):
        name, config = _name(key), Config.decode(value)
        state = machine.queues[name] = machine.by_number[config.number] = machine.new_state(name, config, 0)
        _load_cursor(state, view)
    for key, value in view.scan(*records.DELETED.range()):
        del key
        config = Config.decode(value)
        state = machine.deleted[config.number] = machine.by_number[config.number] = machine.new_state("", config, 0)
        state.deleted = True
        _load_cursor(state, view)
    _load_cursor(machine.own, view)


def _name(key: bytes) -> str:
    try:
        return key[3:].decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"a queue's name is not UTF-8: {error}") from error


def _load_cursor(state: QueueState, view: View) -> None:
    stored = view.get(records.cursor_key(state.number))
    if stored is not None:
        state.set_cursor(Cursor.decode(stored))


def _load_buckets(machine: QueueMachine, view: View) -> list[np.ndarray]:
    """Every queue's buckets and failed messages; the numbers of all messages that are held, once for each holder."""
    held: list[np.ndarray] = []
    for key, value in view.scan(*records.ACTIVE.range()):
        number, bucket_number = records.decode_queue_key(records.ACTIVE, key)
        state = _known(machine, number)
        available, in_flight, groups = records.decode_active(value)
        rows = _rows(available, in_flight)
        held.append(rows["message"])
        _add_bucket(state, bucket_number, rows, in_flight, groups)
    for key, value in view.scan(*records.FAILED.range()):
        number, bucket_number = records.decode_queue_key(records.FAILED, key)
        state = _known(machine, number)
        for failed in records.decode_failed(value):
            state.add_failed(failed)
        held.append(np.array(list(state.failed_buckets.get(bucket_number, ())), np.uint64))
        state.dirty_failed.clear()
    for state in machine.by_number.values():
        number, length = divmod(state.next_place, state.size)
        if length and number not in state.buckets:
            nobody = () if state.config.group_header else None
            state.buckets[number] = Bucket.of(number, np.empty(0, AVAILABLE), length, nobody)
        if isinstance(state, GroupedState):
            state.load_groups()
    return held


def _load_readers(machine: QueueMachine, view: View) -> None:
    """Every queue's readers, each with the messages that are assigned to it. Those of a deleted queue are gone, and
    what was assigned to them is nobody's."""
    unclaimed = {number: state.assigned_deliveries() for number, state in machine.by_number.items()}
    for key, value in view.scan(*READER.range()):
        number, name = decode_reader_key(key)
        record = ReaderRecord.decode(value)
        _known(machine, number).load_reader(name, record, unclaimed[number].pop(name, []))
    for number, left in unclaimed.items():
        if left and not machine.by_number[number].deleted:
            raise Corrupt(f"messages of queue number {number} are assigned to {min(left)!r}, which is no reader of it")


def _load_origins(machine: QueueMachine, view: View) -> Origins:
    """How often dead letters were claimed before they came to their queues. A record is written when its message comes,
    and goes with a checkpoint: so there may be some of messages that the state log has yet to bring."""
    found: Origins = {}
    for key, value in view.scan(*records.ORIGIN.range()):
        number, message = records.decode_queue_key(records.ORIGIN, key)
        earlier = found[number, message] = Origin.decode(value).earlier
        _known(machine, number).origins[message] = earlier
    return found


def _known(machine: QueueMachine, number: int) -> QueueState:
    state = machine.by_number.get(number)
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
    grants: dict[tuple[int, int, str], Grant] = {}
    for flying in in_flight:
        name = (flying.claimed_ms, flying.lease_ms, flying.consumer)
        grant = grants.get(name)
        if grant is None:
            grant = grants[name] = Grant(state.number, *name)
            state.wheel.add(flying.lease_ms, grant)
        grant.held[flying.message] = None
        bucket.states[flying.place] = HELD
        state.flights[flying.message] = (number * state.size + flying.place, flying.delivery, grant)


def _note_cursors(machine: QueueMachine) -> None:
    machine.behind = {number: s for number, s in machine.by_number.items() if s.next_message != LIVE and not s.deleted}
    machine.holdings.unread_from = min((state.next_message for state in machine.behind.values()), default=LIVE)
    for state in machine.queues.values():
        if state.number not in machine.behind:
            machine.router.add(state)


def _arm(machine: QueueMachine, view: View) -> None:
    """Set the timers that the replayed state calls for."""
    for state in machine.by_number.values():
        for bucket in state.buckets.values():
            state.arm_reveal(bucket, bucket.next_reveal_ms())
            state.arm_expire(bucket, bucket.next_expire_ms())
        if state.done_kept:
            machine.housekeeper.done_due.add(state.number)
    machine.housekeeper.dedup_due = any(True for _ in view.scan(*records.DEDUP_EXPIRY.range(), limit=1))


# -- the state log ----------------------------------------------------------------------------------------------


def _replay(machine: QueueMachine, view: View, origins: Origins) -> None:
    for key, value in view.scan(*records.STATE_LOG.range()):
        number = int.from_bytes(key[3:], "big")
        if number != machine.next_record:
            raise Corrupt(f"the state log goes on with record {number} where {machine.next_record} belongs")
        for step in statelog.decode_steps(value):
            _apply(machine, step, origins)
        machine.next_record += 1
        machine.log_bytes += len(value)


def _apply(machine: QueueMachine, step: statelog.Step, origins: Origins) -> None:
    try:
        if isinstance(step, Published):
            targets = [(_known(machine, number), priority, group) for number, priority, group in step.targets]
            publishing.deliver(machine, step.run, targets, REPLAYED, None)
            machine.log_end = step.run.first + step.run.length
        elif isinstance(step, Routed):
            housekeeping.routed(machine, _known(machine, step.queue), step.next_message, step.runs, REPLAYED)
        elif isinstance(step, Claimed):
            _known(machine, step.queue).grant(
                step.places, step.claimed_ms, step.lease_ms, step.first_delivery, step.consumer, None
            )
            machine.next_delivery = max(machine.next_delivery, step.first_delivery + len(step.places))
        elif isinstance(step, Expired):
            _apply_expired(_known(machine, step.queue), step)
        elif isinstance(step, Moved):
            source, target = _known(machine, step.queue), _known(machine, step.target)
            named = ((target.number, message) for message, _, _ in step.messages)
            earlier = {message: origins[number, message] for number, message in named if (number, message) in origins}
            moving.move(source, target, step.at_ms, step.messages, earlier, REPLAYED, None)
        elif isinstance(step, Assigned):
            state = _known(machine, step.queue)
            assigning.apply_assigned(state, step.reader, step.places, step.assigned_ms, step.first_delivery, None)
            machine.next_delivery = max(machine.next_delivery, step.first_delivery + len(step.places))
        elif isinstance(step, AckedAssignment):
            assigning.apply_acked(_known(machine, step.queue), step.reader, step.at_ms, None)
        elif isinstance(step, Unclaimed):
            _known(machine, step.queue).put_back(step.messages, step.at_ms, REPLAYED, None)
        else:
            _apply_ended(_known(machine, step.queue), step)
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
