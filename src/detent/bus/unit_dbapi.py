"""Handlers that write through a driver's own connections: sqlite3 or psycopg."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cached_property
from typing import Any, Final

from detent.bus.calling import is_coroutine_function
from detent.bus.transport import Transport
from detent.bus.unit_of_work import (
    ENDED,
    IN_TRANSACTION,
    Guard,
    TransactionEnded,
    check_sqlite_file,
    check_waits,
    guard_of,
    is_over,
    settling,
)
from detent.errors import Invalid
from detent.runtime.ground import drive
from detent.sql.dialects import (
    MEMORY,
    POSTGRESQL,
    SQLITE_FILE,
    committing,
    is_no_savepoint,
    is_passing,
    place_of_file,
    place_of_server,
)
from detent.sql.port import SqlitePort, SqlPort, answer, port_of

_ENDINGS: Final = ("commit", "rollback", "close")
"""Methods of psycopg's connections that end a transaction."""

_ANOTHER: Final = (
    "a unit of work needs a function that answers a new sqlite3.Connection, psycopg.Connection or "
    "psycopg.AsyncConnection, or a context manager with one, such as psycopg_pool's pool.connection"
)


class SqliteUnit:
    """One transaction of a sqlite3 connection, which has the write lock from its beginning."""

    def __init__(self, connection: sqlite3.Connection, let_go: Callable[[], Any], *, is_file: bool) -> None:
        self._connection = connection
        self._let_go = let_go
        self._is_file = is_file
        self._guard = Guard()
        self._has_refused = False
        self._is_begun = False
        self._is_open = False
        """Whether the transaction is begun and not yet to be ended by us."""
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = _provided(connection)

    def begin(self) -> None:
        """Begin, and have SQLite refuse that a handler ends it."""
        connection = self._connection
        if getattr(connection, "autocommit", -1) is False:
            raise Invalid("sqlite3 begins transactions itself with autocommit=False: leave that out")
        if connection.in_transaction:
            raise Invalid(IN_TRANSACTION)
        connection.execute("BEGIN IMMEDIATE").close()
        self._is_begun = True
        if self._is_file:
            check_waits(self.sql)
        connection.execute(self._guard.set).close()
        self._is_open = True
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, what: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and what in ("COMMIT", "ROLLBACK"):
            self._has_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def check(self) -> None:
        """`TransactionEnded` if the connection is in no transaction any more."""
        if self._is_open and not (self._is_connected() and self._connection.in_transaction):
            raise TransactionEnded(ENDED)

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun."""
        self.check()
        if self._has_refused:
            raise Invalid(ENDED)
        self._connection.set_authorizer(None)
        self._is_open = False
        with settling():
            self._connection.execute(self._guard.release).close()
        with committing():
            self._connection.execute("COMMIT").close()

    def rollback(self) -> None:
        """Undo everything. `TransactionEnded` if a handler has got round what forbids it to commit, or has closed the
        connection, or has written without a transaction after SQLite had undone this one."""
        if not self._is_begun:
            return
        was_open, self._is_open = self._is_open, False
        if not self._is_connected():
            if was_open:
                raise TransactionEnded(ENDED)
            return
        has_ended = was_open and self._has_ended()
        self._connection.set_authorizer(None)
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK").close()
        if has_ended:
            raise TransactionEnded(ENDED)

    def _has_ended(self) -> bool:
        """Whether something may have been committed. SQLite undoes a transaction by itself when the disk is full, and
        then everything is as it should be, as long as Python begins another one for what is written next, and SQLite
        still refuses to commit that."""
        try:
            self._connection.execute(self._guard.back).close()
        except sqlite3.Error as error:
            if not is_no_savepoint(error):
                raise
            return self._connection.isolation_level is None or not self._is_guarded()
        return False

    def _is_guarded(self) -> bool:
        """Whether SQLite still refuses every COMMIT; this one is not executed."""
        try:
            self._connection.execute("EXPLAIN COMMIT").close()
        except sqlite3.DatabaseError:
            return True
        return False

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self._is_open = False
            self.rollback()
        finally:
            self._let_go()

    def _is_connected(self) -> bool:
        try:
            return self._connection.total_changes >= 0
        except sqlite3.ProgrammingError as error:
            if "closed" in str(error):
                return False
            raise


class PsycopgUnit:
    """One transaction of a psycopg connection. Everything that asks the database is a coroutine, which runs to its end
    at once where the connection is a plain one."""

    def __init__(self, connection: Any, let_go: Callable[[], Any]) -> None:
        self._connection = connection
        self._let_go = let_go
        self._guard = guard_of(vars(connection))
        self._refused: list[str] = []
        self._is_ours = False
        """Whether a transaction that the connection is in is the unit's."""
        self._is_open = False
        """Whether the transaction is begun and not yet to be ended by us."""
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = _provided(connection)

    def begin(self) -> Awaitable[None] | None:
        """Begin."""
        return answer(self.sql, self._begin())

    def check(self) -> None:
        """`TransactionEnded` if the connection is in no transaction any more."""
        if self._is_open and self._was_ended():
            raise TransactionEnded(ENDED)

    def commit(self) -> Awaitable[None] | None:
        """Commit, if it still is the transaction that was begun, and nothing in it has failed."""
        return answer(self.sql, self._commit())

    def rollback(self) -> Awaitable[None] | None:
        """Undo everything. A transaction ends with its connection, if that is broken."""
        return answer(self.sql, self._roll_back())

    def close(self) -> Awaitable[None] | None:
        """Let go of the connection, also if this is cancelled: its pool would not see it again. What a pool gets back
        has nothing open: it would commit that."""
        return answer(self.sql, _shielded(self._close()) if self.sql.is_async else self._close())

    async def _begin(self) -> None:
        """In one round trip; psycopg says BEGIN by itself where it does not commit each statement. From here on the
        connection's own methods do not end the transaction; an attempt is noted."""
        if not is_over(self._connection):
            raise Invalid(IN_TRANSACTION)
        self._is_ours = True
        await self._say(f"BEGIN; {self._guard.set}" if self._connection.autocommit else self._guard.set)
        self._is_open = True
        for name in _ENDINGS:
            setattr(self._connection, name, self._refusing(name))

    def _refusing(self, name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            self._refused.append(name)
            raise Invalid(ENDED)

        return refuse

    def _allow(self) -> None:
        for name in _ENDINGS:
            vars(self._connection).pop(name, None)

    async def _commit(self) -> None:
        self._allow()
        if self._refused:  # a handler that was told not to, and went on, has not done what it meant to do
            raise Invalid(ENDED)
        self.check()
        self._is_open = False
        with committing(), settling():
            await self._say(self._guard.commit)

    async def _roll_back(self) -> None:
        self._allow()
        was_open, self._is_open = self._is_open, False
        has_ended = was_open and self._was_ended()
        if was_open and self._can_be_undone():
            try:
                await self._say(self._guard.undo)
            except Exception as error:  # noqa: BLE001 - what is not undone by it is undone below, or with the connection
                has_ended = is_no_savepoint(error)
        if self._can_be_undone():
            try:
                await self._settled(self._connection.rollback())
            except Exception as error:
                if not is_passing(error):
                    raise
                await self._settled(self._connection.close())
        if has_ended:
            raise TransactionEnded(ENDED)

    async def _close(self) -> None:
        try:
            self._is_open = False
            await self._roll_back()
        finally:
            await self._settled(self._let_go())

    async def _say(self, text: str) -> None:
        await self._settled(self._connection.execute(text, prepare=False))

    async def _settled(self, found: Any) -> Any:
        return await found if self.sql.is_async else found

    def _was_ended(self) -> bool:
        connection = self._connection
        return is_over(connection) or (connection.closed and not connection.broken)

    def _can_be_undone(self) -> bool:
        return self._is_ours and not self._connection.closed and not is_over(self._connection)


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.shield(asyncio.ensure_future(work))


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
    psycopg's ``connection.transaction()``. While a unit of sqlite3's is open the connection's authorizer is ours, and
    afterwards it has none: one of your own (``set_authorizer``) is replaced, and does not see what handlers do.

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
        port = SqlitePort(connection)
        try:
            check_sqlite_file(lambda query: port.execute(query, {})[0][0], transport)
        finally:
            let_go()

    def begin(self) -> SqliteUnit | PsycopgUnit | Awaitable[SqliteUnit | PsycopgUnit]:
        """Begin a transaction, on a connection of its own."""
        return self._begin() if self.is_async else drive(self._begin())

    async def _begin(self) -> SqliteUnit | PsycopgUnit:
        is_async = self.is_async
        connection, let_go = await self._entered_async() if is_async else self._entered()
        unit: SqliteUnit | PsycopgUnit
        if isinstance(connection, sqlite3.Connection):
            unit = SqliteUnit(connection, let_go, is_file=self._sample[1] != MEMORY)
        else:
            unit = PsycopgUnit(connection, let_go)
        try:
            begun = unit.begin()
            if begun is not None:
                await begun
        except BaseException:
            closed = unit.close()
            if closed is not None:
                await closed
            raise
        return unit

    def _entered(self) -> tuple[Any, Callable[[], Any]]:
        """A connection, and how to let go of it."""
        found = self._connect()
        if isinstance(found, _kinds()):
            return found, found.close
        return found.__enter__(), lambda: found.__exit__(None, None, None)

    async def _entered_async(self) -> tuple[Any, Callable[[], Any]]:
        found = self._connect()
        if inspect.isawaitable(found) and not hasattr(found, "__aenter__"):
            found = await found
        if isinstance(found, _kinds()):
            return found, found.close
        return await found.__aenter__(), lambda: found.__aexit__(None, None, None)


def _async_kind() -> type[Any]:
    import psycopg

    return psycopg.AsyncConnection


def _place_of(connection: Any) -> str | None:
    if isinstance(connection, sqlite3.Connection):
        ((file,),) = SqlitePort(connection).execute(SQLITE_FILE, {})
        return place_of_file(file)
    if (info := getattr(connection, "info", None)) is None:
        return None
    return place_of_server(POSTGRESQL, info.host, info.port, info.dbname)
