"""Handlers that write through a driver's own connections: sqlite3 or psycopg."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final

from detent.bus.calling import is_coroutine_function
from detent.bus.sql_port import SqlPort, port_of
from detent.bus.transport import Transport
from detent.bus.unit_rules import (
    BROKEN,
    ENDED,
    SAVEPOINT,
    SET_DURABLE,
    check_sqlite_file,
    committing,
    sqlite_place,
)
from detent.dialects import ABORTED, POSTGRESQL, is_passing_error, state_of
from detent.errors import Invalid

_ENDINGS: Final = ("commit", "rollback", "close")

_NO_SAVEPOINT: Final = "3B001"
"""PostgreSQL's state of a savepoint that is not there."""

_ANOTHER: Final = (
    "a unit of work needs a function that answers a new sqlite3.Connection, psycopg.Connection or "
    "psycopg.AsyncConnection, or a context manager with one, such as psycopg_pool's pool.connection"
)

_SETTLE: Final = f"RELEASE SAVEPOINT {SAVEPOINT}; COMMIT"
"""In one round trip. The first part fails if the transaction has ended meanwhile, or a statement in it has failed; the
second is then not done."""


class SqliteUnit:
    """One transaction of a sqlite3 connection, which has the write lock from its beginning."""

    def __init__(self, connection: sqlite3.Connection, let_go: Callable[[], Any]) -> None:
        self._connection = connection
        self._let_go = let_go
        self._has_refused = False
        self._is_begun = False
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = _provided(connection)

    def begin(self) -> None:
        """Begin, and have SQLite refuse to end it to everybody else."""
        connection = self._connection
        if getattr(connection, "autocommit", -1) is False:
            raise Invalid("sqlite3 begins transactions itself with autocommit=False: leave that out")
        if connection.in_transaction:
            raise Invalid("the connection is in a transaction already: the function has to answer one that nobody uses")
        connection.execute("BEGIN IMMEDIATE").close()
        connection.execute(f"SAVEPOINT {SAVEPOINT}").close()
        self._is_begun = True
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, what: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and what in ("COMMIT", "ROLLBACK"):
            self._has_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun."""
        self._allow()
        if self._has_refused:
            raise Invalid(ENDED)
        try:
            self._connection.execute(f"RELEASE {SAVEPOINT}").close()
        except sqlite3.Error as error:
            raise Invalid(ENDED) from error
        with committing():
            self._connection.execute("COMMIT").close()

    def rollback(self) -> None:
        """Undo everything, unless a handler has closed the connection, which does so, too."""
        if self._is_begun:
            self._allow()
            if self._is_open() and self._connection.in_transaction:
                self._connection.execute("ROLLBACK").close()

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self.rollback()
        finally:
            self._let_go()

    def _allow(self) -> None:
        if self._is_open():
            self._connection.set_authorizer(None)

    def _is_open(self) -> bool:
        try:
            return self._connection.total_changes >= 0
        except sqlite3.ProgrammingError as error:
            if "closed" in str(error):
                return False
            raise


class PsycopgUnit:
    """One transaction of a psycopg connection."""

    def __init__(self, connection: Any, let_go: Callable[[], Any]) -> None:
        self._connection = connection
        self._let_go = let_go
        self._refused: list[str] = []
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = _provided(connection)

    def begin(self) -> None:
        """Begin."""
        self._connection.execute(_beginning(self._connection))
        _forbid(self._connection, self._refused)

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun, and nothing in it has failed."""
        _allow(self._connection)
        _check_whole(self._connection, self._refused)
        with committing(), _Settling():
            self._connection.execute(_SETTLE)

    def rollback(self) -> None:
        """Undo everything. A transaction ends with its connection, if that is broken."""
        _allow(self._connection)
        if _is_open(self._connection):
            try:
                self._connection.rollback()
            except Exception as error:
                if not is_passing_error(error):
                    raise
                self._connection.close()

    def close(self) -> None:
        """Let go of the connection. What a pool gets back has nothing open: it would commit that."""
        try:
            self.rollback()
        finally:
            self._let_go()


