"""A stream with sinks of all kinds, whose driver is killed at each durable step: every sink has every row once.

A process without Java writes the batches, with rows of the test's, and dies at each step. Real drivers, which take
seconds to start, die at the steps that are theirs alone, and lose the newest entry of their checkpoint. With
DETENT_SOAK=1 they die at each step too.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import detent
import s3server
import sparkling
from detent import crash
from detent.spark import once, to_delta, to_iceberg, to_journal, to_queue, to_sql
from detent.tables.iceberg_table import IcebergTable
from processes import Io, Processes
from sparkframes import Frame
from zygote import Forked

pytestmark = [*sparkling.PROCESS_MARKS, pytest.mark.timeout(600)]

PLANNING = "spark.plan."  # in the process of the source: the driver sees its query fail
FILE = "tables.after_file"
"""In a task: the driver sees its batch fail."""
WRITING = sorted(point for point in crash.POINTS if point.startswith(("spark.once.", FILE)))
PLANS = sorted(point for point in crash.POINTS if point.startswith(PLANNING))
OF_DRIVERS = [*PLANS, *(WRITING if os.environ.get("DETENT_SOAK") else ["spark.once.sql_after_commit", FILE])]
"""Between two sinks, where a replay has most to find out, and where Java outlives its task."""

FED = 40
PATIENCE_S = 180

DRIVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import detent.spark
    from detent.spark import once, to_delta, to_iceberg, to_journal, to_queue, to_sql

    folder = Path(sys.argv[1])
    url = f"file:{folder / 'store'}"
    spark = detent.spark.session(store=url, cores=1, quick=True)
    orders = spark.readStream.format("detent").options(journals="in", maxMessagesPerTrigger=sys.argv[2]).load(url)
    write = once(
        url,
        "shop",
        to_delta(folder / "delta"),
        to_iceberg(
            "lake.paid",
            catalog=f"sqlite:///{folder / 'catalog.db'}",
            location=sys.argv[3],
            partition_by="part",
            select=["id", "id % 2 AS part"],
        ),
        to_sql(f"sqlite:///{folder / 'shop.db'}", "orders", select=["id"]),
        to_journal("out", select=["CAST(id AS STRING) AS body"]),
        to_queue("mail", select=["CAST(id AS STRING) AS body"]),
    )
    rows = orders.selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS id")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    """
)


