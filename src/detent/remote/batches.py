"""Record batches on their way from an owner to a reader: an Arrow IPC stream that says where it is, and how it ended.

Each batch carries the number of its first row. The last one is empty, and says how many rows there were, or what went
wrong: a stream that ends without it was cut off.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from detent.codec import block
from detent.codec.parts import Parts
from detent.errors import Corrupt, DetentError
from detent.remote import wire

STREAM_TYPE: Final = "application/vnd.apache.arrow.stream"

FIRST: Final = b"detent.first"
ROWS: Final = b"detent.rows"
PROBLEM: Final = b"detent.problem"

_EMPTY: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in block.SCHEMA], schema=block.SCHEMA)


def encode(batches: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """A stream of numbered batches, in parts of one batch each."""
    parts = Parts()
    rows = 0
    with pa.ipc.new_stream(parts, block.SCHEMA) as writer:
        last: dict[bytes, bytes]
        try:
            for first, batch in batches:
                writer.write_batch(batch, custom_metadata={FIRST: b"%d" % first})
                rows += batch.num_rows
                yield b"".join(parts.take())
            last = {ROWS: b"%d" % rows}
        except DetentError as error:
            last = {PROBLEM: wire.encode_problem(error)[1]}
        writer.write_batch(_EMPTY, custom_metadata=last)
    yield b"".join(parts.take())


class _Source(io.RawIOBase):
    """Bytes that come in parts of any size, as a file to read from."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly so many bytes, fewer only at the end: Arrow takes a short read for the end."""
        found: list[memoryview] = []
        while size:
            if not self._left:
                part = next(self._parts, None)
                if part is None:
                    break
                self._left = memoryview(part)
                continue
            taken = self._left if size < 0 else self._left[:size]
            self._left = self._left[len(taken) :]
            found.append(taken)
            size -= len(taken) if size > 0 else 0
        return b"".join(found)


def decode(parts: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """The numbered batches of a stream. `Corrupt` if it is none or ends early; the owner's error if it says one."""
    rows = 0
    reader: Any = None
    while True:
        try:
            if reader is None:
                reader = pa.ipc.open_stream(_Source(parts))
                if not reader.schema.equals(block.SCHEMA):
                    raise Corrupt("the owner's stream does not have the message schema")
            batch, about = reader.read_next_batch_with_custom_metadata()
            batch.validate()
        except StopIteration as error:
            raise Corrupt(f"the owner's stream ends after {rows} rows without saying so") from error
        except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
            if isinstance(error, DetentError):
                raise
            raise Corrupt(f"the owner's stream cannot be read: {error}") from error
        about = dict(about or {})
        if PROBLEM in about:
            raise wire.decode_problem(about[PROBLEM])
        if ROWS in about:
            if _number(about[ROWS]) != rows:
                raise Corrupt(f"{rows} rows came where the owner says {about[ROWS].decode()}")
            return
        yield _number(about.get(FIRST, b"")), batch
        rows += batch.num_rows


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise Corrupt(f"the owner's stream has no number where one belongs: {text[:50]!r}")
    return int(text)
