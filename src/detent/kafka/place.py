"""How far a bridge is: what it keeps, what it goes on from, and what it refuses. Everything here is pure.

A bridge goes on only from a place that is certainly its own. Where records were deleted before they were read, where a
topic or a journal is another one of the same name, or where Kafka has forgotten how far it was, it refuses, and says
which word of `accept` lets it go on, and with what consequence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from detent.errors import Conflict, Invalid, Unavailable
from detent.stream.record import Sealing

Start = Literal["earliest", "latest"]

GAP: Final = "gap"
NEW_TOPIC: Final = "new-topic"
COMPACTED: Final = "compacted"
LOST_MARK: Final = "lost-mark"

ACCEPTED: Final = {
    GAP: "records that the topic has deleted before they were read are left out",
    NEW_TOPIC: "another topic of the same name takes the place of the one that was used",
    COMPACTED: "of a compacted topic, only the records are read that are still there",
    LOST_MARK: "Kafka has forgotten how far the bridge was: it goes on from what Detent knows",
}
"""What a bridge can be told to accept."""

PLACE_BYTES_MAX: Final = 1 << 20
"""Of 50,000 partitions: it is written with every batch."""


class Topic(NamedTuple):
    """A topic as it is now: its id, which another one of that name does not have, and of each partition the first
    offset and the next one."""

    name: str
    id: str
    extents: Mapping[int, tuple[int, int]]


class TopicPlace(msgspec.Struct, frozen=True):
    """How far a shard of a bridge has read a topic."""

    topic: str
    id: str
    places: tuple[tuple[int, int], ...]
    """Of each partition the offset after the last record that was taken; partitions in order."""

    taken: int = 0
    absent: int = 0
    """Offsets without a record, below what was taken: ends of transactions, and what was aborted or compacted away."""

    skipped: int = 0
    """Offsets that were deleted before they were read, and accepted as lost."""

    begin: Start = "earliest"
    """Where a bridge that was reset begins: it has no id until it runs next."""

    letters: int = 0
    """Records that a message could not hold, and that are dead letters instead."""

    @property
    def offsets(self) -> dict[int, int]:
        """The same, by partition."""
        return dict(self.places)


class JournalPlace(msgspec.Struct, frozen=True):
    """What Detent knows of how far a journal is in a topic. Kafka's mark may be further, and never less far."""

    journal: str
    number: int
    created_ms: int
    topic: str
    id: str
    """Of the topic; empty if the bridge was reset and has not run since. Then a mark in Kafka says nothing."""

    group: str
    next: int
    begun: bool = False
    """Kafka has had a mark. Without one from then on, it was forgotten."""

    written: int = 0


class Mark(NamedTuple):
    """How far Kafka says that a journal is: the offset of the group, and the text beside it."""

    next: int
    text: str


TOPIC_PLACE: Final = Sealing(TopicPlace, "the place of a bridge from Kafka", b"\x4b\x01", PLACE_BYTES_MAX)
JOURNAL_PLACE: Final = Sealing(JournalPlace, "the place of a bridge to Kafka", b"\x4b\x02", PLACE_BYTES_MAX)


# -- inward -----------------------------------------------------------------------------------------------------------


def resumed(place: TopicPlace | None, topic: Topic, start: Start, accept: Collection[str]) -> TopicPlace:
    """Where a shard goes on, with the partitions that it has now. `Conflict` where that is not certain."""
    if place is None or not place.id:
        start = start if place is None else place.begin
        places = in_order({one: low if start == "earliest" else high for one, (low, high) in topic.extents.items()})
        if place is None:
            return TopicPlace(topic.name, topic.id, places)
        return msgspec.structs.replace(place, topic=topic.name, id=topic.id, places=places)
    if is_other(place, topic):
        _accepted(
            NEW_TOPIC,
            accept,
            f"the topic {place.topic!r} was read with the id {place.id}, and {topic.name!r} has the id {topic.id}: it "
            "was deleted and made anew, or it is another topic or cluster",
            "to read the new one from its beginning",
        )
        lows = {number: low for number, (low, _) in topic.extents.items()}
        return msgspec.structs.replace(place, topic=topic.name, id=topic.id, places=in_order(lows), begin="earliest")
    return _moved(place, topic, accept)


def is_other(place: TopicPlace, topic: Topic) -> bool:
    """Whether a topic is not the one that was read."""
    return (place.topic, place.id) != (topic.name, topic.id)