def drive(folder: Path, place: str, crash_at: str = "", *, rows_max: int = 1000) -> tuple[int, str]:
    """Run the driver until it ends, or dies at the point. Nobody of its process group is left."""
    program, log = folder / "driver.py", folder / "driver.log"
    program.write_text(DRIVER)
    with log.open("wb") as out:
        process = Forked(
            [sys.executable, str(program), str(folder), str(rows_max), place],
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
        self.place = f"{s3server.s3_store_url()}/paid"

    def delta(self) -> list[int]:
        table = self.folder / "delta"
        return sorted(DeltaTable(table).to_pyarrow_table().column("id").to_pylist()) if table.exists() else []

    def iceberg(self) -> list[int]:
        catalog = f"sqlite:///{self.folder / 'catalog.db'}"
        view = IcebergTable("lake.paid", catalog, self.place).open_if_there()
        return [] if view is None else sorted(view.table.scan().to_arrow().column("id").to_pylist())

    def sql(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    def feed(self) -> None:
        with detent.open(f"file:{self.folder / 'store'}") as store:
            start = store.journal("in").info().messages if "in" in store.journals() else 0
            store.journal("in").append_many([b"%d" % number for number in range(start, start + FED)])

    def engine(self) -> tuple[list[int], int]:
        """The journal, and how many messages the queue has: all one transaction a batch."""
        with detent.open(f"file:{self.folder / 'store'}") as store:
            written = "out" in store.journals()
            rows = sorted(json.loads(message.body) for message in store.journal("out").read()) if written else []
            return rows, store.queue("mail").info().available

    def lose_newest(self) -> None:
        """What a power cut leaves of Spark's log: its newest entry is gone, and the note that it was done."""
        entries = {folder: self._entries(folder) for folder in ("offsets", "commits")}
        newest = max(entries["offsets"], default=None)
        for folder, numbers in entries.items():
            if newest in numbers:
                for name in (str(newest), f".{newest}.crc"):
                    (self.folder / "checkpoint" / folder / name).unlink(missing_ok=True)

    def _entries(self, folder: str) -> set[int]:
        path = self.folder / "checkpoint" / folder
        return {int(entry.name) for entry in path.iterdir() if entry.name.isdigit()} if path.exists() else set()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.queue("mail").create()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    return Shop(tmp_path)


# -- without Java ----------------------------------------------------------------------------------------------------


def _made_of(frame: Any, **columns: Callable[[list[int]], Any]) -> Frame:
    """What a sink selects: columns, made of the ids of a batch."""
    types = {"body": BinaryType()}
    schema = StructType([StructField(name, types.get(name, LongType())) for name in columns])
    arrays = [
        [pa.RecordBatch.from_pydict({name: make(batch.column("id").to_pylist()) for name, make in columns.items()})]
        for (batch,) in frame.partitions
    ]
    return Frame(schema, *arrays)


def _ids(ids: list[int]) -> Any:
    return pa.array(ids, pa.int64())


def _bodies(ids: list[int]) -> Any:
    return pa.array([b"%d" % number for number in ids])


def _parts(ids: list[int]) -> Any:
    return pa.array([number % 2 for number in ids], pa.int64())


def write_batches(io: Io, path: str, place: str, first: int) -> None:
    """What Spark has `once` do, for a batch that may have been there before and two more."""
    folder = Path(path)
    with detent.open(f"file:{folder / 'store'}") as store:
        write = once(
            store,
            "shop",
            to_delta(folder / "delta"),
            to_iceberg(
                "lake.paid",
                catalog=f"sqlite:///{folder / 'catalog.db'}",
                location=place,
                partition_by="part",
                select=lambda frame: _made_of(frame, id=_ids, part=_parts),
            ),
            to_sql(f"sqlite:///{folder / 'shop.db'}", "orders"),
            to_journal("out", select=lambda frame: _made_of(frame, body=_bodies)),
            to_queue("mail", select=lambda frame: _made_of(frame, body=_bodies)),
        )
        for batch in range(first, first + 3):
            ids = [range(batch * FED, batch * FED + FED // 2), range(batch * FED + FED // 2, (batch + 1) * FED)]
            parts = [[pa.RecordBatch.from_pydict({"id": _ids(list(part))})] for part in ids]
            rows: Any = Frame(StructType([StructField("id", LongType())]), *parts, run=f"run of {os.getpid()}")
            write(rows, batch)
    io.say("written")


def test_every_sink_has_every_row_once_whatever_its_writer_died_of(
    tmp_path: Path, shop: Shop, processes: Processes
) -> None:
    published = 0
    for point in [*WRITING, ""]:
        first = max(0, published // FED - 1)  # the newest batch comes again, as where Spark's log has lost it
        writer = processes.start(
            write_batches,
            path=str(tmp_path),
            place=shop.place,
            first=first,
            environment={"DETENT_CRASH_AT": point},
            with_spark=True,
        )
        if point:
            assert writer.was_killed(), f"the writer did not come to {point}: {writer.errors()}"
        else:
            writer.expect("written")
        rows, published = shop.engine()
        assert rows == list(range(published)), point
        for found in (shop.delta(), shop.iceberg(), shop.sql()):
            assert found == list(range(len(found)))
            assert len(rows) <= len(found) <= len(rows) + FED, point  # at most the batch that was under way
    assert shop.delta() == shop.iceberg() == shop.sql() == rows == list(range((first + 3) * FED))


# -- with Spark ------------------------------------------------------------------------------------------------------


def test_every_sink_has_every_row_once_whatever_the_driver_died_of(tmp_path: Path, shop: Shop) -> None:
    for point in OF_DRIVERS:
        shop.feed()
        code, log = drive(tmp_path, shop.place, point)  # in the batch that the last one left undone, or in the next
        assert code == (1 if point.startswith((PLANNING, FILE)) else -signal.SIGKILL), (
            f"the driver did not come to {point}: {log}"
        )
        rows, published = shop.engine()
        assert rows == list(range(published)), point
        for found in (shop.delta(), shop.iceberg(), shop.sql()):
            assert found == list(range(len(found)))
            assert len(found) >= len(rows), point  # at most the batch that was under way
        shop.lose_newest()
    shop.feed()
    code, log = drive(tmp_path, shop.place)
    assert code == 0, log
    expected = list(range(FED * (len(OF_DRIVERS) + 1)))
    assert shop.engine() == (expected, len(expected))
    assert shop.delta() == shop.iceberg() == shop.sql() == expected


@pytest.mark.parametrize("point", PLANS)
def test_batch_whose_plan_was_sent_ahead_survives_a_kill(tmp_path: Path, shop: Shop, point: str) -> None:
    """The third batch of a process: its plan is sent while Spark writes its log."""
    for _ in range(4):
        shop.feed()
    code, log = drive(tmp_path, shop.place, f"{point}:3", rows_max=FED)
    assert code == 1, log
    rows, published = shop.engine()
    assert rows == list(range(2 * FED))
    assert published == 2 * FED
    shop.lose_newest()
    shop.feed()
    code, log = drive(tmp_path, shop.place, rows_max=FED)
    assert code == 0, log
    expected = list(range(5 * FED))
    assert shop.engine() == (expected, len(expected))
    assert shop.delta() == shop.iceberg() == shop.sql() == expected
