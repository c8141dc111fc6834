"""The format ``detent`` in a real Spark: sources, sinks, replays, and what bad input is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F
import pytest
from pyspark import TaskContext

import detent
import detent.spark
import sparkling
from detent.spark.opened import close_all
from processes import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = sparkling.MARKS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    """A store of its own, whose owner is the driver's process."""
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        yield owned
    close_all()


def numbered(count: int, word: str = "m", start: int = 0) -> list[bytes]:
    return [f"{word}{number}".encode() for number in range(start, start + count)]


def read(spark: SparkSession, store: detent.Store, **options: Any) -> DataFrame:
    return spark.read.format("detent").options(**{"journals": "a", **options}).load(store.url)


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.orderBy("journal", "offset").select("body").collect()]


def stream(spark: SparkSession, store: detent.Store, **options: Any) -> DataFrame:
    return spark.readStream.format("detent").options(**{"journals": "a", **options}).load(store.url)


def drain(frame: DataFrame, store: detent.Store, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Copy what is there to the journal `out`."""
    writer = frame.select("body").writeStream.format("detent").option("checkpointLocation", str(checkpoint))
    query = writer.options(**{"journal": "out", **options}).trigger(availableNow=True).start(store.url)
    query.awaitTermination()
    return query


def forget_last_commit(checkpoint: Path) -> int:
    """As if Spark had died between the sink's commit and its own note of it."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def written(store: detent.Store, journal: str = "out") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()]


# -- reading ----------------------------------------------------------------------------------------------------


def test_a_batch_read_gives_every_committed_message(spark: SparkSession, store: detent.Store) -> None:
    store.journal("a").append(b"first", key=b"k", headers={"h": "1"})
    store.journal("a").append_many(numbered(999))
    store.journal("b").adopt([store.journal("b").write_fragment(_table(numbered(500, "f")))])
    store.publisher().publish_uncommitted("a", [b"pending"])  # never acknowledged
    frame = read(spark, store, journals="a,b", includeHeaders="true", minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert bodies(frame) == [b"first", *numbered(999), *numbered(500, "f")]
    row = frame.where("offset = 0 and journal = 'a'").collect()[0]
    assert (row.headers, bytes(row.key)) == ({"h": "1"}, b"k")
    raw = read(spark, store, isolation="uncommitted").where("flags = 1")
    assert [bytes(row.body) for row in raw.collect()] == [b"pending"]


def _table(rows: list[bytes]) -> Any:
    import pyarrow as pa

    return pa.table({"body": pa.array(rows, pa.binary())})


def test_a_read_of_a_part(spark: SparkSession, store: detent.Store) -> None:
    journal = store.journal("a")
    journal.append_many(numbered(10))
    ranged = read(spark, store, startingOffsets='{"a": 3}', endingOffsets='{"a": 6}')
    assert bodies(ranged) == numbered(3, start=3)
    assert bodies(read(spark, store, startingOffsets="latest")) == []
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert bodies(read(spark, store, startingOffsets=soon)) == []
    assert bodies(read(spark, store, endingOffsets=soon)) == numbered(10)
    assert bodies(read(spark, store, journals="x*")) == []


def test_filters_are_pushed_down_on_request(spark: SparkSession, store: detent.Store) -> None:
    store.journal("a").append_many(numbered(10))
    store.journal("b").append_many(numbered(10, "b"))
    now = datetime.now(UTC)

    def pushed(where: str) -> DataFrame:
        return read(spark, store, journals="a,b", filterPushdown="true").where(where)

    narrow = pushed("journal = 'a' and offset >= 3 and offset < 5")
    assert " Filter " not in narrow._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert bodies(narrow) == numbered(2, start=3)
    for minutes, count in ((-1, 20), (1, 0)):
        time = (now + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M:%S+00:00")
        assert pushed(f"published_at > timestamp'{time}'").count() == count
    assert bodies(pushed("journal = 'b' and body = cast('b7' as binary)")) == [b"b7"]


def test_what_bad_options_are_told(spark: SparkSession, store: detent.Store) -> None:
    store.journal("a").append(b"x")
    with pytest.raises(Exception, match="did you mean maxMessagesPerTrigger"):
        read(spark, store, maxMessagePerTrigger=1).collect()
    with pytest.raises(Exception, match="there is no journal 'orders'"):
        read(spark, store, journals="orders").collect()


# -- streams ----------------------------------------------------------------------------------------------------


def test_a_stream_copies_every_message_once_in_bounded_batches(
    spark: SparkSession, store: detent.Store, tmp_path: Path
) -> None:
    store.journal("a").append_many(numbered(250))
    query = drain(stream(spark, store, maxMessagesPerTrigger=100), store, tmp_path / "cp")
    assert written(store) == numbered(250)
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [100, 100, 50]
    assert json.loads(query.recentProgress[0]["sources"][0]["latestOffset"]) == {"a": 250}  # lag can be seen
    store.journal("a").append_many(numbered(5, start=250))
    drain(stream(spark, store, maxMessagesPerTrigger=100), store, tmp_path / "cp")
    assert written(store) == numbered(255)


def test_the_progress_of_a_query_names_its_sources_and_its_sink(
    spark: SparkSession, store: detent.Store, tmp_path: Path
) -> None:
    store.journal("a").append_many(numbered(5))
    store.queue("q").create()
    mails = spark.readStream.format("detent.queue").option("queue", "q").option("readerName", "r").load(store.url)
    both = stream(spark, store).select("body").union(mails.selectExpr("body"))
    writer = both.writeStream.format("detent").option("journal", "out").queryName("both")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start(store.url)
    try:
        eventually(lambda: query.lastProgress is not None and query.lastProgress.batchId == 0, seconds=60)
        found = detent.spark.progress(query)
    finally:
        query.stop()
    first, second = found["sources"]
    assert (found["query"], found["batch"], found["sink"]) == ("both", 0, {"name": "journal out", "store": store.url})
    assert (first["name"], first["store"], first["lag"]) == ("journals a", store.url, 0)
    assert first["journals"] == {"a": {"offset": 5, "lag": 0}}
    assert (second["name"], second["store"]) == ("queue q", store.url)
    assert "Python" not in str(found)


def test_a_pattern_picks_up_journals_that_come_later(spark: SparkSession, store: detent.Store, tmp_path: Path) -> None:
    store.journal("shop/a").append_many(numbered(3))
    frame = stream(spark, store, journals="shop/*")
    drain(frame, store, tmp_path / "cp")
    store.journal("shop/b").append_many(numbered(3, "b"))
    store.journal("other").append(b"not read")
    drain(frame, store, tmp_path / "cp")
    assert sorted(written(store)) == sorted([*numbered(3), *numbered(3, "b")])


def test_a_batch_that_spark_forgot_is_not_written_again(
    spark: SparkSession, store: detent.Store, tmp_path: Path
) -> None:
    store.journal("a").append_many(numbered(30))
    frame = stream(spark, store, maxMessagesPerTrigger=10)
    drain(frame, store, tmp_path / "cp")
    assert forget_last_commit(tmp_path / "cp") == 2
    store.journal("a").append_many(numbered(5, start=30))
    drain(frame, store, tmp_path / "cp")
    assert written(store) == numbered(35)


def test_a_deleted_checkpoint_is_refused_until_the_ledger_is_reset(
    spark: SparkSession, store: detent.Store, tmp_path: Path
) -> None:
    store.journal("a").append_many(numbered(3))
    frame = stream(spark, store)
    drain(frame, store, tmp_path / "cp")
    shutil.rmtree(tmp_path / "cp")
    with pytest.raises(Exception, match="detent ledger reset"):
        drain(frame, store, tmp_path / "cp")
    assert written(store) == numbered(3)
    shutil.rmtree(tmp_path / "cp")
    [ledger] = store.ledgers()
    store.reset_ledger(ledger.name)
    drain(frame, store, tmp_path / "cp")
    assert written(store) == numbered(3) * 2


def test_the_first_batch_replays_from_the_same_latest(spark: SparkSession, store: detent.Store, tmp_path: Path) -> None:
    store.journal("a").append_many(numbered(5, "before"))
    with pytest.raises(Exception, match="needs the option readerName"):
        drain(stream(spark, store, startingOffsets="latest"), store, tmp_path / "refused")
    frame = stream(spark, store, startingOffsets="latest", readerName="copy")
    seen: list[list[bytes]] = []

    def note(batch: DataFrame, _: int) -> None:
        seen.append(sorted(bytes(row.body) for row in batch.collect()))

    def run() -> None:
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "cp"))
        writer.trigger(availableNow=True).start().awaitTermination()

    store.pin("copy", {"a": 5})  # an earlier start, which died before its first batch
    store.journal("a").append_many(numbered(5))
    run()
    assert forget_last_commit(tmp_path / "cp") == 0
    store.journal("a").append_many(numbered(5, start=5))
    run()
    assert seen == [numbered(5), numbered(5), numbered(5, start=5)]
    assert store.pins()[0].offsets == {"a": 5}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_trimmed_offsets(spark: SparkSession, store: detent.Store, tmp_path: Path, fail: str) -> None:
    store.journal("a").append_many(numbered(10))
    frame = stream(spark, store, failOnDataLoss=fail)
    drain(frame, store, tmp_path / "cp")
    store.journal("a").append_many(numbered(10, start=10))
    store.journal("a").trim(15)
    if fail == "true":
        with pytest.raises(Exception, match="failOnDataLoss"):
            drain(frame, store, tmp_path / "cp")
        assert written(store) == numbered(10)
    else:
        drain(frame, store, tmp_path / "cp")
        assert written(store) == [*numbered(10), *numbered(5, start=15)]


# -- writing ----------------------------------------------------------------------------------------------------


def fails_at_first() -> Any:
    """Bodies of tasks whose first attempt fails after it has passed on some of them.

    Made here, because Spark's workers cannot import this module; without hints, which Spark takes for a wish.
    """

    def body(value):  # type: ignore[no-untyped-def]
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and value.endswith(b"9"):
            raise RuntimeError("the first attempt fails")
        return value

    return F.udf(body, "binary")


def write(frame: DataFrame, store: detent.Store, **options: Any) -> None:
    frame.write.format("detent").options(**{"journal": "out", **options}).mode("append").save(store.url)


@pytest.mark.parametrize("rows", [40, 40_000])
def test_tasks_that_are_tried_again_write_once(spark: SparkSession, store: detent.Store, rows: int) -> None:
    again = fails_at_first()
    frame = spark.range(0, rows, 1, 4).select(
        again(F.concat(F.lit("m"), F.col("id").cast("string")).cast("binary")).alias("body")
    )
    write(frame, store)
    assert sorted(written(store)) == sorted(numbered(rows))
    by_task = [[int(body[1:]) for body in written(store) if int(body[1:]) * 4 // rows == task] for task in range(4)]
    assert all(part == sorted(part) for part in by_task)  # in order within a task's output


def test_a_job_that_fails_writes_nothing(spark: SparkSession, store: detent.Store) -> None:
    frame = spark.range(0, 10_000, 1, 2).select(
        F.when(F.col("id") < 9_999, F.repeat(F.lit("x"), 100))
        .otherwise(F.raise_error(F.lit("the last row")))
        .alias("body")
    )
    with pytest.raises(Exception, match="the last row"):
        write(frame, store)
    assert store.journals() == []


def test_batch_writes_with_versions_and_journals_by_row(spark: SparkSession, store: detent.Store) -> None:
    frame = spark.range(6).select(
        F.col("id").cast("string").alias("body"), F.when(F.col("id") % 2 == 0, "even").otherwise("odd").alias("journal")
    )
    for _ in range(2):
        frame.write.format("detent").options(txnAppId="nightly", txnVersion=1).mode("append").save(store.url)
    assert (written(store, "even"), written(store, "odd")) == ([b"0", b"2", b"4"], [b"1", b"3", b"5"])
    write(spark.range(1).select(F.col("id"), F.lit("x").alias("name")), store)
    assert json.loads(written(store)[0]) == {"id": 0, "name": "x"}


def test_what_bad_writes_are_told(spark: SparkSession, store: detent.Store) -> None:
    frame = spark.range(1).select(F.col("id").cast("string").alias("body"))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: write(frame, store, journal=""), "say where the rows go"),
        (lambda: write(frame, store, txnAppId="a"), "go together"),
        (lambda: write(frame.withColumn("id", F.lit(1)), store), "to_json"),
        (lambda: write(frame.select(F.lit(1).alias("body")), store), "body is binary or string"),
        (
            lambda: frame.write.format("detent").option("journal", "a").mode("overwrite").save(store.url),
            "only appended to",
        ),
    ]
    for attempt, says in cases:
        with pytest.raises(Exception, match=says):
            attempt()
    assert store.journals() == []
