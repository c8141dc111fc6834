"""Publishing to queues with Spark: tasks hand their rows to the driver's commit, which publishes them, once a batch.

Whatever is published passes through the owner in one transaction with the ledger row, so a batch is bounded; and what
is bounded fits into the tasks' commit messages. No files are staged. A batch that the ledger knows is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from detent.errors import AlreadyEntered, Invalid, LimitExceeded
from detent.queue.operations import PUBLISH_MESSAGES_MAX, check_name
from detent.queue.reader_operations import ASSIGNED_MAX
from detent.spark.batch_input import UNKNOWN
from detent.spark.identity import NOT_SAID, BatchIdentity, CheckpointPlace, ledger_name, task_identity
from detent.spark.opened import opened
from detent.spark.options import Options
from detent.spark.queue_outgoing import SCHEMA, RowsToPublish, outgoing
from detent.store import Store
from detent.transaction import Transaction

BATCH_MESSAGES_MAX: Final = ASSIGNED_MAX
"""Messages that one batch publishes, as many as a queue gives to one: everybody else waits while the owner applies
them."""

BATCH_BYTES_MAX: Final = 48 << 20
"""Payloads and headers that one batch publishes: a transaction travels whole, and holds the rest of the batch too."""

GROUPS_MAX: Final = 5_000
"""Messages share an operation when they agree in queue and delay; a transaction has room for so many, and as many
again for the journals of the batch."""

OPTIONS: Final = ("queue", "server", "txnAppId", "txnVersion", "ledgerName")


@dataclass(frozen=True)
class PublishSettings:
    """The options of a write, checked."""

    owner_url: str
    ledger: str | None
    version: int | None
    columns: RowsToPublish
    checkpoint: CheckpointPlace = NOT_SAID

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, streaming: bool) -> PublishSettings:
        options = Options(given, OPTIONS, "the format detent.queue, when written,")
        queue = options.text("queue")
        if queue is not None:
            check_name(queue)
        columns = RowsToPublish.of(schema, queue)
        owner_url = options.owner_url()
        version = options.number("txnVersion", least=0)
        app = options.text("txnAppId")
        if streaming:
            if version is not None:
                raise Invalid("txnVersion is for batch writes: a stream's version is its batch number")
            return cls(owner_url, app or ledger_name(options), None, columns, CheckpointPlace.of(options))
        if (app is None) != (version is None):
            raise Invalid("txnAppId and txnVersion go together: who writes, and which of its writes this is")
        return cls(owner_url, app, version, columns)


@dataclass
class RowsMessage(WriterCommitMessage):
    """What a task tells the commit: all its rows, as an Arrow stream."""

    partition: int
    identity: BatchIdentity
    rows: bytes


class Tally:
    """How much a batch publishes, as far as it was seen."""

    def __init__(self) -> None:
        self._messages = 0
        self._bytes = 0

    def add(self, messages: int, size: int) -> None:
        """Count some more; `LimitExceeded` when it is too much for one transaction."""
        self._messages += messages
        self._bytes += size
        if self._messages > BATCH_MESSAGES_MAX or self._bytes > BATCH_BYTES_MAX:
            raise LimitExceeded(
                f"a batch publishes at most {BATCH_MESSAGES_MAX} messages of {BATCH_BYTES_MAX} bytes together, because "
                "all of them become visible in one transaction: let the source give fewer rows a batch (for Detent's "
                'own .option("maxMessagesPerTrigger", 10000)), or write them to a journal'
            )


def gathered(columns: RowsToPublish, batches: Iterable[Any]) -> RowsMessage:
    """What a task does with its rows."""
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows are written inside a Spark task")
    return RowsMessage(context.partitionId(), task_identity(context), pack(columns, batches))


def pack(columns: RowsToPublish, batches: Iterable[Any]) -> bytes:
    """Rows as messages in an Arrow stream."""
    tally = Tally()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            if batch.num_rows:
                rows = columns.messages(batch)
                tally.add(rows.num_rows, rows.nbytes)
                writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def publish(transaction: Transaction, packed: Iterable[bytes]) -> None:
    """Add what tasks have packed to a transaction. Messages of a queue keep the order of the rows, as far as they agree
    in their delay."""
    rows = pa.concat_tables([SCHEMA.empty_table(), *(pa.ipc.open_stream(rows).read_all() for rows in packed)])
    tally = Tally()
    tally.add(rows.num_rows, rows.nbytes)
    groups = _groups(rows)
    if len(groups) > GROUPS_MAX:
        raise LimitExceeded(
            f"a batch has at most {GROUPS_MAX} different pairs of queue and delay, not {len(groups)}: round the delays"
        )
    for (queue, is_uri, delay_ms), places in groups.items():
        tally.add(0, 0 if queue is None else len(places) * len(f"queue{queue}"))  # the header that is the address
        found = outgoing(rows.take(places), queue, is_uri, delay_ms)
        for first in range(0, len(found), PUBLISH_MESSAGES_MAX):
            transaction.publish_many(found[first : first + PUBLISH_MESSAGES_MAX], queue=queue)


def _groups(rows: Any) -> dict[tuple[str | None, bool, int], list[int]]:
    """Where the rows are that one operation can publish."""
    groups: dict[tuple[str | None, bool, int], list[int]] = {}
    names = ("queue", "is_uri", "delay_ms")
    for place, shared in enumerate(zip(*(rows.column(name).to_pylist() for name in names), strict=True)):
        groups.setdefault(shared, []).append(place)
    return groups


def commit(
    store: Store,
    messages: Iterable[RowsMessage],
    ledger: str | None,
    query: str,
    batch: int,
    run: str,
    input: bytes = UNKNOWN,
) -> bool:
    """Publish what tasks have gathered, with the ledger row. False when the ledger has the batch already."""
    transaction = store.transaction()
    if ledger is not None:
        transaction.enter_ledger(ledger, batch, query=query, run=run, input=input)
    publish(transaction, [message.rows for message in sorted(messages, key=lambda message: message.partition)])
    try:
        transaction.commit()
    except AlreadyEntered:
        return False
    return True


def arrived(messages: Sequence[WriterCommitMessage | None]) -> list[RowsMessage]:
    """The messages of all tasks; Spark commits only when every task has sent one."""
    found = [message for message in messages if isinstance(message, RowsMessage)]
    if len(found) != len(messages):
        raise Invalid(f"{len(messages) - len(found)} of {len(messages)} tasks sent no commit message")
    return found


class QueueWriter(DataSourceArrowWriter):
    """A batch write: all rows are published together. With txnAppId and txnVersion, a repeated one changes nothing."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> RowsMessage:
        return gathered(self._settings.columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settings = self._settings
        commit(opened(settings.owner_url, "client"), arrived(messages), settings.ledger, "", settings.version or 0, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was not committed was never anywhere but in the tasks' messages."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """A stream's write: each batch is published once, whatever Spark repeats."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> RowsMessage:
        return gathered(self._settings.columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = arrived(messages)
        identity = BatchIdentity.common(message.identity for message in found)
        ledger = self._settings.ledger or f"query:{identity.query}"
        made_from = self._settings.checkpoint.input_of(identity, batchId)
        store = opened(self._settings.owner_url, "client")
        commit(store, found, ledger, identity.query, batchId, identity.run, made_from)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing, for the reason that :meth:`QueueWriter.abort` gives."""
