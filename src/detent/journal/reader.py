"""Reading journals from any process, straight from the store: no owner is asked.

A read of [start, end) yields exactly end - start messages or fails; it never skips what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from detent.codec import block
from detent.codec import journal as records
from detent.codec.journal import FormerEnd, Fragment, IndexRun, JournalHead, Listing, decode_former_ends
from detent.codec.keys import u32
from detent.engine.sessions import LINEAGE, Lineage
from detent.errors import Corrupt, Invalid, NotFound, Restored
from detent.journal import fragments
from detent.journal.housekeeping import blocks_from, runs_from
from detent.journal.operations import check_name
from detent.kv import Reader, View
from detent.settings.journal import ConfiguredJournal

PLAN_RUNS: Final = 1024
"""How far ahead a read looks in the index: one run, however long, when there are no transactions."""

SMALL_ROWS: Final = 256
MERGED_ROWS: Final = 8192
"""Runs shorter than the one are joined up to the other, so that interleaved transactions still give decent batches."""


class JournalInfo(ConfiguredJournal, frozen=True, kw_only=True):
    """A journal's settings and extent."""

    first_offset: int
    next_offset: int
    first_position: int
    next_position: int
    blocks: int
    block_bytes: int
    fragments: int
    fragment_bytes: int
    open_spans: int
    aborted_spans: int
    updated_ms: int
    registers: dict[str, str]
    clock_floor: int = 0
    """The highest clock of the producers that the journal has forgotten: see :mod:`detent.message.sequence`."""
    open_from: int = 0
    """No transaction is open that begins before this position."""
    former_ends: list[FormerEnd] = []  # noqa: RUF012 - never changed
    """Where it ended whenever its store was restored from a backup, the oldest first."""

    def goes_on(self, created_ms: int, at: int, *, raw: bool = False) -> bool:
        """Whether a place in the journal that was created then is a place in this one: it is the same, or the one that
        it was before a restore. 0: when that was is not known, so it may have been before all of them. `Restored` if
        the place is beyond what was restored. `raw` places are positions."""
        if created_ms == self.created_ms or (not created_ms and not self.former_ends):
            return True
        times = [end.created_ms for end in self.former_ends]
        if created_ms and created_ms not in times:
            return False
        self._require_within(self.former_ends[times.index(created_ms) if created_ms else 0 :], at, raw)
        return True

    def require_restored(self, restored_ms: int, at: int, *, raw: bool = False) -> None:
        """`Restored` unless a place that was read in the life of the store which began then, 0 for its first one, is a
        place in what was restored since."""
        until = [*(end.created_ms for end in self.former_ends[1:]), self.created_ms]
        later = [end for end, ended_ms in zip(self.former_ends, until, strict=True) if ended_ms > restored_ms]
        if later:
            self._require_within(later, at, raw)

    def _require_within(self, ends: list[FormerEnd], at: int, raw: bool) -> None:
        end = min(end.position if raw else end.offset for end in ends)
        if at > end:
            raise Restored(
                f"{self.name!r} was read to {at}, and ended at {end} when its store was restored from a backup: what "
                "was read beyond is gone, and other messages may stand there now. Restore what remembers this place to "
                f"a copy of that time, or reset it to {end} to read what is there"
            )

    @property
    def messages(self) -> int:
        """How many committed messages can be read."""
        return self.next_offset - self.first_offset

    def lag(self, offset: int) -> int:
        """How many committed messages a reader at `offset` has before it."""
        return self.next_offset - offset


class Whereabouts(NamedTuple):
    """Which journal has a name, and what of it is there. Another one that is made later has another `number`; one of a
    store that was made anew in the place of this one may have the same, and was created at another time."""

    number: int
    first_offset: int
    next_offset: int
    created_ms: int


def _watermark(view: View, journal: int) -> int:
    """The position below which no transaction is open: as it was when the index was written last."""
    found = next(iter(view.scan(*records.part_range(journal, records.INDEX), reverse=True, limit=1)), None)
    return 0 if found is None else records.decode_index(found[1]).watermark


