"""Every decoder of stored or received bytes, with samples of what its encoder writes.

`tests/unit/test_decoder_fuzz.py` feeds each of them random and mutated bytes. Whoever writes a decoder adds it here:
a name, a callable that takes bytes and decodes them *whole* (nothing left lazy), and at least one valid encoding.
Samples should be small, a few hundred bytes, and together use every optional part of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from detent.codec import keys, log
from detent.codec.keys import KeyReader
from detent.codec.log import EntryKey, SegmentMeta, SeqBlock
from detent.codec.values import ByteReader, ByteWriter


class DecoderCase(NamedTuple):
    """One decoder under test."""

    name: str
    decode: Callable[[bytes], object]
    samples: list[bytes]


_PAIRS = struct.Struct("<Qq")


def _every_value_field(data: bytes) -> object:
    """A record that has each kind of field that a value can have."""
    reader = ByteReader(data, "sample")
    record = (
        reader.u8(),
        reader.u16(),
        reader.u32(),
        reader.u64(),
        reader.i64(),
        reader.f64(),
        reader.utf8(),
        reader.optional_utf8(),
        reader.var_bytes(),
        bytes(reader.var_view()),
        reader.array(lambda r: (r.utf8(), r.array(ByteReader.u16, element_bytes=2)), element_bytes=4),
    )
    reader.finish()
    return record


def _every_value_sample(text: str, optional: str | None, elements: list[tuple[str, list[int]]]) -> bytes:
    def write(writer: ByteWriter, element: tuple[str, list[int]]) -> None:
        writer.utf8(element[0]).array(element[1], ByteWriter.u16)

    writer = ByteWriter().u8(1).u16(2).u32(3).u64(4).i64(-5).f64(0.5)
    writer.utf8(text).optional_utf8(optional).var_bytes(b"\x00\xff" * 9).var_bytes(b"")
    return writer.array(elements, write).finish()


def _every_key_part(data: bytes) -> object:
    reader = KeyReader(data, "sample key")
    parts = (
        reader.u8(),
        reader.u16(),
        reader.u32(),
        reader.u64(),
        reader.terminated(),
        reader.var_u64(),
        reader.var_u32(),
        reader.sortable_i64(),
        reader.sortable_f64(),
    )
    reader.finish()
    return parts


_EVERY_KEY_SAMPLE = (
    keys.u8(1)
    + keys.u16(2)
    + keys.u32(3)
    + keys.u64(4)
    + keys.terminated(b"a\x00\x01\xff")
    + keys.var_u64(2**60)
    + keys.var_u32(40)
    + keys.sortable_i64(-1)
    + keys.sortable_f64(-0.5)
)


DECODERS: list[DecoderCase] = [
    DecoderCase(
        "terminated bytes",
        keys.decode_terminated,
        [keys.terminated(b""), keys.terminated(b"orders"), keys.terminated(b"\x00\x01\x02\xfe\xff" * 5)],
    ),
    DecoderCase("var_u64", keys.decode_var_u64, [keys.var_u64(1 << bit) for bit in (0, 10, 40, 63)]),
    DecoderCase("var_u32", keys.decode_var_u32, [keys.var_u32(1 << bit) for bit in (0, 10, 31)]),
    DecoderCase("key parts", _every_key_part, [_EVERY_KEY_SAMPLE]),
    DecoderCase(
        "value fields",
        _every_value_field,
        [
            _every_value_sample("", None, []),
            _every_value_sample("世界" * 9, "é", [("a", []), ("b", [1, 2, 3]), ("", [65535] * 20)]),
        ],
    ),
    DecoderCase(
        "fixed elements",
        lambda data: ByteReader(data).fixed_elements(_PAIRS),
        [b"", ByteWriter().fixed_elements(_PAIRS, [(1, -1), (2**64 - 1, 0)]).finish()],
    ),
    DecoderCase("log entry key", EntryKey.decode, [EntryKey(1, b"k\x00", 2**33).encode()]),
    DecoderCase("log segment key", log.decode_segment_key, [log.segment_key(42)]),
    DecoderCase("log listing key", log.decode_listing, [log.listing_key(42, b"test_key")]),
    DecoderCase("log sequence block", SeqBlock.decode, [SeqBlock(4096, 4096).encode()]),
    DecoderCase("log segment", SegmentMeta.decode, [SegmentMeta(4096, 1_700_000_000_000).encode()]),
]
