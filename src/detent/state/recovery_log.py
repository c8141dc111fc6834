"""The recovery log: a journal that holds every change of a recorded state, and now and then the whole of it.

    handoff   a process takes over; the register `author` names it, in the same transaction
    commit    the changes of one transaction, and its checkpoint
    snapshot  a part of the whole state; the register `snapshot` says at which offset the newest complete one begins

Each record carries its number and the digest of the one before, so that a reader who skips or repeats one notices.
A writer checks the register `author` in the transaction of the append: of two authors only the last can write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import xxhash

from detent.engine import MALFORMED
from detent.errors import Corrupt, NotFound
from detent.patterns import RECOVERY
from detent.state.base import ShardName
from detent.state.checkpoint import Checkpoint

AUTHOR: Final = "author"
SNAPSHOT: Final = "snapshot"

NO_DIGEST: Final = bytes(8)

PART_BYTES: Final = 1 << 20
"""About the size of a snapshot's parts: each is a message, read and written whole."""


def log_name(shard: ShardName) -> str:
    """The journal of a shard's changes."""
    return f"{log_prefix(shard.consumer)}{shard.shard}"


def log_prefix(consumer: str) -> str:
    """What the names of a consumer's logs begin with; the number of the shard follows."""
    return f"{consumer}{RECOVERY}"


class Handoff(msgspec.Struct, frozen=True, array_like=True, tag="h", forbid_unknown_fields=True):
    """A new author has taken over."""

    author: str
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    previous: bytes


class RecordedCommit(msgspec.Struct, frozen=True, array_like=True, tag="c", forbid_unknown_fields=True):
    """What one transaction changed."""

    author: str
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    previous: bytes
    checkpoint: bytes
    puts: dict[str, bytes]
    deletes: list[str]


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True, tag="s", forbid_unknown_fields=True):
    """A part of the whole state; the one with the checkpoint is the last."""

    author: str
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    previous: bytes
    part: Annotated[int, msgspec.Meta(ge=0)]
    entries: dict[str, bytes]
    checkpoint: bytes | None


Record = Handoff | RecordedCommit | SnapshotPart

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Handoff | RecordedCommit | SnapshotPart)


def encode_record(record: Record) -> bytes:
    """A record as a message's body."""
    return _encode(record)


def decode_record(body: bytes) -> Record:
    """A record from a message's body; `Corrupt` if it is none."""
    try:
        return _decoder.decode(body)
    except MALFORMED as error:
        raise Corrupt(f"a message of a recovery log is not a record of one: {error}") from error


class Playback:
    """The state that a log describes, as far as it was played.

    `at` is the offset of the next message. `entries` are values as JSON; `checkpoint` is None until something was
    committed.
    """

    def __init__(self) -> None:
        self.at = 0
        self.sequence = -1
        self.digest = NO_DIGEST
        self.entries: dict[str, bytes] = {}
        self.checkpoint: Checkpoint | None = None
        self.bytes_since_snapshot = 0
        self._parts: list[SnapshotPart] | None = None

    def start_at(self, offset: int) -> None:
        """Begin with the snapshot at an offset, whatever was played before."""
        self.__init__()  # type: ignore[misc]
        self.at = offset
        self._parts = []

    def play(self, body: bytes) -> None:
        """Apply the next message of the log."""
        record = decode_record(body)
        if self.sequence >= 0 and (record.sequence != self.sequence + 1 or record.previous != self.digest):
            raise Corrupt(
                f"the recovery log goes on at offset {self.at} with record {record.sequence}, which does not follow "
                f"record {self.sequence}"
            )
        if isinstance(record, RecordedCommit):
            self._apply(record)
        elif isinstance(record, SnapshotPart):
            self._gather(record)
        self.sequence = record.sequence
        self.digest = xxhash.xxh64_digest(body)
        self.at += 1
        self.bytes_since_snapshot += len(body)

    def _apply(self, record: RecordedCommit) -> None:
        if self._parts is not None:
            raise Corrupt(f"the snapshot before offset {self.at} of the recovery log has no end")
        self.entries.update(record.puts)
        for key in record.deletes:
            self.entries.pop(key, None)
        self.checkpoint = Checkpoint.decode(record.checkpoint)

    def _gather(self, part: SnapshotPart) -> None:
        """Take a snapshot's part, if this began with it; later ones only repeat what is known."""
        if self._parts is None:
            if part.checkpoint is not None:
                self.bytes_since_snapshot = 0
            return
        if part.part != len(self._parts):
            raise Corrupt(f"the snapshot at offset {self.at} of the recovery log has part {part.part} out of order")
        self._parts.append(part)
        self.entries.update(part.entries)
        if part.checkpoint is not None:
            self.checkpoint = Checkpoint.decode(part.checkpoint)
            self.bytes_since_snapshot = 0
            self._parts = None


def play_log(store: Any, journal: str, playback: Playback) -> None:
    """Play what the log holds by now. Begins anew, with the newest snapshot, if what comes next was pruned."""
    while True:
        info = store.reader.info(journal)
        if playback.at < info.first_offset:
            playback.start_at(_snapshot_of(info.registers, journal))
        if playback.at >= info.next_offset:
            return
        try:
            for _, batch in store.reader.committed(journal, playback.at, info.next_offset, journal=info.id):
                for body in batch.column("body").to_pylist():
                    playback.play(body)
            return
        except NotFound:
            if store.reader.extent(journal)[0] <= playback.at:
                raise  # not pruned meanwhile: the journal itself has gone


def _snapshot_of(registers: dict[str, str], journal: str) -> int:
    try:
        return int(registers[SNAPSHOT])
    except (KeyError, ValueError):
        raise Corrupt(
            f"the recovery log {journal!r} has lost its beginning, and its register {SNAPSHOT!r} names no snapshot"
        ) from None


def snapshot_parts(entries: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The whole state in pieces; at least one."""
    part: dict[str, bytes] = {}
    size = 0
    for key, value in entries.items():
        part[key] = value
        size += len(key) + len(value)
        if size >= PART_BYTES:
            yield part
            part, size = {}, 0
    yield part
