"""`read_table`: Delta and Iceberg tables as DataFrames, in a folder and on an object store, without a jar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import sparkling
import tableworld
from detent.errors import Invalid, NotFound
from detent.spark import read_table
from detent.tables.delta import DeltaPlace, properties
from detent.tables.files import write_files
from detent.tables.iceberg_table import IcebergTable, Stamp
from detent.tables.scans import DeltaScan, IcebergScan, check_readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = sparkling.MARKS

DAYS = ("2026-01-01", "2026-01-02", None)


def fill(place: Any) -> None:
    """Three files, one a day, of ten rows each."""
    for number, day in enumerate(DAYS):
        view = place.open()
        rows = tableworld.batch(*range(number * 10, number * 10 + 10), day=day)
        files = write_files(place.plan(view, folder=f"data/{number}"), [rows])
        versions = (("fill", number),)
        stamp = properties(versions) if isinstance(place, DeltaPlace) else Stamp(versions)
        place.commit(lambda _, stamp=stamp: stamp, place.adding(view, files), 1, view)


def read(spark: SparkSession, place: Any, **how: Any) -> DataFrame:
    if isinstance(place, DeltaPlace):
        return read_table(spark, place.uri, storage_options=place.storage, **how)
    return read_table(spark, place.name, catalog=place.given, storage_options=place.storage, **how)


def scan(place: Any, where: Any) -> Any:
    view = place.open()
    return DeltaScan(view, place.uri, {}, where) if isinstance(place, DeltaPlace) else IcebergScan(view, where)


@pytest.mark.s3
@pytest.mark.parametrize("s3", [False, True])
@pytest.mark.parametrize("make", [tableworld.delta, tableworld.iceberg])
def test_table_is_read_with_its_partitions(spark: SparkSession, tmp_path: Path, make: Any, s3: bool) -> None:
    place = make(tmp_path, s3=s3, partition_by=["day"])
    fill(place)
    frame = read(spark, place)
    assert sorted((row.id, row.day) for row in frame.collect()) == [(n, DAYS[n // 10]) for n in range(30)]
    assert frame.where("day = '2026-01-02' AND id > 15").count() == 4
    some = read(spark, place, where=[("day", "=", DAYS[1]), ("id", ">", 15)])
    assert sorted(row.id for row in some.collect()) == [16, 17, 18, 19]


@pytest.mark.parametrize("make", [tableworld.delta, tableworld.iceberg])
def test_files_without_the_rows_are_not_read(tmp_path: Path, make: Any) -> None:
    place = make(tmp_path, partition_by=["day"])
    fill(place)
    for where, files in (
        ([], 3),
        ([("day", "=", DAYS[0])], 1),
        ([("id", ">=", 20)], 1),
        ([("id", "<", 11)], 2),
        ([("id", "=", 100)], 0),
        ([("day", "=", DAYS[0]), ("id", ">", 9)], 0),
    ):
        assert len(scan(place, where).sizes) == files, where
    for wrong in ("day = 1", ("nothing", "=", 1), ("day", "~", 1), ("day", "=", None)):
        with pytest.raises(Invalid):
            scan(place, [wrong])


def test_bounds_that_leave_values_out_hide_no_row(tmp_path: Path) -> None:
    """Those of times are whole milliseconds in a log, and those of fractions know no NaN."""
    moment = datetime(2026, 1, 31, 12, 0, 0, 999, tzinfo=UTC)
    rows = pa.table({"at": pa.array([moment], pa.timestamp("us", tz="UTC")), "x": [float("nan")]})
    write_deltalake(tmp_path, rows)
    view = DeltaTable(tmp_path)
    for where in ([("at", "=", moment)], [("at", ">=", moment)], [("x", ">", 1.0)]):
        assert len(DeltaScan(view, str(tmp_path), {}, where).sizes) == 1, where
    assert DeltaScan(view, str(tmp_path), {}, [("at", ">", moment + timedelta(milliseconds=2))]).sizes == []


def test_other_readers_pass_over_files_by_partitions_and_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    delta, iceberg = (
        tableworld.delta(tmp_path, partition_by=["day"]),
        tableworld.iceberg(tmp_path / "i", partition_by=["day"]),
    )
    fill(delta)
    fill(iceberg)
    ((_, plan),) = duckdb.sql(
        f"EXPLAIN ANALYZE SELECT * FROM read_parquet('{delta.uri}/data/*/*/*.parquet', hive_partitioning=true) "
        "WHERE day = '2026-01-01'"
    ).fetchall()
    assert "Scanning Files: 1/3" in plan
    for file in Path(delta.uri).glob("data/*/day=2026-01-02/*.parquet"):
        file.unlink()  # a reader that opened it would fail
    assert polars.scan_delta(delta.uri).filter(polars.col("day") == DAYS[0]).select("id").collect().height == 10
    assert polars.scan_delta(delta.uri).filter(polars.col("id") < 5).select("id").collect().height == 5
    for file in Path(iceberg.location or "").glob("data/*/day=2026-01-02/*.parquet"):
        file.unlink()
    table = iceberg.open().table
    assert polars.scan_iceberg(table).filter(polars.col("day") == DAYS[0]).select("id").collect().height == 10
    assert table.scan(row_filter="id < 5").to_arrow().num_rows == 5


def test_one_version_is_read_also_when_the_table_moves_on(spark: SparkSession, tmp_path: Path) -> None:
    for place in (tableworld.delta(tmp_path), tableworld.iceberg(tmp_path / "i")):
        fill(place)
        frame = read(spark, place)
        view: Any = place.open()
        old = 1 if isinstance(place, DeltaPlace) else view.table.snapshots()[0].snapshot_id
        fill(place)
        assert (frame.count(), read(spark, place, version=old).count(), read(spark, place).count()) == (30, 10, 60)


def test_columns_that_were_added_and_widened_are_read(spark: SparkSession, tmp_path: Path) -> None:
    from pyiceberg.types import DateType, LongType

    place = IcebergTable("lake.t", f"sqlite:///{tmp_path / 'c.db'}", str(tmp_path / "t"))
    place.create(pyiceberg_schema(pa.schema([("n", pa.int32())])))
    append(place, pa.record_batch({"n": pa.array([1], pa.int32())}))
    with place.open().table.update_schema() as update:
        update.update_column("n", field_type=LongType())
        update.add_column("day", DateType())
        update.rename_column("n", "number")
    append(place, pa.record_batch({"number": pa.array([1 << 40], pa.int64()), "day": [date(2026, 1, 31)]}))
    found = sorted(tuple(row) for row in read(spark, place).collect())
    assert found == [(1, None), (1 << 40, date(2026, 1, 31))]


def pyiceberg_schema(schema: Any) -> Any:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def append(place: IcebergTable, rows: Any) -> None:
    view = place.open()
    place.commit(lambda _: Stamp(()), place.adding(view, write_files(place.plan(view), [rows])), 1, view)


def test_what_is_no_table_of_plain_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no Delta table"):
        read_table(spark, str(tmp_path / "nothing"))
    place = tableworld.delta(tmp_path)
    table = DeltaTable(place.uri)
    table.alter.add_feature([deletion_vectors()], allow_protocol_versions_increase=True)
    with pytest.raises(Invalid, match="deletionVectors"):
        check_readable(DeltaTable(place.uri), place.uri)


def deletion_vectors() -> Any:
    from deltalake import TableFeatures

    return TableFeatures.DeletionVectors
