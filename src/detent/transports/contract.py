"""What a queue has to do to carry messages: the contract that a class of yours fulfils.

`MessageQueue` is enough for an ingest. With `send` it is a `SendingQueue`, and an app takes it.
`detent.testing.TransportSuite` are the same rules as tests. What only some systems can do is optional: `FailingQueue`,
`FailedDeliveries`, and what the docstrings below call so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from detent.errors import DetentError

MESSAGE_ID_BYTES_MAX: Final = 200
"""A message's id is a part of keys in databases, as in the bus."""

RECEIPT_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message. The same message delivered again is another one, with another `receipt`."""

    message_id: str
    """What the queue calls the message: the same at each delivery, and never given to a message with other data, also
    if the queue is deleted and made anew."""

    receipt: str
    """What `extend` and `acknowledge` need to know this delivery: text of the queue's own, not empty."""

    body: bytes
    attempts: int = 0
    """How often the queue says it delivered the message, this time included; 0 if it does not say."""

    headers: dict[str, str] = field(default_factory=dict)

    fencing_token: int | None = None
    """Higher at each delivery, of a queue that numbers its deliveries and refuses what an older one says. Such a lease
    is over when the queue says so; others are over when the holder's clock does."""

    ends: float = math.inf
    """When the queue gives the message to others however often it is extended, by this machine's steady clock."""

    own: Any = field(default=None, compare=False, repr=False)
    """What the queue keeps with a delivery for itself; None where another process had it before."""


class FailedDeliveries(list[Delivery]):
    """Deliveries for which a call failed, from a queue that knows why: `StaleReceipt` for a lease that is gone. Where
    a plain list says so, a lease counts as gone if the same call worked for others, or if its time is over."""

    def __init__(self, given: Sequence[Delivery], why: Mapping[str, DetentError]) -> None:
        super().__init__(delivery for delivery in given if delivery.receipt in why)
        self.why = why
        """The errors, by receipt."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that is to be sent. Sent again after a failure it has the same id."""

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    visible_ms: int | None = None
    """When it may be delivered, in milliseconds since 1970: for a queue that has a `delay_max_s`."""


@runtime_checkable
class MessageQueue(Protocol):
    """A queue that delivers at least once, and keeps a delivered message from others for a time: its lease, which SQS
    calls visibility timeout.

    It is made as ``YourQueue(name, **options)``: the queue's name, and the options of a URL, which are texts. Making
    one asks the server nothing. One thread receives while others extend and settle, so methods are safe to call from
    several threads at once.

    Errors are those of `detent.errors`: `Unavailable` for what may pass, `NotFound` for a queue that is not there,
    `Denied` for missing rights, `Invalid` for what cannot succeed. Another exception counts as `Unavailable`.

    Optional: an attribute ``receive_creates = True``, if `receive` makes the queue where another class says `NotFound`,
    so that ingest starts without it; a method ``check_exists()``, which raises `NotFound`, if `retention_s` needs more
    rights than that; and `FailedDeliveries` as the answer of `extend` and `acknowledge`.
    """

    @property
    def name(self) -> str:
        """What the queue is called, the same in all processes: it is part of the names of data in messages."""
        ...

    @property
    def visibility_max_s(self) -> float:
        """The longest lease that `receive` and `extend` can ask for."""
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
        """How long the queue keeps a message that nothing acknowledges, dead-letter queues not counted; None if it
        keeps them for ever, or does not say. `NotFound` if there is no such queue: callers ask this first."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class SendingQueue(MessageQueue, Protocol):
    """A queue that can be sent to, which the bus needs.

    Optional: a method ``create()``, which makes the queue unless it is there, for apps that ask for that. Nothing else
    makes queues: sending to one that is not there is `NotFound`. An attribute ``delay_max_s``: how long the queue keeps
    back a message whose `visible_ms` is later; without it, 0. A method ``send_copy(delivery, message)``, if a delivery
    has more than a body and headers: it sends `message` with all that the delivery had, and raises if that fails.
    """

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages, durable when it returns. By index, why one was not sent: `Invalid` or `LimitExceeded` for one
        that can never be. An error that is raised says that it is not known of any whether it was sent: all are sent
        again."""
        ...


@runtime_checkable
class FailingQueue(MessageQueue, Protocol):
    """A queue that keeps reasons, and what was given up, by itself: then the bus has no other queue for that."""

    @property
    def keeps_failed(self) -> bool:
        """True. It has a name that no other class gives to something else."""
        ...

    def fail(self, delivery: Delivery, reason: str, delay_s: float | None) -> None:
        """An attempt came to nothing: deliver the message again after a delay, or never, with None. `StaleReceipt` if
        the lease is gone."""
        ...


FileQueue = MessageQueue
"""What ingest has called it."""
