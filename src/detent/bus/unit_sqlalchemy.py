"""Handlers that write through sessions of SQLAlchemy's, plain or async."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeGuard, cast

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker
from sqlalchemy.pool import StaticPool

from detent.bus.transport import Transport
from detent.bus.unit_of_work import (
    BROKEN,
    ENDED,
    IN_TRANSACTION,
    SET_DURABLE,
    Guard,
    TransactionEnded,
    check_sqlite_file,
    guard_of,
    is_over,
    is_psycopg,
    say,
    settling,
)
from detent.errors import Invalid, OutcomeUnknown
from detent.sql.databases import place_of
from detent.sql.dialects import (
    AUTOCOMMIT,
    DIALECTS,
    MEMORY,
    SQLITE,
    SQLITE_SAFETY,
    check_sqlite,
    committing,
    ends_transaction,
    is_no_savepoint,
)
from detent.sql.port import Rows, SqlPort, port_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

_IN_USE: Final = "detent.unit"
"""Where a connection says that it is some unit's."""

_heard: weakref.WeakSet[type[Any]] = weakref.WeakSet()
"""Kinds of sessions that are listened to. (SQLAlchemy itself may take a new class for one that is gone.)"""

_SHARED: Final = "two units of work would share one connection: use a file, without poolclass=StaticPool"

_TWO: Final = (
    "the session writes to two databases (binds=...), and they are committed one after the other: a crash in between "
    "leaves the effect without its mark, or the mark without the effect. Keep what a message changes in one database, "
    "and have a message of its own change the other"
)


def _kinds(kind: type[Any]) -> list[type[Any]]:
    """The classes by which a session can be asked for."""
    root = Session if issubclass(kind, Session) else _async_session()
    return [base for base in kind.__mro__ if issubclass(base, root)]


def _async_session() -> type[Any]:
    """The class of async sessions, which only those have who have imported it: it needs a package more."""
    found = sys.modules.get("sqlalchemy.ext.asyncio")
    kind: type[Any] = type(None) if found is None else found.AsyncSession
    return kind


def _is_async(session: Any) -> TypeGuard[AsyncSession]:
    return isinstance(session, _async_session())


