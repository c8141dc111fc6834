"""Publishing to queues with Spark: tasks hand their rows to the driver's commit, which publishes them, once a batch.

What is published passes through the owner in one transaction with the ledger row. No files are staged, unless a batch
is too large for that (`queue_splitting`). A batch that the ledger knows is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from detent.errors import AlreadyEntered, Invalid
from detent.queue.operations import check_name
from detent.spark.advice import completing
from detent.spark.batch_identity import NOT_SAID, BatchIdentity, CheckpointPlace, ledger_name, task_identity
from detent.spark.once_batch import Share
from detent.spark.opened import opened
from detent.spark.options import FormatOptions
from detent.spark.queue_outgoing import RowsToPublish, pack, publish, whole_room
from detent.spark.queue_splitting import settle
from detent.store import Store
from detent.tables.marks import BatchKey

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
        options = FormatOptions(given, OPTIONS, "the format detent.queue, when written,")
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


def gathered(columns: RowsToPublish, batches: Iterable[Any]) -> RowsMessage:
    """What a task does with its rows."""
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows are written inside a Spark task")
    return RowsMessage(context.partitionId(), task_identity(context), pack(columns, batches))


def commit(store: Store, messages: Iterable[RowsMessage], key: BatchKey | None) -> bool:
    """Publish what tasks have gathered, with the ledger row. False when the ledger has the batch already."""
    packed = [message.rows for message in sorted(messages, key=lambda message: message.partition)]
    transaction = store.transaction()
    if key is None:
        publish(transaction, packed)
    else:
        transaction.enter_ledger(key.name, key.batch, query=key.query, run=key.run, input=key.input)
        settle(store, transaction, packed, Share(key, "", whole_room()))
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
        key = None if settings.ledger is None else BatchKey(settings.ledger, "", settings.version or 0, "")
        found = arrived(messages)
        with completing(settings.owner_url):
            commit(opened(settings.owner_url, "client"), found, key)

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
        key = BatchKey(ledger, identity.query, batchId, identity.run, made_from)
        with completing(self._settings.owner_url):
            commit(opened(self._settings.owner_url, "client"), found, key)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing, for the reason that :meth:`QueueWriter.abort` gives."""
