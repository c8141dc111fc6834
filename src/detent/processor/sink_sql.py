"""Deliveries to an SQL database: the user's rows and the delivery key commit in one transaction.

Why nothing happens twice, under READ COMMITTED, with any number of processes of which some have stood still:

- Two with the same number: the second waits at the first one's row until that commits, and then finds it.
- A number whose row was forgotten: the row went in one transaction with a higher floor. A transaction that can
  enter it again came after that commit, so that `confirm`, which is a later statement, sees the floor.
- The floor or the series changes after `confirm`: it cannot. `confirm` holds a lock on their row until the commit, and
  who changes them waits for it. It comes last, so that they wait for no function of the user's.
- What `enter` says of the floor may be out of date by then; it only saves calling the function for nothing.
- No two wait for each other: one that raises a floor or replaces a series has that row first, and then removes rows
  that are committed; one that delivers has its own row first, which no other removes before it is committed.

SQLite has one who writes, from the first statement on, so all of it is one after the other.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Executable,
    MetaData,
    Table,
    bindparam,
    cast,
    delete,
    exists,
    select,
    update,
)

from detent import forks
from detent.errors import Corrupt, Fenced, Invalid, Unavailable
from detent.processor.sink_base import SINK, DeliverySink
from detent.processor.step import Step
from detent.sql.databases import Database, adopt, file_of
from detent.sql.dialects import DIALECTS
from detent.sql.rows import BYTEWISE, durable, making, marking, now
from detent.sql.tables import TableName, schema_of, table_named, within
from detent.sql.transactions import own_transaction, patiently, transact

TABLE: Final = "detent_deliveries"
FLOORS: Final = "_floors"

OVER: Final = -1
"""The number of the row that says that a series is over: those of deliveries begin at 0."""

FORGET_EVERY: Final = 1_000
"""Rows of deliveries that are done are removed so many numbers at a time: each removal costs a transaction."""

ADMISSIONS: Final = 3
"""How often a delivery is tried whose series was not known, or was replaced meanwhile."""

_WHAT: Final = "a SqlSink"

_ENDED: Final = (
    "the function of a SqlSink ended its transaction itself (commit, rollback or close of the connection): its rows "
    "and the delivery key are committed together, when it returns. Raise an error to have nothing committed"
)

Write = TypeVar("Write", bound=Callable[..., Any])


class SqlSink(DeliverySink):
    """Effects in a SQLite or PostgreSQL database, exactly once.

    >>> sql = SqlSink("postgresql+psycopg://shop@db/shop")
    >>> @graph.sink(input="orders")
    ... @sql.sink
    ... def bill(connection, order: Order) -> None:
    ...     connection.execute(insert(invoices).values(order=order.id, total=order.total))

    The function gets a connection of SQLAlchemy's, in a transaction, and then what any sink gets. When it returns, its
    rows and the delivery key are committed together. A delivery that is there already is not made again: the function
    is not called. It may be called again after a failure, with nothing left of the call before; so have no effects but
    in this database. It neither commits nor rolls back; savepoints are welcome.

    `database` is a URL of SQLAlchemy's, or an engine, which stays yours to close. The tables `table` and
    ``<table>_floors`` are made at the first delivery if they are not there; `SqlSink.schema` has them as text. The
    first keeps about as many rows as a processor has deliveries in its last thousand, or its last batch.

    A process that stood still, and goes on after another has taken over, gets `Fenced` and commits nothing. As long as
    it stands still in the middle of its transaction, the one that takes over waits for that: at the same delivery on
    PostgreSQL, for the whole file on SQLite. End such a process.

    A database that was deleted, or went back to an older copy, is refused (`Corrupt`): the processor has noted which
    delivery it had. Put it back, or reset the processor.

    Each processor has rows of its own, under its identity in the graph's store: one that gets another name keeps them,
    and graphs of the same name in two stores do not meet.
    """

    def __init__(self, database: str | Engine, *, table: str = TABLE) -> None:
        super().__init__()
        table_named(table)
        self._table = table
        if not isinstance(database, str):
            adopt(database, _WHAT)  # refused now, and not at the first delivery
        self._database = Database(database, _WHAT, "shop.db", self._prepare)
        self._floors: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._files: dict[int, tuple[int, int]] = {}
        """Which file a database of SQLite was when it was opened."""

        self._last = threading.local()

    @staticmethod
    def schema(dialect: str, *, table: str = TABLE) -> str:
        """The statements that make the tables, for migrations: `dialect` is "sqlite" or "postgresql"."""
        return _schema(dialect, table)

    def sink(self, function: Write) -> Callable[..., None]:
        """Decorator: make a sink of a function whose first parameter is a connection."""
        signature, inner = _signatures(function)

        @functools.wraps(function)
        def deliver(*values: Any, **named: Any) -> None:
            arguments = signature.bind(*values, **named).arguments
            step = arguments["step"]
            if not isinstance(step, Step):
                raise Invalid(f"a sink gets its step from the graph, as step=..., and not {step!r}")
            if "step" not in inner:
                del arguments["step"]
            self._require_one_function(step, function)
            self._deliver(lambda connection: function(connection, **arguments), step)

        deliver.__signature__ = signature  # type: ignore[attr-defined]
        setattr(deliver, SINK, self)
        deliver.__annotations__ = {
            name: one.annotation for name, one in signature.parameters.items() if one.annotation is not one.empty
        }
        return deliver

    def close(self) -> None:
        """Close the connections that this sink has opened by itself."""
        with self._lock:
            super().close()
        self._database.close()

    # -- a delivery ---------------------------------------------------------------------------------------------

    def _deliver(self, write: Callable[[Connection], Any], step: Step) -> None:
        engine, rows = self._opened()
        key = {"of_processor": step.owner, "of_series": step.series, "of_number": step.number}
        self._forget(engine, rows, step)
        for _ in range(ADMISSIONS):
            if patiently(functools.partial(_once, engine, rows, write, key)):
                self._note(step)
                return
            transact(engine, functools.partial(_admit, rows, step))
        raise Unavailable(f"the rows of {step.name} in {self._table}{FLOORS} are changed by another process")

    def _forget(self, engine: Engine, rows: DeliveryRows, step: Step) -> None:
        """Now and then, remove the rows below the floor. Before the delivery, so that a failure of it is one."""
        with self._lock:
            known = self._floors.get(step.owner)
            since = known[1] if known is not None and known[0] == step.series else 0
            if step.floor - since < FORGET_EVERY:
                return
            self._floors[step.owner] = (step.series, step.floor)
        values = {"of_processor": step.owner, "of_series": step.series, "new_floor": step.floor}

        def work(connection: Connection) -> None:
            if connection.execute(rows.raise_floor, values).first() is not None:
                connection.execute(rows.forget, values)

        try:
            transact(engine, work)
        except BaseException:
            with self._lock:
                self._floors.pop(step.owner, None)
            raise

    # -- what is known to be there ------------------------------------------------------------------------------

    def _note(self, step: Step) -> None:
        with self._lock:
            known = self._newest.get(step.owner, (step.series, step.number))
            self._newest[step.owner] = max(known, (step.series, step.number))

    def newest(self, owner: str) -> tuple[str, int] | None:
        """The newest delivery of a processor that this process has made, or has found made."""
        with self._lock:
            return self._newest.get(owner)

    def remembers(self, owner: str, series: str, number: int) -> bool:
        """Whether the database has a delivery that was made once, or that it was forgotten because it is done."""
        file = self._file
        if file is not None and not file.exists():
            return False  # and is not made by a question
        engine, rows = self._opened()
        key = {"of_processor": owner, "of_series": series, "of_number": number}

        def ask(connection: Connection) -> bool:
            if connection.execute(rows.look, key).first() is not None:
                return True
            found = connection.execute(rows.floor, key).first()
            return found is not None and (found.series > series or (found.series == series and found.floor > number))

        return transact(engine, ask)

    @property
    def _file(self) -> Path | None:
        """The file of a database that is one."""
        return file_of(self._database.url)

    def _require_same_file(self, engine: Engine) -> None:
        """`Corrupt` if the file of the database was deleted, or another one is in its place, since it was opened: what
        is written now would be in a file without a name. The next delivery opens what is there then."""
        file, known = self._file, self._files.get(forks.generation)
        if known is None or file is None or _identity(file) == known:
            return
        del self._files[forks.generation]
        self._database.close()
        engine.dispose()  # also of one that is the user's: it has connections to a file without a name
        raise Corrupt(
            f"the database {file} was deleted or replaced while this process had it open. Put it back; or reset the "
            "processor, to an offset from which it shall deliver again"
        )

    def _require_one_function(self, step: Step, function: Callable[..., Any]) -> None:
        """A step is one delivery, and is in one thread."""
        before, known = getattr(self._last, "call", (None, function))
        self._last.call = (step, function)
        if before is step and known is not function:
            raise Invalid(
                f"{step.name} calls two functions of one SqlSink, {known!r} and {function!r}: they would have one "
                "delivery key, and the second would be taken for done. Write the rows of both in one function"
            )

    # -- the database -------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[Engine, DeliveryRows]:
        """The engine of this process, and the statements on the tables in it, which are there."""
        with self._lock:
            self._require_open()
            found = self._database.opened()
            if forks.generation not in self._files and self._file is not None:
                identity = _identity(self._file)
                if identity is not None:
                    self._files[forks.generation] = identity
            self._require_same_file(found[0])
            return found

    def _prepare(self, connection: Connection) -> DeliveryRows:
        """Make the tables; and have statements name the schema they are in."""
        dialect = connection.dialect.name
        rows = delivery_rows(self._table, dialect)
        rows.metadata.create_all(connection)
        find = schema_of(dialect)
        if find is None or "." in self._table:
            return rows
        schema = connection.scalar(sqlalchemy.text(find), {"name": f'"{self._table}"'})
        return delivery_rows(within(schema, self._table), dialect)


def _identity(file: Path) -> tuple[int, int] | None:
    """What tells a file from others of its name; None if there is none."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


