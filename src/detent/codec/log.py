"""The log's records: entries, sequence blocks, segment descriptions and listings.

A log holds entries for many user keys, each with a sequence number. It is cut into segments, numbered from 1,
so that old data leaves in one range. Every key begins with the same seven bytes: subsystem, version, segment
and a tag. Segment 0 is the system's own: it holds what describes the log as a whole.

| record         | after the head                                  | value                          |
|----------------|-------------------------------------------------|--------------------------------|
| entry          | user key (terminated), sequence - start (var)   | the user's                     |
| sequence block | nothing                                         | base u64, size u64             |
| segment        | the segment described, u32                      | start sequence u64, start time |
| listing        | user key as it is                               | empty                          |

Against the general rule, the values of sequence blocks and segments are big-endian. Fields may be added at
the end of both, so their decoders read past bytes they do not know.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from detent.codec.keys import SUBSYSTEM_LOG, KeyReader, Prefix, terminated, u8, u32, var_u64
from detent.codec.values import U32_MAX, U64_MAX, ByteReader, ByteWriter
from detent.errors import Corrupt, Invalid, LimitExceeded

LOG_VERSION: Final = 1

TAG_ENTRY: Final = 0x10
TAG_SEQUENCE: Final = 0x20
TAG_SEGMENT: Final = 0x30
TAG_LISTING: Final = 0x40

SYSTEM_SEGMENT: Final = 0
FIRST_SEGMENT: Final = 1

SEQUENCE_BLOCK_SIZE: Final = 4096
"""How many numbers one record reserves: a restart skips up to this many, few batches need a new record."""

_LOG: Final = Prefix(SUBSYSTEM_LOG, LOG_VERSION)
_SEQUENCE_VALUE: Final = struct.Struct(">QQ")
_SEGMENT_VALUE: Final = struct.Struct(">Qq")

SEQUENCE_BLOCK_KEY: Final = _LOG.key(u32(SYSTEM_SEGMENT), u8(TAG_SEQUENCE))
"""Where the log keeps its current sequence block."""


def _user_head(segment: int, tag: int) -> bytes:
    return _LOG.key(u32(_check_segment(segment)), u8(tag))


def _check_segment(segment: int) -> int:
    if not FIRST_SEGMENT <= segment <= U32_MAX:
        raise Invalid(f"segments are numbered from {FIRST_SEGMENT} to {U32_MAX}, not {segment}")
    return segment


def _read_head(key: bytes, tag: int, what: str) -> tuple[KeyReader, int]:
    reader = _LOG.reader(key, what)
    segment = reader.u32()
    found = reader.u8()
    if found != tag:
        raise reader.corrupt(f"tag {found:02x} where {tag:02x} belongs")
    system = tag in {TAG_SEQUENCE, TAG_SEGMENT}
    if system != (segment == SYSTEM_SEGMENT):
        raise reader.corrupt(f"a record of this kind cannot be in segment {segment}")
    return reader, segment


@dataclass(frozen=True, slots=True)
class EntryKey:
    """Where an entry is: its segment, its user key, and its distance from the segment's first sequence."""

    segment: int
    key: bytes
    relative: int

    @classmethod
    def at(cls, segment: int, key: bytes, sequence: int, segment_start: int) -> Self:
        """The key of entry `sequence` in a segment that begins at `segment_start`."""
        if sequence < segment_start:
            raise Invalid(f"sequence {sequence} is before its segment's start, {segment_start}")
        return cls(segment, key, sequence - segment_start)

    def encode(self) -> bytes:
        """The key's bytes."""
        return _user_head(self.segment, TAG_ENTRY) + terminated(self.key) + var_u64(self.relative)

    @classmethod
    def decode(cls, key: bytes) -> Self:
        """Read a key back."""
        reader, segment = _read_head(key, TAG_ENTRY, "log entry key")
        entry = cls(segment, reader.terminated(), reader.var_u64())
        reader.finish()
        return entry


def entry_head(segment: int, key: bytes) -> bytes:
    """What the keys of one user key's entries in one segment begin with; their distance from its start follows."""
    return _user_head(segment, TAG_ENTRY) + terminated(key)


def entry_range(segment: int, key: bytes, relative: int = 0) -> tuple[bytes, bytes | None]:
    """The keys of one user key's entries in one segment, from `relative` on, as `View.scan` takes them."""
    head = terminated(key)
    _, end = _LOG.range(u32(_check_segment(segment)), u8(TAG_ENTRY), head)
    return EntryKey(segment, key, relative).encode(), end


