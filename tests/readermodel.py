"""What readers of queues must do, in the plainest way: the part of the queues' model that is about assignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detent.codec.published import FOREVER
from detent.engine import Done
from detent.errors import Conflict, Fenced, NotFound
from detent.queue import QueueMachine
from detent.queue import reader_operations as reader_ops

if TYPE_CHECKING:
    from queuemodel import Entry, Message, Queue

AVAILABLE, IN_FLIGHT = "available", "in flight"


@dataclass(slots=True)
class Reader:
    """A reader, and the messages of the assignment after the last one that is done."""

    generation: int
    opened_ms: int
    acked: int = 0
    assigned_ms: int = 0
    messages: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        return self.acked + bool(self.messages)


class ReaderRules:
    """The operations of readers. `looked` are the answers of those that changed nothing, which nobody remembers."""

    now_ms: int
    next_delivery: int
    messages: dict[int, Message]
    turns: dict[int, int]

    def __init__(self) -> None:
        self.looked: list[Any] = []

    def find(self, name: str) -> Queue:
        raise NotImplementedError

    def choose(self, queue: Queue, count: int) -> list[Entry]:
        raise NotImplementedError

    def done(self, queue: Queue, message: int) -> None:
        raise NotImplementedError

    def idle(self, result: Any) -> Any:
        self.looked.append(result)
        return result

    def reader(self, op: Any) -> tuple[Queue, Reader]:
        queue = self.find(op.queue)
        if op.reader not in queue.readers:
            raise NotFound(op.reader)
        found = queue.readers[op.reader]
        if getattr(op, "generation", found.generation) != found.generation:
            raise Fenced(op.reader)
        return queue, found

    def openreader(self, op: reader_ops.OpenReader, _hint: Any) -> reader_ops.ReaderOpened:
        queue = self.find(op.queue)
        known = queue.readers.get(op.reader)
        if known is not None:
            return self.idle(reader_ops.ReaderOpened(known.generation, known.acked))
        queue.readers[op.reader] = Reader(self.next_delivery, self.now_ms)
        self.next_delivery += 1
        return reader_ops.ReaderOpened(self.next_delivery - 1, 0)

    def assign(self, op: reader_ops.Assign, _hint: Any) -> reader_ops.Assigned:
        queue, reader = self.reader(op)
        if not reader.acked <= op.start <= reader.last:
            raise Conflict("start")
        if op.start < reader.last:
            return self.idle(reader_ops.Assigned(reader.last, len(reader.messages), reader.assigned_ms))
        acked = self.past(queue, reader)
        chosen = [] if queue.paused else self.within(queue, self.choose(queue, op.count), op.bytes_max)
        if not chosen:
            nothing = reader_ops.Assigned(op.start, 0)
            return nothing if acked else self.idle(nothing)
        for entry in chosen:
            entry.state, entry.attempts, entry.delivery = IN_FLIGHT, entry.attempts + 1, self.next_delivery
            entry.claimed_ms, entry.lease_ms, entry.consumer = self.now_ms, FOREVER, op.reader
            self.next_delivery += 1
        reader.messages, reader.assigned_ms = tuple(entry.message for entry in chosen), self.now_ms
        return reader_ops.Assigned(op.start + 1, len(chosen), self.now_ms, True)

    def within(self, queue: Queue, chosen: list[Entry], bytes_max: int) -> list[Entry]:
        size, count = 0, 0
        for entry in chosen:
            size += len(self.messages[entry.message].body)
            if bytes_max and count and size > bytes_max:
                break
            count += 1
        self.turns[queue.number] -= len(chosen) - count
        return chosen[:count]

    def past(self, queue: Queue, reader: Reader) -> bool:
        """What is assigned is done; whether there was anything."""
        messages, reader.acked = reader.messages, reader.last
        reader.messages, reader.assigned_ms = (), 0
        for message in messages:
            self.done(queue, message)
        return bool(messages)

    def ackassigned(self, op: reader_ops.AckAssigned, _hint: Any) -> Done:
        queue, reader = self.reader(op)
        if op.upto > reader.last:
            raise Conflict("upto")
        if op.upto <= reader.acked:
            return self.idle(Done())
        self.past(queue, reader)
        return Done()

    def releasereader(self, op: reader_ops.ReleaseReader, _hint: Any) -> reader_ops.ReaderReleased:
        queue, reader = self.reader(op)
        for message in reader.messages:
            entry = queue.entries[message]
            entry.state, entry.attempts = AVAILABLE, entry.attempts - 1
            entry.visible_ms = FOREVER if entry.deadline_ms <= self.now_ms else self.now_ms
        queue.readers[op.reader] = Reader(self.next_delivery, reader.opened_ms)
        self.next_delivery += 1
        return reader_ops.ReaderReleased(self.next_delivery - 1, len(reader.messages))

    def deletereader(self, op: reader_ops.DeleteReader, _hint: Any) -> Done:
        queue, reader = self.reader(op)
        if reader.messages:
            raise Conflict("assigned")
        del queue.readers[op.reader]
        return Done()

    def readassignment(self, op: reader_ops.ReadAssignment, _hint: Any) -> reader_ops.AssignedMessages:
        queue, reader = self.reader(op)
        if op.number <= reader.acked or op.number > reader.last:
            raise NotFound("assignment")
        page = [queue.entries[message] for message in reader.messages[op.after : op.after + op.limit]]
        return self.idle(
            reader_ops.AssignedMessages(
                page[0].delivery if page else 0,
                [entry.message for entry in page],
                [self.messages[entry.message].record for entry in page],
                [entry.attempts for entry in page],
                bytes(entry.priority for entry in page),
                op.after + len(page) < len(reader.messages),
            )
        )

    def described(self, queue: Queue) -> list[reader_ops.ReaderDescription]:
        return [
            reader_ops.ReaderDescription(
                name, found.generation, found.opened_ms, found.acked, len(found.messages), found.assigned_ms
            )
            for name, found in sorted(queue.readers.items())
        ]


def readers_of(machine: QueueMachine, number: int) -> dict[str, Any]:
    """The readers of a queue as a machine remembers them, each with its messages in order."""
    return {
        name: (found.generation, found.opened_ms, found.acked, None if found.grant is None else list(found.grant.held))
        for name, found in sorted(machine.by_number[number].readers.items())
    }


def check_readers(machine: QueueMachine) -> None:
    """What is assigned is in flight without an end, under one grant a reader, in the order of its deliveries; and
    nothing else is."""
    for state in machine.by_number.values():
        grants = {found.grant: name for name, found in state.readers.items() if found.grant is not None}
        for grant, name in grants.items():
            assert (grant.consumer, grant.queue, grant.lease_ms) == (name, state.number, FOREVER)
            deliveries = [state.flights[message][1] for message in grant.held]
            assert deliveries
            assert deliveries == list(range(deliveries[0], deliveries[0] + len(deliveries)))
            assert all(state.flights[message][2] is grant for message in grant.held)
        flying = {grant for _, _, grant in state.flights.values() if grant.is_assigned}
        assert state.deleted or flying == grants.keys(), "a message is assigned to nobody"
        assert all(found.generation < machine.next_delivery for found in state.readers.values())
