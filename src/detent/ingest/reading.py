"""The files of a batch as a DataFrame, by Spark's own readers and by a schema that all pipelines share.

What does not fit is not lost: a line that is malformed, or has a value of another type, goes whole into the rescued
column. What happens to columns that the schema does not have is said by the configuration:

==========  ==============================================================================================
``ignore``  they are not read; the default with a schema that is given
``add``     they are added to the schema that is kept, behind the others, and to the table. Types change only with
            a schema that gives wider ones. The default without a schema
``rescue``  they go into the rescued column, as JSON
``fail``    their file fails, and is put into quarantine in the end
==========  ==============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType
from sqlalchemy import Engine

from detent.errors import Invalid
from detent.ingest import csv_headers
from detent.ingest.config import IngestConfig
from detent.ingest.executor_reading import ExecutorSource
from detent.ingest.object_rows import METADATA
from detent.ingest.schemas import kept_schema, widen
from detent.ingest.staged_reading import STRICT, StagedSource
from detent.ingest.staging import StagedFile
from detent.tables.widening import wider

Source = StagedSource | ExecutorSource
"""Files of a batch, where they are read."""

_NAME, _URI, _VERSION = "_detent_name", "_detent_uri", "_detent_version"
"""The column that says which file a row came from, and what it is joined by."""

_RESCUES: Final = ("json", "csv")
"""Formats whose lines can be malformed by themselves."""


class NewColumns(Invalid):
    """A file has columns that the schema has not, and is not to have."""


class BatchReader:
    """Reads the batches of one ingest."""

    def __init__(self, spark: SparkSession, config: IngestConfig, engine: Engine) -> None:
        self._spark = spark
        self._config = config
        self._engine = engine
        self._rescued = config.rescued_column if config.format in _RESCUES else ""
        self._is_told = config.metadata or config.format == "binary"  # whose own column names the staged file
        self._origin = [METADATA] if self._is_told else []
        self._check()

    def _check(self) -> None:
        config = self._config
        if config.evolution == "rescue" and config.format in {"json", "csv"} and not config.rescued_column:
            raise Invalid('new_columns = "rescue" needs a rescued_column')
        if config.schema and config.format in {"text", "binary"}:
            raise Invalid(f"{config.format} files have a schema of their own: leave schema out")
        if self._has_headers():
            csv_headers.HeaderStyle.of(self._options())

    def _has_headers(self) -> bool:
        return self._config.format == "csv" and self._options()["header"].lower() == "true"

    # -- the schema --------------------------------------------------------------------------------------------------

    def given_schema(self) -> StructType | None:
        """The schema that the configuration gives, kept; None if it is to be inferred."""
        if not self._config.schema:
            return None
        try:
            given = StructType.fromDDL(self._config.schema)
        except Exception as error:  # Spark's parser has no error of its own that can be imported without Java
            raise Invalid(f"the schema {self._config.schema!r} is not one: {error}") from error
        if not isinstance(given, StructType):
            raise Invalid(
                f"the schema {self._config.schema!r} is a type, and not columns: write 'id BIGINT, name STRING'"
            )
        return self._widen(given)

    def _widen(self, schema: StructType) -> StructType:
        for name in (METADATA, self._rescued):
            if name and name.lower() in (field.name.lower() for field in schema):
                raise Invalid(f"a column of the files is called {name}: rename rescued_column, or leave metadata out")
        is_given = bool(self._config.schema)
        rows = schema.toNullable()
        kept = widen(self._engine, self._config.name, rows, takes_types=is_given)
        if is_given:
            kinds = {field.name.lower(): field.dataType.jsonValue() for field in kept}
            given = [(field.name, kinds[field.name.lower()], field.dataType.jsonValue()) for field in rows]
            wrong = [name for name, kind, other in given if wider(kind, other) != kind]
            if wrong:
                raise Invalid(
                    f"the schema gives {', '.join(wrong)} another type than before, and not a wider one: types of a "
                    "source only become wider. Cast in the transform, or ingest under another name"
                )
        return kept

    def _schema(self, source: Source) -> StructType:
        """The schema that this batch is read with."""
        kept = self.given_schema() or self._kept()
        if kept is None:
            return self._widen(self._inferred(source))
        if self._config.evolution in {"add", "fail"}:
            new = _without(self._inferred(source), kept)
            if new.fields and self._config.evolution == "fail":
                raise NewColumns(f"columns that the schema does not have: {', '.join(new.names)}")
            if new.fields:
                return self._widen(new)
        return kept

    def _kept(self) -> StructType | None:
        kept = kept_schema(self._engine, self._config.name)
        return None if kept is None else StructType.fromJson(json.loads(kept.columns))

    def _inferred(self, source: Source) -> StructType:
        corrupt = self._rescued or "_corrupt_record"
        plain = {"inferSchema": "true", "mergeSchema": "true", **self._options()}
        source.keep()
        found = source.inferred({**plain, "columnNameOfCorruptRecord": corrupt})
        return StructType([field for field in found if field.name != corrupt]).toNullable()

    def _options(self) -> dict[str, str]:
        plain = {"header": "true"} if self._config.format == "csv" else {}
        return {**plain, **self._config.options, **STRICT}

    # -- the rows ----------------------------------------------------------------------------------------------------

    def read(self, source: Source, files: Sequence[StagedFile]) -> DataFrame | None:
        """The rows of files; None if there are neither rows nor columns."""
        config = self._config
        if config.format in {"text", "binary"}:
            frame = self._load(source, None)
        elif self._has_headers():
            found = self._read_csv(source)
            if found is None:
                return None
            frame = found
        else:
            schema = self._schema(source)
            if not schema.fields:
                return None
            frame = self._read_with(schema, source)
        return _with_origins(frame, self._spark, files, config) if self._is_told else frame

    def _read_with(self, schema: StructType, source: Source) -> DataFrame:
        if self._config.evolution == "rescue" and self._config.format == "json":
            return self._read_json_lines(schema, source)
        if self._config.evolution == "rescue" and self._config.format == "parquet":
            return self._read_wide_parquet(schema, source)
        return self._load(source, schema)

    def _load(self, source: Source, schema: StructType | None, names: Sequence[str] | None = None) -> DataFrame:
        options = self._options()
        if schema is not None:
            if self._rescued:
                schema = StructType([*schema.fields, StructField(self._rescued, StringType())])
                options["columnNameOfCorruptRecord"] = self._rescued
            elif self._config.format in _RESCUES:
                options["mode"] = "FAILFAST"
        return source.load(schema, options, names) if self._is_told else source.plain(schema, options, names)

    def _read_json_lines(self, schema: StructType, source: Source) -> DataFrame:
        """Each line parsed twice, once for the columns and once for those that are not among them."""
        options = {**self._options(), "columnNameOfCorruptRecord": self._rescued}
        wanted = StructType([*schema.fields, StructField(self._rescued, StringType())])
        lines = source.lines().where(F.trim("value") != "")
        known = F.array(*[F.lit(name) for name in schema.names])
        everything = F.from_json("value", "map<string,string>")
        unknown = F.map_filter(everything, lambda name, _: ~F.array_contains(known, name))
        rescued = F.coalesce(F.col(f"row.`{self._rescued}`"), F.when(F.size(unknown) > 0, F.to_json(unknown)))
        kept = lines.withColumn("row", F.from_json("value", wanted, options))
        columns = [F.col(f"row.`{name}`").alias(name) for name in schema.names]
        return kept.select(*columns, rescued.alias(self._rescued), *self._origin)

    def _read_wide_parquet(self, schema: StructType, source: Source) -> DataFrame:
        """All columns that the files have, and those that are not in the schema together in one."""
        new = _without(self._inferred(source), schema)
        frame = self._load(source, StructType([*schema.fields, *new.fields]))
        unknown = F.to_json(F.struct(*[F.col(f"`{name}`") for name in new.names])) if new.fields else F.lit(None)
        columns = [F.col(f"`{name}`") for name in schema.names]
        rescued = F.when(unknown != "{}", unknown).cast("string").alias(self._config.rescued_column)
        return frame.select(*columns, rescued, *self._origin)

    # -- CSV ---------------------------------------------------------------------------------------------------------

    def _read_csv(self, source: Source) -> DataFrame | None:
        """Files with one header together: Spark matches columns by their place alone, and files differ in it."""
        groups = source.headers(csv_headers.HeaderStyle.of(self._options()))
        frames = [
            self._read_csv_group(source, header, line, names) for header, (line, names) in groups.items() if header
        ]
        if not frames:
            return None
        joined = frames[0]
        for frame in frames[1:]:
            joined = joined.unionByName(frame, allowMissingColumns=True)
        return joined

    def _read_csv_group(self, source: Source, header: tuple[str, ...], line: str, names: list[str]) -> DataFrame:
        schema = self._csv_schema(source, header, line, names)
        kinds = {field.name.lower(): field for field in schema}
        # Of the columns that are not in the schema, the text; of its own that are not in the file, nothing.
        wanted = StructType([kinds.get(name.lower(), StructField(name, StringType())) for name in header])
        frame = self._load(source, wanted, names)
        unknown = [name for name in header if name.lower() not in kinds]
        has = {name.lower() for name in header}
        columns = [
            F.col(f"`{one.name}`") if one.name.lower() in has else F.lit(None).cast(one.dataType).alias(one.name)
            for one in schema
        ]
        rescued = [self._rescued_csv(unknown)] if self._rescued else []
        return frame.select(*columns, *rescued, *self._origin)

    def _rescued_csv(self, unknown: list[str]) -> Any:
        rescued = F.col(f"`{self._rescued}`")
        if unknown and self._config.evolution == "rescue":
            rescued = F.coalesce(rescued, F.to_json(F.struct(*[F.col(f"`{name}`") for name in unknown])))
        return rescued.alias(self._rescued)

    def _csv_schema(self, source: Source, header: tuple[str, ...], line: str, files: list[str]) -> StructType:
        kept = self.given_schema() or self._kept()
        names = {field.name.lower() for field in kept} if kept is not None else set()
        new = [name for name in header if name.lower() not in names]
        if kept is not None and (not new or self._config.evolution in {"ignore", "rescue"}):
            return kept
        if kept is not None and self._config.evolution == "fail":
            raise NewColumns(f"columns that the schema does not have: {', '.join(new)}")
        source.keep()
        found = source.inferred_csv(line, {"inferSchema": "true", **self._options()}, files)
        return self._widen(StructType([field for field in found if field.name in new]))


def _without(schema: StructType, known: StructType) -> StructType:
    names = {field.name.lower() for field in known}
    return StructType([field for field in schema if field.name.lower() not in names])


# -- where rows came from -------------------------------------------------------------------------------------------


def _with_origins(
    frame: DataFrame, spark: SparkSession, files: Sequence[StagedFile], config: IngestConfig
) -> DataFrame:
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
