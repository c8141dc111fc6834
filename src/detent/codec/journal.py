"""The journal's records: where each one lives and what its bytes say. `docs/format.md` shows them in full.

All keys start with subsystem 06, version 01 and a type; everything that belongs to one journal stands together, the
small hot records (head, registers, producers) before the index and the blocks, so that a commit touches few pages.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_JOURNAL, Prefix, u32, u64
from detent.codec.settings import read_pairs, read_setting, write_settings
from detent.codec.values import ByteReader, ByteWriter
from detent.errors import Corrupt
from detent.settings.journal import JOURNAL, StoredJournal

LISTING: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x01)
NEXT_ID: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x02)
FRAGMENT: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x03)
HORIZON: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x04)
DELETED: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x05)
OPEN_SPAN: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x06)
FORMER_ENDS: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x07)
PART: Final = Prefix(SUBSYSTEM_JOURNAL, 1, 0x10)

BLOCK, HEAD, REGISTER, PRODUCER, SPAN, INDEX, ROLLED_BACK = (bytes([kind]) for kind in range(1, 8))
"""The kinds of record below one journal's id."""

FRAGMENT_ID_BYTES: Final = 16
RUNS_PER_RECORD: Final = 256
"""An index record is rewritten while it fills; this bounds what one commit rewrites to a few KiB."""


def part(journal: int, kind: bytes, suffix: bytes = b"") -> bytes:
    """The key of one record of one journal."""
    return PART.raw + u32(journal) + kind + suffix


def part_range(journal: int, kind: bytes) -> tuple[bytes, bytes]:
    """All keys of one kind below a journal."""
    return part(journal, kind), part(journal, bytes([kind[0] + 1]))


def index_key(journal: int, offset: int) -> bytes:
    return part(journal, INDEX, u64(offset))


def block_key(journal: int, position: int) -> bytes:
    return part(journal, BLOCK, u64(position))


def number_at_end(key: bytes) -> int:
    """The u64 that ends an index, block or span key."""
    return int.from_bytes(key[-8:], "big")


class Listing(StoredJournal):
    """A journal's name leads to this. Its first fields are fixed, the settings of later releases a list of pairs."""

    __slots__ = ()

    def encode(self) -> bytes:
        later = [key for key in self._fields[_FIXED:] if key != _BORN or self.born_ms]
        return write_settings(ByteWriter().pack(_LISTING, *self[:_FIXED]), JOURNAL, self._asdict(), later)

    @classmethod
    def decode(cls, value: bytes) -> Listing:
        reader = ByteReader(value, "journal listing")
        fixed = reader.unpack(_LISTING)
        # One of a later release is left out, and not kept.
        later = {
            key: read_setting(reader, JOURNAL.by_key.get(key), data)
            for key, data in read_pairs(reader)
            if key in _LATER
        }
        return cls(*fixed, **later)


_LISTING: Final = struct.Struct("<Iqqqqq")
_FIXED: Final = 6
_BORN: Final = "born_ms"
_LATER: Final[frozenset[str]] = frozenset(StoredJournal._fields[_FIXED:])


class JournalHead(NamedTuple):
    """How far a journal reaches. Positions count stored rows, offsets count committed messages."""

    first_position: int
    next_position: int
    first_offset: int
    next_offset: int
    blocks: int
    block_bytes: int
    fragments: int
    fragment_bytes: int
    dropped_bytes: int
    pending_bytes: int
    reclaim_to: int
    clock_floor: int
    newest_clock: int
    aborted_spans: int
    updated_ms: int

    def encode(self) -> bytes:
        return encode_head(*self)

    @classmethod
    def decode(cls, value: bytes) -> JournalHead:
        reader = ByteReader(value, "journal head")
        version, *fields = reader.unpack(_HEAD)
        reader.finish()
        if version != 1:
            raise Corrupt(f"a journal head has version {version}; this release reads version 1")
        head = cls(*fields)
        if head.first_position > head.next_position or head.first_offset > head.next_offset:
            raise Corrupt("a journal head begins after its end")
        return head


def encode_head(*fields: int) -> bytes:
    """The head record, from the fields of `Head` in order."""
    return _HEAD.pack(1, *fields)


_HEAD: Final = struct.Struct("<BQQQQQQQQQQQQQQq")


class ProducerRecord(NamedTuple):
    """What a journal remembers of one producer."""

    last_ack: int
    max_clock: int
    begin: int
    opened_ms: int
    touched_ms: int
    aborted: bool
    pending_bytes: int = 0

    def encode(self) -> bytes:
        return _PRODUCER.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> ProducerRecord:
        reader = ByteReader(value, "producer state")
        last_ack, max_clock, begin, opened, touched, aborted, pending = reader.unpack(_PRODUCER)
        reader.finish()
        if aborted > 1 or begin < -1:
            raise Corrupt("a producer state has impossible fields")
        return cls(last_ack, max_clock, begin, opened, touched, bool(aborted), pending)


_PRODUCER: Final = struct.Struct("<QQqqqBQ")


class OpenSpan(NamedTuple):
    """When a producer's open transaction was begun; for how long it may stay open, where that is longer than its
    journal says; and which journal's checkpoint has promised the acknowledgement with which clock (0: none)."""

    opened_ms: int
    deadline_ms: int = 0
    holder: int = 0
    held_clock: int = 0

    def encode(self) -> bytes:
        if not self.deadline_ms and not self.holder:
            return encode_number(self.opened_ms)
        return _OPEN_SPAN.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> OpenSpan:
        if len(value) == _PLAIN_BYTES:
            return cls(decode_number(value, "open span"))
        reader = ByteReader(value, "open span")
        span = cls(*reader.unpack(_OPEN_SPAN))
        reader.finish()
        if bool(span.holder) != bool(span.held_clock) or not (span.deadline_ms or span.holder):
            raise Corrupt("an open span has impossible fields")
        return span


