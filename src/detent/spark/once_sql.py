"""A database as a sink of `once`: the rows, and the batch in the table ``detent_ledger``, in one transaction.

The ledger's row is written first, with a condition: only a batch above the one that is there changes it. So of two
drivers with the same batch one waits for the other, and then changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame

from detent import crash
from detent.errors import Invalid, NotFound
from detent.extras import install_command

try:
    import sqlalchemy
except ModuleNotFoundError as error:
    raise Invalid(f"to_sql needs the package sqlalchemy: {install_command('sql')}") from error
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Table, Text

from detent.spark.once_batch import (
    ExternalSink,
    MarkPlace,
    Select,
    check_select,
    collect,
    output_mode,
    selected,
)
from detent.sql.dialects import AUTOCOMMIT, DIALECTS, SQLITE
from detent.sql.rows import raising, replacing
from detent.sql.transactions import own_transaction, reaching
from detent.tables.marks import BatchKey, is_done
from detent.tables.merge import one_row_a_key
from detent.tables.options import COMPLETE, MergeRule, check_mode, key_columns

INSERT_ROWS: Final = 5_000
"""Rows of one insert."""

LEDGER_TABLE: Final = "detent_ledger"
INPUTS_TABLE: Final = "detent_ledger_inputs"

_ENDED: Final = (
    "the function of to_sql must not commit, and must not roll back: its rows and the ledger are committed together, "
    "when it returns. Raise an error, and the batch is tried again"
)

_STILL: Final = sqlalchemy.text("SELECT 1")
"""Refused if a function has gone on after an error that has undone its transaction: a COMMIT would not say so."""

Write = Callable[[Connection, Any], Any]


def to_sql(
    engine: str | Callable[[], Engine],
    table: str | None = None,
    *,
    write: Write | None = None,
    merge_on: Iterable[str] | None = None,
    select: Select = None,
    label: str = "",
) -> ExternalSink:
    """A sink that writes each batch to a SQLite or PostgreSQL database, in one transaction with its ledger.

    >>> to_sql("sqlite:////data/shop.db", "orders")
    >>> to_sql("postgresql+psycopg://shop@db/shop", write=merge_orders, label="orders")

    `engine` is a URL of SQLAlchemy's, or a function that answers an engine; it is asked for each batch. With a `table`,
    which must exist, rows are inserted by the names of their columns. With `merge_on`, columns such as ``["id"]`` on
    which the table has a primary key or a unique index, a row replaces the one with the same key; see
    `detent.tables.merge` for null and repeated keys. In complete mode each batch replaces all rows of the table.

    With `write`, the function gets the connection and all rows of the batch as a `pyarrow.Table`, and does whatever
    belongs to the batch; it neither commits nor rolls back. The table ``detent_ledger`` is made if it is not there.
    `label` tells sinks apart that write to one database under one name; for a table it is the table, unless said.
    """
    if (table is None) == (write is None):
        raise Invalid("to_sql takes a table to insert into, or write=function: one of the two")
    if write is not None and merge_on is not None:
        raise Invalid("merge_on is for a table: a function that writes merges by itself")
    return _ToSql(engine, table, write, key_columns(merge_on), select, label)


class _ToSql(ExternalSink):
    def __init__(
        self,
        engine: str | Callable[[], Engine],
        table: str | None,
        write: Write | None,
        merge_on: tuple[str, ...],
        select: Select,
        label: str,
    ) -> None:
        if not isinstance(engine, str) and not callable(engine):
            raise Invalid("to_sql takes the URL of a database, or a function that answers an engine")
        if write is not None and not callable(write):
            raise Invalid(f"write is a function of a connection and the rows, not {write!r}")
        check_select(select)
        self._engine = engine
        self._table = table
        self._write = write
        self._merge_on = merge_on
        self._select = select
        self._label = label or table or ""

    @property
    def name(self) -> str:
        return f"SQL {self._label or 'function'}"

    @property
    def place(self) -> MarkPlace:
        return MarkPlace(f"the row {self._label!r} of {LEDGER_TABLE}", self._engine)

    def check_mode(self, mode: str) -> None:
        if self._write is None:
            check_mode(mode, self._merge_on, None, f"the table {self._table}")

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        write = self._write or (self._replace if output_mode(batch) == COMPLETE else self._insert)
        rows = selected(batch, self._select)
        ledger = LedgerRow(self._label, key)
        with self._open() as connection, connection.begin():
            _require_transactions(connection)
            ledger.make(connection)
            if ledger.has(connection):
                return
        found = collect(rows)  # before the transaction: others wait for its locks
        with self._open() as connection, own_transaction(connection, _ENDED):
            _require_transactions(connection)
            if ledger.enter(connection):
                write(connection, found)
                with reaching():
                    connection.execute(_STILL)
                crash.point("spark.once.sql_before_commit")
        crash.point("spark.once.sql_after_commit")

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """A connection; of an engine that is ours it is closed at the end, and not kept."""
        if isinstance(self._engine, str):
            engine = sqlalchemy.create_engine(self._engine, poolclass=sqlalchemy.pool.NullPool)
        else:
            engine = self._engine()
        if engine.dialect.name not in DIALECTS:
            raise Invalid(f"to_sql writes to SQLite and PostgreSQL, not to {engine.dialect.name}")
        with engine.connect() as connection:
            yield connection

    def _replace(self, connection: Connection, rows: Any) -> None:
        """The rows are all that the table is to have."""
        assert self._table is not None
        connection.execute(_reflected(connection, self._table).delete())
        self._insert(connection, rows)

    def _insert(self, connection: Connection, rows: Any) -> None:
        assert self._table is not None
        table = _reflected(connection, self._table)
        unknown = [name for name in rows.column_names if name not in table.columns]
        if unknown:
            raise Invalid(
                f"the table {self._table} has no column {', '.join(unknown)}, but {', '.join(table.columns.keys())}: "
                "select what fits, with select=[...]"
            )
        statement = table.insert()
        if self._merge_on:
            rows = one_row_a_key(rows, MergeRule(self._merge_on))
            _require_unique(connection, table, self._merge_on)
            statement = replacing(connection.dialect.name, table, self._merge_on, rows.column_names)
        for first in range(0, rows.num_rows, INSERT_ROWS):
            connection.execute(statement, rows.slice(first, INSERT_ROWS).to_pylist())


def _reflected(connection: Connection, name: str) -> Table:
    schema, _, plain = name.rpartition(".")
    try:
        return Table(plain, MetaData(), schema=schema or None, autoload_with=connection)
    except sqlalchemy.exc.NoSuchTableError:
        raise NotFound(
            f"there is no table {name!r} in the database: create it first, with the columns it is to have"
        ) from None


def _require_unique(connection: Connection, table: Table, keys: tuple[str, ...]) -> None:
    """Without an index that is unique a database cannot tell that a key is there."""
    inspector = sqlalchemy.inspect(connection)
    found = [inspector.get_pk_constraint(table.name, table.schema).get("constrained_columns") or []]
    found += [one["column_names"] for one in inspector.get_unique_constraints(table.name, table.schema)]
    indexes = inspector.get_indexes(table.name, table.schema)
    found += [[str(column) for column in one["column_names"]] for one in indexes if _is_whole(one)]
    if not any(set(columns) == set(keys) for columns in found):
        quote = connection.dialect.identifier_preparer.quote
        index = quote(f"{table.name}_by_{'_'.join(keys)}")
        raise Invalid(
            f"the table {table.fullname} has no unique index on {', '.join(keys)}, which merge_on needs. Create it: "
            f"CREATE UNIQUE INDEX {index} ON {table.fullname} ({', '.join(map(quote, keys))})"
        )


def _is_whole(index: Any) -> bool:
    """Whether an index is unique over all rows."""
    partial_index = any(option.endswith("_where") for option in index.get("dialect_options", {}))
    return bool(index["unique"]) and not partial_index and None not in index["column_names"]


def _require_transactions(connection: Connection) -> None:
    """`Invalid` if the driver commits after each statement, although a transaction was begun."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == SQLITE:
        # One that was told to begin transactions by itself has begun one now; Python's own way begins it with a write.
        commits = driver.isolation_level is None and not driver.in_transaction
    else:
        commits = getattr(driver, "autocommit", False) is True
    if commits:
        raise Invalid(AUTOCOMMIT)


