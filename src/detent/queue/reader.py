"""Reading what was published: body and metadata of messages, straight from the store, in any process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from detent.codec import log, published
from detent.codec.keys import var_u64
from detent.codec.log import SegmentMeta
from detent.codec.published import BYTES_INLINE, LOG_KEY, NO_ENTRY, URI, LogEntry, Metadata, PayloadRecord
from detent.codec.queue import ORIGIN, queue_key
from detent.errors import Corrupt
from detent.kv import Reader, View

Content = tuple[int, bytes, Metadata]
"""A message's body type, body and metadata (whose own number may be that of a neighbour that says the same)."""


Row = tuple[int, bytes | None, Metadata | None]
"""The same of a message that may be gone: it has no body then."""


class ContentColumns(NamedTuple):
    """Contents side by side, and how many of them are None, because they are gone."""

    kinds: Sequence[int]
    bodies: list[bytes | None]
    about: Sequence[Metadata | None]
    gone: int


ENTRIES_KEPT: Final = 64
"""Log entries that are remembered: consumers that claim one by one read the same one many times. They never change."""

ROW_BYTES: Final = 64
"""What numbers and lengths add to a message's content in an answer."""


class QueueReader:
    """Finds messages by their number and the record that they are in."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # Where the log's segments start, and what the keys of their entries begin with.
        self._segments: tuple[list[int], list[bytes]] = ([], [])
        self._entries: dict[int, LogEntry] = {}

    def contents(self, messages: Sequence[int], records: Sequence[int]) -> list[Content | None]:
        """Body and metadata of messages, each given with the first message of its record; None for one that is gone:
        its retention has ended."""
        rows = zip(*self.columns(messages, records)[:3], strict=True)
        return [None if body is None or about is None else (kind, body, about) for kind, body, about in rows]

    def leading(self, messages: Sequence[int], records: Sequence[int], fits: Callable[[int], bool]) -> list[Row]:
        """The contents of messages from the first on, record by record, until one of so many bytes does not fit."""
        rows: list[Row] = []
        with self._reader.view() as view:
            for record, group in groupby(zip(records, messages, strict=True), _FIRST):
                part = self._of_record(view, record, [message for _, message in group])
                found = list(zip(*part[:3], strict=True))
                if not fits(sum(map(content_bytes, found))):
                    break
                rows += found
        return rows

    def leading_letters(
        self,
        queue: int,
        messages: Sequence[int],
        records: Sequence[int],
        named: Container[int],
        fits: Callable[[int], bool],
    ) -> tuple[list[Row], dict[int, bytes]]:
        """The same for messages of a queue of which those that are `named` are dead letters, and the records of where
        these came from. They fit one by one: a dead letter's record may be larger than its content."""
        rows: list[Row] = []
        origins: dict[int, bytes] = {}
        with self._reader.view() as view:
            for record, group in groupby(zip(records, messages, strict=True), _FIRST):
                numbers = [message for _, message in group]
                found = zip(*self._of_record(view, record, numbers)[:3], strict=True)
                for message, row in zip(numbers, found, strict=True):
                    stored = view.get(queue_key(ORIGIN, queue, message)) if message in named else None
                    if not fits(content_bytes(row) + len(stored or b"")):
                        return rows, origins
                    rows.append(row)
                    if stored is not None:
                        origins[message] = stored
        return rows, origins

    def columns(self, messages: Sequence[int], records: Sequence[int]) -> ContentColumns:
        """The same, side by side: what a claim gave is mostly one record, whole and in order."""
        with self._reader.view() as view:
            if records and records.count(records[0]) == len(messages):
                return self._of_record(view, records[0], messages)
            kinds: list[int] = []
            bodies: list[bytes | None] = []
            about: list[Metadata | None] = []
            for record, group in groupby(zip(records, messages, strict=True), _FIRST):
                part = self._of_record(view, record, [message for _, message in group])
                kinds += part.kinds
                bodies += part.bodies
                about += part.about
            return ContentColumns(kinds, bodies, about, bodies.count(None))

    @contextmanager
    def heads(self) -> Iterator[Heads]:
        """Headers and the first bytes of bodies, of messages one after another."""
        with self._reader.view() as view:
            yield Heads(view, self._entry)

    def origins(self, queue: int, messages: Iterable[int]) -> dict[int, bytes]:
        """The records of where dead letters of a queue came from; of one that has left it there may be none."""
        with self._reader.view() as view:
            found = {message: view.get(queue_key(ORIGIN, queue, message)) for message in messages}
        return {message: value for message, value in found.items() if value is not None}

    def _of_record(self, view: View, record: int, messages: Sequence[int]) -> ContentColumns:
        """The contents of messages that are in one record."""
        count = len(messages)
        value = view.get(published.payload_key(record))
        entry = NO_ENTRY if value is None else self._entry(view, record)
        if value is None or not entry.count:
            return ContentColumns([0] * count, [None] * count, [None] * count, count)
        bodies = PayloadRecord(value)
        everything = entry.same and bodies.is_whole and bodies.count == count <= entry.count
        if everything and messages == list(range(record, record + count)):
            return ContentColumns(bodies.kinds, bodies.all(), [entry.first] * count, 0)
        found = [bodies.payload(message - record) or (0, None) for message in messages]
        about = [entry.at(message - record) for message in messages]
        data = [None if known is None else body for (_, body), known in zip(found, about, strict=True)]
        return ContentColumns([kind for kind, _ in found], data, about, data.count(None))

    def _entry(self, view: View, record: int) -> LogEntry:
        """The log entry that begins with message `record`. Segments are looked up again when it is not where the last
        known one would have it."""
        known = self._entries.get(record)
        if known is not None:
            return known
        value = self._look(view, record)
        if value is None:
            metas = [
                (SegmentMeta.decode(meta).start_seq, log.decode_segment_key(key))
                for key, meta in view.scan(*log.segment_range())
            ]
            heads = [log.entry_head(number, LOG_KEY) for _, number in metas]
            self._segments = [start for start, _ in metas], heads  # at once: threads share it
            value = self._look(view, record)
        if value is None:
            return NO_ENTRY
        if len(self._entries) >= ENTRIES_KEPT:
            self._entries = {}
        entry = published.decode_entry(value)
        if entry.first.message != record:
            raise Corrupt(f"the log entry of message {record} begins with message {entry.first.message}")
        self._entries[record] = entry
        return entry

    def _look(self, view: View, record: int) -> bytes | None:
        starts, heads = self._segments
        index = bisect_right(starts, record) - 1
        return None if index < 0 else view.get(heads[index] + var_u64(record - starts[index]))


