"""A batch of 1 % of the rows of a Delta table on the bucket, merged by `once`, against the library's own merge."""

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
from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.lake.bucket import bucket, counted
from bench.lake.sparks import lake_session
from bench.lake.suite import SUITE
from bench.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, QUICK_ROWS = 10_000_000, 1_000_000
FILES = 20


def rows_of(ids: Any, version: int) -> Any:
    """Rows of a table, by their ids."""
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "amount": pa.array(ids * 0.5 + version, pa.float64()),
            "text": pa.array([f"row {number % 1000:04d} of many" for number in range(1000)]).take(
                pa.array(ids % 1000, pa.int64())
            ),
        }
    )


class Merging:
    """A table, and batches that go into it."""

    def __init__(self, spark: SparkSession, store: detent.Store, folder: Path, rows: int) -> None:
        self.spark, self.store, self.folder, self.rows = spark, store, folder, rows
        self.url = f"{bucket().store_url()}/table"
        self._versions = itertools.count(1)
        self._write = detent.spark.once(store, "merging", detent.spark.to_delta(self.url, merge_on=["id"]))
        self._fill()

    def _fill(self) -> None:
        from deltalake import write_deltalake

        step = self.rows // FILES
        for first in range(0, self.rows, step):
            write_deltalake(self.url, rows_of(np.arange(first, first + step), 0), mode="append")

    def ids(self, *, is_spread: bool) -> Any:
        """1 % of all keys: the newest ones, or each hundredth."""
        return np.arange(0, self.rows, 100) if is_spread else np.arange(self.rows - self.rows // 100, self.rows)

    def once(self, *, is_spread: bool) -> dict[str, float]:
        """The keys in a journal, as one batch of a stream; what the sink takes for it, reading the journal included."""
        found: dict[str, float] = {}
        journal = self.store.journal("keys")
        bodies = pa.array(self.ids(is_spread=is_spread)).cast(pa.string()).cast(pa.binary())
        journal.adopt([journal.write_fragment(pa.table({"body": bodies}))])
        version = next(self._versions)

        def timed(batch: DataFrame, number: int) -> None:
            found.update(self._measured(lambda: self._write(batch, number)))

        keys = self.spark.readStream.format("detent").option("journals", "keys").load(self.store.url)
        rows = keys.selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS id").selectExpr(
            "id", f"id * 0.5D + {version} AS amount", "format_string('row %04d of many', id % 1000) AS text"
        )
        writer = rows.writeStream.foreachBatch(timed).option("checkpointLocation", str(self.folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return found

    def library(self, *, is_spread: bool) -> dict[str, float]:
        """The same rows, by deltalake, without a mark."""
        from deltalake import DeltaTable

        source = rows_of(self.ids(is_spread=is_spread), next(self._versions))

        def work() -> None:
            merging = DeltaTable(self.url).merge(
                source, "target.id = source.id", source_alias="source", target_alias="target"
            )
            merging.when_matched_update_all().when_not_matched_insert_all().execute()

        return self._measured(work)

    def _measured(self, work: Any) -> dict[str, float]:
        with counted() as count:
            began = time.perf_counter()
            work()
            seconds = time.perf_counter() - began
        return {"seconds": seconds, "requests": count.requests}


@SUITE.measurement("merge")
@contextmanager
def merge(place: Place, size: Size) -> Iterator[Plan]:
    """1 % of 10 million rows: the newest keys, which are in one file of twenty, and keys that are in all files."""
    rows = size.of(ROWS, QUICK_ROWS)
    with place.fresh() as folder:
        store = f"file:{folder / 'store'}"
        with lake_session(store) as spark:
            merging = Merging(spark, detent.spark.store_of(spark), folder, rows)
            what = f"merge of 1 % of {rows:,} rows, keys in"
            yield Plan(
                {
                    "one": lambda: merging.once(is_spread=False),
                    "library one": lambda: merging.library(is_spread=False),
                    "all": lambda: merging.once(is_spread=True),
                    "library all": lambda: merging.library(is_spread=True),
                },
                [
                    row
                    for side, files in (("one", "one file of 20"), ("all", "all files"))
                    for row in (
                        Row(f"{what} {files}", "s", f"{side}.seconds", INFORMATIVE, f"library {side}.seconds",
                            note="against DeltaTable.merge() of the library, without Spark and without a mark"),
                        Row(f"{what} {files}: requests", "requests", f"{side}.requests", INFORMATIVE,
                            f"library {side}.requests"),
                    )
                ],
                warm_up=False,
            )  # fmt: skip
