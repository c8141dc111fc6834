"""Queues of a Detent store as the transport: what a handler changes in the store, what it sends and the
acknowledgement of its message can be one transaction.

Leases and settling are those of all transports. Of the store's own are topics, which are in the queues' filters,
sending, which is one transaction whatever the addresses, and replies, which are in journals.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from detent.bus.messages import QUEUE, SHOWN_MAX, TOPIC, TOPICS, Envelope, Incoming, parts_of
from detent.bus.replies import ReplyJournals, ReplyReader, check_reply
from detent.bus.ticks import Ticking
from detent.bus.topics import change_topics, is_taken, joined, names_in
from detent.bus.transport import LEASE, HeldDelivery, Transport
from detent.durations import DURATION_MS_MAX, Duration, at_1970_ms, milliseconds, since_1970_ms
from detent.errors import Busy, Denied, DetentError, Invalid, LimitExceeded, NotFound, Unavailable
from detent.queue import Delivery as Claimed
from detent.queue import Outgoing
from detent.queue import operations as ops
from detent.transports.checked import CheckedQueue
from detent.transports.queue_detent import DetentQueue

if TYPE_CHECKING:
    from detent.store import Store
    from detent.transaction import Transaction

RETENTION: Final = "14d"
"""How long a message stays that no app handles: long enough to notice. Its dedup key is held as long, so for ever would
never end; and what is published and no queue takes stays so long, too."""

SEND_MESSAGES_MAX: Final = 1_000
SEND_BYTES_MAX: Final = 8 << 20
"""Messages and bytes in one transaction, while which is applied all others wait."""

TOPICS_MAX: Final = 4_096
"""Names, or lists of some, that are remembered as published."""

VISIBLE_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999, the last that has dates."""

ADDRESS: Final = "queue"
"""The header by which a store knows where a message goes. It is the store's, and no sender's."""

URI: Final = "detent-uri"
"""The header that says where the body is of a message that was published by its URI."""

logger = logging.getLogger("detent.bus")


