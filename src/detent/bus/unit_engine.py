"""A Detent store as the place where handlers write: the message's acknowledgement, what it changes and what it sends
are one transaction of the engine.

There is nothing to forward, and nothing to track: a delivery is acknowledged with its effect or not at all, a stale one
is refused as a whole, and a message that is sent twice is kept once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from detent.bus.messages import Envelope, Incoming
from detent.bus.transport import Transport
from detent.bus.transport_queue import QueueTransport
from detent.errors import Invalid
from detent.transaction import Transaction

if TYPE_CHECKING:
    from detent.store import Store


class HandlerTransaction(Transaction):
    """A transaction of the store that the bus commits, with the acknowledgement of the message."""

    def commit(self) -> list[Any]:
        """Refused: the bus commits when the handlers have returned."""
        raise Invalid("a handler does not commit: its transaction is committed with the message's acknowledgement")

    def commit_all(self) -> list[Any]:
        """What the bus calls."""
        return super().commit()


class EngineUnit:
    """One transaction of the engine."""

    sql: Final = None

    def __init__(self, store: Store, transport: QueueTransport) -> None:
        self._transaction = HandlerTransaction(store.commit)
        self._transport = transport
        self.provides: Mapping[Any, Any] = {
            Transaction: self._transaction,
            "transaction": self._transaction,
            type(store): store,
            "store": store,
        }

    def settle(self, incoming: Incoming, envelopes: Sequence[Envelope]) -> None:
        """Acknowledge the message and send others, with the commit."""
        self._transport.send_into(self._transaction, envelopes)
        self._transport.acknowledge_into(self._transaction, incoming)

    def check(self) -> None:
        """A handler cannot end it."""

    def commit(self) -> None:
        """All of it, in one commit of the engine."""
        self._transaction.commit_all()

    def rollback(self) -> None:
        """Nothing was sent to the engine."""

    def close(self) -> None:
        """There is nothing to let go of."""


class EngineUnitOfWork:
    """Handlers write to the store that their messages come from.

    >>> bus = Bus("billing", QueueTransport("file:./data"), unit_of_work=EngineUnitOfWork())
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, transaction: detent.Transaction):
    ...     transaction.append("invoices", ...)
    """

    is_async: Final = False
    place: Final = None

    def __init__(self) -> None:
        self._transport: QueueTransport | None = None

    @property
    def provided(self) -> frozenset[Any]:
        from detent.store import Store

        return frozenset({Transaction, "transaction", Store, "store"})

    def check(self, transport: Transport) -> None:
        """The messages have to be in the same store."""
        if not isinstance(transport, QueueTransport):
            raise Invalid(
                "EngineUnitOfWork commits with the queue that messages come from, which is to be a queue of Detent: "
                "use QueueTransport, or a unit of work of your database"
            )
        if self._transport not in (None, transport):
            raise Invalid("an EngineUnitOfWork belongs to one app: make one for each")
        self._transport = transport

    def begin(self) -> EngineUnit:
        if self._transport is None:
            raise Invalid("the app has not started")
        return EngineUnit(self._transport.store, self._transport)