class AsyncPsycopgUnit:
    """The same for asyncio."""

    def __init__(self, connection: Any, let_go: Callable[[], Any]) -> None:
        self._connection = connection
        self._let_go = let_go
        self._refused: list[str] = []
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = _provided(connection)

    async def begin(self) -> None:
        """Begin."""
        await self._connection.execute(_beginning(self._connection))
        _forbid(self._connection, self._refused)

    async def commit(self) -> None:
        """See `PsycopgUnit`."""
        _allow(self._connection)
        _check_whole(self._connection, self._refused)
        with committing(), _Settling():
            await self._connection.execute(_SETTLE)

    async def rollback(self) -> None:
        """See `PsycopgUnit`."""
        _allow(self._connection)
        if _is_open(self._connection):
            try:
                await self._connection.rollback()
            except Exception as error:
                if not is_passing_error(error):
                    raise
                await self._connection.close()

    async def close(self) -> None:
        """Let go of the connection, also if this is cancelled: its pool would not see it again."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        try:
            await self.rollback()
        finally:
            await self._let_go()


# -- psycopg ----------------------------------------------------------------------------------------------------


def _beginning(connection: Any) -> str:
    """What begins a transaction, in one round trip; psycopg says BEGIN by itself where it does not commit each
    statement."""
    if connection.info.transaction_status != 0:
        raise Invalid("the connection is in a transaction already: the function has to answer one that nobody uses")
    begin = "BEGIN; " if connection.autocommit else ""
    return f"{begin}{SET_DURABLE}; SAVEPOINT {SAVEPOINT}"


def _forbid(connection: Any, refused: list[str]) -> None:
    """Nobody ends the transaction through the connection's own methods; who tries is noted."""

    def refuse(name: str) -> Callable[..., Any]:
        def raise_it(*_: Any, **__: Any) -> Any:
            refused.append(name)
            raise Invalid(ENDED)

        return raise_it

    for name in _ENDINGS:
        setattr(connection, name, refuse(name))


def _allow(connection: Any) -> None:
    for name in _ENDINGS:
        vars(connection).pop(name, None)


def _is_open(connection: Any) -> bool:
    """Whether there is a transaction that could be undone."""
    return not connection.closed and connection.info.transaction_status != 0


def _check_whole(connection: Any, refused: list[str]) -> None:
    """A handler that was told not to, and went on, has not done what it meant to do."""
    if refused or (connection.closed and not connection.broken):
        raise Invalid(ENDED)


