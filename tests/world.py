"""An engine with journals on a memory store, a clock that the test moves, and a writer that can be made to fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from detent.engine import Engine, Operation, OwnerTime, Request, Ticket
from detent.engine.engine import Housekeeping
from detent.errors import Unavailable
from detent.journal import JournalMachine, JournalReader, Message
from detent.journal import operations as ops
from detent.journal.message import messages_of
from detent.kv import Batch
from detent.kv.memory import MemorySpace, MemoryWriter
from detent.queue import QueueMachine

START_MS = 1_700_000_000_000


class FailingWriter(MemoryWriter):
    """Fails the next commits, before or after they became durable."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.fail_before = 0
        self.fail_after = 0
        self.commits = 0
        self.recoveries = 0

    def commit(self, batch: Batch) -> None:
        if self.fail_before:
            self.fail_before -= 1
            raise Unavailable("the disk is full; nothing was committed")
        super().commit(batch)
        self.commits += 1
        if self.fail_after:
            self.fail_after -= 1
            raise Unavailable("the connection broke, the outcome is unknown")

    def recover(self) -> None:
        self.recoveries += 1
        super().recover()


class World:
    """One store. `reopen` is what a crash and a restart do to it: memory is gone, the space stays."""

    def __init__(self, seed: int = 0, space: MemorySpace | None = None) -> None:
        self.space = space or MemorySpace()
        self.now_ms = START_MS
        self.random = random.Random(seed)
        self._sequence = itertools.count()
        self.concurrent = False  # with several threads nobody can say that all lower sequences were answered
        self._open()

    def _open(self) -> None:
        self.writer = FailingWriter(self.space)
        self.machine = JournalMachine(self.writer, random=self.random.randbytes)
        self.queues = QueueMachine(self.writer)
        machines = [self.machine, self.queues]
        self.engine = Engine(self.writer, machines, now_ms=self.time(), random=self.random.randbytes)
        self.reader = JournalReader(self.writer)
        self.session = self.engine.new_session()

    def time(self) -> OwnerTime | Callable[[], int]:
        """What the engine takes the time from."""
        return lambda: self.now_ms

    def reopen(self) -> None:
        self._open()

    def request(self, *operations: Operation, session: bytes | None = None, answered: int | None = None) -> Request:
        sequence = next(self._sequence)
        if answered is None:
            answered = 0 if self.concurrent else sequence
        return Request(session or self.session, sequence, answered, list(operations))

    def commit(self, *operations: Operation) -> list[Any]:
        return self.engine.commit(self.request(*operations))

    def append(self, journal: str, *bodies: bytes) -> ops.Appended:
        result: ops.Appended = self.commit(ops.Append(journal, list(bodies)))[0]
        return result

    def stamped(
        self, journal: str, rows: list[tuple[int, int, int]], bodies: list[bytes] | None = None
    ) -> ops.Appended:
        """Append rows of (producer, clock, flags)."""
        operation = ops.AppendStamped(
            journal,
            bodies or [f"{producer}:{clock}:{flags}".encode() for producer, clock, flags in rows],
            None,
            None,
            b"".join(producer.to_bytes(6, "big") for producer, _, _ in rows),
            [clock for _, clock, _ in rows],
            [flags for _, _, flags in rows],
        )
        result: ops.Appended = self.commit(operation)[0]
        return result

    def committed(self, journal: str) -> list[Message]:
        first, end = self.reader.extent(journal)
        return [
            m for offset, batch in self.reader.committed(journal, first, end) for m in messages_of(batch, offset=offset)
        ]

    def bodies(self, journal: str) -> list[bytes]:
        return [message.body for message in self.committed(journal)]

    def raw(self, journal: str) -> list[Message]:
        first = self.reader.info(journal).first_position
        return [m for at, batch in self.reader.uncommitted(journal, first) for m in messages_of(batch, position=at)]

    def group(self, *requests: Request | None) -> list[Ticket]:
        """Run several transactions as one group; None is the engine's housekeeping."""
        tickets = [Ticket(request or Request(b"", -1, 0, [Housekeeping()])) for request in requests]
        for ticket in tickets:
            ticket.prepare_to_wait()
        self.engine._run_group(tickets)
        return tickets

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.engine.tick()
        self.session = self.engine.new_session()  # the old one may have expired, as a client's would
