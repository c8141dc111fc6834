"""Queues of other systems as the transport: of SQS, and of any class with the methods of `detent.transports`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Unpack

from detent.bus.messages import Envelope
from detent.bus.transport import Transport, TransportOptions
from detent.errors import Denied, DetentError, Invalid, NotFound
from detent.transports.checked import CheckedQueue, missing_members
from detent.transports.contract import MessageQueue
from detent.transports.queue_sqs import DELAY_S_MAX, RETENTION, RETENTION_S, SqsQueue
from detent.transports.sqs_client import SqsConnection, check_name
from detent.transports.sqs_message import FIFO, shown

REPLY_RETENTION_S: Final = 3_600
"""No request waits for a reply that long."""

REASON_MAX: Final = 4_096
"""Characters of a reason that are kept in SQS."""


class ExternalTransport(Transport):
    """Messages travel through queues of another system.

    >>> bus = Bus("billing", ExternalTransport(lambda name: RabbitQueue(name, host="rabbit")))

    `queues` makes a queue by its name: a class with the methods of `detent.transports.SendingQueue`, or a function. As
    text (``Bus("billing", "shop_queues:RabbitQueue:?host=rabbit")``) the bus makes this transport by itself.

    The app's own queue is the one that is called like the app, or `queue`; what is given up goes to `failed`, or
    NAME-failed. Both have to be there, unless `create` says to make them and the class can. `topics` says which queues
    get what is published under a name, the same for all apps. `replies` is a queue for replies, which no other process
    has; without one an app cannot send requests. `place` is what logs call it.

    Messages are sent when they are due: an outbox keeps delayed ones until then. Delays between attempts are cut to the
    longest lease of the queue.
    """

    def __init__(
        self,
        queues: Callable[[str], MessageQueue],
        queue: str | None = None,
        *,
        place: str = "",
        **options: Unpack[TransportOptions],
    ) -> None:
        if not callable(queues) or (not missing_members(queues) and not isinstance(queues, type)):
            raise Invalid(
                "an ExternalTransport takes what makes queues by their names, a class or a function, and not "
                f"{queues!r:.200}: write ExternalTransport(lambda name: RabbitQueue(name, host='rabbit'))"
            )
        super().__init__(queues, queue, **options)
        self._place = place or getattr(queues, "__qualname__", type(queues).__name__)

    @property
    def place(self) -> str:
        """What makes the queues, and which queue."""
        return f"{self._place}#{self.input_name}"


class SqsTransport(Transport):
    """Messages travel through queues of SQS.

    >>> bus = Bus("billing", SqsTransport(region="eu-west-1", topics={"OrderPlaced": ["billing", "mail"]}))

    The app's own queue is the one that is called like the app, or `queue`; what is given up goes to `failed`, or
    NAME-failed. Both have to be there, unless `create` says to make them. A redrive policy of the queue counts beside
    the app's own limit of attempts.

    SQS does not know which app has subscribed to what, so `topics` says which queues get what is published under a
    name, the same for all apps. `replies` is a queue for replies, which no other process has; without one an app cannot
    send requests. `client` is a boto3 client of your own, which stays open; without one clients are made from the
    environment as boto3 does it. SQS counts in whole seconds: times are rounded up.
    """

    delay_max_s = float(DELAY_S_MAX)
    dropped = (NotFound, Denied)

    def __init__(
        self,
        queue: str | None = None,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        client: Any = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        self._queues = SqsConnection(region, endpoint, client)
        # One call after another: an app takes few messages at a time, and each of its queues would have threads.
        queues = partial(SqsQueue, connection=self._queues, calls_at_once=1)
        super().__init__(queues, queue, **options)
        self._sends_fifo = any(queue.endswith(FIFO) for queue in self._listed.queues)

    @property
    def ahead_s(self) -> float:
        """Half of the longest delay, so that clocks may differ by the other half. FIFO queues delay no single message:
        an app that sends to one sends everything when it is due."""
        return 0.0 if self._sends_fifo or self.input_name.endswith(FIFO) else DELAY_S_MAX / 2

    @property
    def failed_name(self) -> str:
        """The queue for what is given up. It need not keep any order."""
        return self._failed or f"{self.input_name.removesuffix(FIFO)}-failed"

    @property
    def place(self) -> str:
        """Which SQS, and which queue."""
        return f"{self._queues.place}#{self.input_name}"

    def check_name(self, name: str) -> None:
        """`Invalid` for what no queue of SQS can be called."""
        check_name(name)

    def connect(self) -> None:
        """Make clients."""
        self._queues.open()

    def create(self, queue: CheckedQueue) -> None:
        """Make a queue, for as long as its messages count."""
        kept_s = REPLY_RETENTION_S if queue.name == self._replies else RETENTION_S
        self._queues.make(queue.name, {RETENTION: str(kept_s)})

    def cut(self, reason: str) -> str:
        """A reason without what SQS refuses."""
        return shown(reason[:REASON_MAX])

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages. Standard queues keep no order, and may deliver one twice."""
        self._sends_fifo = self._sends_fifo or any(envelope.to.endswith(FIFO) for envelope in envelopes)
        return super().send(envelopes)

    def close(self) -> None:
        """Let go of connections."""
        super().close()
        self._queues.close()
