"""What carries messages between apps: queues of `detent.transports`, and what an app needs besides.

A queue receives, extends, settles and sends. The rest is here, once for all systems: the app's queues by name, leases
and attempts, topics by a list, replies, and the queue for what is given up. `QueueTransport` has more of it in the
store.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

from detent.bus.messages import ID, REPLY, TOPIC, TOPICS, Envelope, Incoming
from detent.bus.ticks import Ticking
from detent.bus.topics import ListedTopics, drop_reply
from detent.durations import Duration, milliseconds
from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.runtime.lease import EXTEND_SHARE
from detent.transports.checked import CheckedQueue, missing_members
from detent.transports.contract import Delivery, MessageQueue, NewMessage

LEASE: Final = "30s"
"""How long a message is held before it is extended or given to another: how late a crash is noticed."""

COUNTED_MAX: Final = 10_000
"""Messages whose attempts are counted here, where the queue does not count them."""

ERROR: Final = "detent-error"
ATTEMPTS: Final = "detent-attempts"
ORIGINAL_ID: Final = "detent-original-id"
"""Headers of a given-up message: why, after how many attempts, and its name in the queue that it came from."""

REASON_BYTES_MAX: Final = 1_000
"""What is kept of a reason: a header of Pub/Sub has 1,024 bytes."""

SKEW_S: Final = 5.0
"""What a delay may be over the longest one: the outbox that held the message goes by another clock."""

QUEUES_MAX: Final = 64
"""Queues that are open to be sent to. The one that was used longest ago is closed for another."""

SEND_MAX: Final = 100
"""Messages that a queue is given in one call."""

REPLIES_MAX: Final = 10

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+%:-]{0,254}")

logger = logging.getLogger("detent.bus")


@dataclass(slots=True, eq=False)
class HeldDelivery:
    """A delivery, and until when it is ours by this machine's steady clock."""

    delivery: Delivery
    until: float
    is_settled: bool = False

    @property
    def settled(self) -> bool:
        """Whether it is said what became of it, here or in a transaction of the queue's store."""
        return self.is_settled or getattr(self.delivery.own, "settled", False) is True


class TransportOptions(TypedDict, total=False):
    """What can be said of a transport whose queues know nothing of apps."""

    topics: Mapping[str, Sequence[str]] | None
    """Which queues get what is published under a name, the same for all apps."""
    failed: str | None
    """The queue for what is given up, if it is not NAME-failed."""
    replies: str | None
    """A queue for replies, which no other process has."""
    lease: Duration
    create: bool
    """Whether to make the app's queues, if they are not there."""


