"""Announced objects as DataFrames: the tasks that read them parse them, and the driver knows their names only.

Tasks cut objects into lines, and Spark parses those by its own rules, as it does with those of files. Parquet is read
through Arrow (`detent.ingest.parquet_rows`).
"""

from __future__ import annotations

import codecs
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from detent.errors import DetentError, Invalid
from detent.ingest import csv_headers
from detent.ingest.local_state import HeldFile
from detent.ingest.object_rows import (
    METADATA,
    ORIGIN_DDL,
    SPLIT_BYTES,
    FoundHeader,
    LineStyle,
    binary_rows,
    divided,
    header_rows,
    in_task,
    line_rows,
    of_ranges,
)
from detent.ingest.objects import is_local
from detent.ingest.parquet_rows import FoundColumns, column_rows, parquet_rows, spark_schema
from detent.ingest.pinned import ObjectAccess, ObjectSplit, PinnedObject, is_packed_else
from detent.ingest.staging import FilesFailed

HEADER_BYTES: Final = 64 << 10
"""What is read of an object for its first line, unless that is longer."""

_PARQUET_ORIGIN: Final = f"{ORIGIN_DDL[:-1]}, row_index: bigint>"
_OF_FILES: Final = ("encoding", "charset", "linesep", "multiline", "wholetext", "header", "mergeschema")
"""Options that say how files are cut into values, which is done when Spark sees them."""

_REBASING: Final = ("datetimerebasemode", "int96rebasemode")


def reads_in_tasks(uri: str, kind: str, options: Mapping[str, str]) -> bool:
    """Whether a file is read by the tasks that parse it. Local files are not, nor data of messages, nor files whose
    lines cannot be told apart without parsing them, or that only Spark unpacks: those are copied to a folder first."""
    given = {name.lower(): value for name, value in options.items()}
    if is_local(uri) or not uri.startswith("s3:"):
        return False
    if kind == "parquet":
        return not any(name in given for name in _REBASING)
    if kind != "binary" and is_packed_else(uri):
        return False
    if kind == "csv" and given.get("multiline", "false").lower() == "true":
        return False
    return _encoding(given) is not None


def _encoding(given: Mapping[str, str]) -> str | None:
    """The encoding of files, by Python's name of it; None if the end of a line is not one byte in it."""
    name = given.get("encoding", given.get("charset", "utf-8"))
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return None
    return found if found in csv_headers.LINES else None


