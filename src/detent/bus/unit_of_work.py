"""One transaction for each message: what a handler changes, the mark that it was handled and the messages that it sends
are committed together.

A unit of work of your own has `begin`, which answers a unit, and units have `commit`, `rollback` and `close`. All may
be ``async def``: then handlers run on an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from detent.errors import Invalid
from detent.sql.dialects import ATTEMPTS, RETRY, is_passing

if TYPE_CHECKING:
    from detent.bus.calling import Caller
    from detent.bus.sql_port import SqlPort
    from detent.bus.transport import Transport


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


class Begun:
    """A unit for the length of an ``async with`` block: committed at its end, rolled back if it raises, always let go
    of."""

    def __init__(self, caller: Caller, unit_of_work: UnitOfWork) -> None:
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


async def patiently(caller: Caller, unit_of_work: UnitOfWork, work: Callable[[Unit], Any]) -> None:
    """Do something in a unit of its own, again when others came in the way: tables are made by many processes at the
    same moment."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with Begun(caller, unit_of_work) as unit:
                await caller.unit(work, unit)
            return
        except Exception as error:
            if attempt == ATTEMPTS or not is_passing(error):
                raise
        await caller.blocking(time.sleep, RETRY.pause_s(attempt))
