"""Checking a store's records: what a finding is, what is counted, and the engine's own records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from detent.codec.keys import Prefix
from detent.engine.operation import MALFORMED
from detent.engine.ownertime import TIME, RecordedTime
from detent.engine.sessions import (
    ANSWERS,
    EXPIRED,
    LINEAGE,
    PROVED_SINCE,
    SECRET,
    Lineage,
    decode_answers,
    decode_expired,
    decode_secret,
    decode_since,
)
from detent.errors import Corrupt
from detent.kv import View

Progress = Callable[[int, int], None]
"""Called with how many bytes are checked, and about how many there are."""

ANSWERS_COMPARED_MAX: Final = 1_000_000
"""Answers remembered to find one that is stored twice: about 150 MB. A healthy store keeps far fewer."""


TOLD_EVERY_BYTES: Final = 256 << 10

KNOWN: Final = (ANSWERS, EXPIRED, SECRET, PROVED_SINCE, TIME, LINEAGE)
"""All that this release writes of the engine's own."""


class Finding(NamedTuple):
    """Something that is wrong with a store: in which journal or queue and record, and what."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def record_at(key: bytes, journal: str | None = None, *, queue: str | None = None) -> str:
    """How a finding names a record: by its journal or queue, if it has one, and its key."""
    record = f"record {key.hex()}"
    if queue is not None:
        return f"queue {queue!r}, {record}"
    return record if journal is None else f"journal {journal!r}, {record}"


@dataclass
class Counts:
    """What was checked."""

    journals: int = 0
    records: int = 0
    blocks: int = 0
    rows: int = 0
    """Stored rows: committed messages, and also pending ones, duplicates and acknowledgements."""
    messages: int = 0
    """Committed messages, those of fragments too."""
    fragments: int = 0
    queues: int = 0
    queued: int = 0
    """Messages that are available, in flight or failed, once for each queue that has them."""
    body_bytes: int = 0
    ledgers: int = 0
    pins: int = 0
    consumers: int = 0
    shards: int = 0
    states: int = 0
    """Entries of the state that shards keep in the store."""
    schedules: int = 0
    bytes: int = 0
    """Keys, values and fragments."""
    damaged: int = 0
    """Records that do not match their checksum."""


class Tally:
    """Counts what is looked at, and tells its listener how far it has come."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.counts = Counts()
        self.total = 0
        self._done = 0
        self._read = 0
        self._progress = progress

    def saw(self, key: bytes, value: bytes) -> None:
        """One more record."""
        self.counts.records += 1
        self.counts.bytes += len(key) + len(value)

    def did(self, size: int) -> None:
        """So many more bytes of messages are checked."""
        self._done += size
        if self._progress is not None:
            # A journal that grows meanwhile is read to its new end, which the total does not know.
            self._progress(min(self._done, self.total), self.total)

    def scan(self, view: View, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Records of a range that is read once: they are counted, and told of every now and then."""
        for key, value in view.scan(start, end):
            self.saw(key, value)
            yield key, value
            self._read += len(key) + len(value)
            if self._read >= TOLD_EVERY_BYTES:
                self.did(self._read)
                self._read = 0

    def finish(self) -> None:
        """All is done."""
        if self._progress is not None:
            self._progress(self.total, self.total)


def check_engine(view: View, tally: Tally) -> Iterator[Finding]:
    """Stored answers decode, none is there twice, and the records beside them are whole."""
    seen: set[tuple[bytes, int]] = set()
    for key, value in view.scan(*ANSWERS.range()):
        tally.saw(key, value)
        try:
            reader = ANSWERS.reader(key, "answers key")
            reader.u64()
            reader.finish()
            entries = decode_answers(value)
        except Corrupt as error:
            yield Finding(record_at(key), str(error))
            continue
        for session, floor, sequence, answer, _ in entries:
            name = f"sequence {sequence} of session {session.hex()}"
            if floor > sequence:
                yield Finding(record_at(key), f"{name} is below its own floor {floor}")
            if not answer:  # undone, and perhaps applied anew
                seen.discard((session, sequence))
                continue
            if (session, sequence) in seen:
                yield Finding(record_at(key), f"{name} is answered twice: it may have been applied twice")
            elif len(seen) < ANSWERS_COMPARED_MAX:
                seen.add((session, sequence))
            if not _is_answer(answer):
                yield Finding(record_at(key), f"the answer of {name} does not decode")
    for prefix, what, decode in _SINGLE:
        for key, value in view.scan(*prefix.range()):
            tally.saw(key, value)
            try:
                prefix.reader(key, what).finish()
                decode(value)
            except Corrupt as error:
                yield Finding(record_at(key), str(error))


_SINGLE: Final[tuple[tuple[Prefix, str, Callable[[bytes], object]], ...]] = (
    (EXPIRED, "expired sessions", decode_expired),
    (SECRET, "the secret of sessions", decode_secret),
    (PROVED_SINCE, "since when producers are proved", decode_since),
    (TIME, "the store's time", RecordedTime.decode),
    (LINEAGE, "the store's lineage", Lineage.decode),
)
"""Kinds of which a store has one record at most."""


def _is_answer(answer: bytes) -> bool:
    """Whether these bytes are a list of results; which ones, only the layers above could say."""
    try:
        results = msgspec.msgpack.decode(answer, type=list[list[object]])
    except MALFORMED:
        return False
    return bool(results)
