"""`store verify`: every record of a store is checked against its checksum, and then against the others.

Nothing is changed, no process is asked, and a writer may be at work meanwhile: each journal, and all queues together,
are checked as they were at one moment, inside one view, so that what is found is wrong and not only in motion.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager

from detent.engine.verify import KNOWN as ENGINE_RECORDS
from detent.engine.verify import Counts, Finding, Progress, Tally, check_engine, record_at
from detent.journal.verify import KNOWN as JOURNAL_RECORDS
from detent.journal.verify import JournalSurvey, check_journals
from detent.kv import Reader, View
from detent.kv.base import FIRST_KEY
from detent.kv.stored import SUBSYSTEMS, OnDamage
from detent.ledger.verify import KNOWN as LEDGER_RECORDS
from detent.ledger.verify import check_ledgers
from detent.queue.verify import KNOWN as QUEUE_RECORDS
from detent.queue.verify import check_queues, has_queues
from detent.schedule.verify import KNOWN as SCHEDULE_RECORDS
from detent.schedule.verify import check_schedules
from detent.shard.verify import KNOWN as SHARD_RECORDS
from detent.shard.verify import check_shards


def verify(reader: Reader, *, progress: Progress | None = None) -> Generator[Finding, None, Counts]:
    """Check a whole store. Yields what is wrong; the generator's return value says how much was checked.

    >>> def problems():
    ...     counts = yield from verify(reader)
    """
    tally = Tally(progress)
    yield from _check_checksums(reader, tally)
    reader = _Lenient(reader)
    with reader.view() as view:
        yield from _check_unknown(view, tally)
        survey = JournalSurvey(view, tally)
        yield from survey.findings()
        yield from check_engine(view, tally)
        yield from check_ledgers(view, tally)
        yield from check_shards(view, tally)
        yield from check_schedules(view, tally)
        if has_queues(view):  # no record says how many bytes they are; all that is not a journal's is about right
            tally.total += max(0, reader.size_bytes() - survey.block_bytes)
    yield from check_journals(reader, survey.names, tally)
    yield from check_queues(reader, tally)
    tally.finish()
    return tally.counts


def _check_checksums(reader: Reader, tally: Tally) -> Iterator[Finding]:
    """Each record against its checksum, whatever it is; in short views, because each stands for itself."""
    tally.total = 2 * reader.size_bytes()  # what comes after this reads as much again
    damaged: dict[bytes, str] = {}
    at: bytes | None = FIRST_KEY
    done = 0
    while at is not None:
        told = len(damaged)
        with reader.view(on_damage=damaged.__setitem__) as view:
            at, size = _scanned(view, at, reader.view_bytes)
        for key, problem in [*damaged.items()][told:]:
            yield Finding(record_at(key), problem)
        tally.did(size)
        done += size
    tally.counts.damaged = len(damaged)
    tally.total = done


def _scanned(view: View, start: bytes, size_max: int) -> tuple[bytes | None, int]:
    """Read on from a key; where to go on, None at the end, and how many bytes it was."""
    size = 0
    for key, value in view.scan(start):
        size += len(key) + len(value)
        if size >= size_max:
            return key + b"\0", size
    return None, size


class _Lenient:
    """A store without its damaged records, which were found before: the others are compared with each other."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.objects = reader.objects
        self.view_bytes = reader.view_bytes

    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> AbstractContextManager[View]:
        """A view that passes damaged records over."""
        return self._reader.view(large=large, on_damage=on_damage or _pass_over)

    def size_bytes(self) -> int:
        """Roughly what the keys and values occupy."""
        return self._reader.size_bytes()

    def close(self) -> None:
        """The reader is closed by the one who opened it."""


def _pass_over(key: bytes, problem: str) -> None:
    """It was told of before."""


def _check_unknown(view: View, tally: Tally) -> Iterator[Finding]:
    """Whatever stands between the ranges that this release knows."""
    at = FIRST_KEY
    known = (*JOURNAL_RECORDS, *ENGINE_RECORDS, *QUEUE_RECORDS, *LEDGER_RECORDS, *SHARD_RECORDS, *SCHEDULE_RECORDS)
    for prefix in sorted(known, key=lambda prefix: prefix.raw):
        start, end = prefix.range()
        yield from _strays(view, tally, at, start)
        assert end is not None
        at = end
    yield from _strays(view, tally, at, None)


def _strays(view: View, tally: Tally, start: bytes, end: bytes | None) -> Iterator[Finding]:
    for key, value in view.scan(start, end):
        tally.saw(key, value)
        subsystem = SUBSYSTEMS.get(key[0], f"unknown subsystem {key[:1].hex()}")
        yield Finding(record_at(key), f"a record of no known version and type ({subsystem})")


__all__ = ["Counts", "Finding", "verify"]
