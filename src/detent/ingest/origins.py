"""The column `_metadata`: which file a row came from, by the name under which it was announced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from detent.ingest.config import IngestConfig
from detent.ingest.staging import StagedFile

METADATA: Final = "_metadata"
_NAME, _URI, _VERSION = "_detent_name", "_detent_uri", "_detent_version"


def with_origins(frame: DataFrame, spark: SparkSession, files: Sequence[StagedFile], config: IngestConfig) -> DataFrame:
    """Rows that bring Spark's own `_metadata` along, which names staged files, with the files' own names in it."""
    rows = [(one.name, one.file.shard.uri, one.file.shard.version) for one in files]
    origins = spark.createDataFrame(rows, f"{_NAME} string, {_URI} string, {_VERSION} string")
    joined = frame.join(F.broadcast(origins), frame[METADATA]["file_name"] == F.col(_NAME))
    others: list[Any] = [F.col(f"`{name}`") for name in frame.columns if name != METADATA]
    if config.format == "binary":
        others = [
            F.col(_URI).alias("path") if name == "path" else F.col(name) for name in frame.columns if name != METADATA
        ]
    return joined.select(*others, *([_told(config.format).alias(METADATA)] if config.metadata else []))


def _told(kind: str) -> Any:
    native = F.col(METADATA)
    fields = [
        F.col(_URI).alias("file_path"),
        F.element_at(F.split(_URI, "/"), -1).alias("file_name"),
        F.col(_VERSION).alias("file_version"),
        *[native[name].alias(name) for name in ("file_size", "file_modification_time")],
        *[native[name].alias(name) for name in ("file_block_start", "file_block_length")],
    ]
    if kind == "parquet":
        fields.append(native["row_index"].alias("row_index"))  # Spark counts the rows of no other format
    return F.struct(*fields)
