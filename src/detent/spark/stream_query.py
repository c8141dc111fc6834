"""One stream as a query of Spark: started, looked at, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from detent.spark.once_batch import EngineSink, ExternalSink, MarkPlace, Share
from detent.spark.once_delta import delta_sink
from detent.spark.once_engine import to_journal, to_queue
from detent.spark.once_iceberg import iceberg_sink
from detent.spark.once_writing import Sink, once
from detent.spark.pipeline_stream import Custom, JournalEnd, Output, QueueEnd, Stream, TableEnd
from detent.spark.store_place import StorePlace
from detent.spark.stream_frames import (
    Frames,
    frames_of,
    joined,
    messages_of,
    published_of,
    rejected_of,
    result_of,
    rows_of,
)
from detent.store import Store
from detent.tables.marks import BatchKey
from detent.transaction import Transaction

LOOK_S: Final = 0.02
"""How often a query that is about to stop is asked whether its batch has ended."""


class RunningQuery:
    """A query of Spark for one stream."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen: tuple[int, bool] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return bool(self._query.isActive)

    def error(self) -> BaseException | None:
        """Why it ended, if it failed."""
        return self._query.exception()

    def progress(self) -> Iterator[dict[str, Any]]:
        """What Spark has reported since the last time, oldest first."""
        last = self._query.lastProgress
        if last is None or self._place(last) == self._seen:
            return
        missed = self._seen is None or last.batchId > self._seen[0] + self._seen[1]
        for one in self._query.recentProgress if missed else [last]:
            place = self._place(one)
            if self._seen is None or place > self._seen:
                self._seen = place
                yield json.loads(one.json)

    @staticmethod
    def _place(progress: Any) -> tuple[int, bool]:
        """The number of a batch, and whether it has been done: a look that finds nothing has the next one's number."""
        return progress.batchId, "addBatch" in progress.durationMs

    def stop(self, patience_s: float) -> None:
        """Let the batch that runs end, then stop. What begins in between, or takes longer, is interrupted: the next
        start does it again, and the ledger knows whether it was done."""
        deadline = time.monotonic() + patience_s
        before = self._query.lastProgress
        while self.is_active and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            now = self._query.lastProgress
            if now is not None and (before is None or self._place(now) > self._place(before)):
                break
            time.sleep(LOOK_S)
        self._query.stop()


def start_query(
    spark: SparkSession, place: StorePlace, checkpoint: str, stream: Stream, *, once: bool, ends: Mapping[str, int]
) -> RunningQuery:
    """Start a stream. With `once` it reads what there is, and the journals in `ends` up to there."""
    writer = writer_of(place, stream, frames_of(spark, place, stream, ends))
    writer = writer.queryName(stream.full_name).option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif stream.settings.every_ms is not None:
        writer = writer.trigger(processingTime=f"{stream.settings.every_ms} milliseconds")
    return RunningQuery(writer.start())


def writer_of(place: StorePlace, stream: Stream, frames: Frames) -> DataStreamWriter:
    """The writer of a stream."""
    only = stream.outputs[0]
    if len(stream.outputs) == 1 and isinstance(only, JournalEnd) and stream.settings.mode == "append":
        return _journal_writer(place, only.name, stream, frames)
    _check(stream, frames.result)
    sinks = [_sink(stream, output) for output in stream.outputs]
    if stream.quarantine is not None:
        sinks.append(_Rejected(to_journal(stream.quarantine.name, select=rejected_of)))
    writer = joined(frames).writeStream.outputMode(stream.settings.mode)
    return writer.foreachBatch(once(place.url, stream.full_name, *sinks, server=place.server))


def _journal_writer(place: StorePlace, journal: str, stream: Stream, frames: Frames) -> DataStreamWriter:
    """What does not match goes to another journal, row by row, with the rest of the batch."""
    rows = messages_of(frames.result)
    options = {"path": place.url, "ledgerName": stream.full_name, **place.options}
    if frames.rejected is None or stream.quarantine is None:
        options["journal"] = journal
    else:
        aside = frames.rejected.withColumn("journal", F.lit(stream.quarantine.name))
        rows = rows.withColumn("journal", F.lit(journal)).unionByName(aside)
    return rows.writeStream.format("detent").options(**options)


def _check(stream: Stream, result: DataFrame) -> None:
    """Refuse columns that cannot be written now, rather than with the first batch."""
    if any(isinstance(output, JournalEnd) for output in stream.outputs):
        messages_of(result, into_queues=_into_queues(stream))
    if _into_queues(stream):
        published_of(result)


def _into_queues(stream: Stream) -> bool:
    return any(isinstance(output, QueueEnd) for output in stream.outputs)


def _sink(stream: Stream, output: Output) -> Sink:
    """A sink of `once` that takes what the function answered."""
    if isinstance(output, JournalEnd):
        return to_journal(output.name, select=_then(partial(messages_of, into_queues=_into_queues(stream))))
    if isinstance(output, QueueEnd):
        return to_queue(output.name, select=_then(published_of))
    if isinstance(output, TableEnd):
        return _External(_table_sink(output))
    assert isinstance(output, Custom)
    inner = output.sink
    return _StoreResult(inner) if isinstance(inner, EngineSink) else _External(inner)


def _table_sink(table: TableEnd) -> ExternalSink:
    if table.catalog is None:
        return delta_sink(table.path, table.options)
    return iceberg_sink(table.path, table.catalog, table.location, table.options)


def _then(shape: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    return lambda batch: shape(result_of(batch))


class _External(ExternalSink):
    """A sink outside of the store, for what the function answered alone."""

    def __init__(self, inner: ExternalSink) -> None:
        self._inner = inner

    @property
    def place(self) -> MarkPlace | None:
        return self._inner.place

    def check_mode(self, mode: str) -> None:
        self._inner.check_mode(mode)

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        self._inner.write(rows_of(result_of(batch)), key)


class _Rejected(EngineSink):
    """The quarantine. In every output mode its rows are those of the batch alone."""

    def __init__(self, inner: EngineSink) -> None:
        self._inner = inner

    def check_mode(self, mode: str) -> None:
        del mode

    def stage(self, batch: DataFrame, url: str) -> list[Any]:
        return self._inner.stage(batch, url)

    def add(self, store: Store, transaction: Transaction, staged: list[Any], share: Share) -> None:
        self._inner.add(store, transaction, staged, share)


class _StoreResult(EngineSink):
    """A sink in the store, for what the function answered alone."""

    def __init__(self, inner: EngineSink) -> None:
        self._inner = inner

    def check_mode(self, mode: str) -> None:
        self._inner.check_mode(mode)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def publishes(self) -> bool:
        return self._inner.publishes

    def stage(self, batch: DataFrame, url: str) -> list[Any]:
        return self._inner.stage(rows_of(result_of(batch)), url)

    def add(self, store: Store, transaction: Transaction, staged: list[Any], share: Share) -> None:
        self._inner.add(store, transaction, staged, share)
