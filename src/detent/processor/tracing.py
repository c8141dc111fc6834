"""Where messages come from, hop by hop, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from detent.errors import Corrupt, Invalid, NotFound
from detent.journal import Message
from detent.processor.declaration import JournalPlace
from detent.processor.provenance import Origin, Provenance, provenance_of

if TYPE_CHECKING:
    from detent.store import Store

LAST: Final = 1_000
"""Messages that a latency is taken from, unless told otherwise."""

HOPS_MAX: Final = 10_000
"""Messages that one trace shows: batches of batches have many ancestors."""

DEPTH_MAX: Final = 100
"""Hops that one trace goes back. No graph has so many, but a forged header may name itself."""


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A message, who wrote it, and what it was made from."""

    journal: str
    offset: int
    published_ms: int | None
    """When it was written; None if it is not there any more."""
    processor: str | None = None
    """Graph and processor; None for a message that came from outside."""
    key: str | None = None
    born_ms: int | None = None
    hop_ms: int | None = None
    """From the writing of its newest input to its own."""
    total_ms: int | None = None
    """From when the oldest message that had a part in it entered the graph."""
    inputs: list[Hop] = []
    more: int = 0
    """Inputs that are not shown, because there are too many."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages took from their source to a journal, in milliseconds."""

    messages: int
    median_ms: float
    p99_ms: float
    max_ms: float


def trace(stores: Mapping[str, Store], place: JournalPlace, offset: int) -> Hop:
    """A message with all that it was made from."""
    room = [HOPS_MAX]
    found = _read(stores, place, offset)
    if found is None:
        is_there = stores[place.store].reader.number(place.journal) is not None
        what = f"message {offset} in the journal" if is_there else "journal"
        raise NotFound(f"there is no {what} {str(place)!r}")
    return _hop(stores, place, offset, found, room)


def _hop(
    stores: Mapping[str, Store],
    place: JournalPlace,
    offset: int,
    message: Message | None,
    room: list[int],
    depth: int = 1,
) -> Hop:
    room[0] -= 1
    if message is None:
        return Hop(journal=str(place), offset=offset, published_ms=None)
    said = _said(message)
    if said is None:
        return Hop(journal=str(place), offset=offset, published_ms=message.published_ms, born_ms=message.published_ms)
    inputs = []
    for where, at in _each(said.inputs):
        if room[0] <= 0 or depth == DEPTH_MAX:
            break
        inputs.append(_hop(stores, where, at, _read(stores, where, at), room, depth + 1))
    times = [one.published_ms for one in inputs if one.published_ms is not None]
    return Hop(
        journal=str(place),
        offset=offset,
        published_ms=message.published_ms,
        processor=said.processor,
        key=said.key,
        born_ms=said.born_ms,
        hop_ms=message.published_ms - max(times) if times else None,
        total_ms=message.published_ms - said.born_ms,
        inputs=inputs,
        more=sum(max(0, one.last - one.first + 1) for one in said.inputs) - len(inputs),
    )


def _said(message: Message) -> Provenance | None:
    """What a message says of itself; nothing, if another program wrote a header of that name."""
    try:
        return provenance_of(message)
    except Corrupt:
        return None


def _each(origins: Sequence[Origin]) -> Iterator[tuple[JournalPlace, int]]:
    for one in origins:
        for at in range(one.first, one.last + 1):
            yield one.place, at


def _read(stores: Mapping[str, Store], place: JournalPlace, offset: int) -> Message | None:
    if place.store not in stores:
        return None
    try:
        return next(stores[place.store].journal(place.journal).read(offset, offset + 1), None)
    except (NotFound, Invalid):
        return None


def latency_of(stores: Mapping[str, Store], place: JournalPlace, last: int = LAST) -> Latency | None:
    """From the source to here, of the last messages."""
    found = stores[place.store].reader.whereabouts(place.journal)
    if found is None or found[1] == found[2]:
        return None
    start = max(found[1], found[2] - last)
    took = []
    for message in stores[place.store].journal(place.journal).read(start, found[2]):
        said = _said(message)
        took.append(0 if said is None else message.published_ms - said.born_ms)
    took.sort()
    return Latency(
        messages=len(took),
        median_ms=took[len(took) // 2],
        p99_ms=took[min(len(took) - 1, len(took) * 99 // 100)],
        max_ms=took[-1],
    )
