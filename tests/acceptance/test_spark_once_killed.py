"""A driver whose stream has sinks of all kinds, killed at each durable step: every sink has every row once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import textwrap
from contextlib import closing, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

import detent
import sparkling
from detent import crash
from zygote import Forked

pytestmark = [*sparkling.PROCESS_MARKS, pytest.mark.timeout(600)]

POINTS = sorted(point for point in crash.POINTS if point.startswith("spark.once."))
BATCH, BATCHES = 40, len(POINTS)
PATIENCE_S = 180

DRIVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import detent.spark
    from detent.spark import once, to_delta, to_journal, to_queue, to_sql

    folder = Path(sys.argv[1])
    url = f"file:{folder / 'store'}"
    spark = detent.spark.session(store=url, cores=1, quick=True)
    orders = spark.readStream.format("detent").options(journals="in", maxMessagesPerTrigger=sys.argv[2]).load(url)
    write = once(
        url,
        "shop",
        to_delta(folder / "delta"),
        to_sql(f"sqlite:///{folder / 'shop.db'}", "orders", select=["id"]),
        to_journal("out", select=["CAST(id AS STRING) AS body"]),
        to_queue("mail", select=["CAST(id AS STRING) AS payload"]),
    )
    rows = orders.selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS id")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    """
)


def drive(folder: Path, crash_at: str = "") -> tuple[int, str]:
    """Run the driver until it ends, or dies at the point. Nobody of its process group is left."""
    program, log = folder / "driver.py", folder / "driver.log"
    program.write_text(DRIVER)
    with log.open("wb") as out:
        process = Forked(
            [sys.executable, str(program), str(folder), str(BATCH)],
            stdout=out,
            stderr=out,
            env={**os.environ, "DETENT_CRASH_AT": crash_at},
            start_new_session=True,
            with_spark=True,
        )
    try:
        return process.wait(PATIENCE_S), log.read_text()[-4000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Shop:
    """What is in the sinks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def delta(self) -> list[int]:
        table = self.folder / "delta"
        return sorted(DeltaTable(table).to_pyarrow_table().column("id").to_pylist()) if table.exists() else []

    def sql(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    def engine(self) -> tuple[list[int], int, int]:
        """The journal, how many messages the queue has, and the ledger's last batch: all one transaction a batch."""
        with detent.open(f"file:{self.folder / 'store'}") as store:
            written = "out" in store.journals()
            rows = sorted(json.loads(message.body) for message in store.journal("out").read()) if written else []
            batch = store.ledger("shop").batch if store.ledgers() else -1
            return rows, store.queue("mail").info().available, batch


def test_every_sink_has_every_row_once_whatever_the_driver_died_of(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.journal("in").append_many([b"%d" % number for number in range(BATCH * BATCHES)])
        store.queue("mail").create()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    shop = Shop(tmp_path)
    for point in POINTS:
        code, log = drive(tmp_path, point)  # in the batch that the last one left undone, or in the next
        assert code == -signal.SIGKILL, f"nobody came to {point}: {log}"
        rows, published, batch = shop.engine()
        assert len(rows) == len(set(rows)) == published == (batch + 1) * BATCH, point
        for found in (shop.delta(), shop.sql()):
            assert len(found) == len(set(found))
            assert len(found) - len(rows) in {0, BATCH}, point  # at most the batch that was under way
    code, log = drive(tmp_path)
    assert code == 0, log
    expected = list(range(BATCH * BATCHES))
    rows, published, batch = shop.engine()
    assert (rows, published, batch) == (expected, len(expected), BATCHES - 1)
    assert shop.delta() == shop.sql() == expected
