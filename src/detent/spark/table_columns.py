"""Columns of the tables: what Spark calls their types, and Arrow batches in exactly those types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from detent.durations import since_1970_ms
from detent.settings.setting import Setting, Settings, Text

BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 << 20
"""A batch ends with so many rows or bytes of bodies, whichever comes first: a task holds one of them at a time."""

TIME_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999, where calendars end. Nobody who says a later time means one."""

Row = tuple[Any, ...]
"""The values of one row, in the order of the columns."""


class Kind(NamedTuple):
    """A type, as Spark and as Arrow call it, and what makes a value of it from what the store says."""

    spark: DataType
    arrow: Any
    value: Callable[[Any], Any] | None = None


def _microseconds(time: int | datetime) -> int | None:
    ms = since_1970_ms(time) if isinstance(time, datetime) else time
    return None if ms > TIME_MS_MAX else ms * 1000


def _pairs(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(mapping.items())


TEXT: Final = Kind(StringType(), pa.string())
NUMBER: Final = Kind(LongType(), pa.int64())
SMALL: Final = Kind(IntegerType(), pa.int32())
TRUTH: Final = Kind(BooleanType(), pa.bool_())
BYTES: Final = Kind(BinaryType(), pa.binary())
TIME: Final = Kind(TimestampType(), pa.timestamp("us", tz="UTC"), _microseconds)
TEXTS: Final = Kind(ArrayType(StringType()), pa.list_(pa.string()), list)
TEXT_BY_NAME: Final = Kind(MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()), _pairs)
NUMBER_BY_NAME: Final = Kind(MapType(StringType(), LongType()), pa.map_(pa.string(), pa.int64()), _pairs)
CLOCK: Final = Kind(DecimalType(20, 0), pa.decimal128(20, 0))
"""A producer's clock has 64 bits without a sign, one more than Spark's numbers."""

Columns = dict[str, Kind]
"""The columns of a table, in order."""

_OF_SETTINGS: Final[dict[Any, Kind]] = {bool: TRUTH, str: TEXT, dict[str, str]: TEXT_BY_NAME}


def columns_of(settings: Settings) -> Columns:
    """The columns of settings: durations are in milliseconds."""
    return {setting.ms_name: _OF_SETTINGS.get(setting.stored_as, NUMBER) for setting in settings}


def settings_row(settings: Settings, shown: Mapping[str, Any]) -> Row:
    """Settings as a row has them, from how `info` shows them; what is not set is null."""
    return tuple(_cell(setting, shown[setting.shown_as]) for setting in settings)


def _cell(setting: Setting, shown: Any) -> Any:
    if isinstance(shown, timedelta):
        return shown // timedelta(milliseconds=1)
    return None if shown == "" and isinstance(setting, Text) and setting.optional else shown


def schema_of(columns: Columns) -> StructType:
    """The schema that Spark is told."""
    return StructType([StructField(name, kind.spark) for name, kind in columns.items()])


def batches_of(columns: Columns, rows: Iterable[Row]) -> Iterator[Any]:
    """Rows as record batches."""
    schema = pa.schema([(name, kind.arrow) for name, kind in columns.items()])
    binary = [index for index, kind in enumerate(columns.values()) if kind is BYTES]
    gathered: list[Row] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += sum(len(row[index] or b"") for index in binary)
        if len(gathered) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch(columns, schema, gathered)
            gathered, size = [], 0
    if gathered:
        yield _batch(columns, schema, gathered)


def _batch(columns: Columns, schema: Any, rows: Sequence[Row]) -> Any:
    arrays = [
        pa.array(_values(kind, values), kind.arrow)
        for kind, values in zip(columns.values(), zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(kind: Kind, values: Sequence[Any]) -> Sequence[Any]:
    if kind.value is None:
        return values
    return [None if value is None else kind.value(value) for value in values]
