"""Arrow IPC streams: a schema and its record batches, whole in memory or as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from detent.codec.foreign.batches import STAMPED
from detent.codec.foreign.columns import Layout
from detent.codec.foreign.framing import (
    PREFIX,
    RECORD_BATCH,
    SCHEMA,
    FramedMessage,
    body_bytes,
    message_at,
    message_of,
    metadata_bytes,
)
from detent.codec.foreign.schema import Column, columns_of, require_messages
from detent.errors import Invalid, LimitExceeded

ColumnNeeds = Callable[[Sequence[Column]], None]
"""Refuses columns that it cannot use."""


def read_stream(data: bytes | memoryview, needs: ColumnNeeds) -> tuple[Any, Iterator[Any]]:
    """The schema of a stream that is whole, and its record batches as they are asked for."""
    view = memoryview(data)
    found = message_at(view, 0) if view else None
    if found is None:
        raise Invalid("this Arrow IPC stream is empty: it begins with its schema")
    message, at = found
    message.require(SCHEMA)
    columns = columns_of(message.header)
    needs(columns)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return schema, _batches(view, at, Layout(schema))


def _batches(view: memoryview, at: int, layout: Layout) -> Iterator[Any]:
    while at < len(view):
        found = message_at(view, at)
        if found is None:
            if at + PREFIX.size != len(view):
                raise Invalid("there are bytes behind its end")
            return
        message, at = found
        message.require(RECORD_BATCH)
        yield layout.read(message.header, message.body)


class IncomingStream:
    """Messages out of parts of any size. No message is held before its length was found to be allowed."""

    def __init__(self, parts: Iterator[bytes | memoryview], body_max: int) -> None:
        self._parts = parts
        self._body_max = body_max
        self._left = memoryview(b"")
        self.at = 0
        """How many bytes were taken."""

    def take(self, size: int) -> memoryview:
        """Exactly so many bytes; `Invalid` if the stream ends before."""
        if size <= len(self._left):
            taken, self._left = self._left[:size], self._left[size:]
        else:
            taken = self._gathered(size)
        self.at += size
        return taken

    def _gathered(self, size: int) -> memoryview:
        found = bytearray(self._left)
        while len(found) < size:
            part = next(self._parts, None)
            if part is None:
                raise Invalid(f"it ends after {self.at + len(found)} bytes, in the middle of a message")
            view = memoryview(part)
            missing = size - len(found)
            found += view[:missing]
            self._left = view[missing:]
        return memoryview(found)

    def rest(self, most: int) -> memoryview:
        """All that is left, which are at most so many bytes."""
        found = bytearray(self._left)
        self._left = memoryview(b"")
        for part in self._parts:
            found += part
            if len(found) > most:
                break
        if len(found) > most:
            raise Invalid(f"more than {most} bytes come after its record batches")
        self.at += len(found)
        return memoryview(found)

    def message(self) -> FramedMessage | None:
        """The next message; None at the end that is said."""
        size = metadata_bytes(self.take(PREFIX.size))
        if size == 0:
            return None
        metadata = self.take(size)
        length = body_bytes(metadata)
        if length > self._body_max:
            raise LimitExceeded(f"a record batch of {length} bytes is over the limit of {self._body_max}")
        return message_of(metadata, self.take(length))


class PartsReader:
    """Stored messages from a stream that comes in parts, each batch with the notes that came with it."""

    def __init__(self, parts: Iterator[bytes], body_max: int) -> None:
        self._incoming = IncomingStream(parts, body_max)
        self._begun = False

    def next_batch(self) -> tuple[Any, dict[bytes, bytes]] | None:
        """The next rows; None at the stream's end."""
        if not self._begun:
            first = self._incoming.message()
            if first is None:
                raise Invalid("it ends before its schema")
            first.require(SCHEMA)
            require_messages(first.header)
            self._begun = True
        message = self._incoming.message()
        if message is None:
            return None
        message.require(RECORD_BATCH)
        return STAMPED.read(message.header, message.body), message.notes()
