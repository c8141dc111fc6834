"""Iceberg tables: rows and shards in one commit, on SQLite and PostgreSQL. Spark is not needed, only its types."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import postgresserver
from detent.errors import Invalid, NotFound, OutcomeUnknown, ShardsLost, Unavailable
from detent.extras import install_command
from detent.ingest.commit_iceberg import IcebergCommitter
from detent.ingest.committer import BatchOutput
from detent.ingest.metastore import connect
from detent.ingest.shard_sql import BATCHES, SHARDS
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.runtime.backoff import Backoff
from detent.tables import iceberg
from detent.tables.files import WrittenFile
from detent.tables.iceberg import CATALOG_NAME
from detent.tables.iceberg_metadata import (
    MANIFESTS_MERGED_AT,
    METADATA_KEPT,
    SNAPSHOTS_KEPT,
    path_of,
    reached_files,
)

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])
NAME = "lake.orders"
NUMBERS = itertools.count(1)


class Pipeline:
    """One run of a pipeline: its shards, its table, and the files that Spark would have written for it."""

    def __init__(self, lake: Lake, source: str = "orders") -> None:
        self.state = QueueSharedState(lake.connect(), source, uuid.uuid4().hex, grace_ms=60_000)
        self.committer = IcebergCommitter(str(lake.location), self.state, NAME)

    def prepared(self, schema: StructType = SCHEMA) -> Pipeline:
        self.committer.prepare(schema)
        return self

    def take(self, *names: str) -> list[FileShard]:
        shards = [FileShard(name.encode(), f"file:///{name}", "", 10) for name in names]
        opened = self.state.open(shards)
        assert set(opened.granted) == {shard.key for shard in shards}
        return shards

    def write(self, *tables: pa.Table | list[int], schema: StructType = SCHEMA) -> BatchOutput:
        batch = f"{self.state.token}-{next(NUMBERS):06d}"
        folder = Path(self.committer.folder_of(batch))
        folder.mkdir(parents=True)
        files = []
        for number, rows in enumerate(tables):
            table = rows if isinstance(rows, pa.Table) else rows_of(rows)
            path = folder / f"part-{number}.parquet"
            pq.write_table(table, path)
            name = f"data/{batch}/{path.name}"
            files.append(WrittenFile(name, path.stat().st_size, table.num_rows, {}, 0, "{}"))
        return BatchOutput(batch, str(folder), tuple(files), schema)

    def publish(self, names: Iterable[str], *ids: list[int]) -> BatchOutput:
        shards, output = self.take(*names), self.write(*ids)
        self.committer.publish(shards, output)
        return output


class Lake:
    """A database and a folder for one table."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.location = folder / "orders"
        self.engines: list[sqlalchemy.Engine] = []
        self.engine = self.connect()
        self._stranger: SqlCatalog | None = None

    def connect(self) -> sqlalchemy.Engine:
        """As another process would."""
        self.engines.append(connect(self.url))
        return self.engines[-1]

    def close(self) -> None:
        for engine in (*self.engines, *([self._stranger.engine] if self._stranger else [])):
            engine.dispose()

    def pipeline(self, source: str = "orders") -> Pipeline:
        return Pipeline(self, source)

    def table(self) -> Any:
        """As a stranger finds it, with a catalog of its own."""
        self._stranger = self._stranger or SqlCatalog(CATALOG_NAME, uri=self.url, warehouse=str(self.location))
        return self._stranger.load_table(NAME)

    def ids(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["id"].to_pylist())

    def done(self) -> dict[str, str]:
        """The finished shards, and their batches."""
        query = sqlalchemy.select(SHARDS.c.shard, SHARDS.c.batch).where(SHARDS.c.state == "done")
        with self.engine.connect() as connection:
            return {bytes(row.shard).decode(): row.batch for row in connection.execute(query)}

    def batches(self) -> dict[str, tuple[int, int, int]]:
        with self.engine.connect() as connection:
            rows = connection.execute(sqlalchemy.select(BATCHES).where(BATCHES.c.shards > 0)).all()
        return {row.batch: (row.shards, row.files, row.rows) for row in rows}

    def metadata_files(self) -> set[str]:
        return {path.name for path in (self.location / "metadata").iterdir()}

    def data_folders(self) -> set[str]:
        return {path.name for path in (self.location / "data").iterdir()}


POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(params=["sqlite", POSTGRES])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    url = postgresserver.new_database() if request.param == "postgresql" else f"sqlite:///{tmp_path}/shards.db"
    with contextlib.closing(Lake(url, tmp_path)) as lake:
        yield lake


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Lake]:
    with contextlib.closing(Lake(f"sqlite:///{tmp_path}/shards.db", tmp_path)) as lake:
        yield lake


def rows_of(ids: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{one}" for one in ids], pa.string())})


def between_write_and_swap(pipeline: Pipeline, work: Callable[[], object]) -> list[int]:
    """Do something once, after the pipeline wrote its metadata and before it moves the pointer; counts the attempts."""
    catalog: Any = pipeline.committer._place._catalog
    write, attempts = catalog._write_metadata, []

    def interrupted(*args: Any, **options: Any) -> None:
        write(*args, **options)
        attempts.append(1)
        if len(attempts) == 1:
            work()

    catalog._write_metadata = interrupted
    return attempts


# -- publishing -------------------------------------------------------------------------------------------------


def test_rows_and_shards_are_published_together(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or Polars warns that it could be faster
    pipeline = lake.pipeline().prepared()
    output = pipeline.publish(["a", "b"], [1, 2], [3])
    assert lake.done() == {"a": output.batch, "b": output.batch}
    assert lake.batches() == {output.batch: (2, 2, 3)}
    assert pipeline.committer.live_batches() == {output.batch}
    table = lake.table()
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [{"id": one, "name": f"n{one}"} for one in (1, 2, 3)]
    assert polars.scan_iceberg(table).select("id").collect()["id"].sort().to_list() == [1, 2, 3]
    # DuckDB's own extension for Iceberg is not on this machine: it gets the rows, and the list of the files.
    assert duckdb.from_arrow(table.scan().to_arrow()).aggregate("sum(id), count(*)").fetchall() == [(6, 3)]
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert duckdb.sql(f"SELECT sum(id) FROM read_parquet({files})").fetchall() == [(6,)]
    told = table.current_snapshot().summary.additional_properties
    assert (told["detent.batch"], told["detent.token"]) == (output.batch, pipeline.state.token)
    assert told["total-records"] == "3"


def test_a_batch_without_rows_finishes_its_shards(lake: Lake) -> None:
    pipeline = lake.pipeline().prepared()
    before = lake.metadata_files()
    output = pipeline.publish(["empty"])
    assert (lake.done(), lake.batches()) == ({"empty": output.batch}, {output.batch: (1, 0, 0)})
    assert (lake.ids(), lake.metadata_files()) == ([], before)
    with pytest.raises(ShardsLost):
        pipeline.committer.publish([FileShard(b"empty", "", "", 1)], pipeline.write())
    assert len(lake.batches()) == 1


def test_a_stolen_shard_refuses_the_commit_and_is_named(lake: Lake) -> None:
    slow, quick = lake.pipeline().prepared(), lake.pipeline()
    slow.publish(["first"], [0])
    shards, output = slow.take("a", "b", "c"), slow.write([1, 2, 3])
    slow.state.release([b"b"])
    quick.take("b")
    before = lake.metadata_files()
    with pytest.raises(ShardsLost) as lost:
        slow.committer.publish(shards, output)
    assert lost.value.shards == {b"b"}
    assert (lake.ids(), set(lake.done()), len(lake.batches())) == ([0], {"first"}, 1)
    assert lake.metadata_files() == before  # a loser cleans up behind itself
    slow.committer.publish([shards[0], shards[2]], slow.write([1, 3]))
    assert (lake.ids(), set(lake.done())) == ([0, 1, 3], {"first", "a", "c"})


def test_the_same_shards_are_not_published_twice(lake: Lake) -> None:
    pipeline = lake.pipeline().prepared()
    shards, output = pipeline.take("a", "b"), pipeline.write([1, 2])
    pipeline.committer.publish(shards, output)
    for again in (output, pipeline.write([1, 2])):
        with pytest.raises(ShardsLost) as lost:
            pipeline.committer.publish(shards, again)
        assert lost.value.shards == {b"a", b"b"}
    assert (lake.ids(), len(lake.batches())) == ([1, 2], 1)


def test_a_rival_between_reading_and_moving_the_pointer(lake: Lake) -> None:
    ours, rival = lake.pipeline().prepared(), lake.pipeline()
    attempts = between_write_and_swap(ours, lambda: rival.publish(["theirs"], [2]))
    advanced: list[int] = []
    advance = ours.state.advance
    ours.state.advance = lambda *args: (advanced.append(1), advance(*args))[1]  # type: ignore[method-assign]
    ours.publish(["ours"], [1])
    assert (lake.ids(), set(lake.done()), len(lake.batches())) == ([1, 2], {"ours", "theirs"}, 2)
    assert (len(attempts), len(advanced)) == (2, 1)  # the first attempt found the pointer moved


def test_a_rival_that_steals_between_attempts_is_noticed_by_the_next(lake: Lake) -> None:
    ours, rival = lake.pipeline().prepared(), lake.pipeline()

    def steal_and_commit() -> None:
        ours.state.release([b"a"])
        rival.publish(["a"], [7])

    between_write_and_swap(ours, steal_and_commit)
    with pytest.raises(ShardsLost):
        ours.publish(["a"], [7])
    assert (lake.ids(), len(lake.batches())) == ([7], 1)


def test_many_that_publish_at_once(lake: Lake) -> None:
    threads, commits = 4, 5
    lake.pipeline().prepared()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            pipeline = lake.pipeline()
            for turn in range(commits):
                pipeline.publish([f"{number}-{turn}"], [number * 100 + turn])
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []
    expected = {(number, turn) for number in range(threads) for turn in range(commits)}
    assert lake.ids() == sorted(number * 100 + turn for number, turn in expected)
    assert set(lake.done()) == {f"{number}-{turn}" for number, turn in expected}
    assert len(lake.batches()) == threads * commits


def test_many_that_make_the_table_at_once(lake: Lake) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def run(number: int) -> None:
        try:
            pipeline = lake.pipeline()
            barrier.wait()
            pipeline.prepared(StructType([*SCHEMA, StructField(f"c{number}", LongType())]))
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == []
    assert {field.name for field in lake.table().schema().fields} == {"id", "name", "c0", "c1", "c2", "c3"}


# -- failures ---------------------------------------------------------------------------------------------------


def test_a_crash_before_the_commit_leaves_the_table_as_it_was(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, sweeper = lake.pipeline().prepared(), lake.pipeline()
    kept = pipeline.publish(["a"], [1])
    foreign = lake.location / "data" / "day=1"  # what another program writes
    foreign.mkdir()
    before, pointer = lake.metadata_files(), lake.table().metadata_location

    def crash(*_args: object) -> None:
        raise KeyboardInterrupt

    shards, output = pipeline.take("b"), pipeline.write([2])
    monkeypatch.setattr(pipeline.state, "advance", crash)
    with pytest.raises(KeyboardInterrupt):
        pipeline.committer.publish(shards, output)
    assert (lake.ids(), set(lake.done()), lake.table().metadata_location) == ([1], {"a"}, pointer)
    assert len(lake.metadata_files() - before) == 3
    assert sweeper.committer.sweep(3600) == 0
    assert len(lake.metadata_files() - before) == 3
    assert sweeper.committer.sweep(-1) == 1
    assert lake.metadata_files() == reached_files(lake.table(), {})
    assert lake.data_folders() == {kept.batch, "day=1"}
    assert lake.ids() == [1]
    monkeypatch.undo()
    with pytest.raises(ShardsLost) as lost:  # it was only asleep
        pipeline.committer.publish(shards, output)
    assert lost.value.shards == {b"b"}
    pipeline.publish(["b"], [2])
    assert lake.ids() == [1, 2]


def test_a_zombie_whose_files_are_swept_under_its_hands_is_refused(lake: Lake) -> None:
    zombie, sweeper = lake.pipeline().prepared(), lake.pipeline()
    between_write_and_swap(zombie, lambda: sweeper.committer.sweep(-1))
    with pytest.raises(ShardsLost):
        zombie.publish(["a"], [1])
    assert (lake.ids(), lake.done(), lake.batches()) == ([], {}, {})


def test_metadata_that_is_swept_under_our_hands_is_written_again(lake: Lake) -> None:
    """Nobody took the shards, and the pointer did not move: only the files are gone."""
    slow, sweeper = lake.pipeline().prepared(), lake.pipeline()
    attempts = between_write_and_swap(slow, lambda: sweeper.committer._place.sweep_metadata(time.time() + 1))
    slow.publish(["a"], [1])
    assert (lake.ids(), len(attempts)) == ([1], 2)
    assert reached_files(lake.table(), {}) <= lake.metadata_files()


def test_a_sweep_waits_for_a_commit_that_is_under_way(lake: Lake) -> None:
    """It found files that no table names, of a batch that nobody committed: both were true a moment ago."""
    pipeline, sweeper = lake.pipeline().prepared(), lake.pipeline()
    advance, swept = pipeline.state.advance, []
    thread = threading.Thread(target=lambda: swept.append(sweeper.committer.sweep(-1)))

    def advance_and_linger(*args: Any) -> None:
        advance(*args)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()

    pipeline.state.advance = advance_and_linger  # type: ignore[method-assign]
    pipeline.publish(["a"], [1])
    thread.join()
    assert (swept, lake.ids(), set(lake.done())) == ([0], [1], {"a"})
    assert lake.metadata_files() == reached_files(lake.table(), {})


def test_all_metadata_is_on_the_disk_before_the_pointer_moves(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = lake.pipeline().prepared()
    before = lake.metadata_files()
    synced: set[int] = set()
    fsync, advance = os.fsync, pipeline.state.advance
    unsynced: list[set[str]] = []

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def look(*args: Any) -> None:
        folder = lake.location / "metadata"
        assert folder.stat().st_ino in synced
        new = lake.metadata_files() - before
        assert len(new) == 3
        unsynced.append({name for name in new if (folder / name).stat().st_ino not in synced})
        advance(*args)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(pipeline.state, "advance", look)
    pipeline.publish(["a"], [1])
    assert unsynced == [set()]


def lose_an_answer(pipeline: Pipeline) -> None:
    """Let the connection break right after the first commit."""
    catalog: Any = pipeline.committer._place._catalog
    commit, answers = catalog.commit_table, []

    def fragile(*args: Any, **options: Any) -> Any:
        answers.append(commit(*args, **options))
        if len(answers) == 1:
            raise sqlalchemy.exc.OperationalError("COMMIT", {}, Exception("connection lost"))
        return answers[-1]

    catalog.commit_table = fragile


def test_a_commit_of_which_the_answer_was_lost_counts(lake: Lake) -> None:
    pipeline = lake.pipeline().prepared()
    lose_an_answer(pipeline)
    pipeline.publish(["a"], [1])
    assert (lake.ids(), set(lake.done()), len(lake.batches())) == ([1], {"a"}, 1)


def test_nobody_can_say_when_the_database_stays_away(sqlite: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = sqlite.pipeline().prepared()
    monkeypatch.setattr(iceberg, "RETRY", Backoff(0.0, 0.0))
    lose_an_answer(pipeline)

    def gone(*_: object) -> bool:
        raise sqlalchemy.exc.OperationalError("SELECT", {}, Exception("nobody answers"))

    monkeypatch.setattr(QueueSharedState, "has_committed", gone)
    with pytest.raises(OutcomeUnknown):
        pipeline.publish(["a"], [1])
    assert sqlite.ids() == [1]


def test_others_that_always_win(sqlite: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = sqlite.pipeline().prepared()
    monkeypatch.setattr(iceberg, "RETRY", Backoff(0.0, 0.0))
    tried: list[int] = []

    def refuse(*_args: object) -> None:
        tried.append(1)
        raise CommitFailedException("another one was first")

    catalog: Any = pipeline.committer._place._catalog
    catalog.commit_table = refuse
    with pytest.raises(Unavailable) as refused:
        pipeline.publish(["a"], [1])
    assert not isinstance(refused.value, OutcomeUnknown)
    assert (len(tried), sqlite.ids(), sqlite.done()) == (iceberg.COMMIT_ATTEMPTS, [], {})


# -- growth -----------------------------------------------------------------------------------------------------


def test_a_table_stays_small_and_whole(sqlite: Lake) -> None:
    pipeline = sqlite.pipeline().prepared()
    commits = 2 * SNAPSHOTS_KEPT + 5
    for turn in range(commits):
        pipeline.publish([f"f{turn}"], [turn])
        if turn == 2:
            sqlite.table().manage_snapshots().create_tag(sqlite.table().current_snapshot().snapshot_id, "kept").commit()
    table = sqlite.table()
    assert SNAPSHOTS_KEPT <= len(table.metadata.snapshots) < 2 * SNAPSHOTS_KEPT + 1
    assert table.snapshot_by_name("kept") is not None
    assert len(table.current_snapshot().manifests(table.io)) < MANIFESTS_MERGED_AT
    assert pipeline.committer.sweep(-1) == 0
    assert sqlite.metadata_files() == reached_files(table, {})
    assert len([name for name in sqlite.metadata_files() if name.endswith(".json")]) <= METADATA_KEPT + 1
    assert (sqlite.ids(), len(sqlite.data_folders())) == (list(range(commits)), commits)
    assert len(table.scan(snapshot_id=table.snapshot_by_name("kept").snapshot_id).to_arrow()) == 3


# -- schemas ----------------------------------------------------------------------------------------------------


def test_new_columns_are_added_and_old_files_have_nulls_there(lake: Lake) -> None:
    pipeline = lake.pipeline().prepared()
    pipeline.publish(["a"], [1])
    inner = StructType([StructField("lat", LongType())])
    wider = StructType(
        [
            StructField("at", TimestampType()),
            *SCHEMA,
            StructField("tags", ArrayType(StringType())),
            StructField("place", inner),
            StructField("more", MapType(StringType(), LongType())),
        ]
    )
    pipeline.committer.prepare(wider)
    kinds = {
        "at": pa.timestamp("us", tz="UTC"),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"lat": pa.int64()}),
        "more": pa.map_(pa.string(), pa.int64()),
    }
    values = {"at": [0], "tags": [["x"]], "place": [{"lat": 5}], "more": [[("k", 1)]]}
    rows = rows_of([2])
    for name, kind in kinds.items():
        rows = rows.append_column(name, pa.array(values[name], kind))
    pipeline.committer.publish(pipeline.take("b"), pipeline.write(rows, schema=wider))
    pipeline.committer.prepare(SCHEMA)  # one that still knows fewer columns
    pipeline.publish(["c"], [3])
    found = {row["id"]: row for row in lake.table().scan().to_arrow().to_pylist()}
    assert found[1]["place"] is found[3]["tags"] is None
    assert (found[2]["place"], found[2]["tags"], found[2]["more"]) == ({"lat": 5}, ["x"], [("k", 1)])
    deeper = StructType([*SCHEMA, StructField("place", StructType([*inner, StructField("lon", LongType())]))])
    pipeline.committer.prepare(deeper)
    assert lake.table().schema().find_type("place.lon") is not None
    assert len(lake.ids()) == 3


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": StringType(), "new": LongType()}, "id is string in the rows and long in the table"),
        ({"ID": LongType(), "new": LongType()}, "ID is called id in the table"),
        ({"id": StructType([StructField("x", LongType())]), "new": LongType()}, "id is struct"),
        ({"new": NullType()}, "new is void"),
        ({"a.b": LongType()}, "'a.b'"),
        ({"new": LongType(), "NEW": LongType()}, "more than case"),
    ],
)
def test_rows_that_can_never_be_of_this_table(sqlite: Lake, columns: dict[str, DataType], said: str) -> None:
    pipeline = sqlite.pipeline().prepared()
    pointer = sqlite.table().metadata_location
    with pytest.raises(Invalid, match=said):
        pipeline.committer.prepare(StructType([StructField(name, kind) for name, kind in columns.items()]))
    assert sqlite.table().metadata_location == pointer


def test_types_become_wider_and_narrower_rows_fit(sqlite: Lake) -> None:
    """Also files that were written before the type became wider, which Iceberg's readers take as they are."""
    narrow = StructType([StructField("id", IntegerType())])

    def few(*ids: int) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int32())})

    early = sqlite.pipeline().prepared(narrow)
    early.committer.publish(early.take("a"), early.write(few(1), schema=narrow))
    waiting = early.take("b"), early.write(few(2), schema=narrow)
    sqlite.pipeline().prepared().publish(["c"], [1 << 40])
    early.committer.publish(*waiting)
    late = sqlite.pipeline().prepared(narrow)
    late.committer.publish(late.take("d"), late.write(few(3), schema=narrow))
    assert sqlite.ids() == [1, 2, 3, 1 << 40]
    assert len(sqlite.table().scan(row_filter="id >= 3").to_arrow()) == 2, "statistics are of the wider type"


