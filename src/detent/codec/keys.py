"""Order-preserving keys: encodings whose bytes compare as their values do.

A store keeps its records in the order of their keys' bytes. With these encodings that order is the order of
the values inside, so a range of values is a range of keys and no index is needed.

**One value, one key.** Every decoder here is strict: it refuses what its encoder would not have written. The
variable length integers depart in this from the lenient reference implementation, which reads `10 05` as 5
and drops the bits of a nine byte form that exceed 64. If two keys could mean one value, a record could be
stored twice and found once.

Integers in keys are big-endian. Values are little-endian, and live in :mod:`detent.codec.values`.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Final

from detent.codec.values import U8_MAX, U16_MAX, U32_MAX, U64_MAX, ByteCursor
from detent.errors import Corrupt, Invalid
from detent.kv.base import prefix_end
from detent.kv.stored import SUBSYSTEMS as SUBSYSTEMS

SUBSYSTEM_LOG: Final = 0x03
SUBSYSTEM_QUEUE: Final = 0x05
SUBSYSTEM_JOURNAL: Final = 0x06
SUBSYSTEM_ENGINE: Final = 0x07
SUBSYSTEM_LEDGER: Final = 0x08
SUBSYSTEM_SHARD: Final = 0x09
SUBSYSTEM_SCHEDULE: Final = 0x0A

_F64: Final = struct.Struct(">d")

_SIGN_BIT: Final = 1 << 63
_I64_MIN: Final = -_SIGN_BIT
_I64_MAX: Final = _SIGN_BIT - 1

_TERMINATOR: Final = b"\x00"
_ESCAPES: Final = {b"\x01": b"\x00", b"\x02": b"\x01"}
"""What the byte after 01 stands for. Nothing else may follow 01."""

_ESCAPE: Final = re.compile(rb"\x01(.?)", re.DOTALL)

# The variable length integers differ in how many bits of the first byte are data; the others hold the length.
_VAR_U64_BITS: Final = 4
_U64: Final = struct.Struct(">Q")
_VAR_U32_BITS: Final = 5


def u8(value: int) -> bytes:
    """One byte."""
    return _fixed(value, 1, U8_MAX)


def u16(value: int) -> bytes:
    """Two bytes, big-endian."""
    return _fixed(value, 2, U16_MAX)


def u32(value: int) -> bytes:
    """Four bytes, big-endian."""
    return _fixed(value, 4, U32_MAX)


def u64(value: int) -> bytes:
    """Eight bytes, big-endian."""
    try:
        return _U64.pack(value)  # keys of numbered records are made all the time
    except struct.error:
        return _fixed(value, 8, U64_MAX)


def _fixed(value: int, size: int, highest: int) -> bytes:
    if not 0 <= value <= highest:
        raise Invalid(f"{value} does not fit an unsigned integer of {size} bytes")
    return value.to_bytes(size, "big")


def terminated(data: bytes) -> bytes:
    """A byte string that ends itself, so that more may follow it in the key.

    00 becomes `01 01`, 01 becomes `01 02`, a 00 closes the string; all else, FF too, stands as it is. A
    string sorts before every longer one that it begins, because its 00 is lower than anything that can stand
    in that place.
    """
    return data.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + _TERMINATOR


def decode_terminated(key: bytes, at: int = 0) -> tuple[bytes, int]:
    """The byte string that begins at `at`, and the position after its terminator."""
    end = key.find(_TERMINATOR, at)
    if end < 0:
        raise Corrupt("a byte string in a key has no terminator")
    body = key[at:end]
    if b"\x01" in body:
        body = _ESCAPE.sub(_unescape, body)
    return body, end + 1


def _unescape(match: re.Match[bytes]) -> bytes:
    byte = _ESCAPES.get(match[1])
    if byte is None:
        raise Corrupt(f"a byte string in a key holds 01 followed by {match[1].hex() or 'its end'}")
    return byte


def var_u64(value: int) -> bytes:
    """An integer below 2**64 in 1 to 9 bytes: 4 bits count the bytes that follow, the rest is the value."""
    return _encode_var(value, _VAR_U64_BITS, U64_MAX)


def decode_var_u64(key: bytes, at: int = 0) -> tuple[int, int]:
    """The integer at `at`, and the position after it.

    Stricter than the lenient reference: a longer form than needed and bits beyond 64 are `Corrupt`.
    """
    return _decode_var(key, at, _VAR_U64_BITS, U64_MAX)


def var_u32(value: int) -> bytes:
    """An integer below 2**32 in 1 to 5 bytes: 3 bits count the bytes that follow, the rest is the value."""
    return _encode_var(value, _VAR_U32_BITS, U32_MAX)


def decode_var_u32(key: bytes, at: int = 0) -> tuple[int, int]:
    """The integer at `at`, and the position after it; as strict as :func:`decode_var_u64`."""
    return _decode_var(key, at, _VAR_U32_BITS, U32_MAX)


def _encode_var(value: int, first_bits: int, highest: int) -> bytes:
    if not 0 <= value <= highest:
        raise Invalid(f"{value} is not between 0 and {highest}")
    more = max(0, value.bit_length() - first_bits + 7) // 8
    return (more << (first_bits + 8 * more) | value).to_bytes(1 + more, "big")


def _decode_var(key: bytes, at: int, first_bits: int, highest: int) -> tuple[int, int]:
    if at >= len(key):
        raise Corrupt("a key ends where an integer should begin")
    more = key[at] >> first_bits
    end = at + 1 + more
    if end > len(key):
        raise Corrupt(f"a key ends inside an integer of {1 + more} bytes")
    data_bits = first_bits + 8 * more
    value = int.from_bytes(key[at:end], "big") & ((1 << data_bits) - 1)
    if value > highest:  # also whatever has a length code that no value needs
        raise Corrupt(f"an integer in a key is over {highest}")
    if more and value >> (data_bits - 8) == 0:
        raise Corrupt(f"{value} stands in a key in {1 + more} bytes, which is not its shortest form")
    return value, end


def sortable_i64(value: int) -> bytes:
    """A signed integer in eight bytes; the sign bit is flipped so that negative values come first."""
    if not _I64_MIN <= value <= _I64_MAX:
        raise Invalid(f"{value} does not fit a signed integer of 8 bytes")
    return (value + _SIGN_BIT).to_bytes(8, "big")


def sortable_f64(value: float) -> bytes:
    """A float in eight bytes. -0.0 sorts just before 0.0 and reads back as itself; NaN is refused."""
    if math.isnan(value):
        raise Invalid("NaN has no place in an order, so it cannot be part of a key")
    bits = int.from_bytes(_F64.pack(value), "big")
    return (bits ^ (U64_MAX if bits & _SIGN_BIT else _SIGN_BIT)).to_bytes(8, "big")


class KeyReader(ByteCursor):
    """Reads the parts of a key in order. Take one from :meth:`Prefix.reader`, which checks the prefix."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes, what: str = "key") -> None:
        super().__init__(key, what)
        self._key = key

    def u8(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Two bytes, big-endian."""
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        """Four bytes, big-endian."""
        return int.from_bytes(self.take(4), "big")

    def u64(self) -> int:
        """Eight bytes, big-endian."""
        return int.from_bytes(self.take(8), "big")

    def terminated(self) -> bytes:
        """A byte string as :func:`terminated` writes it."""
        value, self._at = decode_terminated(self._key, self._at)
        return value

    def var_u64(self) -> int:
        """An integer as :func:`var_u64` writes it."""
        value, self._at = decode_var_u64(self._key, self._at)
        return value

    def var_u32(self) -> int:
        """An integer as :func:`var_u32` writes it."""
        value, self._at = decode_var_u32(self._key, self._at)
        return value

    def sortable_i64(self) -> int:
        """An integer as :func:`sortable_i64` writes it."""
        return self.u64() - _SIGN_BIT

    def sortable_f64(self) -> float:
        """A float as :func:`sortable_f64` writes it."""
        bits = self.u64()
        bits ^= _SIGN_BIT if bits & _SIGN_BIT else U64_MAX
        value: float = _F64.unpack(bits.to_bytes(8, "big"))[0]
        if math.isnan(value):
            raise self.corrupt("NaN in a key")
        return value


class Prefix:
    """What all keys of one kind of record begin with: subsystem, version and, in most subsystems, a type.

    >>> payload = Prefix(SUBSYSTEM_QUEUE, 1, 1)
    >>> payload.key(u64(7)).hex()
    '0501010000000000000007'
    """

    __slots__ = ("raw",)

    def __init__(self, subsystem: int, version: int, kind: int | None = None) -> None:
        if subsystem not in SUBSYSTEMS:
            raise Invalid(f"{subsystem:#04x} is not a registered subsystem")
        parts = (subsystem, version) if kind is None else (subsystem, version, kind)
        if not all(1 <= part <= U8_MAX for part in parts):
            raise Invalid(f"the bytes of a prefix are 1 to {U8_MAX}, not {parts}")
        self.raw = bytes(parts)

    def __repr__(self) -> str:
        return f"Prefix({self.raw.hex()})"

    def key(self, *parts: bytes) -> bytes:
        """The key of one record."""
        return self.raw + b"".join(parts)

    def range(self, *parts: bytes) -> tuple[bytes, bytes | None]:
        """Start and end, as `View.scan` takes them, of all keys that begin with these parts."""
        start = self.key(*parts)
        return start, prefix_end(start)

    def reader(self, key: bytes, what: str = "key") -> KeyReader:
        """A cursor after the prefix; a key that begins otherwise is `Corrupt`."""
        reader = KeyReader(key, what)
        if not key.startswith(self.raw):
            raise reader.corrupt(f"the key does not begin with {self.raw.hex()}")
        reader.take(len(self.raw))
        return reader
