"""Batches on their way into tables that share no transaction with the shards: whatever comes in between, each batch is
in the table once or never, and its shards say which. Delta and Iceberg, on a disk and in a bucket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, StringType, StructField, StructType
from sqlalchemy import delete, select, update

import lakeworld
from detent import crash
from detent.errors import Conflict, Corrupt, Fenced, Invalid, ShardsLost, Unavailable
from detent.ingest import commit_lake, forgetting, ownership, steering
from detent.ingest.shard_sql import BATCHES, PREPARED, SHARDS
from detent.ingest.shared_state import FileShard
from detent.tables import maintenance, orphans
from detent.tables.delta import DeltaPlace
from detent.tables.iceberg_table import IcebergTable
from lakeworld import KINDS, Lake

pytestmark = pytest.mark.xdist_group("s3")


class Killed(BaseException):
    """What ends a pipeline as a kill would: it does nothing any more."""


def opened(folder: Path, kind: str, where: str) -> Iterator[Lake]:
    made = lakeworld.lake(folder, kind, where)
    yield made
    made.engine.dispose()


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from opened(tmp_path, *request.param)


@pytest.fixture(params=[KINDS[0], KINDS[2]])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from opened(tmp_path, *request.param)


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
    for lake in opened(tmp_path / "data", kind, "local"):
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


def test_batch_that_an_earlier_release_prepared_is_finished(local: Lake) -> None:
    pipeline = local.pipeline()
    assert pipeline.committer.prepared.prepare(pipeline.take("a"), pipeline.write(1), None) is not None
    with local.engine.begin() as connection:
        files = json.loads(connection.execute(select(PREPARED.c.files)).scalar_one())["files"]
        old = [{name: value for name, value in file.items() if name != "memory"} for file in files]
        connection.execute(update(PREPARED).values(files=json.dumps(old)))
    assert local.pipeline().committer.resolve()
    assert (local.ids(), local.states()) == ([1], {"a": "done"})


def test_files_that_an_earlier_release_committed_are_still_known(tmp_path: Path) -> None:
    lake = lakeworld.lake(tmp_path, "delta", "local")
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


def test_batch_whose_files_a_vacuum_deleted_is_refused_by_the_commit_and_its_files_are_read_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline that stands still for longer than the retention, between its tasks' last file and its commit."""
    pipeline, other = lake.pipeline(), lake.pipeline()
    pipeline.publish("first", 7)
    now = orphans.sweeping_time_s()
    with monkeypatch.context() as patch:
        patch.setattr(orphans, "sweeping_time_s", lambda: now + 8 * 86_400)
        pipeline.publish("slow", 8)
        assert lake.ids() == [7, 8], "files that are there are committed, however old they are"
        shards, output = pipeline.take("a"), pipeline.write(1)
        patch.setattr(maintenance, "FLOOR_S", 0.0)
        time.sleep(1.1)  # the server's times are whole seconds
        deleted = maintenance.vacuum(pipeline.committer._place, 0.0)  # type: ignore[attr-defined]
        assert [name for name in deleted if name.endswith(".parquet")] == [output.files[0].path]
        with pytest.raises(ShardsLost):
            pipeline.committer.publish(shards, output)
    assert "were deleted before it was committed" in caplog.text
    assert (lake.ids(), lake.states()["a"]) == ([7, 8], "open")
    other.publish("a", 1)
    assert lake.ids() == [1, 7, 8]


def test_commit_during_which_a_vacuum_deleted_its_files_ends_with_an_error_that_names_them(
    local: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = local.pipeline()
    shards, output = pipeline.take("a"), pipeline.write(1)
    now = orphans.sweeping_time_s()
    monkeypatch.setattr(orphans, "sweeping_time_s", lambda: now + 13 * 3600)
    place = type(pipeline.committer._place)  # type: ignore[attr-defined]
    commit = place.commit

    def slow(self: Any, *given: Any, **more: Any) -> Any:
        done = commit(self, *given, **more)
        pipeline.committer.files.delete([output.files[0].path])
        return done

    monkeypatch.setattr(place, "commit", slow)
    with pytest.raises(Corrupt, match=output.files[0].path):
        pipeline.committer.publish(shards, output)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("partition_by", [[], ["day"], ["id"]])
def test_batch_of_narrower_types_than_the_table_has_by_now_comes_in_as_wider_ones(
    tmp_path: Path, kind: str, partition_by: list[str]
) -> None:
    how = {"catalog": f"sqlite:///{tmp_path}/catalog.db"} if kind == "iceberg" else {}
    lake = lakeworld.lake(tmp_path, kind, partition_by=partition_by, **how)
    slow = lake.pipeline(lakeworld.NARROW)
    slow.publish("a", 1)
    waiting = slow.take("b"), slow.write(2, 3)
    prepared = slow.committer.prepared.prepare(slow.take("c"), slow.write(4), 1)
    assert prepared is not None
    wide = lake.pipeline()
    assert wide.committer.resolve()
    wide.publish("d", 1 << 40)
    slow.committer.publish(*waiting)
    assert lake.ids() == [1, 2, 3, 4, 1 << 40]
    assert set(lake.states().values()) == {"done"}
    if kind == "delta":
        files = DeltaTable(lake.config.location).file_uris()
        types = {str(pq.read_schema(file).field("id").type) for file in files if "id" not in partition_by}
        assert types <= {"int64"}, "other readers of Delta cannot read narrower ones"
    lake.engine.dispose()


def test_delta_table_gets_wider_types_beside_pipelines_that_add_rows(local: Lake) -> None:
    """And narrower rows fit it from then on."""
    narrow, wide = local.pipeline(lakeworld.NARROW), None
    narrow.publish("a", 1)
    wide = local.pipeline()
    narrow.publish("b", 2)
    wide.publish("c", 1 << 40)
    later = local.pipeline(lakeworld.NARROW)
    later.publish("d", 3)
    assert local.ids() == [1, 2, 3, 1 << 40]
    text = StructType([StructField("id", StringType()), StructField("day", DateType())])
    with pytest.raises(Invalid, match=r"id is .*string"):
        local.pipeline(text)
