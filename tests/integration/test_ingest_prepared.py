"""Batches on their way into tables that share no transaction with the shards: whatever comes in between, each batch is
in the table once or never, and its shards say which. Delta and Iceberg, on a disk and in a bucket."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, LongType, StructField, StructType
from sqlalchemy import delete, select, update

import s3server
from detent import crash
from detent.errors import Conflict, Fenced, ShardsLost, Unavailable
from detent.ingest import commit_lake, forgetting, metastore, ownership, steering
from detent.ingest.commit_lake import LakeCommitter
from detent.ingest.committer import BatchOutput
from detent.ingest.committers import committer_of
from detent.ingest.config import IngestConfig
from detent.ingest.shard_sql import BATCHES, PREPARED, SHARDS
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.delta import DeltaPlace
from detent.tables.files import write_files
from detent.tables.iceberg_table import IcebergTable

SCHEMA = StructType([StructField("id", LongType()), StructField("day", DateType())])
NUMBERS = itertools.count(1)

pytestmark = pytest.mark.xdist_group("s3")


class Killed(BaseException):
    """What ends a pipeline as a kill would: it does nothing any more."""


class Lake:
    """A table, and a database of shards. Each pipeline is a run of its own."""

    def __init__(self, config: IngestConfig) -> None:
        self.config = config
        self.engine = metastore.connect(config.state_url)

    def pipeline(self) -> Pipeline:
        ownership.register(self.engine, self.config)
        return Pipeline(self)

    def ids(self) -> list[int]:
        storage = self.config.table_storage
        if self.config.committer == "delta":
            found = DeltaTable(self.config.location, storage_options=storage).to_pyarrow_table()
        else:
            found = (
                IcebergTable("detent.t", self.config.state_url, self.config.location, storage)
                .open()
                .table.scan()
                .to_arrow()
            )
        return sorted(found["id"].to_pylist())

    def states(self) -> dict[str, str]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(SHARDS.c.shard, SHARDS.c.state)).all()
        return {bytes(row.shard).decode(): row.state for row in rows}


class Pipeline:
    """A run of a pipeline, without a queue and without Spark: tasks' work is done here."""

    def __init__(self, lake: Lake) -> None:
        self.state = QueueSharedState(lake.engine, "t", uuid.uuid4().hex, grace_ms=60_000)
        found = committer_of(lake.config, self.state)
        assert isinstance(found, LakeCommitter)
        self.committer = found
        self.committer.prepare(SCHEMA)

    def take(self, *names: str) -> list[FileShard]:
        shards = [FileShard(name.encode(), f"s3://b/{name}", "", 7) for name in names]
        assert len(self.state.open(shards).granted) == len(shards)
        return shards

    def write(self, *ids: int) -> BatchOutput:
        batch = f"{self.state.token}-{next(NUMBERS):06d}"
        days = pa.array([number % 3 for number in ids], pa.int32()).cast(pa.date32())
        rows = pa.table({"id": pa.array(ids, pa.int64()), "day": days})
        files = write_files(self.committer.plan(batch, SCHEMA), rows.to_batches())
        return BatchOutput(batch, self.committer.folder_of(batch), tuple(files), SCHEMA)

    def publish(self, name: str, *ids: int) -> BatchOutput:
        shards, output = self.take(name), self.write(*ids)
        self.committer.publish(shards, output)
        return output


KINDS = [
    pytest.param(("delta", "local"), id="delta"),
    pytest.param(("delta", "s3"), id="delta-s3", marks=pytest.mark.s3),
    pytest.param(("iceberg", "local"), id="iceberg"),
    pytest.param(("iceberg", "s3"), id="iceberg-s3", marks=pytest.mark.s3),
]


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from _lake(tmp_path, *request.param)


@pytest.fixture(params=[KINDS[0], KINDS[2]])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from _lake(tmp_path, *request.param)


