"""The records of consumers and their shards: who reads which journal, and the state that a shard keeps in the store.
`docs/format.md` shows them.

All keys start with subsystem 09, version 01 and a type. A consumer has its name in its key, and so have its shards.
What a shard writes all the time, its checkpoint, its state and how far it is, stands under the shard's number instead:
it is shorter, and a consumer that is deleted and made anew finds nothing of what was there before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_SHARD, KeyReader, Prefix, terminated, u32
from detent.codec.values import ByteReader, ByteWriter
from detent.errors import Corrupt

CONSUMER: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x01)
SHARD: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x02)
CHECKPOINT: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x03)
STATE: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x04)
COUNTER: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x05)
DOOMED: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x06)
PROGRESS: Final = Prefix(SUBSYSTEM_SHARD, 1, 0x07)

BY_JOURNAL: Final = "journal"
BY_KEY: Final = "key"
PARTITIONS: Final = (BY_JOURNAL, BY_KEY)
"""How a consumer is divided: each journal is one shard's, or every shard reads all and takes the keys that are its."""

FENCE_STEP: Final = 1 << 20
"""The fence of a new shard begins at so many times its number. Numbers rise and are never given twice, so a process
that had opened a shard of a deleted consumer is below the fence of the one that has its name now. It opens a shard a
million times before it comes near the next one's, and all of it fits the integers of JSON."""

FIRST_NUMBER: Final = 1

_CONSUMER: Final = struct.Struct("<qIB")
_SHARD: Final = struct.Struct("<IQIIq")
_SOURCE_BYTES: Final = 7
_RESET_BYTES: Final = 15
_OFFSET_BYTES: Final = 11


def consumer_key(name: str) -> bytes:
    """The key of the consumer with this name."""
    return CONSUMER.key(name.encode())


def decode_consumer_key(key: bytes) -> str:
    """The name that a consumer's key ends with."""
    return _text(CONSUMER.reader(key, "consumer key").rest(), key)


def shard_key(consumer: str, index: int) -> bytes:
    """The key of one shard of a consumer."""
    return SHARD.key(terminated(consumer.encode()), u32(index))


def decode_shard_key(key: bytes) -> tuple[str, int]:
    """Whose shard it is, and which one."""
    reader = SHARD.reader(key, "shard key")
    consumer, index = _text(reader.terminated(), key), reader.u32()
    reader.finish()
    return consumer, index


def checkpoint_key(number: int) -> bytes:
    """The key of a shard's checkpoint."""
    return CHECKPOINT.key(u32(number))


def doomed_key(number: int) -> bytes:
    """The key that says that a shard is gone, and its records are to go."""
    return DOOMED.key(u32(number))


def progress_key(number: int) -> bytes:
    """The key of how far a shard has said it is."""
    return PROGRESS.key(u32(number))


def decode_number_key(prefix: Prefix, key: bytes) -> int:
    """The number in the key of a checkpoint, of a doomed shard or of a shard's progress."""
    reader = prefix.reader(key, "shard number key")
    number = _number(reader)
    reader.finish()
    return number


def state_key(number: int, key: str) -> bytes:
    """The key of one entry of a shard's state. Entries lie in the order of their keys."""
    return STATE.key(u32(number), key.encode())


def decode_state_key(key: bytes) -> tuple[int, str]:
    """The shard's number, and the entry's key."""
    reader = STATE.reader(key, "state key")
    return _number(reader), _text(reader.rest(), key)


def encode_counter(number: int) -> bytes:
    """The number that the next new shard gets."""
    return ByteWriter().u32(number).finish()


def decode_counter(value: bytes) -> int:
    """The number that the next new shard gets."""
    reader = ByteReader(value, "shard counter")
    number = reader.u32()
    reader.finish()
    if number < FIRST_NUMBER:
        raise reader.corrupt(f"shards are numbered from {FIRST_NUMBER} on, not {number}")
    return number


def _number(reader: KeyReader) -> int:
    number = reader.u32()
    if number < FIRST_NUMBER:
        raise reader.corrupt(f"shards are numbered from {FIRST_NUMBER} on, not {number}")
    return number


def _text(data: bytes, key: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"the name in the key {key.hex()} is not UTF-8: {error.reason}") from None
    if not text:
        raise Corrupt(f"the key {key.hex()} has no name")
    return text


