"""Writing to journals with Spark: tasks stage their rows, the driver's commit makes them messages, once a batch.

A task's rows become fragments, or, when they are few, travel inside its commit message: a file and its syncs for ten
rows would cost more than the batch. Nothing is visible before the commit, which adopts and appends everything and
enters the batch in the ledger, in one transaction. A batch that the ledger knows is done, and its fragments are swept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from detent import crash
from detent.errors import AlreadyEntered, Invalid
from detent.journal import FragmentRef
from detent.journal.fragments import write_fragment
from detent.names import check_name
from detent.spark.advice import completing
from detent.spark.batch_identity import NOT_SAID, UNKNOWN, BatchIdentity, CheckpointPlace, ledger_name, task_identity
from detent.spark.opened import opened
from detent.spark.options import FormatOptions
from detent.spark.outgoing import RowsToMessages
from detent.store import Store
from detent.transaction import Transaction

FRAGMENT_BYTES_TARGET: Final = 64 << 20
"""Rows are gathered up to this before a fragment is written: large files read fast, and a task holds one in memory."""

STAGED_BYTES_MAX: Final = 256 << 20
"""What a task holds for all its journals together; past this the largest goes out."""

INLINE_BYTES_MAX: Final = 64 << 10
"""Up to this a task's rows travel in its commit message, through the owner's log, as any append does."""

INLINE_BATCH_BYTES_MAX: Final = 8 << 20
"""The same for all tasks of a batch together: what thousands of tasks send becomes a fragment after all."""

OPTIONS: Final = ("journal", "server", "txnAppId", "txnVersion", "ledgerName")


@dataclass(frozen=True)
class WriteSettings:
    """The options of a write, checked."""

    url: str
    journal: str | None
    ledger: str | None
    version: int | None
    columns: RowsToMessages
    server: str | None = None
    checkpoint: CheckpointPlace = NOT_SAID

    @property
    def owner_url(self) -> str:
        """Where batches are committed."""
        return self.server or self.url

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, streaming: bool) -> WriteSettings:
        options = FormatOptions(given, OPTIONS, "the format detent, when written,")
        journal = options.text("journal")
        if journal is not None:
            check_name(journal, "journal")
        columns = RowsToMessages.of(schema)
        if journal is None and "journal" not in schema.fieldNames():
            raise Invalid('say where the rows go: .option("journal", "orders"), or a column called journal')
        version = options.number("txnVersion", least=0)
        app = options.text("txnAppId")
        if streaming:
            if version is not None:
                raise Invalid("txnVersion is for batch writes: a stream's version is its batch number")
            ledger, checkpoint = app or ledger_name(options), CheckpointPlace.of(options)
            return cls(options.url(), journal, ledger, None, columns, options.text("server"), checkpoint)
        if (app is None) != (version is None):
            raise Invalid("txnAppId and txnVersion go together: who writes, and which of its writes this is")
        return cls(options.url(), journal, app, version, columns, options.text("server"))


@dataclass
class Staged:
    """What a task wrote for one journal: fragments, then rows that travel along, in the order of the rows."""

    fragments: list[FragmentRef] = field(default_factory=list)
    inline: bytes = b""


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the commit."""

    partition: int
    identity: BatchIdentity
    staged: dict[str, Staged]