def _moved(place: TopicPlace, topic: Topic, accept: Collection[str]) -> TopicPlace:
    """The place in the same topic. A partition that came later is read from its beginning. One that is not named any
    more is not forgotten: Kafka removes none, and a broker that is behind names fewer."""
    known, offsets, skipped = place.offsets, {}, 0
    if unnamed := sorted(known.keys() - topic.extents.keys()):
        raise Unavailable(
            f"Kafka does not name partition {unnamed[0]} of {topic.name!r}, which was read before: a broker is behind, "
            "and is asked again"
        )
    for number, (low, high) in topic.extents.items():
        at = known.get(number, low)
        if at > high:
            raise Conflict(
                f"partition {number} of {topic.name!r} was read up to offset {at}, and ends at {high}: Kafka has lost "
                "records that it had committed. Reset the bridge to go on: `detent reset ... --to earliest` reads what "
                "is there once more, `--to latest` leaves it out"
            )
        if at < low:
            _accepted(
                GAP,
                accept,
                f"partition {number} of {topic.name!r} was read up to offset {at}, and begins at {low}: {low - at} "
                "offsets were deleted, by retention or by hand, before they were read",
                f"to go on at {low} without them",
            )
            skipped += low - at
            at = low
        offsets[number] = at
    return msgspec.structs.replace(place, places=in_order(offsets), skipped=place.skipped + skipped)


def taken(place: TopicPlace, offsets: Mapping[int, int], count: int, letters: int = 0) -> TopicPlace:
    """The place after `count` records, the last of which are before these offsets; `letters` of them are dead
    letters."""
    before = place.offsets
    passed = sum(after - before[number] for number, after in offsets.items())
    return msgspec.structs.replace(
        place,
        places=in_order({**before, **offsets}),
        taken=place.taken + count - letters,
        absent=place.absent + passed - count,
        letters=place.letters + letters,
    )


def in_order(offsets: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Offsets by partition, as they are kept."""
    return tuple(sorted(offsets.items()))


# -- outward ----------------------------------------------------------------------------------------------------------


def mark_text(place: JournalPlace) -> str:
    """What stands beside the mark in Kafka: which journal it is of."""
    return f"detent journal={place.journal} number={place.number} created={place.created_ms}"


def decided(place: JournalPlace, mark: Mark | None, topic: Topic, accept: Collection[str]) -> JournalPlace:
    """Where a journal goes on, after the older producer was fenced. `Conflict` where that is not certain."""
    if not place.id:
        return msgspec.structs.replace(place, topic=topic.name, id=topic.id, begun=False)
    if (place.topic, place.id) != (topic.name, topic.id):
        _accepted(
            NEW_TOPIC,
            accept,
            f"the messages went to the topic {place.topic!r} with the id {place.id}, and {topic.name!r} has the id "
            f"{topic.id}: it was deleted and made anew, or it is another topic or cluster",
            f"to go on there with message {place.next}; reset the bridge to write all messages again",
        )
        return msgspec.structs.replace(place, topic=topic.name, id=topic.id, begun=False)
    if mark is None:
        return place if not place.begun else _without_mark(place, accept)
    if mark.text != mark_text(place):
        raise Conflict(
            f"the offset of the group {place.group!r} is not of this bridge: it says {mark.text!r} and not "
            f"{mark_text(place)!r}. The journal was made anew, or another bridge or tool has written it. Give the "
            "bridge a name of its own, or delete the group once you know which messages are in the topic"
        )
    if mark.next < place.next:
        raise Conflict(
            f"Kafka says that the journal {place.journal!r} is in the topic up to {mark.next}, and Detent knows that "
            f"it was up to {place.next}: the group {place.group!r} was set back, or Kafka has lost what it had "
            f"committed. Look which messages the topic has (their headers say), and reset the bridge"
        )
    return msgspec.structs.replace(place, next=mark.next, begun=True)


def _without_mark(place: JournalPlace, accept: Collection[str]) -> JournalPlace:
    _accepted(
        LOST_MARK,
        accept,
        f"Kafka has no offset of the group {place.group!r}, and Detent knows that messages up to {place.next} of "
        f"{place.journal!r} are in the topic: the offset has expired (offsets.retention.minutes), or was deleted. "
        f"The batch after {place.next} may be in the topic too: look at the header detent.offset of its last records",
        f"to go on with message {place.next}",
    )
    return msgspec.structs.replace(place, begun=False)


# -- words ------------------------------------------------------------------------------------------------------------


def check_accept(accept: Collection[str]) -> frozenset[str]:
    """`Invalid` unless these are words of `ACCEPTED`."""
    words = {accept} if isinstance(accept, str) else set(accept)
    if unknown := sorted(words - ACCEPTED.keys()):
        raise Invalid(f"a bridge can accept {', '.join(ACCEPTED)}, and not {unknown[0]!r}")
    return frozenset(words)


def refuse_compaction(topic: str, accept: Collection[str]) -> None:
    """A compacted topic forgets records by itself."""
    _accepted(
        COMPACTED,
        accept,
        f"the topic {topic!r} is compacted: Kafka deletes a record once its key has a newer one, and a bridge that is "
        "behind does not see it",
        "to take what is there",
    )


def _accepted(word: str, accept: Collection[str], what: str, then: str) -> None:
    if word not in accept:
        raise Conflict(f"{what}. Run it with --accept {word} (accept=[{word!r}]) {then}")
