"""A checkpoint: the state log folded into the buckets, in the commit of the group that calls for one.

After it the records of the queues alone tell all; what no queue holds any more goes in the same commit.
"""

from __future__ import annotations

from typing import Final

from detent import crash
from detent.codec import published
from detent.codec import queue as records
from detent.codec.queue import InFlight, Watermark
from detent.codec.reader import ReaderRecord, reader_key
from detent.kv import Batch, View
from detent.queue.bucket import HELD, Bucket
from detent.queue.memory import QueueMemory
from detent.queue.state import QueueState

RECORDS_MAX: Final = 2_048
BYTES_MAX: Final = 1 << 20
AGE_MS_MAX: Final = 5_000
"""A checkpoint comes after so many groups, bytes of the state log, or milliseconds. An owner that takes over replays no
more than this; and what is published and done between two checkpoints is never in a bucket."""

FREED_MAX: Final = 20_000
"""Records that wait to be removed; a checkpoint comes before there are more."""


def is_due(memory: QueueMemory, now_ms: int) -> bool:
    """Whether the state log is long enough, or old enough."""
    logged = memory.next_record - memory.first_record
    if not logged:
        memory.checkpoint_ms = now_ms
        return memory.log_bytes + sum(map(len, memory.steps)) >= BYTES_MAX
    return (
        logged >= RECORDS_MAX
        or memory.log_bytes >= BYTES_MAX
        or now_ms - memory.checkpoint_ms >= AGE_MS_MAX
        or len(memory.holdings.freed) >= FREED_MAX
    )


def write(memory: QueueMemory, batch: Batch, now_ms: int) -> None:
    """Put a checkpoint into the group's batch. `batch` holds what the group has written before."""
    crash.point("queue.checkpoint.before_write")
    with memory.reader.view() as view:
        for state in memory.by_number.values():
            if state.touched:
                _write_queue(state, batch, view)
        _collect_bodies(memory, batch, view)
    for number in range(memory.first_record, memory.next_record):
        batch.delete(records.state_log_key(number))
    memory.first_record = memory.next_record
    watermark = Watermark(memory.next_record, memory.log_end, memory.next_delivery)
    batch.put(records.WATERMARK.raw, watermark.encode())
    memory.log_bytes = 0
    memory.checkpoint_ms = now_ms
    memory.checkpoint_wanted = False
    memory.holdings.drop_empty_chunks()
    crash.point("queue.checkpoint.after_write")


def _write_queue(state: QueueState, batch: Batch, view: View) -> None:
    _write_buckets(state, batch)
    _write_failed(state, batch)
    _write_attempts(state, batch, view)
    _write_done(state, batch)
    _write_readers(state, batch)
    batch.put(records.cursor_key(state.number), state.cursor.encode())
    state.touched = False


def _write_buckets(state: QueueState, batch: Batch) -> None:
    dirty = {number: bucket for number, bucket in state.buckets.items() if bucket.dirty}
    flying: dict[int, list[InFlight]] = {number: [] for number in dirty}
    if dirty and state.flights:
        for message, flight in state.flights.items():
            number, row = divmod(flight[0], state.size)
            if number in dirty:
                flying[number].append(_in_flight(state, message, number, row))
    for number, bucket in dirty.items():
        key = records.queue_key(records.ACTIVE, state.number, number)
        if bucket.live or number == 0:  # the first one is there from the start
            batch.put(key, _active(bucket, flying[number]))
            bucket.stored = True
        elif bucket.stored:
            batch.delete(key)
            bucket.stored = False
        bucket.dirty = False
    for number in state.dead_buckets:
        batch.delete(records.queue_key(records.ACTIVE, state.number, number))
    state.dead_buckets.clear()


def _active(bucket: Bucket, flying: list[InFlight]) -> bytes:
    available, groups = bucket.available(), bucket.groups
    if groups is None:
        return records.encode_active(available, flying)
    places = [*available["place"].tolist(), *(message.place for message in flying)]
    return records.encode_active(available, flying, [groups[place] for place in places])


def _in_flight(state: QueueState, message: int, number: int, row: int) -> InFlight:
    bucket, (_, delivery, grant) = state.buckets[number], state.flights[message]
    assert bucket.states[row] == HELD
    assert bucket.messages[row] == message
    return InFlight(
        message,
        bucket.priorities[row],
        grant.claimed_ms,
        grant.lease_ms,
        bucket.attempts[row],
        bucket.deadlines[row],
        delivery,
        row,
        bucket.offsets[row],
        bucket.counts[row],
        grant.consumer,
    )


def _write_failed(state: QueueState, batch: Batch) -> None:
    for number in state.dirty_failed:
        key = records.queue_key(records.FAILED, state.number, number)
        messages = state.failed_buckets.get(number)
        if messages or number == 0:
            batch.put(key, records.encode_failed([state.failed[message] for message in sorted(messages or ())]))
        else:
            batch.delete(key)
    state.dirty_failed.clear()


def _write_attempts(state: QueueState, batch: Batch, view: View) -> None:
    for message in state.old_attempts:
        batch.delete(records.queue_key(records.ATTEMPTS, state.number, message))
    for message, new in state.new_attempts.items():
        key = records.queue_key(records.ATTEMPTS, state.number, message)
        stored = None if message in state.old_attempts else view.get(key)
        known = [] if stored is None else records.decode_attempts(stored)
        batch.put(key, records.encode_attempts([*known, *new]))
    state.old_attempts.clear()
    state.new_attempts.clear()
    for message in state.old_origins:
        batch.delete(records.queue_key(records.ORIGIN, state.number, message))
    state.old_origins.clear()


def _write_done(state: QueueState, batch: Batch) -> None:
    done = state.done_table()
    for start in range(0, len(done), records.DONE_PER_RECORD):
        table = done[start : start + records.DONE_PER_RECORD]
        last = int(table["done_ms"].max())
        batch.put(records.done_key(state.number, last, state.done_records), records.encode_done(table))
        state.done_records += 1
    for column in (state.done_messages, state.done_times, state.done_attempts):
        del column[:]


def _write_readers(state: QueueState, batch: Batch) -> None:
    for name in state.dirty_readers:
        key, reader = reader_key(state.number, name), state.readers.get(name)
        if reader is None:
            batch.delete(key)
            continue
        grant, record = reader.grant, ReaderRecord(reader.generation, reader.opened_ms, reader.acked)
        if grant is not None:
            first = state.flights[next(iter(grant.held))][1]
            record = record._replace(assigned_ms=grant.claimed_ms, first_delivery=first, length=len(grant.held))
        batch.put(key, record.encode())
    state.dirty_readers.clear()


def _collect_bodies(memory: QueueMemory, batch: Batch, view: View) -> None:
    """Remove the bodies that no queue holds: their whole record, or what it holds of them."""
    for first, count in memory.holdings.freed.items():
        key = published.payload_key(first)
        alive = memory.holdings.held_in(first, count)
        if not alive:
            batch.delete(key)
            continue
        value = batch.operations.get(key) or view.get(key)
        assert value is not None, f"the bodies of {len(alive)} held messages from {first} on are missing"
        batch.put(key, published.keep_payloads(value, alive))
    memory.holdings.freed.clear()
