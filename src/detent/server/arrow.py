"""Arrow IPC streams of journal messages: taken from strangers, and sent without holding all of one in memory."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import pyarrow as pa

from detent.codec import block, foreign
from detent.errors import Invalid, LimitExceeded
from detent.journal.operations import APPEND_BYTES_MAX

STREAM_BYTES_MAX: Final = APPEND_BYTES_MAX + (8 << 20)
"""The largest append, with room for its envelope."""

_TEXT: Final = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_ALLOWED: Final = {"body": _TEXT, "key": (*_TEXT, pa.null()), "headers": (block.HEADERS, pa.null())}


def read_table(data: bytes) -> Any:
    """The table that a stream holds, without a copy. Every length and offset is checked before Arrow looks into it."""
    try:
        schema, found = foreign.read_stream(data, _check_columns)
        batches: list[Any] = []
        size = 0
        for batch in found:
            batches.append(batch)
            size += batch.nbytes
            if size > APPEND_BYTES_MAX:
                raise LimitExceeded(f"one append has at most {APPEND_BYTES_MAX} bytes: send it in parts")
    except Invalid as error:
        raise Invalid(f"this is not an Arrow IPC stream of messages: {error}") from error
    return pa.Table.from_batches(batches, schema)


def _check_columns(columns: Sequence[foreign.Column]) -> None:
    for column in columns:
        if column.type is None or column.type not in _ALLOWED.get(column.name, ()):
            raise Invalid(
                f"the column {column.name!r} of type {column.kind} cannot be appended: there are body and key (binary "
                "or text) and headers (a map of text to text)"
            )


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
