"""`store verify`: every record of a store is looked at, and checked against the others.

Nothing is changed, nobody is asked, and a writer may be at work meanwhile: each journal, and all queues together, are
checked as they were at one moment, inside one view, so that what is found is wrong and not only in motion.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from detent.engine.verify import KNOWN as ENGINE_RECORDS
from detent.engine.verify import Counts, Finding, Progress, Tally, check_engine, record_at
from detent.journal.verify import KNOWN as JOURNAL_RECORDS
from detent.journal.verify import JournalSurvey, check_journals
from detent.kv import Reader, View
from detent.kv.base import FIRST_KEY
from detent.kv.stored import SUBSYSTEMS
from detent.ledger.verify import KNOWN as LEDGER_RECORDS
from detent.ledger.verify import check_ledgers
from detent.queue.verify import KNOWN as QUEUE_RECORDS
from detent.queue.verify import check_queues, has_queues
from detent.shard.verify import KNOWN as SHARD_RECORDS
from detent.shard.verify import check_shards


def verify(reader: Reader, *, progress: Progress | None = None) -> Generator[Finding, None, Counts]:
    """Check a whole store. Yields what is wrong; the generator's return value says how much was checked.

    >>> def problems():
    ...     counts = yield from verify(reader)
    """
    tally = Tally(progress)
    with reader.view() as view:
        yield from _check_unknown(view, tally)
        survey = JournalSurvey(view, tally)
        yield from survey.findings()
        yield from check_engine(view, tally)
        yield from check_ledgers(view, tally)
        yield from check_shards(view, tally)
        if has_queues(view):  # no record says how many bytes they are; all that is not a journal's is about right
            tally.total += max(0, reader.size_bytes() - survey.block_bytes)
    yield from check_journals(reader, survey.names, tally)
    yield from check_queues(reader, tally)
    tally.finish()
    return tally.counts


def _check_unknown(view: View, tally: Tally) -> Iterator[Finding]:
    """Whatever stands between the ranges that this release knows."""
    at = FIRST_KEY
    known = (*JOURNAL_RECORDS, *ENGINE_RECORDS, *QUEUE_RECORDS, *LEDGER_RECORDS, *SHARD_RECORDS)
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
