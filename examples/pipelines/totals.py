"""A running total for each customer: state of our own, kept by Spark and restored with the batch it belongs to."""

# try: python examples/pipelines/generate.py file:./data
#      detent run examples/pipelines/totals.py --once
#      detent journal read file:./data customers/totals

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from detent.spark import Pipeline

pipeline = Pipeline(
    "totals",
    store="file:./data",
    conf={  # the only state store that has transformWithState
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
    },
)


class Totals(StatefulProcessor):
    """The total of one customer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "cents BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        del timerValues
        cents = self._total.get()[0] if self._total.exists() else 0
        cents += int(sum(round(frame["amount"] * 100).sum() for frame in rows))
        self._total.update((cents,))
        yield pd.DataFrame({"customer": [key[0]], "total": [cents / 100]})


@pipeline.stream(
    read="orders", write="customers/totals", json="customer STRING NOT NULL, amount DOUBLE NOT NULL", mode="update"
)
def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").transformWithStateInPandas(
        statefulProcessor=Totals(),
        outputStructType="customer STRING, total DOUBLE",
        outputMode="Update",
        timeMode="None",
    )
