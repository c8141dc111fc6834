"""The queues' records: where each one lives and what its bytes say. `docs/format.md` shows them in full.

All keys start with subsystem 05, version 01 and a type. Keys name a queue by its number, which is never given twice: a
queue that is deleted and made anew under its old name shares no record with its namesake.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from detent.codec.group import read_group, write_group
from detent.codec.keys import SUBSYSTEM_QUEUE, Prefix, u32, u64
from detent.codec.settings import read_pairs, read_setting, write_settings
from detent.codec.values import U16_MAX, U32_MAX, ByteReader, ByteWriter
from detent.errors import Corrupt, LimitExceeded
from detent.settings.queue import NOT_KEPT as NOT_KEPT
from detent.settings.queue import QUEUE, StoredQueue

ACTIVE: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x02)
DONE: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x03)
FAILED: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x04)
ATTEMPTS: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x05)
CONFIG: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x06)
CURSOR: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x08)
STATE_LOG: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x09)
WATERMARK: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0A)
DEDUP: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0B)
DEDUP_EXPIRY: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0C)
DELETED: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0D)
NEXT_QUEUE: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0E)
DEDUP_WINDOW: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x0F)
ORIGIN: Final = Prefix(SUBSYSTEM_QUEUE, 1, 0x11)

BUCKET_EXPONENT: Final[int] = StoredQueue._field_defaults["bucket_exponent"]
BUCKET_EXPONENT_MAX: Final = 4
"""A bucket holds 10 to this power messages; its arrays have u16 counts, so 4 is the end."""

ATTEMPTS_KEPT: Final = 100
"""The attempts of a message that are kept: the first one, which says since when it is tried, and the newest ones."""


# -- active messages --------------------------------------------------------------------------------------------

AVAILABLE: Final = np.dtype(
    [
        ("message", "<u8"),
        ("priority", "u1"),
        ("visible_ms", "<i8"),
        ("deadline_ms", "<i8"),
        ("attempts", "<u2"),
        ("place", "<u2"),
        ("offset", "<u2"),
        ("count", "<u2"),
    ]
)
"""An available message. `place` is its place in the bucket; `offset` and `count` say where its payload and metadata
are: in the records that begin `offset` messages earlier and were written for `count` messages."""


class InFlight(NamedTuple):
    """A message that a consumer holds."""

    message: int
    priority: int
    claimed_ms: int
    lease_ms: int
    attempts: int
    deadline_ms: int
    delivery: int
    place: int
    offset: int
    record_count: int
    consumer: str


_IN_FLIGHT: Final = struct.Struct("<QBqqHqQHHH")


def queue_key(prefix: Prefix, queue: int, number: int) -> bytes:
    """The key of a numbered record of one queue: a bucket, a message's attempts."""
    return prefix.raw + u32(queue) + u64(number)


def queue_range(prefix: Prefix, queue: int) -> tuple[bytes, bytes]:
    """All keys of one kind of one queue."""
    return prefix.raw + u32(queue), prefix.raw + u32(queue) + b"\xff" * 9


def decode_queue_key(prefix: Prefix, key: bytes) -> tuple[int, int]:
    """Queue and number of such a key."""
    reader = prefix.reader(key, "queue record")
    queue, number = reader.u32(), reader.u64()
    reader.finish()
    return queue, number


def belongs_to(key: bytes, queue: int) -> bool:
    """Whether this is the key of a message, or of a try, of this queue."""
    return key[:3] in _OF_ONE_QUEUE and key[3:7] == u32(queue)


_OF_ONE_QUEUE: Final = frozenset(prefix.raw for prefix in (ACTIVE, DONE, FAILED, ATTEMPTS, ORIGIN))


Groups = Sequence[bytes | None]
"""The groups of a bucket's messages, or none: first of the available ones, then of those in flight."""


