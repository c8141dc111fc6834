"""What the Spark suite measures: each side in one session, under the same settings."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.harness import INFORMATIVE, Plan, Row, Size, Suite, ratio_at_least, ratio_at_most
from bench.place import Place
from bench.spark.world import COLUMNS, World, rate, to_noop, world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

SUITE = Suite("spark")
ROWS, QUICK_ROWS = 1_000_000, 100_000
BATCHES, QUICK_BATCHES = 30, 8
JOURNALS = 64
HISTORY, QUICK_HISTORY = 50_000_000, 2_000_000
BATCH_ROWS = 10_000
PATIENCE_S = 60.0


@SUITE.measurement("source")
@contextmanager
def source(place: Place, size: Size) -> Iterator[Plan]:
    """A batch read of a journal, and of the same rows and columns in Parquet."""
    rows = size.of(ROWS, QUICK_ROWS)
    with world(place) as here:
        here.fill("in", rows)
        parquet = here.path("parquet")
        here.read("in").write.parquet(parquet)
        yield Plan(
            {
                "journal": lambda: rate(rows, lambda: to_noop(here.read("in"))),
                "parquet": lambda: rate(rows, lambda: to_noop(here.spark.read.parquet(parquet).select(*COLUMNS))),
            },
            [Row("source", "rows/s", "journal", ratio_at_least(0.7, ">= 0.7 x Parquet"), "parquet")],
        )


@SUITE.measurement("sink")
@contextmanager
def sink(place: Place, size: Size) -> Iterator[Plan]:
    """Rows that Spark makes up, into a journal and into Parquet."""
    rows = size.of(ROWS, QUICK_ROWS)
    with world(place) as here:

        def journal() -> None:
            name = here.name("out")
            writer = here.generated(rows).write.format("detent").option("journal", name)
            writer.mode("append").save(here.store.url)
            assert here.store.journal(name).info().messages == rows

        def parquet() -> None:
            path = here.path("out")
            here.generated(rows).write.parquet(path)
            shutil.rmtree(path)

        yield Plan(
            {"journal": lambda: rate(rows, journal), "parquet": lambda: rate(rows, parquet)},
            [
                Row(
                    "sink",
                    "rows/s",
                    "journal",
                    ratio_at_least(0.7, ">= 0.7 x Parquet"),
                    "parquet",
                    "durable; Parquet is not",
                )
            ],
        )


@SUITE.measurement("copy")
@contextmanager
def copy(place: Place, size: Size) -> Iterator[Plan]:
    """A stream from journal to journal, and from Parquet to Parquet, that changes nothing."""
    rows = size.of(ROWS, QUICK_ROWS)
    with world(place) as here:
        here.fill("in", rows)
        parquet = here.path("parquet")
        here.read("in").select("body").write.parquet(parquet)

        def drain(frame: DataFrame, format_name: str, target: str, **options: str) -> None:
            writer = frame.select("body").writeStream.format(format_name).options(**options)
            writer = writer.option("checkpointLocation", here.path("checkpoint")).trigger(availableNow=True)
            writer.start(target).awaitTermination()

        def journals() -> None:
            name = here.name("out")
            reader = here.spark.readStream.format("detent").option("journals", "in").option("columns", "body")
            drain(reader.load(here.store.url), "detent", here.store.url, journal=name)
            assert here.store.journal(name).info().messages == rows

        def files() -> None:
            target = here.path("out")
            drain(here.spark.readStream.schema("body binary").parquet(parquet), "parquet", target)
            shutil.rmtree(target)

        yield Plan(
            {"journals": lambda: rate(rows, journals), "parquet": lambda: rate(rows, files)},
            [
                Row(
                    "journal to journal",
                    "rows/s",
                    "journals",
                    ratio_at_least(0.6, ">= 0.6 x Parquet to Parquet"),
                    "parquet",
                    "as all rows: both sides run with what docs/spark.md advises where rows are small and many",
                )
            ],
        )


# -- micro-batches ----------------------------------------------------------------------------------------------


def _batch_ms(query: StreamingQuery, skip: int) -> float:
    """The median time of a query's batches that had rows."""
    done = [progress for progress in query.recentProgress if progress["numInputRows"]][skip:]
    return statistics.median(progress["durationMs"]["triggerExecution"] for progress in done)


