"""What a processor writes down: one record in the graph's own store, one mark in each other store that it writes to.

The record holds the snapshot of the step to come and the attempt of the step before. It is replaced whole, in the
transaction that makes the attempt's outputs visible; so there is never more than one of them to look at, and nothing to
trim. What an attempt owes to other stores is in it word for word, until their marks say that they have it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from detent.shard.operations import CHECKPOINT_BYTES_MAX
from detent.stream.record import Sealing

FORMAT: Final = 1

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


class StepAttempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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

    def plus(self, attempt: StepAttempt) -> Totals:
        """With one more step."""
        return Totals(
            self.steps + 1,
            self.outputs + attempt.outputs,
            self.errors + attempt.errors,
            self.nils + attempt.nils,
        )


class ProcessorRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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
    attempt: StepAttempt | None = None
    given: dict[str, _Count] = {}
    totals: Totals = Totals()

    def encode(self) -> bytes:
        """As bytes, with a checksum. `LimitExceeded` if it could not be read back."""
        return _records.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ProcessorRecord:
        """From bytes; `Corrupt` if they are something else, or not as they were written."""
        return _records.decode(data)


def confirmed(record: ProcessorRecord) -> dict[str, int]:
    """Up to where other stores have their outputs, once the attempt of this record was given to them."""
    attempt = record.attempt
    if attempt is None or not attempt.owed:
        return record.given
    return {**record.given, **{one.store: attempt.end for one in attempt.owed}}


def settled(record: ProcessorRecord) -> ProcessorRecord:
    """The record once all that it owed was given, without what is not asked for any more."""
    attempt = None if record.attempt is None else msgspec.structs.replace(record.attempt, owed=[])
    return msgspec.structs.replace(record, attempt=attempt, given=confirmed(record))


def advanced(record: ProcessorRecord, snapshot: Snapshot, attempt: StepAttempt) -> ProcessorRecord:
    """The record after a step: what the attempt before owed was given."""
    return ProcessorRecord(
        record.identity,
        record.epoch,
        record.generation,
        record.shape,
        snapshot,
        attempt,
        confirmed(record),
        record.totals.plus(attempt),
    )


_SINK: Final = "sink "
"""How a name among those of stores begins, under which a delivery is kept that a sink has. No store's has a space."""


def sunk(record: ProcessorRecord) -> int | None:
    """The number of a delivery of the record's series that the processor's sink is known to have."""
    return record.given.get(f"{_SINK}{record.snapshot.series}")


def with_sunk(record: ProcessorRecord, number: int) -> ProcessorRecord:
    """The record with a delivery that the processor's sink has."""
    stores = {name: up_to for name, up_to in record.given.items() if not name.startswith(_SINK)}
    return msgspec.structs.replace(record, given={**stores, f"{_SINK}{record.snapshot.series}": number})


class OutputMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What another store has of a processor: all outputs of the input sets below `number`."""

    identity: _Series
    number: _Count

    def encode(self) -> bytes:
        """As bytes, with a checksum."""
        return _marks.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> OutputMark:
        """From bytes; `Corrupt` if they are something else, or not as they were written."""
        return _marks.decode(data)


_records: Final = Sealing(
    ProcessorRecord,
    "a record of a processor",
    bytes([FORMAT, 1]),
    CHECKPOINT_BYTES_MAX,
    hint=": a step owes too much to other stores. Take smaller batches, or write less in one step",
)
_marks: Final = Sealing(OutputMark, "a mark of a processor", bytes([FORMAT, 2]), CHECKPOINT_BYTES_MAX)
