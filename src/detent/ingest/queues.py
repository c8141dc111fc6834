"""The queue that announces files, as the coordinator sees it: receive, extend, acknowledge.

Any queue that delivers at least once will do. Write a class with these methods, and pass it to `Ingest(queue=...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message. The same message delivered again is another one, with another `receipt`."""

    message_id: str
    receipt: str
    body: bytes
    attempts: int = 0
    """How often the queue says it delivered the message, this time included; 0 if it does not say."""

    headers: dict[str, str] = field(default_factory=dict)


class FileQueue(Protocol):
    """A queue that delivers at least once, and keeps a delivered message from others for a time, its visibility.

    One thread receives while another extends and acknowledges, so methods are safe to call from several threads.
    """

    @property
    def name(self) -> str:
        """What the queue is called, the same in all processes: it is part of the names of data in messages."""
        ...

    @property
    def visibility_max_s(self) -> float:
        """The longest that `receive` and `extend` can ask for."""
        ...

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Up to `limit` messages, invisible to others for `visibility_s` from now; waits for the first up to `wait_s`.
        Fewer than there are is fine. `Unavailable` if the queue does not answer."""
        ...

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Keep messages invisible for `visibility_s` from now (0: give them back); those for which that failed, because
        they were delivered again, are gone, or the queue did not answer."""
        ...

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have messages at once of which nothing was begun: as `extend` by 0, and without an attempt counted
        where the queue can do that. Those for which it fails come when their time is over."""
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Delete messages for good; those that were not, of which some may be gone already. Nothing is lost by that:
        they are delivered again, found finished, and acknowledged then."""
        ...

    def retention_s(self) -> float | None:
        """How long the queue keeps a message that nobody acknowledges, dead-letter queues not counted; None if it keeps
        them for ever, or does not say."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