class Transport:
    """A transport of one app. It delivers at least once; everything else is the bus's. Its calls block, and come from
    several threads at once.

    `DetentError`s say what went wrong: `Unavailable` may pass, `NotFound` may pass when the queue is made, `Invalid`
    and `LimitExceeded` will not.
    """

    delay_max_s: float = 0.0
    """The longest time for which its queues keep a message back. One of them may do less."""

    dropped: tuple[type[DetentError], ...] = (NotFound, Denied, Invalid)
    """What it means that no queue takes a reply: a message is not to fail because of whom its sender names."""

    keeps_schedules: bool = False
    """Whether it publishes messages at times by itself."""

    members: tuple[str, ...] = ("send",)
    """What its queues need besides the methods of a `MessageQueue`."""

    def __init__(
        self,
        queues: Callable[[str], MessageQueue],
        queue: str | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        if unknown := options.keys() - TransportOptions.__annotations__.keys():
            raise TypeError(f"{type(self).__name__} has no options {', '.join(sorted(unknown))}")
        failed, replies = options.get("failed"), options.get("replies")
        for name in (queue, failed, replies):
            if name is not None:
                self.check_name(name)
        self._make = queues
        self._queue, self._failed, self._replies = queue, failed, replies
        self._listed = ListedTopics(options.get("topics") or {}, self.check_name)
        self._lease_s = milliseconds(options.get("lease", LEASE)) / 1000
        if not self._lease_s:
            raise Invalid("a lease is longer than nothing")
        self._create = options.get("create", False)
        self._name = ""
        self._is_open = False
        self._lock = threading.Lock()
        self._open: OrderedDict[str, CheckedQueue] = OrderedDict()
        self._own: dict[str, CheckedQueue] = {}
        self._counts = AttemptCounts()

    @property
    def ahead_s(self) -> float:
        """How long before it is due a message that waits in an outbox may be sent; `math.inf` for as soon as it is
        there. Less than the longest delay that it keeps a message back for, as the outbox's clock is another one; 0
        where messages are sent when they are due."""
        return 0.0

    @property
    def place(self) -> str:
        """What it is, for messages and for the check that one name means one app; without secrets."""
        raise NotImplementedError

    @property
    def input_name(self) -> str:
        """The queue that the app's messages come from; known from `open` on."""
        return self._queue or self._name

    @property
    def failed_name(self) -> str:
        """The queue for what is given up, where the app's queue does not keep that itself."""
        return self._failed or f"{self.input_name}-failed"

    @property
    def reply_name(self) -> str:
        """What replies to this app are addressed to: ``reply:NAME``; known from `open` on."""
        if self._replies is None:
            raise Invalid(
                "replies need a queue of this process alone, and each process another one: "
                f"{type(self).__name__}(..., replies='shop-replies-1')"
            )
        return self._replies

    @property
    def extend_every_s(self) -> float:
        """How often leases have to be extended: a third of how long they last."""
        return self._lease_s / EXTEND_SHARE

    # -- opening and closing ------------------------------------------------------------------------------------

    def open(self, name: str) -> None:
        """Get ready to send, as the app of this name. Called once, before anything else; no queue is asked yet."""
        if self._is_open:
            raise Invalid(f"this transport belongs to the app {self._name!r}: make one for each")
        self.check_name(self._queue or name)
        self._name = name
        self.connect()
        self._is_open = True

    def connect(self) -> None:
        """Get connections that its queues share."""

    def open_input(self) -> None:
        """Get ready to receive from the app's own queue, which is looked for, or made where that is said."""
        own = self._open_own(self.input_name)
        self._lease_s = min(self._lease_s, own.visibility_max_s)
        if not own.keeps_failed:
            self._open_own(self.failed_name)

    def redelivery_s(self) -> float | None:
        """How long after a message came for the first time it can come again, in seconds: the time for which the app's
        queue keeps it, then that of the queue for what is given up, from where it can be sent again. None if one of
        them keeps messages for ever, does not say, or not to this app. A tracker that forgets sooner is refused."""
        try:
            kept = [self._own_queue(name).retention_s() for name in (self.input_name, self.failed_name)]
        except Denied:
            return None
        return None if None in kept else math.fsum(filter(None, kept))

    def _open_own(self, name: str) -> CheckedQueue:
        queue = self._own_queue(name)
        if self._create:
            self.create(queue)
        try:
            queue.check_exists()
        except NotFound as error:
            raise NotFound(
                f"the app {self._name!r} needs the queue {name!r}, and {queue.kind} finds none of that name: make it, "
                "name another one, or have it made with create=True"
            ) from error
        return queue

    def create(self, queue: CheckedQueue) -> None:
        """Make a queue of this app, unless it is there."""
        queue.create()

    def _own_queue(self, name: str) -> CheckedQueue:
        """A queue that this app cannot do without. It stays open."""
        found = self._own.get(name)
        if found is None:
            found = self._own[name] = self._made(name)
        return found

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
        if missing := missing_members(queue, *self.members):
            raise Invalid(
                f"{type(queue).__name__} has no {', '.join(missing)}: the bus needs a queue with the methods of "
                "detent.transports.SendingQueue"
            )
        return queue if isinstance(queue, CheckedQueue) else CheckedQueue(queue)

    def _input(self) -> CheckedQueue:
        name = self._queue or self._name
        return self._own.get(name) or self._own_queue(name)

    def close(self) -> None:
        """Let go of everything. Messages under a lease are left to it."""
        self._is_open = False
        with self._lock:
            queues = [*self._own.values(), *self._open.values()]
            self._own, self._open = {}, OrderedDict()
        for queue in queues:
            with suppress(DetentError):
                queue.close()

    # -- topics -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Have messages that are published under these names delivered to the app's queue, from now on and for good.
        Here: check that the lists say so."""
        self._listed.check_listed(self.input_name, topics)

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """No longer. Here: check that the lists say so."""
        self._listed.check_not_listed(self.input_name, topics)

    def keep_schedule(self, ticking: Ticking) -> None:
        """Have the messages of a schedule published to the app's queue, from now on and for good; where
        `keeps_schedules`."""
        raise NotImplementedError(ticking.name)

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float) -> list[Incoming]:
        """Up to `limit` messages, each under a lease; none after `wait_s` at the latest."""
        asked_at = time.monotonic()
        found = self._input().receive(limit, wait_s, self._lease_s)
        until = lease_end(asked_at, wait_s, self._lease_s)
        try:
            return [self.incoming(HeldDelivery(delivery, _until(delivery, until))) for delivery in found]
        except BaseException:
            self._input().give_back(found)
            raise

    def incoming(self, held: HeldDelivery) -> Incoming:
        """A delivery as the bus takes it."""
        delivery = held.delivery
        attempts = delivery.attempts or self._counts.add(delivery.message_id)
        return Incoming(
            delivery.message_id, dict(delivery.headers), delivery.body, attempts, delivery.fencing_token, held
        )

    def extend(self, deliveries: Sequence[Incoming]) -> None:
        """Hold messages for longer. Those that another one has meanwhile are marked as `lost`, and so are those of
        which the queue does not say whether they are ours, once their lease is over by our clock. `Unavailable` says
        that nothing is known of some, which are tried again."""
        held = [delivery for delivery in deliveries if not delivery.receipt.settled and not delivery.lost]
        if not held:
            return
        asked_at = time.monotonic()
        why = self._extended([one.receipt.delivery for one in held])
        unsure: list[DetentError | None] = []
        is_ours = False
        for delivery in held:
            receipt: HeldDelivery = delivery.receipt
            text = receipt.delivery.receipt
            if text not in why:
                receipt.until = _until(receipt.delivery, asked_at + self._lease_s)
            elif receipt.settled:  # it was acknowledged just now
                continue
            elif isinstance(why[text], StaleReceipt) or (why[text] is None and len(why) < len(held)):
                delivery.lost = True  # the queue answers, and not for this one
            else:
                unsure.append(why[text])
                delivery.lost = time.monotonic() >= receipt.until
                is_ours = is_ours or not delivery.lost
        if is_ours:
            cause = next(filter(None, unsure), None)
            said = cause or "perhaps the queue does not answer"
            raise Unavailable(f"{len(unsure)} leases were not extended: {said}") from cause

    def _extended(self, deliveries: Sequence[Delivery]) -> dict[str, DetentError | None]:
        """Which leases were not extended, by their receipts, and why where that is known."""
        try:
            failed = self._input().extend(deliveries, self._lease_s)
        except DetentError as error:
            return {delivery.receipt: error for delivery in deliveries}
        why: Mapping[str, DetentError] = getattr(failed, "why", {})
        return {delivery.receipt: why.get(delivery.receipt) for delivery in failed}

    def acknowledge(self, delivery: Incoming) -> None:
        """It is done; `StaleReceipt` if the lease is gone."""
        self._settled(delivery, self._input().acknowledge([delivery.receipt.delivery]))
        if not delivery.receipt.delivery.attempts:
            self._counts.forget(delivery.transport_id)

    def give_back(self, deliveries: Sequence[Incoming]) -> None:
        """No handler has seen these messages: they are there for others at once, and without an attempt counted where
        that is counted here, or the queue can do so. What it cannot say now is left to the lease; it raises nothing."""
        for delivery in deliveries:
            if not delivery.receipt.delivery.attempts:
                self._counts.take_back(delivery.transport_id)
        try:
            self._input().give_back([delivery.receipt.delivery for delivery in deliveries])
        except DetentError as error:
            logger.info("%d messages are left to their leases: %s", len(deliveries), error)

    def retry(self, delivery: Incoming, delay_s: float, reason: str) -> None:
        """Deliver it again, after a delay; after the longest lease at the latest, unless the queue keeps reasons."""
        queue, given = self._input(), delivery.receipt.delivery
        if queue.keeps_failed:
            queue.fail(given, reason, max(0.0, delay_s))
            delivery.receipt.is_settled = True
        else:
            self._settled(delivery, queue.extend([given], min(max(0.0, delay_s), queue.visibility_max_s)))

    @staticmethod
    def _settled(delivery: Incoming, failed: Sequence[Delivery]) -> None:
        if failed:
            raise _why(delivery, failed)
        delivery.receipt.is_settled = True

    def give_up(self, delivery: Incoming, reason: str) -> None:
        """Put it onto the failed list, with the reason, and deliver it no more. Where that is a queue, it is sent there
        and then deleted: a crash in between leaves it there twice, with the same id. A holder whose lease is gone sends
        nothing: another one may have the message, or have acknowledged it."""
        queue, given = self._input(), delivery.receipt.delivery
        if queue.keeps_failed:
            queue.fail(given, reason, None)
            delivery.receipt.is_settled = True
            return
        self._require_lease(delivery)
        message_id = delivery.headers.get(ID) or delivery.transport_id
        about = {ERROR: self.cut(reason), ATTEMPTS: str(delivery.attempts), ORIGINAL_ID: delivery.transport_id}
        failed = self._target(self.failed_name)
        try:
            failed.send_copy(given, NewMessage(message_id, given.body, {**given.headers, **about}))
        except (Invalid, LimitExceeded) as error:
            logger.warning("the message %s is given up without its reason, %s: %s", message_id, reason, error)
            failed.send_copy(given, NewMessage(message_id, given.body, given.headers))
        self.acknowledge(delivery)

    def _require_lease(self, delivery: Incoming) -> None:
        """`StaleReceipt` unless the lease is ours; then it is ours for the whole of one again."""
        held: HeldDelivery = delivery.receipt
        asked_at = time.monotonic()
        if delivery.lost or asked_at >= held.until:
            raise StaleReceipt(f"the lease of the message {delivery.transport_id} is over: another may hold it")
        if failed := self._input().extend([held.delivery], self._lease_s):
            raise _why(delivery, failed)
        held.until = _until(held.delivery, asked_at + self._lease_s)

    def cut(self, reason: str) -> str:
        """A reason as a header takes it."""
        plain = "".join(one if one.isprintable() else "?" for one in reason[:REASON_BYTES_MAX])
        return plain.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages in their order to each queue; durable when it returns. By index, what became of those that were
        not sent. An error that is raised says that it is not known of any whether it was sent: send them again, ids and
        all. A reply that no queue takes is dropped, and no error."""
        if not self._is_open:
            raise Invalid("the transport is not open: start the app first")
        return Dispatch(self).send(envelopes)

    def targets(self, to: str) -> list[str]:
        """The queues that an address means."""
        return self._listed.targets(to)

    def check_due(self, envelope: Envelope, targets: Sequence[str]) -> None:
        """`Invalid` for a message that is due later than the transport keeps it back for; `Unavailable` if one of its
        queues does not, so that an outbox keeps it until then."""
        delay_s = 0.0 if envelope.visible_ms is None else envelope.visible_ms / 1000 - time.time()
        if delay_s > self.delay_max_s + SKEW_S:
            most = f"keeps a message back for {self.delay_max_s:g} s at most" if self.delay_max_s else "delays nothing"
            raise Invalid(
                f"this transport {most}, and {envelope.id} is due in {math.ceil(delay_s)} s: use an outbox, which "
                "keeps it until then"
            )
        for target in targets if 0 < delay_s <= self.delay_max_s else ():
            if delay_s > self._target(target).delay_max_s:
                raise Unavailable(
                    f"{target!r} is a FIFO queue, which delays no single message, and {envelope.id} is due in "
                    f"{math.ceil(delay_s)} s: use an outbox, which keeps it until then, or another queue"
                )

    def send_to(self, target: str, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages to one queue; by index, what became of those that were not sent."""
        try:
            return self._target(target).send(messages)
        except DetentError as error:
            return dict.fromkeys(range(len(messages)), error)

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
        """Get ready for `next_replies`; called once, before the first request is sent."""
        self._open_own(self.reply_name)

    def next_replies(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Headers and bodies of replies to this app that came since the last call, or none after `wait_s`; those to
        requests of other processes of the app may be among them. They are deleted at once: if this process dies,
        nothing waits for them."""
        queue = self._own_queue(self.reply_name)
        found = queue.receive(REPLIES_MAX, wait_s, self._lease_s)
        if queue.acknowledge(found):
            logger.info("replies may come once more, which does no harm")
        return [(dict(reply.headers), reply.body) for reply in found]

    def check_name(self, name: str) -> None:
        """`Invalid` for what cannot be the name of a queue."""
        check_name(name)


def check_name(name: str) -> None:
    """`Invalid` for what cannot be the name of a queue."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r:.200} is not the name of a queue: use 1 to 255 ASCII letters, digits and any of . _ ~ + % : -, "
            "and begin with a letter or digit"
        )


def _why(delivery: Incoming, failed: Sequence[Delivery]) -> DetentError:
    """Why a call failed for a delivery."""
    why: Mapping[str, DetentError] = getattr(failed, "why", {})
    return why.get(delivery.receipt.delivery.receipt) or StaleReceipt(
        f"the queue did not settle the message {delivery.transport_id}: its lease is gone, or the queue does not answer"
    )


def _until(delivery: Delivery, until: float) -> float:
    """When a lease is over by our clock: never, where the queue itself refuses what an older delivery says."""
    return math.inf if delivery.fencing_token is not None else min(until, delivery.ends)


def lease_end(asked_at: float, wait_s: float, lease_s: float) -> float:
    """When the lease of what a receive returns just now is over, by this machine's steady clock.

    The queue answered within the time that it was given. A process that was paused reads the answer later, and that
    does not lengthen its lease.
    """
    return min(time.monotonic(), asked_at + max(0.0, wait_s)) + lease_s


class AttemptCounts:
    """How often this process began messages of a queue that does not count: others have counts of their own."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, message_id: str) -> int:
        """One more; how many there are."""
        with self._lock:
            count = self._counts.pop(message_id, 0) + 1
            self._counts[message_id] = count
            if len(self._counts) > COUNTED_MAX:
                self._counts.popitem(last=False)
        return count

    def take_back(self, message_id: str) -> None:
        """No handler saw it: it counts as if it had not come."""
        with self._lock:
            count = self._counts.pop(message_id, 0) - 1
            if count > 0:
                self._counts[message_id] = count

    def forget(self, message_id: str) -> None:
        """It is done."""
        with self._lock:
            self._counts.pop(message_id, None)


class Dispatch:
    """One call of `send`: what is to go to each queue, and what became of it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: dict[str, list[tuple[int, NewMessage]]] = {}
        self._held: dict[str, DetentError] = {}
        self._errors: dict[int, DetentError] = {}

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send all; by index, what became of those that were not sent."""
        for index, envelope in enumerate(envelopes):
            try:
                self._add(index, envelope)
            except DetentError as error:  # it holds up no others, nor does one not yet due
                self._errors[index] = error
        for target in list(self._waiting):
            self._flush(target)
        for index, said in list(self._errors.items()):
            if envelopes[index].to.startswith(REPLY + ":") and isinstance(said, self._transport.dropped):
                drop_reply(envelopes[index].to, self._errors.pop(index))
        return self._errors

    def _add(self, index: int, envelope: Envelope) -> None:
        targets = self._transport.targets(envelope.to)
        self._transport.check_due(envelope, targets)
        for target in targets:
            if len(self._waiting.get(target, ())) >= SEND_MAX:
                self._flush(target)
        for error in (self._held[target] for target in targets if target in self._held):
            self._errors[index] = error  # it would overtake one before it
            return
        for target in targets:
            self._waiting.setdefault(target, []).append((index, _message(envelope)))

    def _flush(self, target: str) -> None:
        numbered = self._waiting.pop(target)
        for place, error in self._transport.send_to(target, [message for _, message in numbered]).items():
            index = numbered[place][0]
            if isinstance(self._errors.get(index, error), Invalid | LimitExceeded):
                self._errors[index] = error  # of a message for several queues, the error counts that may pass
            else:
                self._errors.setdefault(index, error)
            if not isinstance(error, Invalid | LimitExceeded):
                self._held[target] = error


def _message(envelope: Envelope) -> NewMessage:
    """A message as a queue takes it."""
    headers = {**envelope.headers, ID: envelope.id}
    if envelope.to.startswith(TOPIC + ":"):
        headers[TOPICS] = envelope.to.partition(":")[2]
    return NewMessage(envelope.id, envelope.body, headers, envelope.visible_ms)
