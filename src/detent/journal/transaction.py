"""`store.transaction()`: operations gathered in a block, applied together at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from detent.engine import Operation
from detent.errors import Invalid
from detent.journal import calls
from detent.journal.calls import Entry
from detent.journal.operations import FragmentRef
from detent.journal.publisher import AckIntent


class _Operations:
    """Collects the operations of a transaction. Each call answers the index of its result in `results`, which are
    there after the commit."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.results: list[Any] = []
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

    def append(
        self, journal: str, body: bytes, *, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one message. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append(journal, body, key, headers))

    def append_many(self, journal: str, entries: Iterable[Entry]) -> int:
        """Append several messages. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append_many(journal, entries))

    def append_table(self, journal: str, table: Any) -> int:
        """Append the rows of an Arrow table. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append_table(journal, table))

    def adopt(self, journal: str, fragments: Sequence[FragmentRef]) -> int:
        """Adopt written fragments. Answers the index of its `Appended` in `results`."""
        return self.add(calls.adopt(journal, fragments))

    def acknowledge(self, intents: Iterable[AckIntent]) -> None:
        """Commit the pending messages that these intents of an earlier publisher cover, with the rest of this."""
        for intent in intents:
            self.add(intent.operation())

    def check_registers(self, journal: str, expected: Mapping[str, str | None]) -> int:
        """Refuse the whole transaction with `Conflict` unless the registers are as expected (None: absent)."""
        return self.add(calls.check_registers(journal, expected))

    def set_registers(self, journal: str, values: Mapping[str, str | None]) -> int:
        """Set registers (None removes one)."""
        return self.add(calls.set_registers(journal, values))

    def check_next_offset(self, journal: str, offset: int) -> int:
        """Refuse the whole transaction with `Conflict` unless the journal's next offset is this."""
        return self.add(calls.check_next_offset(journal, offset))


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
        return self.results
