"""Messages as Spark's rows: the columns, and Arrow batches in exactly the types that Spark expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from detent.errors import Invalid

BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 1 << 20
"""Smaller batches are joined: many journals with a few messages each would otherwise be as many tiny batches."""

COLUMNS: Final[dict[str, DataType]] = {
    "journal": StringType(),
    "offset": LongType(),
    "published_at": TimestampType(),
    "key": BinaryType(),
    "body": BinaryType(),
}
"""What a read of committed messages gives; `headers` on request."""

RAW_COLUMNS: Final[dict[str, DataType]] = {"producer": BinaryType(), "clock": LongType(), "flags": IntegerType()}
"""What a read of all stored rows adds: enough to sequence them. There, `offset` is the position."""

_KINDS: Final = {**COLUMNS, "headers": MapType(StringType(), StringType()), **RAW_COLUMNS}
_CAST: Final = {
    "published_at": pa.timestamp("us", tz="UTC"),
    "headers": pa.map_(pa.string(), pa.string()),
    "producer": pa.binary(),
    "clock": pa.int64(),
    "flags": pa.int32(),
}
"""What is stored otherwise than Spark takes it."""


def choose(given: str | None, *, headers: bool, raw: bool) -> tuple[str, ...]:
    """The columns of a read, by name: those that a user asked for, or all that there are."""
    known = (*COLUMNS, "headers", *(RAW_COLUMNS if raw else ()))
    if given is None:
        return tuple(name for name in known if headers or name != "headers")
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in known:
            raise Invalid(f"the option columns has {name!r}, which is none: choose from {', '.join(known)}")
    if len(set(names)) < len(names):
        raise Invalid(f"the option columns names a column twice: {given!r}")
    if headers and "headers" not in names:
        raise Invalid("includeHeaders is true, and the option columns does not name headers: say either")
    return names


def schema_of(names: Iterable[str]) -> StructType:
    """The schema of a read of these columns."""
    return StructType([StructField(name, _KINDS[name]) for name in names])


class Piece(NamedTuple):
    """A stored batch, the journal that it is of, and the offset of its first message."""

    journal: str
    first: int
    batch: Any


def gathered(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that make up a batch worth its passage: each costs Spark the same, whatever is in it."""
    waiting: list[Piece] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows, size = rows + piece.batch.num_rows, size + piece.batch.get_total_buffer_size()
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def rows_of(pieces: Sequence[Piece], names: Iterable[str]) -> Any:
    """Stored batches as a batch of Spark's rows with these columns; one alone mostly without a copy."""
    batch = pieces[0].batch if len(pieces) == 1 else pa.concat_batches([piece.batch for piece in pieces])
    return pa.RecordBatch.from_arrays([_column(name, pieces, batch) for name in names], names=list(names))


def _column(name: str, pieces: Sequence[Piece], batch: Any) -> Any:
    if name == "journal":
        return _joined([pa.repeat(pa.scalar(journal, pa.string()), len(rows)) for journal, _, rows in pieces])
    if name == "offset":
        return _offsets(pieces, batch.num_rows)
    stored = batch.column(name)
    kind = _CAST.get(name)
    return stored if kind is None else stored.cast(kind)


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _offsets(pieces: Sequence[Piece], rows: int) -> Any:
    numbers = np.empty(rows, np.int64)
    at = 0
    for _, first, batch in pieces:
        numbers[at : at + batch.num_rows] = np.arange(first, first + batch.num_rows)
        at += batch.num_rows
    # Not `pa.array`, which would import pandas: a quarter of a second for each process of Spark's.
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(numbers)])
