"""Announced objects into a partitioned Delta table on the bucket, against Spark reading the same objects with
hadoop-aws and writing Parquet there, unannounced."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.lake.bucket import bucket, counted, put
from bench.lake.sparks import lake_session, s3a
from bench.lake.suite import SUITE
from bench.place import Place
from detent.ingest import Ingest, IngestConfig
from detent.ingest.progress import IngestProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_OBJECTS, QUICK_SMALL_OBJECTS, SMALL_ROWS = 10_000, 1_000, 20
LARGE_OBJECTS, QUICK_LARGE_OBJECTS, LARGE_ROWS = 100, 10, 40_000
SCHEMA = "id BIGINT, day INT, name STRING, amount DOUBLE"
DAYS = 7


def content(first: int, rows: int) -> bytes:
    """An object of JSON: some 80 bytes a row."""
    return b"".join(
        b'{"id":%d,"day":%d,"name":"customer %d of many, with text","amount":%d.5}\n' % (n, n % DAYS, n % 1000, n % 997)
        for n in range(first, first + rows)
    )


def notification(name: str, key: str, etag: str, size: int) -> bytes:
    """What S3 writes into a queue when an object comes."""
    record = {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": name}, "object": {"key": key, "eTag": etag, "size": size}},
    }
    return json.dumps({"Records": [record]}).encode()


class Runner:
    """Runs one side after another over the same objects, in one session."""

    def __init__(self, spark: SparkSession, place: Place, objects: int, rows: int) -> None:
        self.spark, self.place, self.objects, self.rows = spark, place, objects, objects * rows
        self.url = bucket().store_url()
        named = [(f"in/{number:06d}.json", content(number * rows, rows)) for number in range(objects)]
        self.bucket = self.url.split("/")[2]
        self.messages = [notification(self.bucket, *found) for found in put(self.url, named)]
        self._numbers = itertools.count()

    def plain(self) -> dict[str, float]:
        """Spark's own reader and writer."""
        out = s3a(f"{self.url}/plain-{next(self._numbers)}")

        def work() -> float:
            began = time.perf_counter()
            frame = self.spark.read.schema(SCHEMA).json(s3a(f"{self.url}/in/"))
            frame.write.partitionBy("day").parquet(out)
            return time.perf_counter() - began

        return self._measured(work)

    def ingest(self) -> dict[str, float]:
        """From the first question to the queue to the last acknowledgement, without the wait for more."""
        with self.place.fresh() as folder, detent.open(f"file:{folder / 'store'}") as store:
            queue = store.queue("files")
            queue.create()
            for first in range(0, self.objects, 1_000):
                queue.publish_many(self.messages[first : first + 1_000])
            config = self._config(store.url, folder)
            return self._measured(lambda: self._until_done(config))

    def _config(self, store: str, folder: Path) -> IngestConfig:
        return IngestConfig(
            name="bench",
            queue=f"detent:{store}#files",
            table=f"{self.url}/table-{next(self._numbers)}",
            committer="delta",
            schema=SCHEMA,
            partition_by=["day"],
            folder=str(folder),
        )

    def _until_done(self, config: IngestConfig) -> float:
        ended = 0.0

        def watch(progress: IngestProgress) -> None:
            nonlocal ended
            if progress.counters.acknowledged == self.objects and not ended:
                ended = time.perf_counter()
                ingest.stop()

        ingest = Ingest(config, spark=self.spark, watch=watch)
        began = time.perf_counter()
        counters = ingest.run(once=True)
        assert (counters.files, counters.rows) == (self.objects, self.rows)
        return ended - began

    def _measured(self, work: Callable[[], float]) -> dict[str, float]:
        """What `work` says of its time, and the requests that it made."""
        with counted() as count:
            seconds = work()
        thousands = self.objects / 1_000
        return {
            "objects": self.objects / seconds,
            "rows": self.rows / seconds,
            "requests": count.requests / thousands,
            "writes": count.writes / thousands,
        }


def _plan(place: Place, kind: str, objects: int, rows: int) -> Iterator[Plan]:
    with lake_session() as spark:
        runner = Runner(spark, place, objects, rows)
        unit = "rows" if kind == "large" else "objects"
        what = f"{objects} {kind} objects to partitioned Delta on the bucket"
        yield Plan(
            {"plain": runner.plain, "ingest": runner.ingest},
            [
                Row(what, f"{unit}/s", f"ingest.{unit}", ratio_at_least(0.7, ">= 0.7 x Spark with hadoop-aws"),
                    f"plain.{unit}", note="the S3 server shares the two cores with both"),
                Row(f"{kind} objects: requests for 1,000", "requests", "ingest.requests", INFORMATIVE,
                    "plain.requests"),
                Row(f"{kind} objects: writes and lists for 1,000", "requests", "ingest.writes", INFORMATIVE,
                    "plain.writes"),
            ],
        )  # fmt: skip


@SUITE.measurement("large")
@contextmanager
def large(place: Place, size: Size) -> Iterator[Plan]:
    """100 objects of 3 MB."""
    yield from _plan(place, "large", size.of(LARGE_OBJECTS, QUICK_LARGE_OBJECTS), LARGE_ROWS)


@SUITE.measurement("small")
@contextmanager
def small(place: Place, size: Size) -> Iterator[Plan]:
    """10,000 objects of 1.5 KB."""
    yield from _plan(place, "small", size.of(SMALL_OBJECTS, QUICK_SMALL_OBJECTS), SMALL_ROWS)
