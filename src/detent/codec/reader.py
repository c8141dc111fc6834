"""The record of a queue's reader: how far it has come, and what is assigned to it. `docs/format.md` shows it in full.

The messages of an assignment are not listed here. They stand in the queue's buckets, in flight without an end of their
lease, and have one delivery number after another from the first one on, in the order of the assignment.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_QUEUE, Prefix, u32
from detent.codec.values import ByteReader, ByteWriter

READER: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x10)


class ReaderRecord(NamedTuple):
    """A reader. The number of what is assigned to it is the one after the last that was acknowledged; `length` 0 says
    that nothing is, and then the two fields before it are 0 as well."""

    generation: int
    opened_ms: int
    acked: int
    assigned_ms: int = 0
    first_delivery: int = 0
    length: int = 0

    def encode(self) -> bytes:
        """The record's value."""
        return ByteWriter().pack(_READER, *self).finish()

    @classmethod
    def decode(cls, value: bytes) -> ReaderRecord:
        """Read a value back."""
        reader = ByteReader(value, "reader of a queue")
        record = cls(*reader.unpack(_READER))
        reader.finish()
        if not record.generation:
            raise reader.corrupt("a reader has a generation")
        if not record.length and (record.assigned_ms or record.first_delivery):
            raise reader.corrupt("an assignment without messages")
        if record.length and not record.first_delivery:
            raise reader.corrupt("an assignment whose first delivery has no number")
        return record


_READER: Final = struct.Struct("<QqQqQI")


def reader_key(queue: int, name: str) -> bytes:
    """Where a reader's record is."""
    return READER.raw + u32(queue) + name.encode()


def decode_reader_key(key: bytes) -> tuple[int, str]:
    """Queue and name of a reader."""
    reader = READER.reader(key, "reader of a queue")
    queue, name = reader.u32(), reader.rest()
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise reader.corrupt("its name is not UTF-8") from None
    if not text:
        raise reader.corrupt("it has no name")
    return queue, text
