"""A queue of a Detent store. Messages for it are published in transactions of the store, so it has no `send`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from detent.engine import Operation
from detent.errors import DetentError, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.queue import operations as ops
from detent.queue.message import Delivery as Claimed
from detent.queue.message import Receipt
from detent.queue.unclaiming import undoing_deliveries
from detent.store import Store
from detent.transports.contract import Delivery, FailedDeliveries

GIVEN_BACK: Final = "given back by the ingestion"
"""The reason that the queue keeps with an attempt that ended like that."""

_OfDeliveries = Callable[[int, list[int], list[int]], Operation]
"""An operation on deliveries: a queue's number, then those of messages, and of their deliveries."""


class DetentQueue:
    """A queue of a Detent store, which is a URL or one that is open; an open one stays open.

    The queue's own settings go on to count: a lease is cut to `max_lease`, what was not acknowledged comes back after
    its `backoff`, and after `max_attempts` it is given up. Giving back a message that was begun with ends an attempt.
    What is given up is in the queue's failed list, with the reason.
    """

    keeps_failed: Final = True

    def __init__(self, store: str | Store, queue: str) -> None:
        self.name: Final = queue
        self._own_store = isinstance(store, str)
        self._store = Store(store) if isinstance(store, str) else store
        try:
            self._queue = self._store.queue(queue)
            self.visibility_max_s: Final = self._queue.info().max_lease.total_seconds()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"DetentQueue({self.name!r})"

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Claim up to `limit` messages under one lease."""
        try:
            found = self._queue.claim(
                min(limit, ops.CLAIM_MAX),
                wait=timedelta(seconds=wait_s) if wait_s > 0 else None,
                lease=timedelta(milliseconds=_ms(visibility_s)),
            )
        except LimitExceeded as error:  # too much is in flight, and only acknowledging it helps
            raise Unavailable(f"the queue {self.name!r} gives out no more for now: {error}") from error
        try:
            return list(map(_delivery, found))
        except BaseException:
            self._store.undo(undoing_deliveries(found))
            raise

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Let leases last for longer; those for which that failed."""
        if visibility_s > 0:
            return self._settle(deliveries, partial(ops.Extend, lease_ms=_ms(visibility_s)))
        return self._settle(deliveries, partial(ops.Fail, reason=GIVEN_BACK, delay_ms=0))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Messages are as if they had not been claimed, and their attempts are not counted."""
        for at in range(0, len(deliveries), ops.CLAIM_MAX):
            self._store.undo([_operation(ops.Unclaim, deliveries[at : at + ops.CLAIM_MAX])])

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Messages are done; those that were not marked so."""
        return self._settle(deliveries, ops.Ack)

    def fail(self, delivery: Delivery, reason: str, delay_s: float | None) -> None:
        """Deliver a message again after a delay; with None, put it onto the failed list: ``detent queue failed`` shows
        it, ``detent queue redrive`` tries it again."""
        delay_ms = None if delay_s is None else min(round(max(0.0, delay_s) * 1000), ops.DELAY_MS_MAX)
        fail = partial(ops.Fail, reason=_cut(reason), delay_ms=delay_ms, final=delay_s is None)
        self._store.commit([_operation(fail, [delivery])])

    def retention_s(self) -> float | None:
        """The retention that a message has whose publisher does not say another, and the longest lease: a message
        stays while it is in flight. Where publishers say a longer one, so has the window to be."""
        return ops.RETENTION_S + self.visibility_max_s

    def close(self) -> None:
        """Close the store, unless it was given open."""
        if self._own_store:
            self._store.close()

    def _settle(self, deliveries: Sequence[Delivery], operation: _OfDeliveries) -> Sequence[Delivery]:
        """Apply an operation to deliveries; those that it was not applied to."""
        if not deliveries:
            return []
        once = deliveries
        if len(deliveries) > 1:  # an operation names each one once
            once = list({delivery.receipt: delivery for delivery in deliveries}.values())
        why: dict[str, DetentError] = {}
        todo = [once]
        if len(once) > ops.CLAIM_MAX:
            todo = [once[at : at + ops.CLAIM_MAX] for at in range(0, len(once), ops.CLAIM_MAX)]
        while todo:
            batch = todo.pop()
            try:
                self._store.commit([_operation(operation, batch)])
            except StaleReceipt as error:  # one refuses all of them, and does not say which it is
                half = len(batch) // 2
                if half:
                    todo += [batch[:half], batch[half:]]
                else:
                    why[batch[0].receipt] = error
            except (Unavailable, LimitExceeded, NotFound) as error:
                why |= {delivery.receipt: error for delivery in batch}
        return FailedDeliveries(deliveries, why) if why else []


def _operation(operation: _OfDeliveries, batch: Sequence[Delivery]) -> Operation:
    if len(batch) == 1 and (claimed := batch[0].own) is not None:
        queue, message, delivery = claimed.receipt
        return operation(queue, [message], [delivery])
    receipts = [Receipt.parse(one.receipt) if one.own is None else one.own.receipt for one in batch]
    return operation(
        receipts[0].queue, [receipt.message for receipt in receipts], [receipt.delivery for receipt in receipts]
    )


def _cut(reason: str) -> str:
    """A reason as a queue keeps it."""
    return reason.encode(errors="replace")[: ops.REASON_BYTES_MAX].decode(errors="ignore")


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), ops.LEASE_MS_MIN)


def _delivery(claimed: Claimed) -> Delivery:
    uri = claimed.uri
    return Delivery(
        # With the time: a store that was made anew counts its messages from the start.
        f"{claimed.id}-{claimed._about.received_ms}",
        str(claimed.receipt),
        claimed.body if uri is None else uri.encode(),
        claimed.attempts,
        claimed.headers,
        claimed.fencing_token,
        own=claimed,
    )
