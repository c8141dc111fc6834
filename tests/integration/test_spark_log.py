"""Spark's log without its newest entries, in a real Spark: streams of Detent's journals go on, others are refused."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import detent
import sparkling
from detent.spark import call, once, opened, to_delta, to_journal, to_queue, to_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = sparkling.MARKS

FED = 10
FOLDERS = ("offsets", "commits")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.queue("mail").create()
        yield owned
    opened.close_all()


def entries(checkpoint: Path, folder: str) -> list[int]:
    return sorted(int(path.name) for path in (checkpoint / folder).iterdir() if path.name.isdigit())


def lose(checkpoint: Path, *folders: str) -> None:
    """The newest entry of each folder, with its checksum."""
    for folder in folders:
        newest = entries(checkpoint, folder)[-1]
        for name in (str(newest), f".{newest}.crc"):
            (checkpoint / folder / name).unlink(missing_ok=True)


class Shop:
    """Orders from a journal into sinks of all kinds, by a stream of `once` and by one of the format."""

    def __init__(self, spark: SparkSession, store: detent.Store, folder: Path) -> None:
        self.spark, self.store, self.folder = spark, store, folder
        self.fed = 0
        self.checkpoints = [folder / "once", folder / "format"]
        self.fails = False
        with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER)")

    def feed(self) -> None:
        self.store.journal("orders").append_many([b"%d" % number for number in range(self.fed, self.fed + FED)])
        self.fed += FED

    def rows(self) -> Any:
        frame = self.spark.readStream.format("detent").option("journals", "orders").load(self.store.url)
        return frame.selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS id")

    def fail(self, batch: Any, key: str) -> None:
        if self.fails:
            raise OSError("the lights went out")

    def run(self) -> None:
        body = ["CAST(id AS STRING) AS body"]
        write = once(
            self.store.url,
            "shop",
            to_delta(self.folder / "delta"),
            call(self.fail),
            to_sql(f"sqlite:///{self.folder / 'shop.db'}", "orders"),
            to_journal("copy", select=body),
            to_queue("mail", select=body),
        )
        writers = [
            self.rows().writeStream.foreachBatch(write),
            self.rows().selectExpr(*body).writeStream.format("detent").options(journal="plain", path=self.store.url),
        ]
        for writer, checkpoint in zip(writers, self.checkpoints, strict=True):
            query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()

    def check(self) -> None:
        """Every sink has every order once."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            sql = [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]
        delta = sorted(DeltaTable(self.folder / "delta").to_pyarrow_table().column("id").to_pylist())
        copies = [[message.json() for message in self.store.journal(name).read()] for name in ("copy", "plain")]
        assert [sql, delta, *copies] == [list(range(self.fed))] * 4
        assert self.store.queue("mail").info().available == self.fed


def test_streams_go_on_after_spark_has_lost_its_newest_entries(
    spark: SparkSession, store: detent.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(spark, store, tmp_path)
    for _ in range(2):
        shop.feed()
        shop.run()
    shop.check()
    for checkpoint in shop.checkpoints:
        shutil.copytree(checkpoint, f"{checkpoint}.copy")
        lose(checkpoint, *FOLDERS)
    shop.feed()
    shop.run()  # the second batch as it was, and then the new orders
    shop.check()

    shop.fails = True
    shop.feed()
    with pytest.raises(Exception, match="the lights went out"):
        shop.run()  # when the Delta table has the batch and nothing else has
    shop.fails = False
    lose(shop.checkpoints[0], "offsets")
    shop.feed()
    shop.run()
    shop.check()

    for checkpoint in shop.checkpoints:
        shutil.rmtree(checkpoint)
        shutil.copytree(f"{checkpoint}.copy", checkpoint)  # older by some batches
    shop.feed()
    shop.run()
    shop.check()
    capfd.readouterr()  # Spark writes of the failure to the log


@pytest.mark.parametrize("sink", ["once", "format"])
def test_a_source_that_plans_anew_is_refused(
    spark: SparkSession, store: detent.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str], sink: str
) -> None:
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()

    def run(number: int) -> None:
        (files / f"{number}.txt").write_text(f"{number}\n")
        writer = spark.readStream.text(str(files)).selectExpr("value AS body").writeStream
        if sink == "once":
            writer = writer.foreachBatch(once(store.url, "files", to_journal("lines")))
        else:
            writer = writer.format("detent").options(journal="lines", path=store.url, ledgerName="files")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    for number in range(2):
        run(number)
    lose(checkpoint, *FOLDERS, "sources/0")
    for number in (2, 3):
        with pytest.raises(Exception, match=r"OtherInput.*batch 1 of the ledger 'files'"):
            run(number)
    assert [message.body for message in store.journal("lines").read()] == [b"0", b"1"]
    capfd.readouterr()
