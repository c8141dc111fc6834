"""Message blocks: up to about 1 MiB of messages in columns, one record in kv.

A block is a head of 40 bytes and one Arrow record batch in IPC form. The schema is fixed by the head's version, so it
is not stored again in every block. The head carries a checksum of all that follows, checked before Arrow sees a byte.

    version u8 | codec u8 | reserved u16 | rows u32 | checksum u64 (XXH3-64)
    first published_at i64 | last published_at i64 | bytes that follow u64
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from detent.codec.values import ByteReader
from detent.errors import Corrupt, Invalid, LimitExceeded

BLOCK_VERSION: Final = 1
CODEC_ARROW: Final = 0

BLOCK_BYTES_TARGET: Final = 1 << 20
"""Larger records cost LMDB runs of overflow pages; smaller ones cost a tree entry each."""

BLOCK_BYTES_MAX: Final = 48 << 20
"""A block holds at least one message, so it may pass the target, but never the kv's limit of a value."""

BLOCK_ROWS_MAX: Final = 1 << 20

MESSAGE_BYTES_MAX: Final = 16 << 20
"""Body, key and headers of one message. What is bigger belongs into an object, with its URI in the message."""

HEADERS_MAX: Final = 255
HEADER_BYTES_MAX: Final = 64 << 10

PRODUCER_BYTES: Final = 6
TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("producer", pa.binary(PRODUCER_BYTES), nullable=False),
        pa.field("clock", pa.uint64(), nullable=False),
        pa.field("flags", pa.uint16(), nullable=False),
        pa.field("published_at", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""Version 1 of the message schema. A row's position is the block's base plus its index."""

CONTENT_SCHEMA: Final = pa.schema([SCHEMA.field(name) for name in ("key", "headers", "body")])
"""What a user appends; the rest is stamped on it."""

_HEAD: Final = struct.Struct("<BBHIQqqQ")
# Looking a field's type up costs more than building the array does.
_PRODUCER, _CLOCK, _FLAGS = (SCHEMA.field(i).type for i in range(3))
_BINARY: Final = pa.binary()
_from_buffers = pa.Array.from_buffers
# `pa.array` would import pandas, where that is installed: a second for each process that opens a store.
_EMPTY_TEXT: Final = pa.nulls(0, pa.string())
_EMPTY_ENTRIES: Final = pa.StructArray.from_arrays(
    [_EMPTY_TEXT, _EMPTY_TEXT], fields=[HEADERS.key_field, HEADERS.item_field]
)
_NO_KEY: Final = pa.nulls(1, _BINARY)
_TWO_OFFSETS: Final = struct.Struct("<ii")


def no_headers(rows: int) -> Any:
    """The column of headers for messages that have none."""
    return _from_buffers(HEADERS, rows, [None, pa.py_buffer(bytes(4 * (rows + 1)))], children=[_EMPTY_ENTRIES])


_NO_HEADERS: Final = no_headers(1)


def content_of(
    bodies: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[dict[str, str] | None] | Any = None,
    sizes: Any = None,
) -> list[Any]:
    """The content columns (key, headers, body) as Arrow arrays. One message without extras is the fast case.

    `sizes` are the lengths of the bodies, if they were counted before; together they must fit 31 bits.
    """
    rows = len(bodies)
    if rows == 1:
        body = bodies[0]
        body_array = _from_buffers(
            _BINARY, 1, [None, pa.py_buffer(_TWO_OFFSETS.pack(0, len(body))), pa.py_buffer(body)]
        )
    elif sizes is None:
        body_array = pa.array(bodies, _BINARY)
    else:
        body_array = _body_array(b"".join(bodies), sizes)
    if keys is None:
        key_array = _NO_KEY if rows == 1 else pa.nulls(rows, _BINARY)
    else:
        key_array = pa.array(keys, _BINARY)
    if headers is None:
        header_array = _NO_HEADERS if rows == 1 else no_headers(rows)
    else:
        header_array = headers if isinstance(headers, pa.Array) else _header_array(headers)
    return [key_array, header_array, body_array]


def _header_array(headers: Sequence[dict[str, str] | None]) -> Any:
    """Column by column: a third of the time that Arrow takes to look into each message's pairs."""
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(one) if one else 0 for one in headers], out=offsets[1:])
    some = [one for one in headers if one]
    names, values = [name for one in some for name in one], [value for one in some for value in one.values()]
    entries = pa.StructArray.from_arrays(
        [text_array(names), text_array(values)], fields=[HEADERS.key_field, HEADERS.item_field]
    )
    return _from_buffers(HEADERS, len(headers), [None, pa.py_buffer(offsets)], children=[entries])


def text_array(texts: Sequence[str]) -> Any:
    """A column of texts."""
    whole = "".join(texts)
    sizes = map(len, texts) if whole.isascii() else (len(text.encode()) for text in texts)
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(sizes, np.int32, len(texts)), out=offsets[1:])
    return _from_buffers(pa.string(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(whole.encode())])