def encode_active(available: np.ndarray, in_flight: Sequence[InFlight], groups: Groups | None = None) -> bytes:
    """A bucket of active messages; what groups they are in follows, if any of them is in one."""
    if max(len(available), len(in_flight)) > U16_MAX:
        raise LimitExceeded(f"a bucket holds at most {U16_MAX} messages")
    writer = ByteWriter().u16(len(available)).raw(available.tobytes())
    writer.array(in_flight, lambda w, m: w.pack(_IN_FLIGHT, *m[:-1]).utf8(m.consumer))
    names: dict[bytes | None, int] = {None: 0}
    for group in groups or ():
        names.setdefault(group, len(names))
    if groups is not None and len(names) > 1:
        writer.array(list(names)[1:], write_group)
        writer.raw(np.array([names[group] for group in groups], "<u2").tobytes())
    return writer.finish()


def decode_active(value: bytes) -> tuple[np.ndarray, list[InFlight], list[bytes | None] | None]:
    """Read a bucket back; its groups are None if no message is in one."""
    reader = ByteReader(value, "active messages")
    count = reader.count(reader.u16(), AVAILABLE.itemsize)
    available = np.frombuffer(reader.take(count * AVAILABLE.itemsize), AVAILABLE)
    in_flight = reader.array(lambda r: InFlight(*(*r.unpack(_IN_FLIGHT), r.utf8())), element_bytes=_IN_FLIGHT.size + 2)
    groups = _read_groups(reader, len(available) + len(in_flight)) if reader.remaining else None
    reader.finish()
    places = [*available["place"].tolist(), *(message.place for message in in_flight)]
    if len(set(places)) != len(places) or any(place >= 10**BUCKET_EXPONENT_MAX for place in places):
        raise reader.corrupt("two messages have one place in their bucket, or a place is outside of it")
    return available, in_flight, groups


def _read_groups(reader: ByteReader, count: int) -> list[bytes | None]:
    names = [None, *reader.array(read_group)]
    if len(names) == 1 or len(set(names)) < len(names):
        raise reader.corrupt("groups are at least one, and each is there once")
    indexes = np.frombuffer(reader.take(2 * count), "<u2").tolist()
    if max(indexes, default=0) >= len(names):
        raise reader.corrupt(f"a message is in group {max(indexes)} of {len(names) - 1}")
    return [names[index] for index in indexes]


# -- done, failed, attempts -------------------------------------------------------------------------------------

DONE_MESSAGE: Final = np.dtype([("message", "<u8"), ("done_ms", "<i8"), ("attempts", "<u2")])

DONE_PER_RECORD: Final = 50_000
"""Done messages in one record."""


EMPTY_ACTIVE: Final = bytes(4)
EMPTY_ARRAY: Final = bytes(2)
"""What a queue's first records say when it is created."""


def empty_done_key(queue: int) -> bytes:
    """The empty record that a queue's done messages begin with."""
    return DONE.raw + u32(queue)


EMPTY_DONE_KEY_BYTES: Final = 7


def done_key(queue: int, done_ms: int, number: int) -> bytes:
    """Done messages stand in the order in which they were done: by the time of the last one in the record."""
    return DONE.raw + u32(queue) + u64(done_ms) + u64(number)


def decode_done_key(key: bytes) -> tuple[int, int, int]:
    """Queue, time of the last message, number of the record."""
    reader = DONE.reader(key, "done record")
    found = reader.u32(), reader.u64(), reader.u64()
    reader.finish()
    return found


def encode_done(messages: np.ndarray) -> bytes:
    """A record of done messages."""
    if len(messages) > U16_MAX:
        raise LimitExceeded(f"a record holds at most {U16_MAX} done messages")
    return len(messages).to_bytes(2, "little") + messages.tobytes()


def decode_done(value: bytes) -> np.ndarray:
    """Read done messages back."""
    reader = ByteReader(value, "done messages")
    count = reader.count(reader.u16(), DONE_MESSAGE.itemsize)
    messages = np.frombuffer(reader.take(count * DONE_MESSAGE.itemsize), DONE_MESSAGE)
    reader.finish()
    return messages


