"""Blocks of one message, which every unhurried append writes, from templates: the same bytes for a tenth of the time.

Two blocks of one message without key and headers and with bodies of the same length differ in four places only. Arrow
builds the first of a length, and tells where those places are; the next ones are copies with the places filled in.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import pyarrow as pa
import xxhash

from detent.codec import block

TEMPLATE_BODY_MAX: Final = 16 << 10
TEMPLATES_MAX: Final = 512
"""With the bound above, at most 8 MB of templates; beyond it all are forgotten."""

_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")


class _Template(NamedTuple):
    payload: bytes
    producer: int
    clock: int
    time: int
    body: int


_templates: dict[int, _Template] = {}


def encode_single(producer: bytes | bytearray, clock: int, now_ms: int, body: bytes) -> bytes:
    """A block that holds one message outside of transactions: byte for byte what `encode_block` makes of it."""
    size = len(body)
    if size > TEMPLATE_BODY_MAX:
        content = block.content_of([body])
        batch = block.stamped(1, producer, _U64.pack(clock), b"\x00\x00", _I64.pack(now_ms), content)
        return block.encode_block(batch, now_ms, now_ms)
    template, producer_at, clock_at, time_at, body_at = _templates.get(size) or _make(size)
    payload = bytearray(template)
    payload[producer_at : producer_at + block.PRODUCER_BYTES] = producer
    _U64.pack_into(payload, clock_at, clock)
    _I64.pack_into(payload, time_at, now_ms)
    payload[body_at : body_at + size] = body
    return block.head_bytes(1, xxhash.xxh3_64_intdigest(payload), now_ms, now_ms, len(payload)) + payload


def _make(size: int) -> _Template:
    batch = block.stamped(1, bytes(6), bytes(8), bytes(2), bytes(8), block.content_of([bytes(size)]))
    payload = batch.serialize()
    read = pa.ipc.read_record_batch(payload, block.SCHEMA)

    def place(column: int, buffer: int = 1) -> int:
        # Read without a copy, a column's buffer lies inside the payload.
        found = read.column(column).buffers()[buffer]
        return int(found.address - payload.address) if found is not None and found.size else payload.size

    if len(_templates) >= TEMPLATES_MAX:
        _templates.clear()
    template = _Template(payload.to_pybytes(), place(0), place(1), place(3), place(6, 2))
    _templates[size] = template
    return template