# -- in a transaction -------------------------------------------------------------------------------------------


def _once(engine: Engine, rows: DeliveryRows, write: Callable[[Connection], Any], key: dict[str, Any]) -> bool:
    """Deliver, or see that it was done; False if neither can be, because floor or series say no."""
    with engine.connect() as connection, own_transaction(connection, _ENDED) as transaction:
        if connection.execute(rows.enter, key).first() is None:
            return connection.execute(rows.look, key).first() is not None
        write(connection)
        transaction.whole()
        if connection.execute(rows.confirm, key).first() is None:
            raise Fenced(
                f"another process has taken this processor over, and gone on behind number {key['of_number']}: "
                "nothing of this delivery was committed"
            )
    return True


def _admit(rows: DeliveryRows, step: Step, connection: Connection) -> None:
    """Have the processor's series be this one, unless it is over; `Fenced` if there is nothing to be delivered."""
    mine = {"of_processor": step.owner, "of_series": step.series, "new_floor": step.floor}
    connection.execute(rows.begin, mine)
    series, floor = connection.execute(rows.lock, mine).one()
    if series == step.series:
        if step.number < floor:
            raise Fenced(
                f"number {step.number} of {step.name} is done for good, as all below {floor}: another process has gone "
                "on from there. If the graph's store is an older copy, reset the processor, for keys of its own"
            )
        return
    if step.series < series or connection.execute(rows.is_over, mine).first() is not None:
        raise Fenced(
            f"the deliveries of {step.name} have other keys now, {series} instead of {step.series}: it was reset, and "
            "this process is of the time before"
        )
    old = {**mine, "of_series": series}
    connection.execute(rows.end, old)
    connection.execute(rows.forget_all, old)
    connection.execute(rows.replace, mine)


