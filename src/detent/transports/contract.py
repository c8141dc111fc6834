"""What a queue of another system has to do to carry messages: the contract that a class of yours fulfils.

`MessageQueue` is enough for `detent ingest run`. With `send` it is a `SendingQueue`, and `detent bus run` takes it.
`detent.testing.TransportSuite` are the same rules as tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that is to be sent. Sent again after a failure it has the same id."""

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class MessageQueue(Protocol):
    """A queue that delivers at least once, and keeps a delivered message from others for a time: its lease, which SQS
    calls visibility timeout.

    It is made as ``YourQueue(name, **options)``: the queue's name, and the options of a URL, which are texts. Making
    one asks the server nothing. One thread receives while others extend and settle, so methods are safe to call from
    several threads at once.

    Errors are those of `detent.errors`: `Unavailable` for what may pass, `NotFound` for a queue that is not there,
    `Denied` for missing rights, `Invalid` for what cannot succeed. Another exception counts as `Unavailable`.

    An attribute ``receive_creates = True`` is optional: `receive` makes the queue where another class says `NotFound`,
    so ingest starts without it.
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

    A method ``create()`` is optional: it makes the queue unless it is there, for apps that ask for that. Nothing else
    makes queues: sending to one that is not there is `NotFound`.
    """

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages, durable when it returns. By index, why one was not sent: `Invalid` or `LimitExceeded` for one
        that can never be. An error that is raised says that it is not known of any whether it was sent: all are sent
        again."""
        ...


FileQueue = MessageQueue
"""What ingest has called it."""
