"""Outgoing messages are kept where the handlers write, in the same transaction, and forwarded from there.

A message belongs to the lane of its address. A forwarder takes a lane for a while, with a token that rises each
time: so messages to one address leave in their order though many forward at once, and a forwarder that was replaced
can mark nothing any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from detent.bus.messages import Envelope
from detent.bus.unit_of_work import Unit


class Pending(NamedTuple):
    """A message that waits in an outbox."""

    position: int
    """Its place in the order of the lane."""
    envelope: Envelope


class Claim(NamedTuple):
    """The right to forward a lane's messages, and the first of them."""

    lane: str
    token: int
    """Higher than of any claim of this lane before."""
    pending: Sequence[Pending]
    failures: int
    """How often in a row the lane's first message could not be sent."""


class OutboxCounts(NamedTuple):
    """What is in an outbox."""

    pending: int
    failed: int
    oldest_s: float
    """How long the oldest pending message has waited; 0 if there is none."""


class FailedEnvelope(NamedTuple):
    """A message that can never be sent as it is: too large, or to an address that is none."""

    position: int
    envelope: Envelope
    error: str


class OutboxStorage(Protocol):
    """Where an outbox keeps messages. Each method works in the transaction of the unit that it is given, and leaves the
    commit to the caller. All may be ``async def``."""

    def prepare(self, unit: Unit) -> Awaitable[None] | None:
        """Make tables. Called when the app starts, by several processes at once."""

    def save(self, unit: Unit, envelopes: Sequence[Envelope]) -> Awaitable[None] | None:
        """Keep messages, in their order, after all that are committed already."""

    def claim(self, unit: Unit, limit: int, lease_s: float, ahead_s: float) -> Claim | Awaitable[Claim | None] | None:
        """Take a lane that no forwarder has and in which messages wait: of several, the one whose first message has
        waited longest. With it come up to `limit` of its messages that are due within `ahead_s`, in their order.
        Messages that are due later do not hold up others. None if there is no such lane."""

    def renew(
        self, unit: Unit, claim: Claim, limit: int, lease_s: float, ahead_s: float
    ) -> Claim | Awaitable[Claim | None] | None:
        """Hold a claimed lane for longer, under the same token, and read on after `sent`; None, and the lane given
        back, if nothing waits in it. `Fenced` if another forwarder has it."""

    def sent(self, unit: Unit, claim: Claim, positions: Sequence[int]) -> Awaitable[None] | None:
        """Messages of a claim were sent, and are not claimed again. `Fenced`, and nothing is changed, if the lane was
        taken over."""

    def failed(self, unit: Unit, claim: Claim, errors: Sequence[tuple[int, str]]) -> Awaitable[None] | None:
        """Messages of a claim can never be sent: they are set aside with what went wrong, and hold up no others.
        `Fenced` as above."""

    def back_off(self, unit: Unit, claim: Claim, delay_s: float, error: str) -> Awaitable[None] | None:
        """The lane's first message could not be sent: give the lane back, to be claimed after a delay. `Fenced` as
        above."""

    def release(self, unit: Unit, claim: Claim) -> Awaitable[None] | None:
        """Give the lane back, to be claimed at once. `Fenced` as above."""

    def forget(self, unit: Unit, limit: int) -> int | Awaitable[int]:
        """Remove up to `limit` sent messages that are older than the retention, and lanes that nothing waits in; how
        many messages there were."""

    def counts(self, unit: Unit) -> OutboxCounts | Awaitable[OutboxCounts]:
        """How much is in it."""

    def set_aside(self, unit: Unit, limit: int) -> Sequence[FailedEnvelope] | Awaitable[Sequence[FailedEnvelope]]:
        """The oldest messages that were set aside as failed."""

    def redrive(self, unit: Unit, positions: Sequence[int] | None) -> int | Awaitable[int]:
        """Try messages again that were set aside, those named or all; how many there were."""
