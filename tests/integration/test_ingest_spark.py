"""Files of every format through Spark into tables: what is read, what is rescued, what fails alone."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import detent
import sparkling
from detent.errors import Invalid, Unavailable
from detent.ingest import Ingest, IngestConfig, TableCommitter, metastore, pipeline, read_table, steering
from detent.spark import opened
from detent.tables.files import FilePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = sparkling.MARKS


class World:
    """A folder of files, a queue that announces them, and an ingest of them."""

    def __init__(self, spark: SparkSession, store: detent.Store, folder: Path) -> None:
        self.spark, self.store, self.folder = spark, store, folder
        (folder / "in").mkdir()
        store.queue("files").create()

    def put(self, name: str, content: bytes | str | list[Any]) -> str:
        """Write a file, and announce it; lists are lines of JSON."""
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path = self.folder / "in" / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.store.queue("files").publish(str(path).encode())
        return str(path)

    def config(self, **options: Any) -> IngestConfig:
        plain = {
            "name": "t",
            "queue": f"detent:{self.store.url}#files",
            "table": "table",
            "folder": str(self.folder),
            "visibility": "20s",
            "commit_timeout": "10s",
            "retry_delay": "20ms",
            "attempts": 2,
        }
        return IngestConfig(**{**plain, **options})

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """Ingest what there is; all rows of the table."""
        config = self.config(**options)
        self.counters = Ingest(config, spark=self.spark).run(once=True)
        return [row.asDict(recursive=True) for row in read_table(self.spark, config).collect()]

    def quarantine(self) -> dict[str, str]:
        """Why files are in quarantine, by their names."""
        engine = metastore.connect(self.config().state_url)
        try:
            found = steering.files(engine, "t", state="quarantined")
            return {file.uri.rpartition("/")[2]: file.reason for file in found}
        finally:
            engine.dispose()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(pipeline, "POLL_S", 0.02)  # a queue in the same process has no more when it says so
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        yield World(spark, store, tmp_path)
    opened.close_all()


def by_id(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    assert len({row["id"] for row in rows}) == len(rows), "a row came twice"
    return {row["id"]: row for row in rows}


# -- JSON -----------------------------------------------------------------------------------------------------------


def test_lines_that_do_not_fit_are_rescued_whole(world: World) -> None:
    world.put("a.json", '{"id": 1, "n": 5, "new": "x"}\n{"id": "two", "n": 6}\nno json\n{"id": 3, "n": null}\n')
    rows = world.run(schema="id BIGINT, n INT")
    assert sorted(row["_rescued_data"] or "" for row in rows) == ["", "", "no json", '{"id": "two", "n": 6}']
    assert sorted((row["id"], row["n"] or 0) for row in rows if row["_rescued_data"] is None) == [(1, 5), (3, 0)]


def test_a_malformed_line_without_a_rescued_column_fails_its_file_alone(world: World) -> None:
    world.put("good.json", [{"id": 1}])
    world.put("bad.json", '{"id": 2}\nno json\n')
    assert [row["id"] for row in world.run(schema="id BIGINT", rescued_column="")] == [1]
    assert list(world.quarantine()) == ["bad.json"]


def test_new_columns_of_json_are_rescued(world: World) -> None:
    world.put("a.json", '{"id": 1}\n{"id": 2, "new": {"deep": [1, 2]}, "Other": "x"}\n\nno json\n')
    rows = world.run(schema="id BIGINT", new_columns="rescue")
    rescued = {row["id"]: row["_rescued_data"] for row in rows}
    assert rescued[1] is None
    assert json.loads(rescued[2]) == {"new": '{"deep":[1,2]}', "Other": "x"}
    assert rescued[None] == "no json"
    assert len(rows) == 3


def test_a_schema_is_inferred_once_and_then_only_gets_columns(world: World) -> None:
    world.put("a.json", [{"id": 1, "n": 5}])
    assert world.run() == [{"id": 1, "n": 5, "_rescued_data": None}]
    world.put("b.json", [{"id": 2, "n": "not a number", "city": "Rome"}, {"id": 3, "n": 7}])
    rows = by_id(world.run())
    assert rows[1]["city"] is None
    assert rows[2]["city"] == "Rome"
    assert rows[2]["n"] is None
    assert json.loads(rows[2]["_rescued_data"])["n"] == "not a number"
    assert rows[3]["n"] == 7


def test_new_columns_that_are_to_fail_put_their_file_into_quarantine(world: World) -> None:
    for number in range(5):
        world.put(f"{number}.json", [{"id": number}])
    world.put("new.json", [{"id": 9, "new": 1}])
    rows = world.run(schema="id BIGINT", new_columns="fail")
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 4]
    assert "columns that the schema does not have: new" in world.quarantine()["new.json"]


# -- CSV ------------------------------------------------------------------------------------------------------------


def test_columns_of_csv_files_are_matched_by_name(world: World) -> None:
    world.put("a.csv", 'id,name\n1,Ann\n2,"B, C"\n')
    world.put("b.csv", "name,id\nDan,3\n")
    world.put("c.csv.gz", gzip.compress(b"id\n4\n"))
    world.put("empty.csv", "")
    rows = by_id(world.run(format="csv", schema="id BIGINT, name STRING"))
    assert {key: row["name"] for key, row in rows.items()} == {1: "Ann", 2: "B, C", 3: "Dan", 4: None}
    assert world.counters.files == 4


@pytest.mark.parametrize(("rule", "column"), [("add", "city"), ("rescue", "_rescued_data")])
def test_new_columns_of_csv(world: World, rule: str, column: str) -> None:
    world.put("a.csv", "id,city\n1,Rome\n")
    world.put("b.csv", "id\n2\n")
    rows = by_id(world.run(format="csv", schema="id BIGINT", new_columns=rule))
    assert rows[1][column] == ("Rome" if rule == "add" else '{"city":"Rome"}')
    assert rows[2][column] is None


def test_csv_lines_that_do_not_fit_are_rescued(world: World) -> None:
    world.put("a.csv", "id,n\n1,5\n2,five\n3,1,extra\n")
    rows = by_id(world.run(format="csv", schema="id BIGINT, n INT"))
    assert rows[1]["_rescued_data"] is None
    assert rows[2]["_rescued_data"] == "2,five"
    assert rows[3]["_rescued_data"] == "3,1,extra"


def test_csv_without_a_header_goes_by_place(world: World) -> None:
    world.put("a.csv", "1;Ann\n2;Bob\n")
    rows = by_id(world.run(format="csv", schema="id BIGINT, name STRING", options={"header": "false", "sep": ";"}))
    assert rows[2]["name"] == "Bob"


def test_a_csv_header_that_names_a_column_twice_fails_its_file(world: World) -> None:
    world.put("good.csv", "id,name\n1,Ann\n")
    world.put("bad.csv", "id,ID\n1,2\n")
    assert len(world.run(format="csv", schema="id BIGINT, name STRING")) == 1
    assert "twice" in world.quarantine()["bad.csv"]


# -- Parquet, text, binary ------------------------------------------------------------------------------------------


def parquet(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("rule", ["ignore", "add", "rescue"])
def test_new_columns_of_parquet(world: World, rule: str) -> None:
    world.put("a.parquet", parquet(id=[1], city=["Rome"]))
    world.put("b.parquet", parquet(id=[2]))
    rows = by_id(world.run(format="parquet", schema="id BIGINT", new_columns=rule))
    expected = {"ignore": None, "add": "Rome", "rescue": '{"city":"Rome"}'}[rule]
    assert rows[1].get({"add": "city", "rescue": "_rescued_data"}.get(rule, "city")) == expected
    assert set(rows[2].values()) <= {2, None}


def test_a_parquet_file_of_another_type_fails_alone(world: World) -> None:
    world.put("a.parquet", parquet(id=[1, 2]))
    world.put("b.parquet", parquet(id=["x"]))
    world.put("c.parquet", b"no parquet at all")
    assert sorted(row["id"] for row in world.run(format="parquet", schema="id BIGINT")) == [1, 2]
    assert sorted(world.quarantine()) == ["b.parquet", "c.parquet"]


def test_text_and_compressed_text(world: World) -> None:
    world.put("a.txt", "one\ntwo\n")
    world.put("b.txt.gz", gzip.compress(b"three\n"))
    assert sorted(row["value"] for row in world.run(format="text")) == ["one", "three", "two"]


def test_binary_files_say_their_own_names(world: World) -> None:
    path = world.put("a.bin", b"\x00\x01")
    [row] = world.run(format="binary")
    assert (row["path"], bytes(row["content"]), row["length"]) == (f"file://{path}", b"\x00\x01", 2)


@pytest.mark.parametrize(
    ("kind", "content", "schema"),
    [("json", b'{"id": 1}\n', "id INT"), ("csv", b"id\n1\n", "id INT"), ("text", b"1\n", ""), ("binary", b"1", ""),
     ("parquet", parquet(id=[1, 1]), "id BIGINT")],
)  # fmt: skip
def test_rows_say_where_they_came_from(world: World, kind: str, content: bytes, schema: str) -> None:
    path = world.put(f"a b%20{{1}}.{kind}", content)
    rows = world.run(format=kind, schema=schema, metadata=True)
    for number, row in enumerate(rows):
        origin = row["_metadata"]
        assert origin["file_path"] == f"file://{path}"
        assert origin["file_size"] == len(content)
        assert origin["file_version"].startswith("etag:")
        assert origin.get("row_index", number) == number
    assert len(rows) == (2 if kind == "parquet" else 1)


# -- files that are odd, or wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["_hidden.json", ".hidden.json", "a b+c%2B.json", "x{1}[2]*?.json", "é.json", "noending"]
)
def test_names_mean_nothing(world: World, name: str) -> None:
    world.put(name, [{"id": 1}])
    assert by_id(world.run(schema="id INT"))[1]


def test_large_and_small_and_empty_files_in_one_batch(world: World) -> None:
    world.put("large.json", [{"id": number} for number in range(50_000)])
    world.put("small.json", [{"id": -1}])
    world.put("empty.json", "")
    assert len(by_id(world.run(schema="id BIGINT"))) == 50_001
    assert (world.counters.batches, world.counters.files) == (1, 3)


def test_only_empty_files_are_finished_too(world: World) -> None:
    world.put("empty.json", "")
    counters = Ingest(world.config(), spark=world.spark).run(once=True)
    assert (counters.files, counters.rows, counters.acknowledged) == (1, 0, 1)


def test_one_poison_file_hurts_no_neighbour(world: World) -> None:
    for number in range(20):
        world.put(f"{number}.json", [{"id": number}])
    world.put("bad.json.gz", gzip.compress(b'{"id": 99}\n' * 10_000)[:-20])
    assert len(by_id(world.run(schema="id BIGINT"))) == 20
    assert list(world.quarantine()) == ["bad.json.gz"]
    assert world.counters.failures == 2


def test_a_row_that_the_transform_cannot_stand_is_its_files_fault(world: World) -> None:
    def refuse(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", "IF(id = 13, raise_error('unlucky'), id) AS again")

    for number in range(10, 18):
        world.put(f"{number}.json", [{"id": number}])
    rows = world.run(schema="id BIGINT", transform=refuse)
    assert sorted(row["id"] for row in rows) == [10, 11, 12, 14, 15, 16, 17]
    assert "unlucky" in world.quarantine()["13.json"]


def test_a_transform_that_is_wrong_ends_the_pipeline_and_blames_no_file(world: World) -> None:
    def wrong(rows: DataFrame) -> DataFrame:
        return rows.select("no_such_column")

    world.put("a.json", [{"id": 1}])
    with pytest.raises(Exception, match="no_such_column"):
        world.run(schema="id BIGINT", transform=wrong)
    assert world.quarantine() == {}
    assert by_id(world.run(schema="id BIGINT"))[1], "what was let go of can be had at once"


def test_a_table_that_cannot_be_written_is_no_files_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSING_MAX", 0)
    world.put("a.json", [{"id": 1}])
    blocked = world.folder / "blocked"
    blocked.write_text("a file where a folder is to be")
    with monkeypatch.context() as patch:
        for name in ("plan", "probe"):
            planned = getattr(TableCommitter, name)
            moved = partial(_moved, planned, str(blocked / "table"))
            patch.setattr(TableCommitter, name, lambda self, *given, moved=moved: moved(self, *given))
        with pytest.raises(Unavailable, match="cannot write to"):
            world.run(schema="id BIGINT")
    assert world.quarantine() == {}
    assert by_id(world.run(schema="id BIGINT"))[1]


def _moved(planned: Callable[..., FilePlan], place: str, *given: Any) -> FilePlan:
    return dataclasses.replace(planned(*given), uri=place)


@pytest.mark.parametrize("name", ["table", "table/data"])
def test_a_table_that_is_a_file_is_refused_at_once(world: World, name: str) -> None:
    path = world.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a file where the table is to be")
    with pytest.raises(Invalid, match=r"name a folder|cannot be"):
        world.run(schema="id BIGINT")


MINE = """
from pyspark.sql import functions as F
from beside import twice