class _Settling:
    """Tells errors of `_SETTLE` apart: those that say that the transaction is not whole, and those of the commit."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        state = state_of(error)
        if state == ABORTED:
            raise Invalid(BROKEN) from error
        if state in (_NO_SAVEPOINT, "25P01"):
            raise Invalid(ENDED) from error


# -- where connections come from --------------------------------------------------------------------------------


def _kinds() -> tuple[type[Any], ...]:
    psycopg = sys.modules.get("psycopg")
    return (sqlite3.Connection,) if psycopg is None else (
        sqlite3.Connection, psycopg.Connection, psycopg.AsyncConnection
    )  # fmt: skip


def _keys(kind: type[Any]) -> list[Any]:
    return ["connection", *(base for base in kind.__mro__ if issubclass(base, _kinds()))]


def _provided(connection: Any) -> dict[Any, Any]:
    return dict.fromkeys(_keys(type(connection)), connection)


class DbApiUnitOfWork:
    """A connection of sqlite3's or psycopg's for each message, in a transaction that the bus commits.

    >>> bus = Bus("billing", ..., unit_of_work=DbApiUnitOfWork(lambda: sqlite3.connect("shop.db")))
    >>> bus = Bus("billing", ..., unit_of_work=DbApiUnitOfWork(pool.connection))  # psycopg_pool
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, connection: sqlite3.Connection):
    ...     connection.execute("INSERT INTO invoices ...")

    `connect` answers a new connection, which is closed at the end, or a context manager with one, which is left then.
    It may be ``async def``, or answer an async context manager; handlers then run on an event loop.

    Handlers ask for ``connection``, or by its class. They never end the transaction; savepoints are theirs, and so is
    psycopg's ``connection.transaction()``. While a unit of sqlite3's is open the connection's authorizer is ours.
    SQLite has one writer for the whole file, which is a unit from its beginning to its end: others wait as long as
    ``sqlite3.connect(timeout=...)`` says, and then fail with ``database is locked``, which is tried again.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        if not callable(connect):
            raise Invalid(f"{_ANOTHER}, and not {connect!r}")
        self._connect = connect

    @cached_property
    def _sample(self) -> tuple[type[Any], str | None]:
        """The class of the connections and their place, by looking at one. An async one is not waited for."""
        if is_coroutine_function(self._connect):
            return _async_kind(), None
        found = self._connect()
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            return _async_kind(), None
        if isinstance(found, _kinds()):
            return self._look(found, found.close)
        if not hasattr(found, "__enter__"):
            if hasattr(found, "__aenter__"):
                return _async_kind(), None
            raise Invalid(f"{_ANOTHER}, and not a {type(found).__name__}")
        connection = found.__enter__()
        return self._look(connection, lambda: found.__exit__(None, None, None))

    def _look(self, connection: Any, let_go: Callable[[], Any]) -> tuple[type[Any], str | None]:
        try:
            port_of(connection)
            return type(connection), _place_of(connection)
        finally:
            let_go()

    @property
    def is_async(self) -> bool:
        """Whether connections are of asyncio."""
        psycopg = sys.modules.get("psycopg")
        return psycopg is not None and issubclass(self._sample[0], psycopg.AsyncConnection)

    @property
    def provided(self) -> frozenset[Any]:
        """What handlers can ask for."""
        return frozenset(_keys(self._sample[0]))

    @property
    def place(self) -> str | None:
        """Which database it is; not known of async ones before they are used."""
        return self._sample[1]

    def check(self, transport: Transport) -> None:
        """Refuse a SQLite database that may lose what it commits. PostgreSQL is told in each transaction."""
        if not issubclass(self._sample[0], sqlite3.Connection):
            return
        connection, let_go = self._entered()
        try:
            check_sqlite_file(lambda query: connection.execute(query).fetchone()[0], transport)
        finally:
            let_go()

    def begin(self) -> SqliteUnit | PsycopgUnit | Awaitable[AsyncPsycopgUnit]:
        """Begin a transaction, on a connection of its own."""
        return self._begin_async() if self.is_async else self._begin()

    def _begin(self) -> SqliteUnit | PsycopgUnit:
        connection, let_go = self._entered()
        unit: SqliteUnit | PsycopgUnit
        if isinstance(connection, sqlite3.Connection):
            unit = SqliteUnit(connection, let_go)
        else:
            unit = PsycopgUnit(connection, let_go)
        try:
            unit.begin()
        except BaseException:
            unit.close()
            raise
        return unit

    def _entered(self) -> tuple[Any, Callable[[], Any]]:
        """A connection, and how to let go of it."""
        found = self._connect()
        if isinstance(found, _kinds()):
            return found, found.close
        return found.__enter__(), lambda: found.__exit__(None, None, None)

    async def _begin_async(self) -> AsyncPsycopgUnit:
        found = self._connect()
        if inspect.isawaitable(found) and not hasattr(found, "__aenter__"):
            found = await found
        if isinstance(found, _kinds()):
            connection, let_go = found, found.close
        else:
            connection = await found.__aenter__()
            let_go = lambda: found.__aexit__(None, None, None)  # noqa: E731
        unit = AsyncPsycopgUnit(connection, let_go)
        try:
            await unit.begin()
        except BaseException:
            await unit.close()
            raise
        return unit


def _async_kind() -> type[Any]:
    import psycopg

    return psycopg.AsyncConnection


def _place_of(connection: Any) -> str | None:
    if isinstance(connection, sqlite3.Connection):
        ((file,),) = connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchall()
        return sqlite_place(file)
    if (info := getattr(connection, "info", None)) is None:
        return None
    return f"{POSTGRESQL}://{info.host or 'localhost'}:{info.port}/{info.dbname}"