class Failed(NamedTuple):
    """A message that ran out of attempts, or was given up."""

    message: int
    failed_ms: int
    attempts: int
    priority: int
    deadline_ms: int
    delivery: int
    offset: int
    record_count: int
    reason: str


_FAILED: Final = struct.Struct("<QqHBqQHH")


def encode_failed(messages: Sequence[Failed]) -> bytes:
    """A bucket of failed messages."""
    return ByteWriter().array(messages, lambda w, m: w.pack(_FAILED, *m[:-1]).utf8(m.reason)).finish()


def decode_failed(value: bytes) -> list[Failed]:
    """Read a bucket back."""
    reader = ByteReader(value, "failed messages")
    messages = reader.array(lambda r: Failed(*(*r.unpack(_FAILED), r.utf8())), element_bytes=_FAILED.size + 2)
    reader.finish()
    return messages


class AttemptRecord(NamedTuple):
    """One try that came to nothing: who claimed the message and when, when it ended and why."""

    claimed_ms: int
    consumer: str
    ended_ms: int
    reason: str


def encode_attempts(attempts: Sequence[AttemptRecord]) -> bytes:
    """The first attempt of a message and its newest ones, oldest first."""
    kept = attempts if len(attempts) <= ATTEMPTS_KEPT else [attempts[0], *attempts[1 - ATTEMPTS_KEPT :]]
    writer = ByteWriter()
    return writer.array(kept, lambda w, a: w.i64(a.claimed_ms).utf8(a.consumer).i64(a.ended_ms).utf8(a.reason)).finish()


def decode_attempts(value: bytes) -> list[AttemptRecord]:
    """Read a message's attempts back."""
    reader = ByteReader(value, "attempts")
    attempts = reader.array(lambda r: AttemptRecord(r.i64(), r.utf8(), r.i64(), r.utf8()), element_bytes=20)
    reader.finish()
    return attempts


# -- settings, cursors, counters --------------------------------------------------------------------------------


class Config(StoredQueue):
    """What was configured of a queue. The first three fields are the fixed ones, the others a list of pairs."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The record's value."""
        writer = ByteWriter().var_bytes(self.filter.encode()).u16(self.max_attempts).u32(self.done_retention_s)
        return write_settings(writer, QUEUE, self._asdict(), self._fields[_FIXED:])

    @classmethod
    def decode(cls, value: bytes) -> Config:
        """Read a value back. A setting of a later release is `Corrupt`: to go on without it would be wrong."""
        reader = ByteReader(value, "queue config")
        try:
            text = reader.var_bytes().decode()
        except UnicodeDecodeError:
            raise reader.corrupt("the filter is not UTF-8") from None
        fixed = (text, reader.u16(), reader.u32())
        settings: dict[str, Any] = {}
        for key, data in read_pairs(reader):
            if key not in cls._fields[_FIXED:] or key in settings:
                raise reader.corrupt(f"the setting {key!r} is unknown, or there twice")
            settings[key] = read_setting(reader, QUEUE.by_key.get(key), data, _HIGHEST.get(key))
        if "number" not in settings or "created_ms" not in settings:
            raise reader.corrupt("a queue without its number or its time of creation")
        return cls(*fixed, **settings)


_FIXED: Final = 3
_HIGHEST: Final = {"number": U32_MAX, "generation": U32_MAX, "bucket_exponent": BUCKET_EXPONENT_MAX}


class QueueCursor(NamedTuple):
    """How far a queue has read the metadata log, its next place, the filter's generation, and what it has counted."""

    next_message: int
    next_place: int
    generation: int
    done_records: int
    routed: int
    acked: int
    failed: int
    expired: int
    purged: int
    done_kept: int
    dead_lettered: int = 0

    def encode(self) -> bytes:
        """The record's value. The number of dead letters came later, and is written once there are some."""
        writer = ByteWriter().pack(_CURSOR, *self[:-1])
        return (writer.u64(self.dead_lettered) if self.dead_lettered else writer).finish()

    @classmethod
    def decode(cls, value: bytes) -> QueueCursor:
        """Read a value back."""
        reader = ByteReader(value, "queue cursor")
        cursor = cls(*reader.unpack(_CURSOR))
        if reader.remaining:
            cursor = cursor._replace(dead_lettered=reader.u64())
            if not cursor.dead_lettered:
                raise reader.corrupt("a count of dead letters is written once there are some")
        reader.finish()
        return cursor


