"""The name of a group, as the records of queues with groups have it."""

from __future__ import annotations

from typing import Final

from detent.codec.values import ByteReader, ByteWriter

GROUP_BYTES_MAX: Final = 128
"""A group's name stands in each bucket that has messages of the group, and in the owner's memory."""

_NO_GROUP: Final = 0xFF


def write_group(writer: ByteWriter, group: bytes | None) -> ByteWriter:
    """A group, or none: how many bytes its name has (u8; `ff`: it is none), and the bytes."""
    return writer.u8(_NO_GROUP) if group is None else writer.u8(len(group)).raw(group)


def read_group(reader: ByteReader) -> bytes | None:
    """Read one back."""
    count = reader.u8()
    if count == _NO_GROUP:
        return None
    if count > GROUP_BYTES_MAX:
        raise reader.corrupt(f"the name of a group has {count} bytes")
    return reader.take(count)