_OPEN_SPAN: Final = struct.Struct("<QQIQ")
_PLAIN_BYTES: Final = 8


class IndexSegment(NamedTuple):
    """Pending messages of one producer: `rows` from `position` on, with clocks `clock`, `clock + step`, …"""

    position: int
    rows: int
    clock: int
    step: int


_SEGMENT: Final = struct.Struct("<QQQQ")


def encode_segments(segments: list[IndexSegment]) -> bytes:
    return b"".join(_SEGMENT.pack(*segment) for segment in segments)


def decode_segments(value: bytes) -> list[IndexSegment]:
    reader = ByteReader(value, "span")
    segments = [IndexSegment(*fields) for fields in reader.fixed_elements(_SEGMENT)]
    if not segments or not all(segment.rows for segment in segments):
        raise Corrupt("a span record without messages")
    return segments


class IndexRun(NamedTuple):
    """Messages that became committed one after another: rows of the journal's blocks, or of one fragment."""

    base: int
    rows: int
    fragment: bytes = b""


_RUN: Final = struct.Struct("<QQ")
_ONE_RUN: Final = struct.Struct("<QHBQQ")
_RUN_BLOCKS, _RUN_FRAGMENT = 0, 1


class IndexRecord(NamedTuple):
    """Runs in commit order. The key says the offset of the first message, the counts say the rest.

    `watermark` is a position below which no later index record reaches: retention needs nothing else to know which
    blocks can go.
    """

    watermark: int
    runs: list[IndexRun]

    @property
    def messages(self) -> int:
        """How many committed messages the record covers."""
        return sum(run.rows for run in self.runs)


def encode_index(watermark: int, runs: list[IndexRun]) -> bytes:
    if len(runs) == 1 and not runs[0].fragment:
        return _ONE_RUN.pack(watermark, 1, _RUN_BLOCKS, runs[0].base, runs[0].rows)  # a journal without transactions
    assert 1 <= len(runs) <= RUNS_PER_RECORD, len(runs)
    parts = [watermark.to_bytes(8, "little"), len(runs).to_bytes(2, "little")]
    for base, rows, fragment in runs:
        assert rows > 0
        parts.append((b"\x01" + fragment if fragment else b"\x00") + _RUN.pack(base, rows))
    return b"".join(parts)


def decode_index(value: bytes) -> IndexRecord:
    reader = ByteReader(value, "committed index")
    watermark = reader.u64()
    runs = reader.array(_read_run, element_bytes=1 + _RUN.size)
    reader.finish()
    if not 1 <= len(runs) <= RUNS_PER_RECORD:
        raise Corrupt(f"an index record with {len(runs)} runs")
    return IndexRecord(watermark, runs)


def _read_run(reader: ByteReader) -> IndexRun:
    kind = reader.u8()
    if kind not in {_RUN_BLOCKS, _RUN_FRAGMENT}:
        raise reader.corrupt(f"a run of unknown kind {kind}")
    fragment = reader.take(FRAGMENT_ID_BYTES) if kind == _RUN_FRAGMENT else b""
    base, rows = reader.unpack(_RUN)
    if not rows:
        raise reader.corrupt("an empty run")
    return IndexRun(base, rows, fragment)


class Fragment(NamedTuple):
    """A fragment that a journal has adopted: where its rows went, and how to tell that its bytes are right.

    Journal 0 means that its messages are gone. The record stays until the sweeper's horizon has passed the fragment, so
    that it cannot be adopted again.
    """

    journal: int
    rows: int
    size: int
    checksum: int
    first_offset: int
    adopted_ms: int

    def encode(self) -> bytes:
        return _FRAGMENT.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> Fragment:
        reader = ByteReader(value, "fragment")
        fragment = cls(*reader.unpack(_FRAGMENT))
        reader.finish()
        return fragment


_FRAGMENT: Final = struct.Struct("<IQQQQq")


FORMER_ENDS_MAX: Final = 64
"""A reader that is so many restores behind finds another journal, not the one that it has read."""


class FormerEnd(NamedTuple):
    """Where a journal ended when its store was restored from a backup: the next offset and position, and since when it
    was the journal that it was until then. What was read beyond is not what stands there now."""

    created_ms: int
    offset: int
    position: int


_FORMER_END: Final = struct.Struct("<qQQ")


def encode_former_ends(ends: list[FormerEnd]) -> bytes:
    """All of a journal, the oldest first."""
    return b"".join(_FORMER_END.pack(*end) for end in ends)


def decode_former_ends(value: bytes | None) -> list[FormerEnd]:
    """Read them back; a journal of a store that was never restored has none."""
    if value is None:
        return []
    reader = ByteReader(value, "former ends of a journal")
    ends = [FormerEnd(*fields) for fields in reader.fixed_elements(_FORMER_END)]
    times = [end.created_ms for end in ends]
    if not 1 <= len(ends) <= FORMER_ENDS_MAX or times != sorted(set(times)):
        raise reader.corrupt("no ends, too many, or out of order")
    return ends


def encode_number(value: int) -> bytes:
    """A record that is one number (the next journal id, the adoption horizon, when a span was opened)."""
    return ByteWriter().u64(value).finish()


def decode_number(value: bytes, what: str) -> int:
    reader = ByteReader(value, what)
    number = reader.u64()
    reader.finish()
    return number
