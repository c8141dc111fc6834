"""Readers of queues: messages assigned to them by number, read again as often as they like, done all at once.

The number that a reader plans from says what it has done. So an assignment needs no lease: it ends when the reader
plans from its number or a later one, or when the reader is released. A reader is known by its name and a
generation, which no other reader has ever had; a process that comes with another one was replaced.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from itertools import islice
from operator import sub

from detent.codec import published, statelog
from detent.codec.published import FOREVER, PayloadRecord
from detent.codec.reader import reader_key
from detent.engine import ApplyContext, Done, Result
from detent.errors import Conflict, Fenced, Invalid, LimitExceeded, NotFound
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.queue.holdings import Undo
from detent.queue.memory import QueueMemory
from detent.queue.places import picked
from detent.queue.readers import KnownReader
from detent.queue.state import QueueState


def open_reader(memory: QueueMemory, op: reader_ops.OpenReader, context: ApplyContext) -> Result:
    """A reader, new or known. Nothing is written for one that is there."""
    state = memory.queue(op.queue)
    reader_ops.check_reader(op.reader)
    reader = state.readers.get(op.reader)
    if reader is not None:
        context.idle += 1
        return reader_ops.ReaderOpened(reader.generation, reader.acked)
    if len(state.readers) >= reader_ops.READERS_MAX:
        raise LimitExceeded(f"{op.queue!r} has {reader_ops.READERS_MAX} readers already; delete one of them first")
    undo = None if context.last else context.undo
    generation = _take_deliveries(memory, 1, undo)
    state.set_reader(op.reader, KnownReader(generation, context.now_ms), undo)
    memory.checkpoint_wanted = True
    return reader_ops.ReaderOpened(generation, 0)


def _take_deliveries(memory: QueueMemory, count: int, undo: Undo | None) -> int:
    """The first of so many delivery numbers, which are given out once. Generations are such numbers too: so a
    reader that is made anew, in a queue that is made anew, has none that another one had before."""
    first = memory.next_delivery
    memory.next_delivery += count
    if undo is not None:
        undo.append(partial(setattr, memory, "next_delivery", first))
    return first


def _find(memory: QueueMemory, queue: str, name: str) -> tuple[QueueState, KnownReader]:
    """A queue and its reader."""
    state = memory.queue(queue)
    reader = state.readers.get(name)
    if reader is None:
        reader_ops.check_reader(name)
        raise NotFound(f"{queue!r} has no reader {name!r}; open it first")
    return state, reader


def _current(
    memory: QueueMemory, op: reader_ops.Assign | reader_ops.AckAssigned | reader_ops.ReadAssignment
) -> tuple[QueueState, KnownReader]:
    """A queue and its reader, if that is still the one who asks."""
    state, reader = _find(memory, op.queue, op.reader)
    if reader.generation != op.generation:
        raise Fenced(
            f"the reader {op.reader!r} of {op.queue!r} was released, and is in generation {reader.generation} now, not "
            f"{op.generation}: whatever this one read has gone to others; stop it, and start anew"
        )
    return state, reader


# -- planning ---------------------------------------------------------------------------------------------------


def assign(memory: QueueMemory, op: reader_ops.Assign, context: ApplyContext) -> Result:
    """All up to `start` is done, and more is assigned; unless it was before, and the answer was lost."""
    state, reader = _current(memory, op)
    if not 1 <= op.count <= reader_ops.ASSIGNED_MAX:
        raise Invalid(f"an assignment is of 1 to {reader_ops.ASSIGNED_MAX} messages, not {op.count}")
    if not reader.acked <= op.start <= reader.last:
        raise Conflict(_unknown_start(op, reader))
    grant = reader.grant
    if grant is not None and op.start < reader.last:
        context.idle += 1
        return reader_ops.Assigned(reader.last, len(grant.held), grant.claimed_ms)
    undo = None if context.last and not op.bytes_max else context.undo  # to ask for sizes may fail, after a change
    if grant is not None:
        _ack(memory, state, op.reader, context.now_ms, undo)
    places = _choose(memory, state, op)
    if not places:
        context.idle += grant is None
        return reader_ops.Assigned(op.start, 0)
    first = _take_deliveries(memory, len(places), undo)
    memory.log_step(statelog.encode_assigned(state.number, context.now_ms, first, op.reader, places), undo)
    apply_assigned(state, op.reader, places, context.now_ms, first, undo)
    return reader_ops.Assigned(op.start + 1, len(places), context.now_ms, True)


def _unknown_start(op: reader_ops.Assign, reader: KnownReader) -> str:
    way_out = f"release the reader with `{_release_command(op)}`, and start with a new checkpoint"
    if op.start < reader.acked:
        return (
            f"the reader {op.reader!r} of {op.queue!r} has done everything up to assignment {reader.acked}, and comes "
            f"with {op.start}: its checkpoint was deleted, or is older than that, or is another query's; {way_out}"
        )
    return (
        f"the reader {op.reader!r} of {op.queue!r} comes with assignment {op.start}, and the last one is "
        f"{reader.last}: its checkpoint is of another store, or this store is an older copy; {way_out}"
    )


def _release_command(op: reader_ops.Assign | reader_ops.DeleteReader) -> str:
    return shlex.join(("detent", "queue", "release", op.queue, op.reader))


def apply_assigned(
    state: QueueState, name: str, places: Sequence[int], assigned_ms: int, first_delivery: int, undo: Undo | None
) -> None:
    """The messages at these places are a reader's."""
    reader = state.readers[name]
    assert reader.grant is None, f"the reader {name!r} has an assignment already"
    messages, _ = state.grant(places, assigned_ms, FOREVER, first_delivery, name, undo)
    state.set_reader(name, reader._replace(grant=state.flights[messages[0]][2]), undo)


