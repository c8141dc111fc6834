"""Whose queue a receipt is of. Receipts carry a queue's number, which any caller can guess; rights go by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from detent.errors import StaleReceipt
from detent.queue import Receipt
from detent.server.access import Caller

if TYPE_CHECKING:
    from detent.store import AsyncStore

NUMBERS_MAX: Final = 100_000
"""Queues whose numbers are remembered: ten times as many as a store may have, so that deleted ones find room."""


class QueueNumbers:
    """The names of queues by number. A queue keeps its number for life and no other ever gets it, so what was true once
    stays true. `refused` is called for each receipt that is refused here, because the engine never sees it."""

    def __init__(self, store: AsyncStore, refused: Callable[[], None] | None = None) -> None:
        self._store = store
        self._refused = refused
        self._names: dict[int, str] = {}

    def note(self, number: int, name: str) -> None:
        """A queue's number, seen in passing."""
        if len(self._names) >= NUMBERS_MAX:
            self._names = {}
        self._names[number] = name

    async def require(self, receipts: Iterable[Receipt], queue: str) -> None:
        """`StaleReceipt` unless all receipts are of this queue."""
        for receipt in receipts:
            if receipt.queue not in self._names:
                info = await self._store.queue(queue).info()
                self.note(info.number, info.name)
            if self._names.get(receipt.queue) != queue:
                raise self._stale(f"the receipt {receipt} is not of the queue {queue!r} that there is now")

    async def require_consume(self, receipts: Iterable[Receipt], caller: Caller) -> None:
        """`StaleReceipt` unless the caller may consume the queues of all receipts. Whether there is no such queue or it
        is another caller's, the answer is the same: a number that was guessed must not be answered with a name."""
        for receipt in receipts:
            if receipt.queue not in self._names:
                for info in await self._store.queues():
                    self.note(info.number, info.name)
            name = self._names.get(receipt.queue)
            if name is None or not caller.may("consume", "queue", name):
                raise self._stale(f"the receipt {receipt} is of a queue that is deleted, never was, or is not yours")

    def _stale(self, message: str) -> StaleReceipt:
        if self._refused is not None:
            self._refused()
        return StaleReceipt(message)
