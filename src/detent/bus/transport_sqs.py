"""Queues of Amazon SQS, or of a server that speaks like it, as the transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detent.bus import topics as names
from detent.bus.deliveries import EXTEND_SHARE, LEASE, lease_end
from detent.bus.envelope import ID, Envelope, Incoming
from detent.transports.sqs_message import ATTRIBUTES_MAX, FIFO, MESSAGE_BYTES_MAX, Letter, read, shown, text_attribute, write
from detent.bus.sqs_queues import SENDING, SETTLING, SqsQueues, check_name
from detent.bus.sqs_sending import DELAY_S_MAX, Sending, request_of
from detent.durations import Duration, milliseconds
from detent.errors import Denied, DetentError, Invalid, NotFound, StaleReceipt, Unavailable
from detent.transports.sqs_client import BATCH_MAX, VISIBILITY_S_MAX, WAIT_S_MAX, codes_of, seconds

RETENTION_S: Final = 1_209_600
"""How long queues that are made here keep messages: fourteen days, the most that SQS allows."""

RETENTION: Final = "MessageRetentionPeriod"

REPLY_RETENTION_S: Final = 3_600
"""Nobody waits for a reply that long."""

ERROR: Final = "detent-error"
ATTEMPTS: Final = "detent-attempts"
ORIGINAL_ID: Final = "detent-original-id"
"""Headers of a given-up message: why, after how many attempts, and SQS's own name for it in the queue it came from."""

REASON_MAX: Final = 4_096
"""Characters of a reason that are kept."""

logger = logging.getLogger("detent.bus")


@dataclass(slots=True, eq=False)
class Receipt:
    """The right to say what became of a delivery, and the message as it came."""

    handle: str
    received_s: float
    """When it came, by this machine's steady clock: SQS holds a message for twelve hours from then on, at most."""
    message: Mapping[str, Any]
    until: float
    """When the lease is over unless it is extended, by the same clock."""
    settled: bool = False