class Heads:
    """Reads the headers and the first bytes of messages. `read` is how many bytes the last body has cost: neighbours
    share a record, which is read once."""

    def __init__(self, view: View, entry: Callable[[View, int], LogEntry]) -> None:
        self._view = view
        self._entry = entry
        self._known: tuple[int, PayloadRecord | None] = (-1, None)
        self.read = 0

    def metadata(self, message: int, record: int) -> Metadata | None:
        """What is known of a message that is still in the log."""
        return self._entry(self._view, record).at(message - record)

    def body(self, message: int, record: int, count: int) -> tuple[int | None, int, bytes]:
        """The size, the type and the first bytes of a body; of a URI all of it. No size: it is gone, or was not
        read, because no byte of it was wanted."""
        self.read = 0
        if not count:
            return None, BYTES_INLINE, b""
        if self._known[0] != record:
            value = self._view.get(published.payload_key(record))
            self.read = 0 if value is None else len(value)
            self._known = record, None if value is None else PayloadRecord(value)
        found = None if self._known[1] is None else self._known[1].payload(message - record)
        if found is None:
            return None, BYTES_INLINE, b""
        kind, data = found
        return len(data), kind, data if kind == URI else data[:count]


_FIRST: Final = itemgetter(0)


def content_bytes(row: Row) -> int:
    """About how many bytes a message's content takes in an answer."""
    _, body, about = row
    if body is None or about is None:
        return ROW_BYTES
    headers = sum(len(name) + len(value) for name, value in about.headers.items())
    return ROW_BYTES + len(body) + 4 * headers  # a character has up to four bytes