def _choose(memory: QueueMemory, state: QueueState, op: reader_ops.Assign) -> list[int]:
    """The places that a claim would take. A paused queue has none to give, nor one that has too many in flight: a
    reader asks again later."""
    room = ops.IN_FLIGHT_MAX - len(state.flights)
    if not state.ready or state.config.paused or room <= 0:
        return []
    places = state.choose(min(op.count, room))
    if not op.bytes_max:
        return places
    count = 0
    try:
        count = _leading(memory, state, places, op.bytes_max)
    finally:
        state.unchoose(places[count:])
    return places[:count]


def _leading(memory: QueueMemory, state: QueueState, places: list[int], bytes_max: int) -> int:
    """How many of these, from the first on, have bodies of at most so many bytes together."""
    rows = state.spread(places)
    messages = picked("messages", rows)
    records = list(map(sub, messages, picked("offsets", rows)))
    known: dict[int, PayloadRecord] = {}
    size = 0
    with memory.reader.view() as view:
        for count, (message, first) in enumerate(zip(messages, records, strict=True)):
            record = known.get(first)
            if record is None:
                if len(known) == reader_ops.SIZED_RECORDS_MAX:
                    return count
                stored = memory.stored(published.payload_key(first), view)
                assert stored is not None, f"the body of message {message} is missing"
                record = known[first] = PayloadRecord(stored)
            size += record.size(message - first)
            if count and size > bytes_max:
                return count
    return len(places)


# -- acknowledging ----------------------------------------------------------------------------------------------


def ack(memory: QueueMemory, op: reader_ops.AckAssigned, context: ApplyContext) -> Result:
    """All up to an assignment is done, and nothing is planned. What was done before stays so."""
    state, reader = _current(memory, op)
    if op.upto > reader.last:
        raise Conflict(
            f"the reader {op.reader!r} of {op.queue!r} has no assignment {op.upto} that could be done: the last one is "
            f"{reader.last}"
        )
    if op.upto <= reader.acked:
        context.idle += 1
        return Done()
    _ack(memory, state, op.reader, context.now_ms, None if context.last else context.undo)
    return Done()


def _ack(memory: QueueMemory, state: QueueState, name: str, now_ms: int, undo: Undo | None) -> None:
    memory.log_step(statelog.encode_acked_assignment(state.number, now_ms, name), undo)
    apply_acked(state, name, now_ms, undo)
    memory.housekeeper.arm_done(memory.wheel, state, now_ms)