class QueueTransport(Transport):
    """Messages travel through queues of a store.

    >>> bus = Bus("billing", QueueTransport("file:./data"))

    `store` is a URL, opened and closed with the app, or an open store, which stays open. The app's own queue is the one
    that is called like the app, or `queue`. It is made if it is not there, without a limit of attempts: the app says
    when a message is given up. A queue that is there keeps its settings, and a limit of attempts that it has counts
    beside the app's; its filter gets what the app subscribes to. If it has a filter of its own, that has to match what
    is sent to the queue by name: ``headers.queue == "billing"`` does.

    `lease` is how long a message is held at a time, `retention` how long one may wait to be handled, beyond which it is
    gone.
    """

    members = ()
    keeps_schedules = True

    def __init__(
        self,
        store: str | Store,
        queue: str | None = None,
        *,
        lease: Duration = LEASE,
        retention: Duration = RETENTION,
    ) -> None:
        from detent.store import Store

        if not isinstance(store, str | Store):
            raise Invalid(f"a QueueTransport takes a store's URL, or what detent.open answers, not {store!r}")
        super().__init__(lambda name: CheckedQueue(DetentQueue(self.store, name), trusted=True), queue, lease=lease)
        self._given = store
        self._retention = timedelta(milliseconds=milliseconds(retention))
        if not self._retention:
            raise Invalid("a retention is longer than nothing")
        self._origin = (-1, 0)
        self._published: set[str] = set()
        """Under which names it has published: what no queue takes is said once."""
        self._store: Store | None = None
        self._journals: ReplyJournals | None = None
        self._reader: ReplyReader | None = None
        self._closing = threading.Lock()

    @property
    def store(self) -> Store:
        """The store, while the transport is open."""
        if self._store is None:
            raise Invalid("the transport is not open: start the app first")
        return self._store

    @property
    def ahead_s(self) -> float:
        """The store keeps what is delayed."""
        return math.inf

    @property
    def reply_name(self) -> str:
        """Replies are for the app."""
        return self._name

    @property
    def place(self) -> str:
        """The store and the queue."""
        url = self._given if isinstance(self._given, str) else self._given.url
        if "@" in urlsplit(url).netloc:  # no store opens such a URL; what it says is not repeated
            url = url.partition(":")[0] + ":"
        return f"{url}#{self.input_name}"

    def check_name(self, name: str) -> None:
        """`Invalid` for what no queue of a store can be called."""
        ops.check_name(name)

    # -- opening and closing ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the store."""
        if isinstance(self._given, str):
            from detent.store import open as open_store

            self._store = open_store(self._given)
        else:
            self._store = self._given
        self._journals = ReplyJournals(self._store)

    def open_input(self) -> None:
        """Make the queue, if it is not there."""
        queue = self.store.queue(self.input_name)
        queue.create(exist_ok=True, max_attempts=0)
        found = queue.info()
        if found.max_attempts:
            logger.info("the queue %r gives messages up by itself, after %d attempts", queue.name, found.max_attempts)
        self._origin = (found.number, since_1970_ms(found.created))
        super().open_input()

    def redelivery_s(self) -> float:
        """A message's retention, counted from when it may be handled; then the lease under which it is; then the time
        for which a queue of given-up messages keeps it. Other senders are taken to use the same retention."""
        found = self.store.queue(self.input_name).info()
        kept = self._retention + min(timedelta(seconds=self._lease_s), found.max_lease)
        if found.dead_letter:
            kept += self._dead_letter_retention(found.dead_letter)
        return kept.total_seconds()

    def _dead_letter_retention(self, queue: str) -> timedelta:
        try:
            return self.store.queue(queue).info().dead_letter_retention or timedelta()
        except NotFound:  # a queue that was deleted keeps nothing
            return timedelta()

    def close(self) -> None:
        """Close the store, if it was opened here."""
        super().close()
        with self._closing:
            store, self._store = self._store, None
        self._journals = self._reader = None
        if store is not None and isinstance(self._given, str):
            store.close()

    # -- topics -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Add names to the queue's filter. What others have subscribed to stays."""
        change_topics(self.store, self.input_name, dict.fromkeys(topics, True))

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Take names out of the queue's filter."""
        change_topics(self.store, self.input_name, dict.fromkeys(topics, False))

    def keep_schedule(self, ticking: Ticking) -> None:
        """Make the schedule, or change it to what the app says now."""
        self.store.schedule(ticking.name, **ticking.said(self.input_name, retention=self._retention))

    # -- receiving ----------------------------------------------------------------------------------------------

    def incoming(self, held: HeldDelivery) -> Incoming:
        """A message with a name that is its own. Each store counts its queues and messages from the beginning, so there
        are times in the name, too: another store, or one that is made anew, never gives it to another message."""
        delivery = held.delivery
        claimed: Claimed = delivery.own
        queue = claimed.receipt.queue
        name = f"{self._made_ms_of(queue)}-{queue}-{delivery.message_id}"
        headers, body = delivery.headers, delivery.body
        headers.pop(ADDRESS, None)
        if claimed.uri is not None:
            headers[URI], body = claimed.uri, b""
        return Incoming(name, headers, body, delivery.attempts, delivery.fencing_token, held)

    def _made_ms_of(self, number: int) -> int:
        """When the queue was made that a message came from. One of the same name that is made anew has another
        number."""
        if number != self._origin[0]:
            found = self.store.queue(self.input_name).info()
            if found.number != number:
                raise NotFound(f"the queue {self.input_name!r} was deleted while a message was taken from it")
            self._origin = (number, since_1970_ms(found.created))
        return self._origin[1]

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages in as few transactions as may be. One that was sent before is not sent again, for as long as
        its retention lasts; a reply is, which does no harm."""
        sending = _Commits(self)
        for group in _groups(envelopes):
            sending.send(group)
        return sending.answer

    def send_into(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Add what sends these messages to a transaction of the store, to be committed with the rest of it."""
        for to, group in groupby(envelopes, lambda envelope: envelope.to):
            kind, name = parts_of(to)
            if kind == QUEUE:
                ops.check_name(name)
                transaction.publish_many([self._outgoing(envelope) for envelope in group], queue=name)
            elif kind == TOPIC:
                header = joined(names_in(name))
                messages = [self._outgoing(envelope, header) for envelope in group]
                self._warn_unless_taken(header, messages[0].headers)
                transaction.publish_many(messages)
            else:
                self._reply_into(transaction, name, group)

    def _warn_unless_taken(self, topics: str, headers: Mapping[str, str]) -> None:
        """Look once whether a queue takes what is published under these names."""
        if topics in self._published:
            return
        if len(self._published) >= TOPICS_MAX:
            self._published.clear()
        self._published.add(topics)
        try:
            is_lost = not is_taken(self.store, headers)
        except DetentError as error:  # such as `Denied`: this app may not look
            logger.debug("whether a queue takes what is published as %s cannot be seen: %s", topics, error)
            return
        if is_lost:
            logger.warning(
                "%r publishes %s, and no queue takes it: no app has subscribed yet. An app that subscribes later does "
                "not get such a message, and sending it again under the same id counts as a duplicate. Prepare the "
                "apps that handle it before (bus.prepare()). This is said once",
                self._name, ", ".join(names_in(topics)),
            )  # fmt: skip

    def _reply_into(self, transaction: Transaction, name: str, envelopes: Iterable[Envelope]) -> None:
        assert self._journals is not None
        journal = self._journals.find(name)
        if journal is None:  # a message is not to fail because of whom its sender names
            logger.info("a reply to %r is dropped: no app of that name has asked for any", name[:SHOWN_MAX])
            return
        for envelope in envelopes:
            check_reply(envelope.visible_ms)
            transaction.append(journal, envelope.body, headers=envelope.headers)

    def acknowledge_into(self, transaction: Transaction, delivery: Incoming) -> None:
        """Add what acknowledges a message to a transaction of the store: `StaleReceipt` refuses all of it."""
        transaction.ack(delivery.receipt.delivery.own)

    def _outgoing(self, envelope: Envelope, published_as: str | None = None) -> Outgoing:
        """A message as the store takes it. Names in the headers count only for what is published: a message that is
        sent to one queue would go to subscribers, too."""
        if ADDRESS in envelope.headers:
            raise Invalid(
                f"the header {ADDRESS!r} says where a message goes, and is not the sender's: call it otherwise"
            )
        headers = {name: value for name, value in envelope.headers.items() if name != TOPICS}
        if published_as is not None:
            headers[TOPICS] = published_as
        visible_at, retention = None, self._retention
        if envelope.visible_ms is not None:
            if not 0 <= envelope.visible_ms <= VISIBLE_MS_MAX:
                raise Invalid(f"{envelope.visible_ms} is not a time in milliseconds since 1970")
            visible_at = at_1970_ms(envelope.visible_ms)
            # A retention counts from now, and is meant to count from when it could be handled.
            retention += timedelta(milliseconds=max(0, envelope.visible_ms - time.time_ns() // 1_000_000))
        return Outgoing(envelope.body, headers, visible_at=visible_at, retention=retention, dedup_key=envelope.id)

    # -- replies ------------------------------------------------------------------------------------------------

    def open_replies(self) -> None:
        """Remember where the journal of replies ends."""
        assert self._journals is not None
        self._reader = ReplyReader(self.store, self._journals, self._name)

    def next_replies(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Replies to any process of the app."""
        if self._reader is None:
            raise Invalid("open_replies comes before next_replies")
        return self._reader.next(wait_s)


class _Commits:
    """One call of `send`: what became of messages, and which addresses are to wait."""

    def __init__(self, transport: QueueTransport) -> None:
        self._transport = transport
        self._held: dict[str, DetentError] = {}
        self._stopped: DetentError | None = None
        self.answer: dict[int, DetentError] = {}

    def send(self, numbered: Sequence[tuple[int, Envelope]]) -> None:
        """Send all in one transaction, or find those that are refused and send the others."""
        ready = []
        for index, envelope in numbered:
            error = self._stopped or self._held.get(envelope.to)
            if error is None:
                ready.append((index, envelope))
            else:
                self.answer[index] = error  # it would overtake one before it
        if not ready:
            return
        try:
            with self._transport.store.transaction() as transaction:
                self._transport.send_into(transaction, [envelope for _, envelope in ready])
        except Busy as error:
            self._stop(ready, Unavailable(str(error)))
        except (Invalid, LimitExceeded, NotFound, Denied) as error:
            if len(ready) > 1:
                middle = len(ready) // 2
                self.send(ready[:middle])
                self.send(ready[middle:])
                return
            ((index, envelope),) = ready
            self.answer[index] = error
            if not isinstance(error, Invalid | LimitExceeded):
                self._held[envelope.to] = error
        except DetentError as error:
            self._stop(ready, error)

    def _stop(self, ready: Sequence[tuple[int, Envelope]], error: DetentError) -> None:
        """The store cannot be reached, or it is not known what it did: nothing more is tried."""
        self._stopped = error
        self.answer |= {index: error for index, _ in ready}


def _groups(envelopes: Sequence[Envelope]) -> Iterator[list[tuple[int, Envelope]]]:
    """Messages in their order, as many as one transaction takes."""
    group: list[tuple[int, Envelope]] = []
    size = 0
    for index, envelope in enumerate(envelopes):
        weight = len(envelope.body) + sum(len(name) + len(value) for name, value in envelope.headers.items())
        if group and (len(group) == SEND_MESSAGES_MAX or size + weight > SEND_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append((index, envelope))
        size += weight
    if group:
        yield group


assert ops.DELAY_MS_MAX <= DURATION_MS_MAX
