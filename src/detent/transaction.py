"""`store.transaction()`: operations gathered in a block, applied together at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from detent.durations import Duration
from detent.engine import Operation
from detent.engine.twins import Awaited, Plain, Twin, both
from detent.errors import Invalid
from detent.journal import calls as journal_calls
from detent.journal.calls import Entry
from detent.journal.operations import FragmentRef
from detent.journal.publisher import AckIntent
from detent.ledger import operations as ledger_operations
from detent.queue import calls as queue_calls
from detent.queue.calls import Message
from detent.queue.message import Held, _Delivered, ack_operations, extend_operation, fail_operation, receipt_of


class _Operations(Twin):
    """Collects the operations of a transaction. Each call answers the index of its result in `results`, which are
    there after the commit."""

    def __init__(self, commit: Callable[[list[Operation]], Any]) -> None:
        self._commit = commit
        self.operations: list[Operation] = []
        self.results: list[Any] = []
        self._settles: list[_Delivered] = []
        self._committed = False

    @both
    async def commit(self) -> list[Any]:
        """Apply the operations now. A transaction without any does nothing."""
        if self._committed:
            raise Invalid("this transaction was committed before; begin another one")
        self._committed = True
        self.results = await self._answered(self._commit(self.operations)) if self.operations else []
        for message in self._settles:
            message.settled = True
        return self.results

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        if self._committed:
            raise Invalid("this transaction was committed before; begin another one")
        self.operations.append(operation)
        return len(self.operations) - 1

    # -- journals -----------------------------------------------------------------------------------------------

    def append(
        self, journal: str, body: bytes, *, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one message. Answers the index of its `Appended` in `results`."""
        return self.add(journal_calls.append(journal, body, key, headers))

    def append_many(self, journal: str, entries: Iterable[Entry]) -> int:
        """Append several messages. Answers the index of its `Appended` in `results`."""
        return self.add(journal_calls.append_many(journal, entries))

    def append_table(self, journal: str, table: Any) -> int:
        """Append the rows of an Arrow table. Answers the index of its `Appended` in `results`."""
        return self.add(journal_calls.append_table(journal, table))

    def adopt(self, journal: str, fragments: Sequence[FragmentRef]) -> int:
        """Adopt written fragments. Answers the index of its `Appended` in `results`."""
        return self.add(journal_calls.adopt(journal, fragments))

    def acknowledge(self, intents: Iterable[AckIntent]) -> None:
        """Commit the pending messages that these intents of an earlier publisher cover, with the rest of this."""
        for intent in intents:
            self.add(intent.operation())

    def check_registers(self, journal: str, expected: Mapping[str, str | None]) -> int:
        """Refuse the whole transaction with `Conflict` unless the registers are as expected (None: absent)."""
        return self.add(journal_calls.check_registers(journal, expected))

    def set_registers(self, journal: str, values: Mapping[str, str | None]) -> int:
        """Set registers (None removes one)."""
        return self.add(journal_calls.set_registers(journal, values))

    def check_next_offset(self, journal: str, offset: int) -> int:
        """Refuse the whole transaction with `Conflict` unless the journal's next offset is this."""
        return self.add(journal_calls.check_next_offset(journal, offset))

    # -- queues -------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        *,
        queue: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> int:
        """Publish a message, to a queue by name or to all that match. Its result is a `PublishedMessages`."""
        return self.add(queue_calls.publish([queue_calls.outgoing(message, headers, options)], queue)[0])

    def publish_many(
        self, messages: Iterable[Message], *, queue: str | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Publish many messages. Answers the index of the first result."""
        operations = queue_calls.operations_for(messages, headers, queue)
        if not operations:
            raise Invalid("there is nothing to publish")
        first, *_ = [self.add(operation) for operation in operations]
        return first

    def ack(self, *messages: Held) -> int:
        """Messages are done. One stale receipt refuses the whole transaction with `StaleReceipt`."""
        self._settles += [message for message in messages if isinstance(message, _Delivered)]
        if not messages:
            raise Invalid("there is nothing to acknowledge")
        first, *_ = [self.add(operation) for operation in ack_operations(messages)]
        return first

    def fail(self, message: Held, reason: str = "", *, delay: Duration | None = None, final: bool = False) -> int:
        """A message's attempt came to nothing."""
        if isinstance(message, _Delivered):
            self._settles.append(message)
        return self.add(fail_operation(receipt_of(message), reason, delay, final))

    def extend(self, message: Held, lease: Duration | None = None) -> int:
        """Hold a message for longer. Its result is a `LeaseExtended`."""
        return self.add(extend_operation(receipt_of(message), lease))

    # -- ledgers ------------------------------------------------------------------------------------------------

    def enter_ledger(self, name: str, batch: int, query: str = "", run: str = "", input: bytes = b"") -> int:
        """Enter a batch of a query under a name, with everything else in this transaction. Its result is an `Entered`.

        A batch that is not above the highest one entered refuses the whole transaction with `AlreadyEntered`: it took
        effect before, and there is nothing to do. So batches rise, as Spark's do; they need not be dense. Another
        query than the ledger's, or a `run` that a later one has replaced, is `Fenced`.

        `input` is a digest of 16 bytes of what the batch is made from. With one, a batch that is not above the highest
        is `AlreadyEntered` only if it had the same input then, and `OtherInput` if not.
        """
        operation = ledger_operations.EnterLedger(name, query, batch, run, input)
        ledger_operations.check_enter(operation)
        return self.add(operation)


class Transaction(_Operations, Plain):
    """Operations that take effect together at the end of the ``with`` block, or not at all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._committed:
            self.commit()


class AsyncTransaction(_Operations, Awaited):
    """`Transaction` for asyncio, with ``async with``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._committed:
            await self.commit()
