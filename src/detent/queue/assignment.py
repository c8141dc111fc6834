"""`queue.reader(name)`: messages assigned by number, as a streaming query wants them, sync and async.

A reader plans (`assign`), reads what was planned as often as it likes, and plans on from there, which says that all
before it is done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec

from detent.codec.published import Metadata
from detent.engine.twins import Awaited, Plain, Twin, both, drive_each
from detent.errors import Corrupt, Invalid
from detent.queue import calls
from detent.queue import reader_operations as ops
from detent.queue.info import time_of
from detent.queue.message import Readable
from detent.queue.reader import QueueReader


@dataclass(frozen=True, slots=True)
class Assignment:
    """What was planned: the assignment's number, and how many messages it has. Without messages there is nothing to
    read, and the number is the one that was planned from. `new` says whether it was made by this very call."""

    number: int
    count: int
    new: bool = False


class AssignedMessage(Readable, msgspec.Struct, eq=False):
    """A message of an assignment. It has no receipt: it is done when its reader is past the assignment."""

    queue: str
    id: int
    """The message's number: the same at each delivery, in each queue."""
    fencing_token: int
    """The delivery number. It is the same each time that the assignment is read; a later delivery has a higher one."""
    _kind: int
    _data: bytes
    _about: Metadata
    attempts: int
    """How often it was given out, this time included."""
    priority: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {len(self.body)} bytes, attempt {self.attempts})"


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """A reader of a queue: the last assignment that it has done, and how many messages it has since when; none, and
    None, if it has done all that it planned."""

    name: str
    generation: int
    opened: datetime
    acked: int
    assigned: int
    assigned_since: datetime | None


def reader_info(found: ops.ReaderDescription) -> ReaderInfo:
    """A description as users see it."""
    since = time_of(found.assigned_ms) if found.count else None
    return ReaderInfo(found.name, found.generation, time_of(found.opened_ms), found.acked, found.count, since)


class _Reading:
    """The steps that read some messages of an assignment."""

    def __init__(self, base: tuple[str, str, int], number: int, start: int, end: int | None) -> None:
        for value in (number, start, start if end is None else end):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise Invalid(f"an assignment and its messages are named by numbers from 0 on, not {value!r}")
        if end is not None and end < start:
            raise Invalid(f"there is nothing to read from {start} to {end}")
        self._base, self._number = base, number
        self._at, self._end = start, end
        self.more = end is None or end > start

    def next_step(self) -> ops.ReadAssignment:
        """The operation of the next step."""
        left = ops.PAGE_MAX if self._end is None else self._end - self._at
        return ops.ReadAssignment(*self._base, self._number, self._at, min(left, ops.PAGE_MAX))

    def did(self, page: ops.AssignedMessages, reader: QueueReader) -> list[AssignedMessage] | None:
        """The messages of a step, with their content; None if some of it is gone. An answer that brought none of it
        along, for want of room, is asked for again."""
        if not page.messages:
            self._check_end(page)
            return []
        found = reader.columns(page.messages, page.records) if page.contents is None else calls.columns(page.contents)
        if found.gone:
            return None
        self._at += len(page.messages)
        self._check_end(page)
        first = page.first_delivery
        every = map(
            AssignedMessage,
            repeat(self._base[0]),
            page.messages,
            range(first, first + len(page.messages)),
            found.kinds,
            found.bodies,
            found.about,
            page.attempts,
            page.priorities,
        )
        return list(every)

    def _check_end(self, page: ops.AssignedMessages) -> None:
        self.more = page.more and self._at != self._end
        if not page.more and self._end is not None and self._at < self._end:
            raise Invalid(f"assignment {self._number} has {self._at} messages, not {self._end}")

    def missing(self) -> Corrupt:
        """What it means that content is gone of messages that are still assigned."""
        return Corrupt(f"the content of messages of assignment {self._number} is missing: run `detent store verify`")