def _lake(folder: Path, kind: str, where: str) -> Iterator[Lake]:
    table = "t" if where == "local" else f"{s3server.s3_store_url()}/t"
    s3 = {} if where == "local" else {"region": "us-east-1", "endpoint": s3server.shared_server().endpoint}
    options: dict[str, Any] = {"committer": kind, "table": table, "folder": str(folder), "s3": s3}
    made = Lake(IngestConfig(name="t", queue="sqs:q", partition_by=["day"], **options))
    yield made
    made.engine.dispose()


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Ends the pipeline that comes to a point, once."""

    def arm(name: str) -> None:
        armed = [name]

        def point(reached: str) -> None:
            if armed == [reached]:
                armed.clear()
                raise Killed(reached)

        monkeypatch.setattr(crash, "point", point)

    return arm


def test_rows_and_shards_are_published_and_the_files_are_where_partitions_are_looked_for(lake: Lake) -> None:
    pipeline = lake.pipeline()
    output = pipeline.publish("a", 1, 2, 3)
    pipeline.publish("b", 4)
    pipeline.committer.publish(pipeline.take("empty"), pipeline.write())
    assert (lake.ids(), lake.states()) == ([1, 2, 3, 4], {"a": "done", "b": "done", "empty": "done"})
    assert {one.path.split("/")[2] for one in output.files} == {f"day=1970-01-0{day}" for day in (1, 2, 3)}
    assert pipeline.committer.prepared.current() is None
    assert steering.status(lake.engine, "t").rows == 4
    ends = {row.position for row in lake.engine.connect().execute(select(SHARDS.c.position))}
    assert ends == {f"~{7:020d}"}


@pytest.mark.parametrize("point", ["ingest.after_prepare", "ingest.after_table_commit"])
def test_batch_of_a_dead_pipeline_is_finished_by_the_next_one(
    lake: Lake, die: Callable[[str], None], point: str
) -> None:
    dead, other = lake.pipeline(), lake.pipeline()
    die(point)
    with pytest.raises(Killed):
        dead.publish("a", 1)
    assert lake.states() == {"a": "prepared"}
    assert not other.state.open([FileShard(b"a", "s3://b/a", "", 7)]).granted, "it belongs to the batch"
    assert not other.committer.resolve(grace_s=60), "it may be alive"
    assert other.committer.resolve()
    assert (lake.ids(), lake.states()) == ([1], {"a": "done"})
    other.publish("b", 2)
    assert lake.ids() == [1, 2]


def test_pipeline_helps_another_one_that_is_silent_before_its_own_batch(
    local: Lake, die: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_lake, "PATIENCE_S", 0.05)
    silent, other = local.pipeline(), local.pipeline()
    die("ingest.after_prepare")
    with pytest.raises(Killed):
        silent.publish("a", 1)
    other.publish("b", 2)
    assert (local.ids(), local.states()) == ([1, 2], {"a": "done", "b": "done"})


def test_zombie_that_wakes_up_after_its_batch_was_resolved_doubles_nothing(lake: Lake) -> None:
    zombie, other = lake.pipeline(), lake.pipeline()
    shards, output = zombie.take("a"), zombie.write(1)
    prepared = zombie.committer.prepared.prepare(shards, output, None)
    assert prepared is not None
    other.committer.resolve()
    other.publish("b", 2)
    assert zombie.committer._decide(prepared), "it finds that the table has it"
    assert (lake.ids(), lake.states()) == ([1, 2], {"a": "done", "b": "done"})


def test_zombie_whose_view_is_older_than_the_resolution_is_refused_by_the_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, other = lake.pipeline(), lake.pipeline()
    shards, output = zombie.take("a"), zombie.write(1)
    prepared = zombie.committer.prepared.prepare(shards, output, None)
    assert prepared is not None
    place = type(zombie.committer._place)
    commit, slept = place.commit, []

    def slow(self: Any, look: Any, *given: Any, **more: Any) -> Any:
        def looked(view: Any) -> Any:
            found = look(view)
            if not slept:
                slept.append(1)
                assert other.committer.resolve()
            return found

        return commit(self, looked, *given, **more)

    monkeypatch.setattr(place, "commit", slow)
    assert zombie.committer._decide(prepared)
    assert (lake.ids(), lake.states(), slept) == ([1], {"a": "done"}, [1])


def test_batch_whose_files_are_gone_frees_its_shards_and_can_never_be_committed(lake: Lake) -> None:
    dead, other = lake.pipeline(), lake.pipeline()
    other.publish("first", 7)
    shards, output = dead.take("a"), dead.write(1)
    prepared = dead.committer.prepared.prepare(shards, output, None)
    assert prepared is not None
    dead.committer.files.delete([output.files[0].path])
    assert other.committer.resolve()
    assert lake.states() == {"first": "done", "a": "open"}
    assert not dead.committer._decide(prepared), "only asleep, and told so"
    with pytest.raises(ShardsLost):
        dead.committer.publish(shards, output)
    other.publish("a", 1)
    assert (lake.ids(), lake.states()) == ([1, 7], {"first": "done", "a": "done"})


def test_shard_that_was_taken_refuses_the_batch_and_is_named(local: Lake) -> None:
    slow, quick = local.pipeline(), local.pipeline()
    shards, output = slow.take("a", "b"), slow.write(1)
    slow.state.release([b"b"])
    quick.take("b")
    with pytest.raises(ShardsLost) as lost:
        slow.committer.publish(shards, output)
    assert lost.value.shards == {b"b"}
    assert slow.committer.prepared.current() is None
    slow.committer.publish(shards[:1], slow.write(1))
    assert local.ids() == [1]


def test_answer_that_is_lost_is_looked_up(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = local.pipeline()
    place = type(pipeline.committer._place)
    assert place in {DeltaPlace, IcebergTable}
    commit = place.commit

    def unheard(self: Any, *given: Any, **more: Any) -> Any:
        commit(self, *given, **more)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(place, "commit", unheard)
        with pytest.raises(Unavailable):
            pipeline.publish("a", 1)
    pipeline.publish("b", 2)
    assert (local.ids(), local.states()) == ([1, 2], {"a": "done", "b": "done"})


def test_sweeping_leaves_what_is_prepared_and_ends_what_is_not(lake: Lake) -> None:
    pipeline, sweeper = lake.pipeline(), lake.pipeline()
    kept = pipeline.publish("a", 1)
    left = pipeline.take("c"), pipeline.write(3)
    prepared = pipeline.committer.prepared.prepare(pipeline.take("b"), pipeline.write(2), None)
    assert prepared is not None
    assert sweeper.committer.sweep(-1) == 1
    names = {one.name.split("/")[1] for one in sweeper.committer.files.list("data/")}
    assert names == {kept.batch, prepared.batch, ownership.OWNER_FILE}
    sweeper.committer.resolve()
    with pytest.raises(ShardsLost):
        pipeline.committer.publish(*left)
    assert (lake.ids(), sweeper.committer.sweep(-1)) == ([1, 2], 0)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_sweeping_leaves_files_of_a_table_below_a_folder_called_data(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    for lake in _lake(tmp_path / "data", kind, "local"):
        pipeline = lake.pipeline()
        pipeline.publish("a", 1)
        with lake.engine.begin() as connection:  # as the window does: then the table alone says what it has
            connection.execute(delete(BATCHES))
        assert pipeline.committer.sweep(-1) == 0
        assert lake.ids() == [1]


def test_reset_ends_what_is_prepared(local: Lake) -> None:
    pipeline = local.pipeline()
    prepared = pipeline.committer.prepared.prepare(pipeline.take("a"), pipeline.write(1), None)
    assert prepared is not None
    Path(local.config.location).rename(f"{local.config.location}.away")
    forgetting.reset(local.engine, local.config)
    with pytest.raises(Fenced):
        pipeline.committer._decide(prepared)
    fresh = local.pipeline()
    fresh.publish("a", 1)
    assert (local.ids(), fresh.committer.resolve()) == ([1], False)


def test_database_that_is_older_than_the_table_is_refused(local: Lake) -> None:
    pipeline = local.pipeline()
    pipeline.publish("a", 1)
    with local.engine.begin() as connection:
        connection.execute(update(PREPARED).values(number=0))  # as a copy from before the batch has it
    with pytest.raises(Conflict, match="the database is older"):
        pipeline.publish("b", 2)
    assert (local.ids(), local.states()["b"]) == ([1], "open")


def test_zombie_whose_batch_was_refused_long_ago_is_told_so(local: Lake) -> None:
    zombie, other = local.pipeline(), local.pipeline()
    prepared = zombie.committer.prepared.prepare(zombie.take("a"), output := zombie.write(1), None)
    assert prepared is not None
    zombie.committer.files.delete([output.files[0].path])
    other.committer.resolve()
    other.publish("b", 2)  # its mark is a later one, and says nothing of refusals
    assert not zombie.committer._decide(prepared)
    assert (local.ids(), local.states()) == ([2], {"a": "open", "b": "done"})


def test_files_that_an_earlier_release_committed_are_still_known(tmp_path: Path) -> None:
    lake = next(_lake(tmp_path, "delta", "local"))
    pipeline = lake.pipeline()
    table = DeltaTable(lake.config.location)
    from detent.tables.delta import adding, properties

    old = f"detent-ingest:t:{b'a'.hex()}"
    adding([])(table, properties([(old, 1)]))
    shards = pipeline.take("a")
    assert pipeline.committer.finished(shards) == {b"a"}
    with pytest.raises(ShardsLost):
        pipeline.committer.publish(shards, pipeline.write(1))
    assert (lake.ids(), lake.states()) == ([], {"a": "done"})
    lake.engine.dispose()