class ExecutorSource:
    """The objects of a batch. `close` lets go of what was kept of them."""

    def __init__(
        self,
        spark: SparkSession,
        access: ObjectAccess,
        objects: Sequence[PinnedObject],
        files: Sequence[HeldFile],
        kind: str,
        options: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._access = access
        self._objects = objects
        self._files = {one.number: file for one, file in zip(objects, files, strict=True)}
        self._kind = kind
        self._options = dict(options)
        self._kept: dict[tuple[str, ...] | None, DataFrame] = {}
        self._is_kept = False

    def close(self) -> None:
        """Let go of lines that were kept."""
        for frame in self._kept.values():
            frame.unpersist()

    def keep(self) -> None:
        """Keep lines where they were read, on the disks of the executors: they are asked for more than once."""
        self._is_kept = True

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _in_tasks(
        self, splits: Sequence[Sequence[ObjectSplit]], work: Callable[[Iterator[ObjectSplit]], Iterator[Any]], ddl: Any
    ) -> DataFrame:
        """A row for each task, which has the names of what it reads, and becomes the rows of that."""
        payloads = [(pickle.dumps(list(share)),) for share in splits]
        named = self._spark.sparkContext.parallelize(payloads, len(payloads))
        frame = self._spark.createDataFrame(named, "payload binary")
        return frame.mapInArrow(partial(in_task, work), ddl)

    def _tasks(self, objects: Sequence[PinnedObject]) -> int:
        cores = self._spark.sparkContext.defaultParallelism
        size = sum(one.size for one in objects)
        return int(cores * max(1, -(-size // (SPLIT_BYTES * cores))))

    def _divided(self, objects: Sequence[PinnedObject], *, is_divisible: bool) -> list[list[ObjectSplit]]:
        return divided(objects, self._tasks(objects), is_divisible=is_divisible)

    def _answers(self, work: Any, length: int) -> dict[int, Any]:
        """What tasks answer for each object, by its number."""
        shares = _dealt(of_ranges(self._objects, length), self._tasks(self._objects))
        rows = self._in_tasks(shares, work, "number int, answer binary").collect()
        return {row["number"]: pickle.loads(row["answer"]) for row in rows}

    def _chosen(self, names: Sequence[str] | None) -> Sequence[PinnedObject]:
        wanted = None if names is None else set(names)
        return [one for one in self._objects if wanted is None or one.name in wanted]

    # -- rows --------------------------------------------------------------------------------------------------------

    def lines(self, names: Sequence[str] | None = None) -> DataFrame:
        """The lines of objects, or their whole texts, with where they came from."""
        key = None if names is None else tuple(names)
        if key in self._kept:
            return self._kept[key]
        style = self._style()
        work = partial(line_rows, self._access, style)
        shares = self._divided(self._chosen(names), is_divisible=style.is_divisible)
        frame = self._in_tasks(shares, work, f"value string, {METADATA} {ORIGIN_DDL}")
        if self._is_kept:
            self._kept[key] = frame.persist(StorageLevel.DISK_ONLY)
        return frame

    def _style(self) -> LineStyle:
        given = {name.lower(): value for name, value in self._options.items()}
        is_whole = "true" in {given.get("wholetext", "").lower(), given.get("multiline", "").lower()}
        header = None
        if self._kind == "csv" and given.get("header", "false").lower() == "true":
            header = csv_headers.HeaderStyle.of(self._options)
        return LineStyle(_encoding(given) or "utf-8", given.get("linesep", "").encode(), is_whole, header)

    def load(
        self, schema: StructType | None, options: Mapping[str, str], names: Sequence[str] | None = None
    ) -> DataFrame:
        """The rows of objects, by the schema, with where they came from in the column `_metadata`."""
        if self._kind == "text":
            return self.lines(names)
        if self._kind == "binary":
            ddl = f"path string, modificationTime timestamp, length bigint, content binary, {METADATA} {ORIGIN_DDL}"
            return self._in_tasks(
                self._divided(self._objects, is_divisible=False), partial(binary_rows, self._access), ddl
            )
        assert schema is not None
        if self._kind == "parquet":
            return self._parquet(schema)
        return self._parsed(self.lines(names), schema, options)

    def _parquet(self, schema: StructType) -> DataFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = to_arrow_schema(schema, timezone="UTC")
        told = cast(StructType, StructType.fromDDL(f"{METADATA} {_PARQUET_ORIGIN}"))
        work = partial(parquet_rows, self._access, wanted, True)
        shares = self._divided(self._objects, is_divisible=True)
        return self._in_tasks(shares, work, StructType([*schema.fields, *told.fields]))

    def _parsed(self, lines: DataFrame, schema: StructType, options: Mapping[str, str]) -> DataFrame:
        """Lines as rows, each with where it came from. Spark's expressions parse as its readers do, but for an array
        in a line, which is several rows to these."""
        plain = parsing(options)
        if self._kind == "csv":
            comment = plain.get("comment", "")
            lines = lines.where(F.trim("value") != "")
            if comment:
                lines = lines.where(~F.col("value").startswith(comment))
            row = F.from_csv("value", schema.toDDL(), plain)
        else:
            lines = lines.where(F.trim("value") != "")
            row = F.from_json("value", schema, plain)
        parsed = lines.withColumn("_detent_row", row)
        columns = [F.col(f"_detent_row.`{field.name}`").alias(field.name) for field in schema]
        return parsed.select(*columns, METADATA)

    def plain(
        self, schema: StructType | None, options: Mapping[str, str], names: Sequence[str] | None = None
    ) -> DataFrame:
        """The same, without where they came from: then lines go to Spark's own readers."""
        if schema is None or self._kind == "parquet":
            return self.load(schema, options, names).drop(METADATA)
        reader = self._spark.read.options(**parsing(options)).schema(schema)
        values = self.lines(names).select("value")
        return reader.csv(values) if self._kind == "csv" else reader.json(values)

    # -- schemas -----------------------------------------------------------------------------------------------------

    def inferred(self, options: Mapping[str, str]) -> StructType:
        """The columns that objects have."""
        if self._kind == "parquet":
            return self._inferred_parquet()
        reader = self._spark.read.options(**parsing(options))
        values = self.lines().select("value")
        return (reader.csv(values) if self._kind == "csv" else reader.json(values)).schema

    def inferred_csv(self, line: str, options: Mapping[str, str], names: Sequence[str]) -> StructType:
        """The columns of objects that have the same header, which is this line."""
        reader = self._spark.read.options(**parsing(options), header="true")
        first = self._spark.createDataFrame([(line,)], "value string")
        return reader.csv(first.union(self.lines(names).select("value"))).schema

    def _inferred_parquet(self) -> StructType:
        found: dict[int, FoundColumns] = self._answers(partial(column_rows, self._access), HEADER_BYTES)
        fields: dict[str, StructField] = {}
        for number in sorted(found):
            for field in spark_schema(found[number]):
                known = fields.setdefault(field.name.lower(), field)
                if known.dataType != field.dataType:
                    raise Invalid(
                        f"the column {field.name} is {known.dataType.simpleString()} in one file and "
                        f"{field.dataType.simpleString()} in another"
                    )
        return StructType(list(fields.values()))

    def headers(self, style: csv_headers.HeaderStyle) -> csv_headers.Grouped:
        """The objects of each header. `FilesFailed` names objects that have no readable one."""
        found: dict[int, FoundHeader] = self._answers(partial(header_rows, self._access, style), HEADER_BYTES)
        reasons: dict[bytes, DetentError] = {}
        grouped: csv_headers.Grouped = {}
        for one in self._objects:
            header = found[one.number]
            if header.failure is not None:
                reasons[self._files[one.number].shard.key] = header.failure
            else:
                grouped.setdefault(header.names, (header.line, []))[1].append(one.name)
        if reasons:
            raise FilesFailed(reasons)
        return grouped


def _dealt(splits: Sequence[ObjectSplit], tasks: int) -> list[list[ObjectSplit]]:
    """Parts that are small all alike, each task some."""
    count = max(1, min(tasks, len(splits)))
    return [list(splits[first::count]) for first in range(count)]


def parsing(options: Mapping[str, str]) -> dict[str, str]:
    """Of the options of a reader of files those that matter for lines."""
    return {name: value for name, value in options.items() if name.lower() not in _OF_FILES}
