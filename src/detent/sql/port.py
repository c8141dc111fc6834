"""SQL on whatever connection a unit of work has: SQLAlchemy's sessions, connections of sqlite3, psycopg or Django.

Statements are written once, with values as ``:name``, and without a colon or a percent sign for anything else. Those
who write them are coroutines over `call`, which `answer` runs to their end where the connection is a plain one.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, Protocol, TypeVar

from detent.errors import Invalid
from detent.runtime.ground import drive
from detent.sql.dialects import DIALECTS, POSTGRESQL, SQLITE
from detent.sql.tables import make_lock, schema_of, within

Rows = Sequence[Sequence[Any]]

Result = TypeVar("Result")

STATEMENTS_MAX: Final = 1_024
"""Statements whose translation is kept: those of a few tables, and the insert for each number of rows."""

_VALUE: Final = re.compile(r":([a-z_][a-z0-9_]*)")

_SUPPORTED: Final = (
    "a Session, Connection, AsyncSession or AsyncConnection of SQLAlchemy's, a sqlite3.Connection, a "
    "psycopg.Connection or psycopg.AsyncConnection, or a connection of Django's"
)


class SqlPort(Protocol):
    """Executes statements within a unit's transaction."""

    @property
    def dialect(self) -> str:
        """ "sqlite" or "postgresql"."""

    @property
    def is_async(self) -> bool:
        """Whether what its methods answer has to be awaited."""

    def execute(self, statement: str, values: Mapping[str, Any]) -> Rows | Awaitable[Rows]:
        """The rows that a statement answers, or none."""


def port_of(handle: Any) -> SqlPort:
    """How to speak SQL on a session or a connection, within the transaction that it is in. `Invalid` for what is not
    known, or another database than SQLite and PostgreSQL."""
    port = _known(handle)
    if port is None:
        raise Invalid(f"{type(handle).__name__} is nothing that SQL can be spoken on here: use {_SUPPORTED}")
    if port.dialect not in DIALECTS:
        raise Invalid(f"marks and messages are kept in SQLite or PostgreSQL, not in {port.dialect}")
    return port


async def call(port: SqlPort, statement: str, values: Mapping[str, Any] | None = None) -> Rows:
    """The rows that a statement answers, on a port of either kind."""
    found = port.execute(statement, values or {})
    return await found if port.is_async else found  # type: ignore[misc, return-value]


def answer(port: SqlPort, work: Coroutine[Any, Any, Result]) -> Result | Awaitable[Result]:
    """What a coroutine over `port` answers: at once on a plain one, awaited on an async one."""
    return work if port.is_async else drive(work)


# -- which handle it is -----------------------------------------------------------------------------------------


def _known(handle: Any) -> SqlPort | None:
    """Libraries are not imported for this: a handle of theirs comes from a program that has done so."""
    if isinstance(handle, sqlite3.Connection):
        return SqlitePort(handle)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(handle, psycopg.Connection):
        return PsycopgPort(handle, POSTGRESQL, is_async=False)
    if psycopg is not None and isinstance(handle, psycopg.AsyncConnection):
        return PsycopgPort(handle, POSTGRESQL, is_async=True)
    if (found := _of_sqlalchemy(handle)) is not None:
        return found
    if "django" in sys.modules and hasattr(handle, "vendor") and hasattr(handle, "cursor"):
        return DjangoPort(handle, handle.vendor, is_async=False)
    return None


def _of_sqlalchemy(handle: Any) -> SqlPort | None:
    orm, asyncio = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio is not None:
        if isinstance(handle, asyncio.async_scoped_session):
            handle = handle()
        if isinstance(handle, asyncio.AsyncSession):
            return AlchemyPort(handle, _bound(handle.sync_session), is_async=True)
        if isinstance(handle, asyncio.AsyncConnection):
            return AlchemyPort(handle, handle.dialect.name, is_async=True)
    if orm is not None:
        if isinstance(handle, orm.scoped_session):
            handle = handle()
        if isinstance(handle, orm.Session):
            return AlchemyPort(handle, _bound(handle), is_async=False)
    core = sys.modules.get("sqlalchemy")
    if core is not None and isinstance(handle, core.Connection):
        return AlchemyPort(handle, handle.dialect.name, is_async=False)
    return None


