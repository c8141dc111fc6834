"""Reading journals with Spark: what the driver plans, and what each task reads, straight from the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from detent import patterns
from detent.errors import Invalid, NotFound
from detent.remote import server_address
from detent.spark.extents import ReadJournals, extents_of
from detent.spark.idle import IdleStream, has_requests
from detent.spark.lives import StoreLife
from detent.spark.opened import opened
from detent.spark.options import FormatOptions
from detent.spark.places import EARLIEST, LATEST, OffsetPlaces
from detent.spark.planned import StreamPlans
from detent.spark.pushdown import Pushed
from detent.spark.ranges import Offsets, Range, between, cut, limited, ordered
from detent.spark.rows import Piece, choose, gathered, rows_of

BEHIND_S: Final = 5.0
"""How long a task waits for what was planned to appear in the bucket that it reads."""

BEHIND_STEP_S: Final = 0.02

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
    "columns",
    "readerName",
    "planName",
    "server",
    "filterPushdown",
)


@dataclass(frozen=True)
class JournalReadSettings:
    """The options of a read, checked."""

    url: str
    journals: tuple[str, ...]
    start: OffsetPlaces
    end: OffsetPlaces
    rows_max: int | None
    bytes_max: int | None
    partitions_min: int
    fail_on_loss: bool
    raw: bool
    columns: tuple[str, ...]
    reader_name: str | None
    owner_url: str
    pushdown: bool
    plan_name: str | None = None

    @property
    def asked_url(self) -> str:
        """Where it is asked what there is: the server, if there is one, which makes no request for that."""
        return self.owner_url if server_address(self.owner_url) is not None else self.url

    @classmethod
    def of(cls, given: Mapping[str, str]) -> JournalReadSettings:
        options = FormatOptions(given, OPTIONS, "the format detent")
        names = tuple(
            name.strip() for name in options.required("journals", '"orders", "orders,refunds", "shop/*"').split(",")
        )
        if not all(names):
            raise Invalid(f"the option journals has an empty name in it: {options.text('journals')!r}")
        raw = options.choice("isolation", ("committed", "uncommitted")) == "uncommitted"
        return cls(
            url=options.url(),
            journals=names,
            start=OffsetPlaces("startingOffsets", options.text("startingOffsets") or EARLIEST, EARLIEST),
            end=OffsetPlaces("endingOffsets", options.text("endingOffsets") or LATEST, LATEST),
            rows_max=options.number("maxMessagesPerTrigger"),
            bytes_max=options.size("maxBytesPerTrigger"),
            partitions_min=options.number("minPartitions", 1) or 1,
            fail_on_loss=options.truth("failOnDataLoss", True),
            raw=raw,
            columns=choose(options.text("columns"), headers=options.truth("includeHeaders", False), raw=raw),
            reader_name=options.text("readerName"),
            owner_url=options.owner_url(),
            # Never by itself: Spark 4.3 keeps a filtered plan and gives it to the next query on the same DataFrame.
            pushdown=options.truth("filterPushdown", False),
            plan_name=options.text("planName"),
        )


class JournalPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_ranges(settings: JournalReadSettings, ranges: Sequence[Range], pushed: Pushed | None = None) -> Iterator[Any]:
    """What a task does: its ranges as Arrow batches, in order, none missing."""
    for pieces in gathered(_stored(settings, ranges)):
        rows = rows_of(pieces, settings.columns)
        yield rows if pushed is None else pushed.keep(rows)


def _stored(settings: JournalReadSettings, ranges: Sequence[Range]) -> Iterator[Piece]:
    reader = opened(settings.url, "reader").reader
    read = reader.uncommitted if settings.raw else reader.committed
    for piece in ranges:
        _await(settings, piece)
        start, end = _present(settings, piece)
        for first, batch in read(piece.journal, start, end) if start < end else ():
            yield Piece(piece.journal, first, batch)


def _await(settings: JournalReadSettings, piece: Range) -> None:
    """Return when this process sees what was planned. A reader of a bucket is a little behind the owner that was asked
    for the plan. What is not there then is missing, and the read says so."""
    if not has_requests(settings.url):
        return
    deadline = time.monotonic() + BEHIND_S
    with contextlib.suppress(NotFound):
        while extents_of(settings.url, raw=settings.raw).extent(piece.journal)[1] < piece.end:
            if time.monotonic() > deadline:
                return
            time.sleep(BEHIND_STEP_S)


def _present(settings: JournalReadSettings, piece: Range) -> tuple[int, int]:
    """The part of a range that is there: all of it, unless loss is allowed."""
    if settings.fail_on_loss:
        return piece.start, piece.end
    try:
        first, end = extents_of(settings.url, raw=settings.raw).extent(piece.journal)
    except NotFound:
        return piece.start, piece.start
    return max(first, piece.start), min(end, piece.end)


# -- batch ------------------------------------------------------------------------------------------------------


class JournalBatchReader(DataSourceReader):
    """One read from `startingOffsets` to `endingOffsets`."""

    def __init__(self, settings: JournalReadSettings) -> None:
        if settings.reader_name is not None:
            raise Invalid("readerName is an option of readStream: a batch read starts where startingOffsets says")
        self._settings = settings
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        journals = ReadJournals(settings)
        start, end = journals.place(settings.start), journals.place(settings.end)
        journals.check(start)
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


def batch_reader(settings: JournalReadSettings) -> JournalBatchReader:
    """The reader that was asked for."""
    return FilteringBatchReader(settings) if settings.pushdown else JournalBatchReader(settings)


# -- stream -----------------------------------------------------------------------------------------------------


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of committed messages. On the driver it plans; a copy of it in each task only reads."""

    def __init__(self, settings: JournalReadSettings) -> None:
        self._settings = settings
        self._final: Offsets | None = None
        self._ends: Offsets = {}
        self._plans = StreamPlans(settings)
        self._life = StoreLife(settings)

    @cached_property
    def _idle(self) -> IdleStream | None:
        """What is known of new messages without a look; None where a look costs nothing."""
        settings = self._settings
        if server_address(settings.owner_url) is None:
            return IdleStream() if has_requests(settings.url) else None
        (name, *others) = settings.journals
        if others or patterns.is_pattern(name) or settings.raw:
            return IdleStream()
        store = opened(settings.owner_url, "client")
        return IdleStream(lambda start, timeout_ms: store.wait(name, start.get(name, 0), timeout_ms))

    @property
    def _journals(self) -> ReadJournals:
        return ReadJournals(self._settings)

    def initialOffset(self) -> Offsets:
        if not self._settings.start.is_fixed and self._settings.reader_name is None:
            # Not refused any earlier: what a constructor raises here reaches the user under another error of Spark's.
            raise Invalid(
                "a stream that starts at latest, or at a time, needs the option readerName: Spark does not log where "
                "its first batch starts, so the store keeps it under that name"
            )
        start = self._journals.place(self._settings.start)
        if self._settings.reader_name is None:
            self._plans.begin(start)
            return self._life.mark(start)
        pinned = ordered(opened(self._settings.owner_url, "client").pin(self._settings.reader_name, start))
        if pinned == start:  # otherwise it may be of journals that are gone
            self._plans.begin(pinned)
        return self._life.mark(pinned)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read to where the journals end now, or to `endingOffsets` if that is before."""
        journals = self._journals
        upto = journals.place(self._settings.end)
        self._final = {name: min(end, upto[name]) for name, end in journals.ends().items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._settings.rows_max is not None:
            return ReadMaxRows(self._settings.rows_max)
        if self._settings.bytes_max is not None:
            return ReadMaxBytes(self._settings.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        known = self._life.journals_of(start)
        if self._idle is None:
            return self._life.mark(self._latest(known, limit))
        return self._life.mark(self._idle.end_after(known, lambda: self._latest(known, limit)))

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        journals = self._journals
        ends = self._ends = journals.ends()
        journals.check(start)
        if self._final is not None:
            ends = {name: min(end, self._final[name]) for name, end in ends.items() if name in self._final}
        reach = {name: max(end, start.get(name, 0)) for name, end in ends.items()}
        end = limited(start, reach, self._rows_of(limit, between(start, reach)))
        return self._plans.settle(journals, start, end, repr(limit))

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
        """For reports, right after a look: where it found the ends, unless Spark has not looked."""
        return self._ends or self._journals.ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        start, end = self._life.journals_of(start), self._life.journals_of(end)
        self._plans.before_run(start, end, repr(self.getDefaultReadLimit()))
        return [JournalPartition(part) for part in cut(between(start, end), self._settings.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, JournalPartition)
        return read_ranges(self._settings, partition.ranges)