class ConsumerRow(NamedTuple):
    """One consumer: how many shards it has, how they divide the work, and which of them reads which journal.

    With the partition "key" every shard reads every journal, and the shard of each source is 0.
    """

    created_ms: int
    shards: int
    partition: str
    paused: bool
    sources: dict[str, int]

    def encode(self) -> bytes:
        writer = ByteWriter().pack(_CONSUMER, self.created_ms, self.shards, self.paused).utf8(self.partition)
        return writer.array(sorted(self.sources.items()), lambda w, item: w.utf8(item[0]).u32(item[1])).finish()

    @classmethod
    def decode(cls, value: bytes) -> ConsumerRow:
        reader = ByteReader(value, "consumer")
        created_ms, shards, paused = reader.unpack(_CONSUMER)
        partition = reader.utf8()
        pairs = reader.array(lambda r: (r.utf8(), r.u32()), element_bytes=_SOURCE_BYTES)
        reader.finish()
        if not shards or paused not in {0, 1} or partition not in PARTITIONS:
            raise reader.corrupt(f"{shards} shards, paused {paused}, divided by {partition!r}")
        _check_order(pairs, reader)
        highest = shards if partition == BY_JOURNAL else 1
        if any(shard >= highest for _, shard in pairs):
            raise reader.corrupt("a journal of a shard that it does not have")
        return cls(created_ms, shards, partition, bool(paused), dict(pairs))

    def reads(self, index: int, journal: str) -> bool:
        """Whether this shard reads a journal."""
        shard = self.sources.get(journal)
        return shard is not None and (self.partition == BY_KEY or shard == index)

    def journals_of(self, index: int) -> list[str]:
        """The journals that this shard reads, by name."""
        return sorted(journal for journal in self.sources if self.reads(index, journal))


class Reset(NamedTuple):
    """Where a journal is to be read from, by a process that has not yet seen this generation of the shard."""

    offset: int
    generation: int


class ShardRow(NamedTuple):
    """One shard: its number, the fence that rises whenever it is opened, and who holds it for how long.

    `holder` is empty, and `ttl_ms` 0, if none does. `generation` counts the resets of its journals; `resets` is the
    last one of each journal that was ever reset.
    """

    number: int
    fence: int
    holder: str
    ttl_ms: int
    generation: int
    resets: dict[str, Reset]
    updated_ms: int

    def encode(self) -> bytes:
        writer = ByteWriter().pack(_SHARD, self.number, self.fence, self.ttl_ms, self.generation, self.updated_ms)
        writer.utf8(self.holder)
        return writer.array(
            sorted(self.resets.items()), lambda w, item: w.utf8(item[0]).u64(item[1][0]).u32(item[1][1])
        ).finish()

    @classmethod
    def decode(cls, value: bytes) -> ShardRow:
        reader = ByteReader(value, "shard")
        number, fence, ttl_ms, generation, updated_ms = reader.unpack(_SHARD)
        holder = reader.utf8()
        pairs = reader.array(lambda r: (r.utf8(), Reset(r.u64(), r.u32())), element_bytes=_RESET_BYTES)
        reader.finish()
        if number < FIRST_NUMBER or fence < number * FENCE_STEP:
            raise reader.corrupt(f"number {number} with the fence {fence}")
        if bool(holder) != bool(ttl_ms):
            raise reader.corrupt(f"{holder!r} as the holder, for {ttl_ms} ms")
        _check_order(pairs, reader)
        generations = [reset.generation for _, reset in pairs]
        if max(generations, default=0) != generation or not all(generations):
            raise reader.corrupt(f"{generation} resets, and the generations {generations}")
        return cls(number, fence, holder, ttl_ms, generation, dict(pairs), updated_ms)


class ProgressRow(NamedTuple):
    """How far a shard is, as it was last written down: it may be further by now. Of each journal the offset after the
    last message: of those that it has processed, in this generation, and of those that it has written. `numbers` are
    those of the journals that it reads, which a journal of the same name that is made later does not have."""

    processed: dict[str, int]
    published: dict[str, int]
    generation: int
    numbers: dict[str, int] = {}  # noqa: RUF012 - never changed

    def encode(self) -> bytes:
        writer = ByteWriter()
        for offsets in (self.processed, self.published):
            writer.array(sorted(offsets.items()), lambda w, item: w.utf8(item[0]).u64(item[1]))
        writer.u32(self.generation)
        if self.numbers:
            writer.array(sorted(self.numbers.items()), lambda w, item: w.utf8(item[0]).u32(item[1]))
        return writer.finish()

    @classmethod
    def decode(cls, value: bytes) -> ProgressRow:
        reader = ByteReader(value, "progress")
        processed, published = _offsets(reader), _offsets(reader)
        generation = reader.u32()
        if not reader.remaining:  # of an earlier release, or not known yet
            return cls(processed, published, generation)
        numbers = reader.array(lambda r: (r.utf8(), r.u32()), element_bytes=_SOURCE_BYTES)
        reader.finish()
        _check_order(numbers, reader)
        if not numbers or not all(number for _, number in numbers):
            raise reader.corrupt("journals without numbers")
        return cls(processed, published, generation, dict(numbers))


def _offsets(reader: ByteReader) -> dict[str, int]:
    pairs = reader.array(lambda r: (r.utf8(), r.u64()), element_bytes=_OFFSET_BYTES)
    _check_order(pairs, reader)
    return dict(pairs)


def _check_order(pairs: Sequence[tuple[str, object]], reader: ByteReader) -> None:
    journals = [journal for journal, _ in pairs]
    if any(not low < high for low, high in zip(["", *journals], journals, strict=False)):
        raise reader.corrupt("journals that are empty, out of order or twice there")
