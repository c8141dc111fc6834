"""Reading journals with Spark: what the driver plans, and what each task reads, straight from the store."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from detent.errors import Invalid, NotFound
from detent.journal import JournalReader
from detent.spark.opened import opened
from detent.spark.options import Options
from detent.spark.places import EARLIEST, LATEST, Places
from detent.spark.pushdown import Pushed
from detent.spark.ranges import Offsets, Range, between, cut, limited, ordered
from detent.spark.rows import rows_of

NAMES_SHOWN_MAX: Final = 10

OPTIONS: Final = (
    "journals",
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "isolation",
    "includeHeaders",
    "readerName",
    "server",
    "filterPushdown",
)

logger = logging.getLogger("detent.spark")


@dataclass(frozen=True)
class ReadSettings:
    """The options of a read, checked."""

    url: str
    journals: tuple[str, ...]
    start: Places
    end: Places
    rows_max: int | None
    bytes_max: int | None
    partitions_min: int
    fail_on_loss: bool
    raw: bool
    headers: bool
    reader_name: str | None
    owner_url: str
    pushdown: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadSettings:
        options = Options(given, OPTIONS, "the format detent")
        names = tuple(
            name.strip() for name in options.required("journals", '"orders", "orders,refunds", "shop/*"').split(",")
        )
        if not all(names):
            raise Invalid(f"the option journals has an empty name in it: {options.text('journals')!r}")
        return cls(
            url=options.url(),
            journals=names,
            start=Places("startingOffsets", options.text("startingOffsets") or EARLIEST, EARLIEST),
            end=Places("endingOffsets", options.text("endingOffsets") or LATEST, LATEST),
            rows_max=options.number("maxMessagesPerTrigger"),
            bytes_max=options.size("maxBytesPerTrigger"),
            partitions_min=options.number("minPartitions", 1) or 1,
            fail_on_loss=options.truth("failOnDataLoss", True),
            raw=options.choice("isolation", ("committed", "uncommitted")) == "uncommitted",
            headers=options.truth("includeHeaders", False),
            reader_name=options.text("readerName"),
            owner_url=options.owner_url(),
            # Never by itself: Spark 4.3 keeps a filtered plan and gives it to the next query on the same DataFrame.
            pushdown=options.truth("filterPushdown", False),
        )


class JournalPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges


class Journals:
    """The journals that a read is about, seen from the driver."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._extents = _Positions(settings.url) if settings.raw else _Committed(settings.url)

    def names(self) -> list[str]:
        """The journals that are named, and all that a pattern matches now."""
        known = self._extents.reader.names()
        found: set[str] = set()
        for name in self._settings.journals:
            if any(mark in name for mark in "*?["):
                found.update(fnmatch.filter(known, name))
            elif name in known:
                found.add(name)
            else:
                raise NotFound(f"there is no journal {name!r} (option journals); {_instead(name, known)}")
        return sorted(found)

    def place(self, places: Places) -> Offsets:
        """Where a read begins or ends."""
        names = self.names()
        places.check_names(names)
        return ordered(places.find(names, self._extents))

    def ends(self) -> Offsets:
        """Where each journal ends now."""
        return {name: self._extents.extent(name)[1] for name in self.names()}

    def check(self, start: Mapping[str, int], ends: Mapping[str, int]) -> None:
        """Refuse to go on where messages are missing, unless the user said to."""
        for name, offset in start.items():
            first, end = self._extents.extent(name) if name in ends else (0, 0)
            if not first <= offset <= end:
                _lost(self._settings, name, offset, first, end)

    def average_bytes(self, names: Iterable[str]) -> int:
        """About how many bytes a message takes."""
        infos = [self._extents.reader.info(name) for name in names]
        stored = sum(info.block_bytes + info.fragment_bytes for info in infos)
        return max(1, stored // max(1, sum(info.messages for info in infos)))


class _Committed:
    """The committed messages of a store's journals."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def reader(self) -> JournalReader:
        return opened(self._url, "reader").reader

    def extent(self, name: str) -> tuple[int, int]:
        return self.reader.extent(name)

    def offset_at(self, name: str, time_ms: int) -> int:
        return self.reader.offset_at(name, time_ms)


class _Positions(_Committed):
    """All stored rows of a store's journals."""

    def extent(self, name: str) -> tuple[int, int]:
        info = self.reader.info(name)
        return info.first_position, info.next_position

    def offset_at(self, name: str, time_ms: int) -> int:
        del name, time_ms
        raise Invalid("startingOffsets by time needs isolation=committed: stored rows have no index of times")


def _instead(name: str, known: list[str]) -> str:
    if not known:
        return f"the store has none: append to it first, or create it with `detent journal create URL {name}`"
    shown = ", ".join(known[:NAMES_SHOWN_MAX]) + (", …" if len(known) > NAMES_SHOWN_MAX else "")
    return f"the store has {shown}. A pattern such as {name}* waits for journals that come later"


def _lost(settings: ReadSettings, name: str, offset: int, first: int, end: int) -> None:
    """Messages that should be read are gone."""
    what = (
        f"offset {offset} of the journal {name!r} is not there: it holds [{first}, {end}). "
        "It was trimmed, or deleted and made anew"
    )
    if settings.fail_on_loss:
        raise NotFound(f"{what}. To go on with what is there, set the option failOnDataLoss to false")
    logger.warning("%s; going on with what is there (failOnDataLoss is false)", what)


def read_ranges(settings: ReadSettings, ranges: Sequence[Range], pushed: Pushed | None = None) -> Iterator[Any]:
    """What a task does: its ranges as Arrow batches, in order, none missing."""
    reader = opened(settings.url, "reader").reader
    read = reader.uncommitted if settings.raw else reader.committed
    for piece in ranges:
        start, end = _present(settings, reader, piece)
        for first, batch in read(piece.journal, start, end) if start < end else ():
            rows = rows_of(piece.journal, first, batch, headers=settings.headers, raw=settings.raw)
            yield rows if pushed is None else pushed.keep(rows)


def _present(settings: ReadSettings, reader: JournalReader, piece: Range) -> tuple[int, int]:
    """The part of a range that is there: all of it, unless loss is allowed."""
    if settings.fail_on_loss:
        return piece.start, piece.end
    extents = _Positions(settings.url) if settings.raw else _Committed(settings.url)
    if reader.number(piece.journal) is None:
        return piece.start, piece.start
    first, end = extents.extent(piece.journal)
    return max(first, piece.start), min(end, piece.end)


# -- batch ------------------------------------------------------------------------------------------------------


class JournalBatchReader(DataSourceReader):
    """One read from `startingOffsets` to `endingOffsets`."""

    def __init__(self, settings: ReadSettings) -> None:
        if settings.reader_name is not None:
            raise Invalid("readerName is an option of readStream: a batch read starts where startingOffsets says")
        self._settings = settings
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        journals = Journals(settings)
        start, end = journals.place(settings.start), journals.place(settings.end)
        journals.check(start, end)
        ranges = self._pushed.narrow(between(start, end))
        found: list[InputPartition] = [JournalPartition(part) for part in cut(ranges, settings.partitions_min)]
        return found or [JournalPartition([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, JournalPartition)
        return read_ranges(self._settings, partition.ranges, self._pushed if self._pushed.times else None)


class FilteringBatchReader(JournalBatchReader):
    """The same, for reads that ask for it: takes filters on the journal, the offset and the time.

    Spark makes every read fail whose reader takes filters while `spark.sql.python.filterPushdown.enabled` is off, so
    this is a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return [one for one in filters if not self._pushed.take(one)]


def batch_reader(settings: ReadSettings) -> JournalBatchReader:
    """The reader that was asked for."""
    return FilteringBatchReader(settings) if settings.pushdown else JournalBatchReader(settings)


# -- stream -----------------------------------------------------------------------------------------------------


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of committed messages. On the driver it plans; a copy of it in each task only reads."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._final: Offsets | None = None

    @property
    def _journals(self) -> Journals:
        return Journals(self._settings)

    def initialOffset(self) -> Offsets:
        if not self._settings.start.is_fixed and self._settings.reader_name is None:
            # Not refused any earlier: what a constructor raises here reaches the user under another error of Spark's.
            raise Invalid(
                "a stream that starts at latest, or at a time, needs the option readerName: Spark does not log where "
                "its first batch starts, so the store keeps it under that name"
            )
        start = self._journals.place(self._settings.start)
        if self._settings.reader_name is None:
            return start
        return ordered(opened(self._settings.owner_url, "client").pin(self._settings.reader_name, start))

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = self._journals.ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._settings.rows_max is not None:
            return ReadMaxRows(self._settings.rows_max)
        if self._settings.bytes_max is not None:
            return ReadMaxBytes(self._settings.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        journals = self._journals
        ends = journals.ends()
        journals.check(start, ends)
        if self._final is not None:
            ends = {name: min(end, self._final[name]) for name, end in ends.items() if name in self._final}
        reach = {name: max(end, start.get(name, 0)) for name, end in ends.items()}
        return limited(start, reach, self._rows_of(limit, between(start, reach)))

    def _rows_of(self, limit: ReadLimit, waiting: list[Range]) -> int:
        """How many messages a limit is. Spark passes one limit; the other, if the user gave both, is ours to keep."""
        rows = sum(piece.rows for piece in waiting)
        if isinstance(limit, ReadAllAvailable) or not rows:
            return rows
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._settings.bytes_max
        if size is not None:
            rows = min(rows, max(1, size // self._journals.average_bytes(piece.journal for piece in waiting)))
        return rows

    def reportLatestOffset(self) -> Offsets:
        return self._journals.ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        return [JournalPartition(part) for part in cut(between(start, end), self._settings.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, JournalPartition)
        return read_ranges(self._settings, partition.ranges)
