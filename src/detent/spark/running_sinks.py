"""Where the rows of a stream go: to one journal by Spark's tasks alone, otherwise through `once`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from detent.spark.once_batch import EngineSink, ExternalSink, Place, Share
from detent.spark.once_delta import to_delta
from detent.spark.once_engine import to_journal, to_queue
from detent.spark.once_writing import Sink, once
from detent.spark.pipeline_stream import Custom, Delta, Journal, Output, Queue, Stream
from detent.spark.running_frames import (
    Frames,
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


def writer_of(url: str, stream: Stream, frames: Frames) -> DataStreamWriter:
    """The writer of a stream."""
    only = stream.outputs[0]
    if len(stream.outputs) == 1 and isinstance(only, Journal) and stream.settings.mode == "append":
        return _journal_writer(url, only.name, stream, frames)
    _check(stream, frames.result)
    sinks = [_sink(stream, output) for output in stream.outputs]
    if stream.quarantine is not None:
        sinks.append(_Rejected(to_journal(stream.quarantine.name, select=rejected_of)))
    writer = joined(frames).writeStream.outputMode(stream.settings.mode)
    return writer.foreachBatch(once(url, stream.full_name, *sinks))


def _journal_writer(url: str, journal: str, stream: Stream, frames: Frames) -> DataStreamWriter:
    """What does not match goes to another journal, row by row, with the rest of the batch."""
    rows = messages_of(frames.result)
    options = {"path": url, "ledgerName": stream.full_name}
    if frames.rejected is None or stream.quarantine is None:
        options["journal"] = journal
    else:
        aside = frames.rejected.withColumn("journal", F.lit(stream.quarantine.name))
        rows = rows.withColumn("journal", F.lit(journal)).unionByName(aside)
    return rows.writeStream.format("detent").options(**options)


def _check(stream: Stream, result: DataFrame) -> None:
    """Refuse columns that cannot be written now, rather than with the first batch."""
    if any(isinstance(output, Journal) for output in stream.outputs):
        messages_of(result, into_queues=_into_queues(stream))
    if _into_queues(stream):
        published_of(result)


def _into_queues(stream: Stream) -> bool:
    return any(isinstance(output, Queue) for output in stream.outputs)


def _sink(stream: Stream, output: Output) -> Sink:
    """A sink of `once` that takes what the function answered."""
    if isinstance(output, Journal):
        return to_journal(output.name, select=_then(partial(messages_of, into_queues=_into_queues(stream))))
    if isinstance(output, Queue):
        return to_queue(output.name, select=_then(published_of))
    if isinstance(output, Delta):
        keys, columns = list(output.merge_on) or None, list(output.partition_by) or None
        return _External(to_delta(output.path, merge_on=keys, partition_by=columns))
    assert isinstance(output, Custom)
    inner = output.sink
    return _Engine(inner) if isinstance(inner, EngineSink) else _External(inner)


def _then(shape: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    return lambda batch: shape(result_of(batch))


class _External(ExternalSink):
    """A sink outside of the store, for what the function answered alone."""

    def __init__(self, inner: ExternalSink) -> None:
        self._inner = inner

    @property
    def place(self) -> Place | None:
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


class _Engine(EngineSink):
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
