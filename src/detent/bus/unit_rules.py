"""What every unit of work on a database has to see to: that handlers do not end its transaction, that what is committed
survives a power cut, and that a commit that says nothing did happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from detent.bus.transport import Transport
from detent.dialects import ABORTED, DURABLE, POSTGRESQL, check_sqlite, is_passing_error, state_of
from detent.errors import DetentError, Invalid, OutcomeUnknown

ENDED: Final = (
    "a handler ended the transaction itself (commit, rollback or close): what it changes, the mark that the message "
    "was handled and what it sends are committed together, by the bus, when it returns. Raise an error to have all of "
    "it undone; parts can be undone with savepoints"
)

BROKEN: Final = (
    "a statement of a handler failed and the handler went on, and PostgreSQL commits nothing of such a transaction: "
    "let the error out, or try such statements in a savepoint"
)

SAVEPOINT: Final = "detent_unit_of_work"
"""Set when a transaction begins, and looked for when it is to be committed: it is gone if the transaction has ended
meanwhile, by whatever way."""

SET_DURABLE: Final = f"SELECT {DURABLE[POSTGRESQL]}"

IS_DURABLE: Final = "SELECT current_setting('synchronous_commit') <> 'off'"

SQLITE_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"

_IN_ERROR: Final = 3
"""libpq's status of a connection in whose transaction a statement has failed."""

MEMORY: Final = "sqlite:///:memory:"


def sqlite_place(file: str | None) -> str:
    """The place of a SQLite database, as `databases.place_of` has it."""
    return f"sqlite:///{Path(file).resolve()}" if file else MEMORY


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


def check_not_aborted(driver: Any) -> bool:
    """`Invalid` if a statement has failed in a PostgreSQL transaction: its COMMIT would say nothing, and undo all.
    False if the driver cannot tell."""
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is None:
        return False
    if int(status) == _IN_ERROR:
        raise Invalid(BROKEN)
    return True


@contextmanager
def aborted_is_invalid() -> Iterator[None]:
    """Says `Invalid` if a statement tells that an earlier one has failed. `orig` is where SQLAlchemy has the driver's
    error."""
    try:
        yield
    except Exception as error:
        if state_of(getattr(error, "orig", None) or error) == ABORTED:
            raise Invalid(BROKEN) from error
        raise


@contextmanager
def committing() -> Iterator[None]:
    """Says `OutcomeUnknown` of errors that pass: who has lost the connection does not know what became of a COMMIT."""
    try:
        yield
    except DetentError:
        raise
    except Exception as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        is_lost = bool(getattr(error, "connection_invalidated", False))
        if is_lost or is_passing_error(cause) or (not state_of(cause) and is_passing_error(error)):
            raise OutcomeUnknown(f"nobody said whether a transaction was committed: {cause}") from error
        raise
