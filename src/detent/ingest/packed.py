"""Packed files, unpacked as they come in: the ways of packing that Spark tells by the end of a name.

Each of them is unpacked piece by piece, so what a task holds is bounded, whatever a file says of itself. Hadoop's
``.lz4`` and ``.snappy`` are blocks: the length of a block unpacked, then its parts, each behind its own length, packed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from detent.errors import Invalid

PIECE_BYTES: Final = 8 << 20
"""What is unpacked at a time, about."""

BLOCK_BYTES_MAX: Final = 64 << 20
"""A block of Hadoop's is held as a whole, packed and unpacked. Its writers make such of 256 KiB, and of one value."""

_LZ4_FRAME: Final = b"\x04\x22\x4d\x18"
"""How a file begins that the program ``lz4`` has packed."""


def is_packed(name: str) -> bool:
    """Whether a file is packed, so that it can be read from its start only."""
    return name.lower().endswith(tuple(_WAYS))


def unpack(name: str, pieces: Iterable[bytes]) -> Iterable[bytes]:
    """The bytes of a file as they were before it was packed."""
    way = next((way for ending, way in _WAYS.items() if name.lower().endswith(ending)), None)
    return pieces if way is None else way(pieces)


def _by_file(opening: Callable[[Any], Any]) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    """By what unpacks a file as a file."""

    def unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
        opened = opening(io.BufferedReader(PieceFile(pieces), PIECE_BYTES))
        return iter(lambda: bytes(opened.read(PIECE_BYTES)), b"")

    return unpacked


def _by_arrow(codec: str) -> Callable[[Iterable[bytes]], Iterator[bytes]]:
    return _by_file(lambda raw: pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec))


def _deflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Streams of zlib, one after another."""
    stream, is_begun = zlib.decompressobj(), False
    for piece in pieces:
        left = piece
        while left:
            yield stream.decompress(left, PIECE_BYTES)
            left, is_begun = stream.unconsumed_tail, True
            if stream.eof:
                left = stream.unused_data
                stream, is_begun = zlib.decompressobj(), False
    while is_begun and not stream.eof:
        piece = stream.decompress(stream.unconsumed_tail, PIECE_BYTES)
        if not piece:
            raise EOFError("the packed file ends in the middle")
        yield piece


def _lz4(pieces: Iterable[bytes]) -> Iterator[bytes]:
    raw = io.BufferedReader(PieceFile(pieces), PIECE_BYTES)
    if raw.peek(len(_LZ4_FRAME)).startswith(_LZ4_FRAME):
        opened = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "lz4")
        return iter(lambda: bytes(opened.read(PIECE_BYTES)), b"")
    return _blocks(raw, _lz4_part)


def _snappy(pieces: Iterable[bytes]) -> Iterator[bytes]:
    return _blocks(io.BufferedReader(PieceFile(pieces), PIECE_BYTES), _snappy_part)


def _blocks(raw: Any, unpack_part: Callable[[bytes, int], bytes]) -> Iterator[bytes]:
    while (head := raw.read(4)) != b"":
        left = _length(head)
        while left > 0:
            packed = _length(raw.read(4))
            data = raw.read(packed)
            if len(data) < packed:
                raise EOFError("the packed file ends in the middle")
            part = unpack_part(data, left)
            if not part or len(part) > left:
                raise Invalid("a block of the packed file has another length than it says")
            left -= len(part)
            yield part


def _length(head: bytes) -> int:
    if len(head) < 4:
        raise EOFError("the packed file ends in the middle")
    length = int.from_bytes(head, "big")
    if length > BLOCK_BYTES_MAX:
        raise Invalid(f"a block of the packed file is of {length} bytes; at most {BLOCK_BYTES_MAX} are read")
    return length


def _snappy_part(data: bytes, left: int) -> bytes:
    """A part says how long it is."""
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if length > left:
        raise Invalid("a block of the packed file has another length than it says")
    return pa.Codec("snappy").decompress(data, length, asbytes=True)  # type: ignore[no-any-return]


def _lz4_part(data: bytes, left: int) -> bytes:
    length = _lz4_length(data, left)
    return pa.Codec("lz4_raw").decompress(data, length, asbytes=True)  # type: ignore[no-any-return]


def _lz4_length(data: bytes, most: int) -> int:
    """How long a part is unpacked, which only its content tells: literals, and copies of what came before."""
    at = length = 0
    while at < len(data) and length <= most:
        token = data[at]
        literals, at = _counted(data, at + 1, token >> 4)
        at += literals
        length += literals
        if at >= len(data):
            break
        copied, at = _counted(data, at + 2, token & 15)
        length += copied + 4
    return min(length, most + 1)


def _counted(data: bytes, at: int, count: int) -> tuple[int, int]:
    """A count whose first half byte was read, and where it ends."""
    if count == 15:
        while at < len(data):
            more = data[at]
            at += 1
            count += more
            if more != 255:
                break
    return count, at


class PieceFile(io.RawIOBase):
    """Pieces as a file that is read once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = memoryview(piece)
        some = self._held[: len(buffer)]
        buffer[: len(some)] = some
        self._held = self._held[len(some) :]
        return len(some)


_WAYS: Final[dict[str, Callable[[Iterable[bytes]], Iterable[bytes]]]] = {
    ".gz": _by_file(lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": _by_file(bz2.BZ2File),
    ".zst": _by_arrow("zstd"),
    ".deflate": _deflated,
    ".lz4": _lz4,
    ".snappy": _snappy,
}
