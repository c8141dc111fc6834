"""A message as a reader sees it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from detent.codec.block import PRODUCER_BYTES
from detent.message import ACK_TXN, build_uuid


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a journal. (It refers to nothing that could refer to it, so the garbage collector need not look at
    the thousands that a consumer has at hand, which took a quarter of its time.)

    `offset` is its place among the committed messages, `position` its place among the stored rows: a read of committed
    messages gives the one, a read of uncommitted ones the other; the one that was not asked for is -1. `journal` is
    the journal's name.
    """

    body: bytes
    key: bytes | None = None
    headers: dict[str, str] = {}
    producer: bytes
    clock: int
    flags: int = 0
    published_ms: int = 0
    offset: int = -1
    position: int = -1
    journal: str = ""

    @property
    def uuid(self) -> uuid.UUID:
        """The message's id: an RFC 4122 version 1 UUID of its producer, clock and flags."""
        return build_uuid(self.producer, self.clock, self.flags)

    @property
    def published_at(self) -> datetime:
        """When the owner stored it."""
        return datetime.fromtimestamp(self.published_ms / 1000, UTC)

    @property
    def is_ack(self) -> bool:
        """Whether it only acknowledges others; such messages are never committed ones."""
        return self.flags == ACK_TXN

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


def messages_of(
    batch: Any, *, offset: int | None = None, position: int | None = None, journal: str = ""
) -> Iterator[Message]:
    """The rows of a record batch as messages, numbered from `offset` or `position` on."""
    columns = [batch.column(i).to_pylist() for i in (1, 2, 4, 5, 6)]
    times = batch.column(3).view("int64").to_pylist()
    rows = zip(_producers(batch.column(0)), *columns, times, strict=True)
    for index, (producer, clock, flags, key, headers, body, time) in enumerate(rows):
        yield Message(
            body=body,
            key=key,
            headers=dict(headers) if headers else {},
            producer=producer,
            clock=clock,
            flags=flags,
            published_ms=time,
            offset=-1 if offset is None else offset + index,
            position=-1 if position is None else position + index,
            journal=journal,
        )


def _producers(column: Any) -> list[bytes]:
    """The producers of a batch. Arrow takes longer for them than for all other columns together."""
    start, end = PRODUCER_BYTES * column.offset, PRODUCER_BYTES * (column.offset + len(column))
    raw = bytes(memoryview(column.buffers()[1])[start:end])
    return [raw[at : at + PRODUCER_BYTES] for at in range(0, len(raw), PRODUCER_BYTES)]