# -- functions --------------------------------------------------------------------------------------------------


def _signatures(function: Callable[..., Any]) -> tuple[inspect.Signature, frozenset[str]]:
    """How the graph sees the function, without its connection and with a step; and the parameters that it has."""
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(f"a SqlSink takes a plain function of a connection and a message, not {function!r}")
    _, *others = inspect.signature(function).parameters.values() or (None,)
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    inner = frozenset(one.name for one in others)
    if not inner - {"step"} or any(one.kind not in named for one in others):
        raise Invalid(
            f"{getattr(function, '__qualname__', function)!r} needs a connection and a message: write "
            "def write(connection, order), or def write(connection, order, step)"
        )
    outer = [one.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in others if one.name != "step"]
    step = inspect.Parameter("step", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Step)
    required = [one for one in outer if one.default is one.empty]
    optional = [one for one in outer if one.default is not one.empty]
    return inspect.Signature([*required, step, *optional]), inner


# -- the tables -------------------------------------------------------------------------------------------------------


class DeliveryRows(NamedTuple):
    """What is asked of the two tables. Each statement takes :of_processor, most take :of_series and :of_number.

    A delivery is a row of the one table, until its number is below the floor. The other has one row for each
    processor: the series that its deliveries belong to, and the floor, below which everything is done. In the first
    table, a row with the number -1 says that a series is over.
    """

    metadata: MetaData
    enter: Executable
    """Adds the row of a delivery, and answers one; none if the row is there, if the number is below the floor, or if
    the series is not the processor's."""
    look: Executable
    """Answers a row if that of the delivery is there."""
    confirm: Executable
    """Answers a row if the series is the processor's, and the number not below the floor; both stay so until the
    transaction ends, which waits for the disk."""
    begin: Executable
    """The first row of a processor, with :new_floor; nothing if it has one."""
    lock: Executable
    """Answers series and floor; no other transaction changes them until this one ends."""
    floor: Executable
    """Answers series and floor."""
    is_over: Executable
    """Answers a row if the series was replaced."""
    end: Executable
    """The series is over."""
    forget_all: Executable
    """The deliveries of a series go."""
    replace: Executable
    """The processor's series is :of_series from now on, and its floor :new_floor."""
    raise_floor: Executable
    """To :new_floor; answers a row if it was lower, and the series is the processor's."""
    forget: Executable
    """The deliveries below :new_floor go."""


