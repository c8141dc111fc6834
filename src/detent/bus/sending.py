"""The half of an app that sends: what a message is called, where it goes, which transaction it goes with."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, Unpack

from detent import names, spans
from detent.bus import messages as wire
from detent.bus.messages import Envelope, Incoming, JsonSerializer, MsgpackSerializer, Serializer, Types
from detent.bus.replies import Replies
from detent.bus.transport import Transport
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.errors import Invalid, NotFound, OutcomeUnknown

TIMEOUT: Final = "30s"
HEADERS_MAX: Final = 100
"""Headers that a sender gives a message."""

RESERVED: Final = "queue"
"""A header by which stores know where a message goes: a sender who set it would send it elsewhere."""


SENDS_MAX: Final = 10_000
"""Messages that one handler sends: they are kept in memory until its commit."""

_IDS: Final = uuid.UUID("6f2d1c1e-3f0b-5c53-9a5e-6b1c1f0a7d11")
"""The space of ids that are made from other ids."""


class SendOptions(TypedDict, total=False):
    """What can be said of a message that is sent."""

    delay: Duration | None
    at: datetime | None
    """When it is delivered: after that, or at that time."""
    headers: Mapping[str, str] | None
    id: str | None


class Poison(Exception):
    """A message that will fail however often it is tried: its bytes cannot be read, or it has no id."""

    def __init__(self, reason: str, *values: Any) -> None:
        super().__init__(reason, *values)
        self.reason = reason


class Uncommitted:
    """Messages that wait for a commit."""

    def __init__(self, bus: Sender) -> None:
        self.bus = bus
        self.envelopes: list[Envelope] = []
        self._is_open = True
        self._lock = threading.Lock()  # handlers may have threads of their own

    def new_id(self, to: str, type_name: str) -> str:
        """An id for the next message of a kind to an address."""
        del to, type_name
        return str(uuid.uuid4())

    def correlation(self) -> dict[str, str]:
        """Headers that say what the next message belongs to."""
        return {}

    def collect(self, envelope: Envelope) -> None:
        """Send it with the commit."""
        with self._lock:
            if not self._is_open:
                raise Invalid(
                    "the transaction that this would be sent with has ended: await what the handler starts, and send "
                    "before it returns"
                )
            if len(self.envelopes) >= SENDS_MAX:
                raise Invalid(f"one transaction sends at most {SENDS_MAX} messages: send one that sends the rest")
            self.envelopes.append(envelope)

    def close(self) -> None:
        """Nothing more can be sent with it: what is committed is what was sent before."""
        with self._lock:
            self._is_open = False

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Have a send join this one, also in a thread that knows of none."""
        token = current.set(self)
        try:
            yield
        finally:
            current.reset(token)

    def send(self, message: Any, *, to: str | None = None, **options: Unpack[SendOptions]) -> str:
        """Send a message with the commit; see :meth:`Bus.send`."""
        with self._joined():
            return self.bus.send(message, to=to, **options)

    def publish(self, message: Any, **options: Unpack[SendOptions]) -> str:
        """Publish a message with the commit; see :meth:`Bus.publish`."""
        with self._joined():
            return self.bus.publish(message, **options)


current: ContextVar[Uncommitted | None] = ContextVar("detent_bus_outgoing", default=None)
"""What a send joins."""


class Context(Uncommitted):
    """A message that is being handled. Handlers get it by a parameter called `context`, or of this type."""

    def __init__(self, bus: Sender, incoming: Incoming, message_id: str, message: Any) -> None:
        super().__init__(bus)
        self.message = message
        self.message_id = message_id
        self.headers: dict[str, str] = incoming.headers
        self.repeated = False
        """Whether the message was handled before. Only where repeated messages are handled at all."""
        self._incoming = incoming
        self._sent: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        return f"Context({self.bus.name!r}, {type(self.message).__name__}, {self.message_id!r})"

    @property
    def attempts(self) -> int:
        """How often the message was delivered, with this time."""
        return self._incoming.attempts

    @property
    def fencing_token(self) -> int | None:
        """Higher at each delivery: a system outside can refuse a write whose token is lower than one that it has seen.
        None on transports that have no such number."""
        return self._incoming.fencing_token

    @property
    def lost(self) -> bool:
        """Whether the lease was found gone: another worker has the message, or will, and what this handler does will
        not be committed. Long ones look at it now and then."""
        return self._incoming.lost

    @property
    def effect_key(self) -> str:
        """The same at each attempt of this app at this message, and at no other. Give it to what cannot take part in
        the transaction, such as a payment service, as the key by which it recognises what it has done."""
        return f"{self.bus.name}:{self.message_id}"

    @property
    def correlation_id(self) -> str:
        """What started it all: the id of the first message in a chain. Only a header that can be an id is passed on."""
        given = self.headers.get(wire.CORRELATION, "")
        return given if wire.is_id(given) else self.message_id

    def new_id(self, to: str, type_name: str) -> str:
        """The same at each attempt for the nth message of a kind to an address, so that what is sent again is seen to
        be the same, also where an attempt leaves out others."""
        with self._lock:
            self._sent[to, type_name] += 1
            nth = self._sent[to, type_name]
        return str(uuid.uuid5(_IDS, "\0".join([self.bus.name, self.message_id, to, type_name, str(nth)])))

    def correlation(self) -> dict[str, str]:
        return {wire.CORRELATION: self.correlation_id, wire.CAUSATION: self.message_id}

    def reply(self, message: Any, *, headers: Mapping[str, str] | None = None) -> str:
        """Answer the sender of a request, with the commit. What a handler returns is a reply, too."""
        to = self.headers.get(wire.REPLY_TO, "")
        if not self.wants_reply:
            raise Invalid("no reply is waited for: the message was not sent with request()")
        answers = {**(headers or {}), wire.IN_REPLY_TO: self.message_id}
        with self._joined():
            return self.bus._dispatch(message, wire.address(wire.REPLY, to), headers=answers)

    @property
    def wants_reply(self) -> bool:
        """Whether the sender waits for a reply. A header that names no sender is taken for none."""
        return wire.is_id(self.headers.get(wire.REPLY_TO))


