"""What a processor writes down: one record in the graph's own store, one mark in each other store that it writes to.

The record holds the snapshot of the step to come and the attempt of the step before. It is replaced whole, in the
transaction that makes the attempt's outputs visible; so there is never more than one of them to look at, and nothing to
trim. What an attempt owes to other stores is in it word for word, until their marks say that they have it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
import xxhash

from detent.engine import MALFORMED
from detent.errors import Corrupt, LimitExceeded
from detent.shard.operations import CHECKPOINT_BYTES_MAX

FORMAT: Final = 1
_CHECKSUM_BYTES: Final = 8
_RECORD: Final = 1
_MARK: Final = 2

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Series = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""The first part of delivery keys: 128 bits."""


JournalId = tuple[_Count, _Count]
"""Which journal: its number, and when it was made. A store that is made anew begins with the same numbers."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a step begins, and under which key: input sets are numbered on from `number`, and the delivery key of each
    is ``series-number``. It is never computed again: a retry finds it here.

    `positions` are the next offsets by input, `journals` the numbers of those journals and when they were made, which
    others of the same names do not have. `chosen` are the inputs that were decided on, with how many messages of each,
    in order: for any-of (the names of inputs) and for functions that take a batch whole ("" and the number of sets).
    `cursor` is what a polled source answered last, as JSON.
    """

    series: _Series
    number: _Count = 0
    positions: dict[str, _Count] = {}
    journals: dict[str, JournalId] = {}
    chosen: list[tuple[str, _Count]] = []
    cursor: bytes = b"null"


class Owed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages for a journal of another store, as they are to be appended there."""

    store: str
    journal: str
    bodies: list[bytes]
    keys: list[bytes | None]
    headers: list[dict[str, str] | None]


class Attempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A step that is decided: which input sets, and what came of them."""

    number: _Count
    sets: _Count
    outputs: _Count
    """Input sets that gave outputs."""
    errors: _Count
    nils: _Count
    """Input sets that gave nothing: filtered, answered with None, or taken by a sink."""
    owed: list[Owed] = []

    @property
    def end(self) -> int:
        """The number after its last input set."""
        return self.number + self.sets


class Shape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a processor looked like when the record was written."""

    kind: str
    mode: str
    inputs: list[str]
    outputs: list[str]
    errors: str
    delivery: str
    whole: bool


class Totals(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became of all input sets so far."""

    steps: _Count = 0
    outputs: _Count = 0
    errors: _Count = 0
    nils: _Count = 0

    def plus(self, attempt: Attempt) -> Totals:
        """With one more step."""
        return Totals(
            self.steps + 1,
            self.outputs + attempt.outputs,
            self.errors + attempt.errors,
            self.nils + attempt.nils,
        )


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that a processor has durably.

    `identity` tells this processor from one of the same name in another store: marks carry it. `epoch` rises with each
    change of its shape. `generation` is the newest reset that is in here. `given` says up to which number each other
    store has confirmed its outputs, and which delivery a sink is known to have, see `sunk`.
    """

    identity: _Series
    epoch: _Count
    generation: _Count
    shape: Shape
    snapshot: Snapshot
    attempt: Attempt | None = None
    given: dict[str, _Count] = {}
    totals: Totals = Totals()

    def encode(self) -> bytes:
        """As bytes, with a checksum. `LimitExceeded` if nobody would read it back."""
        return _encoded(_RECORD, self)

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """From bytes; `Corrupt` if they are no record, or not as they were written."""
        return _decoded(_RECORD, data, _records)


_SINK: Final = "sink "
"""How a name among those of stores begins, under which a delivery is kept that a sink has. No store's has a space."""


def sunk(record: Record) -> int | None:
    """The number of a delivery of the record's series that the processor's sink is known to have."""
    return record.given.get(f"{_SINK}{record.snapshot.series}")


def with_sunk(record: Record, number: int) -> Record:
    """The record with a delivery that the processor's sink has."""
    stores = {name: up_to for name, up_to in record.given.items() if not name.startswith(_SINK)}
    return msgspec.structs.replace(record, given={**stores, f"{_SINK}{record.snapshot.series}": number})


class Mark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What another store has of a processor: all outputs of the input sets below `number`."""

    identity: _Series
    number: _Count

    def encode(self) -> bytes:
        """As bytes, with a checksum."""
        return _encoded(_MARK, self)

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """From bytes; `Corrupt` if they are no mark, or not as they were written."""
        return _decoded(_MARK, data, _marks)


Read = TypeVar("Read")

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_records: Final = msgspec.msgpack.Decoder(Record)
_marks: Final = msgspec.msgpack.Decoder(Mark)


def _encoded(kind: int, value: Any) -> bytes:
    content = bytes([FORMAT, kind]) + _encode(value)
    if len(content) + _CHECKSUM_BYTES > CHECKPOINT_BYTES_MAX:
        raise LimitExceeded(
            f"a step that owes {len(content)} bytes to other stores is over the limit of {CHECKPOINT_BYTES_MAX}: take "
            "smaller batches, or write less in one step"
        )
    return content + xxhash.xxh64_digest(content)


def _decoded(kind: int, data: bytes, decoder: msgspec.msgpack.Decoder[Read]) -> Read:
    content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if len(data) > CHECKPOINT_BYTES_MAX or len(content) < 2:
        raise Corrupt(f"{len(data)} bytes are no record of a processor")
    if xxhash.xxh64_digest(content) != checksum:
        raise Corrupt("a record of a processor does not match its checksum")
    if content[0] != FORMAT or content[1] != kind:
        raise Corrupt(
            f"a record of format {content[0]} and kind {content[1]}: this release reads format {FORMAT}, and looked "
            f"for kind {kind}. Something else has written under this processor's name"
        )
    try:
        return decoder.decode(content[2:])
    except MALFORMED as error:
        raise Corrupt(f"these bytes are no record of a processor: {error}") from error
