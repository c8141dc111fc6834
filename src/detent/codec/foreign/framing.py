"""The frame of Arrow's IPC messages: where one ends, what it is, and which bytes are its body.

ff ff ff ff | length of the metadata i32 | metadata (a FlatBuffer, filled up to 8 bytes) | body
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from detent.codec.foreign.flatbuffer import FlatTable, root
from detent.errors import Invalid, LimitExceeded

PREFIX: Final = struct.Struct("<Ii")
ALIGNMENT: Final = 8

METADATA_BYTES_MAX: Final = 1 << 20
"""Of one message. Ours have a few hundred bytes; a schema may bring what its program notes in it."""

NOTES_MAX: Final = 16
"""Pairs of text that a message may bring beside its rows."""

SCHEMA, RECORD_BATCH = 1, 3
_KINDS: Final = ("message of no kind", "schema", "dictionary", "record batch", "tensor", "sparse tensor")
_CONTINUES: Final = 0xFFFFFFFF
_VERSIONS: Final = (3, 4)  # Arrow 0.8 and 1.0, which differ in types that no column of ours has


class FramedMessage(NamedTuple):
    """A message: its kind, the table that says more of it, and its body."""

    kind: int
    header: FlatTable
    body: memoryview
    about: FlatTable

    def require(self, kind: int) -> None:
        """`Invalid` for a message of another kind."""
        if self.kind != kind:
            raise Invalid(f"a {_KINDS[self.kind]} comes where a {_KINDS[kind]} belongs")

    def notes(self) -> dict[bytes, bytes]:
        """The pairs of text that came with it."""
        return {bytes(pair.bytes_of(0)): bytes(pair.bytes_of(1)) for pair in self.about.tables(4, NOTES_MAX)}


def metadata_bytes(prefix: bytes | memoryview) -> int:
    """How long the metadata are that follow the eight bytes in front of a message; 0 at the end of a stream."""
    continues: int
    size: int
    continues, size = PREFIX.unpack(prefix)
    if continues != _CONTINUES:
        raise Invalid("a message does not begin as they do since Arrow 0.15")
    if size > METADATA_BYTES_MAX:
        raise LimitExceeded(f"the metadata of a message have {size} bytes; at most {METADATA_BYTES_MAX} are read")
    if size < 0 or size % ALIGNMENT:
        raise Invalid(f"the metadata of a message cannot have {size} bytes")
    return size


def body_bytes(metadata: memoryview) -> int:
    """How long the body is that follows a message's metadata."""
    size = root(metadata).i64(3)
    if size < 0 or size % ALIGNMENT:
        raise Invalid(f"the body of a message cannot have {size} bytes")
    return size


def message_of(metadata: memoryview, body: memoryview) -> FramedMessage:
    """A message, of which only its frame was looked at."""
    about = root(metadata)
    if about.i16(0) not in _VERSIONS:
        raise Invalid(f"its metadata have version {about.i16(0)}; this release reads 4 (Arrow 1.0)")
    kind, header = about.u8(1), about.table(2)
    if header is None or not 0 < kind < len(_KINDS):
        raise Invalid("a message does not say what it is")
    return FramedMessage(kind, header, body, about)


def message_at(data: memoryview, start: int) -> tuple[FramedMessage, int] | None:
    """The message that begins at a place, and where the next one does; None at the end of a stream."""
    at = start + PREFIX.size
    size = metadata_bytes(_cut(data, start, PREFIX.size))
    if size == 0:
        return None
    metadata = _cut(data, at, size)
    at += size
    length = body_bytes(metadata)
    return message_of(metadata, _cut(data, at, length)), at + length


def _cut(data: memoryview, start: int, size: int) -> memoryview:
    if start + size > len(data):
        raise Invalid(f"it ends after {len(data)} bytes, in the middle of a message")
    return data[start : start + size]
