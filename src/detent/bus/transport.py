"""What carries messages between apps. A transport delivers at least once; everything else is the bus's.

Its calls block, and come from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from detent.bus.envelope import Envelope, Incoming
from detent.errors import DetentError


class Transport(Protocol):
    """A transport of one app. `DetentError`s say what went wrong: `Unavailable` may pass, `NotFound` may pass when
    somebody makes the queue, `Invalid` and `LimitExceeded` will not."""

    @property
    def ahead_s(self) -> float:
        """How long before it is due a message that waits in an outbox may be sent; `math.inf` for as soon as it is
        there. Less than the longest delay that it keeps a message back for, as the outbox's clock is another one; 0
        where messages are sent when they are due."""

    @property
    def place(self) -> str:
        """What it is, for messages and for the check that one name means one app; without secrets."""

    @property
    def input_name(self) -> str:
        """The queue that the app's messages come from; known from `open` on."""

    @property
    def reply_name(self) -> str:
        """What replies to this app are addressed to: ``reply:NAME``; known from `open` on."""

    def open(self, name: str) -> None:
        """Get ready to send, as the app of this name. Called once, before anything else."""

    def open_input(self) -> None:
        """Get ready to receive from the app's own queue, which is made if need be. The app's own replies, too."""

    def redelivery_s(self) -> float | None:
        """How long after a message came for the first time it can come again, in seconds; None if the transport does
        not know. Called after `open_input`. A tracker that forgets sooner is refused. A transport without this method
        counts as one that does not know."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Have messages that are published under these names delivered to the app's queue, from now on and for good."""

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """No longer."""

    def receive(self, limit: int, wait_s: float) -> list[Incoming]:
        """Up to `limit` messages, each under a lease; none after `wait_s` at the latest."""

    @property
    def extend_every_s(self) -> float:
        """How often leases have to be extended: a third of how long they last."""

    def extend(self, deliveries: Sequence[Incoming]) -> None:
        """Hold messages for longer. Those that somebody else has meanwhile are marked as `lost`. An `Unavailable` says
        that nothing is known, and is tried again."""

    def acknowledge(self, delivery: Incoming) -> None:
        """It is done; `StaleReceipt` if the lease is gone."""

    def give_back(self, deliveries: Sequence[Incoming]) -> None:
        """No handler has seen these messages: they are there for others at once, and without an attempt counted where
        the transport can do that. What it cannot say now is left to the lease; it raises nothing."""
        ...

    def retry(self, delivery: Incoming, delay_s: float, reason: str) -> None:
        """Deliver it again, after a delay."""

    def give_up(self, delivery: Incoming, reason: str) -> None:
        """Put it onto the failed list, with the reason, and deliver it no more."""

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages in their order; durable when it returns. By index, what became of those that were not sent.
        An error that is raised says that it is not known of any whether it was sent: send them again, ids and all. A
        reply to a name that nobody has is dropped, and no error: the name is what the sender of some message wrote."""

    def open_replies(self) -> None:
        """Get ready for `next_replies`; called once, before the first request is sent."""

    def next_replies(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Headers and bodies of replies to this app that came since the last call, or none after `wait_s`. Those to
        requests of other processes of the app may be among them."""

    def close(self) -> None:
        """Let go of everything. Messages under a lease are left to it."""
