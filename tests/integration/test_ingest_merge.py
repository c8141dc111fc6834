"""Ingests whose rows replace others (`merge_on`): one row a key, the newest, whatever the order in which files come and
whatever dies meanwhile. Delta and Iceberg, on a disk and in a bucket."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import lakeworld
from detent.errors import Invalid, LimitExceeded, ShardsLost, Unavailable
from detent.ingest import commit_lake
from detent.tables import maintenance
from detent.tables.delta import DeltaPlace
from lakeworld import KINDS, Lake

pytestmark = pytest.mark.xdist_group("s3")


def opened(folder: Path, kind: str, where: str, **options: Any) -> Iterator[Lake]:
    made = lakeworld.lake(folder, kind, where, **lakeworld.MERGING, **options)
    yield made
    made.engine.dispose()


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from opened(tmp_path, *request.param)


@pytest.fixture(params=[KINDS[0], KINDS[2]])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    yield from opened(tmp_path, *request.param)


def found(lake: Lake) -> list[tuple[Any, ...]]:
    return [(row["id"], row["at"], row["what"]) for row in lake.rows()]


def left_over(lake: Lake) -> list[str]:
    """What is below the table in folders of batches that were to be merged."""
    return [one.name for one in lake.pipeline().committer.files.list("_merging/")]


def test_newest_row_of_a_key_counts_in_a_batch_and_against_the_table(lake: Lake) -> None:
    pipeline = lake.pipeline()
    pipeline.update("a", (1, 5, 10), (2, 5, 20), (1, 4, 11), (3, None, 30))
    assert found(lake) == [(1, 5, 10), (2, 5, 20), (3, None, 30)]
    pipeline.update("b", (1, 4, 12), (2, 6, 21), (3, 1, 31), (4, 1, 40))
    assert found(lake) == [(1, 5, 10), (2, 6, 21), (3, 1, 31), (4, 1, 40)]
    pipeline.update("c", (2, 6, 22), (3, None, 32), (3, 0, 33))
    assert found(lake) == [(1, 5, 10), (2, 6, 22), (3, 1, 31), (4, 1, 40)], "equals are replaced, and nulls are oldest"
    assert set(lake.states().values()) == {"done"}
    assert left_over(lake) == []


def test_rows_do_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    files = [[(1, 3, 1), (2, 1, 1)], [(1, 1, 2), (2, 2, 2)], [(1, 2, 3), (2, None, 3)]]
    for number, order in enumerate(itertools.permutations(files)):
        for kind in ("delta", "iceberg"):
            for lake in opened(tmp_path / f"{number}-{kind}", kind, "local"):
                Path(lake.config.folder).mkdir(exist_ok=True)
                pipeline = lake.pipeline()
                for name, rows in enumerate(order):
                    pipeline.update(str(name), *rows)
                assert found(lake) == [(1, 3, 1), (2, 2, 2)]


def test_merge_of_a_dead_pipeline_is_done_by_the_next_one_and_not_again(lake: Lake) -> None:
    dead, other = lake.pipeline(), lake.pipeline()
    dead.update("a", (1, 1, 1))
    shards, output = dead.take("b"), dead.write_updates((1, 2, 2), (2, 1, 1))
    prepared = dead.committer.prepared.prepare(shards, output, dead.committer.mark())
    assert prepared is not None
    assert other.committer.resolve()
    assert (found(lake), lake.states()["b"]) == ([(1, 2, 2), (2, 1, 1)], "done")
    other.update("c", (1, 3, 3))
    assert dead.committer._decide(prepared), "it only slept, and finds its batch in the table"
    assert found(lake) == [(1, 3, 3), (2, 1, 1)]
    assert left_over(lake) == []


def test_batch_is_merged_as_it_was_prepared_by_a_pipeline_that_adds_rows(local: Lake, tmp_path: Path) -> None:
    dead = local.pipeline()
    dead.update("a", (1, 1, 1))
    assert dead.committer.prepared.prepare(dead.take("b"), dead.write_updates((1, 2, 2)), dead.committer.mark())
    kind = local.config.committer
    plain = lakeworld.lake(
        tmp_path, kind, "local", partition_by=[], **({"catalog": local.config.state_url} if kind == "iceberg" else {})
    )
    other = plain.pipeline(lakeworld.UPDATES)
    assert other.committer.resolve()
    assert found(local) == [(1, 2, 2)]
    plain.engine.dispose()


def test_merge_is_made_again_from_the_table_as_it_is_when_another_writer_came_first(
    local: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = local.pipeline()
    pipeline.update("a", (1, 1, 1), (2, 1, 1))
    place = type(pipeline.committer._place)  # type: ignore[attr-defined]
    commit, once = place.commit, [1]

    def slow(self: Any, look: Any, *given: Any, **more: Any) -> Any:
        def looked(view: Any) -> Any:
            said = look(view)
            if once:
                once.clear()
                _add_foreign_row(self, view)
            return said

        return commit(self, looked, *given, **more)

    monkeypatch.setattr(place, "commit", slow)
    pipeline.update("b", (2, 2, 2), (7, 2, 2))
    assert found(local) == [(1, 1, 1), (2, 2, 2), (7, 9, 9)], "the row of the other writer is newer"


def _add_foreign_row(place: Any, view: Any) -> None:
    rows = pa.table({"id": [7], "at": [9], "what": [9]})
    if isinstance(place, DeltaPlace):
        from deltalake import write_deltalake

        write_deltalake(place.uri, rows, mode="append")
    else:
        place.open().table.append(rows)


def test_row_without_a_key_fails_its_file_and_the_columns_of_the_rule_are_checked(local: Lake) -> None:
    pipeline = local.pipeline()
    with pytest.raises(Invalid, match="a row has no id"):
        pipeline.write_updates((None, 1, 1))
    other = lakeworld.lake(Path(local.config.folder) / "other", local.config.committer, "local", **lakeworld.MERGING)
    strange = other.pipeline(StructType([StructField("id", LongType()), StructField("when", LongType())]))
    with pytest.raises(Invalid, match="newest_by names the column at, and the rows have id, when"):
        strange.write_rows(pa.table({"id": [1], "when": [1]}))
    other.engine.dispose()


def test_batch_that_is_too_large_for_the_driver_is_refused_before_it_is_prepared(
    local: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_lake, "ROWS_MAX", 2)
    pipeline = local.pipeline()
    with pytest.raises(LimitExceeded, match="at most 2 rows"):
        pipeline.write_updates((1, 1, 1), (2, 1, 1), (3, 1, 1))
    monkeypatch.setattr(commit_lake, "ROWS_MAX", 3)
    monkeypatch.setattr(commit_lake, "BYTES_MAX", 10)
    with pytest.raises(LimitExceeded, match="of 10 bytes"):
        pipeline.write_updates((1, 1, 1))
    assert pipeline.committer.prepared.current() is None


def test_rows_of_dead_pipelines_are_swept_and_those_that_are_prepared_are_not(lake: Lake) -> None:
    pipeline, sweeper = lake.pipeline(), lake.pipeline()
    pipeline.update("a", (1, 1, 1))
    slow = pipeline.take("c"), pipeline.write_updates((3, 1, 1))
    prepared = pipeline.committer.prepared.prepare(pipeline.take("b"), pipeline.write_updates((2, 1, 1)), 1)
    assert prepared is not None
    assert sweeper.committer.sweep(-1) == 1
    assert {name.split("/")[1] for name in left_over(lake)} == {prepared.batch}
    assert sweeper.committer.resolve()
    with pytest.raises(ShardsLost):
        pipeline.committer.publish(*slow)
    assert [row[0] for row in found(lake)] == [1, 2]


def test_vacuum_leaves_rows_that_are_prepared(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = lake.pipeline()
    pipeline.update("a", (1, 1, 1))
    assert pipeline.committer.prepared.prepare(pipeline.take("b"), pipeline.write_updates((1, 2, 2)), 1)
    monkeypatch.setattr(maintenance, "FLOOR_S", 0.0)
    time.sleep(1.1)  # the server's times are whole seconds
    maintenance.vacuum(pipeline.committer._place, 0.0)  # type: ignore[attr-defined]
    assert pipeline.committer.resolve()
    assert found(lake) == [(1, 2, 2)]


def test_rows_that_were_deleted_meanwhile_are_looked_up_again(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, other = local.pipeline(), local.pipeline()
    shards, output = pipeline.take("a"), pipeline.write_updates((1, 1, 1))
    prepared = pipeline.committer.prepared.prepare(shards, output, None)
    assert prepared is not None
    pipeline.committer.files.delete([file.path for file in output.files])
    with pytest.raises(Unavailable, match="deleted meanwhile"):
        pipeline.committer._decide(prepared)
    assert other.committer.resolve(), "which finds out that they are gone, and frees the file"
    assert local.states() == {"a": "open"}
    other.update("a", (1, 1, 1))
    assert found(local) == [(1, 1, 1)]


def test_merged_rows_bring_columns_and_wider_types(local: Lake) -> None:
    narrow = StructType([StructField(name, IntegerType()) for name in ("id", "at")])
    first = local.pipeline(narrow)
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "at": pa.array([1, 1], pa.int32())})
    shards = first.take("a")
    first.committer.publish(shards, first.write_rows(rows))
    waiting = first.take("b"), first.write_rows(rows.slice(0, 1))
    local.pipeline().update("c", (1 << 40, 1, 7), (2, 2, 8))
    first.committer.publish(*waiting)
    assert found(local) == [(1, 1, None), (2, 2, 8), (1 << 40, 1, 7)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_are_merged_into_partitions_and_what_a_partition_cannot_have_fails_its_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = StructType([*lakeworld.UPDATES.fields, StructField("day", StringType())])

    def rows(*given: tuple[int, int, str | None]) -> Any:
        ids, times, names = zip(*given, strict=True)
        arrays = [pa.array(ids), pa.array(times), pa.array(times), pa.array(names, pa.string())]
        return pa.table(dict(zip(("id", "at", "what", "day"), arrays, strict=True)))

    for lake in opened(tmp_path, kind, "local", partition_by=["day"]):
        pipeline = lake.pipeline(days)
        for number, some in enumerate([rows((1, 1, "a"), (2, 1, None)), rows((1, 2, "b"), (3, 1, "b"))]):
            pipeline.committer.publish(pipeline.take(str(number)), pipeline.write_rows(some))
        found_days = [(row["id"], row["day"]) for row in lake.rows()]
        assert found_days == [(1, "b"), (2, None), (3, "b")], "a row may move to another partition"
        with pytest.raises(Invalid, match="empty text in a partition column"):
            pipeline.write_rows(rows((4, 1, "")))
        monkeypatch.setattr(commit_lake, "PARTITIONS_MAX", 1)
        with pytest.raises(LimitExceeded, match="and 1 partitions"):
            pipeline.write_rows(rows((4, 1, "a"), (5, 1, "b")))
        assert pipeline.committer.prepared.current() is None
