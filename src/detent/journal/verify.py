"""The journals' part of `store verify`: the records that belong to all of them, each journal, the fragments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from detent.codec import journal as records
from detent.codec.journal import FRAGMENT_ID_BYTES, Fragment, JournalHead, Listing
from detent.codec.keys import u32
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, Invalid, NotFound
from detent.journal import fragments
from detent.journal.operations import check_name
from detent.journal.verify_journal import JournalCheck, check_batch
from detent.kv import Reader, View

FRAGMENTS_PER_VIEW: Final = 256
"""Fragments are read between views, because reading one takes long: so many records are taken at a time."""

PREFIX_BYTES: Final = 3
ID_BYTES: Final = 4
KNOWN: Final = (
    records.LISTING,
    records.NEXT_ID,
    records.FRAGMENT,
    records.HORIZON,
    records.DELETED,
    records.OPEN_SPAN,
    records.FORMER_ENDS,
    records.PART,
)
"""All that this release writes of journals."""


def check_journals(reader: Reader, names: Iterable[str], tally: Tally) -> Iterator[Finding]:
    """Check these journals, each as it is at one moment, and then all fragments."""
    for name in names:
        with reader.view() as view:
            stored = view.get(records.LISTING.key(name.encode()))
            if stored is None:
                continue  # deleted since the names were read
            tally.counts.journals += 1
            yield from JournalCheck(view, name, Listing.decode(stored), tally).findings()
    yield from _check_fragments(reader, tally)


class JournalSurvey:
    """The records that belong to the store as a whole, and whether the journals' records belong to any journal."""

    def __init__(self, view: View, tally: Tally) -> None:
        self._view = view
        self._tally = tally
        self._ids: dict[int, str] = {}
        self._deleted: set[int] = set()
        self.names: list[str] = []
        self.block_bytes = 0

    def findings(self) -> Iterator[Finding]:
        """Look at all of them; afterwards `names` and `block_bytes` are known."""
        yield from self._listings()
        yield from self._deletions()
        yield from self._numbers()
        yield from self._open_spans()
        yield from self._former_ends()
        yield from self._parts()

    def _listings(self) -> Iterator[Finding]:
        for key, value in self._view.scan(*records.LISTING.range()):
            self._tally.saw(key, value)
            try:
                name = key[PREFIX_BYTES:].decode()
                check_name(name)
                listing = Listing.decode(value)
            except (UnicodeDecodeError, Invalid, Corrupt) as error:
                yield Finding(record_at(key), f"a malformed journal listing: {error}")
                continue
            if listing.journal in self._ids:
                other = self._ids[listing.journal]
                yield Finding(record_at(key, name), f"number {listing.journal} is also the number of {other!r}")
                continue
            self._ids[listing.journal] = name
            self.names.append(name)
            self._tally.total += self._expected_bytes(listing.journal)

    def _expected_bytes(self, journal: int) -> int:
        stored = self._view.get(records.part(journal, records.HEAD))
        try:
            head = None if stored is None else JournalHead.decode(stored)
        except Corrupt:
            return 0  # found where the journal is checked
        if head is None:
            return 0
        self.block_bytes += head.block_bytes
        return head.block_bytes + head.fragment_bytes

    def _deletions(self) -> Iterator[Finding]:
        for key, value in self._view.scan(*records.DELETED.range()):
            self._tally.saw(key, value)
            journal = int.from_bytes(key[PREFIX_BYTES:], "big")
            try:
                check_name(value.decode())
            except (UnicodeDecodeError, Invalid) as error:
                yield Finding(record_at(key), f"a malformed note of a deleted journal: {error}")
            if len(key) != PREFIX_BYTES + ID_BYTES:
                yield Finding(record_at(key), f"a key of {len(key)} bytes is malformed")
                continue
            self._deleted.add(journal)
            if journal in self._ids:
                yield Finding(record_at(key, self._ids[journal]), "the journal is listed, and noted as deleted")

    def _numbers(self) -> Iterator[Finding]:
        numbers: dict[bytes, int] = {}
        for prefix, what in ((records.NEXT_ID, "next journal number"), (records.HORIZON, "adoption horizon")):
            for key, value in self._view.scan(*prefix.range()):
                self._tally.saw(key, value)
                try:
                    prefix.reader(key, what).finish()
                    numbers[prefix.raw] = records.decode_number(value, what)
                except Corrupt as error:
                    yield Finding(record_at(key), str(error))
        highest = max([*self._ids, *self._deleted], default=0)
        next_id = numbers.get(records.NEXT_ID.raw, 1)
        if next_id <= highest:
            problem = f"the next journal would get number {next_id}, and {highest} is taken: it would share its records"
            yield Finding(record_at(records.NEXT_ID.raw), problem)
        if 0 in self._ids:
            yield Finding(record_at(records.LISTING.key(self._ids[0].encode())), "a journal has number 0")

    def _open_spans(self) -> Iterator[Finding]:
        for key, value in self._view.scan(*records.OPEN_SPAN.range()):
            self._tally.saw(key, value)
            journal = int.from_bytes(key[PREFIX_BYTES : PREFIX_BYTES + ID_BYTES], "big")
            try:
                records.OpenSpan.decode(value)
            except Corrupt as error:
                yield Finding(record_at(key, self._ids.get(journal)), str(error))
            if len(key) != PREFIX_BYTES + ID_BYTES + 6:
                yield Finding(record_at(key), f"a key of {len(key)} bytes is malformed")
            elif journal not in self._ids:
                yield Finding(record_at(key), f"an open transaction of journal number {journal}, which does not exist")

    def _former_ends(self) -> Iterator[Finding]:
        for key, value in self._view.scan(*records.FORMER_ENDS.range()):
            self._tally.saw(key, value)
            journal = int.from_bytes(key[PREFIX_BYTES:], "big")
            try:
                records.decode_former_ends(value)
            except Corrupt as error:
                yield Finding(record_at(key, self._ids.get(journal)), str(error))
            if len(key) != PREFIX_BYTES + ID_BYTES:
                yield Finding(record_at(key), f"a key of {len(key)} bytes is malformed")
            elif journal not in self._ids and journal not in self._deleted:
                yield Finding(record_at(key), f"the former ends of journal number {journal}, which does not exist")

    def _parts(self) -> Iterator[Finding]:
        """Walk over the journals' records, from number to number."""
        at, end = records.PART.range()
        assert end is not None
        while at < end:
            found = next(iter(self._view.scan(at, end, limit=1)), None)
            if found is None:
                return
            key = found[0]
            if len(key) <= PREFIX_BYTES + ID_BYTES:
                self._tally.saw(*found)
                yield Finding(record_at(key), f"a key of {len(key)} bytes is malformed")
                at = key + b"\x00"
                continue
            journal = int.from_bytes(key[PREFIX_BYTES : PREFIX_BYTES + ID_BYTES], "big")
            at = records.PART.key(u32(journal + 1)) if journal < 0xFFFF_FFFF else end
            if journal in self._deleted:
                yield from self._reaping(journal, at)
            elif journal not in self._ids:
                yield Finding(record_at(key), f"records of journal number {journal}, which does not exist")

    def _reaping(self, journal: int, end: bytes) -> Iterator[Finding]:
        """A deleted journal's records go step by step; what its index names must be readable until then."""
        index_start, index_end = records.part_range(journal, records.INDEX)
        for key, value in self._view.scan(records.PART.key(u32(journal)), end):
            self._tally.saw(key, value)
            if index_start <= key < index_end:
                try:
                    records.decode_index(value)
                except Corrupt as error:
                    yield Finding(record_at(key), f"a deleted journal cannot be cleared away: {error}")