class _ReaderBase(Twin):
    """What both halves share."""

    def __init__(self, store: Any, queue: str, name: str, generation: int | None) -> None:
        ops.check_reader(name)
        self._store = store
        self.queue = queue
        self.name = name
        self.generation = generation

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue!r}, {self.name!r})"

    def _base(self) -> tuple[str, str, int]:
        if self.generation is None:
            raise Invalid(f"open the reader {self.name!r} first: its user says in which generation it is")
        return self.queue, self.name, self.generation

    @both
    async def open(self) -> ops.ReaderOpened:
        """Register the reader, or find it: its `generation`, and the last assignment that is done (`acked`, 0 at
        first). A release of it fences every process that goes on with this generation."""
        opened: ops.ReaderOpened = await self._do(ops.OpenReader(self.queue, self.name))
        self.generation = opened.generation
        return opened

    @both
    async def assign(self, start: int, count: int, *, max_bytes: int | None = None) -> Assignment:
        """Everything up to assignment `start` is done; plan the next one, of at most `count` messages.

        They are chosen as a claim would choose them, and stay this reader's until they are done, or the reader is
        released: no lease ends. If assignment `start` + 1 exists it is answered as it is. `max_bytes` limits the
        bodies together. `Conflict` for a `start` that cannot be: the checkpoint that says it was deleted, or is an
        older copy. `Fenced` if the reader was released.
        """
        found: ops.Assigned = await self._do(ops.Assign(*self._base(), start, count, max_bytes or 0))
        return Assignment(found.number, found.count, found.new)

    def _steps(self, number: int, start: int, end: int | None) -> _Reading:
        return _Reading(self._base(), number, start, end)

    async def _read(self, steps: _Reading) -> AsyncGenerator[list[AssignedMessage], None]:
        """Page by page."""
        while steps.more:
            step = steps.next_step()
            found = await self._aside(steps.did, await self._do(step), self._store.messages)
            if found is None:
                await self._do(step)  # raises if they are done, or the reader was released, in between
                raise steps.missing()
            yield found

    @both
    async def ack(self, upto: int) -> None:
        """Everything up to assignment `upto` is done. Planning on says the same; this is for the last one."""
        await self._do(ops.AckAssigned(*self._base(), upto))

    @both
    async def release(self) -> int:
        """Give back what is assigned, and begin anew: how many messages can be claimed again. A process that still uses
        the reader gets `Fenced`. No attempt is counted."""
        released: ops.ReaderReleased = await self._do(ops.ReleaseReader(self.queue, self.name))
        self.generation = None
        return released.count

    @both
    async def delete(self) -> None:
        """Forget the reader. `Conflict` while messages are assigned to it: release it first."""
        await self._do(ops.DeleteReader(self.queue, self.name))
        self.generation = None


class AssignmentReader(_ReaderBase, Plain):
    """A named reader of a queue. One process plans with it; any number may read what was planned, if they are told the
    reader's generation.

    >>> reader = store.queue("orders").reader("nightly")
    >>> done = reader.open().acked
    >>> planned = reader.assign(done, 1000)
    >>> for message in reader.read(planned.number):
    ...     print(message.body)
    b'one'
    >>> reader.ack(planned.number)      # or plan on from it: reader.assign(planned.number, 1000)
    """

    def read(self, number: int, start: int = 0, end: int | None = None) -> Iterator[AssignedMessage]:
        """The messages of an assignment, from the one at place `start` up to `end`: the same ones in the same order,
        whenever and wherever they are read. `NotFound` once they are done."""
        return (message for page in drive_each(self._read(self._steps(number, start, end))) for message in page)


class AsyncAssignmentReader(_ReaderBase, Awaited):
    """`AssignmentReader` for asyncio: the same calls, awaited."""

    def read(self, number: int, start: int = 0, end: int | None = None) -> AsyncIterator[AssignedMessage]:
        """The messages of an assignment; see :meth:`AssignmentReader.read`."""
        return (message async for page in self._read(self._steps(number, start, end)) for message in page)
