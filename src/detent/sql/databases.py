"""SQL databases that Detent keeps something in: SQLite for one machine, PostgreSQL for many.

Whoever commits here relies on two things: what was committed is still there after a power cut, and of two that meet one
waits for the other. Both databases can be set up otherwise, so that engines are made, or checked, here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from detent.errors import Invalid, Unavailable
from detent.runtime.backoff import Backoff
from detent.sql import dialects
from detent.sql.dialects import DIALECTS as DIALECTS
from detent.sql.dialects import NOW as NOW
from detent.sql.dialects import check_sqlite, is_not_understood, is_passing_state

ATTEMPTS: Final = 8
"""How often a transaction is tried that others came in the way of."""

RETRY: Final = Backoff(0.02, 1.0, jitter=1)

BUSY_MS: Final = 30_000
"""How long SQLite waits for another process's transaction."""

_MADE_TWICE: Final = ("23505", "42P07", "42710")

_PATIENCE: Final = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000}
"""What a connection to PostgreSQL is opened with, unless its URL says otherwise: a network that swallows what is sent
would be waited for for hours."""

_AUTOCOMMIT: Final = "the engine commits each statement (AUTOCOMMIT): what belongs together needs a transaction"

Result = TypeVar("Result")


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
    if name == "sqlite":
        file = file_of(parsed)
        is_memory = file is None or not parsed.database or ":memory:" in parsed.database or "mode=memory" in str(parsed)
        return "sqlite:///:memory:" if is_memory else f"sqlite:///{file.resolve()}"  # type: ignore[union-attr]
    host = parsed.host or parsed.query.get("host") or "localhost"
    port = parsed.port or parsed.query.get("port") or 5432
    return f"{name}://{host}:{port}/{parsed.database or parsed.username or ''}"


# -- engines ----------------------------------------------------------------------------------------------------


def open_engine(parsed: sqlalchemy.URL, **options: Any) -> Engine:
    """The engine for a database. `options` are those of SQLAlchemy's `create_engine`."""
    if parsed.get_backend_name() == "sqlite":
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
    """SQLite as shards need it: a commit that returns is on the disk, and who writes has the lock from the start, since
    a transaction that reads and then cannot write has to be thrown away."""

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
        file = connection.exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'").scalar()
    if not file:
        raise Invalid(f"{what} needs a file, and the engine's database is in memory: it is lost with the process")


def _begin_sqlite(connection: Connection) -> None:
    """Have the transaction that begins wait for the disk, and for others."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        driver.execute("PRAGMA synchronous = FULL")
        driver.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    ((synchronous,),) = driver.execute("PRAGMA synchronous").fetchall()
    ((journal,),) = driver.execute("PRAGMA journal_mode").fetchall()
    check_sqlite(synchronous, journal)
    if getattr(driver, "autocommit", False) is True:
        raise Invalid(_AUTOCOMMIT)


def _lock_sqlite(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Take the lock with the first statement, as `durable_sqlite` does when it begins; unless the engine has a way of
    its own to begin, which may come after ours and would then fail."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction and not statement.upper().startswith("BEGIN"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_postgres(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False) is True:
        raise Invalid(_AUTOCOMMIT)


# -- transactions -----------------------------------------------------------------------------------------------


def transact(engine: Engine, work: Callable[[Connection], Result], *, is_single: bool = False) -> Result:
    """What `work` answers, in a transaction of its own that is tried again when others came in the way. With
    `is_single` it is one statement, which PostgreSQL needs no beginning and end for: each would be a round trip."""
    is_alone = is_single and engine.dialect.name == "postgresql"
    alone = engine.execution_options(isolation_level="AUTOCOMMIT") if is_alone else engine
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with alone.connect() if is_alone else alone.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not is_passing(error) and not _is_made_twice(error):
                raise
            failure = error
        time.sleep(RETRY.pause_s(attempt))
    raise Unavailable(f"the database cannot be had: {failure.orig}") from failure


def read(engine: Engine, question: Callable[[Connection], Result]) -> Result:
    """What a question answers, asked again when nobody answered."""
    return transact(engine, question, is_single=True)


def is_passing(error: DBAPIError) -> bool:
    """Whether the same may succeed when it is tried again."""
    return bool(error.connection_invalidated) or _is_passing_orig(error)


def _is_passing_orig(error: DBAPIError) -> bool:
    if state := state_of(error):
        return is_passing_state(state)
    return isinstance(error, OperationalError) and not is_not_understood(error.orig)


def state_of(error: DBAPIError) -> str:
    """What PostgreSQL calls an error; of SQLite's, nothing."""
    return dialects.state_of(error.orig)


def _is_made_twice(error: DBAPIError) -> bool:
    """Two that make the same table or row at the same moment: the second one finds it there when it looks again."""
    return state_of(error) in _MADE_TWICE or "UNIQUE constraint" in str(error.orig)