class _Blocks:
    """The blocks of a journal, walked forward as long as positions follow each other, sought anew when they jump."""

    def __init__(self, view: View, journal: int) -> None:
        self._view = view
        self._journal = journal
        self._following: Iterator[tuple[int, bytes]] = iter(())
        self._base = 0
        self._batch: Any = None
        self.bytes = 0

    def rows(self, position: int, count: int) -> Any:
        """Up to `count` rows from a position on, as many as their block has."""
        if not self._holds(position):
            self._read(next(self._following, None))
        if not self._holds(position):
            self._following = blocks_from(self._view, self._journal, position)
            self._read(next(self._following, None))
        if not self._holds(position):
            raise Corrupt(f"no block holds position {position}")
        skip = position - self._base
        if not skip and count >= self._batch.num_rows:
            return self._batch
        return self._batch.slice(skip, count)

    def _holds(self, position: int) -> bool:
        return self._batch is not None and self._base <= position < self._base + self._batch.num_rows

    def _read(self, found: tuple[int, bytes] | None) -> None:
        self._batch = None
        if found is not None:
            self._base, self._batch = found[0], block.decode_block(found[1], is_checked=True)
            self.bytes += len(found[1])


class JournalExtent(NamedTuple):
    """How far a journal reaches, how large it is, and when it last changed."""

    name: str
    first_offset: int
    next_offset: int
    bytes: int
    updated_ms: int


