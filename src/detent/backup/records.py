"""Records in parts: where a part ends depends on the keys in it alone.

So a record that changes, comes or goes changes the part that it is in, and no other: all other parts of the next backup
are there already.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from detent.errors import Corrupt

PART_BYTES: Final = 2 << 20
"""What a part has on average. Smaller ones would share more between backups, and cost more requests."""

PART_BYTES_MAX: Final = 16 << 20
"""A part ends here at the latest, and is in memory whole."""

_HEAD: Final = struct.Struct("<HI")
_HASHES: Final = 1 << 64


class Packed(NamedTuple):
    """One part: its bytes, and how many records they are."""

    data: bytes
    records: int


class Packer:
    """Takes records in the order of their keys."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._records = 0
        self._size = 0

    def add(self, key: bytes, value: bytes) -> Packed | None:
        """One more record; the part that it ends, if it does."""
        self._pieces += (_HEAD.pack(len(key), len(value)), key, value)
        size = len(key) + len(value)
        self._records += 1
        self._size += size + _HEAD.size
        # A record ends a part with a chance that grows with its size: parts then have the size that they should.
        if self._size >= PART_BYTES_MAX or xxhash.xxh3_64_intdigest(key) * PART_BYTES < _HASHES * size:
            return self.end()
        return None

    def end(self) -> Packed | None:
        """What is left."""
        if not self._records:
            return None
        packed = Packed(b"".join(self._pieces), self._records)
        self._pieces, self._records, self._size = [], 0, 0
        return packed


def unpacked(data: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """The records of a part."""
    at = 0
    while at < len(data):
        body = at + _HEAD.size
        if body > len(data):
            raise Corrupt("a part of a backup ends inside a record")
        key_bytes, value_bytes = _HEAD.unpack_from(data, at)
        at = body + key_bytes + value_bytes
        if at > len(data):
            raise Corrupt("a part of a backup ends inside a record")
        yield bytes(data[body : body + key_bytes]), bytes(data[body + key_bytes : at])
