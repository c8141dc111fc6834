"""Batches that are too large for one transaction: their messages are published in parts, each once.

A replay may compute the rows in another order, and would cut them elsewhere. So before the first part takes effect, all
messages of the batch are made durable in a journal of the sink's own, and parts are cut from that, also by a replay.
Registers of the journal say which batch it is and how far it is published. The transaction of a part checks them and
moves them on, so of several drivers one publishes it. The last part is left to the transaction that enters the batch,
with everything else that belongs to it, which deletes the journal too: it is there while a batch is published in part.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from detent import crash
from detent.errors import Conflict, Corrupt, Denied, DetentError, Fenced, NotFound, OtherInput
from detent.journal.fragments import write_fragment
from detent.journal.operations import CreateJournal, DeleteJournal
from detent.ledger.operations import LedgerDescription
from detent.patterns import SPARK_PARTS
from detent.spark.once_batch import Share, is_entered
from detent.spark.queue_outgoing import SCHEMA, PublishRoom, add_messages, parts_of, unpacked
from detent.store import Store
from detent.tables.marks import BatchKey
from detent.transaction import Transaction

STAGED_BYTES: Final = 64 << 20
"""Messages of a batch are gathered up to this in one file."""

_LEDGER_SHOWN: Final = 60
"""Characters of the ledger's name in a register, which people read."""

_ROW: Final = msgspec.json.Encoder()


class _SplitBatch(msgspec.Struct, frozen=True):
    """The registers of the journal: which batch its messages are, and from which offset on they are to be published."""

    split: str  # no other batch has this
    query: str
    batch: int
    input: str
    reset: str
    start: int
    next: int
    end: int


def settle(store: Store, transaction: Transaction, packed: Iterable[bytes], share: Share) -> None:
    """Publish with the batch's transaction, and before it what has no room there. Nothing is added for a batch that is
    entered: its transaction is refused."""
    split = _Split(store, share)
    rows = unpacked(packed)
    if _has_room(rows, share.room) and not split.is_begun():
        add_messages(transaction, rows)
        return
    try:
        split.publish(transaction, rows)
    except Denied as error:
        raise Denied(
            "a batch that has no room in one transaction is published in parts. That needs, besides the rights for a "
            f"smaller one, consume:ledger:{share.key.name} and admin:journal:{SPARK_PARTS}*, and over a server "
            f"publish:*:* for the files that hold its messages: {error}"
        ) from error


def _has_room(rows: Any, room: PublishRoom) -> bool:
    return len(list(islice(parts_of(rows, room), 2))) == 1


