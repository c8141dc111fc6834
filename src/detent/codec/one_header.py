"""Columns of headers where each message has one of the same name, as all have that processors write.

They are made and read without a look at each message's pairs, which is what most of the time goes into otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from detent.codec import block

_TEXT: Final = pa.string()
_ENTRY: Final = pa.struct([block.HEADERS.key_field, block.HEADERS.item_field])


def header_column(name: str, values: Sequence[str]) -> Any:
    """The column of headers of messages that have this one, with these values: the same that `content_of` makes."""
    rows, raw = len(values), name.encode()
    ends = np.arange(rows + 1, dtype=np.int32)
    buffer, from_buffers = pa.py_buffer, pa.Array.from_buffers
    names = from_buffers(_TEXT, rows, [None, buffer(ends * np.int32(len(raw))), buffer(raw * rows)])
    entries = from_buffers(_ENTRY, rows, [None], children=[names, block.text_array(values)])
    return from_buffers(block.HEADERS, rows, [None, buffer(ends)], children=[entries])


def header_values(column: Any, name: str) -> list[str | None]:
    """What each message of a column of headers has in this one; None where it is not there."""
    ends = block.offsets(column)
    first, rows = int(ends[0]), len(column)
    if ends[-1] == first:
        return [None] * rows
    if np.array_equal(ends, np.arange(first, first + rows + 1)):
        names, values = column.keys.slice(first, rows).to_pylist(), column.items.slice(first, rows).to_pylist()
        if names.count(name) == rows:
            return values  # type: ignore[no-any-return]
    return [dict(pairs).get(name) if pairs else None for pairs in column.to_pylist()]
