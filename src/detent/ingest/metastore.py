"""The database that pipelines share: SQLite for one machine, PostgreSQL for many."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from detent.errors import Invalid, NotFound, Unavailable
from detent.ingest.shard_sql import BY_DIALECT, METADATA, SOURCES

ATTEMPTS: Final = 8
"""How often a transaction is tried that others came in the way of."""

RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 1.0

BUSY_MS: Final = 30_000
"""How long SQLite waits for another process's transaction."""

_PASSING_CLASSES: Final = ("08", "53", "57", "58")
_PASSING_STATES: Final = ("25006", "25P02", "25P03", "40001", "40P01", "55P03")
"""PostgreSQL's states of what may succeed when it is tried again: connections, resources, a server that restarts or was
replaced, transactions that met."""

_PATIENCE: Final = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000}
"""What a connection to PostgreSQL is opened with, unless its URL says otherwise: a network that swallows what is sent
would be waited for for hours."""

Result = TypeVar("Result")


def connect(url: str) -> Engine:
    """The database at a URL of SQLAlchemy's, with Detent's tables in it, which are made where there are none."""
    parsed = _parsed(url)
    file = _file_of(parsed)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    engine = _engine(parsed)
    transact(engine, METADATA.create_all)
    return engine


def connect_existing(url: str) -> Engine:
    """The database at a URL, for somebody who looks; `NotFound` if no pipeline has made its tables."""
    parsed = _parsed(url)
    file = _file_of(parsed)
    if file is None or file.exists():
        engine = _engine(parsed)
        if read(engine, lambda connection: sqlalchemy.inspect(connection).has_table(SOURCES.name)):
            return engine
        engine.dispose()
    raise NotFound(f"no ingest ever ran on {parsed.render_as_string(hide_password=True)}: `detent ingest run` makes it")


def _file_of(parsed: sqlalchemy.URL) -> Path | None:
    """The file of a database of SQLite's."""
    if parsed.get_backend_name() != "sqlite" or parsed.database is None:
        return None
    if not parsed.database.startswith("file:"):
        return Path(parsed.database)
    return Path(url2pathname(urlsplit(parsed.database).path))


def _parsed(url: str) -> sqlalchemy.URL:
    try:
        parsed = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # whose texts may have a part of a password in them
        raise Invalid(
            "state is a database's URL: sqlite:///ingest.db (three slashes, then the path) or "
            "postgresql+psycopg://user@host/database, with special characters of a password encoded"
        ) from None
    name = parsed.get_backend_name()
    if name not in BY_DIALECT:
        raise Invalid(f"shards are kept in SQLite or PostgreSQL, not in {name}")
    try:
        parsed.get_dialect()
    except sqlalchemy.exc.NoSuchModuleError:
        raise Invalid(f"there is no driver {parsed.drivername}: write postgresql+psycopg, or sqlite") from None
    if name == "sqlite" and (not parsed.database or ":memory:" in parsed.database):
        raise Invalid("state needs a file, such as sqlite:///ingest.db: what is in memory is lost with the process")
    return parsed


def _engine(parsed: sqlalchemy.URL) -> Engine:
    if parsed.get_backend_name() == "sqlite":
        return durable_sqlite(sqlalchemy.create_engine(parsed, connect_args={"timeout": BUSY_MS / 1000}))
    try:
        is_libpq = parsed.get_driver_name() in {"psycopg", "psycopg2"}
        patience = {name: value for name, value in _PATIENCE.items() if is_libpq and name not in parsed.query}
        return planned_postgres(sqlalchemy.create_engine(parsed, connect_args=patience))
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


def transact(engine: Engine, work: Callable[[Connection], Result], *, is_single: bool = False) -> Result:
    """What `work` answers, in a transaction of its own that is tried again when others came in the way. With
    `is_single` it is one statement, which PostgreSQL needs no beginning and end for: each would be a round trip."""
    is_alone = is_single and engine.dialect.name == "postgresql"
    alone = engine.execution_options(isolation_level="AUTOCOMMIT") if is_alone else engine
    for attempt in range(ATTEMPTS):
        try:
            with alone.connect() if is_alone else alone.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            if not _is_passing(error):
                raise
            failure = error
        time.sleep(random.uniform(0, min(RETRY_S_MAX, RETRY_S * 2**attempt)))
    raise Unavailable(f"the database of the shards cannot be had: {failure.orig}") from failure


def read(engine: Engine, question: Callable[[Connection], Result]) -> Result:
    """What a question answers, asked again when nobody answered."""
    return transact(engine, question, is_single=True)


def _is_passing(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None) or ""
    if error.connection_invalidated or state[:2] in _PASSING_CLASSES or state in _PASSING_STATES:
        return True
    if isinstance(error, OperationalError) and not state:
        return True  # SQLite is busy, or nobody answers
    # Two that make the same table or row at the same moment: the second one finds it there when it looks again.
    return state in {"23505", "42P07", "42710"} or "UNIQUE constraint" in str(error.orig)