class _Stage:
    """A task's rows on their way out."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: dict[str, list[Any]] = {}
        self._bytes: dict[str, int] = {}
        self.staged: dict[str, Staged] = {}

    def add(self, journal: str, rows: Any) -> None:
        """Take rows of one journal."""
        self._waiting.setdefault(journal, []).append(rows)
        self._bytes[journal] = self._bytes.get(journal, 0) + rows.nbytes
        if self._bytes[journal] >= FRAGMENT_BYTES_TARGET:
            self._write(journal)
        elif sum(self._bytes.values()) >= STAGED_BYTES_MAX:
            self._write(max(self._bytes, key=lambda name: self._bytes[name]))

    def finish(self) -> dict[str, Staged]:
        """Everything is durable, or in the answer."""
        inline = sum(self._bytes.values()) <= INLINE_BYTES_MAX
        for journal in sorted(self._waiting):
            if inline:
                self._entry(journal).inline = _to_ipc(self._waiting[journal])
            else:
                self._write(journal)
        return self.staged

    def _entry(self, journal: str) -> Staged:
        return self.staged.setdefault(journal, Staged())

    def _write(self, journal: str) -> None:
        table = pa.Table.from_batches(self._waiting.pop(journal))
        del self._bytes[journal]
        reference = write_fragment(opened(self._url, "reader").objects, table)
        crash.point("spark.sink.after_fragment")
        self._entry(journal).fragments.append(reference)


def _to_ipc(batches: Sequence[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def stage(settings: WriteSettings, batches: Iterable[Any]) -> TaskMessage:
    """What a task does with its rows."""
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows are written inside a Spark task")
    return TaskMessage(context.partitionId(), task_identity(context), stage_rows(settings, batches))


def stage_rows(settings: WriteSettings, batches: Iterable[Any]) -> dict[str, Staged]:
    """Rows made durable, or small enough to travel, and not visible yet."""
    out = _Stage(settings.url)
    for batch in batches:
        if batch.num_rows:
            for journal, rows in settings.columns.messages(batch, settings.journal):
                out.add(journal, rows)
    return out.finish()


def adopt(
    store: Store,
    messages: Iterable[TaskMessage],
    ledger: str | None,
    query: str,
    batch: int,
    run: str,
    input: bytes = UNKNOWN,
) -> bool:
    """Make what tasks staged visible, with the ledger row. False when the ledger has the batch already."""
    ordered = sorted(messages, key=lambda message: message.partition)
    transaction = store.transaction()
    if ledger is not None:
        transaction.enter_ledger(ledger, batch, query=query, run=run, input=input)
    add_staged(store, transaction, [message.staged for message in ordered])
    crash.point("spark.sink.before_commit")
    try:
        transaction.commit()
    except AlreadyEntered:
        return False
    crash.point("spark.sink.after_commit")
    return True


def add_staged(store: Store, transaction: Transaction, tasks: Sequence[Mapping[str, Staged]]) -> None:
    """Make what tasks staged part of a transaction: fragments first, then the rows that travelled, so that the order of
    a task's rows is kept."""
    for journal in sorted({journal for task in tasks for journal in task}):
        parts = [task[journal] for task in tasks if journal in task]
        fragments = [reference for part in parts for reference in part.fragments]
        if fragments:
            transaction.adopt(journal, fragments)
        rows = [pa.ipc.open_stream(part.inline).read_all() for part in parts if part.inline]
        if sum(len(part.inline) for part in parts) > INLINE_BATCH_BYTES_MAX:
            transaction.adopt(journal, [write_fragment(store.objects, pa.concat_tables(rows))])
        elif rows:
            transaction.append_table(journal, pa.concat_tables(rows))


def arrived(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """The messages of all tasks; Spark commits only when every task has sent one."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    if len(found) != len(messages):
        raise Invalid(f"{len(messages) - len(found)} of {len(messages)} tasks sent no commit message")
    return found


class JournalWriter(DataSourceArrowWriter):
    """A batch write: all rows become messages together. With txnAppId and txnVersion, a second one changes nothing."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        return stage(self._settings, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settings = self._settings
        store = opened(settings.owner_url, "client")
        with completing(settings.owner_url):
            adopt(store, arrived(messages), settings.ledger, "", settings.version or 0, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: Spark aborts also after a commit that was durable and whose answer was lost. Orphans are swept."""


class JournalStreamWriter(DataSourceStreamArrowWriter):
    """A stream's write: each batch becomes messages once, whatever Spark repeats."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        return stage(self._settings, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = arrived(messages)
        identity = BatchIdentity.common(message.identity for message in found)
        ledger = self._settings.ledger or f"query:{identity.query}"
        made_from = self._settings.checkpoint.input_of(identity, batchId)
        with completing(self._settings.owner_url):
            store = opened(self._settings.owner_url, "client")
            adopt(store, found, ledger, identity.query, batchId, identity.run, made_from)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing, for the reason that :meth:`JournalWriter.abort` gives."""
