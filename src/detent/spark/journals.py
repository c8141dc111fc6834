"""The format ``detent``: journals as a source and a sink of Spark.

>>> orders = spark.readStream.format("detent").option("journals", "orders").load("file:/data/store")
>>> copy = orders.select("body").writeStream.format("detent").option("journal", "copy").queryName("copy")
>>> copy.option("checkpointLocation", "/data/checkpoints/copy").start("file:/data/store")

The module is imported by Spark's planners and workers; what a task does is in `journal_reading` and `journal_writing`.
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
from detent.spark import journal_reading, journal_writing
from detent.spark.rows import schema_of


class JournalDataSource(DataSource):
    """Committed messages of journals; rows appended to them."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "detent"

    def schema(self) -> StructType:
        return schema_of(journal_reading.JournalReadSettings.of(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_schema(schema)
        return journal_reading.batch_reader(journal_reading.JournalReadSettings.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_schema(schema)
        return journal_reading.JournalStreamReader(journal_reading.JournalReadSettings.of(self.options))

    def _check_schema(self, schema: StructType) -> None:
        """Spark asks no source whether it can read the schema that a user gives."""
        expected = self.schema()
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
            raise Invalid(
                f"the format detent gives the columns {expected.simpleString()}: leave .schema() out, and parse the "
                'body with from_json(col("body").cast("string"), ...)'
            )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Invalid('journals are only appended to: use .mode("append"), and trim what should go')
        return journal_writing.JournalWriter(journal_writing.WriteSettings.of(self.options, schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise Invalid('journals are only appended to: use .outputMode("append"), not complete')
        return journal_writing.JournalStreamWriter(
            journal_writing.WriteSettings.of(self.options, schema, streaming=True)
        )
