"""The columns of a record batch that others have written, checked to the last offset before Arrow sees them.

Every buffer lies inside the body and behind the one before it, so that no byte counts twice; every offset lies inside
its buffer and not below the one before it; every row has its bits. Arrow then makes arrays over these same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from detent.codec import block
from detent.codec.foreign.flatbuffer import FlatTable
from detent.codec.foreign.framing import ALIGNMENT
from detent.errors import Invalid

ROWS_MAX: Final = (1 << 31) - 1

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: Python has no later time."""

_TEXT: Final = block.HEADERS.key_type
_NODES: Final = {block.HEADERS: 4}
_BUFFERS: Final = {pa.null(): 0, block.HEADERS: 9}
_VARIABLE: Final = {pa.binary(): "<i4", pa.string(): "<i4", pa.large_binary(): "<i8", pa.large_string(): "<i8"}
_TEXTS: Final = frozenset({pa.string(), pa.large_string()})
_ENTRIES: Final = pa.struct([block.HEADERS.key_field, block.HEADERS.item_field])
_from_buffers = pa.Array.from_buffers


class Layout:
    """Which columns are expected, and so how many nodes and buffers a record batch has."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._types: list[Any] = [field.type for field in schema]
        self._required = [field.name for field in schema if not field.nullable]
        self._nodes = sum(_NODES.get(kind, 1) for kind in self._types)
        self._buffers = sum(_BUFFERS.get(kind, 3 if kind in _VARIABLE else 2) for kind in self._types)

    def read(self, header: FlatTable, body: memoryview, *, again: bool = False) -> Any:
        """The rows of a record batch, without a copy. Of the same bytes that were read before, `again` looks at what is
        short: every buffer's place, but not every offset."""
        if header.has(3):
            raise Invalid("send record batches without compression")
        rows, nodes, buffers = header.i64(0), header.numbers(1, 16), header.numbers(2, 16)
        if not 0 <= rows <= ROWS_MAX:
            raise Invalid(f"a record batch cannot have {rows} rows")
        if len(nodes) != 2 * self._nodes or len(buffers) != 2 * self._buffers:
            raise Invalid("a record batch has other columns than its schema")
        _check_buffers(buffers, len(body))
        cursor = _ColumnCursor(nodes, buffers, body, again)
        arrays = [cursor.column(kind, rows) for kind in self._types]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for name in self._required:
            if batch.column(name).null_count:
                raise Invalid(f"the column {name} has nulls")
        return batch


def _check_buffers(buffers: Sequence[int], size: int) -> None:
    end = 0
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        if offset < 0 or length < 0 or offset + length > size:
            raise Invalid(f"a column lies outside of the {size} bytes that were sent")
        if length:
            if offset % ALIGNMENT or offset < end:
                raise Invalid("a column lies across another one, or not at a multiple of 8 bytes")
            end = offset + length


class _ColumnCursor:
    """Goes through the nodes and buffers of a record batch, in the order of its columns."""

    def __init__(self, nodes: Sequence[int], buffers: Sequence[int], body: memoryview, again: bool) -> None:
        self._again = again
        self._nodes = iter(nodes)
        self._buffers = iter(buffers)
        whole = pa.py_buffer(body)
        if whole.address % ALIGNMENT:
            body = memoryview(bytes(body))  # which Python puts where numbers of 64 bits may be
            whole = pa.py_buffer(body)
        self._body = body
        self._whole = whole

    def column(self, kind: Any, rows: int | None) -> Any:
        """The next column; of so many rows, if they are known."""
        count, nulls = next(self._nodes), next(self._nodes)
        if not 0 <= count <= ROWS_MAX or rows not in {None, count} or not 0 <= nulls <= count:
            raise Invalid(f"a column of {count} rows with {nulls} nulls is in a record batch of {rows}")
        if kind == pa.null():
            return pa.nulls(count)
        valid = self._validity(count, nulls)
        if kind == block.HEADERS:
            array = self._map(count, valid)
        elif kind in _VARIABLE:
            array = self._variable(kind, count, valid)
        else:
            array = _from_buffers(kind, count, [valid, self._buffer(count * kind.bit_width // 8)])
            if kind == block.TIMESTAMP and not self._again:
                _check_times(array)
        if not self._again and array.null_count != nulls:
            raise Invalid(f"a column says that it has {nulls} nulls, and has {array.null_count}")
        return array

    def _next(self) -> tuple[int, int]:
        return next(self._buffers), next(self._buffers)

    def _buffer(self, least: int) -> Any:
        offset, length = self._next()
        if length < least:
            raise Invalid(f"a column of {length} bytes is too short for its rows")
        return self._whole.slice(offset, length)

    def _validity(self, count: int, nulls: int) -> Any:
        """Which rows have a value; None if all have one."""
        offset, length = self._next()
        if not length and not nulls:
            return None
        if 8 * length < count:
            raise Invalid(f"{length} bytes cannot say which of {count} rows are null")
        return self._whole.slice(offset, length)

    def _offsets(self, kind: str, count: int) -> tuple[Any, Any]:
        """Where the values of the rows begin and end: not below 0, and never going back."""
        width = np.dtype(kind).itemsize
        offset, length = self._next()
        if count == 0 and length == 0:
            found = np.zeros(1, kind)
            return found, pa.py_buffer(found)
        if length < width * (count + 1):
            raise Invalid(f"{length} bytes cannot say where {count} values begin and end")
        found = np.frombuffer(self._body, kind, count + 1, offset)
        if found[0] < 0 or (not self._again and (found[1:] < found[:-1]).any()):
            raise Invalid("the values of a column do not follow one another")
        return found, self._whole.slice(offset, length)

    def _variable(self, kind: Any, count: int, valid: Any) -> Any:
        ends, offsets = self._offsets(_VARIABLE[kind], count)
        array = _from_buffers(kind, count, [valid, offsets, self._buffer(int(ends[-1]))])
        if kind in _TEXTS and count and not self._again:
            _check_text(array)
        return array

    def _map(self, count: int, valid: Any) -> Any:
        ends, offsets = self._offsets("<i4", count)
        pairs, nulls = next(self._nodes), next(self._nodes)
        if nulls or not int(ends[-1]) <= pairs <= ROWS_MAX:
            raise Invalid(f"{pairs} headers, {nulls} of them null, are too few for their messages")
        there = self._validity(pairs, 0)
        names = self.column(_TEXT, pairs)
        values = self.column(_TEXT, pairs)
        entries = _from_buffers(_ENTRIES, pairs, [there], children=[names, values])
        if names.null_count or values.null_count or entries.null_count:
            raise Invalid("a header has a name and a value")
        return _from_buffers(block.HEADERS, count, [valid, offsets], children=[entries])


def _check_times(array: Any) -> None:
    if not len(array):
        return
    times = np.frombuffer(array.buffers()[1], "<i8", len(array))
    if not 0 <= int(times.min()) <= int(times.max()) <= TIME_MS_MAX:
        raise Invalid("a message was published before 1970 or after 9999")


def _check_text(array: Any) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        raise Invalid(f"a text is not UTF-8: {error}") from error