_CURSOR: Final = struct.Struct("<QQIQQQQQQQ")


class Watermark(NamedTuple):
    """The last checkpoint: which state-log record comes after it, where the metadata log ended, and the next delivery
    number."""

    next_record: int
    log_end: int
    next_delivery: int

    def encode(self) -> bytes:
        """The record's value."""
        return ByteWriter().pack(_WATERMARK, *self).finish()

    @classmethod
    def decode(cls, value: bytes) -> Watermark:
        """Read a value back."""
        reader = ByteReader(value, "checkpoint watermark")
        watermark = cls(*reader.unpack(_WATERMARK))
        reader.finish()
        return watermark


_WATERMARK: Final = struct.Struct("<QQQ")


# -- dedup keys -------------------------------------------------------------------------------------------------


def dedup_key(key: str) -> bytes:
    """Where a dedup key is."""
    return DEDUP.raw + key.encode()


def own_dedup_key(queue: int, key: str) -> str:
    """The dedup key that a key of one queue is stored as."""
    return f"{queue}\0{key}"


def own_dedup_range(queue: int) -> tuple[bytes, bytes | None]:
    """All dedup keys of one queue."""
    return DEDUP.range(own_dedup_key(queue, "").encode())


def dedup_owner(key: bytes) -> int | None:
    """The queue whose dedup key this is; None for the store's own. `Corrupt` if it is neither."""
    number, separator, name = key.partition(b"\0")
    if not separator:
        return None
    if not number.isdigit() or number[:1] == b"0" or int(number) > U32_MAX or not name or b"\0" in name:
        raise Corrupt(f"the dedup key {key[:300]!r} is of no queue")
    return int(number)


def dedup_expiry_key(expires_ms: int, message: int) -> bytes:
    """The index by time of expiry; its value is the dedup key."""
    return DEDUP_EXPIRY.raw + u64(expires_ms) + u64(message)


def decode_dedup_expiry_key(key: bytes) -> tuple[int, int]:
    """Time and message."""
    reader = DEDUP_EXPIRY.reader(key, "dedup expiry")
    found = reader.u64(), reader.u64()
    reader.finish()
    return found


def encode_dedup(message: int, expires_ms: int) -> bytes:
    """The first message with a key, and until when the key is held."""
    return _DEDUP.pack(message, expires_ms)


def decode_dedup(value: bytes) -> tuple[int, int]:
    """Read a dedup record back."""
    reader = ByteReader(value, "dedup key")
    message, expires_ms = reader.unpack(_DEDUP)
    reader.finish()
    return message, expires_ms


_DEDUP: Final = struct.Struct("<Qq")


def number_record(number: int) -> bytes:
    """A single number."""
    return u64(number)


def decode_number(value: bytes, what: str) -> int:
    """Read a single number back."""
    if len(value) != 8:
        raise Corrupt(f"{what}: {len(value)} bytes where 8 belong")
    return int.from_bytes(value, "big")


def state_log_key(number: int) -> bytes:
    """Where a record of the state log is."""
    return STATE_LOG.raw + u64(number)


def deleted_key(queue: int) -> bytes:
    """A queue that was deleted and whose records are not all gone yet."""
    return DELETED.raw + u32(queue)


def cursor_key(queue: int) -> bytes:
    """Where a queue's cursor is."""
    return CURSOR.raw + u32(queue)


def config_key(name: str) -> bytes:
    """Where a queue's settings are."""
    return CONFIG.raw + name.encode()
