"""The records of a commit log, and the names of logs.

A record counts in its own log and at its own place only: store, epoch and number go into its checksums. Its head has a
checksum of its own, because a head alone tells something: the record with this number was begun, so the one before it
was durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from detent.errors import Corrupt
from detent.kv.base import BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX

PAGE: Final = 4096
SECTOR: Final = 512
"""A disk writes so many bytes whole or not at all. The head of a record lies in one."""

MAGIC: Final = 0x324C5444
DELETED: Final = 0xFFFFFFFF
NUMBER_MAX: Final = (1 << 64) - 1

HEAD: Final = struct.Struct("<IIQQQQ")
_BEFORE_CHECKSUM: Final = struct.Struct("<IIQQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_CHANGE: Final = struct.Struct("<HI")


class LogName(NamedTuple):
    """Whose log it is: of which store (a number made with it: a store that is deleted and made anew, at the same place,
    is another one), and of the writer with which epoch."""

    store: int
    epoch: int

    def path(self, directory: Path, kind: str) -> Path:
        """Where the log, its tip, or a log that has no name yet, is: kind is "log", "tip" or "new"."""
        return directory / f"commits-{self.store:016x}-{self.epoch}.{kind}"

    def seed(self, number: int) -> int:
        """For a record's checksum: one of another log or another number is a bad one, whatever its body."""
        return (number * 0x9E3779B97F4A7C15 ^ self.epoch ^ self.store) & NUMBER_MAX


class RecordHead(NamedTuple):
    """What the head of a record says: its number, how many bytes it has with the head, the checksum of the rest."""

    number: int
    size: int
    checksum: int


class CommitRecord(NamedTuple):
    """One commit in the log."""

    number: int
    changes: dict[bytes, bytes | None]
    size: int


def encode_record(name: LogName, number: int, changes: Mapping[bytes, bytes | None]) -> list[bytes]:
    """Head (magic, body's length, number, epoch, two checksums), then each change: lengths, key, value.

    In pieces, to be written one after another: large values are not copied.
    """
    pieces: list[bytes] = []
    small: list[bytes] = []
    for key, value in changes.items():
        if value is None:
            small += (_CHANGE.pack(len(key), DELETED), key)
        elif len(value) <= PAGE:
            small += (_CHANGE.pack(len(key), len(value)), key, value)
        else:
            small += (_CHANGE.pack(len(key), len(value)), key)
            pieces += (b"".join(small), value)
            small.clear()
    pieces.append(b"".join(small))
    size = sum(map(len, pieces))
    return [encode_head(name, number, size, checksum_of(name.seed(number), pieces)), *pieces]


def encode_head(name: LogName, number: int, size: int, checksum: int) -> bytes:
    """The head of a record with `size` bytes of changes."""
    head = _BEFORE_CHECKSUM.pack(MAGIC, size, number, name.epoch, checksum)
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head, seed=name.seed(number)))


def decode_head(name: LogName, data: bytes | memoryview) -> RecordHead | None:
    """The head at the start of `data`; None where there is none of this log."""
    if len(data) < HEAD.size:
        return None
    magic, length, number, epoch, checksum, of_head = HEAD.unpack_from(data)
    if magic != MAGIC or epoch != name.epoch or length > BATCH_BYTES_MAX:
        return None
    if xxhash.xxh3_64_intdigest(data[: _BEFORE_CHECKSUM.size], seed=name.seed(number)) != of_head:
        return None
    return RecordHead(number, HEAD.size + length, checksum)


def checksum_of(seed: int, pieces: Sequence[bytes | memoryview]) -> int:
    """XXH3-64 of the pieces one after another."""
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0], seed=seed)
    digest = xxhash.xxh3_64(seed=seed)
    for piece in pieces:
        digest.update(piece)
    return digest.intdigest()


def decode_record(name: LogName, data: bytes | memoryview) -> CommitRecord | None:
    """The record at the start of `data`; None where there is none of this log, or only part of one. `Corrupt` if its
    checksum is right and it is not a commit all the same."""
    head = decode_head(name, data)
    if head is None or head.size > len(data):
        return None
    body = memoryview(data)[HEAD.size : head.size]
    if checksum_of(name.seed(head.number), [body]) != head.checksum:
        return None
    return CommitRecord(head.number, dict(decode_changes(bytes(body))), head.size)


def decode_changes(body: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The changes of a record, from what follows its head."""
    at, end = 0, len(body)
    while at < end:
        if end - at < _CHANGE.size:
            raise Corrupt("a commit record ends inside a change")
        key_size, value_size = _CHANGE.unpack_from(body, at)
        at += _CHANGE.size
        gone = value_size == DELETED
        value_at = at + key_size
        at = value_at if gone else value_at + value_size
        if not 0 < key_size <= KEY_BYTES_MAX or at > end or (not gone and value_size > VALUE_BYTES_MAX):
            raise Corrupt("a commit record has a change with impossible lengths")
        yield body[value_at - key_size : value_at], None if gone else body[value_at:at]


def pages(size: int) -> int:
    """The bytes that a record of `size` takes in the log."""
    return -(-size // PAGE) * PAGE
