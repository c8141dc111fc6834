"""Reading what was published: payload and metadata of messages, straight from the store, in any process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from detent.codec import log, published
from detent.codec.log import EntryKey, SegmentMeta
from detent.codec.published import LOG_KEY, NO_ENTRY, Entry, Metadata, PayloadRecord
from detent.errors import Corrupt
from detent.kv import Reader, View

Content = tuple[int, bytes, Metadata]
"""A message's payload type, payload and metadata (whose own number may be that of a neighbour that says the same)."""

ENTRIES_KEPT: Final = 64
"""Log entries that are remembered: consumers that claim one by one read the same one many times. They never change."""


class QueueReader:
    """Finds messages by their number and the record that they are in."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._segments: tuple[list[int], list[int]] = ([], [])  # where the log's segments start, and their numbers
        self._entries: dict[int, Entry] = {}

    def contents(self, messages: Sequence[int], records: Sequence[int]) -> list[Content | None]:
        """Payload and metadata of messages, each given with the first message of its record; None for one that is gone:
        its retention has ended."""
        found: list[Content | None] = []
        with self._reader.view() as view:
            for record, group in groupby(zip(records, messages, strict=True), _FIRST):
                indexes = [message - record for _, message in group]
                value = view.get(published.payload_key(record))
                entry = NO_ENTRY if value is None else self._entry(view, record)
                if value is None or not entry.count:
                    found += [None] * len(indexes)
                    continue
                payloads = PayloadRecord(value).payloads(indexes)
                if entry.same and None not in payloads and indexes[-1] < entry.count:
                    about = entry.first
                    found += [(kind, data, about) for kind, data in payloads]  # type: ignore[misc]
                    continue
                found += [
                    None if payload is None or (known := entry.at(index)) is None else (*payload, known)
                    for index, payload in zip(indexes, payloads, strict=True)
                ]
        return found

    def _entry(self, view: View, record: int) -> Entry:
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
            self._segments = [start for start, _ in metas], [number for _, number in metas]  # at once: threads share it
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
        starts, numbers = self._segments
        index = bisect_right(starts, record) - 1
        if index < 0:
            return None
        key = EntryKey(numbers[index], LOG_KEY, record - starts[index])
        return view.get(key.encode())


_FIRST: Final = itemgetter(0)
