"""The operations of a queue's readers, and what they answer.

A reader is a consumer that says by number what it has done, as a streaming query does: it plans a batch, may read it
any number of times, also after a restart, and says that it is done by planning the next one. So messages are not leased
to it but assigned: numbered, for good, until it is past them or the reader is released.
"""

from __future__ import annotations

from typing import Final

import msgspec

from detent.engine import Operation, Result
from detent.errors import Invalid
from detent.queue.operations import IN_FLIGHT_MAX, Attached, Number, check_text

READER_BYTES_MAX: Final = 256
"""A reader's name stands with each message that is assigned to it, in a key, and in each step of the state log."""

READERS_MAX: Final = 100
"""Readers of one queue: they are listed in one answer, and go with their queue in one commit."""

ASSIGNED_MAX: Final = 50_000
"""Messages in one assignment, of which a reader has one at a time: who plans from a number has done all up to it, so
there is never more than the next one. Half of what a queue may have in flight is left to everybody else."""

PAGE_MAX: Final = 10_000
"""Messages of an assignment in one answer: their numbers have some hundred kilobytes."""

SIZED_RECORDS_MAX: Final = 5_000
"""Body records that an assignment looks at which is limited in bytes, and ends with: their sizes are known to the
store alone, and other callers wait while it is asked, about 5 µs a record. A record holds up to 256 messages that were
published together."""

assert ASSIGNED_MAX <= IN_FLIGHT_MAX


class OpenReader(Operation, frozen=True, tag=True, array_like=True):
    """Register a reader of a queue, or find the one that has this name."""

    queue: str
    reader: str


class Assign(Operation, frozen=True, tag=True, array_like=True):
    """Assign up to `count` messages to a reader that has done everything up to assignment `start`, which is
    acknowledged by this. What was assigned after it before is answered as it is. `bytes_max` limits the bodies
    together; 0 is no limit, and the first message has room in any case."""

    queue: str
    reader: str
    generation: Number
    start: Number
    count: Number
    bytes_max: Number = 0


class AckAssigned(Operation, frozen=True, tag=True, array_like=True):
    """Everything up to assignment `upto` is done."""

    queue: str
    reader: str
    generation: Number
    upto: Number


class ReadAssignment(Operation, frozen=True, tag=True, array_like=True):
    """Where the messages of an assignment are stored: at most `limit` of them, after the first `after`. Changes
    nothing."""

    queue: str
    reader: str
    generation: Number
    number: Number
    after: Number = 0
    limit: Number = PAGE_MAX


class ReleaseReader(Operation, frozen=True, tag=True, array_like=True):
    """Let go of what is assigned to a reader, and begin with it anew: a process that uses it now is fenced."""

    queue: str
    reader: str


class DeleteReader(Operation, frozen=True, tag=True, array_like=True):
    """Forget a reader to which nothing is assigned."""

    queue: str
    reader: str


class DescribeReaders(Operation, frozen=True, tag=True, array_like=True):
    """The readers of a queue. Changes nothing."""

    queue: str


class ReaderOpened(Result, frozen=True, tag=True, array_like=True):
    """A reader's generation, and the last assignment that it has acknowledged."""

    generation: int
    acked: int


class Assigned(Result, frozen=True, tag=True, array_like=True):
    """An assignment: its number, how many messages it has, and since when. Without messages it is none, and the number
    is that of `start`. `new` says whether it was made just now."""

    number: int
    count: int
    assigned_ms: int = 0
    new: bool = False


class AssignedMessages(Result, frozen=True, tag=True, array_like=True):
    """Messages of an assignment in order, their delivery numbers counted up from the first one's, and the first
    messages of the records that hold them. `more` says whether others follow; for `contents` see
    :class:`detent.queue.operations.ClaimedMessages`, a page ends where they have no room."""

    first_delivery: int
    messages: list[int]
    records: list[int]
    attempts: list[int]
    priorities: bytes
    more: bool
    contents: Attached | None = None


class ReaderReleased(Result, frozen=True, tag=True, array_like=True):
    """A reader's new generation, and how many messages came back."""

    generation: int
    count: int


class ReaderDescription(msgspec.Struct, frozen=True, array_like=True):
    """A reader: `count` messages are assigned to it as assignment `acked` + 1, since `assigned_ms`; 0 is none."""

    name: str
    generation: int
    opened_ms: int
    acked: int
    count: int
    assigned_ms: int


class ReaderDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Readers by name."""

    readers: list[ReaderDescription]


def check_reader(name: str) -> None:
    """`Invalid` unless this can be the name of a reader."""
    check_text(name, READER_BYTES_MAX, "a reader's name")
    if not name:
        raise Invalid("a reader has a name of at least one character")