def test_preparing_a_table_that_fits_changes_nothing(lake: Lake) -> None:
    lake.pipeline().prepared()
    pipeline = lake.pipeline().prepared()
    pointer = lake.table().metadata_location
    pipeline.prepared(StructType([StructField("id", LongType(), nullable=False)]))
    assert lake.table().metadata_location == pointer


def test_files_that_do_not_fit_are_refused(sqlite: Lake) -> None:
    pipeline = sqlite.pipeline().prepared()
    shards = pipeline.take("a")
    with pytest.raises(Invalid, match="do not fit"):
        pipeline.committer.publish(shards, pipeline.write(pa.table({"id": ["text"]})))
    timed = pa.table({"id": pa.array([0], pa.timestamp("ns"))})
    with pytest.raises(Invalid, match="TIMESTAMP_MICROS"):
        pipeline.committer.publish(shards, pipeline.write(timed))
    missing = pipeline.write([1])
    (sqlite.location / missing.files[0].path).unlink()
    with pytest.raises(NotFound, match="is gone"):
        pipeline.committer.publish(shards, missing)
    assert (sqlite.ids(), sqlite.done()) == ([], {})


# -- which table ------------------------------------------------------------------------------------------------


def test_a_table_belongs_to_one_source_and_one_folder(sqlite: Lake, tmp_path: Path) -> None:
    sqlite.pipeline().prepared()
    with pytest.raises(Invalid, match="belongs to the source 'orders'"):
        sqlite.pipeline("other").prepared()
    elsewhere = IcebergCommitter(str(tmp_path / "elsewhere"), sqlite.pipeline().state, NAME)
    with pytest.raises(Invalid, match="and not in"):
        elsewhere.prepare(SCHEMA)