@dataclass(frozen=True)
class _Split:
    """One batch of a sink, in parts."""

    store: Store
    share: Share

    @property
    def key(self) -> BatchKey:
        return self.share.key

    @property
    def journal(self) -> str:
        """Ledgers and sinks may have any name; a journal's is plain."""
        return SPARK_PARTS + "/".join(
            hashlib.sha256(name.encode()).hexdigest()[:32] for name in (self.key.name, self.share.sink)
        )

    def is_begun(self) -> bool:
        """Whether a batch is published in part. A caller that may not know has never split one: it takes that right."""
        try:
            return self._found() is not None
        except Denied:
            return False

    def publish(self, transaction: Transaction, rows: Any) -> None:
        """Publish all parts but the last, as far as that was not done; let the transaction publish that one.

        The journal is read before the ledger. A driver that is late may make the messages durable once more, after the
        batch was entered and its journal deleted; then the ledger has the batch, and nothing of them is published.
        """
        while True:
            found = self._found()
            if is_entered(self.store, self.key):
                return
            if found is not None:
                if not self._is_of_this_batch(found):
                    self._drop(found)
                elif self._publish(transaction, found):
                    return
            elif _has_room(rows, self.share.room):
                transaction.check_registers(self.journal, {"split": None})
                add_messages(transaction, rows)
                return
            else:
                self._stage(rows)

    def _is_of_this_batch(self, found: _SplitBatch) -> bool:
        """Whether the journal has this batch; an error if it has another one of which some messages are published."""
        ledger = self._ledger()
        if found.reset != _reset_of(ledger) or (ledger is not None and found.batch <= ledger.batch):
            return False
        if self._is_mine(found):
            return True
        if found.next > found.start:
            raise self._refusal(found)
        return False

    def _drop(self, found: _SplitBatch) -> None:
        """Forget what was found, if it is still there and as it was."""
        transaction = self.store.transaction()
        self._forget(transaction, found)
        _commit(transaction)

    def _is_mine(self, found: _SplitBatch) -> bool:
        key = self.key
        same = not found.input or not key.input or found.input == key.input.hex()
        return (found.query, found.batch) == (key.query, key.batch) and same

    def _stage(self, rows: Any) -> None:
        """Make the messages of the batch durable, unless another driver has done so."""
        key = self.key
        start = self.store.journal(self.journal).next_offset()
        fragments = [write_fragment(self.store.objects, table) for table in _contents(rows)]
        staged = _SplitBatch(
            split=uuid4().hex,
            query=key.query,
            batch=key.batch,
            input=key.input.hex(),
            reset=_reset_of(self._ledger()),
            start=start,
            next=start,
            end=start + len(rows),
        )
        registers = {name: str(value) for name, value in msgspec.structs.asdict(staged).items()}
        transaction = self.store.transaction()
        # A caller without the right to delete the journal is refused here, and not when most of the batch is published.
        transaction.add(CreateJournal(self.journal, exist_ok=True))
        transaction.check_registers(self.journal, {"split": None})
        transaction.check_next_offset(self.journal, start)
        transaction.set_registers(self.journal, {**registers, "ledger": key.name[:_LEDGER_SHOWN]})
        transaction.adopt(self.journal, fragments)
        crash.point("spark.split.before_stage")
        _commit(transaction)
        crash.point("spark.split.after_stage")

    def _publish(self, transaction: Transaction, staged: _SplitBatch) -> bool:
        """Publish what is left. False when another driver has published some of it meanwhile."""
        rows = self._rows(staged)
        if rows is None:
            return False
        *first, last = parts_of(rows, self.share.room)
        for part in first:
            moved = msgspec.structs.replace(staged, next=staged.next + len(part))
            own = self.store.transaction()
            self._check(own, staged)
            own.set_registers(self.journal, {"next": str(moved.next)})
            add_messages(own, part)
            crash.point("spark.split.before_part")
            if not _commit(own):
                return False
            crash.point("spark.split.after_part")
            staged = moved
        self._forget(transaction, staged)
        add_messages(transaction, last)
        return True

    def _check(self, transaction: Transaction, staged: _SplitBatch) -> None:
        """Refuse a transaction when it is not known any more how far the batch is."""
        transaction.check_registers(self.journal, {"split": staged.split, "next": str(staged.next)})

    def _forget(self, transaction: Transaction, staged: _SplitBatch) -> None:
        """Let a transaction delete the journal, if it is as it was found."""
        self._check(transaction, staged)
        transaction.add(DeleteJournal(self.journal))

    def _found(self) -> _SplitBatch | None:
        """The batch in the journal, whichever it is."""
        registers = self.store.journal(self.journal).registers()
        if not registers:
            return None
        try:
            return msgspec.convert(registers, _SplitBatch, strict=False)
        except msgspec.ValidationError as error:
            raise Corrupt(
                f"the registers of the journal {self.journal!r} do not say how far a batch of the ledger "
                f"{self.key.name!r} is published ({error}): something else has written them. {self._giving_up()}"
            ) from error

    def _rows(self, staged: _SplitBatch) -> Any:
        """The messages that are left, in their order; None if another driver has published some of them."""
        try:
            found = list(self.store.journal(self.journal).read(staged.next, staged.end))
        except NotFound:
            found = []
        if len(found) != staged.end - staged.next:
            if self._found() != staged:
                return None
            raise Corrupt(
                f"the journal {self.journal!r} has {len(found)} messages from offset {staged.next} to {staged.end}, so "
                f"not all of batch {staged.batch} of the ledger {self.key.name!r} that are to be published: some were "
                f"trimmed. {self._giving_up()}"
            )
        return pa.Table.from_pylist([_row(message) for message in found], schema=SCHEMA)

    def _ledger(self) -> LedgerDescription | None:
        try:
            return self.store.describe_ledger(self.key.name)
        except NotFound:
            return None

    # -- what is said of a batch that is published in part, and is not this one --------------------------------------

    def _refusal(self, found: _SplitBatch) -> DetentError:
        key = self.key
        state = (
            f"{found.next - found.start} of {found.end - found.start} messages of batch {found.batch} of the ledger "
            f"{key.name!r} are published, and the others wait in the journal {self.journal!r}, "
            f"from offset {found.next} on"
        )
        if found.query != key.query:
            return Fenced(
                f"{state}. They are those of query {found.query!r}, and this is query {key.query!r}: the checkpoint "
                f"was deleted, or another query uses this name. {self._giving_up()}"
            )
        if found.batch != key.batch:
            return Conflict(
                f"{state}. Let batch {found.batch} be written first, and batch {key.batch} after that. "
                f"{self._giving_up()}"
            )
        return OtherInput(
            f"{state}. This batch {key.batch} is made from another input. The checkpoint has lost its newest entries, "
            "or is an older copy. Put back the entries of its folder `offsets` as they were, and start the stream "
            "again: it publishes the others. If they are gone, a replay from before this batch publishes again what is "
            "out. So copy the others from the journal if you need them, and start over behind this batch: with a new "
            f"checkpoint, and a start given by the option of the source (startingOffsets). {self._giving_up()}",
            key.name,
            key.batch,
        )

    def _giving_up(self) -> str:
        return f"To give up what is not published of it: `detent journal rm {shlex.quote(self.journal)}`"


def _commit(transaction: Transaction) -> bool:
    """Commit what holds only as long as the journal is as it was found. False if it is not: another driver was here."""
    try:
        transaction.commit()
    except Conflict:
        return False
    return True


def _reset_of(ledger: LedgerDescription | None) -> str:
    """Another text after each reset of the ledger, and once it was deleted. A reset lets a query start over, so a batch
    from before it is not continued."""
    return "" if ledger is None else f"{ledger.created_ms}.{ledger.generation}"


def _contents(rows: Any) -> Iterator[Any]:
    """Messages for queues as messages of a journal: what a journal has no place for is in the key."""
    for part in parts_of(rows, PublishRoom(len(rows), STAGED_BYTES, len(rows))):
        about = (part.column(name).to_pylist() for name in ("queue", "is_uri", "delay_ms", "dedup_key"))
        keys = pa.array([_ROW.encode(one) for one in zip(*about, strict=True)], pa.binary())
        yield pa.table({"key": keys, "headers": part.column("headers"), "body": part.column("data")})


def _row(message: Any) -> dict[str, Any]:
    queue, is_uri, delay_ms, dedup_key = msgspec.json.decode(message.key)
    return {
        "queue": queue, "is_uri": is_uri, "delay_ms": delay_ms, "dedup_key": dedup_key,
        "headers": list(message.headers.items()), "data": message.body,
    }  # fmt: skip
