"""Handlers that write through a connection of psycopg's, plain or async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from detent.bus.sql_port import SqlPort, port_of
from detent.bus.unit_of_work import TransactionEnded
from detent.bus.unit_rules import ENDED, IN_TRANSACTION, guard_of, is_over, settling
from detent.errors import Invalid
from detent.sql.dialects import committing, is_no_savepoint, is_passing

_ENDINGS: Final = ("commit", "rollback", "close")


class _Guarded:
    """What both kinds know of their transaction without asking the database."""

    def __init__(self, connection: Any, let_go: Callable[[], Any], provides: Mapping[Any, Any]) -> None:
        self._connection = connection
        self._let_go = let_go
        self._guard = guard_of(vars(connection))
        self._refused: list[str] = []
        self._is_ours = False
        """Whether a transaction that the connection is in is the unit's."""
        self._is_open = False
        """Whether the transaction is begun and not yet to be ended by us."""
        self.sql: SqlPort = port_of(connection)
        self.provides = provides

    def check(self) -> None:
        """`TransactionEnded` if the connection is in no transaction any more."""
        if self._is_open and self._was_ended():
            raise TransactionEnded(ENDED)

    def _beginning(self) -> str:
        """What begins a transaction, in one round trip; psycopg says BEGIN by itself where it does not commit each
        statement."""
        if not is_over(self._connection):
            raise Invalid(IN_TRANSACTION)
        self._is_ours = True
        return f"BEGIN; {self._guard.set}" if self._connection.autocommit else self._guard.set

    def _begun(self) -> None:
        """Nobody ends the transaction through the connection's own methods from here on; who tries is noted."""
        self._is_open = True
        for name in _ENDINGS:
            setattr(self._connection, name, self._refusing(name))

    def _refusing(self, name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            self._refused.append(name)
            raise Invalid(ENDED)

        return refuse

    def _allow(self) -> None:
        for name in _ENDINGS:
            vars(self._connection).pop(name, None)

    def _ending(self) -> str:
        """What commits. A handler that was told not to, and went on, has not done what it meant to do."""
        self._allow()
        if self._refused:
            raise Invalid(ENDED)
        self.check()
        self._is_open = False
        return self._guard.commit

    def _was_ended(self) -> bool:
        connection = self._connection
        return is_over(connection) or (connection.closed and not connection.broken)

    def _can_be_undone(self) -> bool:
        return self._is_ours and not self._connection.closed and not is_over(self._connection)


class PsycopgUnit(_Guarded):
    """One transaction of a psycopg connection."""

    def begin(self) -> None:
        """Begin."""
        self._connection.execute(self._beginning(), prepare=False)
        self._begun()

    def commit(self) -> None:
        """Commit, if it still is the transaction that was begun, and nothing in it has failed."""
        text = self._ending()
        with committing(), settling():
            self._connection.execute(text, prepare=False)

    def rollback(self) -> None:
        """Undo everything. A transaction ends with its connection, if that is broken."""
        self._allow()
        was_open, self._is_open = self._is_open, False
        has_ended = was_open and self._was_ended()
        if was_open and self._can_be_undone():
            try:
                self._connection.execute(self._guard.undo, prepare=False)
            except Exception as error:  # noqa: BLE001 - what is not undone by it is undone below, or with the connection
                has_ended = is_no_savepoint(error)
        if self._can_be_undone():
            try:
                self._connection.rollback()
            except Exception as error:
                if not is_passing(error):
                    raise
                self._connection.close()
        if has_ended:
            raise TransactionEnded(ENDED)

    def close(self) -> None:
        """Let go of the connection. What a pool gets back has nothing open: it would commit that."""
        try:
            self._is_open = False
            self.rollback()
        finally:
            self._let_go()


class AsyncPsycopgUnit(_Guarded):
    """The same for asyncio."""

    async def begin(self) -> None:
        """Begin."""
        await self._connection.execute(self._beginning(), prepare=False)
        self._begun()

    async def commit(self) -> None:
        """See `PsycopgUnit`."""
        text = self._ending()
        with committing(), settling():
            await self._connection.execute(text, prepare=False)

    async def rollback(self) -> None:
        """See `PsycopgUnit`."""
        self._allow()
        was_open, self._is_open = self._is_open, False
        has_ended = was_open and self._was_ended()
        if was_open and self._can_be_undone():
            try:
                await self._connection.execute(self._guard.undo, prepare=False)
            except Exception as error:  # noqa: BLE001 - see `PsycopgUnit`
                has_ended = is_no_savepoint(error)
        if self._can_be_undone():
            try:
                await self._connection.rollback()
            except Exception as error:
                if not is_passing(error):
                    raise
                await self._connection.close()
        if has_ended:
            raise TransactionEnded(ENDED)

    async def close(self) -> None:
        """Let go of the connection, also if this is cancelled: its pool would not see it again."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        try:
            self._is_open = False
            await self.rollback()
        finally:
            await self._let_go()
