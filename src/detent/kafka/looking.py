"""A bridge as its store knows it: looked at, and told to begin again. It may run elsewhere meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent.errors import Invalid, NotFound
from detent.kafka.declaration import Declaration
from detent.kafka.inward import progress_of
from detent.kafka.place import JOURNAL_PLACE, TOPIC_PLACE, JournalPlace, Start, TopicPlace, in_order
from detent.runtime.report import Report, State, Trouble
from detent.shard.operations import ConsumerDescription
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

PREFIX: Final = "bridge/"
"""The names of bridges among the consumers of a store."""

Place = TopicPlace | JournalPlace


class StoredBridge:
    """A bridge in a store. With its declaration, Kafka can be asked, too."""

    def __init__(self, store: Store, consumer: str, declared: Declaration | None = None) -> None:
        self._store = store
        self._consumer = consumer
        self._declared = declared

    def describe(self) -> ConsumerDescription:
        """Its shards and who has them. `NotFound` if the store has never heard of it."""
        found = FencedRecord(self._store, self._consumer).describe()
        if found is None:
            raise NotFound(f"the store knows no bridge {self._consumer.removeprefix(PREFIX)!r}: it has not run yet")
        return found

    def places(self) -> list[Place]:
        """How far its shards are; those that have never worked are left out."""
        records = [FencedRecord(self._store, self._consumer, one.index) for one in self.describe().states]
        checkpoints = [record.find().checkpoint for record in records]
        return [_decoded(checkpoint) for checkpoint in checkpoints if checkpoint is not None]

    def report(self) -> Report:
        """How it is doing."""
        found, places = self.describe(), self.places()
        progress: dict[str, int] = {}
        for place in places:
            for name, count in _progress(place).items():
                progress[name] = progress.get(name, 0) + count
        error = next((state.error for state in found.states if state.error), "")
        return Report(
            "bridge",
            self._consumer.removeprefix(PREFIX),
            _state(found),
            progress,
            self.lag(places),
            Trouble(error) if error else None,
            about=_about(places),
        )

    def lag(self, places: Sequence[Place] | None = None) -> int | None:
        """How much waits for it; None where Kafka would have to be asked, and the brokers are not known."""
        places = self.places() if places is None else places
        if not places:
            return None
        total = 0
        for place in places:
            waits = self._journal_lag(place) if isinstance(place, JournalPlace) else self._topic_lag(place)
            if waits is None:
                return None
            total += waits
        return total

    def _journal_lag(self, place: JournalPlace) -> int:
        return max(0, self._store.reader.next_offset(place.journal) - place.next)

    def _topic_lag(self, place: TopicPlace) -> int | None:
        if self._declared is None:
            return None
        cluster = self._declared.cluster()
        consumer = cluster.consumer(self._declared.group)
        try:
            identity, _ = cluster.describe(place.topic)
            known = place.offsets
            topic = cluster.extents(consumer, place.topic, identity, list(known))
        finally:
            consumer.close()
        return sum(max(0, high - known[number]) for number, (_, high) in topic.extents.items())

    def reset(self, to: str) -> dict[str, Any]:
        """Have it begin again, wherever it runs: with the first record or message that is there, or behind the last
        one. It takes the topic and the journal that have the name by then."""
        start = checked(to)
        for state in self.describe().states:
            record = FencedRecord(self._store, self._consumer, state.index)
            opened = record.open()
            if opened.checkpoint is None:
                continue
            place = _decoded(opened.checkpoint)
            if isinstance(place, TopicPlace):
                content = TOPIC_PLACE.encode(msgspec.structs.replace(place, id="", places=in_order({}), begin=start))
            else:
                content = JOURNAL_PLACE.encode(self._begun_anew(place, start))
            self._store.commit([record.replacing(content)])
        return {"to": to}

    def _begun_anew(self, place: JournalPlace, start: Start) -> JournalPlace:
        found = self._store.reader.whereabouts(place.journal)
        if found is None:
            raise NotFound(f"there is no journal {place.journal!r} that could be written again")
        at = found.first_offset if start == "earliest" else found.next_offset
        return msgspec.structs.replace(
            place, id="", number=found.number, created_ms=found.created_ms, next=at, begun=False
        )


def checked(to: str) -> Start:
    """`Invalid` unless a bridge can begin there."""
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    raise Invalid(f"a bridge begins again at 'earliest' or 'latest', not at {to!r}")


def _decoded(checkpoint: bytes) -> Place:
    if checkpoint.startswith(TOPIC_PLACE.head):
        return TOPIC_PLACE.decode(checkpoint)
    return JOURNAL_PLACE.decode(checkpoint)


def _progress(place: Place) -> dict[str, int]:
    return progress_of(place) if isinstance(place, TopicPlace) else {"written": place.written}


def _about(places: Sequence[Place]) -> dict[str, str]:
    if not places:
        return {}
    place = places[0]
    if isinstance(place, TopicPlace):
        return {"from": f"topic {place.topic}"}
    return {"from": f"journal {place.journal}", "to": f"topic {place.topic}", "next": str(place.next)}


def _state(found: ConsumerDescription) -> State:
    if found.paused:
        return State.PAUSED
    said = {state.status for state in found.states if state.holder}
    if State.FAILED in said:
        return State.FAILED
    return State.RUNNING if said else State.STOPPED
