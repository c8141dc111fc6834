"""Parquet objects, read by tasks through Arrow, with the columns and types that Spark's own reader would give.

Types are Spark's: what it refuses is refused (another type than the schema's, times in nanoseconds), and what it widens
is widened. A file of Spark 2, whose dates are those of another calendar, is refused, because Arrow would shift them.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from detent.errors import Invalid
from detent.ingest.object_rows import METADATA, origins
from detent.ingest.pinned import ObjectAccess, ObjectSplit, PinnedFile, PinnedObject, blamed, objects_of

BATCH_ROWS: Final = 16_384
"""Rows that are handed to Spark at a time."""

_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_VERSION: Final = b"org.apache.spark.version"
_LEGACY_TIMES: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")

_UNSIGNED: Final = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64(), "uint64": pa.decimal128(20, 0)}
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_LOCAL_TIME: Final = pa.timestamp("us")


class FoundColumns(NamedTuple):
    """The columns of a file: as Arrow has them, and as Spark noted them, if it wrote the file."""

    arrow: Any
    spark: str | None


def parquet_rows(access: ObjectAccess, wanted: Any, columns: bool, splits: Iterator[ObjectSplit]) -> Iterator[Any]:
    """The rows of objects, with the columns of a schema of Arrow's; without `columns` there are none but where each
    row came from."""
    for split in splits:
        with blamed(split.object):
            yield from _rows(access, wanted, columns, split)


def column_rows(access: ObjectAccess, splits: Iterator[ObjectSplit]) -> Iterator[Any]:
    """A row for each object: its number, and its columns."""
    for split in splits:
        with blamed(split.object):
            _, file = _open(access, split.object)
            noted = (file.metadata.metadata or {}).get(_SPARK_SCHEMA)
            answer = pickle.dumps(FoundColumns(_known_schema(file), noted.decode() if noted else None))
        columns = [pa.array([split.object.number], pa.int32()), pa.array([answer], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["number", "answer"])


def _open(access: ObjectAccess, one: PinnedObject) -> tuple[PinnedFile, pq.ParquetFile]:
    raw = PinnedFile(objects_of(access), one)
    try:
        file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), coerce_int96_timestamp_unit="us")
    except pa.ArrowInvalid as error:
        raise Invalid(f"{one.file.uri} is not a Parquet file: {error}") from error
    about = file.metadata.metadata or {}
    if any(name in about for name in _LEGACY_TIMES) or about.get(_SPARK_VERSION, b"3").startswith((b"1.", b"2.")):
        raise Invalid(
            f"{one.file.uri} has times of another calendar, as Spark 2 wrote them: write it with Spark 3 or later"
        )
    return raw, file


def _rows(access: ObjectAccess, wanted: Any, columns: bool, split: ObjectSplit) -> Iterator[Any]:
    raw, file = _open(access, split.object)
    schema = _known_schema(file)
    there = {name.lower(): name for name in schema.names}
    found = {field.name: there[field.name.lower()] for field in wanted if field.name.lower() in there}
    counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    firsts = [0, *accumulate(counts)]
    for group in _groups_of(file, split):
        at = firsts[group]
        reading = file.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(found.values()))
        for batch in reading:
            rows = batch.num_rows
            fitted = [_column(batch, schema, field, found.get(field.name), rows) for field in wanted] if columns else []
            index = {"row_index": pa.array(range(at, at + rows), pa.int64())}
            origin = origins(split, raw.size, raw.modified_ms, rows, index)
            yield pa.RecordBatch.from_arrays([*fitted, origin], names=[*(wanted.names if columns else []), METADATA])
            at += rows


def _groups_of(file: pq.ParquetFile, split: ObjectSplit) -> Iterator[int]:
    """The groups of rows that begin in a part of a file."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        first = group.column(0) if group.num_columns else None
        begins = 0 if first is None else first.dictionary_page_offset or first.data_page_offset
        if split.start <= begins and (split.end is None or begins < split.end):
            yield number


# -- types ------------------------------------------------------------------------------------------------------------


def _known_schema(file: pq.ParquetFile) -> Any:
    """The columns of a file, with the types that Spark gives them. Arrow says nothing of the old form of times, which
    are instants to Spark."""
    old = {
        file.schema.column(place).path
        for place in range(len(file.schema))
        if file.schema.column(place).physical_type == "INT96"
    }
    return pa.schema([pa.field(one.name, _known(one.type, one.name, old)) for one in file.schema_arrow])


