"""The guard of a unit of work on a connection of SQLAlchemy's, in as few round trips as its driver allows.

It is looked for on the driver's own connection: SQLAlchemy is about to commit or to roll back then, and takes no more
statements.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from detent.bus.unit_rules import SET_DURABLE, SQLITE_SAFETY, Guard, is_psycopg, say
from detent.sql.dialects import SQLITE, is_no_savepoint


def driver_of(connection: Connection) -> Any:
    """The driver's own connection, behind what SQLAlchemy makes of async ones."""
    return connection.connection.driver_connection


def is_autocommit(connection: Connection) -> bool:
    """Whether each statement is committed by itself. sqlite3 cannot be asked: engines that begin by themselves set its
    connections to the same."""
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        return True
    level = connection.get_execution_options().get("isolation_level")
    return (level or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def sqlite_safety(connection: Connection) -> tuple[int, str]:
    """SQLite's ``synchronous`` and ``journal_mode`` on this connection."""
    adapted: Any = connection.connection.dbapi_connection
    if connection.dialect.is_async:  # each call of a cursor would go to another thread and back
        rows = adapted.run_async(lambda driver: driver.execute_fetchall(SQLITE_SAFETY))
    else:
        rows = adapted.execute(SQLITE_SAFETY).fetchall()
    ((synchronous, journal),) = rows
    return synchronous, journal


def arm(connection: Connection, guard: Guard) -> None:
    """Set the guard. PostgreSQL's transaction begins with it, by SQLAlchemy's own ways, which know what to do with a
    connection that was lost meanwhile."""
    if connection.dialect.name == SQLITE:
        _say(connection, guard.set)
    else:
        connection.exec_driver_sql(guard.set)


def settle(connection: Connection, guard: Guard) -> None:
    """Look for the guard, and have the transaction wait for the disk. With psycopg that is the COMMIT as well, unless
    somebody else listens who may still write."""
    if connection.dialect.name == SQLITE:
        _say(connection, guard.release)
    elif is_psycopg(driver_of(connection)) and len(connection.dispatch.commit) == 1:
        _say(connection, guard.commit)
    elif _takes_several(connection):
        _say(connection, guard.settle)
    else:
        _say(connection, guard.release)
        _say(connection, SET_DURABLE)


def undo(connection: Connection, guard: Guard) -> bool:
    """Undo everything since the guard; True if it is not there. Other errors are those of a connection that is lost,
    and whatever was done on it: SQLAlchemy meets them again in a moment."""
    try:
        _say(connection, guard.undo if is_psycopg(driver_of(connection)) else guard.back)
    except Exception as error:  # noqa: BLE001 - see above
        return is_no_savepoint(error)
    return False


def drop(connection: Connection) -> bool:
    """Undo a transaction that SQLAlchemy takes for ended, because its commit was tried; False if the connection was
    lost."""
    driver = driver_of(connection)
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
    return is_psycopg(driver_of(connection)) or connection.dialect.driver in ("asyncpg", "psycopg2")


def _say(connection: Connection, text: str) -> None:
    adapted: Any = connection.connection.dbapi_connection
    driver = driver_of(connection)
    if not connection.dialect.is_async:
        say(driver, text)
    elif is_psycopg(driver):
        adapted.run_async(lambda raw: raw.execute(text, prepare=False))
    elif connection.dialect.name == SQLITE:  # this call goes to aiosqlite's thread and back once, and others more often
        adapted.run_async(lambda raw: raw.execute_fetchall(text))
    else:
        adapted.run_async(lambda raw: raw.execute(text))
