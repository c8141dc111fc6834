"""What SQLite and PostgreSQL each call the same thing. It needs no driver and no SQLAlchemy, so that programs which
have neither can use it; `databases` is what builds on SQLAlchemy."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Final

from detent.errors import Invalid

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

_COMMENTS: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_LOOKED_AT: Final = 4_096
"""Letters of a statement in which its first word is looked for, behind comments."""

_ENDINGS: Final = ("COMMIT", "END", "ROLLBACK", "ABORT")


def is_passing_state(state: str) -> bool:
    """Whether PostgreSQL's state is of an error that may not come again."""
    return state[:2] in _PASSING_CLASSES or state in _PASSING_STATES


def state_of(error: BaseException | None) -> str:
    """What PostgreSQL calls a driver's error; of SQLite's, nothing."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def is_passing_error(error: BaseException) -> bool:
    """Whether the same may succeed when it is tried again, from an error as a driver raises it."""
    if state := state_of(error):
        return is_passing_state(state)
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__) and not is_not_understood(error)


def is_not_understood(error: BaseException | None) -> bool:
    """Whether SQLite did not understand a statement, and will not later. Its other operational errors say that it is
    busy."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def check_sqlite(synchronous: int, journal: str) -> None:
    """`Invalid` unless what SQLite commits with these settings is still there after a power cut."""
    if synchronous < _FULL or journal not in _SAFE_JOURNALS:
        raise Invalid(
            f"the engine's SQLite has synchronous={synchronous}, journal_mode={journal}: what it commits may be lost "
            "with the machine. Leave both as they are, or set them to FULL and WAL"
        )


def ends_transaction(statement: Any) -> bool:
    """Whether a statement in text is one that ends a transaction; back to a savepoint is no end."""
    if not isinstance(statement, str):
        return False
    words = _COMMENTS.sub(" ", statement[:_LOOKED_AT])[:64].upper().replace(";", " ").split()
    return bool(words) and words[0] in _ENDINGS and "TO" not in words
