"""Deliveries to an SQL database: the user's rows and the delivery key commit in one transaction.

Why nothing happens twice, under READ COMMITTED, with any number of processes of which some have stood still:

- Two with the same number: the second waits at the first one's row until that commits, and then finds it.
- A number whose row was forgotten: the row went in one transaction with a higher floor. Whoever can enter it again came
  after that commit, so that `confirm`, which is a later statement, sees the floor.
- The floor or the series changes after `confirm`: it cannot. `confirm` holds a lock on their row until the commit, and
  who changes them waits for it. It comes last, so that they wait for no function of the user's.
- What `enter` says of the floor may be out of date by then; it only saves calling the function for nothing.
- Nobody waits in a circle here: who raises a floor or replaces a series has that row first, and then removes rows that
  are committed; who delivers has its own row first, which nobody else removes before it is committed.

SQLite has one who writes, from the first statement on, so all of it is one after the other.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from detent import forks
from detent.errors import Corrupt, Fenced, Invalid, OutcomeUnknown, Unavailable
from detent.processor import delivery_rows as rows_of
from detent.processor.delivery_rows import TABLE, DeliveryRows
from detent.processor.sink_base import SINK, Sink
from detent.processor.step import Step
from detent.sql.databases import (
    ATTEMPTS,
    RETRY,
    adopt,
    file_of,
    is_passing,
    open_engine,
    parse,
    state_of,
    transact,
)
from detent.sql.dialects import ABORTED, POSTGRESQL, SQLITE, ends_transaction

FORGET_EVERY: Final = 1_000
"""Rows of deliveries that are done are removed so many numbers at a time: each removal costs a transaction."""

ADMISSIONS: Final = 3
"""How often a delivery is tried whose series was not known, or was replaced meanwhile."""

_WHAT: Final = "a SqlSink"

_UNLIMITED: Final = 0
"""A pool of SQLAlchemy's that keeps every connection: each thread of the processor has one at a time."""

_ENDED: Final = (
    "the function of a SqlSink ended its transaction itself (commit, rollback or close of the connection): its rows "
    "and the delivery key are committed together, when it returns. Raise an error to have nothing committed"
)

_FIND_SCHEMA: Final = sqlalchemy.text(
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(CAST(:name AS text))"
)

Write = TypeVar("Write", bound=Callable[..., Any])
Result = TypeVar("Result")


