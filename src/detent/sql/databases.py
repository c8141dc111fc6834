"""SQL databases that Detent keeps something in: SQLite for one machine, PostgreSQL for many.

A part that commits here relies on two things: what was committed is still there after a power cut, and of two that meet
one waits for the other. Both databases can be set up otherwise, so that engines are made, or checked, here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from detent import forks
from detent.errors import Invalid
from detent.sql.dialects import (
    AUTOCOMMIT,
    DIALECTS,
    SQLITE,
    SQLITE_FILE,
    SQLITE_SAFETY,
    check_sqlite,
    place_of_file,
    place_of_server,
)
from detent.sql.transactions import reaching, transact

BUSY_MS: Final = 30_000
"""How long SQLite waits for another process's transaction."""

_UNLIMITED: Final = 0
"""A pool of SQLAlchemy's that keeps every connection: each thread has one at a time, and waits for no other."""

_PATIENCE: Final = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000}
"""What a connection to PostgreSQL is opened with, unless its URL says otherwise: a network that swallows what is sent
would be waited for for hours."""

Prepared = TypeVar("Prepared")


# -- URLs -------------------------------------------------------------------------------------------------------


def parse(url: str, what: str, file: str) -> sqlalchemy.URL:
    """The URL of a database that things can be kept in. Messages say `what` needs it, and take `file` as an example."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # whose texts may have a part of a password in them
        raise Invalid(
            f"{what} needs a database's URL: sqlite:///{file} (three slashes, then the path) or "
            "postgresql+psycopg://user@host/database, with special characters of a password encoded"
        ) from None
    name = parsed.get_backend_name()
    if name not in DIALECTS:
        raise Invalid(f"{what} is kept in SQLite or PostgreSQL, not in {name}")
    try:
        dialect = parsed.get_dialect()
    except sqlalchemy.exc.NoSuchModuleError:
        raise Invalid(f"there is no driver {parsed.drivername}: write postgresql+psycopg, or sqlite") from None
    if dialect.is_async:
        raise Invalid(f"{parsed.drivername} is for async code only: write postgresql+psycopg, or sqlite")
    if name == "sqlite" and (not parsed.database or ":memory:" in parsed.database):
        raise Invalid(f"{what} needs a file, such as sqlite:///{file}: what is in memory is lost with the process")
    return parsed


def file_of(parsed: sqlalchemy.URL) -> Path | None:
    """The file of a database of SQLite's."""
    if parsed.get_backend_name() != "sqlite" or parsed.database is None:
        return None
    if not parsed.database.startswith("file:"):
        return Path(parsed.database)
    return Path(url2pathname(urlsplit(parsed.database).path))


def place_of(parsed: sqlalchemy.URL) -> str:
    """Which database a URL is of, the same for every driver and user, and without secrets."""
    name = parsed.get_backend_name()
    if name == SQLITE:
        is_memory = not parsed.database or ":memory:" in parsed.database or "mode=memory" in str(parsed)
        return place_of_file(None if is_memory else file_of(parsed))
    host, port = parsed.host or parsed.query.get("host"), parsed.port or parsed.query.get("port")
    return place_of_server(name, host, port, parsed.database or parsed.username or "")


# -- engines ----------------------------------------------------------------------------------------------------


