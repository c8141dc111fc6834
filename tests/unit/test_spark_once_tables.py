"""Tables of both formats as sinks of `once`, without a JVM: evolution, replaced rows, and what is swept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructField, StructType

import tableworld
from detent.errors import Conflict, Corrupt, Invalid, OtherInput
from detent.spark import once_table, stream_query, to_delta, to_iceberg
from detent.spark.pipeline_stream import TableEnd
from detent.tables import maintenance, orphans
from detent.tables.delta import DeltaPlace
from detent.tables.iceberg_table import IcebergTable
from detent.tables.marks import BatchKey
from detent.tables.options import TableOptions
from sparkframes import Frame

SCHEMA = tableworld.SCHEMA
KEY = BatchKey("shop", "query", 0, "run")
NAMES = {pa.int64(): LongType(), pa.int32(): IntegerType(), pa.string(): StringType()}


def frame(batch: Any, *more: Any, mode: str = "Append") -> Any:
    def spark_type(kind: Any) -> Any:
        return DecimalType(kind.precision, kind.scale) if pa.types.is_decimal(kind) else NAMES[kind]

    schema = StructType([StructField(one.name, spark_type(one.type)) for one in batch.schema])
    return Frame(schema, [batch, *more], mode=mode)


class Sinks:
    """Sinks of one table."""

    def __init__(self, kind: str, folder: Path) -> None:
        catalog = f"sqlite:///{folder / 'catalog.db'}"
        self.kind = kind
        self.folder = folder / "table"
        self.catalog = catalog
        self.place = (
            DeltaPlace(str(self.folder)) if kind == "delta" else IcebergTable("lake.t", catalog, str(self.folder))
        )

    def __call__(self, **arguments: Any) -> Any:
        if self.kind == "delta":
            return to_delta(self.folder, **arguments)
        return to_iceberg("lake.t", catalog=self.catalog, location=self.folder, **arguments)

    def rows(self) -> list[dict[str, Any]]:
        return tableworld.rows(self.place)

    def files(self) -> int:
        return sum(1 for _ in self.folder.rglob("*.parquet") if "_delta_log" not in _.parts)


@pytest.fixture(params=["delta", "iceberg"])
def sinks(request: pytest.FixtureRequest, tmp_path: Path) -> Sinks:
    return Sinks(request.param, tmp_path)


def batch(*ids: int, **columns: Any) -> Any:
    return tableworld.batch(*ids, **columns)


def test_batch_is_in_the_table_once(sinks: Sinks) -> None:
    sink = sinks(partition_by="day", sort_by="id")
    sink.write(frame(batch(2, 1)), KEY)
    again = frame(batch(2, 1))
    sink.write(again, KEY._replace(run="later"))
    sink.write(frame(batch(3)), KEY._replace(batch=1))
    sink.write(frame(batch(9)), KEY)
    assert ([row["id"] for row in sinks.rows()], again.jobs) == ([1, 2, 3], 0)


def test_batch_with_another_input_is_refused(sinks: Sinks) -> None:
    sink = sinks()
    sink.write(frame(batch(1)), KEY._replace(input=b"1" * 16))
    with pytest.raises(OtherInput, match=r"table .* has batch 0.*another input"):
        sink.write(frame(batch(2)), KEY._replace(input=b"2" * 16))


def test_complete_mode_replaces_the_table(sinks: Sinks) -> None:
    for number, ids in enumerate(([1, 2], [2, 3], [])):
        sinks().write(frame(batch(*ids), mode="Complete"), KEY._replace(batch=number))
        assert [row["id"] for row in sinks.rows()] == ids


def test_update_mode_replaces_rows_by_key(sinks: Sinks) -> None:
    sink = sinks(merge_on=["id"])
    sink.check_mode("update")
    sink.write(frame(batch(1, 2, day="a"), mode="Update"), KEY)
    sink.write(frame(batch(3, 4, day="a"), mode="Update"), KEY._replace(batch=1))
    sink.write(frame(batch(2, 5, day="b"), batch(2, day="c"), mode="Update"), KEY._replace(batch=2))
    sink.write(frame(batch(2, day="zombie"), mode="Update"), KEY._replace(batch=1))
    assert [(row["id"], row["day"]) for row in sinks.rows()] == [(1, "a"), (2, "c"), (3, "a"), (4, "a"), (5, "b")]
    with pytest.raises(Invalid, match="merge_on"):
        sinks().check_mode("update")


def test_rows_merge_over_a_rival_that_adds_rows(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks(merge_on=["id"]).write(frame(batch(1, day="a")), KEY)
    collect = once_table.collect

    def slowly(rows: Any) -> Any:
        monkeypatch.setattr(once_table, "collect", collect)
        sinks().write(frame(batch(2, day="theirs")), KEY._replace(name="rival"))
        return collect(rows)

    monkeypatch.setattr(once_table, "collect", slowly)
    sinks(merge_on=["id"]).write(frame(batch(1, 2, day="ours")), KEY._replace(batch=1))
    assert [(row["id"], row["day"]) for row in sinks.rows()] == [(1, "ours"), (2, "ours")]


def test_rows_that_do_not_fit_are_refused(sinks: Sinks) -> None:
    sinks().write(frame(batch(1)), KEY)
    with pytest.raises(Invalid, match="more is not in the table"):
        sinks().write(frame(batch(2, more=["x"])), KEY._replace(batch=1))
    with pytest.raises(Invalid, match="day is not in the rows"):
        sinks().write(frame(batch(2).select(["id"])), KEY._replace(batch=1))
    assert [row["id"] for row in sinks.rows()] == [1]


def test_table_follows_its_rows(sinks: Sinks) -> None:
    def money(text: str, precision: int) -> Any:
        return pa.array([text]).cast(pa.decimal128(precision, 2))

    narrow = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32()), "money": money("1.25", 5)})
    sinks(evolve=True).write(frame(narrow), KEY)
    wide = pa.RecordBatch.from_pydict(
        {"id": pa.array([1 << 40], pa.int64()), "day": ["new"], "money": money("2.50", 9)}
    )
    sinks(evolve=True).write(frame(wide), KEY._replace(batch=1))
    sinks(evolve=True).write(frame(wide), KEY._replace(batch=1))
    sinks(evolve=True).write(frame(narrow), KEY._replace(batch=2))
    found = [(row["id"], row["day"], str(row["money"])) for row in sinks.rows()]
    assert found == [(1, None, "1.25"), (1, None, "1.25"), (1 << 40, "new", "2.50")]
    text = pa.RecordBatch.from_pydict({"id": ["text"]})
    with pytest.raises(Invalid, match=r"id is .*string"):
        sinks(evolve=True).write(frame(text), KEY._replace(batch=3))


def test_merged_rows_may_bring_columns(sinks: Sinks) -> None:
    sinks(merge_on=["id"]).write(frame(batch(1, 2)), KEY)
    sinks(merge_on=["id"], evolve=True).write(frame(batch(2, 3, more=["x", "y"])), KEY._replace(batch=1))
    assert [(row["id"], row["more"]) for row in sinks.rows()] == [(1, None), (2, "x"), (3, "y")]


def test_files_of_a_dead_task_are_swept_with_their_batch(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks().write(frame(batch(1)), KEY)
    write_files = once_table.write_files

    def dying(plan: Any, batches: Any) -> Any:
        write_files(plan, batches)
        raise MemoryError("the executor is gone")

    monkeypatch.setattr(once_table, "write_files", dying)
    with pytest.raises(MemoryError):
        sinks().write(frame(batch(2)), KEY._replace(batch=1))
    assert sinks.files() == 2
    monkeypatch.setattr(once_table, "write_files", write_files)
    sinks().write(frame(batch(2)), KEY._replace(batch=1, run="later"))
    assert ([row["id"] for row in sinks.rows()], sinks.files()) == ([1, 2], 2)


def test_batch_whose_files_a_vacuum_deleted_is_refused_and_written_anew(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that stands still for longer than the retention, between its tasks' last file and its commit."""
    sinks().write(frame(batch(1)), KEY)
    commit, now = type(sinks.place).commit, orphans.sweeping_time_s()

    def slow(place: Any, *given: Any) -> Any:
        monkeypatch.setattr(orphans, "sweeping_time_s", lambda: now + 8 * 86_400)
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "FLOOR_S", 0.0)
            time.sleep(0.1)
            assert maintenance.vacuum(place, 0.0)
        return commit(place, *given)

    monkeypatch.setattr(type(sinks.place), "commit", slow)
    with pytest.raises(Conflict, match=r"deleted before it was committed.*written anew"):
        sinks().write(frame(batch(2)), KEY._replace(batch=1))
    monkeypatch.setattr(type(sinks.place), "commit", commit)
    sinks().write(frame(batch(2)), KEY._replace(batch=1, run="later"))
    assert [row["id"] for row in sinks.rows()] == [1, 2]


