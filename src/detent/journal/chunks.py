"""Messages of one group on their way into blocks: what many callers append to a journal becomes few blocks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

from detent.codec import block
from detent.codec.single import encode_single

CHUNK_ROWS_MAX: Final = 1 << 16


class RowsChunk:
    """Messages appended one by one or in small lists, gathered over the transactions of a group."""

    __slots__ = ("base", "bodies", "clocks", "flags", "has_headers", "has_keys", "headers", "keys", "producers", "size")

    def __init__(self, base: int) -> None:
        self.base = base
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[dict[str, str] | None] = []
        self.has_keys = False
        self.has_headers = False
        self.producers = bytearray()
        self.clocks = array("Q")
        self.flags = array("H")
        self.size = 0

    def add(
        self,
        bodies: list[bytes],
        keys: list[bytes | None] | None,
        headers: list[dict[str, str] | None] | None,
        producers: bytes,
        clocks: list[int] | range,
        flags: list[int],
        size: int,
    ) -> None:
        """Add messages at the end, which have `size` bytes together."""
        rows = len(bodies)
        self.bodies += bodies
        if keys is not None:
            self._pad(self.keys, rows)
            self.keys += keys
            self.has_keys = True
        if headers is not None:
            self._pad(self.headers, rows)
            self.headers += headers
            self.has_headers = True
        self.producers += producers
        self.clocks.extend(clocks)
        self.flags.extend(flags)
        self.size += size + 64 * rows

    def add_plain(self, body: bytes, producer: bytes, clock: int) -> None:
        """Add one message outside of transactions, without key and headers."""
        self.bodies.append(body)
        self.producers += producer
        self.clocks.append(clock)
        self.flags.append(0)
        self.size += len(body) + 64

    def _pad(self, column: list[Any], rows: int) -> None:
        """Rows that came before without this column have None in it."""
        missing = len(self.bodies) - rows - len(column)
        column += [None] * missing

    @property
    def full(self) -> bool:
        return self.size >= block.BLOCK_BYTES_TARGET or len(self.bodies) >= CHUNK_ROWS_MAX

    @property
    def is_single(self) -> bool:
        """One message outside of transactions."""
        return len(self.bodies) == 1 and not self.flags[0]

    def single(self, now_ms: int) -> bytes:
        """The block of the one message."""
        key = self.keys[0] if self.keys else None
        headers = self.headers[0] if self.headers else None
        return encode_single(self.producers, self.clocks[0], now_ms, self.bodies[0], key, headers)

    def truncate(self, rows: int) -> None:
        """Take back what a refused transaction added."""
        del self.bodies[rows:], self.keys[rows:], self.headers[rows:]
        del self.producers[rows * block.PRODUCER_BYTES :], self.clocks[rows:], self.flags[rows:]
        self.size = sum(map(len, self.bodies)) + 64 * rows

    def batch(self, now_ms: int) -> Any:
        """All rows as one record batch."""
        rows = len(self.bodies)
        keys = headers = None
        if self.has_keys:
            self._pad(self.keys, 0)
            keys = self.keys
        if self.has_headers:
            self._pad(self.headers, 0)
            headers = self.headers
        content = block.content_of(self.bodies, keys, headers)
        return block.stamped(rows, self.producers, self.clocks, self.flags, times(rows, now_ms), content)


class ArrowChunk:
    """A record batch appended as it is, of about `size` bytes."""

    __slots__ = ("_batch", "base", "size")

    def __init__(self, base: int, batch: Any, size: int) -> None:
        self.base = base
        self.size = size
        self._batch = batch

    def batch(self, _: int) -> Any:
        return self._batch


Chunk = RowsChunk | ArrowChunk


def times(rows: int, now_ms: int) -> Any:
    """The published_at column: one time for the whole group."""
    return array("q", (now_ms,)) * rows


def encode_chunk(chunk: Chunk, now_ms: int) -> Iterable[tuple[int, bytes]]:
    """The chunk's blocks: (base position, value)."""
    if isinstance(chunk, RowsChunk) and chunk.is_single:
        return ((chunk.base, chunk.single(now_ms)),)
    batch = chunk.batch(now_ms)
    if chunk.size <= block.BLOCK_BYTES_TARGET:  # Arrow's own count is slow, and only needed where it comes to cutting
        return ((chunk.base, block.encode_block(batch, now_ms, now_ms)),)
    return _encode_pieces(chunk.base, batch, now_ms)


def _encode_pieces(base: int, batch: Any, now_ms: int) -> Iterator[tuple[int, bytes]]:
    for piece in block.split(batch):
        yield base, block.encode_block(piece, now_ms, now_ms)
        base += piece.num_rows
