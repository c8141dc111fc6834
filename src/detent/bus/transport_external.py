"""Queues of another system as the transport: of any class that fulfils the contract of `detent.transports`."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from detent.bus import topics as names
from detent.bus.deliveries import EXTEND_SHARE, LEASE, Counts, Held, lease_end
from detent.bus.envelope import ID, KINDS, REPLY, TOPIC, TOPICS, Envelope, Incoming
from detent.bus.transport_sqs import ATTEMPTS, ERROR, ORIGINAL_ID
from detent.durations import Duration, milliseconds
from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.transports.checked import CheckedQueue, missing_members
from detent.transports.contract import Delivery, MessageQueue, NewMessage

REASON_BYTES_MAX: Final = 1_000
"""What is kept of a reason: a header of Pub/Sub has 1,024 bytes."""

SEND_MAX: Final = 100
"""Messages that a queue is given in one call."""

SKEW_S: Final = 5.0
"""A message that is due so soon is sent at once: the outbox that held it goes by another clock."""

QUEUES_MAX: Final = 64
"""Queues that are open to be sent to. The one that was used longest ago is closed for another."""

REPLIES_MAX: Final = 10
SHOWN_MAX: Final = 200

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+%:-]{0,254}")

logger = logging.getLogger("detent.bus")


class ExternalTransport:
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

    ahead_s: Final = 0.0

    def __init__(
        self,
        queues: Callable[[str], MessageQueue],
        queue: str | None = None,
        *,
        topics: Mapping[str, Sequence[str]] | None = None,
        failed: str | None = None,
        replies: str | None = None,
        lease: Duration = LEASE,
        create: bool = False,
        place: str = "",
    ) -> None:
        if not callable(queues) or (not missing_members(queues) and not isinstance(queues, type)):
            raise Invalid(
                "an ExternalTransport takes what makes queues by their names, a class or a function, and not "
                f"{queues!r:.200}: write ExternalTransport(lambda name: RabbitQueue(name, host='rabbit'))"
            )
        for name in (queue, failed, replies):
            if name is not None:
                check_name(name)
        self._make = queues
        self._queue, self._failed, self._replies = queue, failed, replies
        self._topics = _checked_topics(topics or {})
        self._lease_s = milliseconds(lease) / 1000
        if not self._lease_s:
            raise Invalid("a lease is longer than nothing")
        self._create = create
        self._place = place or getattr(queues, "__qualname__", type(queues).__name__)
        self._name = ""
        self._is_open = False
        self._lock = threading.Lock()
        self._open: OrderedDict[str, CheckedQueue] = OrderedDict()
        self._own: dict[str, CheckedQueue] = {}
        self._counts = Counts()

    @property
    def input_name(self) -> str:
        """The app's queue."""
        return self._queue or self._name

    @property
    def failed_name(self) -> str:
        """The queue for what is given up."""
        return self._failed or f"{self.input_name}-failed"

    @property
    def reply_name(self) -> str:
        """The queue for replies."""
        if self._replies is None:
            raise Invalid(
                "replies need a queue of this process alone, and each process another one: "
                "ExternalTransport(..., replies='shop-replies-1')"
            )
        return self._replies

    @property
    def place(self) -> str:
        """What makes the queues, and which queue."""
        return f"{self._place}#{self.input_name}"

    @property
    def extend_every_s(self) -> float:
        """A third of the lease."""
        return self._lease_s / EXTEND_SHARE

    # -- opening and closing ------------------------------------------------------------------------------------

    def open(self, name: str) -> None:
        """Nothing is asked yet."""
        if self._is_open:
            raise Invalid(f"this transport belongs to the app {self._name!r}: make one for each")
        check_name(self._queue or name)
        self._name = name
        self._is_open = True

    def open_input(self) -> None:
        """Look for the queues, or make them."""
        own = self._open_own(self.input_name)
        self._lease_s = min(self._lease_s, own.visibility_max_s)
        self._open_own(self.failed_name)

    def redelivery_s(self) -> float | None:
        """The time for which the app's queue keeps a message, then that of the queue for what is given up; None if one
        of them keeps messages for ever, or does not say."""
        kept, kept_failed = self._input().retention_s(), self._open_own(self.failed_name).retention_s()
        return None if kept is None or kept_failed is None else kept + kept_failed

    def _open_own(self, name: str) -> CheckedQueue:
        """A queue that this app cannot do without. It stays open."""
        queue = self._own.get(name) or self._made(name)
        self._own[name] = queue
        if self._create:
            queue.create()
        try:
            queue.retention_s()  # any question would do, to learn whether it is there
        except NotFound as error:
            raise NotFound(
                f"the app {self._name!r} needs the queue {name!r}, and {queue.kind} finds none of that name: make it, "
                "name another one, or have it made with create=True"
            ) from error
        return queue

    def _made(self, name: str) -> CheckedQueue:
        if not self._is_open:
            raise Invalid("the transport is not open: start the app first")
        try:
            queue = self._make(name)
        except DetentError:
            raise
        except Exception as error:  # its text may repeat a password
            raise Unavailable(
                f"what makes the queue {name!r} failed with {type(error).__name__}: raise one of detent.errors there, "
                "to say whether it may pass"
            ) from error
        if missing_members(queue, "send"):
            missing = ", ".join(missing_members(queue, "send"))
            raise Invalid(
                f"{type(queue).__name__} has no {missing}: the bus needs a queue with the methods of "
                "detent.transports.SendingQueue"
            )
        return queue if isinstance(queue, CheckedQueue) else CheckedQueue(queue)

    def _input(self) -> CheckedQueue:
        found = self._own.get(self.input_name)
        if found is None:
            raise Invalid("the transport is not open: start the app first")
        return found

    def close(self) -> None:
        """Let go of connections."""
        self._is_open = False
        with self._lock:
            queues = [*self._own.values(), *self._open.values()]
            self._own, self._open = {}, OrderedDict()
        for queue in queues:
            with suppress(DetentError):
                queue.close()

    # -- topics -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Check that `topics` lists the app's queue under these names."""
        for topic in topics:
            names.check_topic(topic)
            if self.input_name not in self._topics.get(topic, ()):
                listed = [*self._topics.get(topic, ()), self.input_name]
                raise Invalid(
                    f"{self.input_name!r} would not get what is published as {topic!r}: say so in every app, "
                    f'topics={{"{topic}": {listed}}}, or topic.{topic}={",".join(listed)} in a URL; or make the app '
                    "with subscribe=False"
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
        """Up to `limit` messages."""
        asked_at = time.monotonic()
        found = self._input().receive(limit, wait_s, self._lease_s)
        until = lease_end(asked_at, wait_s, self._lease_s)
        return [self._incoming(delivery, until) for delivery in found]

    def _incoming(self, delivery: Delivery, until: float) -> Incoming:
        attempts = delivery.attempts or self._counts.add(delivery.message_id)
        held = Held(delivery, until)
        return Incoming(delivery.message_id, dict(delivery.headers), delivery.body, attempts, None, held)

    def extend(self, deliveries: Sequence[Incoming]) -> None:
        """Hold messages for longer. A queue does not say why one was not extended: if others were, it answers, and the
        lease is gone; if none was, or it raises, it may not answer, and a message is ours until its lease ends."""
        held = [delivery for delivery in deliveries if not delivery.receipt.settled and not delivery.lost]
        if not held:
            return
        asked_at = time.monotonic()
        given = [one.receipt.delivery for one in held]
        unknown = 0
        cause: DetentError | None = None
        try:
            failed = {delivery.receipt for delivery in self._input().extend(given, self._lease_s)}
        except DetentError as error:
            failed, cause = {delivery.receipt for delivery in given}, error
        for delivery in held:
            receipt: Held = delivery.receipt
            if receipt.delivery.receipt not in failed:
                receipt.until = asked_at + self._lease_s
            elif not receipt.settled:  # or it was acknowledged just now
                delivery.lost = len(failed) < len(held) or time.monotonic() >= receipt.until
                unknown += not delivery.lost
        if cause is not None:
            raise Unavailable(f"{len(failed)} leases were not extended: {cause}") from cause
        if unknown:
            raise Unavailable(f"{unknown} leases were not extended, and perhaps the queue does not answer")

    def acknowledge(self, delivery: Incoming) -> None:
        """Delete the message."""
        self._settle(delivery, self._input().acknowledge([delivery.receipt.delivery]))
        self._counts.forget(delivery.transport_id)

    def give_back(self, deliveries: Sequence[Incoming]) -> None:
        """Others get the messages at once. Attempts that are counted here are taken back: no handler saw them."""
        for delivery in deliveries:
            if not delivery.receipt.delivery.attempts:
                self._counts.take_back(delivery.transport_id)
        try:
            self._input().give_back([delivery.receipt.delivery for delivery in deliveries])
        except DetentError as error:
            logger.info("%d messages are left to their leases: %s", len(deliveries), error)

    def retry(self, delivery: Incoming, delay_s: float, reason: str) -> None:
        """Have it delivered again, after the longest lease at the latest. The queue keeps no reason."""
        del reason
        queue = self._input()
        hidden_s = min(max(0.0, delay_s), queue.visibility_max_s)
        self._settle(delivery, queue.extend([delivery.receipt.delivery], hidden_s))

    @staticmethod
    def _settle(delivery: Incoming, failed: Sequence[Delivery]) -> None:
        if failed:
            raise StaleReceipt(
                f"the queue did not settle the message {delivery.transport_id}: its lease is gone, or the queue does "
                "not answer"
            )
        delivery.receipt.settled = True

    def give_up(self, delivery: Incoming, reason: str) -> None:
        """Send it to the failed queue, and then delete it. A crash in between leaves it there twice, with the same
        id. A holder whose lease is gone sends nothing: another one may have the message, or have acknowledged it."""
        given: Delivery = delivery.receipt.delivery
        self._require_lease(delivery)
        message_id = delivery.headers.get(ID) or delivery.transport_id
        about = {ERROR: _cut(reason), ATTEMPTS: str(delivery.attempts), ORIGINAL_ID: delivery.transport_id}
        whole = NewMessage(message_id, given.body, {**given.headers, **about})
        failed = self._target(self.failed_name)
        for error in failed.send([whole]).values():
            if not isinstance(error, Invalid | LimitExceeded):
                raise error
            logger.warning("the message %s is given up without its reason, %s: %s", message_id, reason, error)
            for worse in failed.send([NewMessage(message_id, given.body, given.headers)]).values():
                raise worse
        self.acknowledge(delivery)

    def _require_lease(self, delivery: Incoming) -> None:
        """`StaleReceipt` unless the lease is ours; then it is ours for the whole of one again."""
        held: Held = delivery.receipt
        asked_at = time.monotonic()
        if delivery.lost or asked_at >= held.until or self._input().extend([held.delivery], self._lease_s):
            raise StaleReceipt(f"the lease of the message {delivery.transport_id} is over: another may hold it")
        held.until = asked_at + self._lease_s

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages, to each queue in their order."""
        if not self._is_open:
            raise Invalid("the transport is not open: start the app first")
        answer: dict[int, DetentError] = {}
        waiting: dict[str, list[tuple[int, NewMessage]]] = {}
        for index, envelope in enumerate(envelopes):
            try:
                message = _message(envelope)
                for target in self._targets(envelope.to):
                    waiting.setdefault(target, []).append((index, message))
            except Invalid as error:
                answer[index] = error
        replies = {index for index, envelope in enumerate(envelopes) if envelope.to.startswith(REPLY + ":")}
        for target, numbered in waiting.items():
            for index, said in self._send_to(target, numbered).items():
                if index in replies and isinstance(said, NotFound | Denied | Invalid):
                    logger.info("a reply to %r is dropped: %s", target[:SHOWN_MAX], said)
                elif not isinstance(answer.get(index), Invalid | LimitExceeded):
                    answer[index] = said
        return answer

    def _targets(self, to: str) -> list[str]:
        """The queues that an address means; none for a reply to what can be no queue."""
        kind, _, name = to.partition(":")
        if kind not in KINDS or not name:
            raise Invalid(f"{to[:SHOWN_MAX]!r} is no address: it begins with one of {', '.join(KINDS)}, and a colon")
        if kind == REPLY and not _NAME.fullmatch(name):
            logger.info("a reply to %r is dropped: no queue can be called so", name[:SHOWN_MAX])
            return []
        if kind != TOPIC:
            check_name(name)
            return [name]
        listed = names.names_in(name)
        if not any(topic in self._topics for topic in listed):
            raise Invalid(
                f"no queue is listed for what is published as {listed[0]!r}: the transport does not know who has "
                f'subscribed, so list the queues, topics={{"{listed[0]}": ["billing"]}}, or topic.{listed[0]}=billing '
                "in a URL; an empty list sends it to none"
            )
        return list(dict.fromkeys(queue for topic in listed for queue in self._topics.get(topic, ())))

    def _send_to(self, target: str, numbered: Sequence[tuple[int, NewMessage]]) -> dict[int, DetentError]:
        """Send messages to one queue; behind one that may pass later nothing is sent, which would overtake it."""
        answer: dict[int, DetentError] = {}
        for at in range(0, len(numbered), SEND_MAX):
            part = numbered[at : at + SEND_MAX]
            try:
                errors = self._target(target).send([message for _, message in part])
            except DetentError as error:
                errors = dict.fromkeys(range(len(part)), error)
            answer |= {part[place][0]: error for place, error in errors.items()}
            passing = [error for error in errors.values() if not isinstance(error, Invalid | LimitExceeded)]
            if passing:
                return answer | {index: passing[0] for index, _ in numbered[at + SEND_MAX :]}
        return answer

    def _target(self, name: str) -> CheckedQueue:
        with self._lock:
            found = self._own.get(name) or self._open.pop(name, None) or self._made(name)
            if name not in self._own:
                self._open[name] = found
            closed = self._open.popitem(last=False)[1] if len(self._open) > QUEUES_MAX else None
        if closed is not None:
            with suppress(DetentError):
                closed.close()
        return found

    # -- replies ------------------------------------------------------------------------------------------------

    def open_replies(self) -> None:
        """Look for the queue for replies, or make it."""
        self._open_own(self.reply_name)

    def next_replies(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Replies to this process. They are deleted at once: if it dies, nothing waits for them."""
        queue = self._own.get(self.reply_name)
        if queue is None:
            raise Invalid("open_replies comes before next_replies")
        found = queue.receive(REPLIES_MAX, wait_s, self._lease_s)
        if queue.acknowledge(found):
            logger.info("replies may come once more, which does no harm")
        return [(dict(reply.headers), reply.body) for reply in found]


def check_name(name: str) -> None:
    """`Invalid` for what cannot be the name of a queue."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r:.200} is no name of a queue: use 1 to 255 ASCII letters, digits and any of . _ ~ + % : -, and "
            "begin with a letter or digit"
        )


def _message(envelope: Envelope) -> NewMessage:
    """A message as a queue takes it. It is sent now, or refused: a queue delays nothing."""
    if envelope.visible_ms is not None and envelope.visible_ms / 1000 - time.time() > SKEW_S:
        raise Invalid(
            f"this transport delays no message, and {envelope.id} is due later: use an outbox, which keeps it until "
            "then"
        )
    headers = {**envelope.headers, ID: envelope.id}
    if envelope.to.startswith(TOPIC + ":"):
        headers[TOPICS] = envelope.to.partition(":")[2]
    return NewMessage(envelope.id, envelope.body, headers)


def _checked_topics(topics: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    for topic, queues in topics.items():
        names.check_topic(topic)
        if isinstance(queues, str):
            raise Invalid(f'topics list queues: write {{"{topic}": ["{queues}"]}}')
        for queue in queues:
            check_name(queue)
    return {topic: list(queues) for topic, queues in topics.items()}


def _cut(reason: str) -> str:
    """A reason as a header takes it."""
    plain = "".join(one if one.isprintable() else "?" for one in reason[:REASON_BYTES_MAX])
    return plain.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
