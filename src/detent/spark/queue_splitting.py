"""Batches that are too large for one transaction: their messages are published in parts, each once.

A replay may compute the rows in another order, and would cut them elsewhere. So before the first part takes effect, all
messages of the batch are made durable in a journal of the stream's own, and parts are cut from that, also by a replay.
How many parts are done is a row of a ledger beside the stream's, ``NAME:parts``, entered in the transaction of each
part; as its batch it has the stream's batch times `PARTS_MAX`, plus the number of parts. The last part is left to the
transaction that enters the batch itself, with everything else that belongs to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa

from detent import crash
from detent.errors import AlreadyEntered, NotFound
from detent.journal.fragments import write_fragment
from detent.ledger import LedgerInfo
from detent.ledger.operations import NAME_BYTES_MAX
from detent.spark.once_batch import BatchKey, is_entered
from detent.spark.queue_outgoing import SCHEMA
from detent.spark.queue_packing import Room, packed_of, parts_of, publish, unpacked, whole_room
from detent.store import Store

PARTS_MAX: Final = 1 << 20
"""Parts of a batch, which are messages at the least, and so never more than a batch has."""

STAGED_BYTES: Final = 64 << 20
"""Messages of a batch are gathered up to this in one file."""

JOURNALS: Final = "spark-parts/"
_START: Final = "start"
_ROOM: Final = "room"
"""Registers of the journal: where the batch's messages begin, and for which room they are cut."""

_ROW: Final = msgspec.json.Encoder()


def settle(store: Store, key: BatchKey, packed: list[bytes], place: str = "", room: Room | None = None) -> list[bytes]:
    """Publish what has no room in the batch's own transaction; what is left for that.

    `place` tells the sinks of one stream apart, as they are done one after the other.
    """
    room = whole_room() if room is None else room
    split = _Split(store, key, place, room)
    info = split.info()
    if info is None or not split.is_of_batch(info):
        rows = unpacked(packed)
        parts = list(parts_of(rows, room))
        if len(parts) == 1:
            split.clear(info)
            return packed
        if is_entered(store, key):
            return []
        split.stage(rows, info)
    elif is_entered(store, key):
        return []
    return split.publish()


class _Split:
    """One batch of a sink, in parts."""

    def __init__(self, store: Store, key: BatchKey, place: str, room: Room) -> None:
        self._store = store
        self._key = key
        self._room = room
        ledger = f"{key.name}:parts{place}"
        short = hashlib.sha256(ledger.encode()).hexdigest()[:32]
        self._ledger = ledger if len(ledger.encode()) <= NAME_BYTES_MAX else f"{short}:parts"
        self._journal = JOURNALS + short  # ledgers may have any name; a journal's is plain
        self._first = key.batch * PARTS_MAX

    def info(self) -> LedgerInfo | None:
        """How far the parts are; None before the first batch that was split."""
        try:
            return self._store.ledger(self._ledger)
        except NotFound:
            return None

    def is_of_batch(self, info: LedgerInfo) -> bool:
        """Whether the messages of this batch are durable, and parts of them may be published. `OtherInput` if they are
        those of a batch of this number that was made from another input."""
        if not info.entries or info.query != self._key.query or info.batch < self._first:
            return False
        return is_entered(self._store, self._key._replace(name=self._ledger, batch=info.batch))

    def clear(self, info: LedgerInfo | None) -> None:
        """Forget the messages of an earlier batch: all of them are published."""
        if info is not None and self._store.reader.number(self._journal) is not None:
            with suppress(NotFound):  # another driver of the same query has done so
                self._store.journal(self._journal).delete()

    def stage(self, rows: Any, info: LedgerInfo | None) -> None:
        """Make the messages of the batch durable, once."""
        if info is not None and info.entries and info.query != self._key.query:
            # The stream's own ledger takes this query, so it was reset since: what was split then is another stream's.
            self._store.reset_ledger(self._ledger)
        self.clear(info)
        journal = self._store.journal(self._journal)
        journal.create(exist_ok=True)
        start = journal.next_offset()
        fragments = [write_fragment(self._store.objects, table) for table in _contents(rows)]
        transaction = self._store.transaction()
        self._enter(transaction, 0)
        room = _ROW.encode(self._room).decode()
        transaction.set_registers(self._journal, {_START: str(start), _ROOM: room})
        transaction.check_next_offset(self._journal, start)
        transaction.adopt(self._journal, fragments)
        crash.point("spark.split.before_stage")
        with suppress(AlreadyEntered):  # by another driver of the same query: its messages count
            transaction.commit()
        crash.point("spark.split.after_stage")

    def publish(self) -> list[bytes]:
        """Publish all parts but the last, as far as that was not done; the last one."""
        parts = list(self._staged())
        info = self.info()
        done = 0 if info is None else info.batch - self._first
        for number in range(done, len(parts) - 1):
            transaction = self._store.transaction()
            self._enter(transaction, number + 1)
            publish(transaction, [packed_of(parts[number])])
            crash.point("spark.split.before_part")
            with suppress(AlreadyEntered):  # by another driver of the same query
                transaction.commit()
            crash.point("spark.split.after_part")
        return [packed_of(parts[-1])]

    def _enter(self, transaction: Any, number: int) -> None:
        key = self._key
        transaction.enter_ledger(self._ledger, self._first + number, query=key.query, run=key.run, input=key.input)

    def _staged(self) -> Iterator[Any]:
        """The messages of the batch as they were made durable, cut for the room that there was then."""
        journal = self._store.journal(self._journal)
        registers = journal.registers()
        start, room = int(registers[_START]), msgspec.json.decode(registers[_ROOM], type=Room)
        rows = [_row(message) for message in journal.read(start, journal.next_offset())]
        return parts_of(pa.Table.from_pylist(rows, schema=SCHEMA), room)


def _contents(rows: Any) -> Iterator[Any]:
    """Messages for queues as messages of a journal: what a journal has no place for is in the key."""
    for part in parts_of(rows, Room(len(rows), STAGED_BYTES, len(rows))):
        about = (part.column(name).to_pylist() for name in ("queue", "is_uri", "delay_ms", "dedup_key"))
        keys = pa.array([_ROW.encode(one) for one in zip(*about, strict=True)], pa.binary())
        yield pa.table({"key": keys, "headers": part.column("headers"), "body": part.column("data")})


def _row(message: Any) -> dict[str, Any]:
    queue, is_uri, delay_ms, dedup_key = msgspec.json.decode(message.key)
    return {
        "queue": queue, "is_uri": is_uri, "delay_ms": delay_ms, "dedup_key": dedup_key,
        "headers": list(message.headers.items()), "data": message.body,
    }  # fmt: skip
