"""Messages as Spark's rows: the columns, and Arrow batches in exactly the types that Spark expects."""

from __future__ import annotations

from typing import Any, Final

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


def rows_of(journal: str, first: int, batch: Any, *, headers: bool, raw: bool) -> Any:
    """A stored batch as a batch of Spark's rows, mostly without a copy."""
    rows = batch.num_rows
    arrays = {
        "journal": pa.repeat(pa.scalar(journal, pa.string()), rows),
        # Not `pa.array`, which would import pandas: a quarter of a second for each process of Spark's.
        "offset": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(np.arange(first, first + rows))]),
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
