"""Files of a batch that were copied into one folder, as DataFrames, by Spark's own readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from detent.ingest import csv_headers
from detent.ingest.object_rows import METADATA
from detent.ingest.staging import StagedFile

_READERS: Final = {"json": "json", "csv": "csv", "parquet": "parquet", "text": "text", "binary": "binaryFile"}


class StagedSource:
    """The staged files of a batch. It answers what `ExecutorSource` does of objects."""

    def __init__(self, spark: SparkSession, folder: Path, files: Sequence[StagedFile], kind: str) -> None:
        self._spark = spark
        self._folder = folder
        self._files = files
        self._kind = kind

    def keep(self) -> None:
        """They are on a disk."""

    def close(self) -> None:
        """Their folder is another's business."""

    def _paths(self, names: Sequence[str] | None) -> str | list[str]:
        """All of them by their folder: Spark looks at each path that it is given by itself."""
        if names is None and len(self._files) == sum(1 for _ in self._folder.iterdir()):
            return str(self._folder)
        chosen = [staged.name for staged in self._files] if names is None else names
        return [str(self._folder / name) for name in chosen]

    def lines(self, names: Sequence[str] | None = None) -> DataFrame:
        """Their lines, with where they came from."""
        return self._spark.read.options(**STRICT).text(self._paths(names)).select("value", METADATA)

    def load(
        self, schema: StructType | None, options: Mapping[str, str], names: Sequence[str] | None = None
    ) -> DataFrame:
        """The rows of files, by the schema, with where they came from in the column `_metadata`."""
        return self.plain(schema, options, names).select("*", METADATA)

    def plain(
        self, schema: StructType | None, options: Mapping[str, str], names: Sequence[str] | None = None
    ) -> DataFrame:
        """The same, without where they came from."""
        reader = self._spark.read.format(_READERS[self._kind]).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(self._paths(names))

    def inferred(self, options: Mapping[str, str]) -> StructType:
        """The columns that files have."""
        return self._spark.read.format(_READERS[self._kind]).options(**options).load(self._paths(None)).schema

    def inferred_csv(self, line: str, options: Mapping[str, str], names: Sequence[str]) -> StructType:
        """The columns of files that have the same header."""
        del line
        return self._spark.read.format("csv").options(**options).load(self._paths(names)).schema

    def headers(self, style: csv_headers.HeaderStyle) -> csv_headers.Grouped:
        """The files of each header."""
        return csv_headers.groups(self._folder, self._files, style)


STRICT: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""A file that cannot be read is a failure, whatever the session says: it would count as ingested."""
