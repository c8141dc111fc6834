"""Arrow IPC streams of journal messages: taken from strangers, and sent without holding all of one in memory."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pyarrow as pa

from detent.codec import block
from detent.errors import Invalid, LimitExceeded
from detent.journal.operations import APPEND_BYTES_MAX

STREAM_BYTES_MAX: Final = APPEND_BYTES_MAX + (8 << 20)
"""The largest append, with room for its envelope."""

_PREFIX: Final = struct.Struct("<iI")
_TEXT: Final = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_ALLOWED: Final = {"body": _TEXT, "key": (*_TEXT, pa.null()), "headers": (block.HEADERS, pa.null())}


def read_table(data: bytes) -> Any:
    """The table that a stream holds. Batches are checked to the last offset before anything looks into them, and
    compressed or dictionary-encoded ones refused: a few bytes of those could ask for gigabytes."""
    try:
        return _read_table(data)
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError, TypeError, KeyError) as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(f"this is no Arrow IPC stream of messages: {error}") from error


def _read_table(data: bytes) -> Any:
    messages = _each(pa.ipc.MessageReader.open_stream(pa.py_buffer(data)))
    first = next(messages, None)
    if first is None:
        raise Invalid("this Arrow IPC stream is empty: it begins with its schema")
    schema = pa.ipc.read_schema(first)
    for field in schema:
        if field.type not in _ALLOWED.get(field.name, ()):
            raise Invalid(
                f"the column {field.name!r} of type {field.type} cannot be appended: there are body and key (binary or "
                "text) and headers (a map of text to text)"
            )
    batches: list[Any] = []
    size = 0
    for message in messages:
        if message.type != "record batch":
            raise Invalid(f"a stream to append has record batches only, no {message.type}")
        metadata = message.metadata.to_pybytes()
        block.refuse_compressed(_PREFIX.pack(-1, len(metadata)) + metadata)
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
        size += batch.nbytes
        if size > APPEND_BYTES_MAX:
            raise LimitExceeded(f"one append has at most {APPEND_BYTES_MAX} bytes: send it in parts")
    return pa.Table.from_batches(batches, schema)


def _each(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


class _Sink(io.RawIOBase):
    """Where the writer of a stream writes: what it has written is taken away piece by piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def take(self) -> bytes:
        """What was written since the last time."""
        taken, self._parts = b"".join(self._parts), []
        return taken


async def stream(batches: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Record batches of messages as an IPC stream, a batch at a time."""
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, block.SCHEMA)
    async for batch in batches:
        await asyncio.to_thread(writer.write_batch, batch)
        yield sink.take()
    writer.close()
    yield sink.take()
