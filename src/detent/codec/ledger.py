"""The ledger's records: which batches of a query were entered and what their inputs were, where a stream began, and
what its readers have planned. `docs/format.md` shows them.

All keys start with subsystem 08, version 01 and a type; the name follows and ends the key, so records lie in the order
of their names.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_LEDGER, Prefix
from detent.codec.values import ByteReader, ByteWriter
from detent.errors import Corrupt

ROW: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x01)
PIN: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x02)
INPUTS: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x04)
PLAN: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x05)
STREAM: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x06)
RESTORED: Final = Prefix(SUBSYSTEM_LEDGER, 1, 0x07)

REPLACED_MAX: Final = 16
"""Replaced runs that a row remembers. A driver that is so many restarts behind has been dead for long."""

NO_BATCH: Final = -1
"""The batch of a row that was reset: nothing is entered, and the first query that comes takes it."""

DIGEST_BYTES: Final = 16
"""What identifies an input, a start or an end: a digest of it."""

INPUTS_MAX: Final = 32
"""Batches of a ledger whose inputs are known. Spark comes back to the newest one or two after a crash, and to older
ones when its checkpoint was restored from a copy."""

STEPS_MAX: Final = 32
"""Steps of a plan that are kept: as many as batches."""

_ROW: Final = struct.Struct("<qqqQI")
_RUN_BYTES: Final = 3
_OFFSET_BYTES: Final = 11
_INPUT: Final = struct.Struct(f"<q{DIGEST_BYTES}s")
_STEP: Final = struct.Struct(f"<q{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}s")


def key_of(prefix: Prefix, name: str) -> bytes:
    """The key of the row or pin with this name."""
    return prefix.key(name.encode())


def name_of(prefix: Prefix, key: bytes) -> str:
    """The name that a key ends with."""
    name = prefix.reader(key, "ledger key").rest()
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"the name in the key {key.hex()} is not UTF-8: {error.reason}") from None
    if not text:
        raise Corrupt(f"the key {key.hex()} has no name")
    return text


class Row(NamedTuple):
    """One ledger: the highest batch that its query has entered, and which run of its driver did so.

    `entries` counts the batches of this query. `replaced` are runs that have had a successor, oldest first; they stay
    when the ledger is reset, which `generation` counts.
    """

    created_ms: int
    updated_ms: int
    batch: int
    entries: int
    generation: int
    query: str
    run: str
    replaced: tuple[str, ...]

    def encode(self) -> bytes:
        writer = ByteWriter().pack(_ROW, self.created_ms, self.updated_ms, self.batch, self.entries, self.generation)
        writer.utf8(self.query).utf8(self.run)
        return writer.array(self.replaced, ByteWriter.utf8).finish()

    @classmethod
    def decode(cls, value: bytes) -> Row:
        reader = ByteReader(value, "ledger row")
        created_ms, updated_ms, batch, entries, generation = reader.unpack(_ROW)
        query, run = reader.utf8(), reader.utf8()
        replaced = tuple(reader.array(ByteReader.utf8, element_bytes=_RUN_BYTES))
        reader.finish()
        row = cls(created_ms, updated_ms, batch, entries, generation, query, run, replaced)
        row._check(reader)
        return row

    def _check(self, reader: ByteReader) -> None:
        """What no writer leaves: numbers that do not go together, runs without a row or there twice."""
        if self.batch < NO_BATCH or not self._counts_agree():
            raise reader.corrupt(f"{self.entries} entries, and batch {self.batch} as the highest")
        if not self.entries and (self.query or self.run):
            raise reader.corrupt("a query or a run, although nothing is entered")
        runs = {*self.replaced}
        if len(self.replaced) > REPLACED_MAX or len(runs) != len(self.replaced) or runs & {"", self.run}:
            raise reader.corrupt("replaced runs that are too many, empty, twice there, or not replaced")

    def _counts_agree(self) -> bool:
        """Each entry raised the batch, which began below 0."""
        return self.entries <= self.batch + 1 and (self.entries > 0) == (self.batch >= 0)


def encode_restored(batch: int) -> bytes:
    """The highest batch that a ledger had when its store was restored from a backup."""
    return ByteWriter().u64(batch).finish()


def decode_restored(value: bytes) -> int:
    """Read it back."""
    reader = ByteReader(value, "ledger of a restored store")
    batch = reader.u64()
    reader.finish()
    return batch


class Pin(NamedTuple):
    """Where a stream began: an offset for each journal, the journals in order."""

    created_ms: int
    offsets: dict[str, int]

    def encode(self) -> bytes:
        writer = ByteWriter().i64(self.created_ms)
        return writer.array(sorted(self.offsets.items()), lambda w, item: w.utf8(item[0]).u64(item[1])).finish()

    @classmethod
    def decode(cls, value: bytes) -> Pin:
        reader = ByteReader(value, "pin")
        created_ms = reader.i64()
        pairs = reader.array(lambda r: (r.utf8(), r.u64()), element_bytes=_OFFSET_BYTES)
        reader.finish()
        journals = [journal for journal, _ in pairs]
        if any(not low < high for low, high in zip(["", *journals], journals, strict=False)):
            raise reader.corrupt("journals that are empty, out of order or twice there")
        return cls(created_ms, dict(pairs))


class BatchInputs(NamedTuple):
    """What the newest batches of a ledger were made from: batch and digest, oldest first. A digest of zeros is that of
    a batch which was entered without one."""

    entries: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        return ByteWriter().array(self.entries, lambda w, entry: w.pack(_INPUT, *entry)).finish()

    @classmethod
    def decode(cls, value: bytes) -> BatchInputs:
        reader = ByteReader(value, "inputs of a ledger")
        entries = tuple(reader.array(lambda r: r.unpack(_INPUT), element_bytes=_INPUT.size))
        reader.finish()
        batches = [batch for batch, _ in entries]
        if len(entries) > INPUTS_MAX or any(not low < high for low, high in zip([-1, *batches], batches, strict=False)):
            raise reader.corrupt("batches that are too many, below 0 or out of order")
        return cls(entries)


class PlanStep(NamedTuple):
    """From which offsets a reader planned, to which, and on which journals: three digests. `moved` are the offsets of
    the end that are not those of the start."""

    planned_ms: int
    start: bytes
    end: bytes
    journals: bytes
    moved: dict[str, int]


class Plan(NamedTuple):
    """What a reader of journals has planned, oldest step first."""

    steps: tuple[PlanStep, ...]

    def encode(self) -> bytes:
        return ByteWriter().array(self.steps, _write_step).finish()

    @classmethod
    def decode(cls, value: bytes) -> Plan:
        reader = ByteReader(value, "plan")
        steps = tuple(reader.array(_read_step, element_bytes=_STEP.size))
        reader.finish()
        if not 1 <= len(steps) <= STEPS_MAX or len({step.start for step in steps}) != len(steps):
            raise reader.corrupt("no steps, too many, or two from one start")
        if any(list(step.moved) != sorted({*step.moved} - {""}) for step in steps):
            raise reader.corrupt("journals that are empty, out of order or twice there")
        return cls(steps)


class Declared(NamedTuple):
    """What a stream reads and writes: places such as "journal orders", and a number that tells one from another of the
    same name; 0 where there is none."""

    declared_ms: int
    reads: dict[str, int]
    writes: dict[str, int]

    def encode(self) -> bytes:
        writer = ByteWriter().i64(self.declared_ms)
        for places in (self.reads, self.writes):
            writer.array(sorted(places.items()), lambda w, item: w.utf8(item[0]).u64(item[1]))
        return writer.finish()

    @classmethod
    def decode(cls, value: bytes) -> Declared:
        reader = ByteReader(value, "stream")
        declared_ms = reader.i64()
        reads, writes = (reader.array(lambda r: (r.utf8(), r.u64()), element_bytes=_OFFSET_BYTES) for _ in range(2))
        reader.finish()
        for places in (reads, writes):
            names = [name for name, _ in places]
            if any(not low < high for low, high in zip(["", *names], names, strict=False)):
                raise reader.corrupt("places that are empty, out of order or twice there")
        return cls(declared_ms, dict(reads), dict(writes))


def _write_step(writer: ByteWriter, step: PlanStep) -> None:
    writer.pack(_STEP, step.planned_ms, step.start, step.end, step.journals)
    writer.array(sorted(step.moved.items()), lambda w, item: w.utf8(item[0]).u64(item[1]))


def _read_step(reader: ByteReader) -> PlanStep:
    planned_ms, start, end, journals = reader.unpack(_STEP)
    pairs = reader.array(lambda r: (r.utf8(), r.u64()), element_bytes=_OFFSET_BYTES)
    if len({name for name, _ in pairs}) != len(pairs):
        raise reader.corrupt("a journal that is twice there")
    return PlanStep(planned_ms, start, end, journals, dict(pairs))