def open_engine(parsed: sqlalchemy.URL, **options: Any) -> Engine:
    """The engine for a database, whose folder is made if it is a file. `options` are those of SQLAlchemy's
    `create_engine`."""
    if parsed.get_backend_name() == SQLITE:
        if (file := file_of(parsed)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        waits: dict[str, Any] = {"timeout": BUSY_MS / 1000, "check_same_thread": False}
        return durable_sqlite(sqlalchemy.create_engine(parsed, connect_args=waits, **options))
    try:
        is_libpq = parsed.get_driver_name() in {"psycopg", "psycopg2"}
        patience = {name: value for name, value in _PATIENCE.items() if is_libpq and name not in parsed.query}
        return planned_postgres(sqlalchemy.create_engine(parsed, connect_args=patience, **options))
    except ModuleNotFoundError as error:
        raise Invalid(f"{parsed.drivername} needs a driver: pip install 'psycopg[binary]' ({error})") from error


def planned_postgres(engine: Engine) -> Engine:
    """PostgreSQL with a plan for each statement as it comes. Drivers prepare what they send often, and a plan that is
    made for any array scans the whole table: a hundred times slower at a thousand rows, and worse with each more."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        was_automatic, connection.autocommit = connection.autocommit, True
        with connection.cursor() as cursor:
            cursor.execute("SET plan_cache_mode = force_custom_plan")
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"  # what is acknowledged has to survive
            )
        connection.autocommit = was_automatic

    return engine


def durable_sqlite(engine: Engine) -> Engine:
    """SQLite as shards need it: a commit that returns is on the disk, and a transaction has the lock from the start,
    since one that reads and then cannot write has to be thrown away."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # Python's own idea of when a transaction begins is in the way
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def adopt(engine: Any, what: str) -> Engine:
    """An engine that the user made, as a view of it that begins transactions as they are needed here. Others who use
    the engine notice nothing. `Invalid` if what it commits could be lost."""
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise Invalid(f"{what} needs an Engine of SQLAlchemy's, which is not async, and got {type(engine).__name__}")
    if engine.dialect.name not in DIALECTS:
        raise Invalid(f"{what} is kept in SQLite or PostgreSQL, not in {engine.dialect.name}")
    view = engine.execution_options()
    if engine.dialect.name == "sqlite":
        _check_sqlite(engine, what)
        event.listen(view, "begin", _begin_sqlite)
        event.listen(view, "before_cursor_execute", _lock_sqlite)
    else:
        event.listen(view, "begin", _begin_postgres)
    return view


def _check_sqlite(engine: Engine, what: str) -> None:
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        raise Invalid(f"{what} needs connections that are not shared: leave out poolclass={type(engine.pool).__name__}")
    with engine.connect() as connection:
        file = connection.exec_driver_sql(SQLITE_FILE).scalar()
    if not file:
        raise Invalid(f"{what} needs a file, and the engine's database is in memory: it is lost with the process")


def _begin_sqlite(connection: Connection) -> None:
    """Have the transaction that begins wait for the disk, and for others."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        driver.execute("PRAGMA synchronous = FULL")
        driver.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    check_sqlite(*driver.execute(SQLITE_SAFETY).fetchall()[0])
    if getattr(driver, "autocommit", False) is True:
        raise Invalid(AUTOCOMMIT)


def _lock_sqlite(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Take the lock with the first statement, as `durable_sqlite` does when it begins; unless the engine has a way of
    its own to begin, which may come after ours and would then fail."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction and not statement.upper().startswith("BEGIN"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_postgres(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False) is True:
        raise Invalid(AUTOCOMMIT)


# -- opened once in each process --------------------------------------------------------------------------------


class Database(Generic[Prepared]):
    """The database that one part keeps something in, opened at its first use, once in each process: a forked child has
    connections of its own, and never touches its parent's.

    `given` is a URL (`what` and `file` are for messages, see `parse`), an engine of the user's, who closes it, or a
    function that answers an engine. `prepare` makes the tables in a first transaction; what it answers is kept.
    """

    def __init__(
        self,
        given: str | Engine | Callable[[], Engine],
        what: str,
        file: str,
        prepare: Callable[[Connection], Prepared] | None = None,
    ) -> None:
        self._given = given
        self._what = what
        self._prepare = prepare
        self._parsed = parse(given, what, file) if isinstance(given, str) else None
        # By the generation of the process.
        self._locks: dict[int, threading.Lock] = {}
        self._opened: dict[int, tuple[Engine, Any]] = {}

    @property
    def url(self) -> sqlalchemy.URL:
        """Where it is."""
        if self._parsed is not None:
            return self._parsed
        return self._given.url if isinstance(self._given, Engine) else self.opened()[0].url

    def opened(self) -> tuple[Engine, Prepared]:
        """The engine of this process, and what `prepare` answered."""
        with self._locks.setdefault(forks.generation, threading.Lock()):
            if forks.generation not in self._opened:
                self._opened[forks.generation] = self._open()
            return self._opened[forks.generation]

    def close(self) -> None:
        """Close this process's connections that are not in use; the next use opens others. A user's engine stays."""
        found = self._opened.pop(forks.generation, None)
        if found is not None:
            self._dispose(found[0])

    def _open(self) -> tuple[Engine, Prepared | None]:
        engine = self._engine()
        try:
            with reaching():
                return engine, None if self._prepare is None else transact(engine, self._prepare)
        except BaseException:
            self._dispose(engine)
            raise

    def _engine(self) -> Engine:
        if self._parsed is not None:
            return open_engine(self._parsed, pool_size=_UNLIMITED, pool_pre_ping=True)
        if not isinstance(self._given, Engine):
            assert callable(self._given)
            return adopt(self._given(), self._what)
        if self._opened:  # by a process of which this is a child
            self._given.dispose(close=False)
        return adopt(self._given, self._what)

    def _dispose(self, engine: Engine) -> None:
        if not isinstance(self._given, Engine):
            engine.dispose()