class SqsTransport:
    """Messages travel through queues of SQS.

    >>> bus = Bus("billing", SqsTransport(region="eu-west-1", topics={"OrderPlaced": ["billing", "mail"]}))

    The app's own queue is the one that is called like the app, or `queue`; what is given up goes to `failed`, or
    NAME-failed. Both have to be there, unless `create` says to make them. A redrive policy of the queue counts beside
    the app's own limit of attempts.

    SQS does not know who has subscribed to what, so `topics` says which queues get what is published under a name, the
    same for all apps. `replies` is a queue for replies, which no other process has; without one an app cannot send
    requests. `client` is a boto3 client of your own, which stays open; without one clients are made from the
    environment as boto3 does it. SQS counts in whole seconds: times are rounded up.
    """

    def __init__(
        self,
        queue: str | None = None,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        client: Any = None,
        topics: Mapping[str, Sequence[str]] | None = None,
        failed: str | None = None,
        replies: str | None = None,
        lease: Duration = LEASE,
        create: bool = False,
    ) -> None:
        for name in (queue, failed, replies):
            if name is not None:
                check_name(name)
        self._queue, self._failed, self._replies = queue, failed, replies
        self._topics = _checked(topics or {})
        self._lease_s = seconds(milliseconds(lease) / 1000, VISIBILITY_S_MAX)
        if not self._lease_s:
            raise Invalid("a lease is longer than nothing")
        self._create = create
        self._queues = SqsQueues(region, endpoint, client)
        self._name = ""
        self._sends_fifo = any(queue.endswith(FIFO) for queues in self._topics.values() for queue in queues)

    @property
    def ahead_s(self) -> float:
        """Half of the longest delay, so that clocks may differ by the other half. FIFO queues delay no single message:
        an app that sends to one sends everything when it is due."""
        return 0.0 if self._sends_fifo or self.input_name.endswith(FIFO) else DELAY_S_MAX / 2

    @property
    def input_name(self) -> str:
        """The app's queue."""
        return self._queue or self._name

    @property
    def failed_name(self) -> str:
        """The queue for what is given up. It need not keep any order."""
        return self._failed or f"{self.input_name.removesuffix(FIFO)}-failed"

    @property
    def reply_name(self) -> str:
        """The queue for replies."""
        if self._replies is None:
            raise Invalid(
                "replies need a queue of this process alone, and each process another one: "
                "SqsTransport(replies='shop-replies-1')"
            )
        return self._replies

    @property
    def place(self) -> str:
        """Which SQS, and which queue."""
        return f"{self._queues.place}#{self.input_name}"

    @property
    def extend_every_s(self) -> float:
        """A third of the lease."""
        return self._lease_s / EXTEND_SHARE

    # -- opening and closing ------------------------------------------------------------------------------------

    def open(self, name: str) -> None:
        """Make clients."""
        check_name(self._queue or name)
        self._name = name
        self._queues.open()

    def open_input(self) -> None:
        """Look for the queues, or make them."""
        for name in (self.input_name, self.failed_name):
            self._find(name, RETENTION_S)

    def _find(self, name: str, retention_s: int) -> None:
        if self._create:
            self._queues.make(name, {RETENTION: str(retention_s)})
            return
        try:
            self._queues.url(name)
        except NotFound as error:
            raise NotFound(
                f"the app {self._name!r} needs the queue {name!r}, and SQS has none of that name: create it, name "
                "another one, or have it made with SqsTransport(create=True)"
            ) from error

    def redelivery_s(self) -> float | None:
        """The retention of the app's queue, then that of the queue for what is given up, from where a message can be
        sent again. SQS deletes a message then, in flight or not; None if SQS does not say, or not to this app."""
        kept, kept_failed = self._retention_s(self.input_name), self._retention_s(self.failed_name)
        return None if kept is None or kept_failed is None else kept + kept_failed

    def _retention_s(self, queue: str) -> float | None:
        try:
            answer = self._queues.call("get_queue_attributes", queue, AttributeNames=[RETENTION])
        except Denied:
            return None
        period = (answer.get("Attributes") or {}).get(RETENTION)
        return None if period is None else float(period)

    def close(self) -> None:
        """Let go of connections."""
        self._queues.close()

    # -- topics -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Check that `topics` lists the app's queue under these names."""
        for topic in topics:
            names.check_topic(topic)
            if self.input_name not in self._topics.get(topic, ()):
                listed = [*self._topics.get(topic, ()), self.input_name]
                raise Invalid(
                    f"{self.input_name!r} would not get what is published as {topic!r}: say so in every app, "
                    f'SqsTransport(topics={{"{topic}": {listed}}})'
                )

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Check that `topics` does not list it."""
        for topic in topics:
            if self.input_name in self._topics.get(topic, ()):
                raise Invalid(
                    f"{self.input_name!r} gets what is published as {topic!r} for as long as the topics of an app list "
                    "it there: take it out, in every app"
                )

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float) -> list[Incoming]:
        """Up to `limit` messages, ten a call. Only the first call waits; a short answer says that there are no more."""
        found = self._receive(self.input_name, min(limit, BATCH_MAX), wait_s)
        while found and len(found) % BATCH_MAX == 0 and len(found) < limit:
            try:
                more = self._receive(self.input_name, min(limit - len(found), BATCH_MAX), 0)
            except DetentError as error:
                logger.info("no more messages could be received now: %s", error)
                break  # what came before is not to be lost for that
            if not more:
                break
            found += more
        return found

    def _receive(self, queue: str, count: int, wait_s: float) -> list[Incoming]:
        asked_at = time.monotonic()
        answer = self._queues.call(
            "receive_message",
            queue,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=seconds(wait_s, WAIT_S_MAX),
            VisibilityTimeout=self._lease_s,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        now, until = time.monotonic(), lease_end(asked_at, wait_s, self._lease_s)
        return [_incoming(message, now, until) for message in answer.get("Messages") or ()]

    def extend(self, deliveries: Sequence[Incoming]) -> None:
        """Hold messages for longer, ten a call; for twelve hours in all, after which SQS gives them to others."""
        held = [delivery for delivery in deliveries if not delivery.receipt.settled and not delivery.lost]
        now = time.monotonic()
        for delivery in held:
            delivery.lost = _left_s(delivery, self._lease_s, now) <= 0
        held = [delivery for delivery in held if not delivery.lost]
        unknown: DetentError | None = None
        for at in range(0, len(held), BATCH_MAX):
            try:
                self._extend(held[at : at + BATCH_MAX])
            except DetentError as error:  # the others are tried all the same
                unknown = error
        now = time.monotonic()
        for delivery in held:  # SQS did not say whether it is ours: it is until its lease ends
            delivery.lost = delivery.lost or (now >= delivery.receipt.until and not delivery.receipt.settled)
        if unknown is not None:
            raise Unavailable(f"leases could not be extended: {unknown}") from unknown

    def _extend(self, held: Sequence[Incoming]) -> None:
        now = time.monotonic()
        entries = [
            {"Id": str(at), "ReceiptHandle": one.receipt.handle, "VisibilityTimeout": _left_s(one, self._lease_s, now)}
            for at, one in enumerate(held)
        ]
        answer = self._queues.call("change_message_visibility_batch", self.input_name, Entries=entries)
        done = {said["Id"] for said in answer.get("Successful") or ()}
        refused = {said["Id"]: said for said in answer.get("Failed") or ()}
        unknown = []
        for at, delivery in enumerate(held):
            if str(at) in done:
                delivery.receipt.until = now + entries[at]["VisibilityTimeout"]
                continue
            if delivery.receipt.settled:
                continue
            said = refused.get(str(at), {})
            if StaleReceipt in {SETTLING.get(code) for code in codes_of(said)}:
                delivery.lost = True
            else:
                unknown.append(str(said.get("Message") or said.get("Code") or "no reason"))
        if unknown:
            raise Unavailable(f"SQS did not extend {len(unknown)} leases: {unknown[0]}")

    def acknowledge(self, delivery: Incoming) -> None:
        """Delete the message. SQS may say nothing of a lease that is gone: then somebody else has the message still."""
        receipt: Receipt = delivery.receipt
        self._queues.call("delete_message", self.input_name, SETTLING, ReceiptHandle=receipt.handle)
        receipt.settled = True

    def give_back(self, deliveries: Sequence[Incoming]) -> None:
        """Messages are visible at once. SQS goes on counting how often they were received."""
        for delivery in deliveries:
            try:
                self.retry(delivery, 0, "")
            except DetentError as error:
                logger.info("a message is left to its lease: %s", error)

    def retry(self, delivery: Incoming, delay_s: float, reason: str) -> None:
        """Have it delivered again, after twelve hours at the latest. SQS keeps no reasons."""
        del reason
        hidden_s = _left_s(delivery, seconds(delay_s, VISIBILITY_S_MAX), time.monotonic())
        receipt: Receipt = delivery.receipt
        self._hide(receipt, hidden_s)
        receipt.settled = True

    def _hide(self, receipt: Receipt, hidden_s: int) -> None:
        """Keep a message from others for so long from now; `StaleReceipt` if SQS says that the lease is gone."""
        request = {"ReceiptHandle": receipt.handle, "VisibilityTimeout": hidden_s}
        self._queues.call("change_message_visibility", self.input_name, SETTLING, **request)

    def give_up(self, delivery: Incoming, reason: str) -> None:
        """Send it to the failed queue, and then delete it. A crash in between leaves it there twice, with the same
        id. A holder whose lease is gone sends nothing: another one may have the message, or have deleted it."""
        self._require_lease(delivery)
        letter = _given_up(delivery, shown(reason[:REASON_MAX]))
        queue, key = self.failed_name, delivery.headers.get(ID) or delivery.transport_id
        request = request_of(queue, letter, delivery.headers, key, 0)
        self._queues.call("send_message", queue, SENDING, **request)
        self.acknowledge(delivery)

    def _require_lease(self, delivery: Incoming) -> None:
        """`StaleReceipt` unless the lease is ours; then it is ours for the whole of one again."""
        receipt: Receipt = delivery.receipt
        asked_at = time.monotonic()
        hidden_s = _left_s(delivery, self._lease_s, asked_at)
        if delivery.lost or asked_at >= receipt.until or hidden_s <= 0:
            raise StaleReceipt(f"the lease of the message {delivery.transport_id} is over: another may hold it")
        self._hide(receipt, hidden_s)
        receipt.until = asked_at + hidden_s

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages, ten a call to each queue. Standard queues keep no order, and may deliver one twice."""
        self._sends_fifo = self._sends_fifo or any(envelope.to.endswith(FIFO) for envelope in envelopes)
        return Sending(self._queues, self._topics).send(envelopes)

    # -- replies ------------------------------------------------------------------------------------------------

    def open_replies(self) -> None:
        """Look for the queue for replies, or make it."""
        self._find(self.reply_name, REPLY_RETENTION_S)

    def next_replies(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Replies to this process. They are deleted at once: if it dies, nobody waits for them."""
        found = self._receive(self.reply_name, BATCH_MAX, wait_s)
        if found:
            entries = [{"Id": str(at), "ReceiptHandle": one.receipt.handle} for at, one in enumerate(found)]
            try:
                self._queues.call("delete_message_batch", self.reply_name, Entries=entries)
            except DetentError as error:
                logger.info("replies may come once more, which does no harm: %s", error)
        return [(reply.headers, reply.body) for reply in found]


def _checked(topics: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    for topic, queues in topics.items():
        names.check_topic(topic)
        if isinstance(queues, str):
            raise Invalid(f'topics list queues: write {{"{topic}": ["{queues}"]}}')
        for queue in queues:
            check_name(queue)
    return {topic: list(queues) for topic, queues in topics.items()}


def _incoming(message: Mapping[str, Any], now: float, until: float) -> Incoming:
    content = read(message)
    attempts = int((message.get("Attributes") or {}).get("ApproximateReceiveCount", 1))
    receipt = Receipt(message["ReceiptHandle"], now, message, until)
    return Incoming(message["MessageId"], content.headers, content.body, attempts, None, receipt)


def _left_s(delivery: Incoming, wanted_s: int, now: float) -> int:
    """How much longer a message can be hidden: SQS refuses what goes beyond its twelve hours."""
    left_s = VISIBILITY_S_MAX - int(now - delivery.receipt.received_s) - 1
    return max(0, min(wanted_s, left_s))


def _given_up(delivery: Incoming, reason: str) -> Letter:
    """A message with what went wrong; or, if there is no room for that, as it came: it fits into a queue, as it did."""
    message = delivery.receipt.message
    about = {ERROR: reason, ATTEMPTS: str(delivery.attempts), ORIGINAL_ID: delivery.transport_id}
    raw = Letter(message["Body"], dict(message.get("MessageAttributes") or {}))
    content = read(message)
    if content.is_own:
        letter = write({**content.headers, **about}, content.body)
    else:
        added = {name: text_attribute(value) for name, value in about.items() if value}
        letter = Letter(raw.text, {**raw.attributes, **added})
    if letter.size <= MESSAGE_BYTES_MAX and len(letter.attributes) <= ATTRIBUTES_MAX:
        return letter
    logger.warning("the message %s is given up without its reason, for want of room: %s", delivery.transport_id, reason)
    return raw
