"""A checkpoint: how far a shard has read, and what it has promised to acknowledge.

It commits with the state, in one transaction of the state's own store. A process that restores it knows both
halves of the truth: where to read on, and which messages of the last transaction downstream readers may see.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from detent.errors import Corrupt
from detent.journal import AckIntent
from detent.journal.publisher import is_possible
from detent.message import Checkpoint as RawCheckpoint
from detent.message import ProducerCheckpoint
from detent.shard.operations import CHECKPOINT_BYTES_MAX
from detent.stream.record import Sealing

FORMAT: Final = 1

OFFSET_MAX: Final = 1 << 62

_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_Clock = Annotated[int, msgspec.Meta(ge=0)]


class RawProducer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a reader of raw rows knows of a producer: the last clock it took, and where an open span begins (or -1)."""

    producer: Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
    last_ack: _Clock
    begin: Annotated[int, msgspec.Meta(ge=-1, le=OFFSET_MAX)]
    max_clock: _Clock


class RawPosition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a raw source is read: the position, the clock floor of forgotten producers, and the others' states."""

    position: _Offset
    floor: _Clock
    producers: list[RawProducer]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Progress of a shard, as its state keeps it.

    `offsets` are the next committed offsets of its sources, `raw` the same for sources that are read raw. `intents`
    are the acknowledgements to write, by the name of the output store (the consumer's own is ""). `generation` is the
    newest reset whose offsets are in here, `transaction` counts the commits. `shard` is the shard's number in the
    consumer's store, which no other shard ever has there, and `born_ms` when its consumer was made: together they tell
    it from one of the same name in another store, or of an earlier consumer. `numbers` are those of the journals that
    are read, which a journal of the same name that is made later does not have. `wrote` are journals that were
    published to lately, with the names of their stores. `created` says when the journals that are read were made, as
    their store says: it says otherwise once it was restored from a backup.
    """

    offsets: dict[str, _Offset] = {}
    raw: dict[str, RawPosition] = {}
    intents: dict[str, list[AckIntent]] = {}
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    transaction: Annotated[int, msgspec.Meta(ge=0)] = 0
    shard: Annotated[int, msgspec.Meta(ge=0)] = 0
    born_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    numbers: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    wrote: list[tuple[str, str]] = []
    created: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}

    def encode(self) -> bytes:
        """As bytes, with a checksum. `LimitExceeded` if it could not be read back."""
        return _sealing.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """From bytes; `Corrupt` if they are something else, or not as they were written."""
        found = _sealing.decode(data)
        for intent in (one for some in found.intents.values() for one in some):
            if not is_possible(intent):
                raise Corrupt("a checkpoint holds acknowledgement intents with impossible fields")
        return found


_sealing: Final = Sealing(
    Checkpoint,
    "a checkpoint",
    bytes([FORMAT]),
    CHECKPOINT_BYTES_MAX,
    hint=": divide the sources over more shards, or publish to fewer journals in one transaction",
)


def raw_checkpoint(raw: dict[str, RawPosition]) -> RawCheckpoint:
    """What a sequencer resumes from."""
    return RawCheckpoint(
        {journal: found.position for journal, found in raw.items()},
        [
            ProducerCheckpoint(journal, one.producer, one.last_ack, one.begin, one.max_clock)
            for journal, found in raw.items()
            for one in found.producers
        ],
        {journal: found.floor for journal, found in raw.items() if found.floor},
    )


def raw_positions(found: RawCheckpoint) -> dict[str, RawPosition]:
    """What a sequencer says of itself, by journal."""
    producers: dict[str, list[RawProducer]] = {journal: [] for journal in found.offsets}
    for one in found.producers:
        producers[one.journal].append(RawProducer(one.producer, one.last_ack, one.begin, one.max_clock))
    return {
        journal: RawPosition(position, found.floors.get(journal, 0), producers[journal])
        for journal, position in found.offsets.items()
    }
