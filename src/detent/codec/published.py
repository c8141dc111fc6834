"""A published message's two records: its payload, and its metadata in the log. `docs/format.md` shows them in full.

Messages that are published together share one record of each kind, under the number of the first.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_QUEUE, Prefix, u64
from detent.codec.values import ByteReader, ByteWriter
from detent.errors import Corrupt, Invalid

PAYLOAD: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x01)

BYTES_INLINE: Final = 0x01
URI: Final = 0x02
SEVERAL: Final = 0x03
"""Payload types. The first two are followed by the payload itself, the third by the payloads of several messages."""

INSTANCE: Final = "default"
LOG_KEY: Final = f"opendata-queue/{INSTANCE}/messages/metadata/0".encode()
"""The metadata log's user key. It carries the instance; a store holds one."""

FOREVER: Final = (1 << 63) - 1
"""The deadline of what has none."""

RECORD_MESSAGES_MAX: Final = 256
RECORD_BYTES_MAX: Final = 128 << 10
"""What one payload record holds when messages are published together. When some of them are done and others not, it is
written anew without the done ones, and this is the most that costs."""


# -- payloads ---------------------------------------------------------------------------------------------------


Payload = tuple[int, bytes]
"""What a message carries: its type, and bytes, or the URI under which they are."""


def payload_key(first: int) -> bytes:
    """Where the record is that begins with message `first`."""
    return PAYLOAD.raw + u64(first)


def encode_payloads(kind: int, payloads: Sequence[bytes], sizes: Sequence[int] | None = None) -> bytes:
    """The record of messages that were published together. One alone is type and bytes."""
    count = len(payloads)
    if count == 1:
        return _KINDS[kind] + payloads[0]
    return _encode_several(_INDEXES[: 2 * count], _KINDS[kind] * count, payloads, sizes or list(map(len, payloads)))


