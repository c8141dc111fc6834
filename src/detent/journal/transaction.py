"""`store.transaction()`: operations gathered in a block, applied together at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from detent.engine import Operation
from detent.journal import calls
from detent.journal import operations as ops
from detent.journal.calls import Entry
from detent.journal.operations import FragmentRef


class _Operations:
    """Collects the operations of a transaction. Each call answers its index in `results`."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.results: list[Any] = []

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def append(
        self, journal: str, body: bytes, *, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one message."""
        return self.add(calls.append(journal, body, key, headers))

    def append_many(self, journal: str, entries: Iterable[Entry]) -> int:
        """Append several messages."""
        return self.add(calls.append_many(journal, entries))

    def append_table(self, journal: str, table: Any) -> int:
        """Append the rows of an Arrow table."""
        return self.add(calls.append_table(journal, table))

    def adopt(self, journal: str, fragments: Sequence[FragmentRef]) -> int:
        """Adopt written fragments."""
        return self.add(calls.adopt(journal, fragments))

    def check_registers(self, journal: str, expected: Mapping[str, str | None]) -> int:
        """Refuse the whole transaction with `Conflict` unless the registers are as expected (None: absent)."""
        return self.add(calls.check_registers(journal, expected))

    def set_registers(self, journal: str, values: Mapping[str, str | None]) -> int:
        """Set registers (None removes one)."""
        return self.add(calls.set_registers(journal, values))

    def check_next_offset(self, journal: str, offset: int) -> int:
        """Refuse the whole transaction with `Conflict` unless the journal's next offset is this."""
        return self.add(ops.CheckHead(journal, offset))


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
        if error is None:
            self.commit()

    def commit(self) -> list[Any]:
        """Apply the operations now. A transaction without any does nothing."""
        operations, self.operations = self.operations, []
        self.results = self._commit(operations) if operations else []
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
        if error is None:
            await self.commit()

    async def commit(self) -> list[Any]:
        """Apply the operations now. A transaction without any does nothing."""
        operations, self.operations = self.operations, []
        self.results = await self._commit(operations) if operations else []
        return self.results
