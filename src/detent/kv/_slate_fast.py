"""Faster bytes into SlateDB's Python binding.

The generated binding copies every byte handed to Rust in a Python loop, so a 1 MiB value costs a fifth of a second.
:func:`install` swaps three private helpers for ones that copy with one `memmove`. It does so only for the exact
release they were written for and only after they produced the same bytes as the stock ones; otherwise the binding
stays as it is, slow and right.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import struct
import threading
from typing import Any

BINDING_VERSION = "0.17.0"
"""The release whose private helpers are known here."""

SELF_TEST_SIZES = (0, 1, 11, 12, 13, 16, 17, 255, 4096, 70_001)
"""Around the first allocation of 16 bytes (12 with the length before them), and far past it."""

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct(">i")
_lock = threading.Lock()
_outcome: bool | None = None


def install() -> bool:
    """Install the fast helpers once per process. True when they are in use."""
    global _outcome
    with _lock:
        if _outcome is None:
            _outcome = _install()
        return _outcome


def _install() -> bool:
    if importlib.metadata.version("slatedb") != BINDING_VERSION:
        return False
    from slatedb.uniffi._slatedb_uniffi import slatedb as binding

    names = ("_UniffiRustBufferBuilder", "_UniffiFfiConverterBytes", "_UniffiRustBuffer")
    if not all(hasattr(binding, name) for name in names):
        return False
    builder, converter = binding._UniffiRustBufferBuilder, binding._UniffiFfiConverterBytes
    stock = (builder.write, builder._pack_into)
    expected = samples(binding)
    builder.write, builder._pack_into = _write, _pack_into
    converter.lower = staticmethod(_lower_with(binding._UniffiRustBuffer))
    try:
        same = samples(binding) == expected
    except Exception:  # noqa: BLE001 - whatever went wrong, the stock helpers are the answer
        _log.warning("the fast path into SlateDB failed its self-test; using the stock one", exc_info=True)
        same = False
    if not same:
        builder.write, builder._pack_into = stock
        del converter.lower  # what it inherits is the stock one
    return same


def samples(binding: Any) -> list[bytes]:
    """What the helpers of `binding` make of some values: byte strings alone, and inside a record."""
    made = []
    for size in SELF_TEST_SIZES:
        value = bytes(index * 31 % 251 for index in range(size))
        made.append(_taken(binding._UniffiFfiConverterBytes.lower(value)))
        between = binding.KeyRange(start=value, start_inclusive=True, end=value[::-1], end_inclusive=False)
        made.append(_taken(binding._UniffiFfiConverterTypeKeyRange.lower(between)))
    options = binding.WriteOptions(seqnum=2**63 + 5)
    made.append(_taken(binding._UniffiFfiConverterTypeWriteOptions.lower(options)))
    return made


def _taken(buffer: Any) -> bytes:
    try:
        return bytes(buffer.data[0 : buffer.len])
    finally:
        buffer.free()


def _append(builder: Any, data: bytes) -> None:
    size, buffer = len(data), builder.rbuf
    if buffer.len + size > buffer.capacity:
        buffer = builder.rbuf = type(buffer).reserve(buffer, size)
    if size:
        ctypes.memmove(ctypes.addressof(buffer.data.contents) + buffer.len, data, size)
        buffer.len += size


def _write(self: Any, value: Any) -> None:
    _append(self, value if type(value) is bytes else bytes(value))


def _pack_into(self: Any, size: int, format: str, value: Any) -> None:
    data = struct.pack(format, value)
    assert len(data) == size, (format, size)
    _append(self, data)


def _lower_with(buffer_type: Any) -> Any:
    """Converts bytes into a buffer allocated at its final size, instead of one that grows."""

    def lower(value: Any) -> Any:
        data = value if type(value) is bytes else bytes(value)
        total = _LENGTH.size + len(data)
        buffer = buffer_type.alloc(total)
        address = ctypes.addressof(buffer.data.contents)
        ctypes.memmove(address, _LENGTH.pack(len(data)), _LENGTH.size)
        ctypes.memmove(address + _LENGTH.size, data, len(data))
        buffer.len = total
        return buffer

    return lower
