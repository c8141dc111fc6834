"""Handlers that write through sessions of SQLAlchemy's, plain or async."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import StaticPool

from detent.bus.sql_port import SqlPort, port_of
from detent.bus.transport import Transport
from detent.bus.unit_rules import (
    ENDED,
    IS_DURABLE,
    SAVEPOINT,
    SET_DURABLE,
    aborted_is_invalid,
    check_not_aborted,
    check_sqlite_file,
    committing,
)
from detent.databases import DIALECTS, place_of
from detent.dialects import POSTGRESQL, SQLITE, ends_transaction
from detent.errors import Invalid

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

_IN_USE: Final = "detent.unit"
"""Where a connection says that it is some unit's."""


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


class SqlAlchemyUnit:
    """One transaction of a session."""

    def __init__(self, session: Session, handed: Any, *, sets_durable: bool, remove: Callable[[], Any] | None) -> None:
        self._session = session
        self._sets_durable = sets_durable
        self._remove = remove
        self._transaction: SessionTransaction | None = None
        self._begun: list[tuple[Connection, RootTransaction | None]] = []
        self._is_ending = False
        self._has_savepoint = False
        self._has_refused = False
        self._marked: dict[Any, Any] = {}
        self.sql: SqlPort = port_of(handed)
        self.provides: Mapping[Any, Any] = {"session": handed} | dict.fromkeys(_kinds(type(handed)), handed)

    # -- for the bus --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin. PostgreSQL hears of it at the first statement; SQLite has one who writes, and that is us from here on:
        a transaction that reads first may not come to write."""
        session = self._session
        if session.in_transaction():
            raise Invalid("the session is in a transaction already: the factory has to answer one that nobody uses")
        event.listen(session, "after_begin", self._note)
        event.listen(session, "before_commit", self._refuse_commit)
        self._transaction = session.begin()
        if self.sql.dialect == SQLITE:
            self._begin_sqlite(session.connection())
        elif self._sets_durable:
            session.connection().exec_driver_sql(SET_DURABLE)

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun."""
        transaction = self._require_whole()
        self._session.flush()
        self._require_whole()
        for connection, _ in self._begun:
            if connection.dialect.name == POSTGRESQL and not check_not_aborted(_driver_of(connection)):
                with aborted_is_invalid():
                    connection.exec_driver_sql("SELECT 1")
        if self._has_savepoint:
            self._release(self._begun[0][0])
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
        except DBAPIError:  # there is nobody to be told who could do more about it
            self._session.invalidate()

    def close(self) -> None:
        """Give the connection back."""
        self._is_ending = True
        if event.contains(self._session, "after_begin", self._note):
            event.remove(self._session, "after_begin", self._note)
            event.remove(self._session, "before_commit", self._refuse_commit)
        self._begun.clear()
        self._unmark()
        try:
            self._session.close()
        except DBAPIError:  # as above
            self._session.invalidate()
        if self._remove is not None:
            self._remove()

    # -- what goes on in the session ----------------------------------------------------------------------------

    def _begin_sqlite(self, connection: Connection) -> None:
        if _IN_USE in connection.info:
            raise Invalid("two units of work would share one connection: use a file, without poolclass=StaticPool")
        self._marked = connection.info  # which outlives the connection's use here
        self._marked[_IN_USE] = self
        if not getattr(_driver_of(connection), "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")
        self._has_savepoint = True

    def _unmark(self) -> None:
        """Before the connection goes back to its pool, which it does with the transaction's end: it may be the next
        unit's at once."""
        if self._marked.get(_IN_USE) is self:
            del self._marked[_IN_USE]

    def _release(self, connection: Connection) -> None:
        try:
            connection.exec_driver_sql(f"RELEASE {SAVEPOINT}")
        except DBAPIError as error:
            raise Invalid(ENDED) from error

    def _note(self, session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        """A connection takes part from now on."""
        del session
        if transaction.nested or any(connection is known for known, _ in self._begun):
            return
        self._begun.append((connection, connection.get_transaction()))
        event.listen(connection, "commit", self._refuse)
        event.listen(connection, "before_cursor_execute", self._refuse_endings)

    def _refuse_commit(self, session: Session) -> None:
        if not self._is_ending and not session.in_nested_transaction():
            self._has_refused = True
            raise Invalid(ENDED)

    def _refuse(self, connection: Connection) -> None:
        if not self._is_ending:
            self._has_refused = True
            connection.connection.rollback()  # SQLAlchemy will not: for it, the transaction has ended now
            raise Invalid(ENDED)

    def _refuse_endings(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        """Statements in text that end the transaction pass by SQLAlchemy, which would not know."""
        del connection, cursor
        if not self._is_ending and ends_transaction(statement):
            self._has_refused = True
            raise Invalid(ENDED)

    def _require_whole(self) -> SessionTransaction:
        """The transaction that was begun. A handler that was told not to end it, and went on, has not done what it
        meant to do."""
        transaction = self._transaction
        if self._has_refused or transaction is None or self._session.get_transaction() is not transaction:
            raise Invalid(ENDED)
        for connection, begun in self._begun:
            if connection.closed or connection.get_transaction() is not begun:
                raise Invalid(ENDED)
        return transaction


def _driver_of(connection: Connection) -> Any:
    """The driver's own connection, behind what SQLAlchemy makes of async ones."""
    return connection.connection.driver_connection


class AsyncSqlAlchemyUnit:
    """The same on an event loop."""

    def __init__(self, session: AsyncSession, plain: SqlAlchemyUnit, remove: Callable[[], Any] | None) -> None:
        self._session = session
        self._plain = plain
        self._remove = remove
        self.sql = plain.sql
        self.provides = plain.provides

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
    by the session nor by a statement; savepoints (``session.begin_nested()``) are theirs.

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
        self._sets_durable = False
        is_registry = hasattr(session_factory, "registry")  # of a scoped session, which keeps it until it is told
        self._remove: Callable[[], Any] | None = getattr(session_factory, "remove", None) if is_registry else None

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

    def check(self, transport: Transport) -> None:
        """Refuse a database that may lose what it commits. Of async engines, the first unit finds out."""
        self._transport = transport
        bind = self._sample[1]
        if not isinstance(bind, Engine):
            raise Invalid("the sessions are bound to a connection, which all units would share: bind them to an engine")
        if bind.dialect.name not in DIALECTS:
            raise Invalid(f"units of work are for SQLite and PostgreSQL, not for {bind.dialect.name}")
        is_file = not self.place.endswith(":memory:")
        if bind.dialect.name == SQLITE and is_file and isinstance(bind.pool, StaticPool):
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
        unit = SqlAlchemyUnit(session, session, sets_durable=self._sets_durable, remove=self._remove)
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
        plain = SqlAlchemyUnit(session.sync_session, session, sets_durable=self._sets_durable, remove=None)
        unit = AsyncSqlAlchemyUnit(session, plain, self._remove)
        try:
            await session.run_sync(lambda _: plain.begin())
        except BaseException:
            await unit.close()
            raise
        return unit

    def _verify_session(self, session: Session) -> None:
        try:
            with session.begin():
                self._verify(session.connection())
        finally:
            session.close()

    def _verify(self, connection: Connection) -> None:
        """Look at a connection, as all of the engine's are."""
        if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
            raise Invalid("the engine commits each statement (AUTOCOMMIT): what belongs together needs a transaction")
        if connection.dialect.name == SQLITE:
            check_sqlite_file(lambda query: connection.exec_driver_sql(query).scalar(), self._transport)
        else:
            self._sets_durable = not connection.exec_driver_sql(IS_DURABLE).scalar()
        self._is_checked = True