def test_commit_during_which_a_vacuum_deleted_its_files_says_which(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, now = type(sinks.place).commit, orphans.sweeping_time_s()

    def slow(place: Any, *given: Any) -> Any:
        done = commit(place, *given)
        for file in sinks.folder.rglob("part-*.parquet"):
            file.unlink()
        return done

    sinks().write(frame(batch(1)), KEY)
    monkeypatch.setattr(orphans, "sweeping_time_s", lambda: now + 8 * 86_400)
    monkeypatch.setattr(type(sinks.place), "commit", slow)
    with pytest.raises(Corrupt, match=r"names files that were deleted.*part-"):
        sinks().write(frame(batch(2)), KEY._replace(batch=1))


def test_sinks_of_tables_can_be_sent_to_another_process(sinks: Sinks) -> None:
    import pickle

    pickle.loads(pickle.dumps(sinks())).write(frame(batch(1)), KEY)
    assert [row["id"] for row in sinks.rows()] == [1]


def test_table_with_too_many_small_files_is_compacted(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_table, "LOOK_EVERY", 1)
    sink = sinks(compact_after=2)
    for number in range(4):
        sink.write(frame(batch(number)), KEY._replace(batch=number))
        sink.write(frame(batch(number)), KEY._replace(batch=number))
    assert ([row["id"] for row in sinks.rows()], maintenance.info(sinks.place).files) == ([0, 1, 2, 3], 2)
    with pytest.raises(Invalid, match="compact_after"):
        sinks(compact_after=-1)


def test_batch_is_in_also_when_its_table_cannot_be_compacted(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(place: Any) -> int:
        raise Conflict("others were faster")

    monkeypatch.setattr(once_table, "LOOK_EVERY", 1)
    monkeypatch.setattr(maintenance, "compact", fail)
    for number in range(2):
        sinks(compact_after=1).write(frame(batch(number)), KEY._replace(batch=number))
    assert [row["id"] for row in sinks.rows()] == [0, 1]
    assert "was not compacted: others were faster" in caplog.text


def test_table_of_a_pipeline_is_the_same_sink(sinks: Sinks) -> None:
    options = TableOptions.checked(merge_on=["id"], sort_by="id")
    where: dict[str, Any] = {"path": sinks.folder}
    if sinks.kind == "iceberg":
        where = {"path": "lake.t", "catalog": sinks.catalog, "location": sinks.folder}
    table = TableEnd.at(options=options, **where)
    for number, day in enumerate(("a", "b")):
        stream_query._table_sink(table).write(frame(batch(1, 2 + number, day=day)), KEY._replace(batch=number))
    assert [(row["id"], row["day"]) for row in sinks.rows()] == [(1, "b"), (2, "a"), (3, "b")]
