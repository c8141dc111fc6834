"""What this process knows of the deliveries of a queue: until when it holds them, and how many it counted."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from detent.transports.contract import Delivery

LEASE: Final = "30s"
"""How long a message is held before it is extended or given to another: how late a crash is noticed."""

COUNTED_MAX: Final = 10_000
"""Messages whose attempts are counted here, where the queue does not count them."""


@dataclass(slots=True, eq=False)
class Held:
    """A delivery, and until when it is ours by this machine's steady clock."""

    delivery: Delivery
    until: float
    is_settled: bool = False

    @property
    def settled(self) -> bool:
        """Whether it is said what became of it, here or in a transaction of the queue's store."""
        return self.is_settled or getattr(self.delivery.own, "settled", False) is True


def lease_end(asked_at: float, wait_s: float, lease_s: float) -> float:
    """When the lease of what a receive returns just now is over, by this machine's steady clock.

    The queue answered within the time that it was given. A process that was paused reads the answer later, and its
    lease is no longer for that.
    """
    return min(time.monotonic(), asked_at + max(0.0, wait_s)) + lease_s


class Counts:
    """How often this process began messages of a queue that does not count: others have counts of their own."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, message_id: str) -> int:
        """One more; how many there are."""
        with self._lock:
            count = self._counts.pop(message_id, 0) + 1
            self._counts[message_id] = count
            if len(self._counts) > COUNTED_MAX:
                self._counts.popitem(last=False)
        return count

    def take_back(self, message_id: str) -> None:
        """No handler saw it: it counts as if it had not come."""
        with self._lock:
            count = self._counts.pop(message_id, 0) - 1
            if count > 0:
                self._counts[message_id] = count

    def forget(self, message_id: str) -> None:
        """It is done."""
        with self._lock:
            self._counts.pop(message_id, None)
