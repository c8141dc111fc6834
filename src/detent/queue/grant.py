"""A claim that is not over: what it gave out, to whom, and until when."""

from __future__ import annotations

from detent.codec.published import FOREVER


class OpenClaim:
    """What one claim gave out: a lease on some messages, all until the same time. What is assigned to a reader is a
    grant too, without an end: the reader's name is the consumer's label, and all its messages leave together."""

    __slots__ = ("claimed_ms", "consumer", "held", "lease_ms", "queue")

    def __init__(self, queue: int, claimed_ms: int, lease_ms: int, consumer: str) -> None:
        self.queue = queue
        self.claimed_ms = claimed_ms
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.held: dict[int, None] = {}

    @property
    def is_assigned(self) -> bool:
        """Whether it is a reader's. No lease lasts for ever."""
        return self.lease_ms == FOREVER


Flight = tuple[int, int, OpenClaim]
"""A message in flight: its place, which delivery this is, and the lease. (A plain tuple: claims make thousands.)"""
