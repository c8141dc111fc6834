"""A pipeline from a journal on the bucket into a partitioned Delta table there, against Spark's own file sink."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import detent.spark
from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.lake.bucket import bucket, counted
from bench.lake.sparks import lake_session, s3a
from bench.lake.suite import SUITE
from bench.place import Place
from bench.spark.world import rate

ROWS, QUICK_ROWS = 2_000_000, 100_000
DAYS = 7
SCHEMA = "id BIGINT NOT NULL, day INT NOT NULL, amount DOUBLE, text STRING"


def fill(store: Any, rows: int) -> None:
    """Bodies in JSON, in fragments."""
    journal = store.journal("orders")
    for start in range(0, rows, 250_000):
        numbers = range(start, min(rows, start + 250_000))
        bodies = [b'{"id":%d,"day":%d,"amount":%d.5,"text":"%032d"}' % (n, n % DAYS, n % 997, n) for n in numbers]
        journal.adopt([journal.write_fragment(pa.table({"body": pa.array(bodies, pa.binary())}))])


def pipeline_to(table: str) -> detent.spark.Pipeline:
    """A pipeline into a new table."""
    pipeline = detent.spark.Pipeline(table.rpartition("/")[2])
    declare = pipeline.table(
        read="orders", path=table, partition_by=["day"], json=SCHEMA, name="table", max_messages=10**9
    )
    declare(lambda orders: orders.select("id", "day", "amount", "text"))
    return pipeline


@SUITE.measurement("pipeline")
@contextmanager
def pipeline(place: Place, size: Size) -> Iterator[Plan]:
    """JSON in a journal becomes rows of a partitioned table. Both sides read the same journal of the same bucket, parse
    it, and write to the bucket; Spark's own sink does so with hadoop-aws."""
    rows, numbers = size.of(ROWS, QUICK_ROWS), itertools.count()
    url = bucket().store_url()
    with place.fresh() as folder, lake_session(url) as spark:
        fill(detent.spark.store_of(spark), rows)

        def ours() -> dict[str, float]:
            name = f"t{next(numbers)}"
            made = pipeline_to(f"{url}-tables/{name}")
            with counted() as count:
                speed = rate(rows, lambda: made.run(once=True, store=url, checkpoints=folder / "checkpoints"))
            return {"rate": speed, "requests": 1000 * count.requests / rows}

        def sparks() -> float:
            number = next(numbers)
            read = spark.readStream.format("detent").option("journals", "orders").load(url)
            fields = read.selectExpr(f"from_json(CAST(body AS STRING), '{SCHEMA}') AS f").select("f.*")
            writer = fields.writeStream.format("parquet").partitionBy("day").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(folder / f"cp{number}"))
            return rate(rows, lambda: writer.start(s3a(f"{url}-out/{number}")).awaitTermination())

        yield Plan(
                {"delta": ours, "spark": sparks},
                [
                    Row("journal to partitioned Delta on the bucket", "rows/s", "delta.rate",
                        ratio_at_least(0.7, ">= 0.7 x Spark's file sink"), "spark",
                        note="a pipeline also looks for what does not match"),
                    Row("the same: requests for 1,000 rows", "requests", "delta.requests", INFORMATIVE),
                ],
            )  # fmt: skip
