"""The format ``detent.table``: what a store knows of itself, as tables to read.

>>> failed = spark.read.format("detent.table").option("table", "failed").load("file:/data/store")
>>> failed.groupBy("reason").count().show()

The tables of queues are in `table_queues`, the others in `table_journals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from detent.errors import Invalid, NotFound
from detent.remote import Role
from detent.spark import table_journals, table_queues
from detent.spark.opened import opened
from detent.spark.options import FormatOptions
from detent.spark.table_columns import Columns, Row, batches_of, schema_of
from detent.store import Store

OPTIONS: Final = ("table", "queue", "journal", "limit", "server")

PARTITIONS_MAX: Final = 64
"""Queues or journals are read by a task each, up to so many: a task costs tens of milliseconds, whatever it reads."""


@dataclass(frozen=True)
class StoreTable:
    """One of the tables. `by` is the option that narrows it to one queue or journal; where `split` says so, each of
    those is read by itself. `rows` gives the rows of one, or of all if it is given no name."""

    columns: Columns
    rows: Callable[[Store, str], Iterator[Row]]
    role: Role
    by: str | None = None
    split: bool = False
    needs_files: bool = False

    def names(self, store: Store, named: str | None) -> list[str]:
        """What is to be read, each by itself: `NotFound` if that is named and not there."""
        if named is not None:
            check = table_queues.check_queue if self.by == "queue" else table_journals.check_journal
            check(store, named)
            return [named]
        if not self.split:
            return [""]
        return table_queues.queue_names(store) if self.by == "queue" else table_journals.journal_names(store)


TABLES: Final = {
    "queues": StoreTable(table_queues.QUEUES, table_queues.queues, "client", by="queue"),
    "messages": StoreTable(table_queues.MESSAGES, table_queues.messages, "client", by="queue", split=True),
    "failed": StoreTable(table_queues.FAILED, table_queues.failed, "client", by="queue", split=True),
    "attempts": StoreTable(table_queues.ATTEMPTS, table_queues.attempts, "client", by="queue", split=True),
    "readers": StoreTable(table_queues.READERS, table_queues.readers, "client", by="queue", split=True),
    "journals": StoreTable(table_journals.JOURNALS, table_journals.journals, "reader", by="journal"),
    "producers": StoreTable(
        table_journals.PRODUCERS, table_journals.producers, "reader", by="journal", split=True, needs_files=True
    ),
    "ledgers": StoreTable(table_journals.LEDGERS, table_journals.ledgers, "client"),
    "pins": StoreTable(table_journals.PINS, table_journals.pins, "client"),
}
"""What is known of queues and ledgers is in their owner's memory, so a client asks it; journals need no owner."""


@dataclass(frozen=True)
class TableSettings:
    """The options of a read, checked. `url` is where this table is read: the store, or the server that owns it."""

    url: str
    table: str
    named: str | None
    limit: int | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> TableSettings:
        options = FormatOptions(given, OPTIONS, "the format detent.table")
        name = options.required("table", '"failed"').lower()
        if name not in TABLES:
            raise Invalid(f"there is no table {name!r} (option table); there are {', '.join(TABLES)}")
        table = TABLES[name]
        for option in {"queue", "journal"} - {table.by}:
            if options.text(option) is not None:
                raise Invalid(f"the table {name} has no option {option}: {_narrowed(table)}")
        url = options.owner_url() if table.role == "client" else options.url()
        if table.needs_files:
            table_journals.check_files(url)
        return cls(
            url=url,
            table=name,
            named=None if table.by is None else options.text(table.by),
            limit=options.number("limit"),
        )


def _narrowed(table: StoreTable) -> str:
    return "it is about the whole store" if table.by is None else f"the option {table.by} narrows it"


class TablePartition(InputPartition):
    """What one task reads: some queues or journals."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(None)
        self.names = names


class TableReader(DataSourceReader):
    """Reads a table, one task a queue or journal. With a limit one task reads them all: several could not share it."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings

    @property
    def _table(self) -> StoreTable:
        return TABLES[self._settings.table]

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        names = self._table.names(opened(settings.url, self._table.role), settings.named)
        count = 1 if settings.limit is not None else max(1, min(len(names), PARTITIONS_MAX))
        return [TablePartition(names[index::count]) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TablePartition)
        rows = self._rows(partition.names)
        return batches_of(self._table.columns, islice(rows, self._settings.limit))

    def _rows(self, names: Sequence[str]) -> Iterator[Row]:
        store = opened(self._settings.url, self._table.role)
        for name in names:
            try:
                yield from self._table.rows(store, name)
            except NotFound:
                continue  # it was there when the read was planned: deleted since, it has no more rows


class TableDataSource(DataSource):
    """What a store knows of its queues, journals and ledgers."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "detent.table"

    def schema(self) -> StructType:
        return schema_of(TABLES[TableSettings.of(self.options).table].columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = TableSettings.of(self.options)
        expected = schema_of(TABLES[settings.table].columns)
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
            raise Invalid(
                f"the table {settings.table} has the columns {expected.simpleString()}: leave .schema() out, and "
                "select() what you need"
            )
        return TableReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        del schema
        raise Invalid(
            "the tables of a store are read with spark.read, each time as they are: a stream of messages is what the "
            'formats "detent" (journals) and "detent.queue" give'
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        del schema, overwrite
        _refuse_writing()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        del schema, overwrite
        _refuse_writing()


def _refuse_writing() -> NoReturn:
    raise Invalid(
        'the format detent.table is read-only: write messages with the formats "detent" (journals) and "detent.queue"'
    )
