"""Commits: how long they take for 1, 10 and 100 files, and whether that grows with the commits before."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bench.harness import INFORMATIVE, Plan, Row, Size, ours_at_most
from bench.ingest.suite import SUITE
from bench.place import Place
from detent.ingest import IngestConfig, metastore, ownership
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.committers import committer_of
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.files import write_files

KINDS = ("manifest", "delta", "iceberg")
SIZES = (1, 10, 100)
COMMITS, QUICK_COMMITS, EDGE = 400, 60, 20
SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])
ROWS = pa.RecordBatch.from_pydict({"id": list(range(10)), "name": ["x"] * 10})


class _Table:
    """A new table, and commits to it with files that are written before."""

    def __init__(self, kind: str, folder: Path) -> None:
        config = IngestConfig(name="bench", queue="none:", table="table", committer=kind, folder=str(folder))
        self.engine = metastore.connect(config.state_url)
        epoch = ownership.register(self.engine, config)
        self.state = QueueSharedState(self.engine, "bench", uuid.uuid4().hex, 120_000, epoch)
        self.committer: TableCommitter = committer_of(config, self.state)
        self.committer.prepare(SCHEMA)
        self._number = 0

    def commit(self, files: int) -> float:
        """Milliseconds for a commit of so many shards, each with a data file of its own."""
        self._number += 1
        batch = f"{self.state.token}-{self._number:06d}"
        plan = self.committer.plan(batch, SCHEMA)
        written = [one for _ in range(files) for one in write_files(plan, [ROWS])]
        shards = [FileShard(uuid.uuid4().bytes, f"file:///{batch}/{number}", "etag:0", 100) for number in range(files)]
        self.state.open(shards)
        began = time.perf_counter()
        self.committer.publish(shards, BatchOutput(batch, self.committer.folder_of(batch), tuple(written), SCHEMA))
        return (time.perf_counter() - began) * 1000


def _sized(place: Place, kind: str, commits: int) -> dict[str, float]:
    with place.fresh() as folder:
        table = _Table(kind, folder)
        found = {f"{size}": statistics.median([table.commit(size) for _ in range(commits)][1:]) for size in SIZES}
        table.engine.dispose()
        return found


def _grown(place: Place, kind: str, commits: int) -> dict[str, float]:
    with place.fresh() as folder:
        table = _Table(kind, folder)
        times = [table.commit(1) for _ in range(commits)]
        table.engine.dispose()
    first, last = statistics.median(times[:EDGE]), statistics.median(times[-EDGE:])
    return {"growth": last / first, "last": last}


@SUITE.measurement("commits")
@contextmanager
def commits(place: Place, size: Size) -> Iterator[Plan]:
    """1, 10 and 100 files a commit."""
    count = size.of(9, 3)
    yield Plan(
        {kind: lambda kind=kind: _sized(place, kind, count) for kind in KINDS},
        [
            Row(f"{kind}: a commit of {number} files", "ms", f"{kind}.{number}", INFORMATIVE)
            for kind in KINDS
            for number in SIZES
        ],
    )


@SUITE.measurement("growth")
@contextmanager
def growth(place: Place, size: Size) -> Iterator[Plan]:
    """The last of 400 commits against the first ones."""
    count = size.of(COMMITS, QUICK_COMMITS)
    bar = ours_at_most(2, "<= 2 x the first commits")
    yield Plan(
        {kind: lambda kind=kind: _grown(place, kind, count) for kind in KINDS},
        [
            Row(f"{kind}: commits {count - EDGE + 1}-{count} against 1-{EDGE}", "x", f"{kind}.growth", bar)
            for kind in KINDS
        ]
        + [Row(f"{kind}: a commit after {count}", "ms", f"{kind}.last", INFORMATIVE) for kind in KINDS],
        warm_up=False,
    )
