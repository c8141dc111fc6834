"""Delta and Iceberg tables as DataFrames, from pip alone: tasks read the files, wherever they are.

Spark's own readers need jars for an object store, and for these formats such that fit its version. Here the driver
plans which files have the rows, and tasks read them with Arrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from detent.errors import NotFound
from detent.tables.catalogs import CatalogGiven
from detent.tables.delta import DeltaPlace
from detent.tables.scans import Condition, DeltaScan, IcebergScan, Scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES: Final = 128 << 20
"""How much one task reads, at least where there is as much for all cores."""

_NONE: Final[Mapping[str, str]] = {}


def read_table(
    spark: SparkSession,
    table: str,
    *,
    catalog: CatalogGiven | None = None,
    where: Sequence[Condition] = (),
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A Delta table, by its folder or URL, or with `catalog` (see `to_iceberg`) an Iceberg table by its name.

    The DataFrame is of one version of the table, the newest one unless `version` (of Iceberg the id of a snapshot) says
    another. `where` holds conditions such as ``("day", "=", date(2026, 1, 31))``, of which all must be true: files that
    cannot have such rows are not read. (Filters of the DataFrame itself are applied to rows that were read.) A table
    with more than its files say is refused with `Invalid`: deletion vectors and column mapping of Delta, equality
    deletes of Iceberg. Deletes by position are honoured.
    """
    scan = _scan(table, catalog, where, version, dict(storage_options or _NONE))
    frame = _frame(spark, scan)
    for column, sign, value in where:
        frame = frame.where(_condition(column, sign, value))
    return frame


def _scan(
    table: str, catalog: CatalogGiven | None, where: Sequence[Condition], version: int | None, storage: dict[str, str]
) -> Scan:
    if catalog is not None:
        from detent.tables.iceberg_table import IcebergTable

        with contextlib.closing(IcebergTable(table, catalog, storage=storage)) as found:
            return IcebergScan(found.open(), where, version)
    place = DeltaPlace.at(table, storage)
    view = place.open_if_there()
    if view is None:
        raise NotFound(f"there is no Delta table at {table}; an Iceberg table is found by its catalog=")
    if version is not None:
        view.load_as_version(version)
    return DeltaScan(view, place.uri, storage, where)


def _frame(spark: SparkSession, scan: Scan) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = from_arrow_schema(scan.schema)
    tasks = _cut(scan.sizes, spark.sparkContext.defaultParallelism)
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    return numbers.mapInArrow(partial(_read, scan, tasks, to_arrow_schema(schema)), schema)


def _cut(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """The numbers of files for each task, about as much for each, and the largest files first."""
    count = min(len(sizes), max(cores, -(-sum(sizes) // TASK_BYTES)))
    tasks: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        least = filled.index(min(filled))
        tasks[least].append(number)
        filled[least] += sizes[number]
    return tasks


def _read(scan: Scan, tasks: list[list[int]], schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """What a task does with its number."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                for rows in scan.read(number):
                    yield _as_spark(rows, schema)


def _as_spark(rows: Any, schema: Any) -> Any:
    columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _condition(column: str, sign: str, value: Any) -> Any:
    found, literal = F.col(f"`{column}`"), F.lit(value)
    return {
        "=": found == literal,
        "!=": found != literal,
        "<": found < literal,
        "<=": found <= literal,
        ">": found > literal,
        ">=": found >= literal,
    }[sign]
