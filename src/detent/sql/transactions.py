"""Transactions on SQLAlchemy: tried again when others came in the way, and ended by their owner only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from detent.errors import Invalid, Unavailable
from detent.sql.dialects import (
    ABORTED,
    ATTEMPTS,
    POSTGRESQL,
    RETRY,
    SQLITE,
    CommitUnclear,
    committing,
    ends_transaction,
    is_passing,
    state_of,
)

_MADE_TWICE: Final = ("23505", "42P07", "42710")

Result = TypeVar("Result")


# -- tried again ------------------------------------------------------------------------------------------------


def transact(engine: Engine, work: Callable[[Connection], Result], *, is_single: bool = False) -> Result:
    """What `work` answers, in a transaction of its own that is tried again when others came in the way. With
    `is_single` it is one statement, which PostgreSQL needs no beginning and end for: each would be a round trip."""
    is_alone = is_single and engine.dialect.name == POSTGRESQL
    alone = engine.execution_options(isolation_level="AUTOCOMMIT") if is_alone else engine

    def once() -> Result:
        with alone.connect() if is_alone else alone.begin() as connection:
            return work(connection)

    return patiently(once, lambda error: is_passing(error) or _is_made_twice(error))


def read(engine: Engine, question: Callable[[Connection], Result]) -> Result:
    """What a question answers, asked again when no answer came."""
    return transact(engine, question, is_single=True)


def patiently(work: Callable[[], Result], passes: Callable[[DBAPIError], bool] = is_passing) -> Result:
    """What `work` answers, done again after errors that pass, and after a COMMIT without an answer: it has to find out
    by itself whether it was done."""
    failure: DBAPIError | CommitUnclear
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except sqlalchemy.exc.TimeoutError as error:
            raise _no_connection(error) from error
        except CommitUnclear as error:
            failure = error
        except DBAPIError as error:
            if state_of(error) == ABORTED:
                raise _aborted() from error
            if not passes(error):
                raise
            failure = error
        time.sleep(RETRY.pause_s(attempt))
    raise failure if isinstance(failure, CommitUnclear) else _unavailable(failure) from failure


def _is_made_twice(error: DBAPIError) -> bool:
    """Two that make the same table or row at the same moment: the second one finds it there when it looks again."""
    return state_of(error) in _MADE_TWICE or "UNIQUE constraint" in str(error.orig)


@contextmanager
def reaching() -> Iterator[None]:
    """Says `Unavailable` of errors that pass: nothing was committed."""
    try:
        yield
    except sqlalchemy.exc.TimeoutError as error:
        raise _no_connection(error) from error
    except DBAPIError as error:
        if state_of(error) == ABORTED:
            raise _aborted() from error
        if is_passing(error):
            raise _unavailable(error) from error
        raise


def _no_connection(error: Exception) -> Unavailable:
    return Unavailable(f"the engine's pool had no connection left: {error}")


def _unavailable(error: DBAPIError) -> Unavailable:
    return Unavailable(f"the database cannot be had: {error.orig}")


def _aborted() -> Invalid:
    return Invalid(
        "a statement failed, the function that sent it went on, and PostgreSQL takes nothing more in such a "
        "transaction: let the error out, or try such statements within connection.begin_nested()"
    )


# -- ended by its owner -----------------------------------------------------------------------------------------


class OwnTransaction:
    """The transaction that begins on a connection, and that its owner alone ends, although a function of the user's
    writes in it. Savepoints are welcome. A commit, or a statement in text that ends it, is refused with `Invalid` and
    the text `ended`; so is what comes after SQLite has rolled back by itself, for a statement or a trigger that says
    so: it would be committed without the rest."""

    def __init__(self, connection: Connection, ended: str) -> None:
        self._connection = connection
        self._ended = ended
        self._has_begun = False
        """Whether the driver of SQLite was seen in the transaction, which it may begin with the first statement."""
        self._is_ending = False
        self._is_committed = False
        try:
            self._transaction = connection.begin()
        except BaseException:
            connection.close()
            raise
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "before_cursor_execute", self._refuse_endings)

    def whole(self) -> Connection:
        """The connection, in the transaction that was begun on it and no other."""
        connection = self._connection
        if connection.invalidated:
            raise Unavailable("the connection was lost in the transaction, and nothing of it was committed")
        if (
            connection.closed
            or connection.get_transaction() is not self._transaction
            or not self._transaction.is_active
        ):
            raise Invalid(self._ended)
        return connection

    def commit(self) -> None:
        """Commit. `CommitUnclear` if no answer came."""
        self._is_ending = True
        with committing():
            self._transaction.commit()
        self._is_committed = True

    def release(self) -> None:
        """Roll back what is not committed, and give the connection back."""
        connection = self._connection
        try:
            if not self._is_committed and not self._transaction.is_active and not connection.closed:
                connection.invalidate()  # SQLAlchemy takes it for ended, and would not roll it back
            connection.close()
        except DBAPIError:  # a transaction ends with its connection
            connection.invalidate()
            connection.close()

    def _refuse_commit(self, connection: Connection) -> None:
        if not self._is_ending:
            connection.connection.rollback()  # SQLAlchemy will not: for it, the transaction has ended now
            raise Invalid(self._ended)

    def _refuse_endings(self, connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        """Neither a statement in text nor SQLite's own rollback passes through SQLAlchemy, which would not know."""
        if ends_transaction(statement):
            raise Invalid(self._ended)
        if connection.dialect.name == SQLITE:
            driver: Any = connection.connection.dbapi_connection
            if self._has_begun and not driver.in_transaction:
                raise Invalid(self._ended)
            self._has_begun = driver.in_transaction


@contextmanager
def own_transaction(connection: Connection, ended: str) -> Iterator[OwnTransaction]:
    """An `OwnTransaction` for the length of a block: committed at its end if it is whole, else rolled back."""
    transaction = OwnTransaction(connection, ended)
    try:
        yield transaction
        transaction.whole()
        transaction.commit()
    finally:
        transaction.release()