def apply_acked(state: QueueState, name: str, at_ms: int, undo: Undo | None) -> None:
    """What is assigned to a reader is done."""
    reader = state.readers[name]
    assert reader.grant is not None, f"nothing is assigned to the reader {name!r}"
    state.ack(list(reader.grant.held), at_ms, undo)
    state.set_reader(name, reader._replace(acked=reader.last, grant=None), undo)


# -- reading ----------------------------------------------------------------------------------------------------


def read(memory: QueueMemory, op: reader_ops.ReadAssignment, context: ApplyContext) -> Result:
    """Messages of an assignment, the same ones in the same order whenever they are asked for."""
    context.idle += 1
    state, reader = _current(memory, op)
    if op.number <= reader.acked:
        raise NotFound(
            f"assignment {op.number} of the reader {op.reader!r} was acknowledged: its messages are done, and cannot "
            "be read again"
        )
    if op.number > reader.last or reader.grant is None:
        raise NotFound(f"the reader {op.reader!r} has no assignment {op.number}: the last one is {reader.last}")
    count = len(reader.grant.held)
    if op.after > count or not 1 <= op.limit <= reader_ops.PAGE_MAX:
        raise Invalid(
            f"assignment {op.number} has {count} messages, of which 1 to {reader_ops.PAGE_MAX} are read at a time, not "
            f"{op.limit} after the first {op.after}"
        )
    messages = list(islice(reader.grant.held, op.after, op.after + op.limit))
    if not messages:
        return reader_ops.AssignedMessages(0, [], [], [], b"", False)
    rows = state.spread([state.flights[message][0] for message in messages])
    return reader_ops.AssignedMessages(
        state.flights[messages[0]][1],
        messages,
        list(map(sub, messages, picked("offsets", rows))),
        picked("attempts", rows),
        bytes(picked("priorities", rows)),
        op.after + len(messages) < count,
    )


# -- releasing --------------------------------------------------------------------------------------------------


def release(memory: QueueMemory, op: reader_ops.ReleaseReader, context: ApplyContext) -> Result:
    """What is assigned comes back at once, and the reader begins anew. No attempt is counted for it: to release a
    reader says nothing about its messages."""
    state, reader = _find(memory, op.queue, op.reader)
    undo = None if context.last else context.undo
    messages = [] if reader.grant is None else list(reader.grant.held)
    if messages:
        state.put_back(messages, context.now_ms, context.now_ms, undo)
    generation = _take_deliveries(memory, 1, undo)
    state.set_reader(op.reader, KnownReader(generation, reader.opened_ms), undo)
    memory.checkpoint_wanted = True
    return reader_ops.ReaderReleased(generation, len(messages))


def delete(memory: QueueMemory, op: reader_ops.DeleteReader, context: ApplyContext) -> Result:
    """A reader goes. One that holds messages is released first, by a call that says so."""
    state, reader = _find(memory, op.queue, op.reader)
    if reader.grant is not None:
        raise Conflict(
            f"{len(reader.grant.held)} messages are assigned to the reader {op.reader!r} of {op.queue!r}: release it "
            f"first, with `{_release_command(op)}`"
        )
    state.set_reader(op.reader, None, None if context.last else context.undo)
    memory.checkpoint_wanted = True
    return Done()


def forget_readers(memory: QueueMemory, state: QueueState) -> None:
    """The queue is deleted, and its readers with it. What is assigned to them is no reader's any more."""
    for name in {*state.readers, *state.dirty_readers}:
        memory.write(reader_key(state.number, name), None, None)
    state.readers.clear()
    state.dirty_readers.clear()


def describe(memory: QueueMemory, op: reader_ops.DescribeReaders, context: ApplyContext) -> Result:
    """Readers by name."""
    context.idle += 1
    found = []
    for name, reader in sorted(memory.queue(op.queue).readers.items()):
        grant = reader.grant
        held = (0, 0) if grant is None else (len(grant.held), grant.claimed_ms)
        found.append(reader_ops.ReaderDescription(name, reader.generation, reader.opened_ms, reader.acked, *held))
    return reader_ops.ReaderDescriptions(found)
