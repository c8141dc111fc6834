"""Queues in Spark: a batch that is replayed reads the same messages, and publishes its own once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import detent
import sparkling
from detent.spark import opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = sparkling.MARKS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.queue("in").create()
        owned.queue("out").create()
        yield owned
    opened.close_all()


def messages(spark: SparkSession, store: detent.Store, reader: str) -> DataFrame:
    source = spark.readStream.format("detent.queue").option("queue", "in").option("readerName", reader)
    return source.option("maxMessagesPerTrigger", 6).option("minPartitions", 2).load(store.url)


def run(writer: Any, checkpoint: Path) -> None:
    """Work off what is there."""
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def test_a_queue_into_a_queue(spark: SparkSession, store: detent.Store, tmp_path: Path) -> None:
    store.queue("in").publish_many([b"%d" % number for number in range(10)], headers={"kind": "a"})

    def copy() -> None:
        rows = messages(spark, store, "copy").selectExpr("concat(body, '!') AS body", "headers")
        run(rows.writeStream.format("detent.queue").option("queue", "out").option("path", store.url), tmp_path / "cp")

    copy()
    info = store.queue("in").info()
    assert (info.done, info.in_flight, info.available) == (10, 0, 0)
    out = list(store.queue("out").claim(100))
    assert sorted(message.body for message in out) == [b"%d!" % number for number in range(10)]
    assert out[0].headers == {"kind": "a", "queue": "out"}
    (ledger,) = store.ledgers()
    assert ledger.batch == 1
    copy()
    assert store.queue("out").info().available == 0


def test_a_replay_reads_the_same_messages_and_a_release_fences(
    spark: SparkSession, store: detent.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store.queue("in").publish_many([b"%d" % number for number in range(8)])
    seen: list[tuple[int, list[tuple[int, int]]]] = []

    def note(batch: DataFrame, number: int) -> None:
        seen.append((number, sorted((row.message, row.delivery) for row in batch.collect())))
        if len(seen) == 1:
            raise OSError("the lights went out")

    def read(checkpoint: str) -> None:
        run(messages(spark, store, "r").writeStream.foreachBatch(note), tmp_path / checkpoint)

    with pytest.raises(Exception, match="the lights went out"):
        read("cp")
    assert store.queue("in").info().in_flight == 6  # nobody else gets them meanwhile
    store.queue("in").publish(b"later", headers={"priority": "0"})
    read("cp")
    assert seen[0] == seen[1]
    assert [number for number, _ in seen] == [0, 0, 1]
    assert [len(rows) for _, rows in seen] == [6, 6, 3]
    assert len({message for _, rows in seen for message, _ in rows}) == 9
    assert store.queue("in").info().done == 9

    store.queue("in").publish(b"one more")
    with pytest.raises(Exception, match=r"detent queue release \S+ in r --yes"):
        read("another")  # a new checkpoint cannot go on where the old one was
    store.queue("in").reader("r").release()
    with pytest.raises(Exception, match="was released"):
        read("cp")
    read("another after the release")
    assert store.queue("in").info().done == 10
    assert seen[-1][0] == 0
    capfd.readouterr()


def test_a_replayed_batch_publishes_nothing(spark: SparkSession, store: detent.Store, tmp_path: Path) -> None:
    store.journal("orders").append_many([b"%d" % number for number in range(5)])

    def publish() -> None:
        orders = spark.readStream.format("detent").option("journals", "orders").load(store.url)
        rows = orders.selectExpr("body", "INTERVAL '1' HOUR * (offset % 2) AS delay", "'out' AS queue")
        run(rows.writeStream.format("detent.queue").option("path", store.url), tmp_path / "cp")

    publish()
    for entry in (tmp_path / "cp" / "commits").glob("*0*"):
        entry.unlink()
    publish()
    info = store.queue("out").info()
    assert (info.available, info.delayed) == (3, 2)

    rows = spark.range(4).selectExpr("id", "'k' || id % 2 AS dedup_key")
    for _ in range(2):
        write = rows.write.format("detent.queue").options(queue="out", txnAppId="load", txnVersion=1)
        write.mode("append").save(store.url)
    assert sorted(message.body for message in store.queue("out").claim(100))[-2:] == [b'{"id":0}', b'{"id":1}']
    assert store.queue("out").info().total_routed == 7