@dataclass(frozen=True, slots=True)
class SeqBlock:
    """A reserved run of sequence numbers: base, base + 1, up to but not including base + size."""

    base: int
    size: int

    @property
    def end(self) -> int:
        """The first number after the block, where the next block begins."""
        return self.base + self.size

    def encode(self) -> bytes:
        """The record's value."""
        if self.size < 1 or self.end > U64_MAX:
            raise Invalid(f"a sequence block of {self.size} numbers at {self.base} is not possible")
        return ByteWriter().pack(_SEQUENCE_VALUE, self.base, self.size).finish()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value back."""
        reader = ByteReader(value, "sequence block")
        base, size = reader.unpack(_SEQUENCE_VALUE)
        reader.finish(allow_trailing=True)
        if size < 1 or base + size > U64_MAX:
            raise Corrupt(f"a sequence block of {size} numbers at {base} is not possible")
        return cls(base, size)


class SequenceAllocator:
    """Hands out sequence numbers that are never handed out again, not even after a crash.

    Numbers come from a block whose reservation is durable before, or together with, their first use: when
    :meth:`allocate` returns a block, its record goes into the same batch as what uses the numbers. After a
    restart the numbers of the last block count as used. Blocks abut, so a run that crosses from one into the
    next has no gap.

    If that batch does not become durable, drop the allocator and load it again.
    """

    __slots__ = ("_block_size", "_end", "_next")

    def __init__(self, block: SeqBlock | None = None, *, block_size: int = SEQUENCE_BLOCK_SIZE) -> None:
        if block_size < 1:
            raise Invalid(f"a block reserves at least 1 number, not {block_size}")
        self._block_size = block_size
        self._next = self._end = block.end if block else 0

    @classmethod
    def load(cls, value: bytes | None, *, block_size: int = SEQUENCE_BLOCK_SIZE) -> Self:
        """Continue after the stored block, or at 0 when none is stored."""
        return cls(None if value is None else SeqBlock.decode(value), block_size=block_size)

    @property
    def next(self) -> int:
        """The number that the next allocation starts at."""
        return self._next

    @property
    def unused(self) -> int:
        """How many reserved numbers are left."""
        return self._end - self._next

    def give_back(self) -> SeqBlock | None:
        """Let go of the reserved numbers that are left, before a clean end: the block to write, if that says anything.
        A reader that loads it goes on without a gap."""
        if not self._next or not self.unused:
            return None
        self._end = self._next
        return SeqBlock(self._next - 1, 1)

    def allocate(self, count: int = 1) -> tuple[int, SeqBlock | None]:
        """Take `count` numbers in a row: the first one, and the block to write in the same batch, if any."""
        if count < 1:
            raise Invalid(f"at least 1 number is allocated, not {count}")
        first = self._next
        missing = first + count - self._end
        if missing <= 0:
            self._next += count
            return first, None
        block = SeqBlock(self._end, max(missing, self._block_size))
        if block.end > U64_MAX:
            raise LimitExceeded(f"sequence numbers end at {U64_MAX}; {first} is the next one")
        self._end = block.end
        self._next = first + count
        return first, block


def segment_key(segment: int) -> bytes:
    """Where the description of a segment is kept. A segment exists when this record does."""
    return _LOG.key(u32(SYSTEM_SEGMENT), u8(TAG_SEGMENT), u32(_check_segment(segment)))


def decode_segment_key(key: bytes) -> int:
    """The segment that a description's key names."""
    reader, _ = _read_head(key, TAG_SEGMENT, "segment key")
    segment = reader.u32()
    reader.finish()
    if segment == SYSTEM_SEGMENT:
        raise reader.corrupt("the system segment has no description")
    return segment


def segment_range() -> tuple[bytes, bytes | None]:
    """The keys of all descriptions, lowest segment first. All but the highest are sealed."""
    return _LOG.range(u32(SYSTEM_SEGMENT), u8(TAG_SEGMENT))


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """A segment's description: its first sequence number, and when it was begun."""

    start_seq: int
    start_time_ms: int

    def encode(self) -> bytes:
        """The record's value."""
        return ByteWriter().pack(_SEGMENT_VALUE, self.start_seq, self.start_time_ms).finish()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value back."""
        reader = ByteReader(value, "segment")
        start_seq, start_time_ms = reader.unpack(_SEGMENT_VALUE)
        reader.finish(allow_trailing=True)
        return cls(start_seq, start_time_ms)


LISTING_VALUE: Final = b""
"""A listing says that a user key has entries in a segment; its key says all of it."""


def listing_key(segment: int, key: bytes) -> bytes:
    """The listing of one user key in one segment."""
    return _user_head(segment, TAG_LISTING) + key


def listing_range(segment: int) -> tuple[bytes, bytes | None]:
    """The listings of one segment, in the order of the user keys' bytes."""
    return _LOG.range(u32(_check_segment(segment)), u8(TAG_LISTING))


def decode_listing(key: bytes, value: bytes = LISTING_VALUE) -> tuple[int, bytes]:
    """The segment and the user key of a listing. A value that is not empty is `Corrupt`."""
    reader, segment = _read_head(key, TAG_LISTING, "listing key")
    if value != LISTING_VALUE:
        raise reader.corrupt(f"a listing has no value, this one has {len(value)} bytes")
    return segment, reader.rest()
