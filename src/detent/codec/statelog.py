"""The queues' state log: what happened to messages since the last checkpoint, one record a group commit.

A record is its steps one after another, each a kind (u8) and its fields. Replayed in order on the state of the last
checkpoint, they give the state again; nothing else is read for that, no filter is asked and no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from detent.codec.group import read_group, write_group
from detent.codec.values import ByteReader, ByteWriter
from detent.errors import Corrupt

PUBLISH, ROUTE, CLAIM, ACK, RETURN, FAIL, EXTEND, EXPIRE, EXPIRE_FAILED, MOVE = range(1, 11)
PUBLISH_GROUPED, ROUTE_GROUPED, MOVE_GROUPED = range(11, 14)
ASSIGN, ACK_ASSIGNED = range(14, 16)
UNCLAIM = 16


class Run(NamedTuple):
    """Messages with numbers one after another, from one record, that share everything else."""

    first: int
    length: int
    offset: int
    record_count: int
    visible_ms: int
    deadline_ms: int


class PublishStep(NamedTuple):
    """Messages came in, and went to these queues, with a priority and perhaps a group in each; to none, if none
    matched."""

    run: Run
    targets: tuple[tuple[int, int, bytes | None], ...]


class Routed(NamedTuple):
    """A queue that was behind has read the log up to `next_message`, and took these, each with its priority and its
    group."""

    queue: int
    next_message: int
    runs: tuple[tuple[Run, int, bytes | None], ...]


class ClaimStep(NamedTuple):
    """The messages at these places were claimed; their delivery numbers go up from `first_delivery`."""

    queue: int
    claimed_ms: int
    lease_ms: int
    first_delivery: int
    consumer: str
    places: list[int]


class Ended(NamedTuple):
    """Claims ended, or changed. `kind` is ACK, RETURN, FAIL or EXTEND; `until_ms` is when returned messages become
    visible, or the new end of an extended lease."""

    kind: int
    queue: int
    at_ms: int
    until_ms: int
    reason: str
    messages: list[int]


class Expired(NamedTuple):
    """Messages went because their retention ended: available ones by place, failed ones by number."""

    kind: int
    queue: int
    numbers: list[int]


class MoveStep(NamedTuple):
    """Messages in flight were given up and went to another queue, each with the priority and the group that it has
    there."""

    queue: int
    at_ms: int
    target: int
    messages: tuple[tuple[int, int, bytes | None], ...]


class AssignStep(NamedTuple):
    """The messages at these places were assigned to a reader; their delivery numbers go up from `first_delivery`."""

    queue: int
    assigned_ms: int
    first_delivery: int
    reader: str
    places: list[int]


class AckedAssignment(NamedTuple):
    """What was assigned to a reader is done."""

    queue: int
    at_ms: int
    reader: str


class Unclaimed(NamedTuple):
    """Messages in flight are available again, as if they had not been claimed."""

    queue: int
    at_ms: int
    messages: list[int]


Step = PublishStep | Routed | ClaimStep | Ended | Expired | MoveStep | AssignStep | AckedAssignment | Unclaimed

_RUN: Final = struct.Struct("<QHHHqq")
_PUBLISH: Final = struct.Struct("<BQHHHqqH")
_TARGET: Final = struct.Struct("<IB")
_CLAIM: Final = struct.Struct("<BIqqQ")
_ENDED: Final = struct.Struct("<BIqq")
_EXPIRED: Final = struct.Struct("<BI")
_MOVE: Final = struct.Struct("<BIqII")
_MOVED_BYTES: Final = 9
_ASSIGN: Final = struct.Struct("<BIqQ")
_ACK_ASSIGNED: Final = struct.Struct("<BIq")
_UNCLAIM: Final = struct.Struct("<BIq")
_COUNT: Final = struct.Struct("<I")

NUMBERS_MAX: Final = 1 << 20
"""Places or messages in one step; far above what one operation may name."""


def encode_published(run: Run, targets: Sequence[tuple[int, int, bytes | None]]) -> bytes:
    """The step of a publish."""
    if len(targets) == 1 and targets[0][2] is None:  # nearly always
        return _PUBLISH.pack(PUBLISH, *run, 1) + _TARGET.pack(*targets[0][:2])
    if _has_groups(targets):
        writer = ByteWriter().pack(_PUBLISH, PUBLISH_GROUPED, *run, len(targets))
        for queue, priority, group in targets:
            write_group(writer.pack(_TARGET, queue, priority), group)
        return writer.finish()
    head = _PUBLISH.pack(PUBLISH, *run, len(targets))
    return head + b"".join(_TARGET.pack(*target[:2]) for target in targets)


def encode_routed(queue: int, next_message: int, runs: Sequence[tuple[Run, int, bytes | None]]) -> bytes:
    """The step of a queue that catches up."""
    grouped = _has_groups(runs)
    writer = ByteWriter().u8(ROUTE_GROUPED if grouped else ROUTE).u32(queue).u64(next_message).u16(len(runs))
    for run, priority, group in runs:
        writer.pack(_RUN, *run).u8(priority)
        if grouped:
            write_group(writer, group)
    return writer.finish()


def _has_groups(found: Sequence[tuple[Any, int, bytes | None]]) -> bool:
    return any(group is not None for _, _, group in found)


def encode_claimed(
    queue: int, claimed_ms: int, lease_ms: int, first_delivery: int, consumer: str, places: Sequence[int]
) -> bytes:
    """The step of a claim."""
    label = consumer.encode()
    return b"".join(
        (
            _CLAIM.pack(CLAIM, queue, claimed_ms, lease_ms, first_delivery),
            len(label).to_bytes(2, "little"),
            label,
            numbers(places),
        )
    )


def encode_ended(kind: int, queue: int, at_ms: int, until_ms: int, reason: str, messages: Sequence[int]) -> bytes:
    """The step of an acknowledgement, a failure, an expired lease, an extension."""
    text = reason.encode()
    return b"".join(
        (_ENDED.pack(kind, queue, at_ms, until_ms), len(text).to_bytes(2, "little"), text, numbers(messages))
    )


def encode_expired(kind: int, queue: int, expired: Sequence[int]) -> bytes:
    """The step of the end of retention."""
    return _EXPIRED.pack(kind, queue) + numbers(expired)


def encode_moved(queue: int, at_ms: int, target: int, messages: Sequence[tuple[int, int, bytes | None]]) -> bytes:
    """The step of messages that were given up and go to the dead letter queue."""
    grouped = _has_groups(messages)
    writer = ByteWriter().pack(_MOVE, MOVE_GROUPED if grouped else MOVE, queue, at_ms, target, len(messages))
    for message, priority, group in messages:
        writer.u64(message).u8(priority)
        if grouped:
            write_group(writer, group)
    return writer.finish()


def encode_assigned(queue: int, assigned_ms: int, first_delivery: int, reader: str, places: Sequence[int]) -> bytes:
    """The step of an assignment."""
    head = ByteWriter().pack(_ASSIGN, ASSIGN, queue, assigned_ms, first_delivery).utf8(reader).finish()
    return head + numbers(places)


def encode_acked_assignment(queue: int, at_ms: int, reader: str) -> bytes:
    """The step of an assignment that is done."""
    return ByteWriter().pack(_ACK_ASSIGNED, ACK_ASSIGNED, queue, at_ms).utf8(reader).finish()


def encode_unclaimed(queue: int, at_ms: int, messages: Sequence[int]) -> bytes:
    """The step of a claim that was undone."""
    return _UNCLAIM.pack(UNCLAIM, queue, at_ms) + numbers(messages)


def numbers(values: Sequence[int]) -> bytes:
    """Numbers, with their count before them."""
    count = len(values)
    if count == 1:
        return _ONE.pack(1, values[0])
    return _COUNT.pack(count) + struct.pack(f"<{count}Q", *values)


_ONE: Final = struct.Struct("<IQ")


def decode_steps(value: bytes) -> Iterator[Step]:
    """The steps of one record, in order."""
    reader = ByteReader(value, "state log")
    if not reader.remaining:
        raise reader.corrupt("a record without steps")
    while reader.remaining:
        kind = reader.u8()
        group = read_group if kind in {PUBLISH_GROUPED, ROUTE_GROUPED, MOVE_GROUPED} else _no_group
        if kind in {PUBLISH, PUBLISH_GROUPED}:
            run = _read_run(reader)
            count = reader.count(reader.u16(), _TARGET.size)
            yield PublishStep(run, tuple((reader.u32(), reader.u8(), group(reader)) for _ in range(count)))
        elif kind in {ROUTE, ROUTE_GROUPED}:
            queue, next_message, count = reader.u32(), reader.u64(), reader.count(reader.u16(), _RUN.size + 1)
            runs = tuple((_read_run(reader), reader.u8(), group(reader)) for _ in range(count))
            yield Routed(queue, next_message, runs)
        elif kind == CLAIM:
            fields = (reader.u32(), reader.i64(), reader.i64(), reader.u64(), reader.utf8())
            yield ClaimStep(*fields, _read_numbers(reader))
        elif kind in {ACK, RETURN, FAIL, EXTEND}:
            yield Ended(kind, reader.u32(), reader.i64(), reader.i64(), reader.utf8(), _read_numbers(reader))
        elif kind in {EXPIRE, EXPIRE_FAILED}:
            yield Expired(kind, reader.u32(), _read_numbers(reader))
        elif kind in {MOVE, MOVE_GROUPED}:
            queue, at_ms, target, count = reader.u32(), reader.i64(), reader.u32(), _read_count(reader, _MOVED_BYTES)
            moved = tuple((reader.u64(), reader.u8(), group(reader)) for _ in range(count))
            yield MoveStep(queue, at_ms, target, moved)
        elif kind == ASSIGN:
            about = (reader.u32(), reader.i64(), reader.u64(), reader.utf8())
            yield AssignStep(*about, _read_numbers(reader))
        elif kind == ACK_ASSIGNED:
            yield AckedAssignment(reader.u32(), reader.i64(), reader.utf8())
        elif kind == UNCLAIM:
            yield Unclaimed(reader.u32(), reader.i64(), _read_numbers(reader))
        else:
            raise reader.corrupt(f"a step of the unknown kind {kind}")


def _read_run(reader: ByteReader) -> Run:
    run = Run(*reader.unpack(_RUN))
    if not run.length or run.offset + run.length > run.record_count:
        raise Corrupt(f"a run of {run.length} messages at {run.offset} does not fit a record of {run.record_count}")
    return run


def _no_group(reader: ByteReader) -> None:
    del reader


def _read_count(reader: ByteReader, element_bytes: int) -> int:
    count = reader.count(reader.u32(), element_bytes)
    if not 0 < count <= NUMBERS_MAX:
        raise reader.corrupt(f"a step for {count} messages")
    return count


def _read_numbers(reader: ByteReader) -> list[int]:
    count = _read_count(reader, 8)
    found: list[int] = np.frombuffer(reader.take(8 * count), "<u8").tolist()
    return found
