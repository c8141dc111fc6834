"""Orders a minute: a window is written once it is complete, which is when an order of two minutes later has come."""

# try: python examples/pipelines/generate.py file:./data
#      detent run examples/pipelines/windows.py --once
#      detent journal read file:./data orders/per-minute

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from detent.spark import Pipeline

pipeline = Pipeline("windows", store="file:./data")


@pipeline.stream(read="orders", write="orders/per-minute", json="id STRING, amount DOUBLE, at TIMESTAMP NOT NULL")
def per_minute(orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"))
        .agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
        .select(F.col("window.start").alias("minute"), "orders", "amount")
    )
