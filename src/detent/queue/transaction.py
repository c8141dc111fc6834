"""The queues' part of a transaction: publish, acknowledge, fail and extend together with everything else in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detent.durations import Duration
from detent.engine import Operation
from detent.errors import Invalid
from detent.queue import calls
from detent.queue.calls import Message
from detent.queue.message import (
    Held,
    _Delivered,
    ack_operations,
    extend_operation,
    fail_operation,
    receipt_of,
)


class QueueOperations:
    """Queue operations gathered into a transaction. Each call answers the index of its result in `results`."""

    _settles: list[_Delivered]

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        raise NotImplementedError

    def _settle(self) -> None:
        """The transaction is committed: what became of these messages is said."""
        for message in self._settles:
            message.settled = True

    def publish(
        self,
        message: Message,
        *,
        queue: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> int:
        """Publish a message, to a queue by name or to all that match. Its result is a `PublishedMessages`."""
        return self.add(calls.publish([calls.outgoing(message, headers, options)], queue)[0])

    def publish_many(
        self, messages: Iterable[Message], *, queue: str | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Publish many messages. Answers the index of the first result."""
        operations = calls.operations_for(messages, headers, queue)
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
