"""Orders of a journal, parsed once; those that are paid go to another journal, each large one to a queue.

Sources and sinks are Detent's formats. Each flow is a stream with its own row in the store's ledger: whatever Spark
repeats takes effect once.
"""

# try: export DETENT_URL=file:$PWD/data
#      detent journal append orders --body '{"id": 1, "amount": 950}'
#      detent queue create large
#      detent serve "$DETENT_URL" &
#      spark-pipelines run --spec examples/declarative/spark-pipeline.yml
#      detent journal read paid

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

STORE = os.environ["DETENT_URL"]  # with a whole path: Spark runs this file in the folder of the project

dp.create_sink("paid", "detent", {"path": STORE, "journal": "paid"})
dp.create_sink("large", "detent.queue", {"path": STORE, "queue": "large"})


@dp.temporary_view
def orders() -> DataFrame:
    spark = SparkSession.active()
    messages = spark.readStream.format("detent").option("journals", "orders").load(STORE)
    return messages.selectExpr("from_json(CAST(body AS STRING), 'id BIGINT, amount DOUBLE') AS o").select("o.*")


@dp.append_flow(target="paid")
def to_paid() -> DataFrame:
    return SparkSession.active().readStream.table("orders").where("amount > 0")


@dp.append_flow(target="large")
def to_large() -> DataFrame:
    rows = SparkSession.active().readStream.table("orders").where("amount > 500")
    return rows.selectExpr("CAST(id AS STRING) AS body", "map('kind', 'large') AS headers")