# -- the ledger -------------------------------------------------------------------------------------------------


def _keyed(name: str, *columns: Column[Any]) -> Table:
    key = [Column(column, Text, primary_key=True) for column in ("name", "sink", "query")]
    return Table(name, MetaData(), *key, Column("batch", BigInteger, nullable=False), *columns)


BATCHES: Final = _keyed(LEDGER_TABLE)
"""For each name, sink and query the highest batch that is in the database."""

INPUTS: Final = _keyed(INPUTS_TABLE, Column("input", Text, nullable=False))
"""What these batches were made from: a table of its own, as the other one may be older, and another program's."""


class LedgerRow:
    """The row of a sink's batches in the database that it writes to."""

    def __init__(self, label: str, key: BatchKey) -> None:
        self._key = key
        self._where = f"the row {label!r} of {LEDGER_TABLE}"
        self._values = {"name": key.name, "sink": label, "query": key.query}

    def make(self, connection: Connection) -> None:
        """Make the tables that are not there; that of the inputs comes last."""
        if not sqlalchemy.inspect(connection).has_table(INPUTS_TABLE):
            for table in (BATCHES, INPUTS):
                _create(connection, table)

    def has(self, connection: Connection) -> bool:
        """Whether the database has the batch, as far as a look can tell."""
        last = connection.execute(sqlalchemy.select(BATCHES.c.batch).filter_by(**self._values)).scalar()
        if last is None or last < self._key.batch:
            return False
        query = sqlalchemy.select(INPUTS.c.input).filter_by(**self._values, batch=last)
        made_from = connection.execute(query).scalar()
        return is_done(self._key, last, made_from, self._key.input.hex(), self._where)

    def enter(self, connection: Connection) -> bool:
        """Enter the batch; False if it is there. Another driver with the same one waits until this transaction ends."""
        if connection.execute(self.entering(connection.dialect.name)).first() is None:
            return not self.has(connection)
        if self._key.input:
            values = {**self._values, "batch": self._key.batch, "input": self._key.input.hex()}
            connection.execute(replacing(connection.dialect.name, INPUTS, self._values, values), values)
        return True

    def entering(self, dialect: str) -> Any:
        """The statement that enters the batch if none above it is there."""
        return raising(dialect, BATCHES, "batch", **self._values, batch=self._key.batch)


def _create(connection: Connection, table: Table) -> None:
    """Make a table, unless it is there."""
    if sqlalchemy.inspect(connection).has_table(table.name):
        return
    try:
        with connection.begin_nested():
            table.create(connection)
    except sqlalchemy.exc.DBAPIError:  # another driver may have made it just now
        if not sqlalchemy.inspect(connection).has_table(table.name):
            raise
