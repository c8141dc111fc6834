"""A place that outlives its process: how far a tailer has read, or up to which number an appender has written.

The store keeps it as it keeps the progress of a consumer with one shard. The object that opens it raises its
fence, and one that had it open before saves nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from detent import names
from detent.engine import Operation
from detent.errors import Conflict, DetentError, Fenced, Invalid, OutcomeUnknown
from detent.shard import operations as ops
from detent.stream.record import FencedRecord, Sealing

if TYPE_CHECKING:
    from detent.store import Store
    from detent.transaction import AsyncTransaction, Transaction

Kind = Literal["tailer", "appender"]

FORMAT: Final = 1

PLACE_BYTES_MAX: Final = 64
"""Three numbers of up to nine bytes, and what is around them: anything longer is something else."""

AT_MAX: Final = ops.OFFSET_MAX


class SavedPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place as it is kept.

    `at` is what comes next: the offset of the next message, or the lowest number that was not appended yet. `journal`
    is the journal's number, which another one of that name does not have; None while it was not known. `generation` is
    the newest reset that is in here.
    """

    at: Annotated[int, msgspec.Meta(ge=0, le=AT_MAX)]
    journal: Annotated[int, msgspec.Meta(ge=0)] | None = None
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0

    def encode(self) -> bytes:
        """As bytes, with a checksum."""
        return _sealing.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> SavedPlace:
        """From bytes; `Corrupt` if they are something else, or not as they were written."""
        return _sealing.decode(data)


_sealing: Final = Sealing(SavedPlace, "a kept place", bytes([FORMAT]), PLACE_BYTES_MAX)


def consumer_name(kind: Kind, journal: str, name: str) -> str:
    """What the store calls the consumer that keeps a place."""
    names.check_name(journal, "journal")
    names.check_name(name, kind)
    if "/" in name:  # a journal's name may have parts, and then it could not be told where it ends
        raise Invalid(f"{name!r} is not the name of a {kind}: it has no parts, so leave out the '/'")
    return f"{kind}/{journal}/{name}"


class KeptPlace:
    """One place, opened: who opens it later has it then. For one thread at a time."""

    def __init__(self, store: Store, kind: Kind, journal: str, name: str) -> None:
        self.consumer = consumer_name(kind, journal, name)
        self._store = store
        self._what = f"the {kind} {name!r} of {journal!r}"
        self._journal = journal
        self._reports = kind == "tailer"  # an appender counts numbers of its own, not offsets
        self._record = FencedRecord(store, self.consumer)
        opened = self._record.open([journal])
        self._unsure = False
        self._pending: tuple[Transaction | AsyncTransaction, int, SavedPlace] | None = None
        self.saved = _decoded(opened)
        """What the store has."""
        self.generation = 0 if self.saved is None else self.saved.generation
        self.start = self._reset(opened)
        """Where to go on: what the store has, or where it was reset to since; None if it has nothing yet."""

    def _reset(self, opened: ops.ShardOpened) -> SavedPlace | None:
        """A reset counts once: what was saved after it is newer."""
        if opened.generation == self.generation:
            return self.saved
        found = self._record.find(self.generation)
        self.generation = found.generation
        at = found.resets.get(self._journal)
        return self.saved if at is None else SavedPlace(at, None, self.generation)

    def save(self, at: int, journal: int | None, *operations: Operation) -> list[Any]:
        """Make a place durable, in one transaction with these operations; their results. Does nothing if there is
        nothing to do."""
        self.settle()
        place = SavedPlace(at, journal, self.generation)
        if place == self.saved and not operations:
            return []
        self._unsure = True
        try:
            results = self._store.commit([*operations, self._operation(place)])
        except Fenced as error:
            self._unsure = False
            raise self._replaced() from error
        except DetentError as error:
            self._unsure = isinstance(error, OutcomeUnknown)
            raise
        self._unsure = False
        self.saved = place
        return results

    def save_in(self, transaction: Transaction | AsyncTransaction, at: int, journal: int | None) -> None:
        """Make a place durable with a transaction, if that is."""
        if self.settle(transaction):
            raise Conflict(
                f"a transaction with the place of {self._what} failed, as it seemed, and took effect after all: open "
                "it again, and go on from where it is then"
            )
        place = SavedPlace(at, journal, self.generation)
        self._pending = (transaction, transaction.add(self._operation(place)), place)

    def settle(self, current: Transaction | AsyncTransaction | None = None) -> bool:
        """The last save may be without an answer. Then look, behind a new fence: what was under way until then
        comes to nothing. Whether a transaction took effect although its commit was not seen."""
        before, was_lost = self.saved, self._lose(current)
        if not self._unsure:
            return False
        if self._record.is_replaced():
            raise self._replaced()
        self.saved, self._unsure = _decoded(self._record.open()), False
        return was_lost and self.saved != before

    def _replaced(self) -> Fenced:
        return Fenced(f"{self._what} was opened again, by this process or another one: stop, or open it again")

    def _lose(self, current: Transaction | AsyncTransaction | None) -> bool:
        """Whether a transaction has the place whose commit was not seen, and which is not the one in hand."""
        if self._pending is None:
            return False
        transaction, index, place = self._pending
        if len(transaction.results) > index:
            self.saved, self._pending = place, None
            return False
        if transaction is current:
            return False
        self._pending, self._unsure = None, True
        return True

    def _operation(self, place: SavedPlace) -> Operation:
        processed = {self._journal: place.at} if self._reports else {}
        return self._record.replacing(place.encode(), processed=processed)


def _decoded(opened: ops.ShardOpened) -> SavedPlace | None:
    return None if opened.checkpoint is None else SavedPlace.decode(opened.checkpoint)