def _known(kind: Any, path: str, old: set[str]) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _known(one.type, f"{path}.{one.name}", old)) for one in kind])
    if pa.types.is_map(kind):
        key, value = f"{path}.key_value.key", f"{path}.key_value.value"
        return pa.map_(_known(kind.key_type, key, old), _known(kind.item_type, value, old))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_known(kind.value_type, f"{path}.list.element", old))
    if pa.types.is_timestamp(kind):
        if path in old:
            return _INSTANT
        return kind if kind.unit == "ns" else _LOCAL_TIME if kind.tz is None else _INSTANT
    if pa.types.is_dictionary(kind):
        return _known(kind.value_type, path, old)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _UNSIGNED.get(str(kind), kind)


def _column(batch: Any, schema: Any, field: Any, name: str | None, rows: int) -> Any:
    if name is None:
        return pa.nulls(rows, field.type)
    known = schema.field(name).type
    _check_fits(known, field.type, field.name)
    return _fitted(batch.column(batch.schema.get_field_index(name)), field.type)


def _check_fits(have: Any, want: Any, column: str) -> None:
    """`Invalid` for values that Spark would not read as this type."""
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        there = {one.name.lower(): one.type for one in have}
        for one in want:
            if one.name.lower() in there:
                _check_fits(there[one.name.lower()], one.type, f"{column}.{one.name}")
    elif pa.types.is_list(have) and pa.types.is_list(want):
        _check_fits(have.value_type, want.value_type, column)
    elif pa.types.is_map(have) and pa.types.is_map(want):
        _check_fits(have.key_type, want.key_type, column)
        _check_fits(have.item_type, want.item_type, column)
    elif have != want and not _widens(have, want):
        raise Invalid(f"the column {column} is {have} in the file and {want} in the schema")


def _widens(have: Any, want: Any) -> bool:
    types = pa.types
    if types.is_integer(have):
        if types.is_decimal(want):
            return bool(want.precision - want.scale >= (10 if have.bit_width <= 32 else 20))
        is_shorter = types.is_integer(want) and have.bit_width <= 32  # the file has 32 bits for all of these
        return bool(is_shorter or (types.is_float64(want) and have.bit_width <= 32))
    if types.is_float32(have):
        return bool(types.is_float64(want))
    if types.is_decimal(have) and types.is_decimal(want):
        return bool(want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale)
    if types.is_date32(have):
        return bool(want == _LOCAL_TIME)
    return have in {pa.string(), pa.binary()} and want in {pa.string(), pa.binary()}


def _fitted(values: Any, want: Any) -> Any:
    """Values as another type, also inside of structures: fields by their names, nulls for those that are not there."""
    have = values.type
    if have == want:
        return values
    if pa.types.is_dictionary(have):
        return _fitted(values.dictionary_decode(), want)
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        places = {have.field(place).name.lower(): place for place in range(have.num_fields)}
        fields = [_field(values, places, one) for one in want]
        return pa.StructArray.from_arrays(fields, fields=list(want), mask=values.is_null())
    if pa.types.is_map(have) and pa.types.is_map(want):
        keys, items = _fitted(values.keys, want.key_type), _fitted(values.items, want.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, want)
    if pa.types.is_list(want) and (pa.types.is_list(have) or pa.types.is_large_list(have)):
        return pa.ListArray.from_arrays(_offsets(values), _fitted(values.values, want.value_type), want)
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want) and have.tz != want.tz:
        return values.cast(pa.timestamp("us")).view(pa.int64()).cast(pa.int64()).view(want)
    return values.cast(want)


def _field(values: Any, places: Mapping[str, int], one: Any) -> Any:
    place = places.get(one.name.lower())
    return pa.nulls(len(values), one.type) if place is None else _fitted(values.field(place), one.type)


def _offsets(values: Any) -> Any:
    """Where each list begins in what all of them share; null for a list that is null."""
    offsets = values.offsets.cast(pa.int32())
    if not values.null_count:
        return offsets
    missing = pa.concat_arrays([values.is_null(), pa.array([False])])
    return pa.array(offsets.to_pylist(), pa.int32(), mask=missing.to_numpy(zero_copy_only=False))


# -- what Spark calls them ---------------------------------------------------------------------------------------------


def spark_schema(found: FoundColumns) -> Any:
    """The columns of a file as a schema of Spark's: what Spark noted when it wrote them, or what the types come to."""
    from pyspark.sql.types import StructType

    if found.spark is not None:
        return StructType.fromJson(json.loads(found.spark)).toNullable()
    from pyspark.sql.pandas.types import from_arrow_schema

    times = [one.name for one in found.arrow if "[ns" in str(one.type)]
    if times:
        raise Invalid(f"the columns {', '.join(times)} have times in nanoseconds, which Spark does not read")
    return from_arrow_schema(found.arrow, prefer_timestamp_ntz=True).toNullable()
