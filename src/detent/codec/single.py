"""Blocks of one message, which every unhurried append writes, from templates: the same bytes for a tenth of the time.

Two blocks of one message differ in a few places only, if body, key and headers have the same lengths. Arrow builds the
first two of the same lengths, and tells where those places are; the next ones are copies with the places filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

from detent.codec import block

TEMPLATE_BYTES_MAX: Final = 16 << 10
"""Of body, key and headers: for larger messages the copy costs as much as Arrow does."""

TEMPLATE_HEADERS_MAX: Final = 16
"""Messages with many headers hardly ever have the same lengths again."""

TEMPLATES_MAX: Final = 512
"""With the bounds above, at most 8 MB of templates; beyond it all are forgotten."""

ONCE_MAX: Final = 8 * TEMPLATES_MAX
"""Lengths that were seen once. A template costs as much as a block of Arrow's, so there is none for lengths that do not
come again."""

_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
_NO_HEADERS: Final[Mapping[str, str]] = {}

Lengths = int | tuple[int, ...]
"""Of the body; or, where there is more, of body, key (-1: none), the names of the headers and their values."""


class _Template(NamedTuple):
    payload: bytes
    producer: int
    clock: int
    time: int
    body: int
    key: int
    names: int
    values: int


_templates: dict[Lengths, _Template] = {}
_once: set[Lengths] = set()


def encode_single(
    producer: bytes | bytearray,
    clock: int,
    now_ms: int,
    body: bytes,
    key: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A block that holds one message outside of transactions: byte for byte what `encode_block` makes of it."""
    size = len(body)
    if key is None and not headers:
        lengths: Lengths = size
        texts = b"", b"", b""
    else:
        pairs = headers or _NO_HEADERS
        names, values = [name.encode() for name in pairs], [value.encode() for value in pairs.values()]
        texts = key or b"", b"".join(names), b"".join(values)
        lengths = size, -1 if key is None else len(key), *map(len, names), *map(len, values)
        size += sum(map(len, texts))
    template = _templates.get(lengths)
    if template is None:
        batch = _batch(producer, clock, now_ms, body, key, headers)
        if size > TEMPLATE_BYTES_MAX or (headers and len(headers) > TEMPLATE_HEADERS_MAX) or not _comes_again(lengths):
            return block.encode_block(batch, now_ms, now_ms)
        template = _make(lengths, batch)
    payload = bytearray(template.payload)
    payload[template.producer : template.producer + block.PRODUCER_BYTES] = producer
    _U64.pack_into(payload, template.clock, clock)
    _I64.pack_into(payload, template.time, now_ms)
    payload[template.body : template.body + len(body)] = body
    for at, text in zip(template[-3:], texts, strict=True):
        if text:
            payload[at : at + len(text)] = text
    return block.head_bytes(1, xxhash.xxh3_64_intdigest(payload), now_ms, now_ms, len(payload)) + payload


def _batch(
    producer: bytes | bytearray,
    clock: int,
    now_ms: int,
    body: bytes,
    key: bytes | None,
    headers: Mapping[str, str] | None,
) -> Any:
    keys = None if key is None else [key]
    content = block.content_of([body], keys, [dict(headers)] if headers else None)
    return block.stamped(1, producer, _U64.pack(clock), b"\x00\x00", _I64.pack(now_ms), content)


def _comes_again(lengths: Lengths) -> bool:
    if lengths in _once:
        return True
    if len(_once) >= ONCE_MAX:
        _once.clear()
    _once.add(lengths)
    return False


def _make(lengths: Lengths, batch: Any) -> _Template:
    """A template from one message of its lengths: whatever is that message's own is written over."""
    payload = batch.serialize()
    read = pa.ipc.read_record_batch(payload, block.SCHEMA)
    headers = read.column(5)

    def place(column: Any, buffer: int) -> int:
        # Read without a copy, a column's buffer lies inside the payload.
        found = column.buffers()[buffer]
        return int(found.address - payload.address) if found is not None and found.size else payload.size

    if len(_templates) >= TEMPLATES_MAX:
        _templates.clear()
        _once.clear()
    template = _Template(
        payload.to_pybytes(),
        producer=place(read.column(0), 1),
        clock=place(read.column(1), 1),
        time=place(read.column(3), 1),
        body=place(read.column(6), 2),
        key=place(read.column(4), 2),
        names=place(headers.keys, 2),
        values=place(headers.items, 2),
    )
    _templates[lengths] = template
    return template