def content_batch(
    bodies: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[dict[str, str] | None] | Any = None,
) -> Any:
    """The content columns as one record batch. The headers may be a column already."""
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    return pa.RecordBatch.from_arrays(content_of(bodies, keys, headers, sizes), schema=CONTENT_SCHEMA)


def content_of_packed(blob: bytes, sizes: Any) -> list[Any]:
    """The content columns of bodies that stand one after another in `blob`."""
    rows = len(sizes)
    return [pa.nulls(rows, _BINARY), no_headers(rows), _body_array(blob, sizes)]


def _body_array(blob: bytes, sizes: Any) -> Any:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return _from_buffers(_BINARY, len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(blob)])


def stamped(rows: int, producers: Any, clocks: Any, flags: Any, times: Any, content: list[Any]) -> Any:
    """A record batch from buffers of the stamp columns (bytes or numpy, little-endian) and content arrays."""
    buffer = pa.py_buffer
    # With the schema given, Arrow refuses arrays of other types: every block has the schema of its version.
    return pa.RecordBatch.from_arrays(
        [
            _from_buffers(_PRODUCER, rows, [None, buffer(producers)]),
            _from_buffers(_CLOCK, rows, [None, buffer(clocks)]),
            _from_buffers(_FLAGS, rows, [None, buffer(flags)]),
            _from_buffers(TIMESTAMP, rows, [None, buffer(times)]),
            *content,
        ],
        schema=SCHEMA,
    )


def content_from_arrow(table: Any) -> Any:
    """One record batch of content columns from a user's table or batch; `Invalid` says which column is wrong."""
    return one_batch(content_table(table))


