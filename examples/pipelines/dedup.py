"""Orders that were sent twice, once: Spark remembers the ids of the last ten minutes, by the orders' own time.

Halves of orders do not match the schema, and wait in the journal dedup/unique.quarantine.
"""

# try: python examples/pipelines/generate.py file:./data
#      detent run examples/pipelines/dedup.py --once
#      detent journal ls file:./data
#      detent quarantine show file:./data dedup/unique.quarantine

from __future__ import annotations

from pyspark.sql import DataFrame

from detent.spark import Pipeline

pipeline = Pipeline("dedup", store="file:./data")


@pipeline.stream(
    read="orders",
    write="orders/unique",
    json="id STRING NOT NULL, customer STRING NOT NULL, amount DOUBLE NOT NULL, at TIMESTAMP NOT NULL",
)
def unique(orders: DataFrame) -> DataFrame:
    return orders.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["id"])
