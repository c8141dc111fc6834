"""What this process knows of the deliveries of a foreign queue: until when it holds them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from detent.transports.contract import Delivery

LEASE: Final = "30s"
"""How long a message is held before it is extended or given to another: how late a crash is noticed."""

EXTEND_SHARE: Final = 3
"""A lease is extended when a third of it is over: two more tries fit into the rest."""


@dataclass(slots=True, eq=False)
class Held:
    """A delivery, and until when it is ours by this machine's steady clock."""

    delivery: Delivery
    until: float
    settled: bool = False


def lease_end(asked_at: float, wait_s: float, lease_s: float) -> float:
    """When the lease of what a receive returns just now is over, by this machine's steady clock.

    The queue answered within the time that it was given. A process that was paused reads the answer later, and its
    lease is no longer for that.
    """
    return min(time.monotonic(), asked_at + max(0.0, wait_s)) + lease_s