def content_table(table: Any) -> Any:
    """A user's table or batch as a table of exactly the content columns, in the chunks that it has."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise Invalid(f"expected a pyarrow Table or RecordBatch, not {type(table).__name__}")
    unknown = set(table.column_names) - set(CONTENT_SCHEMA.names)
    if unknown or "body" not in table.column_names:
        raise Invalid(
            f"a table to append has the columns body and, if wanted, key and headers; not {table.column_names}"
        )
    if table.num_rows == 0:
        raise Invalid("there is nothing to append: the table has no rows")
    return pa.Table.from_arrays([_content_column(table, field) for field in CONTENT_SCHEMA], schema=CONTENT_SCHEMA)


def one_batch(table: Any) -> Any:
    """A table as one record batch; copied, unless it has one chunk already."""
    table = table.combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=table.schema)


def _content_column(table: Any, field: Any) -> Any:
    if field.name not in table.column_names:
        return no_headers(table.num_rows) if field.name == "headers" else pa.nulls(table.num_rows, field.type)
    column = table.column(field.name)
    try:
        column = column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"the column {field.name} cannot be read as {field.type}: {error}") from error
    if not field.nullable and column.null_count:
        raise Invalid(f"the column {field.name} has {column.null_count} nulls")
    return column


def check_content(batch: Any) -> None:
    """Refuse messages and headers beyond the limits, and headers without a value."""
    rows = batch.num_rows
    if _is_small(batch):
        return
    sizes = np.diff(offsets(batch.column("body"))).astype(np.int64)
    if batch.column("key").null_count < rows:
        sizes += np.diff(offsets(batch.column("key")))
    headers = batch.column("headers")
    counts = np.diff(offsets(headers))
    if counts.any():
        if int(counts.max()) > HEADERS_MAX:
            raise LimitExceeded(f"a message has at most {HEADERS_MAX} headers, not {int(counts.max())}")
        if headers.keys.null_count or headers.items.null_count:
            raise Invalid("a header has a name and a value")
        text = np.diff(offsets(headers.keys)).astype(np.int64) + np.diff(offsets(headers.items))
        ends = np.concatenate(([0], np.cumsum(text)))
        bounds = offsets(headers).astype(np.int64) - int(offsets(headers)[0])
        per_message = ends[bounds[1:]] - ends[bounds[:-1]]
        if int(per_message.max()) > HEADER_BYTES_MAX:
            raise LimitExceeded(f"headers of {int(per_message.max())} bytes are over the limit of {HEADER_BYTES_MAX}")
        sizes += per_message
    if int(sizes.max()) > MESSAGE_BYTES_MAX:
        raise LimitExceeded(f"a message of {int(sizes.max())} bytes is over the limit of {MESSAGE_BYTES_MAX}")


def _is_small(batch: Any) -> bool:
    """Whether all messages together are within the limits of one. Columns may share their bytes, so that names and
    values have up to twice as many as there are."""
    headers = batch.column("headers")
    names, values = headers.keys, headers.items
    return (
        len(names) <= HEADERS_MAX
        and not (names.null_count or values.null_count)
        and batch.get_total_buffer_size() <= HEADER_BYTES_MAX // 2
    )


def offsets(array: Any) -> Any:
    """The 32-bit offsets of a binary, text or map array."""
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def split(batch: Any) -> Iterator[Any]:
    """Cut a batch into pieces near the target size, in order."""
    rows = batch.num_rows
    size = 0 if rows == 1 else batch.nbytes
    if size <= BLOCK_BYTES_TARGET and rows <= BLOCK_ROWS_MAX:
        yield batch
        return
    step = max(1, min(BLOCK_ROWS_MAX, rows * BLOCK_BYTES_TARGET // size))
    for start in range(0, rows, step):
        piece = batch.slice(start, step)
        # Rows of uneven size can leave one piece far too large; halving finds a fit.
        if piece.num_rows > 1 and piece.nbytes > 2 * BLOCK_BYTES_TARGET:
            half = piece.num_rows // 2
            yield from split(piece.slice(0, half))
            yield from split(piece.slice(half))
        else:
            yield piece


def encode_block(batch: Any, first_time: int, last_time: int) -> bytes:
    """The stored form of one batch in :data:`SCHEMA`."""
    payload = batch.serialize()
    if len(payload) > BLOCK_BYTES_MAX:
        raise LimitExceeded(f"a block of {len(payload)} bytes is over the limit of {BLOCK_BYTES_MAX}")
    checksum = xxhash.xxh3_64_intdigest(payload)
    return b"".join((head_bytes(batch.num_rows, checksum, first_time, last_time, payload.size), payload))


def head_bytes(rows: int, checksum: int, first_time: int, last_time: int, size: int) -> bytes:
    """What stands before the record batch."""
    return _HEAD.pack(BLOCK_VERSION, CODEC_ARROW, 0, rows, checksum, first_time, last_time, size)


class BlockHead:
    """What a block says of itself before its rows are read."""

    __slots__ = ("body_bytes", "checksum", "first_time", "last_time", "rows")

    def __init__(self, rows: int, checksum: int, first_time: int, last_time: int, body_bytes: int) -> None:
        self.rows = rows
        self.checksum = checksum
        self.first_time = first_time
        self.last_time = last_time
        self.body_bytes = body_bytes


def decode_head(value: bytes) -> BlockHead:
    """The head of a block; unknown versions and sizes that do not add up are `Corrupt`."""
    version, codec, reserved, rows, checksum, first, last, size = ByteReader(value, "block").unpack(_HEAD)
    if version != BLOCK_VERSION or codec != CODEC_ARROW or reserved:
        raise Corrupt(f"a block has version {version} and codec {codec}; this release reads version 1, codec 0")
    if not 1 <= rows <= BLOCK_ROWS_MAX or size != len(value) - _HEAD.size:
        raise Corrupt(f"a block of {len(value)} bytes says that it holds {rows} rows in {size} bytes")
    return BlockHead(rows, checksum, first, last, size)


def decode_block(value: bytes, *, is_checked: bool = False) -> Any:
    """The rows of a block, without a copy; `Corrupt` when one bit of them has changed. What a view has read
    `is_checked` already, with the rest of its record."""
    head = decode_head(value)
    payload = memoryview(value)[_HEAD.size :]
    if not is_checked and xxhash.xxh3_64_intdigest(payload) != head.checksum:
        raise Corrupt("a block does not match its checksum")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), SCHEMA)
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
        raise Corrupt(f"a block with a right checksum is not a record batch: {error}") from error
    if batch.num_rows != head.rows:
        raise Corrupt(f"a block holds {batch.num_rows} rows where its head says {head.rows}")
    return batch


# -- headers of one name, as all messages have that processors write: without a look at each message's pairs, which is
#    what most of the time goes into otherwise

KEPT_ROWS_MAX: Final = 1_000
"""What does not change from batch to batch is kept for batches of so many messages, a megabyte in all."""

_TEXT: Final = pa.string()
_ENTRY: Final = pa.struct([HEADERS.key_field, HEADERS.item_field])
_from_buffers = pa.Array.from_buffers


def header_column(name: str, values: Sequence[str]) -> Any:
    """The column of headers of messages that have this one, with these values: the same that `content_of` makes."""
    rows = len(values)
    names, ends = _kept_names(name, rows) if rows <= KEPT_ROWS_MAX else _names(name, rows)
    entries = _from_buffers(_ENTRY, rows, [None], children=[names, text_array(values)])
    return _from_buffers(HEADERS, rows, [None, ends], children=[entries])


def _names(name: str, rows: int) -> tuple[Any, Any]:
    """The name so many times, and where each message's headers end."""
    raw, ends = name.encode(), np.arange(rows + 1, dtype=np.int32)
    names = _from_buffers(_TEXT, rows, [None, pa.py_buffer(ends * np.int32(len(raw))), pa.py_buffer(raw * rows)])
    return names, pa.py_buffer(ends)


_kept_names: Final = lru_cache(64)(_names)


def header_values(column: Any, name: str) -> list[str | None]:
    """What each message of a column of headers has in this one; None where it is not there."""
    ends = offsets(column)
    first, last, rows = int(ends[0]), int(ends[-1]), len(column)
    if first == last:
        return [None] * rows
    if last - first == rows and (rows == 1 or np.diff(ends).max() == 1):
        names, values = column.keys.slice(first, rows).to_pylist(), column.items.slice(first, rows).to_pylist()
        if names.count(name) == rows:
            return values  # type: ignore[no-any-return]
    return [dict(pairs).get(name) if pairs else None for pairs in column.to_pylist()]
