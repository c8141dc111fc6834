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

BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 1 << 20
"""Smaller batches are joined: many journals with a few messages each would otherwise be as many tiny batches."""

_HEADERS: Final = MapType(StringType(), StringType())
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

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())


def columns(*, headers: bool, raw: bool) -> StructType:
    """The schema of a read."""
    chosen = {**COLUMNS, **({"headers": _HEADERS} if headers else {}), **(RAW_COLUMNS if raw else {})}
    return StructType([StructField(name, kind) for name, kind in chosen.items()])


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


def rows_of(pieces: Sequence[Piece], *, headers: bool, raw: bool) -> Any:
    """Stored batches as a batch of Spark's rows; one alone mostly without a copy."""
    batch = pieces[0].batch if len(pieces) == 1 else pa.concat_batches([piece.batch for piece in pieces])
    arrays = {
        "journal": _joined([pa.repeat(pa.scalar(name, pa.string()), len(rows)) for name, _, rows in pieces]),
        "offset": _offsets(pieces, batch.num_rows),
        "published_at": batch.column("published_at").cast(_TIME),
        "key": batch.column("key"),
        "body": batch.column("body"),
    }
    if headers:
        arrays["headers"] = batch.column("headers").cast(_MAP)
    if raw:
        arrays["producer"] = batch.column("producer").cast(pa.binary())
        arrays["clock"] = batch.column("clock").cast(pa.int64())
        arrays["flags"] = batch.column("flags").cast(pa.int32())
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


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
