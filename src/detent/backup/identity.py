"""A restored store begins a new life: what clients of the old one hold says nothing here.

The records are those of one commit of the old store, which may have gone on for hours since, or still be at work in the
hands of a process that was stopped. So nothing that is given out from now on may be what the old store has given out
after that commit, and nothing that was given out then may be taken:

* sessions: the lineage changes, and with it the proof in their names, so old ones are refused with `Restored`;
* receipts, and generations of queue readers: delivery numbers go on far above;
* messages, queues, journals, shards: so do their numbers;
* consumers, processors and bridges: the fence of each shard rises, and no process holds one;
* drivers of Spark streams: the run of each ledger is replaced, and its next batch has to be the next one;
* journals: each notes where it ended, and is another one for readers that have read further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from detent.codec import journal as journals
from detent.codec import ledger as ledgers
from detent.codec import log
from detent.codec import queue as queues
from detent.codec import shard as shards
from detent.codec.journal import FORMER_ENDS_MAX, FormerEnd, JournalHead, Listing, encode_former_ends
from detent.codec.keys import u32
from detent.codec.ledger import Row
from detent.codec.log import SeqBlock
from detent.codec.queue import Watermark
from detent.codec.shard import ShardRow
from detent.engine.sessions import LINEAGE, LINEAGE_BYTES, Lineage
from detent.kv import View
from detent.ledger.entering import replaced_by_restore

NUMBERS_SKIPPED: Final = 1 << 32
"""Message and delivery numbers that the old store may have given out since. They are below 2**53 after a million
restores, as JSON wants them."""

KEYS_SKIPPED: Final = 1 << 16
"""The same for queues, journals and shards, whose numbers have 32 bits; and for the fences of a shard, of which there
are a million until those of the next shard begin."""

Changes = Iterator[tuple[bytes, bytes]]


def new_life(view: View, *, current: bytes, backup: bytes, now_ms: int) -> Changes:
    """What has to be written over the records of a backup."""
    assert len(current) == LINEAGE_BYTES
    stamp = max([now_ms, *(Listing.decode(value).created_ms + 1 for _, value in _all(view, journals.LISTING.range()))])
    yield LINEAGE.raw, Lineage.decode(view.get(LINEAGE.raw)).restored(current, stamp, backup).encode()
    yield from _numbers(view)
    yield from _shards(view)
    yield from _ledgers(view)
    yield from _journals(view, stamp)


def _numbers(view: View) -> Changes:
    """Counters go on where the old store cannot be."""
    stored = view.get(queues.WATERMARK.raw)
    if stored is not None or view.get(queues.NEXT_QUEUE.raw) is not None:
        watermark = Watermark(0, 0, 1) if stored is None else Watermark.decode(stored)
        later = watermark._replace(next_delivery=watermark.next_delivery + NUMBERS_SKIPPED)
        yield queues.WATERMARK.raw, later.encode()
    block = view.get(log.SEQUENCE_BLOCK_KEY)
    if block is not None:
        yield log.SEQUENCE_BLOCK_KEY, SeqBlock(SeqBlock.decode(block).end + NUMBERS_SKIPPED - 1, 1).encode()
    queue = view.get(queues.NEXT_QUEUE.raw)
    if queue is not None:
        yield queues.NEXT_QUEUE.raw, queues.number_record(queues.decode_number(queue, "next queue") + KEYS_SKIPPED)
    journal = view.get(journals.NEXT_ID.raw)
    if journal is not None:
        number = journals.decode_number(journal, "next journal") + KEYS_SKIPPED
        yield journals.NEXT_ID.raw, journals.encode_number(number)
    shard = view.get(shards.COUNTER.raw)
    if shard is not None:
        yield shards.COUNTER.raw, shards.encode_counter(shards.decode_counter(shard) + KEYS_SKIPPED)


def _shards(view: View) -> Changes:
    for key, value in _all(view, shards.SHARD.range()):
        row = ShardRow.decode(value)
        yield key, row._replace(fence=row.fence + KEYS_SKIPPED, holder="", ttl_ms=0).encode()


def _ledgers(view: View) -> Changes:
    for key, value in _all(view, ledgers.ROW.range()):
        row = Row.decode(value)
        if row.entries:
            yield key, replaced_by_restore(row).encode()
            name = ledgers.name_of(ledgers.ROW, key)
            yield ledgers.key_of(ledgers.RESTORED, name), ledgers.encode_restored(row.batch)


def _journals(view: View, stamp: int) -> Changes:
    for key, value in _all(view, journals.LISTING.range()):
        listing = Listing.decode(value)
        stored = view.get(journals.part(listing.journal, journals.HEAD))
        offset, position = (0, 0) if stored is None else _end(JournalHead.decode(stored))
        end = FormerEnd(listing.created_ms, offset, position)
        former = journals.decode_former_ends(view.get(journals.FORMER_ENDS.key(u32(listing.journal))))
        yield (
            journals.FORMER_ENDS.key(u32(listing.journal)),
            encode_former_ends([*former, end][-FORMER_ENDS_MAX:]),
        )
        born_ms = listing.born_ms or listing.created_ms
        yield key, listing._replace(created_ms=stamp, born_ms=born_ms).encode()


def _end(head: JournalHead) -> tuple[int, int]:
    return head.next_offset, head.next_position


def _all(view: View, bounds: tuple[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    yield from view.scan(*bounds)
