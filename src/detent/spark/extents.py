"""The journals that a read is about, as the driver sees them: which there are, and where each begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from detent import patterns
from detent.errors import Invalid, NotFound
from detent.journal import JournalReader
from detent.spark.opened import opened
from detent.spark.places import OffsetPlaces
from detent.spark.ranges import Offsets, ordered

if TYPE_CHECKING:
    from detent.spark.journal_reading import JournalReadSettings

NAMES_SHOWN_MAX: Final = 10

Extent = tuple[int, int]
"""The first offset that a journal has, and the next one that it will get."""

logger = logging.getLogger("detent.spark")


class ReadJournals:
    """The journals of one read at one moment: everything is looked up once, and then the same for all questions."""

    def __init__(self, settings: JournalReadSettings) -> None:
        self._settings = settings
        self._extents = extents_of(settings.asked_url, raw=settings.raw)

    @cached_property
    def found(self) -> dict[str, Extent]:
        """The journals that are named, and all that a pattern matches now, by name."""
        found: dict[str, Extent] = {}
        for name in self._settings.journals:
            if patterns.is_pattern(name):
                below = self._extents.all(patterns.fixed_start(name))
                found.update({one: below[one] for one in patterns.matching(name, below)})
            else:
                found[name] = self._named(name)
        return {name: found[name] for name in sorted(found)}

    def _named(self, name: str) -> Extent:
        try:
            return self._extents.extent(name)
        except NotFound:
            known = self._extents.reader.names()
            raise NotFound(f"there is no journal {name!r} (option journals); {_instead(name, known)}") from None

    def place(self, places: OffsetPlaces) -> Offsets:
        """Where a read begins or ends."""
        places.check_names(self.found)
        return ordered(places.find(self.found, self._extents.offset_at))

    def ends(self) -> Offsets:
        """Where each journal ends now."""
        return {name: end for name, (_, end) in self.found.items()}

    def number(self, name: str) -> int | None:
        """The journal's number, which another one of the same name does not have."""
        return self._extents.reader.number(name)

    def check(self, start: Mapping[str, int]) -> None:
        """Refuse to go on where messages are missing, unless the user said to. Earlier releases have read the package's
        own journals for patterns; these are not waited for any more."""
        for name, offset in start.items():
            if name not in self.found and patterns.is_internal(name):
                continue
            first, end = self.found.get(name, (0, 0))
            if not first <= offset <= end:
                _lost(self._settings, name, offset, first, end)

    def average_bytes(self, names: Iterable[str]) -> int:
        """About how many bytes a message takes."""
        infos = [self._extents.reader.info(name) for name in names]
        stored = sum(info.block_bytes + info.fragment_bytes for info in infos)
        return max(1, stored // max(1, sum(info.messages for info in infos)))


def extents_of(url: str, *, raw: bool) -> Committed:
    """Where the journals of a store begin and end: their committed messages, or all stored rows."""
    reader = opened(url, "reader").reader
    return Positions(reader) if raw else Committed(reader)


class Committed:
    """The committed messages of a store's journals."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader

    def extent(self, name: str) -> Extent:
        return self.reader.extent(name)

    def all(self, prefix: str) -> dict[str, Extent]:
        """Those of all journals whose names start with `prefix`."""
        return self.reader.extents(prefix)

    def offset_at(self, name: str, time_ms: int) -> int:
        return self.reader.offset_at(name, time_ms)


class Positions(Committed):
    """All stored rows of a store's journals."""

    def extent(self, name: str) -> Extent:
        info = self.reader.info(name)
        return info.first_position, info.next_position

    def all(self, prefix: str) -> dict[str, Extent]:
        return {name: self.extent(name) for name in self.reader.names(prefix)}

    def offset_at(self, name: str, time_ms: int) -> int:
        del name, time_ms
        raise Invalid("startingOffsets by time needs isolation=committed: stored rows have no index of times")


def _instead(name: str, known: list[str]) -> str:
    if not known:
        return f"the store has none: append to it first, or create it with `detent journal create URL {name}`"
    shown = ", ".join(known[:NAMES_SHOWN_MAX]) + (", …" if len(known) > NAMES_SHOWN_MAX else "")
    return f"the store has {shown}. A pattern such as {name}* waits for journals that come later"


def _lost(settings: JournalReadSettings, name: str, offset: int, first: int, end: int) -> None:
    """Messages that should be read are gone."""
    what = (
        f"offset {offset} of the journal {name!r} is not there: it holds [{first}, {end}). "
        "It was trimmed, or deleted and made anew"
    )
    if settings.fail_on_loss:
        raise NotFound(f"{what}. To go on with what is there, set the option failOnDataLoss to false")
    logger.warning("%s; going on with what is there (failOnDataLoss is false)", what)
