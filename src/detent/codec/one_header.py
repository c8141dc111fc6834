"""Columns of headers where each message has one of the same name, as all have that processors write.

They are made and read without a look at each message's pairs, which is what most of the time goes into otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from detent.codec import block

KEPT_ROWS_MAX: Final = 1_000
"""What does not change from batch to batch is kept for batches of so many messages, a megabyte in all."""

_TEXT: Final = pa.string()
_ENTRY: Final = pa.struct([block.HEADERS.key_field, block.HEADERS.item_field])
_from_buffers = pa.Array.from_buffers


def header_column(name: str, values: Sequence[str]) -> Any:
    """The column of headers of messages that have this one, with these values: the same that `content_of` makes."""
    rows = len(values)
    names, ends = _kept_names(name, rows) if rows <= KEPT_ROWS_MAX else _names(name, rows)
    entries = _from_buffers(_ENTRY, rows, [None], children=[names, block.text_array(values)])
    return _from_buffers(block.HEADERS, rows, [None, ends], children=[entries])


def _names(name: str, rows: int) -> tuple[Any, Any]:
    """The name so many times, and where each message's headers end."""
    raw, ends = name.encode(), np.arange(rows + 1, dtype=np.int32)
    names = _from_buffers(_TEXT, rows, [None, pa.py_buffer(ends * np.int32(len(raw))), pa.py_buffer(raw * rows)])
    return names, pa.py_buffer(ends)


_kept_names: Final = lru_cache(64)(_names)


def header_values(column: Any, name: str) -> list[str | None]:
    """What each message of a column of headers has in this one; None where it is not there."""
    ends = block.offsets(column)
    first, last, rows = int(ends[0]), int(ends[-1]), len(column)
    if first == last:
        return [None] * rows
    if last - first == rows and (rows == 1 or np.diff(ends).max() == 1):
        names, values = column.keys.slice(first, rows).to_pylist(), column.items.slice(first, rows).to_pylist()
        if names.count(name) == rows:
            return values  # type: ignore[no-any-return]
    return [dict(pairs).get(name) if pairs else None for pairs in column.to_pylist()]
