"""The Delta committer: what it refuses, what it sweeps and what it leaves, what it syncs."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from detent.errors import Invalid, ShardsLost
from detent.ingest import metastore
from detent.ingest.commit_delta import DeltaCommitter
from detent.ingest.committer import BatchOutput
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.delta_log import sync_log
from detent.tables.files import WrittenFile

SCHEMA = StructType([StructField("id", LongType()), StructField("d", StringType())])
WINDOW_S = 15 * 86_400.0
NUMBERS = itertools.count(1)


class Pipeline:
    """A run of a pipeline, and the files that Spark would have written for it."""

    def __init__(self, folder: Path) -> None:
        self.state = QueueSharedState(
            metastore.connect(f"sqlite:///{folder}/state.db"), "orders", uuid.uuid4().hex, grace_ms=60_000
        )
        self.committer = DeltaCommitter(str(folder / "t"), self.state, WINDOW_S)

    def write(self, *ids: int) -> BatchOutput:
        batch = f"{self.state.token}-{next(NUMBERS):06d}"
        folder = Path(self.committer.folder_of(batch))
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(ids), "d": ["x"] * len(ids)}), folder / "part.parquet")
        size = (folder / "part.parquet").stat().st_size
        file = WrittenFile(f"data/{batch}/part.parquet", size, len(ids), {}, 0, json.dumps({"numRecords": len(ids)}))
        return BatchOutput(batch, str(folder), (file,), SCHEMA)

    def take(self, *names: str) -> list[FileShard]:
        shards = [FileShard(name.encode(), f"file:///{name}", "", 1) for name in names]
        assert len(self.state.open(shards).granted) == len(shards)
        return shards

    def publish(self, name: str, *ids: int) -> BatchOutput:
        output = self.write(*ids)
        self.committer.publish(self.take(name), output)
        return output


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    found = Pipeline(tmp_path)
    yield found
    found.state.engine.dispose()


def ids(pipeline: Pipeline, **options: Any) -> list[int]:
    return sorted(DeltaTable(pipeline.committer.location, **options).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize("kind", ["partitioned", "required"])
def test_a_table_whose_rows_would_come_out_otherwise_is_refused(pipeline: Pipeline, kind: str) -> None:
    fields = [pa.field("id", pa.int64()), pa.field("d", pa.string(), nullable=kind != "required")]
    rows = pa.table({"id": [1], "d": ["x"]}, schema=pa.schema(fields))
    write_deltalake(pipeline.committer.location, rows, partition_by=["d"] if kind == "partitioned" else None)
    with pytest.raises(Invalid, match="partitioned by d" if kind == "partitioned" else "may not be null: d"):
        pipeline.committer.prepare(SCHEMA)


def test_what_was_committed_is_never_swept_also_when_somebody_compacted_it(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.committer.prepare(SCHEMA)
    committed = [pipeline.publish(name, number) for number, name in enumerate("abc")]
    version = DeltaTable(pipeline.committer.location).version()
    DeltaTable(pipeline.committer.location).optimize.compact()
    orphan = pipeline.write(9)
    other = Pipeline(tmp_path)
    for sweeper in (pipeline, other):
        sweeper.committer.sweep(-1, WINDOW_S)
    assert not Path(orphan.folder).exists()
    assert all(Path(output.folder).exists() for output in committed)
    assert ids(pipeline) == ids(pipeline, version=version) == [0, 1, 2]
    other.state.engine.dispose()


def test_what_is_too_old_to_be_known_is_left(pipeline: Pipeline) -> None:
    pipeline.committer.prepare(SCHEMA)
    orphan = Path(pipeline.write(9).folder)
    os.utime(orphan, (1, 1))
    assert pipeline.committer.sweep(60, WINDOW_S) == 0
    assert orphan.exists()


def test_a_batch_that_was_swept_is_refused_for_all_its_files(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.committer.prepare(SCHEMA)
    shards, output = pipeline.take("a", "b"), pipeline.write(1)
    other = Pipeline(tmp_path)
    assert other.committer.sweep(-1, WINDOW_S) == 1
    with pytest.raises(ShardsLost) as lost:
        pipeline.committer.publish(shards, output)
    assert lost.value.shards == {b"a", b"b"}
    assert ids(pipeline) == []
    other.state.engine.dispose()


def test_files_without_rows_are_finished_before_there_is_a_table(pipeline: Pipeline) -> None:
    output = BatchOutput(f"{pipeline.state.token}-000001", "nowhere", (), StructType([]))
    pipeline.committer.publish(pipeline.take("empty"), output)
    assert pipeline.state.open([FileShard(b"empty", "", "", 0)]).finished == {b"empty"}


def test_checkpoints_are_synced_with_the_commits_that_they_replace(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.committer.prepare(SCHEMA)
    synced: set[str] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    for number in range(25):
        pipeline.publish(str(number), number)
    log = Path(pipeline.committer.location) / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) >= 2
    assert {str(log), str(log / "_last_checkpoint"), *map(str, checkpoints)} <= synced
    assert {str(path) for path in log.glob("*.json") if int(path.stem)} <= synced
    synced.clear()
    sync_log(Path(pipeline.committer.location), 0)
    assert {str(path) for path in log.iterdir() if path.is_file()} <= synced