class Sender:
    """Sends, publishes and asks, as one app."""

    replies: Replies
    """What gives replies to the requests that wait."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        serializer: Serializer | None,
        serializers: Iterable[Serializer],
        clock: Callable[[], float],
    ) -> None:
        names.check_name(name, "app")
        self.name: Final = name
        self.transport: Transport = transport
        self.serializer: Serializer = serializer or JsonSerializer()
        known: list[Serializer] = [JsonSerializer(), MsgpackSerializer(), *serializers, self.serializer]
        self.serializers: dict[str, Serializer] = {one.content_type: one for one in known}
        self.types = Types()
        self._routes: dict[type, str] = {}
        self._clock = clock

    def open(self) -> None:
        """Get ready to send; nothing if it is."""
        raise NotImplementedError

    def _before_send(self, envelope: Envelope) -> Envelope:
        """The message as it goes out: middlewares may change it."""
        return envelope

    def register(self, *classes: type) -> None:
        """Know classes of messages that this app does not handle, such as replies."""
        for cls in classes:
            self.types.add(cls)

    def route(self, cls: type, queue: str) -> None:
        """Say to which app's queue messages of a class are sent."""
        self.types.add(cls)
        names.check_name(queue, "queue")
        self._routes[cls] = queue

    def send(self, message: Any, *, to: str | None = None, **options: Unpack[SendOptions]) -> str:
        """Send a message to the queue of one app, `to` or as routed; its id.

        Within a handler, or within `bus.transaction`, it goes with the commit; otherwise it is durable when this
        returns. With `delay` or `at` it is delivered later. An `id` of your own makes sending it twice the same as
        sending it once: an id names one message, of whatever class, so that two of them need two ids.
        """
        queue = to or self._route_of(type(message))
        names.check_name(queue, "queue")
        return self._dispatch(message, wire.address(wire.QUEUE, queue), **options)

    def send_local(self, message: Any, **options: Unpack[SendOptions]) -> str:
        """Send a message to this app itself."""
        if current.get() is None:
            self.open()  # what its queue is called is known from then on
        return self.send(message, to=self.transport.input_name, **options)

    def publish(self, message: Any, **options: Unpack[SendOptions]) -> str:
        """Publish a message to every app that has subscribed to its class, or to one that it is derived from; its id.
        See `send` for when, and for the options."""
        topics = "|".join(["", *self.types.topics(type(message)), ""])
        options["headers"] = {**(options.get("headers") or {}), wire.TOPICS: topics}
        return self._dispatch(message, wire.address(wire.TOPIC, topics), **options)

    async def send_async(self, message: Any, *, to: str | None = None, **options: Unpack[SendOptions]) -> str:
        """`send`, for asyncio. Within a handler or a transaction plain `send` does not wait either."""
        return await asyncio.to_thread(self.send, message, to=to, **options)

    async def publish_async(self, message: Any, **options: Unpack[SendOptions]) -> str:
        """`publish`, for asyncio."""
        return await asyncio.to_thread(self.publish, message, **options)

    def request(
        self,
        message: Any,
        *,
        to: str | None = None,
        timeout: Duration = TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a message and wait for the reply to it, which is what its handler returns. The class of the reply has to
        be known: see `register`. `OutcomeUnknown` if none comes in time; the request may be handled later."""
        if current.get() is not None:
            raise Invalid(
                "a request in a handler would wait for itself: it goes out with the handler's commit. Send the "
                "message, and handle what comes back"
            )
        self.open()
        request_id = str(uuid.uuid4())
        replies = self.replies
        future = replies.expect(request_id)
        try:
            marked = {**(headers or {}), wire.REPLY_TO: self.transport.reply_name}
            self.send(message, to=to, headers=marked, id=request_id)
            answer = future.result(milliseconds(timeout) / 1000)
        except TimeoutError:
            raise OutcomeUnknown(
                f"no reply to the {type(message).__name__} {request_id} came within {timeout}: it may be handled later"
            ) from None
        finally:
            replies.forget(request_id)
        try:
            return self.decode(*answer)
        except Poison as error:
            raise Invalid(f"the reply to {request_id} cannot be read: {error.reason}") from error

    async def request_async(self, message: Any, **options: Any) -> Any:
        """`request`, for asyncio."""
        return await asyncio.to_thread(self.request, message, **options)

    def _route_of(self, cls: type) -> str:
        for base in cls.__mro__:
            if base in self._routes:
                return self._routes[base]
        raise Invalid(
            f"it is not said where a {cls.__name__} is sent: write send(message, to='billing'), or "
            f"Bus(..., routes={{{cls.__name__}: 'billing'}}); or publish it, to all that have subscribed"
        )

    def _dispatch(
        self,
        message: Any,
        address: str,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> str:
        """Write a message, and send it: with the transaction that it joins, or now."""
        joined = current.get()
        kind, name = wire.parts_of(address)
        about = name if kind == wire.QUEUE else wire.name_of(type(message))
        operation = "publish" if kind == wire.TOPIC else "send"
        with spans.sending(operation, about, kind="send" if joined is None else "create"):
            return self._send(message, address, joined, delay=delay, at=at, headers=headers, id=id)

    def _send(
        self,
        message: Any,
        address: str,
        joined: Uncommitted | None,
        *,
        delay: Duration | None,
        at: datetime | None,
        headers: Mapping[str, str] | None,
        id: str | None,
    ) -> str:
        type_name = self.types.add(type(message))
        if joined is not None and joined.bus is not self:
            raise Invalid(
                f"{self.name!r} cannot send within a transaction of {joined.bus.name!r}, which could not take it back: "
                f"send it as {joined.bus.name!r}, whose transport reaches the same queues"
            )
        id = str(uuid.uuid4()) if id is None and joined is None else id
        if joined is not None and id is None:
            id = joined.new_id(address, type_name)
        if not wire.is_id(id):
            raise Invalid(f"an id has 1 to {wire.ID_BYTES_MAX} bytes that can be printed, and is not {id!r}")
        assert id is not None
        written = self._headers(type_name, id, joined, headers or {})
        body = self.serializer.encode(message)
        envelope = self._before_send(Envelope(id, address, written, body, self._visible_ms(delay, at)))
        if joined is not None:
            joined.collect(envelope)
            return envelope.id
        self.open()
        for error in self.transport.send([envelope]).values():
            raise error
        return envelope.id

    def _visible_ms(self, delay: Duration | None, at: datetime | None) -> int | None:
        if delay is not None and at is not None:
            raise Invalid("a message is delivered after a delay or at a time: give one of the two")
        if at is not None:
            return since_1970_ms(at)
        return None if delay is None else int(self._clock() * 1000) + milliseconds(delay)

    def _headers(self, type_name: str, id: str, joined: Uncommitted | None, given: Mapping[str, str]) -> dict[str, str]:
        if len(given) > HEADERS_MAX or not all(isinstance(part, str) for pair in given.items() for part in pair):
            raise Invalid(f"headers are up to {HEADERS_MAX} texts by name, and not {given!r}")
        if RESERVED in given:
            raise Invalid(f"the header {RESERVED!r} says where a message goes, and is not the sender's: rename yours")
        written = {
            wire.CORRELATION: id,
            **(joined.correlation() if joined is not None else {}),
            wire.ID: id,
            wire.TYPE: type_name,
            wire.SENT_AT: datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds"),
            wire.CONTENT_TYPE: self.serializer.content_type,
        }
        _check_own(given, written, getattr(joined, "headers", {}))
        return {**(spans.with_trace(given) or {}), **written}

    # -- reading --------------------------------------------------------------------------------------------------

    def decode(self, headers: Mapping[str, str], body: bytes) -> Any:
        """The message in bytes that came. `NotFound` if its class is not known, `Poison` if they are none."""
        names_given = [headers.get(wire.TYPE, ""), *headers.get(wire.TOPICS, "").split("|")]
        listed = [name for name in names_given if name]
        cls = self.types.find(listed)
        if cls is None:
            named = listed[0] if listed else f"nothing (it has no header {wire.TYPE})"
            raise NotFound(f"{self.name!r} knows no messages called {named}: declare a handler for that class")
        content_type = headers.get(wire.CONTENT_TYPE, self.serializer.content_type)
        serializer = self.serializers.get(content_type.partition(";")[0].strip().lower())
        if serializer is None:
            raise Poison(f"this app does not read {content_type!r}, but {', '.join(sorted(self.serializers))}")
        try:
            return serializer.decode(body, cls)
        except Invalid as error:
            raise Poison(str(error)) from error


def _check_own(given: Mapping[str, str], written: Mapping[str, str], came: Mapping[str, str]) -> None:
    """`Invalid` for a header of the bus with another value than the bus writes: it would be replaced without a word.
    Headers may be passed on as they came with the message that is handled."""
    for name in given.keys() & written.keys():
        if given[name] not in (written[name], came.get(name)):
            hint = ": give the id as id=..." if name == wire.ID else ""
            raise Invalid(f"the header {name!r} is written by the bus, and cannot be {given[name][:100]!r}{hint}")