class DriverPort:
    """Statements of trackers and outboxes on the connection behind a session. SQLAlchemy takes longer to hand one over
    than its driver does to have it executed, and would do nothing for ours."""

    is_async: Final = False

    def __init__(self, session: Session, check: Callable[[], None]) -> None:
        self._session = session
        self._check = check
        self._port: SqlPort | None = None
        self.dialect: str = port_of(session).dialect

    def execute(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """The rows that a statement answers."""
        return cast("Rows", self._found().execute(statement, values))

    def _found(self) -> SqlPort:
        """SQLAlchemy begins, and finds out about connections that were lost meanwhile. A connection that a handler has
        given back is another user's."""
        if self._port is not None:
            self._check()
        else:
            driver = _driver_of(self._session.connection())
            is_known = is_psycopg(driver) or isinstance(driver, sqlite3.Connection)
            self._port = port_of(driver if is_known else self._session)
        return self._port


class SqlAlchemyUnit:
    """One transaction of a session."""

    def __init__(
        self,
        session: Session,
        handed: Any,
        *,
        is_file: bool,
        remove: Callable[[], Any] | None,
        is_heard: bool = False,
    ) -> None:
        self._session = session
        self._is_heard = is_heard
        """Whether all sessions of this kind are listened to already."""
        self._is_file = is_file
        self._remove = remove
        self._transaction: SessionTransaction | None = None
        self._begun: tuple[Connection, RootTransaction | None] | None = None
        self._is_ending = False
        self._is_guarded = False
        """Whether the savepoint is set and was not yet looked for."""
        self._has_ended = False
        self._refusal: str | None = None
        self._marked: dict[Any, Any] = {}
        self.sql: SqlPort = port_of(handed) if _is_async(handed) else DriverPort(session, self.check)
        self.provides: Mapping[Any, Any] = {"session": handed} | dict.fromkeys(_kinds(type(handed)), handed)

    # -- for the bus --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin. PostgreSQL hears of it at the first statement; SQLite has one writer, which is this unit from here on:
        a transaction that reads first may not come to write."""
        session = self._session
        if session.in_transaction():
            raise Invalid("the session is in a transaction already: the factory has to answer one that is not in use")
        if session.twophase:
            raise Invalid("the session commits in two phases, and units of work in one: leave out twophase=True")
        session.info[_IN_USE] = self
        if not self._is_heard:
            _listen(session)
        self._transaction = session.begin()
        if self.sql.dialect == SQLITE:
            session.connection()

    def check(self) -> None:
        """`TransactionEnded` if the session has another transaction, or the connection can be seen to have none."""
        transaction = self._transaction
        if self._refusal is not None:
            raise Invalid(self._refusal)
        if transaction is None or self._session.get_transaction() is not transaction:
            raise TransactionEnded(ENDED)
        if self._begun is None or not transaction.is_active:  # nothing is written in either
            return
        connection = self._begun[0]
        if connection.closed or (not connection.invalidated and is_over(_driver_of(connection))):
            raise TransactionEnded(ENDED)

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun."""
        self._require_whole()
        self._session.flush()
        transaction = self._require_whole()
        self._is_ending = True
        self._unmark()
        with committing():
            transaction.commit()

    def rollback(self) -> None:
        """Undo everything. A transaction ends with its connection, if that is broken."""
        self._is_ending = True
        self._unmark()
        try:
            self._session.rollback()
        except DBAPIError:  # no caller could do more about it
            self._session.invalidate()
        if self._has_ended and self._refusal != _SHARED:
            self._has_ended = False
            raise TransactionEnded(ENDED)

    def close(self) -> None:
        """Give the connection back."""
        self._is_ending = True
        if self._session.info.pop(_IN_USE, None) is not None and not self._is_heard:
            event.remove(self._session, "after_begin", _note)
            event.remove(self._session, "before_commit", _refuse_commit)
        self._begun = None
        self._unmark()
        try:
            self._session.close()
        except DBAPIError:  # as above
            self._session.invalidate()
        if self._remove is not None:
            self._remove()

    # -- what goes on in the session ----------------------------------------------------------------------------

    def note(self, transaction: SessionTransaction, connection: Connection) -> None:
        """A connection takes part from now on: the only one."""
        if transaction.nested or self._is_ending:
            return
        if self._begun is not None:
            is_second = transaction is self._transaction
            self._refuse_with(_TWO if is_second else ENDED)
        self._begun = (connection, connection.get_transaction())
        event.listen(connection, "commit", self._before_commit)
        event.listen(connection, "rollback", self._before_rollback)
        event.listen(connection, "before_cursor_execute", self._refuse_endings)
        if _is_autocommit(connection):
            raise Invalid(AUTOCOMMIT)
        if connection.dialect.name == SQLITE:
            self._begin_sqlite(connection)
        _arm(connection, guard_of(connection.info))
        self._is_guarded = True

    def _begin_sqlite(self, connection: Connection) -> None:
        if (other := connection.info.get(_IN_USE)) is not None:
            other._refusal = _SHARED  # which loses its transaction now, when we give the connection back
            raise Invalid(_SHARED)
        self._marked = connection.info  # which outlives the connection's use here
        self._marked[_IN_USE] = self
        driver = _driver_of(connection)
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif not connection.dispatch.begin and getattr(driver, "autocommit", None) is not False:
            raise Invalid(IN_TRANSACTION)  # an engine with a way of its own to begin would have failed
        if self._is_file:
            _check_connection_waits(connection)

    def _unmark(self) -> None:
        """Before the connection goes back to its pool, which it does with the transaction's end: it may be the next
        unit's at once."""
        if self._marked.get(_IN_USE) is self:
            del self._marked[_IN_USE]

    def _before_commit(self, connection: Connection) -> None:
        """Ours is the last word before a COMMIT, after whatever others do when a session commits."""
        if not self._is_ending:
            self._refusal = ENDED
            connection.connection.rollback()  # SQLAlchemy will not: for it, the transaction has ended now
            raise Invalid(ENDED)
        if not self._is_guarded:
            return
        self._is_guarded = False
        try:
            with settling():
                _settle(connection, guard_of(connection.info))
        except Exception as error:
            if not _drop(connection):  # as above
                raise OutcomeUnknown("the connection was lost when a transaction was to be committed") from error
            raise
        except BaseException:
            _drop(connection)
            raise

    def _before_rollback(self, connection: Connection) -> None:
        """Whatever undoes it, and for whatever reason: is it still the transaction that was begun?"""
        if self._is_guarded and not connection.closed and not connection.invalidated:
            self._is_guarded = False
            self._has_ended = _undo(connection, guard_of(connection.info))

    def refuse_commit(self) -> None:
        """The unit alone commits the session."""
        if not self._is_ending and not self._session.in_nested_transaction():
            self._refuse_with(ENDED)

    def _refuse_endings(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        """Statements in text that end the transaction pass by SQLAlchemy, which would not know."""
        del connection, cursor
        if not self._is_ending and ends_transaction(statement):
            self._refuse_with(ENDED)

    def _refuse_with(self, why: str) -> NoReturn:
        self._refusal = why
        raise Invalid(why)

    def _require_whole(self) -> SessionTransaction:
        """The transaction that was begun. A handler that was told not to end it, and went on, has not done what it
        meant to do."""
        self.check()
        transaction = self._transaction
        assert transaction is not None
        if not transaction.is_active:  # SQLAlchemy has undone it, when a flush failed
            raise Invalid(BROKEN)
        if self._begun is not None and self._begun[0].get_transaction() is not self._begun[1]:
            raise TransactionEnded(ENDED)
        return transaction


def _listen(sessions: Any) -> None:
    """Hear what sessions do, one or all of a kind. Those that are no unit's are left alone."""
    event.listen(sessions, "after_begin", _note)
    event.listen(sessions, "before_commit", _refuse_commit)


def _note(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    unit: SqlAlchemyUnit | None = session.info.get(_IN_USE)
    if unit is not None:
        unit.note(transaction, connection)


def _refuse_commit(session: Session) -> None:
    unit: SqlAlchemyUnit | None = session.info.get(_IN_USE)
    if unit is not None:
        unit.refuse_commit()


class AsyncSqlAlchemyUnit:
    """The same on an event loop."""

    def __init__(self, session: AsyncSession, plain: SqlAlchemyUnit, remove: Callable[[], Any] | None) -> None:
        self._session = session
        self._plain = plain
        self._remove = remove
        self.sql = plain.sql
        self.provides = plain.provides

    def check(self) -> None:
        """See `SqlAlchemyUnit`."""
        self._plain.check()

    async def commit(self) -> None:
        """See `SqlAlchemyUnit`."""
        await self._session.run_sync(lambda _: self._plain.commit())

    async def rollback(self) -> None:
        """See `SqlAlchemyUnit`."""
        await self._session.run_sync(lambda _: self._plain.rollback())

    async def close(self) -> None:
        """Give the connection back, also if this is cancelled: the pool would not see it again."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        await self._session.run_sync(lambda _: self._plain.close())
        if self._remove is not None:
            await self._remove()


class SqlAlchemyUnitOfWork:
    """A session of SQLAlchemy's for each message, in a transaction that the bus commits.

    >>> bus = Bus("billing", ..., unit_of_work=SqlAlchemyUnitOfWork(sessionmaker(engine)))
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, session: Session):
    ...     session.add(Invoice(order=order.id))

    `session_factory` is a ``sessionmaker``, an ``async_sessionmaker``, a ``scoped_session``, or any function that
    answers a new session. Handlers ask for it as ``session``, or by its class. They never end the transaction, neither
    by the session nor by a statement; savepoints (``session.begin_nested()``) are theirs. A session may have several
    databases (``binds``), and a handler writes to one of them, which is the one with the marks and messages.

    On SQLite each unit has the write lock from its beginning to its end, so that one message is handled at a time;
    others wait as long as the engine's ``timeout`` says (5 s), and then fail with ``database is locked``, which is
    tried again. Let handlers be quick, or use PostgreSQL.
    """

    def __init__(self, session_factory: Callable[[], Any]) -> None:
        if not callable(session_factory):
            raise Invalid(f"a unit of work needs a function that answers sessions, not {session_factory!r}")
        self._factory = session_factory
        self._transport: Transport | None = None
        self._is_checked = False
        is_registry = hasattr(session_factory, "registry")  # of a scoped session, which keeps it until it is told
        self._remove: Callable[[], Any] | None = getattr(session_factory, "remove", None) if is_registry else None
        # A sessionmaker has a class of its own, so that one listener hears all of its sessions; others have one each.
        self._is_heard = isinstance(session_factory, sessionmaker)
        if isinstance(session_factory, sessionmaker) and session_factory.class_ not in _heard:
            _heard.add(session_factory.class_)
            _listen(session_factory.class_)

    @cached_property
    def _sample(self) -> tuple[type[Any], Any]:
        """The class of the sessions and what they are bound to. A session that is never used connects to nothing."""
        maker = getattr(self._factory, "session_factory", self._factory)
        handed = maker()
        if not isinstance(handed, Session) and not _is_async(handed):
            raise Invalid(f"the session factory answers a {type(handed).__name__}, and no session of SQLAlchemy's")
        plain: Any = handed.sync_session if _is_async(handed) else handed
        try:
            return type(handed), plain.get_bind()
        except UnboundExecutionError as error:
            raise Invalid("the sessions have several databases or none: make them with bind=engine") from error
        finally:
            plain.close()

    @property
    def is_async(self) -> bool:
        """Whether sessions are of asyncio."""
        return not issubclass(self._sample[0], Session)

    @property
    def provided(self) -> frozenset[Any]:
        """What handlers can ask for."""
        return frozenset(("session", *_kinds(self._sample[0])))

    @property
    def place(self) -> str:
        """Which database it is."""
        return place_of(self._sample[1].engine.url)

    @cached_property
    def _is_file(self) -> bool:
        return self.place != MEMORY

    def check(self, transport: Transport) -> None:
        """Refuse a database that may lose what it commits. Of async engines, the first unit finds out."""
        self._transport = transport
        bind = self._sample[1]
        if not isinstance(bind, Engine):
            raise Invalid("the sessions are bound to a connection, which all units would share: bind them to an engine")
        if bind.dialect.name not in DIALECTS:
            raise Invalid(f"units of work are for SQLite and PostgreSQL, not for {bind.dialect.name}")
        if bind.dialect.name == SQLITE and self._is_file and isinstance(bind.pool, StaticPool):
            raise Invalid("units of work need connections that are not shared: leave out poolclass=StaticPool")
        if not self.is_async:
            with bind.connect() as connection:
                self._verify(connection)

    def begin(self) -> SqlAlchemyUnit | Awaitable[AsyncSqlAlchemyUnit]:
        """Begin a transaction, in a session of its own."""
        return self._begin_async() if self.is_async else self._begin()

    def _begin(self) -> SqlAlchemyUnit:
        session = self._factory()
        if not self._is_checked:
            self._verify_session(session)
        unit = SqlAlchemyUnit(session, session, is_file=self._is_file, remove=self._remove, is_heard=self._is_heard)
        try:
            unit.begin()
        except BaseException:
            unit.close()
            raise
        return unit

    async def _begin_async(self) -> AsyncSqlAlchemyUnit:
        session = self._factory()
        if not self._is_checked:
            await session.run_sync(self._verify_session)
        plain = SqlAlchemyUnit(session.sync_session, session, is_file=self._is_file, remove=None)
        unit = AsyncSqlAlchemyUnit(session, plain, self._remove)
        try:
            await session.run_sync(lambda _: plain.begin())
        except BaseException:
            await unit.close()
            raise
        return unit

    def _verify_session(self, session: Session) -> None:
        try:
            self._verify(session.connection())
        finally:
            session.close()  # nothing is committed, which others may listen for

    def _verify(self, connection: Connection) -> None:
        """Look at a connection, as all of the engine's are."""
        if _is_autocommit(connection):
            raise Invalid(AUTOCOMMIT)
        if connection.dialect.name == SQLITE:
            check_sqlite_file(lambda query: connection.exec_driver_sql(query).scalar(), self._transport)
        self._is_checked = True


# -- the guard on a connection ------------------------------------------------------------------------------------
#
# It is looked for on the driver's own connection, in as few round trips as that allows: SQLAlchemy is about to commit
# or to roll back then, and takes no more statements.


def _driver_of(connection: Connection) -> Any:
    """The driver's own connection, behind what SQLAlchemy makes of async ones."""
    return connection.connection.driver_connection


def _is_autocommit(connection: Connection) -> bool:
    """Whether each statement is committed by itself. sqlite3 cannot be asked: engines that begin by themselves set its
    connections to the same."""
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        return True
    level = connection.get_execution_options().get("isolation_level")
    return (level or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _check_connection_waits(connection: Connection) -> None:
    """`check_waits` for a connection of SQLAlchemy's."""
    adapted: Any = connection.connection.dbapi_connection
    if connection.dialect.is_async:  # each call of a cursor would go to another thread and back
        rows = adapted.run_async(lambda driver: driver.execute_fetchall(SQLITE_SAFETY))
    else:
        rows = adapted.execute(SQLITE_SAFETY).fetchall()
    check_sqlite(*rows[0])


def _arm(connection: Connection, guard: Guard) -> None:
    """Set the guard. PostgreSQL's transaction begins with it, by SQLAlchemy's own ways, which know what to do with a
    connection that was lost meanwhile."""
    if connection.dialect.name == SQLITE:
        _say_on(connection, guard.set)
    else:
        connection.exec_driver_sql(guard.set)


def _settle(connection: Connection, guard: Guard) -> None:
    """Look for the guard, and have the transaction wait for the disk. With psycopg that is the COMMIT as well, unless
    another listener may still write."""
    if connection.dialect.name == SQLITE:
        _say_on(connection, guard.release)
    elif is_psycopg(_driver_of(connection)) and len(connection.dispatch.commit) == 1:
        _say_on(connection, guard.commit)
    elif _takes_several(connection):
        _say_on(connection, guard.settle)
    else:
        _say_on(connection, guard.release)
        _say_on(connection, SET_DURABLE)


def _undo(connection: Connection, guard: Guard) -> bool:
    """Undo everything since the guard; True if it is not there. Other errors are those of a connection that is lost,
    and whatever was done on it: SQLAlchemy meets them again in a moment."""
    try:
        _say_on(connection, guard.undo if is_psycopg(_driver_of(connection)) else guard.back)
    except Exception as error:  # noqa: BLE001 - see above
        return is_no_savepoint(error)
    return False


def _drop(connection: Connection) -> bool:
    """Undo a transaction that SQLAlchemy takes for ended, because its commit was tried; False if the connection was
    lost."""
    driver = _driver_of(connection)
    is_lost = driver.is_closed() if hasattr(driver, "is_closed") else bool(getattr(driver, "closed", False))
    if not is_lost:
        try:
            connection.connection.rollback()
        except Exception:  # noqa: BLE001 - a connection on which even that fails has nothing left to be told
            is_lost = True
    if is_lost:
        connection.invalidate()
    return not is_lost


def _takes_several(connection: Connection) -> bool:
    """Whether a driver takes several commands in one text."""
    return is_psycopg(_driver_of(connection)) or connection.dialect.driver in ("asyncpg", "psycopg2")


def _say_on(connection: Connection, text: str) -> None:
    adapted: Any = connection.connection.dbapi_connection
    driver = _driver_of(connection)
    if not connection.dialect.is_async:
        say(driver, text)
    elif is_psycopg(driver):
        adapted.run_async(lambda raw: raw.execute(text, prepare=False))
    elif connection.dialect.name == SQLITE:  # this call goes to aiosqlite's thread and back once, and others more often
        adapted.run_async(lambda raw: raw.execute_fetchall(text))
    else:
        adapted.run_async(lambda raw: raw.execute(text))
