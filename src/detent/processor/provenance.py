"""Where a message comes from: a header that every output carries, and what can be asked of it.

The header `detent` is text: ``1 GRAPH/PROCESSOR SERIES-NUMBER BORN_MS INPUT...``, where each input is ``PLACE#OFFSET``
or, in a batch, ``PLACE#FIRST-LAST``. BORN_MS is when the oldest message that had a part in it entered the graph; 0 if
it was this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from detent.errors import Corrupt
from detent.journal import Message
from detent.journal.columns import Rows
from detent.processor.declaration import JournalPlace, place

HEADER: Final = "detent"
VERSION: Final = "1"
INPUTS_SHOWN_MAX: Final = 256
"""Inputs that a header names: a batch of many journals is cut, so that headers stay within their limit."""


_DIGITS_MAX: Final = 18
"""Of a number in a header: any program can write one, and Python refuses to read thousands of digits."""


class Origin(NamedTuple):
    """Messages that an output was made from: those of a place from `first` to `last`."""

    place: JournalPlace
    first: int
    last: int


class Provenance(NamedTuple):
    """What an output says of itself."""

    processor: str
    """Graph and processor, as in ``shop/total``."""
    key: str
    """The delivery key of the step that made it."""
    born_ms: int
    inputs: tuple[Origin, ...]


def provenance_of(message: Message) -> Provenance | None:
    """Where a message comes from; None for one that no processor wrote."""
    text = message.headers.get(HEADER)
    if text is None:
        return None
    try:
        version, processor, key, born, *inputs = text.split(" ")
        if version != VERSION:
            raise ValueError(f"version {version}")
        return Provenance(
            processor, key, int(born) or message.published_ms, tuple(_origin(one) for one in inputs if one)
        )
    except ValueError as error:
        raise Corrupt(
            f"the header {HEADER!r} of offset {message.offset} of {message.journal!r} is not one that a processor has "
            f"written: {error}"
        ) from error


def _origin(text: str) -> Origin:
    where, _, offsets = text.partition("#")
    first, _, last = offsets.partition("-")
    return Origin(place(where), int(first), int(last or first))


def born_ms(messages: Iterable[Message]) -> int:
    """When the oldest of these, or of what they were made from, entered a graph."""
    return min(
        (
            message.published_ms
            if (text := message.headers.get(HEADER)) is None
            else born_of(text, message.published_ms)
            for message in messages
        ),
        default=0,
    )


def born_of(text: str, published_ms: int) -> int:
    """When the oldest part of a message with this header entered a graph. A foreign header says nothing."""
    parts = text.split(" ", 4)
    born = _number(parts[3]) if len(parts) > 3 and len(parts[3]) <= _DIGITS_MAX else 0
    return born or published_ms  # 0: it was born there


@lru_cache(1024)
def _number(text: str) -> int:
    """Messages that follow each other were mostly born at the same time, which is read once."""
    return int(text) if text.isdecimal() else 0


def origin_of(message: Message) -> str:
    """What the header of an output says behind its key, where it is made from one message."""
    text = message.headers.get(HEADER)
    born = message.published_ms if text is None else born_of(text, message.published_ms)
    return f"{born} {message.journal}#{message.offset}"


def origins_of(rows: Rows) -> list[str]:
    """The same for each of these."""
    at, texts = rows.journal, rows.values(HEADER)
    times = [time if text is None else born_of(text, time) for text, time in zip(texts, rows.times, strict=True)]
    return [f"{born} {at}#{offset}" for offset, born in enumerate(times, rows.offset)]


def named_inputs(messages: Iterable[Message]) -> str:
    """The inputs of a step, as the header has them: the messages of a journal that follow each other are one entry,
    also where those of several journals alternate, as in a batch of a join."""
    runs: list[list[Any]] = []
    newest: dict[str, list[Any]] = {}
    for message in messages:
        run = newest.get(message.journal)
        if run is not None and run[2] == message.offset - 1:
            run[2] = message.offset
        else:
            newest[message.journal] = run = [message.journal, message.offset, message.offset]
            runs.append(run)
    shown = runs[:INPUTS_SHOWN_MAX]
    return " ".join(f"{at}#{first}" if first == last else f"{at}#{first}-{last}" for at, first, last in shown)
