"""The format ``detent.queue``: a queue as a source and a sink of Spark.

>>> source = spark.readStream.format("detent.queue").option("queue", "mail").option("readerName", "sender")
>>> sink = source.load("file:/data/store").select("body").writeStream.format("detent.queue").option("queue", "sent")
>>> sink.option("checkpointLocation", "/checkpoints/sender").start("file:/data/store")

The module is imported by Spark's planners and workers; what a task does is in `queue_reading` and `queue_writing`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from detent.errors import Invalid
from detent.spark import queue_reading, queue_writing


class QueueDataSource(DataSource):
    """Messages of a queue, each to one stream; rows published to queues."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "detent.queue"

    def schema(self) -> StructType:
        return queue_reading.COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        raise Invalid(
            "a queue is read by a stream, spark.readStream: a reader of its messages has to say what became of them. "
            'To look at them, use spark.read.format("detent.table").option("table", "messages"); to work off what is '
            "there and stop, a stream with .trigger(availableNow=True)"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        expected = self.schema()
        # Spark asks no source whether it can read the schema that a user gives.
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
            raise Invalid(
                f"the format detent.queue gives the columns {expected.simpleString()}: leave .schema() out, and parse "
                'the body with from_json(col("body").cast("string"), ...)'
            )
        return queue_reading.QueueStreamReader(queue_reading.QueueReadSettings.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Invalid('queues are only published to: use .mode("append"), and purge what should go')
        return queue_writing.QueueWriter(queue_writing.PublishSettings.of(self.options, schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise Invalid('queues are only published to: use .outputMode("append"), not complete')
        return queue_writing.QueueStreamWriter(queue_writing.PublishSettings.of(self.options, schema, streaming=True))
