"""Schemas as others write them: what columns there are, in the few types that messages have.

What comes of it are our own types, so that Arrow never sees a foreign schema: dictionaries, extensions and whatever
else one can ask for are refused here.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa

from detent.codec import block
from detent.codec.foreign.flatbuffer import FlatTable
from detent.errors import Invalid

COLUMNS_MAX: Final = len(block.SCHEMA)
NAME_BYTES_MAX: Final = 64
_MILLISECONDS: Final = 1

_TYPES: Final = (
    "none", "null", "int", "float", "binary", "string", "bool", "decimal", "date", "time", "timestamp", "interval",
    "list", "struct", "union", "fixed-size binary", "fixed-size list", "map", "duration", "large binary",
    "large string", "large list", "run-end encoded", "binary view", "string view", "list view", "large list view",
)  # fmt: skip
"""By the numbers that Arrow gives them in a schema."""

_PLAIN: Final = {
    "null": pa.null(),
    "binary": pa.binary(),
    "string": pa.string(),
    "large binary": pa.large_binary(),
    "large string": pa.large_string(),
}
_INTEGERS: Final = {(64, 0): pa.uint64(), (16, 0): pa.uint16()}


class Column(NamedTuple):
    """A column: `type` is None if it is none that messages have; then `kind` says what was sent."""

    name: str
    kind: str
    type: Any
    nullable: bool


def columns_of(schema: FlatTable) -> list[Column]:
    """The columns of a schema."""
    if schema.i16(0):
        raise Invalid("its numbers are big-endian")
    found = [_column(field) for field in schema.tables(1, COLUMNS_MAX)]
    if len({column.name for column in found}) != len(found):
        raise Invalid("it has two columns of one name")
    return found


def require_messages(schema: FlatTable) -> None:
    """`Invalid` unless these are the columns of stored messages."""
    found = [(column.name, column.type, column.nullable) for column in columns_of(schema)]
    if found != [(field.name, field.type, field.nullable) for field in block.SCHEMA]:
        raise Invalid("it does not have the message schema")


def _column(field: FlatTable) -> Column:
    name = bytes(field.bytes_of(0)[: NAME_BYTES_MAX + 1])
    if len(name) > NAME_BYTES_MAX:
        raise Invalid(f"a column's name has at most {NAME_BYTES_MAX} bytes")
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise Invalid("a column's name is not UTF-8") from error
    kind = _kind(field)
    return Column(text, kind, _type(field, kind), bool(field.u8(1)))


def _kind(field: FlatTable) -> str:
    if field.has(4):
        return "dictionary"
    number = field.u8(2)
    return _TYPES[number] if number < len(_TYPES) else f"number {number}"


def _type(field: FlatTable, kind: str) -> Any:
    about = field.table(3)
    if about is None:
        return None
    if kind == "map":
        return block.HEADERS if not about.u8(0) and _is_text_map(field) else None
    if field.bytes_of(5, 4):
        return None
    if kind == "int":
        return _INTEGERS.get((about.i32(0), about.u8(1)))
    if kind == "fixed-size binary":
        return pa.binary(block.PRODUCER_BYTES) if about.i32(0) == block.PRODUCER_BYTES else None
    if kind == "timestamp":
        is_ours = about.i16(0) == _MILLISECONDS and bytes(about.bytes_of(1)) == block.TIMESTAMP.tz.encode()
        return block.TIMESTAMP if is_ours else None
    return _PLAIN.get(kind)


def _is_text_map(field: FlatTable) -> bool:
    """Whether a map's entries are structs of two texts, whatever they are called."""
    entries = list(field.tables(5, 1))
    if len(entries) != 1 or _kind(entries[0]) != "struct":
        return False
    return [_kind(part) for part in entries[0].tables(5, 2)] == ["string", "string"]
