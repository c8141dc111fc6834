"""Arrow IPC files of messages, which fragments are: read at random by their footer, or checked while they come in.

ARROW1 and two zeros | schema | record batches | end of the stream | footer | its length i32 | ARROW1
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from detent.codec import block
from detent.codec.foreign.batches import STAMPED
from detent.codec.foreign.flatbuffer import FlatTable, root
from detent.codec.foreign.framing import PREFIX, RECORD_BATCH, SCHEMA, FramedMessage, message_at
from detent.codec.foreign.schema import require_messages
from detent.codec.foreign.streams import IncomingStream
from detent.errors import Invalid, LimitExceeded

MAGIC: Final = b"ARROW1"
HEAD: Final = MAGIC + b"\x00\x00"
_FLAGS: Final = block.SCHEMA.get_field_index("flags")
_LENGTH: Final = struct.Struct("<i")
TAIL_BYTES: Final = _LENGTH.size + len(MAGIC)

BATCHES_MAX: Final = 16_384
"""In one file. Ours have one for every 4 MiB or 65,536 rows, so that the largest has about 2,000."""

FOOTER_BYTES_MAX: Final = 1 << 20
"""Room for that many batches, at 24 bytes each, and the schema."""

_PLACE: Final = np.dtype(
    {"names": ["start", "metadata", "body"], "formats": ["<i8", "<i4", "<i8"], "offsets": [0, 8, 16], "itemsize": 24}
)


class MessageFile:
    """A file of messages. Its footer is checked when it is opened, each batch whenever it is read."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        start, footer = _footer(self._data)
        self._ends = start
        self._places = _places(footer, start)

    @property
    def num_record_batches(self) -> int:
        """How many record batches there are."""
        return len(self._places)

    def rows(self, number: int) -> int:
        """How many rows a record batch says that it has; when it is read it has them, or is `Invalid`."""
        return self._message(number).header.i64(0)

    def get_batch(self, number: int, *, again: bool = False) -> Any:
        """One record batch; `again` if these same bytes were read before, and found to be right."""
        return _rows(self._message(number), again)

    def _message(self, number: int) -> FramedMessage:
        start, metadata, body = self._places[number]
        found = message_at(self._data[: self._ends], start)
        if found is None or found[1] != start + metadata + body:
            raise Invalid(f"record batch {number} is not as long as its footer says")
        message = found[0]
        message.require(RECORD_BATCH)
        return message


def _rows(message: FramedMessage, again: bool = False) -> Any:
    """The rows of a record batch. A fragment has no transactions in it, so its rows have no flags."""
    message.require(RECORD_BATCH)
    batch = STAMPED.read(message.header, message.body, again=again)
    if again or not batch.num_rows:
        return batch
    if np.frombuffer(batch.column(_FLAGS).buffers()[1], np.uint16, batch.num_rows).any():
        raise Invalid("its rows have flags, as those of transactions have")
    return batch


def _footer(data: memoryview) -> tuple[int, FlatTable]:
    """Where the footer begins, and the footer."""
    if len(data) < len(HEAD) + TAIL_BYTES or bytes(data[: len(HEAD)]) != HEAD or not _ends_well(data):
        raise Invalid("it is not an Arrow IPC file")
    size = _LENGTH.unpack(data[-TAIL_BYTES : -len(MAGIC)])[0]
    start = len(data) - TAIL_BYTES - size
    if not 0 < size <= FOOTER_BYTES_MAX or start < len(HEAD):
        raise Invalid(f"a footer cannot have {size} bytes here")
    return start, root(data[start:-TAIL_BYTES])


def _ends_well(data: memoryview) -> bool:
    return bytes(data[-len(MAGIC) :]) == MAGIC


def _places(footer: FlatTable, end: int) -> list[tuple[int, int, int]]:
    """Where the record batches are: one behind the other, all of them before the footer. So no row is there twice."""
    schema = footer.table(1)
    if schema is None:
        raise Invalid("its footer has no schema")
    require_messages(schema)
    if footer.bytes_of(2, _PLACE.itemsize):
        raise Invalid("it has dictionaries")
    found = np.frombuffer(footer.bytes_of(3, _PLACE.itemsize), _PLACE)
    if len(found) > BATCHES_MAX:
        raise LimitExceeded(f"a fragment has at most {BATCHES_MAX} record batches, not {len(found)}")
    places: list[tuple[int, int, int]] = found.tolist()
    at = len(HEAD)
    for start, metadata, body in places:
        if start < at or metadata < PREFIX.size or body < 0:
            raise Invalid("its record batches do not follow one another")
        at = start + metadata + body
    if at > end:
        raise Invalid("its record batches reach into its footer")
    return places


class StreamedFile:
    """A file on its way to where it will be kept: what passes is checked, and its end is let go only if all of it was
    right. No more than one record batch of it is in memory."""

    def __init__(self, parts: Iterator[bytes], body_max: int) -> None:
        self._passing: list[bytes] = []
        self._incoming = IncomingStream(self._noted(parts), body_max)

    def _noted(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._passing.append(part)
            yield part

    def __iter__(self) -> Iterator[bytes]:
        """The same parts."""
        if bytes(self._incoming.take(len(HEAD))) != HEAD:
            raise Invalid("it is not an Arrow IPC file")
        places: list[tuple[int, int, int]] = []
        self._schema()
        while True:
            start = self._incoming.at
            message = self._incoming.message()
            if message is None:
                break
            _rows(message)
            body = len(message.body)
            places.append((start, self._incoming.at - start - body, body))
            if len(places) > BATCHES_MAX:
                raise LimitExceeded(f"a fragment has at most {BATCHES_MAX} record batches")
            yield from self._taken()
        self._check_end(places)
        yield from self._taken()

    def _schema(self) -> None:
        message = self._incoming.message()
        if message is None:
            raise Invalid("it ends before its schema")
        message.require(SCHEMA)

    def _taken(self) -> list[bytes]:
        taken, self._passing = self._passing, []
        return taken

    def _check_end(self, places: list[tuple[int, int, int]]) -> None:
        """The footer names the batches that came, and nothing comes after it."""
        start = self._incoming.at
        tail = self._incoming.rest(FOOTER_BYTES_MAX + TAIL_BYTES)
        if len(tail) < TAIL_BYTES or not _ends_well(tail):
            raise Invalid("it is not an Arrow IPC file")
        if _LENGTH.unpack(tail[-TAIL_BYTES : -len(MAGIC)])[0] != len(tail) - TAIL_BYTES:
            raise Invalid("its footer does not follow its record batches")
        if _places(root(tail[:-TAIL_BYTES]), start) != places:
            raise Invalid("its footer names other record batches than it has")
