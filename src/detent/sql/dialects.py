"""What SQLite and PostgreSQL each call the same thing, and what their errors mean. It needs no driver and no
SQLAlchemy, so that programs which have neither can use it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from detent.errors import DetentError, Invalid, OutcomeUnknown
from detent.runtime.backoff import Backoff

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
DIALECTS: Final = (SQLITE, POSTGRESQL)

NOW: Final = {
    SQLITE: "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    POSTGRESQL: "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)",
}
"""The database's own time in milliseconds: clocks of several machines are never compared."""

DURABLE: Final = {
    SQLITE: "1",
    POSTGRESQL: "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)",
}
"""Has the transaction that it is evaluated in wait for the disk: to a PostgreSQL whose synchronous_commit is off, on
the server, in the user's engine or by a statement of the application, a power cut brings back what was acknowledged. In
a statement that is sent anyway it costs no round trip. SQLite is asked when it is opened."""

ATTEMPTS: Final = 8
RETRY: Final = Backoff(0.02, 1.0, jitter=1)
"""How often a transaction is tried that others came in the way of, and the pauses between."""

MEMORY: Final = "sqlite:///:memory:"
"""The place of every SQLite database that is in no file."""

AUTOCOMMIT: Final = "the engine commits each statement (AUTOCOMMIT): what belongs together needs a transaction"

_PASSING_CLASSES: Final = ("08", "53", "57", "58")
_PASSING_STATES: Final = ("25006", "25P02", "25P03", "40001", "40P01", "55P03")
"""PostgreSQL's states of what may succeed when it is tried again: connections, resources, a server that restarts or was
replaced, transactions that met."""

ABORTED: Final = "25P02"
"""PostgreSQL's state of a transaction in which a statement has failed before."""

_SAFE_JOURNALS: Final = ("delete", "truncate", "persist", "wal")
"""SQLite's journal modes after whose commits a power cut leaves all or nothing."""

_FULL: Final = 2
"""SQLite's ``synchronous`` from which on a commit that returned is on the disk."""

SQLITE_SAFETY: Final = (
    "SELECT (SELECT synchronous FROM pragma_synchronous), (SELECT journal_mode FROM pragma_journal_mode)"
)
"""Both at once: what a connection was set to outlives its use, and others use it, too."""

SQLITE_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"
"""The file of a database of SQLite's; none for one in memory."""

_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_LOOKED_AT: Final = 4_096
"""Letters of a statement in which its first word is looked for, behind comments."""

_ENDINGS: Final = ("COMMIT", "END", "ROLLBACK", "ABORT")

_NO_SAVEPOINT: Final = ("3B001", "25P01")
"""PostgreSQL's states of a savepoint that is not there, and of one that is asked for outside of a transaction."""

_NOT_APPLIED: Final = ("40001", "40P01")
_NOT_APPLIED_SQLITE: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Answers to a COMMIT after which it is known that nothing was committed, though the same may succeed later."""


class CommitUnclear(OutcomeUnknown):
    """A COMMIT got no answer: what it was to commit is in the database or is not, and looking there says which."""


# -- errors, as a driver raises them, or wrapped by SQLAlchemy or Django ----------------------------------------


def cause_of(error: BaseException) -> BaseException:
    """The driver's error."""
    return getattr(error, "orig", None) or error.__cause__ or error


def state_of(error: BaseException) -> str:
    """What PostgreSQL calls an error; of SQLite's, nothing."""
    found = (getattr(one, name, None) for one in (error, cause_of(error)) for name in ("sqlstate", "pgcode"))
    return next((str(state) for state in found if state), "")


def is_passing(error: BaseException) -> bool:
    """Whether the same may succeed when it is tried again."""
    if getattr(error, "connection_invalidated", False):
        return True
    if state := state_of(error):
        return state[:2] in _PASSING_CLASSES or state in _PASSING_STATES
    cause = cause_of(error)
    is_operational = any(kind.__name__ == "OperationalError" for kind in (*type(error).__mro__, *type(cause).__mro__))
    # Of SQLite's operational errors one says that it did not understand a statement; the others, that it is busy.
    return is_operational and getattr(cause, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR


def is_no_savepoint(error: BaseException) -> bool:
    """Whether an error says that a savepoint is not there: its transaction has ended."""
    return state_of(error) in _NO_SAVEPOINT or "no such savepoint" in str(cause_of(error))


def _is_not_applied(error: BaseException) -> bool:
    """Whether a COMMIT that was answered with this did nothing, for certain."""
    code = getattr(cause_of(error), "sqlite_errorcode", None)  # its lower byte says what it is about
    return state_of(error) in _NOT_APPLIED or (isinstance(code, int) and code & 0xFF in _NOT_APPLIED_SQLITE)


@contextmanager
def committing() -> Iterator[None]:
    """Says `CommitUnclear` of errors that pass: a client that has lost the connection does not know what became of its
    COMMIT. What the database has refused in so many words is raised as it is."""
    try:
        yield
    except DetentError:
        raise
    except Exception as error:
        if is_passing(error) and not _is_not_applied(error):
            raise CommitUnclear(f"no answer said whether a transaction was committed: {cause_of(error)}") from error
        raise


# -- settings and places ----------------------------------------------------------------------------------------


def check_sqlite(synchronous: int, journal: str) -> None:
    """`Invalid` unless what SQLite commits with these settings is still there after a power cut."""
    if synchronous < _FULL or journal not in _SAFE_JOURNALS:
        raise Invalid(
            f"the engine's SQLite has synchronous={synchronous}, journal_mode={journal}: what it commits may be lost "
            "with the machine. Leave both as they are, or set them to FULL and WAL"
        )


def place_of_file(file: str | Path | None) -> str:
    """Which SQLite database it is, by its file."""
    return f"sqlite:///{Path(file).resolve()}" if file else MEMORY


def place_of_server(dialect: str, host: Any, port: Any, database: Any) -> str:
    """Which database of a server it is, the same for every driver and user."""
    return f"{dialect}://{host or 'localhost'}:{port or 5432}/{database}"


# -- statements -------------------------------------------------------------------------------------------------


def ends_transaction(statement: Any) -> bool:
    """Whether a statement in text is one that ends a transaction; going back to a savepoint does not end it. Of several
    in one text the first is looked at: where the others begin cannot be told without reading SQL."""
    if not isinstance(statement, str):
        return False
    first = _COMMENTS.sub(" ", statement[:_LOOKED_AT]).lstrip(" \t\r\n;").split(";", 1)[0]
    words = first[:64].upper().split()
    return bool(words) and words[0] in _ENDINGS and "TO" not in words
