"""Files into a table: announced and ingested, against Spark reading the same files and writing Parquet, unannounced."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import detent
import detent.spark
from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.ingest.suite import SUITE
from bench.place import Place
from detent.ingest import Ingest, IngestConfig
from detent.ingest.progress import IngestProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_FILES, QUICK_SMALL_FILES, SMALL_ROWS = 10_000, 1_000, 20
LARGE_FILES, QUICK_LARGE_FILES, LARGE_ROWS = 100, 10, 40_000
SCHEMA = "id BIGINT, name STRING, amount DOUBLE"
CORES = 2


def _fill(folder: Path, files: int, rows: int) -> None:
    for number in range(files):
        first = number * rows
        lines = [
            json.dumps({"id": row, "name": f"customer {row % 1000} of many, with some text", "amount": row * 0.5})
            for row in range(first, first + rows)
        ]
        (folder / f"{number:06d}.json").write_text("\n".join(lines) + "\n")


class _Runner:
    """Runs one side after another over the same files, in one session."""

    def __init__(self, spark: SparkSession, source: Path, place: Place, rows: int) -> None:
        self.spark, self.source, self.place, self.rows = spark, source, place, rows
        self.paths = [str(path) for path in sorted(source.iterdir())]

    def plain(self) -> dict[str, float]:
        with self.place.fresh() as folder:
            began = time.perf_counter()
            self.spark.read.schema(SCHEMA).json(str(self.source)).write.parquet(str(folder / "out"))
            return self._numbers(time.perf_counter() - began)

    def ingest(self, committer: str) -> dict[str, float]:
        with self.place.fresh() as folder, detent.open(f"file:{folder / 'store'}") as store:
            queue = store.queue("files")
            queue.create()
            for first in range(0, len(self.paths), 1_000):
                queue.publish_many([path.encode() for path in self.paths[first : first + 1_000]])
            config = IngestConfig(
                name="bench",
                queue=f"detent:{store.url}#files",
                table="table",
                committer=committer,
                schema=SCHEMA,
                folder=str(folder),
            )
            seconds = self._until_done(config)
            shutil.rmtree(folder / "table", ignore_errors=True)
        return self._numbers(seconds)

    def _until_done(self, config: IngestConfig) -> float:
        """From the first question to the queue to the last acknowledgement, without the wait for more."""
        ended = 0.0

        def watch(progress: IngestProgress) -> None:
            nonlocal ended
            if progress.counters.acknowledged == len(self.paths) and not ended:
                ended = time.perf_counter()
                ingest.stop()

        ingest = Ingest(config, spark=self.spark, watch=watch)
        began = time.perf_counter()
        counters = ingest.run(once=True)
        assert (counters.files, counters.rows) == (len(self.paths), self.rows)
        return ended - began

    def _numbers(self, seconds: float) -> dict[str, float]:
        return {"files": len(self.paths) / seconds, "rows": self.rows / seconds}


def _plan(place: Place, kind: str, files: int, rows: int, bar: float) -> Iterator[Plan]:
    source = place.shared(kind, lambda folder: _fill(folder, files, rows))
    spark = detent.spark.session(app="bench", cores=CORES, memory="4g")
    try:
        runner = _Runner(spark, source, place, files * rows)
        sides = {
            "plain": runner.plain,
            "manifest": lambda: runner.ingest("manifest"),
            "delta": lambda: runner.ingest("delta"),
            "iceberg": lambda: runner.ingest("iceberg"),
        }
        text = f">= {bar} x spark.read.write.parquet"
        unit = "rows" if kind == "large" else "files"
        rows_of = [
            Row(
                f"{files} {kind} files, manifest",
                f"{unit}/s",
                f"manifest.{unit}",
                ratio_at_least(bar, text),
                f"plain.{unit}",
            ),
            Row(
                f"{files} {kind} files, Delta", f"{unit}/s", f"delta.{unit}", ratio_at_least(bar, text), f"plain.{unit}"
            ),
            Row(
                f"{files} {kind} files, Iceberg",
                f"{unit}/s",
                f"iceberg.{unit}",
                ratio_at_least(bar, text),
                f"plain.{unit}",
            ),
            Row(
                f"{files} {kind} files, manifest",
                "files/s" if unit == "rows" else "rows/s",
                "manifest.files" if unit == "rows" else "manifest.rows",
                INFORMATIVE,
                "plain.files" if unit == "rows" else "plain.rows",
            ),
        ]
        yield Plan(sides, rows_of)
    finally:
        spark.stop()


@SUITE.measurement("large")
@contextmanager
def large(place: Place, size: Size) -> Iterator[Plan]:
    """100 files of 3 MB."""
    yield from _plan(place, "large", size.of(LARGE_FILES, QUICK_LARGE_FILES), LARGE_ROWS, 0.8)


@SUITE.measurement("small")
@contextmanager
def small(place: Place, size: Size) -> Iterator[Plan]:
    """10,000 files of 1.5 KB."""
    yield from _plan(place, "small", size.of(SMALL_FILES, QUICK_SMALL_FILES), SMALL_ROWS, 0.5)