class JournalReader:
    """Reads the journals of one store."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def names(self, prefix: str = "") -> list[str]:
        """The journals whose names start with `prefix`, sorted."""
        with self._reader.view() as view:
            return [key[3:].decode() for key, _ in view.scan(*records.LISTING.range(prefix.encode()))]

    def info(self, name: str) -> JournalInfo:
        """A journal's settings and extent."""
        with self._reader.view() as view:
            listing = self._listing(view, name)
            head = self._head(view, listing.journal)
            start, end = records.part_range(listing.journal, records.REGISTER)
            registers = {key[len(start) :].decode(): value.decode() for key, value in view.scan(start, end)}
            spans = sum(1 for _ in view.scan(*records.OPEN_SPAN.range(u32(listing.journal))))
            fields = {**listing._asdict(), **head._asdict()}
            for internal in ("journal", "born_ms", "dropped_bytes", "pending_bytes", "reclaim_to", "newest_clock"):
                del fields[internal]
            return JournalInfo(
                name=name,
                id=listing.journal,
                open_spans=spans,
                open_from=_watermark(view, listing.journal) if spans else head.next_position,
                registers=registers,
                former_ends=decode_former_ends(view.get(records.FORMER_ENDS.key(u32(listing.journal)))),
                **fields,
            )

    def restored_ms(self) -> int:
        """When the store was restored from a backup; 0 if it never was."""
        with self._reader.view() as view:
            return Lineage.decode(view.get(LINEAGE.raw)).restored_ms

    def number(self, name: str) -> int | None:
        """The journal's number, which a journal of the same name that is made later does not have; None if there is
        none."""
        with self._reader.view() as view:
            try:
                return self._listing(view, name).journal
            except NotFound:
                return None

    def extent(self, name: str) -> tuple[int, int]:
        """The first and the next committed offset."""
        with self._reader.view() as view:
            head = self._head(view, self._listing(view, name).journal)
            return head.first_offset, head.next_offset

    def whereabouts(self, name: str) -> Whereabouts | None:
        """Which journal it is, its first and its next committed offset, at one moment; None if there is none."""
        with self._reader.view() as view:
            return self._whereabouts(view, name)

    def _whereabouts(self, view: View, name: str) -> Whereabouts | None:
        try:
            listing = self._listing(view, name)
        except NotFound:
            return None
        head = self._head(view, listing.journal)
        return Whereabouts(listing.journal, head.first_offset, head.next_offset, listing.created_ms)

    def extents(self, prefix: str = "") -> dict[str, tuple[int, int]]:
        """The first and the next committed offset of each journal whose name starts with `prefix`, at one moment."""
        with self._reader.view() as view:
            listed = {
                key[3:].decode(): Listing.decode(stored).journal
                for key, stored in view.scan(*records.LISTING.range(prefix.encode()))
            }
            heads = ((name, self._head(view, journal)) for name, journal in listed.items())
            return {name: (head.first_offset, head.next_offset) for name, head in heads}

    def extents_listed(self, limit: int) -> list[JournalExtent]:
        """The first journals by name, as they are at one moment. What a journal holds does not count for the cost."""
        with self._reader.view() as view:
            found = []
            for key, stored in view.scan(*records.LISTING.range(b""), limit=limit):
                head = self._head(view, Listing.decode(stored).journal)
                size = head.block_bytes + head.fragment_bytes
                name = key[3:].decode()
                found.append(JournalExtent(name, head.first_offset, head.next_offset, size, head.updated_ms))
            return found

    def next_offset(self, name: str) -> int:
        """The offset that the next committed message will get; 0 for a journal that does not exist yet."""
        try:
            return self.extent(name)[1]
        except NotFound:
            return 0

    @staticmethod
    def _listing(view: View, name: str) -> Listing:
        check_name(name)
        stored = view.get(records.LISTING.key(name.encode()))
        if stored is None:
            raise NotFound(f"there is no journal {name!r}")
        return Listing.decode(stored)

    @staticmethod
    def _head(view: View, journal: int) -> JournalHead:
        stored = view.get(records.part(journal, records.HEAD))
        if stored is None:
            raise Corrupt(f"journal number {journal} has no head record")
        return JournalHead.decode(stored)

    # -- committed ----------------------------------------------------------------------------------------------

    def committed(self, name: str, start: int, end: int, *, journal: int | None = None) -> Iterator[tuple[int, Any]]:
        """The committed messages of [start, end) as (first offset, record batch); `NotFound` if the journal does not
        have the number that is given."""
        check_range(start, end)
        at = start
        while at < end:
            with self._reader.view() as view:
                listing = self._listing(view, name)
                journal = listing.journal if journal is None else journal
                if listing.journal != journal:
                    raise NotFound(f"the journal {name!r} was deleted and created anew during the read")
                plan = self._plan(view, journal, at, end)
            at += sum(run.rows for run in plan)
            yield from self._follow(journal, at, plan)

    def ahead(
        self, name: str, start: int, rows: int, *, journal: int | None = None
    ) -> tuple[Whereabouts | None, Iterator[tuple[int, Any]]]:
        """Where a journal is, as `whereabouts` tells, and up to so many of its messages from `start` on, as `committed`
        gives them. Both are found in one look, which for a few messages is what a read costs. There are no messages if
        `start` is not in the journal, or if it does not have the number that is given."""
        with self._reader.view() as view:
            found = self._whereabouts(view, name)
            end = ahead_to(found, start, rows, journal)
            if found is None or end is None:
                return found, iter(())
            plan = self._runs(view, found[0], start, end)
            planned = start + sum(run.rows for run in plan)
            pieces = [] if plan[0].fragment else self._read_blocks(view, found[0], plan, start)
        return found, self._go_on(name, found[0], pieces, plan, planned, end)

    def _go_on(
        self, name: str, journal: int, pieces: list[tuple[int, Any]], plan: deque[IndexRun], planned: int, end: int
    ) -> Iterator[tuple[int, Any]]:
        """What was read, then the rest of the plan, then what is behind it."""
        yield from _merge(pieces)
        yield from self._follow(journal, planned, plan)
        yield from self.committed(name, planned, end, journal=journal)

    def _plan(self, view: View, journal: int, start: int, end: int) -> deque[IndexRun]:
        """The next runs of the index. They stay true after the view has ended: what is committed does not change."""
        self._require_range(view, journal, start, end)
        return self._runs(view, journal, start, end)

    def _runs(self, view: View, journal: int, start: int, end: int) -> deque[IndexRun]:
        plan: deque[IndexRun] = deque()
        at = start
        for offset, run in runs_from(view, journal, start):
            if offset != at:
                raise Corrupt(f"the committed index has a hole at offset {at}")
            plan.append(IndexRun(run.base, min(run.rows, end - at), run.fragment))
            at += plan[-1].rows
            if at >= end or len(plan) >= PLAN_RUNS:
                return plan
        raise Corrupt(f"the committed index ends at offset {at}, before {end}")

    def _require_range(self, view: View, journal: int, start: int, end: int) -> None:
        head = self._head(view, journal)
        if start < head.first_offset:
            raise NotFound(f"offset {start} is gone: the journal now begins at {head.first_offset}")
        if end > head.next_offset:
            raise NotFound(f"offset {end - 1} does not exist yet: the next one is {head.next_offset}")

    def _follow(self, journal: int, end: int, plan: deque[IndexRun]) -> Iterator[tuple[int, Any]]:
        """Read what a plan names, up to offset `end`, in short views."""
        at = end - sum(run.rows for run in plan)
        while plan:
            if plan[0].fragment:
                yield from self._read_fragment(at, plan[0])
                at += plan.popleft().rows
                continue
            with self._reader.view(large=True) as view:
                try:
                    pieces = self._read_blocks(view, journal, plan, at)
                except Corrupt:
                    self._require_range(view, journal, at, end)  # trimmed meanwhile is not corrupt
                    raise
            at = pieces[-1][0] + pieces[-1][1].num_rows
            yield from _merge(pieces)

    def _read_blocks(self, view: View, journal: int, plan: deque[IndexRun], at: int) -> list[tuple[int, Any]]:
        """Take from the front of the plan as much as one view should read."""
        pieces: list[tuple[int, Any]] = []
        blocks, limit = _Blocks(view, journal), self._reader.view_bytes
        while plan and not plan[0].fragment and blocks.bytes < limit:
            base, left, _ = plan[0]
            while left and blocks.bytes < limit:
                rows = blocks.rows(base, left)
                count = rows.num_rows
                pieces.append((at, rows))
                at, base, left = at + count, base + count, left - count
            plan.popleft()
            if left:
                plan.appendleft(IndexRun(base, left))
        return pieces

    def _read_fragment(self, offset: int, run: IndexRun) -> Iterator[tuple[int, Any]]:
        with self._reader.view() as view:
            stored = view.get(records.FRAGMENT.key(run.fragment))
        record = None if stored is None else Fragment.decode(stored)
        if record is None or not record.journal:
            raise NotFound(f"offset {offset} is gone: fragment {run.fragment.hex()} was trimmed during the read")
        for batch in fragments.read_rows(self._reader.objects, run.fragment, record, run.base, run.rows):
            yield offset, batch
            offset += batch.num_rows

    # -- uncommitted --------------------------------------------------------------------------------------------

    def uncommitted(
        self, name: str, start: int, end: int | None = None, *, journal: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """All stored rows of [start, end) as (first position, record batch): duplicates, pending and ACKs too."""
        at = start
        while True:
            with self._reader.view(large=True) as view:
                listing = self._listing(view, name)
                journal = listing.journal if journal is None else journal
                head = self._head(view, listing.journal)
                end = head.next_position if end is None else end
                check_range(at, end)
                if listing.journal != journal or (at < head.first_position and at < end):
                    raise NotFound(f"position {at} of {name!r} is gone: it now begins at {head.first_position}")
                if end > head.next_position:
                    raise NotFound(f"position {end - 1} does not exist yet: the next one is {head.next_position}")
                if at >= end:
                    return
                found = self._raw_blocks(view, journal, at, end)
            for base, value in found:
                batch = block.decode_block(value, is_checked=True)
                if not base <= at < base + batch.num_rows:
                    raise Corrupt(f"no block holds position {at}")
                batch = batch.slice(at - base, end - at)
                yield at, batch
                at += batch.num_rows
            if at >= end:
                return
            if not found:
                raise Corrupt(f"no block holds position {at}")

    def _raw_blocks(self, view: View, journal: int, start: int, end: int) -> list[tuple[int, bytes]]:
        found, size = [], 0
        for base, value in blocks_from(view, journal, start):
            if base >= end or size >= self._reader.view_bytes:
                break
            found.append((base, value))
            size += len(value)
        return found

    # -- time ---------------------------------------------------------------------------------------------------

    def time_at(self, name: str, offset: int) -> int:
        """When the message at a committed offset was published, in milliseconds."""
        (_, batch), *_ = self.committed(name, offset, offset + 1)
        published: int = batch.column(3).view("int64")[0].as_py()
        return published

    def offset_at(self, name: str, time_ms: int) -> int:
        """The first committed offset published at or after a time; the next offset when there is none."""
        low, high = self.extent(name)
        while low < high:
            middle = (low + high) // 2
            if self.time_at(name, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low


def check_range(start: int, end: int) -> None:
    """Refuse what is no range of offsets or positions."""
    if start < 0 or end < start:
        raise Invalid(f"[{start}, {end}) is no range")


def ahead_to(found: Whereabouts | None, start: int, rows: int, journal: int | None) -> int | None:
    """Up to where a read of so many messages from `start` on goes; None if there is nothing to be read."""
    if found is None or journal not in {None, found[0]} or not found[1] <= start < found[2]:
        return None
    return min(found[2], start + rows)


def _merge(pieces: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Join neighbouring small pieces."""
    small: list[tuple[int, Any]] = []
    rows = 0
    for piece in pieces:
        if piece[1].num_rows < SMALL_ROWS and rows < MERGED_ROWS:
            small.append(piece)
            rows += piece[1].num_rows
            continue
        if small:
            yield _joined(small)
            small, rows = [], 0
        yield piece
    if small:
        yield _joined(small)


def _joined(pieces: list[tuple[int, Any]]) -> tuple[int, Any]:
    return pieces[0] if len(pieces) == 1 else (pieces[0][0], pa.concat_batches([piece for _, piece in pieces]))