def test_a_table_that_others_made_is_taken_as_it_is(sqlite: Lake) -> None:
    pipeline = sqlite.pipeline()
    catalog: Any = pipeline.committer._place._catalog
    catalog.create_namespace("lake")
    table = catalog.create_table(NAME, rows_of([]).schema, location=str(sqlite.location))
    table.append(rows_of([0]))
    pipeline.prepared()
    for turn in range(1, 2 * SNAPSHOTS_KEPT + 2):
        pipeline.publish([f"f{turn}"], [turn])
    assert pipeline.committer.sweep(-1) == 0
    assert len(sqlite.table().metadata.snapshots) == 2 * SNAPSHOTS_KEPT + 2  # its history is its owner's
    assert sqlite.ids() == list(range(2 * SNAPSHOTS_KEPT + 2))


def test_names_and_places_that_are_none(sqlite: Lake) -> None:
    state = sqlite.pipeline().state
    for name in ("orders", "lake.", ".orders", ""):
        with pytest.raises(Invalid, match="namespace"):
            IcebergCommitter(str(sqlite.location), state, name)
    with pytest.raises(Invalid, match="folder"):
        IcebergCommitter("s3://bucket/orders", state, NAME)
    with pytest.raises(NotFound):
        IcebergCommitter(str(sqlite.location), state, NAME).table()
    assert sqlite.pipeline().committer.sweep(-1) == 0


def test_without_the_library(sqlite: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    with pytest.raises(Invalid, match=re.escape(install_command("iceberg"))):
        sqlite.pipeline()


def test_locations_are_paths_or_file_urls() -> None:
    assert path_of("/a/b c") == path_of("file:///a/b%20c") == Path("/a/b c")