@F.udf("bigint")
def more(number):
    return twice(number) + 1

def double(rows):
    return rows.select(more("id").alias("id"))
"""


def test_a_transform_from_a_file(world: World) -> None:
    (world.folder / "mine.py").write_text(MINE)
    (world.folder / "beside.py").write_text("def twice(number):\n    return 2 * number\n")
    world.put("a.json", [{"id": 4}])
    assert world.run(schema="id BIGINT", transform="mine.py:double") == [{"id": 9}]
    with pytest.raises(Invalid, match="no function nope"):
        world.run(schema="id BIGINT", transform="mine.py:nope")


def test_data_in_messages(world: World) -> None:
    for number in range(3):
        world.store.queue("files").publish(json.dumps({"id": number}).encode())
    assert len(by_id(world.run(schema="id INT", message="data"))) == 3


def test_the_session_is_left_as_it_was(world: World) -> None:
    before = world.spark.conf.get("spark.sql.files.openCostInBytes")
    world.put("a.json", [{"id": 1}])
    world.run(schema="id INT")
    assert world.spark.conf.get("spark.sql.files.openCostInBytes") == before


# -- tables that others read ----------------------------------------------------------------------------------------

RICH = "id BIGINT, at TIMESTAMP, day DATE, price DECIMAL(12,2), tags ARRAY<STRING>, who STRUCT<name: STRING, age: INT>"
RICH_ROW = {
    "id": 1,
    "at": "2026-01-02T03:04:05.123456Z",
    "day": "2026-01-02",
    "price": 12.34,
    "tags": ["a", "b"],
    "who": {"name": "Ann", "age": 7},
}


def asked(table: pa.Table) -> Callable[[str], Any]:
    connection = duckdb.connect()
    connection.register("found", table)
    return lambda sql: connection.sql(f"SELECT {sql} FROM found").fetchall()


def of_manifest(config: IngestConfig) -> list[Callable[[str], Any]]:
    engine = metastore.connect(config.state_url)
    with engine.connect() as connection:
        paths = [row.path for row in connection.exec_driver_sql("SELECT path FROM detent_ingest_manifest")]
    engine.dispose()
    return [
        lambda sql: duckdb.sql(f"SELECT {sql} FROM read_parquet({paths!r})").fetchall(),
        lambda sql: polars.read_parquet(paths).sql(f"SELECT {sql} FROM self").rows(),
    ]


def of_delta(config: IngestConfig) -> list[Callable[[str], Any]]:
    from deltalake import DeltaTable

    found = DeltaTable(config.location).to_pyarrow_table()
    return [
        asked(found),
        lambda sql: polars.read_delta(config.location).sql(f"SELECT {sql} FROM self").rows(),
        lambda _: [(found.num_rows,)],
    ]


def of_iceberg(config: IngestConfig) -> list[Callable[[str], Any]]:
    from pyiceberg.catalog.sql import SqlCatalog

    table = SqlCatalog("detent", uri=config.state_url).load_table(f"detent.{config.name}")
    return [
        asked(table.scan().to_arrow()),
        lambda sql: polars.scan_iceberg(table).collect().sql(f"SELECT {sql} FROM self").rows(),
    ]


@pytest.mark.parametrize(("kind", "readers"), [("manifest", of_manifest), ("delta", of_delta), ("iceberg", of_iceberg)])
def test_other_engines_read_the_table(world: World, kind: str, readers: Callable[..., Any]) -> None:
    world.put("a.json", [RICH_ROW])
    config = world.config(schema=RICH, committer=kind)
    Ingest(config, spark=world.spark).run(once=True)
    for read in readers(config):
        [row] = read("count(*)")
        assert row[0] == 1
    duck = readers(config)[0]
    assert duck("id, CAST(price AS DOUBLE), who.name, len(tags), day::VARCHAR") == [(1, 12.34, "Ann", 2, "2026-01-02")]
    [(at,)] = duck('epoch_us("at")')
    assert at == 1_767_323_045_123_456


@pytest.mark.parametrize("kind", ["manifest", "delta", "iceberg"])
def test_a_table_gets_new_columns_and_keeps_its_types(world: World, kind: str) -> None:
    world.put("a.json", [{"id": 1}])
    config = world.config(committer=kind)
    Ingest(config, spark=world.spark).run(once=True)
    world.put("b.json", [{"id": 2, "city": "Rome"}])
    assert Ingest(config, spark=world.spark).run(once=True).files == 1
    readers = {"manifest": of_manifest, "delta": of_delta, "iceberg": of_iceberg}[kind](config)
    assert readers[-2 if kind == "delta" else 0]("count(*)")[0][0] == 2

    def other(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("CAST(id AS STRING) AS id")

    world.put("c.json", [{"id": 3}])
    with pytest.raises(Invalid, match="id"):
        Ingest(world.config(committer=kind, transform=other), spark=world.spark).run(once=True)


@pytest.mark.parametrize(("kind", "read"), [("delta", of_delta), ("iceberg", of_iceberg)])
def test_rows_replace_older_ones_with_their_key_and_types_become_wider(
    world: World, kind: str, read: Callable[..., Any]
) -> None:
    how: dict[str, Any] = {"committer": kind, "merge_on": ["id"], "newest_by": "CAST(at AS BIGINT) AS version"}
    world.put("a.json", [{"id": 1, "at": 2, "what": "a"}, {"id": 2, "at": 2, "what": "a"}, {"id": 1, "at": 1}])
    Ingest(world.config(schema="id INT, at INT, what STRING", **how), spark=world.spark).run(once=True)
    world.put("b.json", [{"id": 1, "at": 1, "what": "late"}, {"id": 2, "at": 3, "what": "b"}, {"id": 1 << 40, "at": 1}])
    world.put("bad.json", [{"id": 3, "at": 1}, {"at": 9, "what": "no key"}])
    wide = world.config(schema="id BIGINT, at INT, what STRING", **how)
    counters = Ingest(wide, spark=world.spark).run(once=True)
    assert (counters.files, counters.quarantined) == (1, 1)
    assert "a row has no id" in world.quarantine()["bad.json"]
    assert sorted(read(wide)[0]("id, what, version"), key=lambda row: row[0]) == [
        (1, "a", 2),
        (2, "b", 3),
        (1 << 40, None, 1),
    ]
    with pytest.raises(Invalid, match="types of a source only become wider"):
        Ingest(world.config(schema="id STRING", **how), spark=world.spark).run(once=True)