def _schema(dialect: str, table: str = TABLE) -> str:
    """The statements that make the tables, for those who have migrations of their own."""
    if dialect not in DIALECTS:
        raise Invalid(f"deliveries are kept in SQLite or PostgreSQL, not in {dialect!r}")
    return making(dialect, _tables(table_named(table, dialect))[0].metadata)


def delivery_rows(name: str, dialect: str) -> DeliveryRows:
    """The tables of that name, and their statements; `Invalid` for a name that this kind of database cannot take."""
    rows, floors = _tables(table_named(name, dialect))
    processor, series = bindparam("of_processor", type_=BYTEWISE), bindparam("of_series", type_=BYTEWISE)
    number, floor = bindparam("of_number", type_=BigInteger), bindparam("new_floor", type_=BigInteger)
    here = (rows.c.processor == processor) & (rows.c.series == series)
    mine = floors.c.processor == processor
    is_due = mine & (floors.c.series == series) & (floors.c.floor <= number)
    entered = select(floors.c.processor, floors.c.series, cast(number, BigInteger), now(dialect)).where(is_due)
    over = {"processor": processor, "series": series, "number": OVER, "delivered_at": now(dialect)}
    return DeliveryRows(
        rows.metadata,
        enter=marking(dialect, rows, source=entered).returning(rows.c.number),
        look=select(rows.c.number).where(here, rows.c.number == number),
        confirm=select(durable(dialect))
        .select_from(floors)
        .where(is_due, exists().where(here, rows.c.number == number))
        .with_for_update(read=True, of=floors),
        begin=marking(dialect, floors, processor=processor, series=series, floor=floor),
        lock=select(floors.c.series, floors.c.floor).where(mine).with_for_update(),
        floor=select(floors.c.series, floors.c.floor).where(mine),
        is_over=select(rows.c.number).where(here, rows.c.number == OVER),
        end=marking(dialect, rows, **over),
        forget_all=delete(rows).where(here, rows.c.number > OVER),
        replace=update(floors).where(mine).values(series=series, floor=floor),
        raise_floor=update(floors)
        .where(mine, floors.c.series == series, floors.c.floor < floor)
        .values(floor=floor)
        .returning(floors.c.floor),
        forget=delete(rows).where(here, rows.c.number > OVER, rows.c.number < floor),
    )


def _tables(table: TableName) -> tuple[Table, Table]:
    metadata = MetaData(schema=table.schema or None)
    rows = Table(
        table.name,
        metadata,
        Column("processor", BYTEWISE, primary_key=True),
        Column("series", BYTEWISE, primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("delivered_at", BigInteger, nullable=False),
    )
    floors = Table(
        f"{table.name}{FLOORS}",
        metadata,
        Column("processor", BYTEWISE, primary_key=True),
        Column("series", BYTEWISE, nullable=False),
        Column("floor", BigInteger, nullable=False),
    )
    return rows, floors
