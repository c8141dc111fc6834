"""`once(...)` in Spark: every sink has every batch once, over crashes between sinks and replays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import detent
import sparkling
from detent.spark import call, once, opened, to_delta, to_journal, to_queue, to_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = sparkling.MARKS

ORDERS = list(range(30))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.journal("orders").append_many([b'{"id": %d, "day": "d%d"}' % (number, number % 2) for number in ORDERS])
        owned.queue("mail").create()
        yield owned
    opened.close_all()


class Shop:
    """A stream of orders into all kinds of sinks."""

    def __init__(self, spark: SparkSession, store: detent.Store, folder: Path) -> None:
        self.spark, self.store, self.folder = spark, store, folder
        self.checkpoint = folder / "checkpoint"
        self.calls: list[tuple[str, int]] = []
        with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER, day TEXT)")

    def run(self, effect: Callable[[DataFrame, str], Any]) -> str:
        """Write all orders there are, in batches of 20; the id of the run."""
        sinks = (
            to_queue("mail", select=["CAST(id AS STRING) AS body", "map('day', day) AS headers"]),
            to_delta(self.folder / "delta", partition_by="day"),
            to_sql(f"sqlite:///{self.folder / 'shop.db'}", "orders", select=["id", "day"]),
            call(effect),
            to_journal("copy", select=lambda rows: rows.select("id", "token")),
        )
        orders = (
            self.spark.readStream.format("detent")
            .option("journals", "orders")
            .option("maxMessagesPerTrigger", 20)
            .load(self.store.url)
            .selectExpr("from_json(CAST(body AS STRING), 'id BIGINT, day STRING') AS it")
            .selectExpr("it.id", "it.day", "uuid() AS token")
        )
        query = (
            orders.writeStream.foreachBatch(once(self.store.url, "shop", *sinks))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.runId)

    def note(self, batch: DataFrame, key: str) -> None:
        self.calls.append((key, batch.count()))

    def delta(self) -> list[int]:
        return sorted(DeltaTable(self.folder / "delta").to_pyarrow_table().column("id").to_pylist())

    def sql(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    def journal(self) -> list[dict[str, Any]]:
        known = "copy" in self.store.journals()
        return [message.json() for message in self.store.journal("copy").read()] if known else []

    def check_all(self) -> None:
        assert self.delta() == self.sql() == [row["id"] for row in self.journal()] == ORDERS
        assert self.store.queue("mail").info().available == len(ORDERS)


def test_every_sink_has_every_batch_once(
    spark: SparkSession, store: detent.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(spark, store, tmp_path)

    def fail(batch: DataFrame, key: str) -> None:
        raise OSError("the lights went out")

    with pytest.raises(Exception, match="the lights went out"):
        shop.run(fail)  # after Delta and SQL, before anything in the store
    assert shop.delta() == shop.sql() == ORDERS[:20]
    assert (shop.journal(), store.queue("mail").info().available, store.ledgers()) == ([], 0, [])

    run = shop.run(shop.note)
    shop.check_all()
    query = json.loads((shop.checkpoint / "metadata").read_text())["id"]
    row = store.ledger("shop")
    assert (row.query, row.run, row.batch, row.entries) == (query, run, 1, 2)
    assert shop.calls == [(f"shop/{query}/0", 20), (f"shop/{query}/1", 10)]
    tokens = {row["token"] for row in DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist() if row["id"] >= 20}
    assert tokens == {row["token"] for row in shop.journal() if row["id"] >= 20}  # computed once for both

    for entry in (shop.checkpoint / "commits").glob("*1*"):
        entry.unlink()  # as if Spark had been killed before it noted the last batch
    shop.run(fail)  # and the replay calls nothing
    shop.check_all()
    capfd.readouterr()  # Spark writes of the failure to the log