def _bound(session: Any) -> str:
    """The dialect of a session's one database."""
    from sqlalchemy.exc import UnboundExecutionError

    try:
        name: str = session.get_bind().dialect.name
    except UnboundExecutionError as error:
        raise Invalid(
            "the session has several databases or none, so that it is not known where marks and messages belong: make "
            "it with bind=engine"
        ) from error
    return name


# -- the kinds of ports -----------------------------------------------------------------------------------------


class _Port:
    """What sends a statement is a coroutine, for plain handles and for those of asyncio."""

    def __init__(self, handle: Any, dialect: str, *, is_async: bool) -> None:
        self._handle = handle
        self.dialect: Final = dialect
        self.is_async: Final = is_async

    def execute(self, statement: str, values: Mapping[str, Any]) -> Rows | Awaitable[Rows]:
        """The rows that a statement answers, or none."""
        return answer(self, self._rows(statement, values))

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    async def _settled(self, found: Any) -> Any:
        return await found if self.is_async else found


class AlchemyPort(_Port):
    """A session or a connection of SQLAlchemy's."""

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        result = await self._settled(self._handle.execute(_text(statement), values))
        return result.all() if result.returns_rows else ()


@lru_cache(STATEMENTS_MAX)
def _text(statement: str) -> Any:
    """The same object each time, which is what SQLAlchemy finds its compiled form by."""
    from sqlalchemy import text

    return text(statement)


class PsycopgPort(_Port):
    """A connection of psycopg's."""

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        cursor = self._cursor()
        try:
            await self._settled(cursor.execute(_percent(statement), values))
            return await self._settled(cursor.fetchall()) if cursor.description else ()
        finally:
            await self._settled(cursor.close())

    def _cursor(self) -> Any:
        """One of our own: the connection's factories may make anything of rows, and of placeholders."""
        from psycopg import AsyncCursor, Cursor
        from psycopg.rows import tuple_row

        return (AsyncCursor if self.is_async else Cursor)(self._handle, row_factory=tuple_row)


class DjangoPort(_Port):
    """A connection of Django's, as ``django.db.connections[...]`` has it."""

    async def _rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        with self._handle.cursor() as cursor:
            cursor.execute(_percent(statement), dict(values))
            return cursor.fetchall() if cursor.description else ()


@lru_cache(STATEMENTS_MAX)
def _percent(statement: str) -> str:
    """A statement as psycopg and Django want it."""
    return _VALUE.sub(r"%(\1)s", statement)


class SqlitePort:
    """A connection of Python's sqlite3."""

    dialect: Final = SQLITE
    is_async: Final = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """The rows that a statement answers, or none."""
        # Factories of the user's own may make anything of rows, and of text.
        connection = self._connection
        of_text = connection.text_factory
        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            connection.text_factory = str
            return cursor.execute(statement, values).fetchall()
        finally:
            connection.text_factory = of_text
            cursor.close()


# -- tables ---------------------------------------------------------------------------------------------------------


class _Statements(Protocol):
    @property
    def tables(self) -> tuple[str, ...]: ...

    @property
    def make(self) -> tuple[str, ...]: ...


Statements = TypeVar("Statements", bound=_Statements)


class PlacedTable(Generic[Statements]):
    """A table, and those beside it, in the schema in which PostgreSQL's ``search_path`` has found them at the start:
    one that a handler sets later does not change where they are. `statements` answers them for a dialect and a name.
    """

    def __init__(self, name: str, statements: Callable[[str, str], Statements]) -> None:
        self._name = name
        self._found = name
        self._statements = statements

    def at(self, port: SqlPort) -> Statements:
        """The statements on it."""
        return self._statements(port.dialect, self._found if port.dialect == POSTGRESQL else self._name)

    async def make(self, port: SqlPort) -> None:
        """Make what is missing. A user who may not make tables, and has them from a migration, is not refused."""
        made = self._statements(port.dialect, self._name)
        found = await self._schemas(port, made.tables)
        if not found or None in found:
            lock = make_lock(port.dialect)
            for statement in (*([] if lock is None else [lock]), *made.make):
                await call(port, statement)
            found = await self._schemas(port, made.tables)
        self._found = within(found.pop() if len(found) == 1 else None, self._name)

    async def _schemas(self, port: SqlPort, tables: Sequence[str]) -> set[str | None]:
        ask = schema_of(port.dialect)
        return set() if ask is None else {(await call(port, ask, {"name": table}))[0][0] for table in tables}