# -- fragments ------------------------------------------------------------------------------------------------------


def _check_fragments(reader: Reader, tally: Tally) -> Iterator[Finding]:
    """Records that decode and that the index names; objects that are what the records say."""
    at, end = records.FRAGMENT.range()
    while True:
        page: list[tuple[bytes, Fragment]] = []
        with reader.view() as view:
            found = list(view.scan(at, end, limit=FRAGMENTS_PER_VIEW))
            for key, value in found:
                tally.saw(key, value)
                at = key + b"\x00"
                try:
                    records.FRAGMENT.reader(key, "fragment key").take(FRAGMENT_ID_BYTES)
                    if len(key) != PREFIX_BYTES + FRAGMENT_ID_BYTES:
                        raise Corrupt(f"a key of {len(key)} bytes is malformed")
                    record = Fragment.decode(value)
                except Corrupt as error:
                    yield Finding(record_at(key), str(error))
                    continue
                if not record.journal:
                    continue  # its messages are gone, and perhaps its object
                page.append((key, record))
                if not _is_indexed(view, key[PREFIX_BYTES:], record):
                    yield Finding(record_at(key), f"the index of journal number {record.journal} does not name it")
        for key, record in page:
            yield from _check_object(reader, key, record, tally)
        if len(found) < FRAGMENTS_PER_VIEW:
            return


def _is_indexed(view: View, fragment: bytes, record: Fragment) -> bool:
    start, _ = records.part_range(record.journal, records.INDEX)
    end = records.index_key(record.journal, record.first_offset) + b"\x00"
    stored = next(iter(view.scan(start, end, reverse=True, limit=1)), None)
    if stored is None:
        return False
    try:
        index = records.decode_index(stored[1])
    except Corrupt:
        return True  # the index record itself is found where the journal is checked
    return any(run.fragment == fragment for run in index.runs)


def _check_object(reader: Reader, key: bytes, record: Fragment, tally: Tally) -> Iterator[Finding]:
    fragment = key[PREFIX_BYTES:]
    tally.counts.fragments += 1
    tally.counts.bytes += record.size
    try:
        opened = fragments.open_fragment(reader.objects, fragment, record.size, record.checksum, again=True)
        rows = 0
        for _, batch in opened.batches():
            check_batch(batch)
            rows += batch.num_rows
        if rows != record.rows:
            raise Corrupt(f"it holds {rows} rows where its record says {record.rows}")
    except (Corrupt, NotFound, OSError) as error:
        with reader.view() as view:
            gone = view.get(key) is None
        if not gone:  # a fragment that was trimmed away meanwhile may be swept too
            yield Finding(record_at(key), f"fragment {fragment.hex()}: {error}")
    tally.did(record.size)
