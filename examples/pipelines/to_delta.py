"""Orders in a Delta table that any tool can read: each batch is one commit, whose transaction id makes it once."""

# try: python examples/pipelines/generate.py file:./data
#      detent run examples/pipelines/to_delta.py --once
#      python -c "import deltalake; print(deltalake.DeltaTable('./tables/orders').to_pyarrow_table())"

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from detent.spark import Pipeline

pipeline = Pipeline("to_delta", store="file:./data")


@pipeline.table(
    read="orders",
    path="./tables/orders",
    partition_by=["day"],
    json="id STRING NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP NOT NULL",
)
def orders_table(orders: DataFrame) -> DataFrame:
    return orders.withColumn("day", F.to_date("at"))
