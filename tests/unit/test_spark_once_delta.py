"""A Delta table as a sink, without a JVM: each batch once, whoever writes it, and nothing that does not fit."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from detent.errors import Corrupt, DetentError, Invalid, LimitExceeded, OtherInput, Unavailable
from detent.extras import install_command
from detent.spark import once_table, to_delta
from detent.tables import delta, files
from detent.tables.marks import BatchKey
from sparkframes import Frame

SCHEMA = StructType([StructField("id", LongType()), StructField("day", StringType())])
KEY = BatchKey("shop", "query", 0, "run")
UTC_TIME = pa.timestamp("us", tz="UTC")


def rows(*ids: int | None, days: list[str | None] | None = None) -> Any:
    columns = [pa.array(ids, pa.int64()), pa.array(days or ["d"] * len(ids), pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["id", "day"])


def frame(*ids: int, mode: str = "Append", **options: Any) -> Any:
    return Frame(SCHEMA, [rows(*ids, **options)], [], mode=mode)


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table().column("id").to_pylist())


def test_a_batch_is_in_the_table_once(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path)
    sink.write(frame(1, 2), KEY)
    again = frame(1, 2)
    sink.write(again, KEY._replace(run="later"))
    assert (ids(path), again.jobs) == ([1, 2], 0)
    sink.write(frame(3), KEY._replace(batch=4))
    sink.write(frame(9), KEY._replace(batch=3))  # a driver that was asleep
    sink.write(frame(4), KEY._replace(query="another"))
    sink.write(frame(5), KEY._replace(name="another"))
    assert ids(path) == [1, 2, 3, 4, 5]
    assert DeltaTable(path).transaction_version("detent:shop:query") == 4


def test_of_two_drivers_with_one_batch_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    to_delta(path).write(frame(1), KEY)
    batch = KEY._replace(batch=1)
    write_files = once_table.write_files

    def slowly(plan: Any, batches: Any) -> Any:
        found = write_files(plan, batches)
        monkeypatch.setattr(once_table, "write_files", write_files)
        if found:
            to_delta(path).write(frame(2), batch)  # the other driver, between our look and our commit
        return found

    monkeypatch.setattr(once_table, "write_files", slowly)
    to_delta(path).write(frame(2), batch)
    assert ids(path) == [1, 2]


def test_other_writers_of_the_table_are_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    to_delta(path).write(frame(1), KEY)
    write_files = once_table.write_files

    def slowly(plan: Any, batches: Any) -> Any:
        write_deltalake(path, pa.table(rows(7)), mode="append")
        return write_files(plan, batches)

    monkeypatch.setattr(once_table, "write_files", slowly)
    to_delta(path).write(frame(2), KEY._replace(batch=1))
    assert ids(path) == [1, 2, 7, 7]


def test_a_commit_that_never_comes_through_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    to_delta(path).write(frame(1), KEY)
    old = DeltaTable(path)
    to_delta(path).write(frame(2), KEY._replace(batch=1))
    monkeypatch.setattr(delta.DeltaPlace, "open", lambda self: old)
    with pytest.raises(Unavailable, match="others wrote to the Delta table"):
        to_delta(path).write(frame(3), KEY._replace(batch=2))
    assert ids(path) == [1, 2]


def test_a_table_is_overwritten_by_each_batch(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, mode="overwrite")
    sink.write(frame(1, 2), KEY)
    sink.write(frame(3), KEY._replace(batch=1))
    sink.write(frame(1, 2), KEY)
    assert ids(path) == [3]
    sink.write(frame(), KEY._replace(batch=2))
    assert ids(path) == []


def test_an_empty_batch_adds_no_version(tmp_path: Path) -> None:
    path = tmp_path / "table"
    to_delta(path).write(frame(), KEY)
    assert DeltaTable(path).version() == 0
    to_delta(path).write(frame(1), KEY._replace(batch=1))
    assert ids(path) == [1]


def test_partitions_hold_the_rows_that_their_values_say(tmp_path: Path) -> None:
    path = tmp_path / "table"
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("day", DateType()),
            StructField("on", BooleanType()),
            StructField("what", StringType()),
        ]
    )
    values = [
        (1, date(2026, 1, 31), True, "a b/c=%"),
        (2, None, True, "a b/c=%"),
        (3, date(2026, 1, 31), None, None),
        (4, date(2026, 1, 31), True, "a b/c=%"),
    ]
    types = [pa.int64(), pa.date32(), pa.bool_(), pa.string()]
    columns = zip(zip(*values, strict=True), types, strict=True)
    batch = pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], names=schema.names)
    to_delta(path, partition_by=["day", "on", "what"]).write(Frame(schema, [batch]), KEY)  # type: ignore[arg-type]
    table = DeltaTable(path)
    assert table.metadata().partition_columns == ["day", "on", "what"]
    assert len(table.file_uris()) == 3
    found = table.to_pyarrow_table().sort_by("id").to_pylist()
    assert [tuple(row[name] for name in schema.names) for row in found] == values
    only = table.to_pyarrow_table(filters=[("day", "=", date(2026, 1, 31)), ("what", "=", "a b/c=%")])
    assert sorted(only.column("id").to_pylist()) == [1, 4]


def test_a_table_keeps_its_own_partitions(tmp_path: Path) -> None:
    path = tmp_path / "table"
    to_delta(path, partition_by="day").write(frame(1, days=["a"]), KEY)
    to_delta(path).write(frame(2, days=["b"]), KEY._replace(batch=1))
    assert DeltaTable(path).to_pyarrow_table(filters=[("day", "=", "b")]).column("id").to_pylist() == [2]
    with pytest.raises(Invalid, match="is partitioned by"):
        to_delta(path, partition_by="id").write(frame(3), KEY._replace(batch=2))


def test_many_types_come_back_as_they_went(tmp_path: Path) -> None:
    path = tmp_path / "table"
    inner = StructType([StructField("x", DecimalType(10, 2))])
    schema = StructType(
        [
            StructField("id", LongType(), False),
            StructField("at", TimestampType()),
            StructField("money", DecimalType(10, 2)),
            StructField("list", ArrayType(inner)),
            StructField("map", MapType(StringType(), DoubleType())),
        ]
    )
    kinds = [
        pa.int64(),
        pa.timestamp("us", tz="Europe/Berlin"),
        pa.decimal128(10, 2),
        pa.list_(pa.struct([("x", pa.decimal128(10, 2))])),
        pa.map_(pa.string(), pa.float64()),
    ]
    moment = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    row = [1, moment, Decimal("1.25"), [{"x": Decimal("2.50")}], [("k", 0.5)]]
    arrays = [pa.array([value], kind) for value, kind in zip(row, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
    to_delta(path).write(Frame(schema, [batch]), KEY)  # type: ignore[arg-type]
    (found,) = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert list(found.values()) == row


# -- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("wait", DayTimeIntervalType(), "wait is interval day to second, which a Delta table does not hold"),
        ("a b", LongType(), "rename 'a b'"),
        ("ID", LongType(), "differ in more than case"),
        ("text", StringType("UNICODE"), "does not hold"),
        ("list", ArrayType(DayTimeIntervalType()), "list is interval"),
    ],
)
def test_columns_that_no_table_holds_are_refused(tmp_path: Path, name: str, kind: DataType, says: str) -> None:
    schema = StructType([StructField("id", LongType()), StructField(name, kind)])
    with pytest.raises(Invalid, match=says):
        to_delta(tmp_path / "table").write(Frame(schema), KEY)  # type: ignore[arg-type]
    assert not (tmp_path / "table").exists()


def test_rows_that_the_table_does_not_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    to_delta(path).write(frame(1), KEY)
    schema = StructType([StructField("id", StringType()), StructField("more", StringType())])
    with pytest.raises(Invalid, match='more is not in the table; day is not in the rows; id is "string" in the rows'):
        to_delta(path).write(Frame(schema), KEY._replace(batch=1))  # type: ignore[arg-type]
    swapped = StructType([SCHEMA["day"], SCHEMA["id"]])
    to_delta(path).write(Frame(swapped, [rows(2).select(["day", "id"])]), KEY._replace(batch=1))  # type: ignore[arg-type]
    assert ids(path) == [1, 2]


def test_nulls_stay_out_of_columns_that_may_not_have_them(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable.create(path, schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())]))
    with pytest.raises(Invalid, match="no id, which may not be null"):
        to_delta(path).write(Frame(SCHEMA, [rows(None)]), KEY)  # type: ignore[arg-type]
    to_delta(path).write(frame(1), KEY)
    assert ids(path) == [1]


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets transaction ids"),
        ({"delta.constraints.positive": "id > 0"}, r"delta\.constraints\.positive"),
    ],
)
def test_tables_that_ask_for_more_are_refused(tmp_path: Path, configuration: dict[str, str], says: str) -> None:
    path = tmp_path / "table"
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    DeltaTable.create(path, schema=schema, configuration=configuration, raise_if_key_not_exists=False)
    with pytest.raises(Invalid, match=says):
        to_delta(path).write(frame(1), KEY)


def test_partitions_of_values_that_have_no_one_text_are_refused(tmp_path: Path) -> None:
    schema = StructType([StructField("id", LongType()), StructField("x", DoubleType())])
    with pytest.raises(Invalid, match="x is double"):
        to_delta(tmp_path / "table", partition_by="x").write(Frame(schema), KEY)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="empty text"):
        to_delta(tmp_path / "other", partition_by="day").write(frame(1, days=[""]), KEY)


def test_too_many_partitions_in_a_task_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PARTITIONS_MAX", 2)
    with pytest.raises(LimitExceeded, match="at most 2 partitions"):
        to_delta(tmp_path / "table", partition_by="day").write(frame(1, 2, 3, days=["a", "b", "c"]), KEY)


# -- files ------------------------------------------------------------------------------------------------------


def test_a_task_holds_a_bounded_part_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    monkeypatch.setattr(files, "FILE_BYTES_TARGET", 1)
    to_delta(path).write(Frame(SCHEMA, [rows(1), rows(2), rows(3)]), KEY)  # type: ignore[arg-type]
    assert len(DeltaTable(path).file_uris()) == 3
    monkeypatch.setattr(files, "FILE_BYTES_TARGET", 1 << 30)
    monkeypatch.setattr(files, "STAGED_BYTES_MAX", 1)
    to_delta(path).write(Frame(SCHEMA, [rows(4), rows(5)]), KEY._replace(batch=1))  # type: ignore[arg-type]
    assert ids(path) == [1, 2, 3, 4, 5]


def test_statistics_round_outwards(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first = datetime(2026, 1, 31, 12, 0, 0, 1_001, tzinfo=UTC)
    last = first + timedelta(microseconds=1)
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("at", TimestampType()),
            StructField("name", StringType()),
            StructField("long", StringType()),
            StructField("on", DateType()),
        ]
    )
    columns = {
        "id": pa.array([3, None, -2], pa.int64()),
        "at": pa.array([first, last, None], UTC_TIME),
        "name": pa.array(["b", "ä", None]),
        "long": pa.array(["x" * 100, "y", "z"]),
        "on": pa.array([date(2026, 1, 31), None, None]),
    }
    to_delta(path).write(Frame(schema, [pa.RecordBatch.from_pydict(columns)]), KEY)  # type: ignore[arg-type]
    log = (path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    (stats,) = [json.loads(json.loads(line)["add"]["stats"]) for line in log if "add" in json.loads(line)]
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {"id": 1, "at": 1, "name": 1, "long": 0, "on": 2}
    assert stats["minValues"] == {"id": -2, "at": "2026-01-31T12:00:00.001Z", "name": "b", "on": "2026-01-31"}
    assert stats["maxValues"] == {"id": 3, "at": "2026-01-31T12:00:00.002Z", "name": "ä", "on": "2026-01-31"}
    for moment in (first, last):
        assert DeltaTable(path).to_pyarrow_table(filters=[("at", "=", moment)]).num_rows == 1
    assert DeltaTable(path).to_pyarrow_table(filters=[("at", ">", last)]).num_rows == 0


@pytest.mark.s3
@pytest.mark.xdist_group("s3")
def test_a_table_on_an_object_store() -> None:
    s3server = pytest.importorskip("s3server")
    url = s3server.s3_store_url() + "/table"
    sink = to_delta(url, partition_by="day")
    sink.write(frame(1, 2, days=["a", "b"]), KEY)
    sink.write(frame(1, 2, days=["a", "b"]), KEY)
    sink.write(frame(3, days=["a"]), KEY._replace(batch=1))
    files = pa.fs.PyFileSystem(DeltaStorageHandler(url))
    for add in pa.table(DeltaTable(url).get_add_actions()).to_pylist():
        assert files.get_file_info(add["path"]).size == add["size_bytes"]
    found = DeltaTable(url).to_pyarrow_table()
    assert sorted(zip(found.column("id").to_pylist(), found.column("day").to_pylist(), strict=True)) == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
    ]


def test_without_the_library_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(DetentError, match=re.escape(install_command("delta"))):
        to_delta("/x")


# -- merging ----------------------------------------------------------------------------------------------------


def pairs(path: Path) -> list[tuple[int, str]]:
    return sorted((row["id"], row["day"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def test_a_merged_batch_replaces_rows_by_key_once(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, merge_on=["id"])
    sink.write(frame(1, 2, days=["a", "b"]), KEY)
    sink.write(frame(2, 3, days=["B", "C"]), KEY._replace(batch=1))
    again = frame(2, 3, days=["x", "y"])
    sink.write(again, KEY._replace(batch=1, run="later"))
    sink.write(frame(1, days=["late"]), KEY)  # a driver that was asleep
    assert (pairs(path), again.jobs) == ([(1, "a"), (2, "B"), (3, "C")], 0)
    version = DeltaTable(path).version()
    sink.write(frame(), KEY._replace(batch=2))
    assert DeltaTable(path).version() == version, "a batch without rows commits nothing"


def test_the_last_row_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first, second = rows(1, 2, 1, days=["a", "b", "c"]), rows(2, 3, days=["d", "e"])
    to_delta(path, merge_on=["id"]).write(Frame(SCHEMA, [first], [second]), KEY)  # type: ignore[arg-type]
    assert pairs(path) == [(1, "c"), (2, "d"), (3, "e")]


def test_a_key_without_a_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with pytest.raises(Invalid, match="1 rows have no id"):
        to_delta(path, merge_on=["id"]).write(Frame(SCHEMA, [rows(1, None)]), KEY)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="merge_on names the column number"):
        to_delta(path, merge_on=["number"]).write(frame(1), KEY)
    assert ids(path) == []


def test_rows_are_merged_on_several_columns_of_a_partitioned_table(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, merge_on=["id", "day"], partition_by="day")
    sink.write(frame(1, 1, 2, days=["a", "b", "a"]), KEY)
    sink.write(frame(1, 2, days=["a", "b"]), KEY._replace(batch=1))
    assert pairs(path) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_of_two_drivers_that_merge_one_batch_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, merge_on=["id"])
    sink.write(frame(1, days=["a"]), KEY)
    batch, collect = KEY._replace(batch=1), once_table.collect

    def slowly(found: Any) -> Any:
        monkeypatch.setattr(once_table, "collect", collect)
        to_delta(path, merge_on=["id"]).write(frame(1, days=["first"]), batch)  # the other driver
        return collect(found)

    monkeypatch.setattr(once_table, "collect", slowly)
    sink.write(frame(1, days=["second"]), batch)
    assert pairs(path) == [(1, "first")]


def test_others_that_write_while_a_batch_is_merged_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, merge_on=["id"])
    sink.write(frame(1, days=["a"]), KEY)
    collect = once_table.collect

    def slowly(found: Any) -> Any:
        write_deltalake(path, pa.table(rows(7, days=["theirs"])), mode="append")
        return collect(found)

    monkeypatch.setattr(once_table, "collect", slowly)
    sink.write(frame(1, 7, days=["b", "ours"]), KEY._replace(batch=1))
    assert pairs(path) == [(1, "b"), (7, "ours")]


def test_a_file_that_a_power_failure_took_is_not_taken_for_written(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path, merge_on=["id"])
    sink.write(frame(1), KEY)
    (file,) = DeltaTable(path).file_uris()
    Path(file).write_bytes(b"")
    with pytest.raises(Corrupt, match=r"power failure cut a commit off.*/_delta_log/0+1\.json") as caught:
        sink.write(frame(1), KEY)
    Path(re.findall(r"Delete that commit, (\S+),", str(caught.value))[0]).unlink()
    sink.write(frame(1), KEY)
    assert ids(path) == [1]


def test_complete_mode_replaces_the_table(tmp_path: Path) -> None:
    for sink in (to_delta(tmp_path / "a"), to_delta(tmp_path / "b", merge_on=["id"])):
        sink.write(frame(1, 2, mode="Complete"), KEY)
        sink.write(frame(2, 3, mode="Complete"), KEY._replace(batch=1))
    assert ids(tmp_path / "a") == ids(tmp_path / "b") == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "mode", "says"),
    [
        ({}, "update", "say which columns name a row"),
        ({"mode": "append"}, "update", "say which columns name a row"),
        ({"mode": "append"}, "complete", "get all rows again"),
    ],
)
def test_an_output_mode_that_leaves_wrong_rows_is_refused(arguments: Any, mode: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        to_delta("table", **arguments).check_mode(mode)
    for fits in ("", "append", "update", "complete"):
        to_delta("table", merge_on=["id"]).check_mode(fits)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    for arguments in ({"merge_on": "id"}, {"merge_on": []}, {"merge_on": ["id", "id"]}, {"merge_on": [1]}):
        with pytest.raises(Invalid, match="merge_on"):
            to_delta("table", **arguments)
    with pytest.raises(Invalid, match="leave mode out"):
        to_delta("table", mode="append", merge_on=["id"])


# -- the input of a batch ---------------------------------------------------------------------------------------


def test_a_batch_with_another_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    sink = to_delta(path)
    one, other = KEY._replace(input=b"1" * 16), KEY._replace(input=b"2" * 16)
    sink.write(frame(0), KEY)  # by an earlier release: the number alone decides
    sink.write(frame(0), one)
    for batch in (1, 2):
        sink.write(frame(batch), one._replace(batch=batch))
    for _ in range(12):
        write_deltalake(path, rows_of_another_writer(), mode="append")  # the log gets a checkpoint
    sink.write(frame(2), one._replace(batch=2, run="later"))
    with pytest.raises(OtherInput, match=r"table has batch 2.*another input.*detent ledger reset shop"):
        sink.write(frame(2, 3), other._replace(batch=2))
    with pytest.raises(OtherInput, match="cannot be compared"):
        sink.write(frame(1), one._replace(batch=1))
    assert ids(path) == [0, 1, 2, *[100] * 12]


def rows_of_another_writer() -> Any:
    return pa.Table.from_batches([rows(100)])
