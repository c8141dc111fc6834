"""The tables of a store, read by Spark itself: from Python and in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import detent
import sparkling
from detent import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

pytestmark = sparkling.MARKS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with something in it, owned by this process as by any driver."""
    with detent.open(f"file:{tmp_path / 'store'}") as made:
        for name, reason in (("orders", "no money"), ("refunds", "no order")):
            queue = made.queue(name)
            queue.create(max_attempts=1, lease="1h")
            queue.publish(b"bad", headers={"tier": "gold"})
            for message in queue.claim(consumer="me"):
                message.fail(reason)
        made.queue("orders").publish_many([b"good", b"better"])
        made.queue("orders").claim(consumer="me")
        made.publisher().publish("log", [b"1", b"2"])
        with made.transaction() as transaction:
            transaction.enter_ledger("stream", 3, query="q", run="first")
        with made.transaction() as transaction:
            transaction.enter_ledger("stream", 4, query="q", run="second")
        yield made


def table(spark: SparkSession, name: str) -> DataFrameReader:
    return spark.read.format("detent.table").option("table", name)


def test_columns_of_every_type_arrive(spark: SparkSession, store: Store) -> None:
    found = {name: table(spark, name).load(store.url).collect() for name in ("messages", "producers", "ledgers")}
    assert sorted((row.queue, row.state, bytes(row.body)) for row in found["messages"]) == [
        ("orders", "available", b"better"),
        ("orders", "failed", b"bad"),
        ("orders", "in flight", b"good"),
        ("refunds", "failed", b"bad"),
    ]
    held = next(row for row in found["messages"] if row.state == "in flight")
    assert (held.headers, held.consumer, held.attempts) == ({"queue": "orders"}, "me", 1)
    assert datetime.now(UTC) - held.claimed_at.astimezone(UTC) < timedelta(minutes=5)
    (producer,) = found["producers"]
    assert (len(producer.producer), producer.last_ack == producer.max_clock, producer.aborted) == (6, True, False)
    assert [(row.ledger, row.batch, row.replaced) for row in found["ledgers"]] == [("stream", 4, ["first"])]


def test_in_sql(spark: SparkSession, store: Store) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW failed USING `detent.table` OPTIONS (path '{store.url}', table 'failed')"
    )
    counts = spark.sql("SELECT queue, reason, count(*) AS n FROM failed WHERE headers['tier'] = 'gold' GROUP BY ALL")
    assert sorted(map(tuple, counts.collect())) == [("orders", "no money", 1), ("refunds", "no order", 1)]
    for message in store.queue("orders").failed():
        store.queue("orders").redrive([message.message])
    assert spark.sql("SELECT count(*) FROM failed").first()[0] == 1, "each query looks anew"
    spark.catalog.dropTempView("failed")


def test_what_is_refused_says_why(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no table 'faild'.*there are queues, messages"):
        table(spark, "faild").load(store.url)
    with pytest.raises(Exception, match=r"no queue 'other'.*option queue"):
        table(spark, "failed").option("queue", "other").load(store.url).collect()
    with pytest.raises(Exception, match="read-only"):
        spark.range(1).write.format("detent.table").mode("append").option("table", "failed").save(store.url)
    stream = spark.readStream.format("detent.table").option("table", "failed").load(store.url)
    to_nowhere = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"read with spark\.read"):
        to_nowhere.start().processAllAvailable()
