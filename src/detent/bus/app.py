"""`Bus`: an app that sends and handles typed messages, each of which takes effect once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from detent import names
from detent.bus import envelope as wire
from detent.bus.calling import Calling
from detent.bus.context import Outgoing, current
from detent.bus.envelope import Envelope, Incoming
from detent.bus.handlers import Dependencies, Handler, new_handler
from detent.bus.idempotency import IdempotencyConfig
from detent.bus.message_types import Types, name_of
from detent.bus.middleware import Middleware
from detent.bus.outbox import OutboxStorage
from detent.bus.pipeline import Outcome, Pipeline
from detent.bus.retries import Retries
from detent.bus.running import Running, run, run_async
from detent.bus.serializers import JsonSerializer, MsgpackSerializer, Serializer
from detent.bus.transaction import BusTransaction
from detent.bus.transport import Transport
from detent.bus.transport_queue import QueueTransport
from detent.bus.unit_engine import EngineUnitOfWork
from detent.bus.unit_of_work import UnitOfWork
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.errors import Invalid, OutcomeUnknown

CONCURRENCY: Final = 8
GRACE: Final = "30s"
OUTBOX_LEASE: Final = "30s"
"""How long messages to one address wait when the process dies that was forwarding them."""

TIMEOUT: Final = "30s"
CLASSES_MAX: Final = 4_096
HEADERS_MAX: Final = 100

HandlerType = TypeVar("HandlerType", bound=Callable[..., Any])


class Bus:
    """An app: a name, which is its queue's and its consumer's, and the messages that it handles and sends.

    >>> bus = Bus("billing", "file:./data")
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, context: Context):
    ...     context.publish(InvoiceSent(order.id))
    >>> bus.run()

    `transport` is a `QueueTransport`, an `SqsTransport`, or the URL of a store. With `unit_of_work` each message has a
    transaction of your database; `idempotency` has repeated messages skipped, by a mark in that transaction; `outbox`
    keeps what handlers send in it. `routes` says to which queue a class of messages is sent, `retries` how often one is
    tried. `serializer` writes messages; those of JSON and MessagePack are read in any case, and so are `serializers`.
    """

    def __init__(
        self,
        name: str,
        transport: Transport | str,
        *,
        unit_of_work: UnitOfWork | None = None,
        idempotency: IdempotencyConfig | None = None,
        outbox: OutboxStorage | None = None,
        retries: Retries | None = None,
        routes: Mapping[type, str] | None = None,
        serializer: Serializer | None = None,
        serializers: Iterable[Serializer] = (),
        middlewares: Sequence[Middleware] = (),
        dependencies: Mapping[type | str, Any] | None = None,
        concurrency: int = CONCURRENCY,
        outbox_lease: Duration = OUTBOX_LEASE,
        grace: Duration = GRACE,
        send_only: bool = False,
        subscribe: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        names.check_name(name, "app")
        self.name: Final = name
        self.transport: Transport = QueueTransport(transport) if isinstance(transport, str) else transport
        self.unit_of_work = unit_of_work
        self.idempotency = idempotency
        self.outbox = outbox
        self.retries = retries or Retries()
        self.serializer: Serializer = serializer or JsonSerializer()
        known: list[Serializer] = [JsonSerializer(), MsgpackSerializer(), *serializers, self.serializer]
        self.serializers: dict[str, Serializer] = {one.content_type: one for one in known}
        self.middlewares: list[Middleware] = list(middlewares)
        self.concurrency = concurrency
        self.outbox_lease_s = milliseconds(outbox_lease) / 1000
        self.grace_s = milliseconds(grace) / 1000
        self.send_only = send_only
        self.subscribes = subscribe
        self._clock = clock
        self.types = Types()
        self.dependencies = Dependencies()
        self.all_handlers: list[Handler] = []
        self._routes: dict[type, str] = {}
        self._handlers_of: dict[type, tuple[Handler, ...]] = {}
        self.calling = Calling(unit_is_async=unit_of_work is not None and unit_of_work.is_async)
        self._pipeline = Pipeline(self)
        self._running = Running(self)
        for cls, queue in (routes or {}).items():
            self.route(cls, queue)
        for key, value in (dependencies or {}).items():
            self.provide(key, value)

    def __repr__(self) -> str:
        return f"Bus({self.name!r})"

    # -- declaring ----------------------------------------------------------------------------------------------

    def handler(self, target: Any = None, *classes: type) -> Any:
        """Declare a handler: ``@bus.handler`` for the class that its first parameter is of, or
        ``@bus.handler(OrderPlaced)``. Several may handle the same class: all of them run, in one transaction."""
        if target is None or (isinstance(target, type) and "__call__" not in _names_in(target)):
            given = (*(() if target is None else (target,)), *classes)
            return lambda actual: self._add(actual, given)
        return self._add(target, classes)

    def _add(self, target: HandlerType, classes: tuple[type, ...]) -> HandlerType:
        self._running.refuse_if_started("declare handlers before the app starts")
        handler = new_handler(target, classes)
        for cls in handler.classes:
            self.types.add(cls)
        self.all_handlers.append(handler)
        self._handlers_of.clear()
        return target

    def register(self, *classes: type) -> None:
        """Know classes of messages that nobody here handles, such as replies."""
        for cls in classes:
            self.types.add(cls)

    def route(self, cls: type, queue: str) -> None:
        """Say to which app's queue messages of a class are sent."""
        self.types.add(cls)
        names.check_name(queue, "queue")
        self._routes[cls] = queue

    def provide(self, key: type | str, value: Any) -> None:
        """Give this to handlers that ask for it, by a parameter of that type or of that name."""
        self.dependencies.add(key, value)

    def provide_with(self, key: type | str, make: Callable[..., Any]) -> None:
        """The same, made anew for each message by a function, which may have such parameters too."""
        self.dependencies.add_maker(key, make)

    @property
    def has_handlers(self) -> bool:
        """Whether there are any."""
        return bool(self.all_handlers)

    @property
    def settles_itself(self) -> bool:
        """Whether the unit of work acknowledges messages with its commit."""
        return isinstance(self.unit_of_work, EngineUnitOfWork)

    @property
    def topics(self) -> list[str]:
        """The names of what it handles."""
        return sorted({name_of(cls) for handler in self.all_handlers for cls in handler.classes})

    def handlers_of(self, cls: type) -> tuple[Handler, ...]:
        """Who handles messages of a class: also those who handle a class that it is derived from."""
        found = self._handlers_of.get(cls)
        if found is None:
            found = tuple(one for one in self.all_handlers if any(issubclass(cls, known) for known in one.classes))
            if len(self._handlers_of) < CLASSES_MAX:
                self._handlers_of[cls] = found
        return found

    @property
    def is_async(self) -> bool:
        """Whether anything here wants an event loop."""
        return self._always_on_loop or any(handler.is_async for handler in self.all_handlers)

    @property
    def _always_on_loop(self) -> bool:
        """Whether every message is handled on the loop."""
        return self.calling.unit_is_async or self.dependencies.is_async or any(one.is_async for one in self.middlewares)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(
        self,
        message: Any,
        *,
        to: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> str:
        """Send a message to the queue of one app, `to` or as routed; its id.

        Within a handler, or within `bus.transaction`, it goes with the commit; otherwise it is durable when this
        returns. With `delay` or `at` it is delivered later. An `id` of your own makes sending it twice the same as
        sending it once.
        """
        queue = to or self._route_of(type(message))
        names.check_name(queue, "queue")
        return self._dispatch(message, wire.address(wire.QUEUE, queue), id, headers, self._visible_ms(delay, at))

    def send_local(self, message: Any, **options: Any) -> str:
        """Send a message to this app itself."""
        self._running.open()  # what its queue is called is known from then on
        return self.send(message, to=self.transport.input_name, **options)

    def publish(
        self,
        message: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> str:
        """Publish a message to every app that has subscribed to its class, or to one that it is derived from; its id.
        See `send` for when, and for the options."""
        topics = "|".join(["", *self.types.topics(type(message)), ""])
        marked = {**(headers or {}), wire.TOPICS: topics}
        return self._dispatch(message, wire.address(wire.TOPIC, topics), id, marked, self._visible_ms(delay, at))

    async def send_async(self, message: Any, **options: Any) -> str:
        """`send`, for asyncio. Within a handler or a transaction plain `send` does not wait either."""
        return await asyncio.to_thread(self.send, message, **options)

    async def publish_async(self, message: Any, **options: Any) -> str:
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
        self._running.open()
        request_id = Outgoing(self).new_id()
        replies = self._running.replies
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
        reply_headers, body = answer
        return self._pipeline._decode(Incoming(request_id, reply_headers, body, 1, None))

    async def request_async(self, message: Any, **options: Any) -> Any:
        """`request`, for asyncio."""
        return await asyncio.to_thread(self.request, message, **options)

    def subscribe(self, *classes: type) -> None:
        """Have messages of these classes delivered to this app, for good. Starting it does so for all that it handles,
        unless it was made with ``subscribe=False``."""
        self._running.open()
        self.transport.subscribe([self.types.add(cls) for cls in classes])

    def unsubscribe(self, *classes: type) -> None:
        """No longer. Handlers that were taken out of an app stay subscribed until this is said."""
        self._running.open()
        self.transport.unsubscribe([name_of(cls) for cls in classes])

    def transaction(self, session: Any, *, commit: bool = True) -> BusTransaction:
        """A block in which messages go with the transaction of a session; see :class:`BusTransaction`."""
        return BusTransaction(self, session, commit=commit)

    def _route_of(self, cls: type) -> str:
        for base in cls.__mro__:
            if base in self._routes:
                return self._routes[base]
        raise Invalid(
            f"nobody said where a {cls.__name__} is sent: write send(message, to='billing'), or "
            f"Bus(..., routes={{{cls.__name__}: 'billing'}}); or publish it, to whoever has subscribed"
        )

    def _dispatch(
        self, message: Any, to: str, id: str | None, headers: Mapping[str, str] | None, visible_ms: int | None
    ) -> str:
        """Write a message, and send it: with the transaction that is open here, or now."""
        self.types.add(type(message))
        joined = current.get()
        if joined is not None and joined.bus is not self:
            raise Invalid(
                f"{self.name!r} cannot send within a transaction of {joined.bus.name!r}, which could not take it back: "
                f"send it as {joined.bus.name!r}, whose transport reaches the same queues"
            )
        source = joined or Outgoing(self)
        envelope = Envelope(
            id or source.new_id(),
            to,
            {},
            self.serializer.encode(message),
            visible_ms,
        )
        envelope = _with_headers(envelope, self._headers(type(message), envelope.id, source, headers or {}))
        for hook in self.middlewares:
            envelope = hook.before_send(envelope)
        if joined is not None:
            joined.collect(envelope)
            return envelope.id
        self._running.open()
        for error in self.transport.send([envelope]).values():
            raise error
        return envelope.id

    def _visible_ms(self, delay: Duration | None, at: datetime | None) -> int | None:
        if delay is not None and at is not None:
            raise Invalid("a message is delivered after a delay or at a time: give one of the two")
        if at is not None:
            return since_1970_ms(at)
        return None if delay is None else int(self._clock() * 1000) + milliseconds(delay)

    def _headers(self, cls: type, id: str, source: Outgoing, given: Mapping[str, str]) -> dict[str, str]:
        if len(id.encode(errors="replace")) > wire.ID_BYTES_MAX or not id.isprintable() or not id:
            raise Invalid(f"an id has 1 to {wire.ID_BYTES_MAX} bytes that can be printed, and is not {id!r}")
        if len(given) > HEADERS_MAX or not all(isinstance(part, str) for pair in given.items() for part in pair):
            raise Invalid(f"headers are up to {HEADERS_MAX} texts by name, and not {given!r}")
        return {
            **given,
            **({wire.CORRELATION: id} | source.correlation()),
            wire.ID: id,
            wire.TYPE: name_of(cls),
            wire.SENT_AT: datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds"),
            wire.CONTENT_TYPE: self.serializer.content_type,
        }

    # -- handling -----------------------------------------------------------------------------------------------

    def handle(self, incoming: Incoming) -> Outcome:
        """What became of one delivery. The worker calls it, and so do tests."""
        pipeline = self._pipeline
        try:
            step = pipeline.read(incoming)
        except Exception as error:  # noqa: BLE001 - a message that cannot be read has failed
            return self.calling.run(pipeline.failed, incoming, error, on_loop=False)
        on_loop = self._always_on_loop or any(one.is_async for one in step.handlers)
        return self.calling.run(pipeline.handle, incoming, step, on_loop=on_loop)

    def wake(self) -> None:
        """Something was committed that is to be forwarded."""
        self._running.wake()

    # -- living -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check that everything goes together, and begin: to handle messages, to forward, to tidy up; in threads."""
        self._running.start()

    def prepare(self) -> None:
        """Check that everything goes together, make the queue and the tables, and subscribe, without handling anything:
        what others publish from now on waits here. `start` does so, too."""
        self._running.prepare()

    def stop(self, grace: Duration | None = None) -> None:
        """Take no more messages, wait for the handlers that run, forward what they left, and let go of everything."""
        self._running.stop(self.grace_s if grace is None else milliseconds(grace) / 1000)

    def stop_taking(self) -> None:
        """Take no more messages; returns at once. `stop` waits for those that are being handled."""
        self._running.stop_taking()

    def run(self) -> None:
        """Start, and work until SIGTERM or Ctrl-C. To run several apps: `detent.bus.run(a, b)`."""
        run(self)

    async def run_async(self) -> None:
        """The same with ``async def`` handlers on the caller's event loop. Cancel it to stop."""
        await run_async(self)

    def drain(self, timeout: Duration = TIMEOUT) -> list[Outcome]:
        """Handle in this thread all that waits now, and forward what that sends, until nothing is left; what became of
        each. For tests and for scripts: start nothing, and call this."""
        return self._running.drain(time.monotonic() + milliseconds(timeout) / 1000)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """Coroutines of handlers run on this loop."""
        self.calling.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _names_in(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in base.__dict__}


def _with_headers(envelope: Envelope, headers: Mapping[str, str]) -> Envelope:
    return Envelope(envelope.id, envelope.to, headers, envelope.body, envelope.visible_ms)
