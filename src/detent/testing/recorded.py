"""What an app under test has sent, and what became of the messages that it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from detent.bus import messages as wire
from detent.bus.app import Middleware
from detent.bus.declared import Outcome
from detent.bus.looking import id_of, observed
from detent.bus.messages import Envelope, Incoming
from detent.bus.sending import Context
from detent.bus.transport_queue import QueueTransport
from detent.bus.unit_engine import EngineUnitOfWork
from detent.durations import at_1970_ms
from detent.errors import DetentError

if TYPE_CHECKING:
    from detent.bus.app import Bus
    from detent.store import Store

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message that was sent."""

    message: Any
    id: str
    to: str
    """The queue that it was sent to, the names that it was published under (``|OrderPlaced|``), or the app whose
    request it answers."""
    headers: Mapping[str, str]
    app: str
    """Who sent it."""
    at: datetime | None
    """When it is to be delivered, if not at once."""
    kind: str


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """A delivery, and what became of it."""

    outcome: Outcome
    message: Any
    """None if it could not be read."""
    id: str
    headers: Mapping[str, str]
    app: str
    attempts: int
    error: Exception | None
    """Why it failed, if it did."""


class Recorded:
    """What the apps of a test have sent and handled, in order.

    >>> bus.send_local(OrderPlaced(1))
    >>> bus.drain()
    >>> assert recorded.of(InvoiceSent) == [InvoiceSent(1)]
    >>> assert [one.outcome for one in recorded.outcomes] == [Outcome.HANDLED]

    A message counts when it has been sent: not while its transaction or its outbox holds it, and not again when it is
    sent once more under its id. What the test itself sends is among them.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], RecordedMessage] = {}
        self._outcomes: list[RecordedOutcome] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Recorded({len(self._messages)} messages, {len(self._outcomes)} outcomes)"

    @property
    def messages(self) -> list[RecordedMessage]:
        """All that was sent, in whatever way."""
        with self._lock:
            return list(self._messages.values())

    @property
    def sent(self) -> list[RecordedMessage]:
        """What was sent to a queue."""
        return self._of_kind(wire.QUEUE)

    @property
    def published(self) -> list[RecordedMessage]:
        """What was published to those that have subscribed."""
        return self._of_kind(wire.TOPIC)

    @property
    def replied(self) -> list[RecordedMessage]:
        """Answers to requests."""
        return self._of_kind(wire.REPLY)

    def of(self, cls: type[Message]) -> list[Message]:
        """The messages of a class that were sent, published or given as an answer."""
        return [one.message for one in self.messages if isinstance(one.message, cls)]

    @property
    def outcomes(self) -> list[RecordedOutcome]:
        """What became of each delivery: of a message that was retried there are several."""
        with self._lock:
            return list(self._outcomes)

    def clear(self) -> None:
        """Forget all of it: what comes next is what the test is about."""
        with self._lock:
            self._messages.clear()
            self._outcomes.clear()

    def _of_kind(self, kind: str) -> list[RecordedMessage]:
        return [one for one in self.messages if one.kind == kind]

    def note_sent(self, bus: Bus, envelopes: Sequence[Envelope]) -> None:
        """An app has sent messages."""
        for envelope in envelopes:
            kind, to = wire.parts_of(envelope.to)
            at = None if envelope.visible_ms is None else at_1970_ms(envelope.visible_ms)
            message = _decoded(bus, envelope.headers, envelope.body)
            one = RecordedMessage(message, envelope.id, to, dict(envelope.headers), bus.name, at, kind)
            with self._lock:
                self._messages.setdefault((envelope.id, envelope.to), one)

    def note_outcome(self, bus: Bus, incoming: Incoming, outcome: Outcome) -> None:
        """Something became of a delivery."""
        message = _decoded(bus, incoming.headers, incoming.body)
        headers = dict(incoming.headers)
        one = RecordedOutcome(outcome, message, id_of(incoming), headers, bus.name, incoming.attempts, incoming.error)
        with self._lock:
            self._outcomes.append(one)


def _decoded(bus: Bus, headers: Mapping[str, str], body: bytes) -> Any:
    """The message, or None where it is none: a test may well send such a thing."""
    names = [headers.get(wire.TYPE, ""), *headers.get(wire.TOPICS, "").split("|")]
    cls = bus.types.find(names)
    serializer = bus.serializers.get(headers.get(wire.CONTENT_TYPE, bus.serializer.content_type))
    if cls is None or serializer is None:
        return None
    try:
        return serializer.decode(body, cls)
    except DetentError:
        return None


# -- an app of a test ---------------------------------------------------------------------------------------------


class RecordingTransport(QueueTransport):
    """Queues of the test's store, which notes what is sent to them."""

    def __init__(self, store: Store, queue: str | None, sent: Callable[[Sequence[Envelope]], None]) -> None:
        super().__init__(store, queue)
        self._sent = sent

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send messages, and note those that were."""
        errors = super().send(envelopes)
        self._sent([envelope for index, envelope in enumerate(envelopes) if index not in errors])
        return errors


class _SentInTheStore(Middleware):
    """Notes what is sent by the commit of a unit of work in the store itself, which no `send` sees."""

    def __init__(self, bus: Bus, recorded: Recorded) -> None:
        self._bus = bus
        self._recorded = recorded

    def after_commit(self, context: Context) -> None:
        if self._bus.settles_itself:
            self._recorded.note_sent(self._bus, context.envelopes)


@contextmanager
def under_test(bus: Bus, store: Store, clock: Callable[[], float], recorded: Recorded) -> Iterator[Bus]:
    """An app on the store and the clock of a test, for the length of a block. Afterwards it is what it was.

    Its queue is there, as that of an app that has run once; the queues of other apps are not. A message to a queue that
    is missing is refused, as it is outside of tests."""
    before = (bus.transport, bus._clock, bus.unit_of_work)
    hook = _SentInTheStore(bus, recorded)
    queue = bus.transport.input_name or None
    bus.transport = RecordingTransport(store, queue, lambda envelopes: recorded.note_sent(bus, envelopes))
    if not bus.send_only:
        store.queue(queue or bus.name).create(exist_ok=True, max_attempts=0)
    bus._clock = clock
    if isinstance(bus.unit_of_work, EngineUnitOfWork):
        bus.unit_of_work = EngineUnitOfWork()  # one belongs to one transport
    bus.middlewares.append(hook)
    with ExitStack() as stack:
        stack.callback(_restore, bus, before, hook)
        stack.enter_context(observed(bus, lambda incoming, outcome: recorded.note_outcome(bus, incoming, outcome)))
        stack.callback(bus.stop)
        yield bus


def _restore(bus: Bus, before: tuple[Any, Any, Any], hook: Middleware) -> None:
    bus.transport, bus._clock, bus.unit_of_work = before
    bus.middlewares.remove(hook)