def _encode_several(indexes: bytes, kinds: bytes, payloads: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    count = len(payloads)
    lengths = struct.pack(f"<{count}I", *sizes)
    return b"".join((_SEVERAL_HEAD.pack(SEVERAL, count), indexes, kinds, lengths, *payloads))


class PayloadRecord:
    """A record of payloads, taken apart as far as needed to find one by its message's place in the record."""

    __slots__ = ("_bounds", "_indexes", "_value", "count", "kinds")

    def __init__(self, value: bytes) -> None:
        if not value or (value[0] not in _KINDS and value[0] != SEVERAL):
            raise Corrupt(f"a payload of type {value[:1].hex() or 'none'}")
        self._value = value
        if value[0] != SEVERAL:
            self.count = 1
            self._indexes: Sequence[int] | None = None
            self.kinds: Sequence[int] = value[:1]
            self._bounds = [1, len(value)]
            return
        if len(value) < _SEVERAL_HEAD.size:
            raise Corrupt("a payload record ends in its head")
        _, count = _SEVERAL_HEAD.unpack_from(value)
        start = _SEVERAL_HEAD.size + 7 * count
        if not 0 < count <= RECORD_MESSAGES_MAX or start > len(value):
            raise Corrupt(f"a payload record of {len(value)} bytes cannot hold {count} payloads")
        self.count = count
        self.kinds = value[3 + 2 * count : 3 + 3 * count]
        self._bounds = list(accumulate(struct.unpack_from(f"<{count}I", value, 3 + 3 * count), initial=start))
        if self._bounds[-1] != len(value):
            raise Corrupt("the lengths in a payload record do not add up")
        plain = value[3 : 3 + 2 * count] == _INDEXES[: 2 * count]
        self._indexes = None if plain else self._read_indexes()
        if self.kinds.count(BYTES_INLINE) != count and not _PLAIN_KINDS.issuperset(self.kinds):
            raise Corrupt("a payload record holds a payload of an unknown type")

    def _read_indexes(self) -> Sequence[int]:
        indexes = struct.unpack_from(f"<{self.count}H", self._value, 3)
        if any(b <= a for a, b in pairwise(indexes)) or indexes[-1] >= RECORD_MESSAGES_MAX:
            raise Corrupt("the messages of a payload record are out of order")
        return indexes

    @property
    def is_whole(self) -> bool:
        """Whether no message has left it, as far as the record can tell: its last ones may have."""
        return self._indexes is None

    @property
    def indexes(self) -> Sequence[int]:
        """The places of the messages that are in it."""
        return range(self.count) if self._indexes is None else self._indexes

    def all(self) -> list[Any]:
        """All the bytes or URIs in it, in order; `kinds` says which they are."""
        bounds = self._bounds
        return list(map(self._value.__getitem__, map(slice, bounds, bounds[1:])))

    def payload(self, index: int) -> Payload | None:
        """The payload at a place; None where there is none (any more)."""
        at = self._at(index)
        return None if at < 0 else (self.kinds[at], self._value[self._bounds[at] : self._bounds[at + 1]])

    def size(self, index: int) -> int:
        """How many bytes the payload at a place has; 0 where there is none (any more)."""
        at = self._at(index)
        return 0 if at < 0 else self._bounds[at + 1] - self._bounds[at]

    def _at(self, index: int) -> int:
        if self._indexes is None:
            return index if 0 <= index < self.count else -1
        at = bisect_left(self._indexes, index)
        return at if at < self.count and self._indexes[at] == index else -1


def decode_payloads(value: bytes) -> dict[int, Payload]:
    """The payloads of a record by their message's place in it."""
    record = PayloadRecord(value)
    return dict(zip(record.indexes, zip(record.kinds, record.all(), strict=True), strict=True))


def keep_payloads(value: bytes, alive: Iterable[int]) -> bytes:
    """The record with these messages' payloads alone."""
    payloads = decode_payloads(value)
    keep = [(index, payloads[index]) for index in sorted(alive) if index in payloads]
    if not keep:
        raise Invalid("a payload record holds at least one payload")
    indexes = b"".join(index.to_bytes(2, "little") for index, _ in keep)
    data = [data for _, (_, data) in keep]
    return _encode_several(indexes, bytes(kind for _, (kind, _) in keep), data, list(map(len, data)))


_KINDS: Final = {BYTES_INLINE: bytes([BYTES_INLINE]), URI: bytes([URI])}
_SEVERAL_HEAD: Final = struct.Struct("<BH")
_INDEXES: Final = struct.pack(f"<{RECORD_MESSAGES_MAX}H", *range(RECORD_MESSAGES_MAX))
_PLAIN_KINDS: Final = frozenset(_KINDS)


# -- metadata ---------------------------------------------------------------------------------------------------


class Metadata(NamedTuple):
    """What is known of a message besides its payload."""

    message: int
    created_ms: int
    received_ms: int
    visible_ms: int
    retention_s: int
    headers: dict[str, str]

    @property
    def deadline_ms(self) -> int:
        """When the message leaves, whatever became of it."""
        return self.received_ms + self.retention_s * 1000 if self.retention_s else FOREVER


def encode_metadata(
    first: int, created_ms: int, received_ms: int, visible_ms: int, retention_s: int, headers: Sequence[bytes]
) -> bytes:
    """The log entry of messages that were published together; `headers` are encoded already, one a message."""
    count = len(headers)
    out = [_COUNT.pack(count)]
    for number in range(count):
        out += (_METADATA.pack(first + number, created_ms, received_ms, visible_ms, retention_s), headers[number])
    return b"".join(out)


def encode_plain_metadata(
    first: int, count: int, created_ms: int, received_ms: int, visible_ms: int, retention_s: int, headers: bytes
) -> bytes:
    """The same, for messages with the same headers: what all of them say is there once."""
    head = _COUNT.pack(count if count == 1 else ALIKE | count)
    return head + _METADATA.pack(first, created_ms, received_ms, visible_ms, retention_s) + headers


def encode_headers(headers: Mapping[str, str] | None) -> bytes:
    """A message's headers, as its metadata ends with them."""
    return _encode_headers(tuple(headers.items())) if headers else b"\x00"


@lru_cache(256)
def _encode_headers(headers: tuple[tuple[str, str], ...]) -> bytes:
    writer = ByteWriter().u8(len(headers))
    for name, value in headers:
        writer.utf8(name).utf8(value)
    return writer.finish()


def decode_entry(value: bytes) -> LogEntry:
    """A log entry, to look messages up in."""
    if len(value) > _FIRST.size:
        count, *fields = _FIRST.unpack_from(value)
        if count == 1 or count & ALIKE:
            return _decode_one(count & ~ALIKE, fields, value[_FIRST.size :], alike=count != 1)
    reader = ByteReader(value, "message metadata")
    messages = [_read_metadata(reader) for _ in range(reader.count(reader.u16(), _METADATA.size + 1))]
    if not messages or any(b.message != a.message + 1 for a, b in pairwise(messages)):
        raise reader.corrupt("the messages of a log entry are not numbered one after another")
    reader.finish()
    return LogEntry(len(messages), messages, same=False)


def _decode_one(count: int, fields: list[int], headers: bytes, *, alike: bool) -> LogEntry:
    """An entry with one metadata, of one message or of several that say the same."""
    first = fields[0]
    if alike and (not 1 < count <= RECORD_MESSAGES_MAX or first + count > 1 << 64):
        raise Corrupt(f"message metadata: {count} messages that say the same, from {first} on")
    message, created_ms, received_ms, visible_ms, retention_s = fields
    about = Metadata(message, created_ms, received_ms, visible_ms, retention_s, _decode_headers(headers))
    return LogEntry(count, [about], same=alike)


@lru_cache(256)
def _decode_headers(value: bytes) -> dict[str, str]:
    """Headers that end an entry. Most messages have those of others, which share the dictionary: it is never
    changed."""
    reader = ByteReader(value, "message metadata")
    headers = _read_headers(reader)
    reader.finish()
    return headers


class LogEntry:
    """The messages of one log entry."""

    __slots__ = ("count", "messages", "same")

    def __init__(self, count: int, messages: list[Metadata], *, same: bool) -> None:
        self.count = count
        self.messages = messages
        self.same = same  # whether all say the same, their numbers aside

    def at(self, index: int) -> Metadata | None:
        """What is known of the message at a place in the entry; its number may be that of another one, which says the
        same."""
        if not 0 <= index < self.count:
            return None
        return self.messages[0 if self.same else index]

    @property
    def first(self) -> Metadata:
        """What is known of the first message."""
        return self.messages[0]


NO_ENTRY: Final = LogEntry(0, [], same=False)


def decode_metadata(value: bytes) -> list[Metadata]:
    """The messages of one log entry, each with its number."""
    entry = decode_entry(value)
    first = entry.first
    if entry.same:
        return [first._replace(message=first.message + index) for index in range(entry.count)]
    return entry.messages


def _read_metadata(reader: ByteReader) -> Metadata:
    message, created_ms, received_ms, visible_ms, retention_s = reader.unpack(_METADATA)
    return Metadata(message, created_ms, received_ms, visible_ms, retention_s, _read_headers(reader))


def _read_headers(reader: ByteReader) -> dict[str, str]:
    count = reader.count(reader.u8(), 4)
    headers = {reader.utf8(): reader.utf8() for _ in range(count)}
    if len(headers) != count:
        raise reader.corrupt("a header is there twice")
    return headers


ALIKE: Final = 0x8000
"""Added to an entry's count, this says: one metadata follows, and all of the messages say the same, numbered on."""

_COUNT: Final = struct.Struct("<H")
_METADATA: Final = struct.Struct("<QqqqI")
_FIRST: Final = struct.Struct("<HQqqqI")
