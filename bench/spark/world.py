"""A session, a store and the rows that all sides of the Spark suite work on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import detent
import detent.spark
from bench.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY_BYTES = 100
CORES = 2
SMALL_ROWS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true",
}
"""What docs/spark.md advises where rows are small and many."""

COLUMNS = ("journal", "offset", "published_at", "key", "body")


class World:
    """One Spark session over one store, in a folder of its own."""

    def __init__(self, spark: SparkSession, store: detent.Store, folder: Path) -> None:
        self.spark = spark
        self.store = store
        self.folder = folder
        self._numbers = itertools.count()

    def path(self, word: str) -> str:
        """A new path below the folder."""
        return str(self.folder / f"{word}-{next(self._numbers)}")

    def name(self, word: str) -> str:
        """A new journal's name."""
        return f"{word}-{next(self._numbers)}"

    def fill(self, journal: str, rows: int, *, fragment_rows: int = 500_000) -> None:
        """Append rows as a Spark sink would: in fragments."""
        handle = self.store.journal(journal)
        for start in range(0, rows, fragment_rows):
            count = min(fragment_rows, rows - start)
            handle.adopt([handle.write_fragment(bodies(count, start))])

    def read(self, journal: str) -> DataFrame:
        return self.spark.read.format("detent").option("journals", journal).load(self.store.url)

    def generated(self, rows: int) -> DataFrame:
        """Rows that Spark makes up as it goes: a body of 100 bytes each."""
        import pyspark.sql.functions as F

        text = F.concat(F.lpad(F.col("id").cast("string"), 20, "0"), F.lit("x" * (BODY_BYTES - 20)))
        return self.spark.range(0, rows, 1, 2 * CORES).select(text.cast("binary").alias("body"))


def bodies(count: int, start: int = 0) -> Any:
    """Bodies of 100 bytes, all different."""
    raw = np.full((count, BODY_BYTES), ord("x"), np.uint8)
    digits = np.arange(start, start + count)
    for place in range(20):
        raw[:, 19 - place] = ord("0") + digits % 10
        digits = digits // 10
    offsets = np.arange(0, (count + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    return pa.table({"body": column})


def rate(rows: int, work: Any) -> float:
    """Rows a second of some work."""
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def world(place: Place) -> Iterator[World]:
    """A world, and nothing left of it afterwards."""
    with place.fresh() as folder:
        url = f"file:{folder / 'store'}"
        spark = detent.spark.session(store=url, cores=CORES, memory="4g", conf=SMALL_ROWS)
        try:
            yield World(spark, detent.spark.store_of(spark), folder)
        finally:
            spark.stop()
