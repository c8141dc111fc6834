"""Spark's schemas as Delta has them, whether rows fit a table, and whether Detent can write to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Invalid

if TYPE_CHECKING:
    from deltalake import DeltaTable

_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_PLAIN: Final = frozenset(("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", *_NUMBERS))
"""Spark's names of the types that a table holds, beside decimals and what is made of others."""

_PARTITION: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types of partition columns: those whose values have one way to be written as text."""

_UNNAMEABLE: Final = frozenset(" ,;{}()\n\t=")
_COMPUTED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def delta_schema(schema: Any) -> Any:
    """The schema of a table for rows of a schema of Spark's. All columns may be null, so that later rows can leave one
    out."""
    from deltalake import Schema

    for field in schema:
        _check_type(field.dataType, field.name)
    names = [field.name for field in schema]
    bad = [name for name in names if not name or _UNNAMEABLE.intersection(name)]
    if bad or len({name.lower() for name in names}) != len(names):
        raise Invalid(
            f"columns of a Delta table have names without any of ' ,;{{}}()=' and differ in more than case: rename "
            f"{', '.join(map(repr, bad or names))}"
        )
    return Schema.from_json(schema.toNullable().json())


def _check_type(kind: Any, column: str) -> None:
    name = kind.typeName()
    if name == "struct":
        for field in kind:
            _check_type(field.dataType, f"{column}.{field.name}")
    elif name == "array":
        _check_type(kind.elementType, column)
    elif name == "map":
        _check_type(kind.keyType, column)
        _check_type(kind.valueType, column)
    elif name != "decimal" and kind.simpleString() not in _PLAIN:
        raise Invalid(f"the column {column} is {kind.simpleString()}, which a Delta table does not hold: cast it")


def check_partitions(table: DeltaTable, uri: str, partition_by: tuple[str, ...]) -> None:
    """`Invalid` if a table is partitioned otherwise than the caller says, or by values without one text."""
    fields = json.loads(table.schema().to_json())["fields"]
    partitions = tuple(table.metadata().partition_columns)
    if partition_by and partition_by != partitions:
        raise Invalid(f"the Delta table {uri} is partitioned by {list(partitions)}, not {partition_by}")
    kinds = {field["name"]: field["type"] for field in fields}
    for name in partitions:
        if kinds[name] not in _PARTITION:
            raise Invalid(f"{name} is {kinds[name]}: a table is partitioned by one of {', '.join(_PARTITION)}")


def required_columns(table: DeltaTable) -> tuple[str, ...]:
    """The columns of a table that may not be null."""
    fields = json.loads(table.schema().to_json())["fields"]
    return tuple(field["name"] for field in fields if not field["nullable"])


def check_writable(table: DeltaTable, uri: str) -> None:
    """Refuse a table that asks more of its writers than to add files."""
    configuration = table.metadata().configuration
    reasons = [name for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("delta.columnMapping.mode")
    for field in json.loads(table.schema().to_json())["fields"]:
        reasons += [f"{name} of {field['name']}" for name in _COMPUTED if name in field["metadata"]]
    if reasons:
        raise Invalid(f"Detent cannot write to the Delta table {uri}: it has {', '.join(reasons)}")


def check_columns(have: list[dict[str, Any]], want: list[dict[str, Any]], uri: str) -> None:
    """Refuse rows whose columns are not those of the table. Their order does not matter."""
    table = {field["name"]: _plain(field["type"]) for field in have}
    rows = {field["name"]: _plain(field["type"]) for field in want}
    wrong = [f"{name} is not in the table" for name in rows if name not in table]
    wrong += [f"{name} is not in the rows" for name in table if name not in rows]
    wrong += [
        f"{name} is {json.dumps(kind)} in the rows and {json.dumps(table[name])} in the table"
        for name, kind in rows.items()
        if table.get(name, kind) != kind
    ]
    if wrong:
        raise Invalid(
            f"the rows do not fit the Delta table {uri}: {'; '.join(wrong)}. Select what fits, or change the table "
            "with DeltaTable(...).alter.add_columns"
        )


def _plain(kind: Any) -> Any:
    """A type without what says whether values may be null, and without remarks."""
    if not isinstance(kind, dict):
        return kind
    if "fields" in kind:
        return {field["name"]: _plain(field["type"]) for field in kind["fields"]}
    return {name: _plain(value) for name, value in kind.items() if not name.lower().endswith("containsnull")}