def _idle(here: World, batches: int) -> float:
    """Spark's rate source into nothing: what a batch costs before anything is done."""
    reader = here.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", here.path("checkpoint"))
    query = writer.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(query.recentProgress) < batches + 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        return _batch_ms(query, 3)
    finally:
        query.stop()


def _fed(
    here: World, journals: str, feed: Callable[[int], Any], batches: int, sink_journal: str | None = "out"
) -> float:
    """A stream of journals, fed once a batch: the median time of a batch."""
    starts = {
        name: here.store.journal(name).info().next_offset for name in here.store.journals() if _named(name, journals)
    }
    reader = here.spark.readStream.format("detent").option("journals", journals)
    frame = reader.option("startingOffsets", json.dumps(starts)).load(here.store.url).select("body")
    writer = frame.writeStream.option("checkpointLocation", here.path("checkpoint"))
    if sink_journal is None:
        query = writer.format("noop").start()
    else:
        query = writer.format("detent").option("journal", sink_journal).start(here.store.url)
    try:
        for number in range(batches + 3):
            before = len([one for one in query.recentProgress if one["numInputRows"]])
            feed(number)
            deadline = time.monotonic() + PATIENCE_S
            while len([one for one in query.recentProgress if one["numInputRows"]]) == before:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, "a batch did not come"
                time.sleep(0.005)
        return _batch_ms(query, 3)
    finally:
        query.stop()


def _named(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@SUITE.measurement("micro-batch")
@contextmanager
def micro_batch(place: Place, size: Size) -> Iterator[Plan]:
    """One message, from source to sink, against Spark's rate source into nothing."""
    batches = size.of(BATCHES, QUICK_BATCHES)
    with world(place) as here:
        here.store.journal("in").append(b"first")

        def one(number: int) -> None:
            here.store.journal("in").append(b"%d" % number)

        yield Plan(
            {
                "rate to nothing": lambda: _idle(here, batches),
                "journal to journal": lambda: _fed(here, "in", one, batches),
                "journal to nothing": lambda: _fed(here, "in", one, batches, None),
            },
            [
                Row(
                    "a micro-batch of one message",
                    "ms",
                    "journal to journal",
                    ratio_at_most(2.0, "<= 2 x rate to nothing"),
                    "rate to nothing",
                ),
                Row("the same, into nothing", "ms", "journal to nothing", INFORMATIVE, "rate to nothing"),
            ],
        )


@SUITE.measurement("journals")
@contextmanager
def journals(place: Place, size: Size) -> Iterator[Plan]:
    """A batch of as many messages, out of one journal and out of 64."""
    batches = size.of(BATCHES // 2, QUICK_BATCHES)
    with world(place) as here:
        names = [f"many/{number:02}" for number in range(JOURNALS)]
        for name in ["one", *names]:
            here.store.journal(name).append(b"first")

        def feed(targets: list[str]) -> Callable[[int], None]:
            def append(_: int) -> None:
                with here.store.transaction() as together:
                    for name, count in zip(itertools.cycle(targets), [BATCH_ROWS // JOURNALS] * JOURNALS, strict=False):
                        together.append_many(name, [b"x" * 100] * count)

            return append

        yield Plan(
            {
                "one": lambda: _fed(here, "one", feed(["one"]), batches),
                "many": lambda: _fed(here, "many/*", feed(names), batches),
            },
            [Row("64 journals instead of 1", "ms a batch", "many", ratio_at_most(1.2, "<= 1.2 x one journal"), "one")],
        )


@SUITE.measurement("history")
@contextmanager
def history(place: Place, size: Size) -> Iterator[Plan]:
    """The same batch at the end of a short journal and of a long one."""
    batches = size.of(BATCHES // 2, QUICK_BATCHES)
    short, long = size.of(ROWS, QUICK_ROWS), size.of(HISTORY, QUICK_HISTORY)
    with world(place) as here:
        here.fill("short", short)
        here.fill("long", long)

        def feed(name: str) -> Callable[[int], None]:
            return lambda _: here.store.journal(name).append_many([b"x" * 100] * BATCH_ROWS)

        yield Plan(
            {
                "short": lambda: _fed(here, "short", feed("short"), batches),
                "long": lambda: _fed(here, "long", feed("long"), batches),
            },
            [
                Row(
                    f"{long:,} messages of history instead of {short:,}",
                    "ms a batch",
                    "long",
                    ratio_at_most(1.2, "<= 1.2 x the short one"),
                    "short",
                )
            ],
        )
