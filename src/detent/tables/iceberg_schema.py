"""Spark's schemas as Iceberg has them, and whether rows fit a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from detent.errors import Invalid

_PLAIN: Final[dict[str, IcebergType]] = {
    "boolean": BooleanType(),
    "tinyint": IntegerType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
"""By Spark's names."""


def iceberg_schema(schema: Any) -> Schema:
    """The schema of a table for rows of a schema of Spark's. All columns may be null, so that later rows can leave one
    out."""
    return Schema(*_fields(schema, itertools.count(1), ""))


def _fields(schema: Any, ids: Iterator[int], prefix: str) -> list[NestedField]:
    names = [field.name for field in schema]
    bad = [name for name in names if not name or "." in name]
    if bad or len({name.lower() for name in names}) != len(names):
        raise Invalid(
            "columns of an Iceberg table have names without a dot that differ in more than case: rename "
            f"{', '.join(repr(prefix + name) for name in bad or names)}"
        )
    # The numbers only have to differ: a table gives its own to what it is handed.
    return [
        NestedField(next(ids), field.name, _type(field.dataType, ids, f"{prefix}{field.name}"), required=False)
        for field in schema
    ]


def _type(kind: Any, ids: Iterator[int], column: str) -> IcebergType:
    name = kind.typeName()
    if name == "struct":
        return StructType(*_fields(kind, ids, f"{column}."))
    if name == "array":
        return ListType(next(ids), _type(kind.elementType, ids, column), element_required=False)
    if name == "map":
        key = _type(kind.keyType, ids, column)
        return MapType(next(ids), key, next(ids), _type(kind.valueType, ids, column), value_required=False)
    if name == "decimal":
        return DecimalType(kind.precision, kind.scale)
    shown = kind.simpleString()
    if shown not in _PLAIN:
        raise Invalid(f"the column {column} is {shown}, which an Iceberg table does not hold: cast it")
    return _PLAIN[shown]


_WIDER: Final = ((IntegerType, LongType), (FloatType, DoubleType))


def _holds(wide: IcebergType, narrow: IcebergType) -> bool:
    """Whether a type holds all values of another one."""
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    return any(isinstance(narrow, lower) and isinstance(wide, upper) for lower, upper in _WIDER)


def lacks_columns(table: Schema, rows: Schema, name: str, *, widens: bool = False) -> bool:
    """Whether the rows have columns, or fields of them, that the table lacks; `Invalid` if they cannot be its rows.
    With `widens`, a type that holds all values of the other one is no hindrance: the table's fits narrower rows, and it
    lacks what is wider."""
    wrong: list[str] = []
    is_lacking = _compare(table.as_struct(), rows.as_struct(), "", wrong, widens)
    if wrong:
        raise Invalid(
            f"the rows do not fit the Iceberg table {name}: {'; '.join(wrong)}. Cast or rename them in the transform"
        )
    return is_lacking


def check_same(table: Schema, rows: Schema, name: str) -> None:
    """`Invalid` unless rows have the columns of the table and no others, of types that it holds."""
    there, given = ({field.name for field in schema.fields} for schema in (table, rows))
    wrong = [f"{column} is not in the table" for column in sorted(given - there)]
    wrong += [f"{column} is not in the rows" for column in sorted(there - given)]
    if not wrong and lacks_columns(table, rows, name, widens=True):
        wrong.append("the table's types are narrower")
    if wrong:
        raise Invalid(
            f"the rows do not fit the Iceberg table {name}: {'; '.join(wrong)}. Select what fits, or let the table "
            "follow the rows with evolve=True"
        )


def _compare(have: Any, want: Any, column: str, wrong: list[str], widens: bool) -> bool:
    if isinstance(have, StructType) and isinstance(want, StructType):
        return _compare_fields(have, want, f"{column}." if column else "", wrong, widens)
    if isinstance(have, ListType) and isinstance(want, ListType):
        return _compare(have.element_type, want.element_type, column, wrong, widens)
    if isinstance(have, MapType) and isinstance(want, MapType):
        is_lacking = _compare(have.key_type, want.key_type, column, wrong, widens)
        return _compare(have.value_type, want.value_type, column, wrong, widens) or is_lacking
    if widens and _holds(want, have):
        return True
    if have != want and not (widens and _holds(have, want)):
        wrong.append(f"{column} is {want} in the rows and {have} in the table")
    return False


def _compare_fields(have: StructType, want: StructType, prefix: str, wrong: list[str], widens: bool) -> bool:
    # Spark takes names that differ in case only for one, and Iceberg does not.
    there = {field.name.lower(): field for field in have.fields}
    given = {field.name for field in want.fields} if widens else set()
    wrong += [
        f"{prefix}{field.name} may not be null in the table"
        for field in have.fields
        if field.required and field.name not in given
    ]
    is_lacking = False
    for field in want.fields:
        found = there.get(field.name.lower())
        if found is None:
            is_lacking = True
        elif found.name != field.name:
            wrong.append(f"{prefix}{field.name} is called {prefix}{found.name} in the table")
        else:
            is_lacking |= _compare(found.field_type, field.field_type, f"{prefix}{field.name}", wrong, widens)
    return is_lacking
