"""One transaction for each message: what a handler changes, the mark that it was handled and the messages that it sends
are committed together.

A unit of work of your own has `begin`, which answers a unit, and units have `commit`, `rollback` and `close`. All may
be ``async def``: then handlers run on an event loop.

A unit on a database has to notice when a handler ends its transaction. Handlers have connections, and there are more
ways to end a transaction than can be forbidden: a statement among others in one text, a cursor of the driver's, a
function of the database. So each unit sets a savepoint at its beginning, with a name that is not known to handlers,
and looks for it at its end: the `Guard`.
"""

from __future__ import annotations

import secrets
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from detent.errors import Invalid
from detent.sql.dialects import (
    ABORTED,
    ATTEMPTS,
    DURABLE,
    POSTGRESQL,
    RETRY,
    SQLITE_FILE,
    SQLITE_SAFETY,
    check_sqlite,
    is_no_savepoint,
    is_passing,
    state_of,
)

if TYPE_CHECKING:
    from detent.bus.calling import UserCaller
    from detent.bus.transport import Transport
    from detent.sql.port import SqlPort


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

_IDLE: Final = 0
"""libpq's status of a connection in no transaction."""

_GUARD: Final = "_detent_guard"


class TransactionEnded(Invalid):
    """A handler has ended the transaction of its message itself. What it wrote before that, and the mark, may be
    committed without the rest, so trying again would skip it as handled: the message is given up, for people to see."""


class Unit(Protocol):
    """One transaction. Handlers use it through what it provides, and never end it."""

    @property
    def provides(self) -> Mapping[Any, Any]:
        """What handlers can ask for in their parameters, by type or by name: ``session`` or ``Session``."""

    @property
    def sql(self) -> SqlPort | None:
        """How trackers and outboxes speak SQL within the transaction; None if it is not one of a database."""

    def check(self) -> None:
        """`TransactionEnded` if it can be told without asking the database that the transaction has ended: called
        before messages are kept, which would be committed by themselves."""

    def commit(self) -> Awaitable[None] | None:
        """Commit. When it returns, what was done survives a power cut. `TransactionEnded` if a handler has ended the
        transaction itself."""

    def rollback(self) -> Awaitable[None] | None:
        """Undo everything; also after a commit that failed. `TransactionEnded` if that is not possible, because a
        handler has ended the transaction itself."""

    def close(self) -> Awaitable[None] | None:
        """Let go of it. Always called, once, at the end."""


class UnitOfWork(Protocol):
    """Where units come from."""

    @property
    def is_async(self) -> bool:
        """Whether its units are awaited, and want an event loop."""

    @property
    def provided(self) -> frozenset[Any]:
        """The keys of what its units provide, which handlers are checked against when the app starts."""

    @property
    def place(self) -> str | None:
        """Which database it is in, without secrets; None if that is not known."""

    def check(self, transport: Transport) -> None:
        """Refuse, with `Invalid`, what cannot work: called when the app starts."""

    def begin(self) -> Unit | Awaitable[Unit]:
        """Begin a transaction."""


def sql_of(unit: Unit | None, what: str) -> SqlPort:
    """How to speak SQL in a unit's transaction; `Invalid` if it is not one of a database."""
    if unit is None or unit.sql is None:
        raise Invalid(
            f"{what} writes in the transaction of the handlers, and that is not one of an SQL database: use "
            "SqlAlchemyUnitOfWork, DbApiUnitOfWork or DjangoUnitOfWork"
        )
    return unit.sql


class Begun:
    """A unit for the length of an ``async with`` block: committed at its end, rolled back if it raises, always let go
    of."""

    def __init__(self, caller: UserCaller, unit_of_work: UnitOfWork) -> None:
        self._caller = caller
        self._unit_of_work = unit_of_work
        self._unit: Unit | None = None

    async def __aenter__(self) -> Unit:
        try:
            return await self._caller.to_its_end(self._begin())
        except BaseException:
            if self._unit is not None:  # cancelled when it had just begun
                await self._caller.to_its_end(self._let_go())
            raise

    async def _begin(self) -> Unit:
        self._unit = unit = cast("Unit", await self._caller.unit(self._unit_of_work.begin))
        return unit

    async def _let_go(self) -> None:
        assert self._unit is not None
        try:
            await self._caller.unit(self._unit.rollback)
        finally:
            await self._caller.unit(self._unit.close)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._caller.to_its_end(self._let_go())
        else:
            await self._caller.to_its_end(self._commit())

    async def _commit(self) -> None:
        assert self._unit is not None
        try:
            await self._caller.unit(self._unit.commit)
        except BaseException:
            await self._let_go()
            raise
        await self._caller.unit(self._unit.close)


async def in_unit(caller: UserCaller, unit_of_work: UnitOfWork | None, work: Callable[..., Any], *values: Any) -> Any:
    """What ``work(*values, unit)`` answers, in a unit of its own; without a unit of work the unit is None."""
    if unit_of_work is None:
        return await caller.unit(work, *values, None)
    async with Begun(caller, unit_of_work) as unit:
        return await caller.unit(work, *values, unit)


async def patiently(
    caller: UserCaller, unit_of_work: UnitOfWork | None, work: Callable[..., Any], *values: Any
) -> None:
    """The same, again when others came in the way: tables are made by many processes at the same moment."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await in_unit(caller, unit_of_work, work, *values)
            return
        except Exception as error:
            if attempt == ATTEMPTS or not is_passing(error):
                raise
        await caller.blocking(time.sleep, RETRY.pause_s(attempt))


# -- on a database: the guard ------------------------------------------------------------------------------------


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


# -- on a database: settings of SQLite ---------------------------------------------------------------------------


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
