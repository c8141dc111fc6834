"""The tables about journals, their producers, and the ledgers of streams that write to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Final

from detent.codec import journal as records
from detent.codec.journal import ProducerRecord
from detent.errors import Invalid, NotFound
from detent.journal import JournalInfo
from detent.kv import Reader, open_reader
from detent.ledger import operations as ledger_ops
from detent.message import NO_SPAN
from detent.message.clock import as_unix_ns
from detent.remote import server_address
from detent.settings.journal import JOURNAL
from detent.spark.table_columns import (
    BYTES,
    CLOCK,
    NUMBER,
    NUMBER_BY_NAME,
    TEXT,
    TEXT_BY_NAME,
    TEXTS,
    TIME,
    TRUTH,
    Columns,
    Row,
    columns_of,
    settings_row,
)
from detent.store import Store

PRODUCERS_PAGE: Final = 1_000
"""Producers read in one view: a view that is kept open keeps replaced pages of the store alive."""

JOURNALS: Final[Columns] = {
    "journal": TEXT,
    "created_at": TIME,
    "updated_at": TIME,
    "messages": NUMBER,
    "first_offset": NUMBER,
    "next_offset": NUMBER,
    "first_position": NUMBER,
    "next_position": NUMBER,
    "blocks": NUMBER,
    "block_bytes": NUMBER,
    "fragments": NUMBER,
    "fragment_bytes": NUMBER,
    "open_spans": NUMBER,
    "aborted_spans": NUMBER,
    **columns_of(JOURNAL),
    "registers": TEXT_BY_NAME,
}

PRODUCERS: Final[Columns] = {
    "journal": TEXT,
    "producer": BYTES,
    "last_ack": CLOCK,
    "last_ack_at": TIME,
    "max_clock": CLOCK,
    "max_clock_at": TIME,
    "touched_at": TIME,
    "span_begin": NUMBER,
    "span_opened_at": TIME,
    "pending_bytes": NUMBER,
    "aborted": TRUTH,
}

LEDGERS: Final[Columns] = {
    "ledger": TEXT,
    "query": TEXT,
    "batch": NUMBER,
    "run": TEXT,
    "replaced": TEXTS,
    "entries": NUMBER,
    "generation": NUMBER,
    "created_at": TIME,
    "updated_at": TIME,
}

PINS: Final[Columns] = {
    "pin": TEXT,
    "offsets": NUMBER_BY_NAME,
    "created_at": TIME,
}


def journal_names(store: Store) -> list[str]:
    """The names of all journals."""
    return store.journals()


def check_journal(store: Store, name: str) -> None:
    """`NotFound` unless there is a journal of this name."""
    if store.reader.number(name) is None:
        raise NotFound(
            f"there is no journal {name!r} (option journal); `detent journal ls` lists those of the store, and without "
            "the option the table is about all of them"
        )


def journals(store: Store, name: str) -> Iterator[Row]:
    """One journal, or all of them."""
    for one in [name] if name else store.journals():
        try:
            yield _journal(store.reader.info(one))
        except NotFound:
            continue  # deleted since it was listed


def _journal(info: JournalInfo) -> Row:
    return (
        info.name,
        info.created_ms,
        info.updated_ms or None,
        info.messages,
        info.first_offset,
        info.next_offset,
        info.first_position,
        info.next_position,
        info.blocks,
        info.block_bytes,
        info.fragments,
        info.fragment_bytes,
        info.open_spans,
        info.aborted_spans,
        *settings_row(JOURNAL, JOURNAL.shown(info)),
        info.registers,
    )


# -- producers --------------------------------------------------------------------------------------------------


def check_files(url: str) -> None:
    """`Invalid` where a store's records cannot be read directly."""
    if server_address(url) is not None:
        raise Invalid(
            "the table producers is read from the store's own records, which a server does not show: load it with the "
            "store's file: or s3: URL, where the store is"
        )


def producers(store: Store, name: str) -> Iterator[Row]:
    """What a journal remembers of its producers."""
    journal = store.reader.number(name)
    if journal is None:
        return  # deleted since it was listed
    start, end = records.part_range(journal, records.PRODUCER)
    head = len(start)
    with closing(open_reader(store.url)) as reader:
        while True:
            page = _page(reader, start, end)
            for key, value in page:
                yield (name, *_producer(key[head:], ProducerRecord.decode(value)))
            if len(page) < PRODUCERS_PAGE:
                return
            start = page[-1][0] + b"\0"


def _page(reader: Reader, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    with reader.view() as view:
        return list(islice(view.scan(start, end), PRODUCERS_PAGE))


def _producer(producer: bytes, known: ProducerRecord) -> Row:
    is_open = known.begin != NO_SPAN
    return (
        producer,
        known.last_ack,
        _time_ms(known.last_ack),
        known.max_clock,
        _time_ms(known.max_clock),
        known.touched_ms,
        known.begin if is_open else None,
        known.opened_ms if is_open else None,
        known.pending_bytes,
        known.aborted,
    )


def _time_ms(clock: int) -> int | None:
    """The time of a clock value; a producer that has published nothing yet has none."""
    return as_unix_ns(clock) // 1_000_000 if clock else None


# -- ledgers ----------------------------------------------------------------------------------------------------


def ledgers(store: Store, name: str) -> Iterator[Row]:
    """All ledgers, by name."""
    del name
    after, more = "", True
    while more:
        page: ledger_ops.LedgerDescriptions = store.commit([ledger_ops.DescribeLedgers(after=after)])[0]
        for row in page.ledgers:
            about = (row.query, row.batch, row.run, row.replaced, row.entries, row.generation)
            yield (row.name, *about, row.created_ms, row.updated_ms)
            after = row.name
        more = page.more


def pins(store: Store, name: str) -> Iterator[Row]:
    """All pins, by name."""
    del name
    after, more = "", True
    while more:
        page: ledger_ops.PinDescriptions = store.commit([ledger_ops.DescribePins(after=after)])[0]
        for pin in page.pins:
            yield pin.name, pin.offsets, pin.created_ms
            after = pin.name
        more = page.more
