"""What every unit of work on a database has to see to: that it is noticed when a handler ends its transaction, that
what is committed survives a power cut, and that a commit that says nothing did happen.

The first needs a guard. Handlers have connections, and there are more ways to end a transaction than can be forbidden:
a statement among others in one text, a cursor of the driver's, a function of the database. So each unit sets a
savepoint at its beginning, with a name that is not known to handlers, and looks for it at its end.
"""

from __future__ import annotations

import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from detent.bus.sql_port import SqlPort
from detent.bus.transport import Transport
from detent.bus.unit_of_work import TransactionEnded
from detent.errors import Invalid
from detent.sql.dialects import (
    ABORTED,
    DURABLE,
    POSTGRESQL,
    SQLITE,
    check_sqlite,
    is_no_savepoint,
    state_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

ENDED: Final = (
    "a handler ended the transaction itself (commit, rollback or close): what it changes, the mark that the message "
    "was handled and what it sends are committed together, by the bus, when it returns. Raise an error to have all of "
    "it undone; parts can be undone with savepoints"
)

BROKEN: Final = (
    "a statement of a handler failed and the handler went on, and nothing is committed of such a transaction: let the "
    "error out, or try such statements in a savepoint"
)

IN_TRANSACTION: Final = (
    "the connection is in a transaction already, which is not this unit's: it has to come from its pool, or from the "
    "function that you gave, with nothing open"
)

SET_DURABLE: Final = f"SELECT {DURABLE[POSTGRESQL]}"

SQLITE_SAFETY: Final = (
    "SELECT (SELECT synchronous FROM pragma_synchronous), (SELECT journal_mode FROM pragma_journal_mode)"
)
"""Both at once: what a connection was set to outlives its use, and others use it, too."""

SQLITE_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"

_IDLE: Final = 0
"""libpq's status of a connection in no transaction."""

_GUARD: Final = "_detent_guard"


# -- the guard --------------------------------------------------------------------------------------------------


class Guard:
    """A savepoint that is gone if the transaction has ended since it was set, by whatever way. Its name is not to be
    guessed: a handler that went back to it would undo the mark."""

    def __init__(self) -> None:
        name = f"detent_{secrets.token_hex(8)}"
        self.set = f"SAVEPOINT {name}"
        self.release = f"RELEASE SAVEPOINT {name}"
        self.back = f"ROLLBACK TO SAVEPOINT {name}"
        """Also in a transaction in which a statement has failed."""
        self.settle = f"{self.release}; {SET_DURABLE}"
        """Durable as the last thing: handlers can set what they like."""
        self.commit = f"{self.settle}; COMMIT"
        self.undo = f"{self.back}; ROLLBACK"
        """Both in one round trip, with a driver that then has nothing to commit or to undo. If the first part fails,
        the others are not done."""


def guard_of(memory: MutableMapping[Any, Any]) -> Guard:
    """The guard of a connection, which keeps it for its life: statements that are new each time would fill the caches
    of drivers and the statistics of PostgreSQL."""
    found: Guard | None = memory.get(_GUARD)
    if found is None:
        found = memory[_GUARD] = Guard()
    return found


def is_psycopg(driver: Any) -> bool:
    """Whether a connection is psycopg's, plain or async: it knows after a COMMIT in text that there is nothing left to
    commit."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(driver, psycopg.Connection | psycopg.AsyncConnection)


def is_over(driver: Any) -> bool:
    """Whether a driver's connection can be seen to be in no transaction, without asking the database. One that is
    broken cannot."""
    if (info := getattr(driver, "info", None)) is not None:  # psycopg
        return int(info.transaction_status) == _IDLE
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return not driver.is_closed() and not driver.is_in_transaction()
    return not getattr(driver, "in_transaction", True)  # sqlite3, aiosqlite


def say(driver: Any, text: str) -> None:
    """Have a plain connection of a driver's execute a text, behind everything that is built on it. psycopg would
    prepare it if it was told to prepare everything, and several commands cannot be."""
    if isinstance(driver, sqlite3.Connection):
        driver.execute(text).close()
    elif is_psycopg(driver):
        driver.execute(text, prepare=False).close()
    else:
        with driver.cursor() as cursor:
            cursor.execute(text)


@contextmanager
def settling() -> Iterator[None]:
    """Tells what an error means with which a guard's `release` was answered."""
    try:
        yield
    except Exception as error:
        if state_of(error) == ABORTED:
            raise Invalid(BROKEN) from error
        if is_no_savepoint(error):
            raise TransactionEnded(ENDED) from error
        raise


# -- the guard on a connection of SQLAlchemy's ------------------------------------------------------------------
#
# It is looked for on the driver's own connection, in as few round trips as that allows: SQLAlchemy is about to commit
# or to roll back then, and takes no more statements.


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


def check_connection_waits(connection: Connection) -> None:
    """`check_waits` for a connection of SQLAlchemy's."""
    adapted: Any = connection.connection.dbapi_connection
    if connection.dialect.is_async:  # each call of a cursor would go to another thread and back
        rows = adapted.run_async(lambda driver: driver.execute_fetchall(SQLITE_SAFETY))
    else:
        rows = adapted.execute(SQLITE_SAFETY).fetchall()
    check_sqlite(*rows[0])


def arm(connection: Connection, guard: Guard) -> None:
    """Set the guard. PostgreSQL's transaction begins with it, by SQLAlchemy's own ways, which know what to do with a
    connection that was lost meanwhile."""
    if connection.dialect.name == SQLITE:
        _say_on(connection, guard.set)
    else:
        connection.exec_driver_sql(guard.set)


def settle(connection: Connection, guard: Guard) -> None:
    """Look for the guard, and have the transaction wait for the disk. With psycopg that is the COMMIT as well, unless
    another listener may still write."""
    if connection.dialect.name == SQLITE:
        _say_on(connection, guard.release)
    elif is_psycopg(driver_of(connection)) and len(connection.dispatch.commit) == 1:
        _say_on(connection, guard.commit)
    elif _takes_several(connection):
        _say_on(connection, guard.settle)
    else:
        _say_on(connection, guard.release)
        _say_on(connection, SET_DURABLE)


def undo(connection: Connection, guard: Guard) -> bool:
    """Undo everything since the guard; True if it is not there. Other errors are those of a connection that is lost,
    and whatever was done on it: SQLAlchemy meets them again in a moment."""
    try:
        _say_on(connection, guard.undo if is_psycopg(driver_of(connection)) else guard.back)
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


def _say_on(connection: Connection, text: str) -> None:
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


# -- settings of SQLite -----------------------------------------------------------------------------------------


def check_waits(sql: SqlPort) -> None:
    """`Invalid` if a plain connection of SQLite's does not wait for the disk."""
    ((synchronous, journal),) = sql.execute(SQLITE_SAFETY, {})  # type: ignore[misc]
    check_sqlite(synchronous, journal)


def check_sqlite_file(ask: Callable[[str], Any], transport: Transport | None) -> None:
    """`Invalid` if a SQLite database may lose what it has committed; `ask` answers the first value of a query. One in
    memory goes with messages in memory, which are lost with it."""
    if not ask(SQLITE_FILE):
        if transport is not None and not transport.place.startswith("memory:"):
            raise Invalid(
                "the database is in memory and the messages are not: their effect would be lost with the process, and "
                "they would not come again. Use a file"
            )
        return
    check_sqlite(ask("PRAGMA synchronous"), ask("PRAGMA journal_mode"))