class SqlSink(Sink):
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
    it stands still in the middle of its transaction, whoever takes over waits for that: at the same delivery on
    PostgreSQL, for the whole file on SQLite. End such a process.

    A database that was deleted, or went back to an older copy, is refused (`Corrupt`): the processor has noted which
    delivery it had. Put it back, or reset the processor.

    Each processor has rows of its own, under its identity in the graph's store: one that gets another name keeps them,
    and graphs of the same name in two stores do not meet.
    """

    def __init__(self, database: str | Engine, *, table: str = TABLE) -> None:
        super().__init__()
        rows_of.check_table(table)
        self._table = table
        self._url = parse(database, _WHAT, "shop.db") if isinstance(database, str) else None
        self._given = None if isinstance(database, str) else database
        if self._given is not None:
            adopt(self._given, _WHAT)  # refused now, and not at the first delivery
        # By the generation of the process: a forked child has its own connections, and never touches its parent's.
        self._opened: dict[int, tuple[Engine, DeliveryRows]] = {}
        self._floors: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._files: dict[int, tuple[int, int]] = {}
        """Which file a database of SQLite was when it was opened."""

        self._last = threading.local()

    @staticmethod
    def schema(dialect: str, *, table: str = TABLE) -> str:
        """The statements that make the tables, for migrations: `dialect` is "sqlite" or "postgresql"."""
        return rows_of.schema(dialect, table)

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
            found = self._opened.pop(forks.generation, None)
        if found is not None and self._given is None:
            found[0].dispose()

    # -- a delivery ---------------------------------------------------------------------------------------------

    def _deliver(self, write: Callable[[Connection], Any], step: Step) -> None:
        engine, rows = self._database()
        key = {"of_processor": step.owner, "of_series": step.series, "of_number": step.number}
        self._forget(engine, rows, step)
        for _ in range(ADMISSIONS):
            if _patiently(functools.partial(_once, engine, rows, write, key)):
                self._note(step)
                return
            transact(engine, functools.partial(_admit, rows, step))
        raise Unavailable(f"the rows of {step.name} in {self._table}{rows_of.FLOORS} are changed by somebody else")

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
        engine, rows = self._database()
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
        url = self._url if self._given is None else self._given.url
        assert url is not None
        return file_of(url)

    def _require_same_file(self, engine: Engine) -> None:
        """`Corrupt` if the file of the database was deleted, or another one is in its place, since it was opened: what
        is written now would be in a file without a name. The next delivery opens what is there then."""
        file, known = self._file, self._files.get(forks.generation)
        if known is None or file is None or _identity(file) == known:
            return
        del self._opened[forks.generation]
        engine.dispose()
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

    def _database(self) -> tuple[Engine, DeliveryRows]:
        """The engine of this process, and the statements on the tables in it, which are there."""
        with self._lock:
            self._require_open()
            found = self._opened.get(forks.generation)
            if found is None:
                found = self._opened[forks.generation] = self._open()
                identity = None if self._file is None else _identity(self._file)
                if identity is not None:
                    self._files[forks.generation] = identity
            self._require_same_file(found[0])
            return found

    def _open(self) -> tuple[Engine, DeliveryRows]:
        engine = self._engine()
        try:
            return engine, transact(engine, self._made)
        except BaseException:
            if self._given is None:
                engine.dispose()
            raise

    def _engine(self) -> Engine:
        if self._given is not None:
            if self._opened:  # by a process of which this is a child
                self._given.dispose(close=False)
            return adopt(self._given, _WHAT)
        assert self._url is not None
        file = file_of(self._url)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        return open_engine(self._url, pool_size=_UNLIMITED, pool_pre_ping=True)

    def _made(self, connection: Connection) -> DeliveryRows:
        """Make the tables; and have statements name the schema they are in, so that a function which sets another
        search_path for its own tables does not change where deliveries are."""
        dialect = connection.dialect.name
        rows_of.check_table(self._table, dialect)
        rows = rows_of.delivery_rows(self._table, dialect)
        rows.metadata.create_all(connection)
        if dialect == POSTGRESQL and "." not in self._table:
            schema = connection.scalar(_FIND_SCHEMA, {"name": f'"{self._table}"'})
            name = f"{schema}.{self._table}"
            if schema is not None and rows_of.is_table(name) and not schema.startswith("pg_"):
                return rows_of.delivery_rows(name, dialect)
        return rows


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
    with _undivided(engine) as connection:
        if connection.execute(rows.enter, key).first() is None:
            return connection.execute(rows.look, key).first() is not None
        begun = connection.get_transaction()
        event.listen(connection, "before_cursor_execute", _require_transaction)
        write(connection)
        if connection.closed or connection.get_transaction() is not begun or begun is None or not begun.is_active:
            raise Invalid(_ENDED)
        if connection.invalidated:
            raise Unavailable("the connection was lost in the transaction, and nothing of it was committed")
        if connection.execute(rows.confirm, key).first() is None:
            raise Fenced(
                f"another process has taken this processor over, and gone on behind number {key['of_number']}: "
                "nothing of this delivery was committed"
            )
    return True


def _require_transaction(connection: Connection, *_: Any) -> None:
    """`Invalid` where SQLite has rolled the transaction back by itself, for a statement or a trigger that says so: what
    comes after would be committed without the key."""
    if connection.dialect.name == SQLITE and not connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]
        raise Invalid(_ENDED)


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


@contextmanager
def _undivided(engine: Engine) -> Iterator[Connection]:
    """A transaction that nobody ends but us."""
    is_ending = False

    def refuse_commit(connection: Connection) -> None:
        if not is_ending:
            connection.connection.rollback()  # SQLAlchemy will not: for it, the transaction has ended now
            raise Invalid(_ENDED)

    def refuse_endings(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        """Statements in text that end the transaction pass by SQLAlchemy, which would not know."""
        if ends_transaction(statement):
            raise Invalid(_ENDED)

    with engine.connect() as connection:
        transaction = connection.begin()
        event.listen(connection, "commit", refuse_commit)
        event.listen(connection, "before_cursor_execute", refuse_endings)
        try:
            yield connection
            is_ending = True
            _commit(transaction)
        except BaseException:
            if not transaction.is_active and not connection.closed:
                connection.invalidate()  # SQLAlchemy takes it for ended, and would not roll it back
            raise


def _commit(transaction: sqlalchemy.RootTransaction) -> None:
    try:
        transaction.commit()
    except DBAPIError as error:
        if is_passing(error):
            raise _CommitLost(error) from error
        raise


class _CommitLost(Exception):
    """Nobody said whether a transaction was committed. The next try sees it by the key."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(error)
        self.error = error


def _patiently(work: Callable[[], Result]) -> Result:
    """What `work` answers, done again when others came in the way. A row that is there twice is not such a case: it is
    the function's own."""
    failure: Exception
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except sqlalchemy.exc.TimeoutError as error:
            raise Unavailable(f"the engine's pool had no connection left: {error}") from error
        except _CommitLost as error:
            failure = error
        except DBAPIError as error:
            if state_of(error) == ABORTED:
                raise Invalid(
                    "a statement of the function failed, it went on, and PostgreSQL takes nothing more in such a "
                    "transaction: let the error out, or try such statements within connection.begin_nested()"
                ) from error
            if not is_passing(error):
                raise
            failure = error
        time.sleep(RETRY.pause_s(attempt))
    if isinstance(failure, _CommitLost):
        raise OutcomeUnknown(f"nobody said whether a delivery was committed: {failure.error.orig}") from failure
    raise Unavailable(f"the database cannot be had: {getattr(failure, 'orig', failure)}") from failure


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
