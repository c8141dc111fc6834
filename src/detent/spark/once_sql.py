"""A database as a sink of `once`: the rows, and the batch in the table ``detent_ledger``, in one transaction.

The ledger's row is written first, with a condition: only a batch above the one that is there changes it. So of two
drivers with the same batch one waits for the other, and then changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from detent import crash
from detent.errors import Invalid, LimitExceeded, NotFound
from detent.extras import install_command
from detent.spark.once_batch import ExternalSink, Place, Select, check_select, in_tasks, selected
from detent.spark.once_mark import INPUTS_TABLE, inputs_table, sql_has, sql_mark
from detent.spark.once_query import COMPLETE, check_mode, output_mode
from detent.tables.marks import BatchKey
from detent.tables.merge import key_columns, one_row_a_key

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 << 20
"""Rows of one batch, and what they take: they are brought to the driver, whose connection has the transaction."""

INSERT_ROWS: Final = 5_000
"""Rows of one insert."""

LEDGER_TABLE: Final = "detent_ledger"
_DIALECTS: Final = ("sqlite", "postgresql")
_UTC: Final = pa.timestamp("us", tz="UTC")

Write = Callable[["Connection", Any], Any]


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
        _sqlalchemy()
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
    def place(self) -> Place:
        return Place(f"the row {self._label!r} of {LEDGER_TABLE}", self._engine)

    def check_mode(self, mode: str) -> None:
        if self._write is None:
            check_mode(mode, self._merge_on, None, f"the table {self._table}")

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        write = self._write or (self._replace if output_mode(batch) == COMPLETE else self._insert)
        rows = selected(batch, self._select)
        with self._open() as connection, connection.begin():
            _require_transactions(connection)
            ledger = _ledger(connection)
            if _holds(connection, ledger, self._label, key):
                return
        found = collect(rows)  # before the transaction: others wait for its locks
        with self._open() as connection, _undivided(connection):
            if _enter(connection, ledger, self._label, key):
                write(connection, found)
                crash.point("spark.once.sql_before_commit")
        crash.point("spark.once.sql_after_commit")

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """A connection; of an engine that is ours it is closed at the end, and not kept."""
        sqlalchemy = _sqlalchemy()
        if isinstance(self._engine, str):
            engine = sqlalchemy.create_engine(self._engine, poolclass=sqlalchemy.pool.NullPool)
        else:
            engine = self._engine()
        if engine.dialect.name not in _DIALECTS:
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
            rows = one_row_a_key(rows, self._merge_on)
            _require_unique(connection, table, self._merge_on)
            statement = merging(connection.dialect.name, table, self._merge_on, rows.column_names)
        for first in range(0, rows.num_rows, INSERT_ROWS):
            connection.execute(statement, rows.slice(first, INSERT_ROWS).to_pylist())


def _sqlalchemy() -> ModuleType:
    try:
        import sqlalchemy
        import sqlalchemy.dialects.postgresql
        import sqlalchemy.dialects.sqlite
    except ModuleNotFoundError as error:
        raise Invalid(f"to_sql needs the package sqlalchemy: {install_command('sql')}") from error
    return sqlalchemy


def _reflected(connection: Connection, name: str) -> Table:
    sqlalchemy = _sqlalchemy()
    schema, _, plain = name.rpartition(".")
    try:
        table: Table = sqlalchemy.Table(plain, sqlalchemy.MetaData(), schema=schema or None, autoload_with=connection)
    except sqlalchemy.exc.NoSuchTableError:
        raise NotFound(
            f"there is no table {name!r} in the database: create it first, with the columns it is to have"
        ) from None
    return table


def merging(dialect: str, table: Table, keys: tuple[str, ...], names: Iterable[str]) -> Any:
    """The statement that inserts a row, or replaces these columns of the one with its key."""
    insert = getattr(_sqlalchemy().dialects, dialect).insert(table)
    others = {name: insert.excluded[name] for name in names if name not in keys}
    where = [table.c[name] for name in keys]
    if not others:
        return insert.on_conflict_do_nothing(index_elements=where)
    return insert.on_conflict_do_update(index_elements=where, set_=others)


def _require_unique(connection: Connection, table: Table, keys: tuple[str, ...]) -> None:
    """Without an index that is unique a database cannot tell that a key is there."""
    inspector = _sqlalchemy().inspect(connection)
    found = [inspector.get_pk_constraint(table.name, table.schema).get("constrained_columns") or []]
    found += [one["column_names"] for one in inspector.get_unique_constraints(table.name, table.schema)]
    found += [one["column_names"] for one in inspector.get_indexes(table.name, table.schema) if _is_whole(one)]
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


# -- the ledger -------------------------------------------------------------------------------------------------


def _ledger(connection: Connection) -> Table:
    """The table of batches that the database has, made if it is not there; the one of their inputs is made after it."""
    table = ledger_table()
    if not _sqlalchemy().inspect(connection).has_table(INPUTS_TABLE):
        _create(connection, table, LEDGER_TABLE)
        _create(connection, inputs_table(_sqlalchemy()), INPUTS_TABLE)
    return table


def _create(connection: Connection, table: Table, name: str) -> None:
    """Make a table, unless it is there."""
    sa = _sqlalchemy()
    if sa.inspect(connection).has_table(name):
        return
    try:
        with connection.begin_nested():
            table.create(connection)
    except sa.exc.DBAPIError:  # another driver may have made it just now
        if not sa.inspect(connection).has_table(name):
            raise


def ledger_table() -> Table:
    """For each name, sink and query the highest batch that is in the database."""
    sa = _sqlalchemy()
    table: Table = sa.Table(
        LEDGER_TABLE,
        sa.MetaData(),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sink", sa.Text, primary_key=True),
        sa.Column("query", sa.Text, primary_key=True),
        sa.Column("batch", sa.BigInteger, nullable=False),
    )
    return table


def _row(table: Table, label: str, key: BatchKey) -> Any:
    return (table.c.name == key.name) & (table.c.sink == label) & (table.c.query == key.query)


def _holds(connection: Connection, table: Table, label: str, key: BatchKey) -> bool:
    """Whether the database has the batch, as far as a look can tell."""
    last = connection.execute(_sqlalchemy().select(table.c.batch).where(_row(table, label, key))).scalar()
    return sql_has(_sqlalchemy(), connection, label, key, last)


def _enter(connection: Connection, table: Table, label: str, key: BatchKey) -> bool:
    """Enter the batch; False if it is there. Another driver with the same one waits until this transaction ends."""
    if connection.execute(entering(connection.dialect.name, table, label, key)).first() is None:
        return not _holds(connection, table, label, key)
    sql_mark(_sqlalchemy(), connection, label, key)
    return True


def entering(dialect: str, table: Table, label: str, key: BatchKey) -> Any:
    """The statement that enters a batch if none above it is there, and answers a row if it did: not every driver counts
    the rows of such a statement."""
    kind = getattr(_sqlalchemy().dialects, dialect)
    insert = kind.insert(table).values(name=key.name, sink=label, query=key.query, batch=key.batch)
    conditional = insert.on_conflict_do_update(
        index_elements=[table.c.name, table.c.sink, table.c.query],
        set_={"batch": insert.excluded.batch},
        where=table.c.batch < insert.excluded.batch,
    )
    return conditional.returning(table.c.batch)


@contextmanager
def _undivided(connection: Connection) -> Iterator[None]:
    """A transaction that nobody ends but us: a part that was committed by itself would be lost with the next replay."""
    sqlalchemy = _sqlalchemy()
    done = False

    def refuse(connection: Connection) -> None:
        del connection
        if not done:
            raise Invalid("the function of to_sql must not commit: its rows and the ledger are committed together")

    sqlalchemy.event.listen(connection, "commit", refuse)
    with connection.begin() as transaction:
        _require_transactions(connection)
        yield
        if not transaction.is_active:
            raise Invalid("the function of to_sql must not roll back: raise an error, and the batch is tried again")
        done = True


def _require_transactions(connection: Connection) -> None:
    if _commits_by_itself(connection):
        raise Invalid("the engine commits each statement (AUTOCOMMIT): the rows and their batch need a transaction")


def _commits_by_itself(connection: Connection) -> bool:
    """Whether the driver commits after each statement, although a transaction was begun."""
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name != "sqlite":
        return getattr(driver, "autocommit", False) is True
    # One that was told to begin transactions by itself has begun one now; Python's own way begins it with a write.
    return driver.isolation_level is None and not driver.in_transaction


# -- the rows ---------------------------------------------------------------------------------------------------


def collect(frame: DataFrame) -> Any:
    """The rows of a batch as a table in the driver, in the order of its partitions; times in UTC."""
    found = [part for part in in_tasks(frame, partial(_packed, ROWS_MAX, BYTES_MAX)) if part is not None]
    tables = [pa.ipc.open_stream(part).read_all() for part in found] or [frame.limit(0).toArrow()]
    rows = pa.concat_tables(tables)
    _check_size(rows.num_rows, rows.nbytes, ROWS_MAX, BYTES_MAX)
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            rows = rows.set_column(place, field.name, rows.column(place).cast(_UTC))
    return rows


def _packed(rows_max: int, bytes_max: int, batches: Iterator[Any]) -> bytes | None:
    """What a task does: its rows as an Arrow stream; None without any."""
    found = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        _check_size(rows, size, rows_max, bytes_max)
        found.append(batch)
    if not found:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found[0].schema) as writer:
        for batch in found:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _check_size(rows: int, size: int, rows_max: int, bytes_max: int) -> None:
    if rows > rows_max or size > bytes_max:
        raise LimitExceeded(
            f"a batch brings at most {rows_max} rows of {bytes_max} bytes together to the driver: let the source give "
            "fewer rows a batch, or aggregate them first"
        )
