"""`store.transaction()`: operations gathered in a block, applied together at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from detent.engine import Operation
from detent.errors import Invalid
from detent.journal import JournalOperations
from detent.ledger import LedgerOperations
from detent.queue import QueueOperations


class _Operations(JournalOperations, QueueOperations, LedgerOperations):
    """Collects the operations of a transaction. Each call answers the index of its result in `results`, which are
    there after the commit."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.results: list[Any] = []
        self._settles = []
        self._committed = False

    def _take(self) -> list[Operation]:
        """The operations, once."""
        if self._committed:
            raise Invalid("this transaction was committed before; begin another one")
        self._committed = True
        return self.operations

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        if self._committed:
            raise Invalid("this transaction was committed before; begin another one")
        self.operations.append(operation)
        return len(self.operations) - 1


class Transaction(_Operations):
    """Operations that take effect together at the end of the ``with`` block, or not at all."""

    def __init__(self, commit: Callable[[list[Operation]], list[Any]]) -> None:
        super().__init__()
        self._commit = commit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._committed:
            self.commit()

    def commit(self) -> list[Any]:
        """Apply the operations now. A transaction without any does nothing."""
        operations = self._take()
        self.results = self._commit(operations) if operations else []
        self._settle()
        return self.results


class AsyncTransaction(_Operations):
    """`Transaction` for asyncio, with ``async with``."""

    def __init__(self, commit: Callable[[list[Operation]], Awaitable[list[Any]]]) -> None:
        super().__init__()
        self._commit = commit

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._committed:
            await self.commit()

    async def commit(self) -> list[Any]:
        """Apply the operations now. A transaction without any does nothing."""
        operations = self._take()
        self.results = await self._commit(operations) if operations else []
        self._settle()
        return self.results
