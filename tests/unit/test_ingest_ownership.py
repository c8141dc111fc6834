"""A source whose table is gone, or was replaced, is refused until the table is back or the ingest was reset."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType
from sqlalchemy import Engine, delete, select

import postgresserver
from detent.errors import Conflict, DetentError, Fenced, Invalid
from detent.ingest import forgetting, metastore, ownership, steering
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.committers import committer_of
from detent.ingest.config import IngestConfig
from detent.ingest.epoch import EPOCH
from detent.ingest.ownership import MARKED, TABLE, note, noted
from detent.ingest.shard_sql import FILES, SOURCES
from detent.ingest.shared_state import BatchRecord, FileShard, QueueSharedState
from detent.sql.transactions import transact
from detent.tables.files import WrittenFile
from processes import Io, Processes

SCHEMA = StructType([StructField("id", LongType()), StructField("d", StringType())])
NUMBERS = itertools.count(1)
POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))
KINDS = ["manifest", "delta", "iceberg"]


class Lake:
    """An ingest with its database and its table, and pipelines without Spark."""

    def __init__(self, folder: Path, kind: str, url: str = "") -> None:
        self.folder = folder
        self.config = IngestConfig(
            name="orders", queue="sqs:new", table="lake", committer=kind, folder=str(folder), state=url
        )
        self.engine: Engine = metastore.connect(self.config.state_url)

    @property
    def table(self) -> Path:
        return Path(self.config.location)

    def pipeline(self) -> TableCommitter:
        """What a pipeline does before Spark starts."""
        ownership.register(self.engine, self.config)
        shared = QueueSharedState(self.engine, "orders", uuid.uuid4().hex, 60_000)
        committer = committer_of(self.config, shared)
        committer.require_owned()
        return committer

    def publish(self, committer: TableCommitter, name: str, *ids: int) -> None:
        committer.prepare(SCHEMA)
        shard = FileShard(name.encode(), f"file:///{name}", "", 1)
        assert committer.state.open([shard]).granted
        committer.publish([shard], self.write(committer, *ids))

    def write(self, committer: TableCommitter, *ids: int) -> BatchOutput:
        """The files that Spark would have written."""
        batch = f"{committer.state.token}-{next(NUMBERS):06d}"
        folder = Path(committer.folder_of(batch))
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(ids), "d": ["x"] * len(ids)}), folder / "part.parquet")
        size = (folder / "part.parquet").stat().st_size
        file = WrittenFile(f"data/{batch}/part.parquet", size, len(ids), {}, 0, "{}")
        return BatchOutput(batch, str(folder), (file,), SCHEMA)

    def settings(self) -> dict[str, Any]:
        with self.engine.begin() as connection:
            found = noted(connection, "orders")
        assert found is not None
        return found

    def as_earlier(self) -> None:
        """What a source of an earlier release has noted."""
        kept = {name: value for name, value in self.settings().items() if name not in {TABLE, MARKED}}
        with self.engine.begin() as connection:
            note(connection, "orders", kept)

    def ids(self) -> list[int]:
        """The rows of the table, as its readers find them."""
        if self.config.committer == "delta":
            import polars

            return sorted(polars.read_delta(str(self.table))["id"])
        if self.config.committer == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog("detent", uri=self.config.state_url, warehouse=str(self.table))
            try:
                return sorted(catalog.load_table("detent.orders").scan().to_arrow()["id"].to_pylist())
            finally:
                catalog.engine.dispose()
        with self.engine.connect() as connection:
            paths = connection.execute(select(FILES.c.path)).scalars().all()
        return sorted(one for path in paths for one in pq.read_table(path)["id"].to_pylist())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Lake]]:
    made: list[Lake] = []

    def new(kind: str, url: str = "") -> Lake:
        made.append(Lake(tmp_path.resolve(), kind, url))
        return made[-1]

    yield new
    for lake in made:
        lake.engine.dispose()


@pytest.fixture(params=KINDS)
def lake(make: Callable[..., Lake], request: pytest.FixtureRequest) -> Lake:
    """An ingest that has committed two rows of a file."""
    lake = make(request.param)
    lake.publish(lake.pipeline(), "a", 1, 2)
    return lake


def refused(lake: Lake, why: str) -> str:
    with pytest.raises(Conflict, match=why) as caught:
        lake.pipeline()
    assert "detent reset FILE" in str(caught.value)
    return str(caught.value)


def test_run_is_refused_when_the_folder_of_the_table_is_gone(lake: Lake) -> None:
    shutil.rmtree(lake.table)
    said = refused(lake, "is gone")
    assert "1 commits to it, of 2 rows from 1 files" in said
    assert not lake.table.exists(), "a run that is refused makes nothing"


def test_run_goes_on_when_the_folder_is_put_back(lake: Lake) -> None:
    away = lake.table.rename(lake.folder / "away")
    refused(lake, "is gone")
    away.rename(lake.table)
    lake.publish(lake.pipeline(), "b", 3)
    assert lake.ids() == [1, 2, 3]


def lose_table(lake: Lake) -> None:
    """The table goes, and the folder of its data stays."""
    if lake.config.committer == "iceberg":
        shutil.rmtree(lake.table / "metadata")
    elif lake.config.committer == "delta":
        shutil.rmtree(lake.table / "_delta_log")
    else:
        (lake.table / "data" / ownership.OWNER_FILE).unlink()


def test_run_is_refused_when_the_data_is_there_and_the_table_is_gone(lake: Lake) -> None:
    lose_table(lake)
    refused(lake, "is gone")


def test_run_of_an_earlier_release_is_refused_when_its_table_is_gone(lake: Lake) -> None:
    lake.as_earlier()
    lake.pipeline()
    assert lake.settings().keys() >= {TABLE, MARKED}
    lake.as_earlier()
    lose_table(lake)
    refused(lake, "is gone")


def test_pipeline_that_runs_is_refused_when_its_table_goes(lake: Lake) -> None:
    running = lake.pipeline()
    output = lake.write(running, 3)
    shutil.rmtree(lake.table)
    shard = FileShard(b"b", "file:///b", "", 1)
    running.state.open([shard])
    with pytest.raises(Conflict, match="is gone"):
        running.prepare(SCHEMA)
    with pytest.raises(Conflict, match="is gone"):
        running.publish([shard], output)
    with pytest.raises(Conflict, match="is gone"):
        running.sweep(0)


def replace_table(lake: Lake) -> None:
    """Another table, in the place of the one that was noted."""
    if lake.config.committer == "manifest":
        mark = lake.table / "data" / ownership.OWNER_FILE
        mark.write_text('{"ingest": "events", "owner": "another"}')
        return
    lose_table(lake)
    if lake.config.committer == "delta":
        write_deltalake(lake.table, pa.table({"id": [9], "d": ["x"]}))
        return
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("detent", uri=lake.config.state_url, warehouse=str(lake.table))
    catalog.drop_table("detent.orders")
    catalog.create_table("detent.orders", pa.schema({"id": pa.int64(), "d": pa.string()}), location=str(lake.table))
    catalog.engine.dispose()


def test_run_is_refused_when_another_table_stands_there(lake: Lake) -> None:
    running = lake.pipeline()
    replace_table(lake)
    with pytest.raises((Conflict, Invalid), match=r"is another one|is that of the ingest 'events'"):
        lake.pipeline()
    with pytest.raises(Conflict, match="is another one"):
        lake.publish(running, "b", 3)


def test_table_that_others_made_is_noted_at_the_first_run(make: Callable[..., Lake]) -> None:
    lake = make("delta")
    write_deltalake(lake.table, pa.table({"id": [9], "d": ["x"]}))
    lake.publish(lake.pipeline(), "a", 1)
    assert lake.ids() == [1, 9]
    shutil.rmtree(lake.table / "_delta_log")
    refused(lake, "is gone")


# -- reset -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest) -> str:
    return postgresserver.new_database() if request.param == "postgresql" else ""


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_ingested_into_a_new_table_after_a_reset(make: Callable[..., Lake], kind: str, url: str) -> None:
    lake = make(kind, url)
    before = lake.pipeline()
    lake.publish(before, "a", 1, 2)
    shutil.rmtree(lake.table)
    found = forgetting.reset(lake.engine, lake.config)
    assert (found.files, found.batches, found.rows, found.table) == (1, 1, 2, str(lake.table))
    pipeline = lake.pipeline()
    lake.publish(pipeline, "a", 1, 2)
    assert lake.ids() == [1, 2]
    assert steering.status(lake.engine, "orders").done == 1
    with pytest.raises(Fenced, match="was reset"):
        before.publish([FileShard(b"a", "file:///a", "", 1)], lake.write(before, 1, 2))
    lake.pipeline()


def test_reset_leaves_other_ingests_alone(lake: Lake) -> None:
    events = IngestConfig(name="events", queue="sqs:new", table="events", folder=str(lake.folder))
    ownership.register(lake.engine, events)
    other = QueueSharedState(lake.engine, "events", "p", 60_000)
    other.open([FileShard(b"a", "file:///a", "", 1)])
    shutil.rmtree(lake.table)
    forgetting.reset(lake.engine, lake.config)
    assert steering.status(lake.engine, "events").open == 1


def test_reset_is_refused_while_the_table_is_there(lake: Lake) -> None:
    with pytest.raises(Invalid, match="would come twice"):
        forgetting.reset(lake.engine, lake.config)
    assert steering.status(lake.engine, "orders").done == 1


def test_reset_is_refused_while_data_of_the_table_is_there(lake: Lake) -> None:
    lose_table(lake)
    with pytest.raises(Invalid, match="still has data"):
        forgetting.reset(lake.engine, lake.config)
    shutil.rmtree(lake.table)
    forgetting.reset(lake.engine, lake.config)
    lake.pipeline()


def test_ingest_may_name_another_table_after_a_reset(lake: Lake) -> None:
    shutil.rmtree(lake.table)
    forgetting.reset(lake.engine, lake.config)
    forgetting.reset(lake.engine, lake.config)
    lake.config = IngestConfig(
        name="orders", queue="sqs:new", table="other", committer=lake.config.committer, folder=str(lake.folder)
    )
    lake.publish(lake.pipeline(), "a", 1, 2)
    assert lake.ids() == [1, 2]
    assert lake.settings()["table"] == str(lake.folder / "other")


def test_pipeline_from_before_a_reset_makes_and_notes_no_table(lake: Lake) -> None:
    before = lake.pipeline()
    shutil.rmtree(lake.table)
    forgetting.reset(lake.engine, lake.config)
    with pytest.raises(Fenced, match="was reset"):
        before.prepare(SCHEMA)
    assert not lake.table.exists()
    assert lake.settings().keys() == {"owner", EPOCH}


@pytest.mark.parametrize("name", ["open", "begin", "finish", "touch", "lost", "advance"])
def test_pipeline_from_before_a_reset_changes_no_shard(make: Callable[..., Lake], url: str, name: str) -> None:
    lake = make("manifest", url)
    before = lake.pipeline().state
    shutil.rmtree(lake.table)
    forgetting.reset(lake.engine, lake.config)
    shard = FileShard(b"a", "file:///a", "", 1)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: before.open([shard]),
        "begin": lambda: before.begin([shard.key]),
        "finish": lambda: before.finish([shard]),
        "touch": before.touch,
        "lost": lambda: before.lost([shard.key]),
        "advance": lambda: transact(
            lake.engine, lambda connection: before.advance(connection, [shard], BatchRecord("b", 1, 1, 1, 1))
        ),
    }
    with pytest.raises(Fenced, match="was reset"):
        calls[name]()
    assert list(steering.files(lake.engine, "orders")) == []


# -- killed ----------------------------------------------------------------------------------------------------------


def makes_table(io: Io, folder: str) -> None:
    lake = Lake(Path(folder), "delta")
    lake.publish(lake.pipeline(), "a", 1)
    io.say("published", ids=lake.ids())


def test_table_that_was_made_and_not_noted_is_noted_by_the_next_run(tmp_path: Path) -> None:
    with Processes() as processes:
        point = {"DETENT_CRASH_AT": "ingest.delta_after_create"}
        assert processes.start(makes_table, folder=str(tmp_path), environment=point).was_killed()
        assert processes.start(makes_table, folder=str(tmp_path)).expect("published")["ids"] == [1]
    lake = Lake(tmp_path, "delta")
    assert TABLE in lake.settings()
    lake.engine.dispose()


def test_source_that_is_not_in_the_database_owns_nothing(make: Callable[..., Lake]) -> None:
    lake = make("delta")
    lake.publish(lake.pipeline(), "a", 1)
    with lake.engine.begin() as connection:
        connection.execute(delete(SOURCES))
    with pytest.raises(DetentError, match="is that of the ingest 'orders'"):
        lake.pipeline()
