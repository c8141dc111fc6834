"""`Bus`: an app that sends and handles typed messages, each of which takes effect once."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from detent.bus.calling import Calling, LoopEnded, is_coroutine_function
from detent.bus.checks import check_parts
from detent.bus.envelope import Incoming
from detent.bus.handlers import Dependencies, Handler, new_handler
from detent.bus.idempotency import IdempotencyConfig
from detent.bus.message_types import name_of
from detent.bus.middleware import Middleware
from detent.bus.outbox import OutboxStorage
from detent.bus.pipeline import Outcome, Pipeline
from detent.bus.replies import Replies
from detent.bus.retries import Retries
from detent.bus.running import Running, run, run_async
from detent.bus.sending import TIMEOUT, Sending
from detent.bus.serializers import Serializer
from detent.bus.transaction import BusTransaction
from detent.bus.transport import Transport
from detent.bus.transport_urls import open_transport
from detent.bus.unit_engine import EngineUnitOfWork
from detent.bus.unit_of_work import UnitOfWork
from detent.bus.worker import checked_concurrency
from detent.durations import Duration, milliseconds

CONCURRENCY: Final = 8
GRACE: Final = "30s"
OUTBOX_LEASE: Final = "30s"
"""How long messages to one address wait when the process dies that was forwarding them."""

CLASSES_MAX: Final = 4_096

HandlerType = TypeVar("HandlerType", bound=Callable[..., Any])


class Bus(Sending):
    """An app: a name, which is its queue's and its consumer's, and the messages that it handles and sends.

    >>> bus = Bus("billing", "file:./data")
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, context: Context):
    ...     context.publish(InvoiceSent(order.id))
    >>> bus.run()

    `transport` is a `QueueTransport`, an `SqsTransport`, an `ExternalTransport`, or a URL: of a store, or of another
    system such as ``pubsub:?project=shop``. With `unit_of_work` each message has a transaction of your database;
    `idempotency` has repeated messages skipped, by a mark in that transaction; `outbox` keeps what handlers send in it.
    `routes` says to which queue a class of messages is sent, `retries` how often one is tried. `serializer` writes
    messages; those of JSON and MessagePack are read in any case, and so are `serializers`.
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
        chosen = open_transport(transport) if isinstance(transport, str) else transport
        tracker = getattr(idempotency, "tracker", None)
        check_parts(
            transport=chosen, unit_of_work=unit_of_work, idempotency=idempotency, tracker=tracker, outbox=outbox
        )
        super().__init__(name, chosen, serializer, serializers, middlewares, clock)
        self.unit_of_work = unit_of_work
        self.idempotency = idempotency
        self.outbox = outbox
        self.retries = retries or Retries()
        self.concurrency = checked_concurrency(concurrency)
        self.outbox_lease_s = milliseconds(outbox_lease) / 1000
        self.grace_s = milliseconds(grace) / 1000
        self.send_only = send_only
        self.subscribes = subscribe
        self.dependencies = Dependencies()
        self.all_handlers: list[Handler] = []
        self._handlers_of: dict[type, tuple[Handler, ...]] = {}
        self.calling = Calling(unit_is_async=self._parts_are_async())
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
        self._running.declared()
        handler = new_handler(target, classes)
        for cls in handler.classes:
            self.types.add(cls)
        self.all_handlers.append(handler)
        self._handlers_of.clear()
        return target

    def use(self, transport: Transport | str) -> None:
        """Have messages carried by this transport instead of the one that it was made with; before it starts."""
        self._running.refuse_if_open("say what carries its messages before that")
        chosen = open_transport(transport) if isinstance(transport, str) else transport
        check_parts(transport=chosen)
        self.transport = chosen

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

    def _parts_are_async(self) -> bool:
        """Whether units, marks or kept messages are awaited."""
        tracker = None if self.idempotency is None else self.idempotency.tracker
        calls = [getattr(tracker, "track", None), getattr(self.outbox, "save", None)]
        is_async = self.unit_of_work is not None and self.unit_of_work.is_async
        return is_async or any(map(is_coroutine_function, calls))

    @property
    def is_async(self) -> bool:
        """Whether anything here wants an event loop."""
        return self._always_on_loop or any(handler.is_async for handler in self.all_handlers)

    @property
    def _always_on_loop(self) -> bool:
        """Whether every message is handled on the loop."""
        return self.calling.unit_is_async or self.dependencies.is_async or any(one.is_async for one in self.middlewares)

    # -- sending: see `Sending` -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready to send; nothing if it is. Sending does so by itself."""
        self._running.open()

    @property
    def replies(self) -> Replies:
        """What gives replies to those who wait."""
        return self._running.replies

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

    # -- handling -----------------------------------------------------------------------------------------------

    def handle(self, incoming: Incoming) -> Outcome:
        """What became of one delivery. The worker calls it, and so do tests."""
        return contextvars.copy_context().run(self._handle, incoming)  # what one leaves there, the next must not see

    def _handle(self, incoming: Incoming) -> Outcome:
        pipeline = self._pipeline
        try:
            step = pipeline.read(incoming)
        except Exception as error:  # noqa: BLE001 - a message that cannot be read has failed
            return self.calling.run(pipeline.failed, incoming, error, on_loop=False)
        on_loop = self._always_on_loop or any(one.is_async for one in step.handlers)
        try:
            return self.calling.run(pipeline.handle, incoming, step, on_loop=on_loop)
        except LoopEnded:
            self.stop_taking()  # each message that is taken now would be left to its lease
            raise

    def wake(self) -> None:
        """Something was committed that is to be forwarded."""
        self._running.wake()

    # -- living -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check that everything goes together, and begin: to handle messages, to forward, to tidy up; in threads."""
        self._running.start()

    def refuse_if_started(self) -> None:
        """`Invalid` if it runs already."""
        self._running.refuse_if_started("stop it before it is started again")

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
        self.refuse_if_started()
        self.calling.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _names_in(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in base.__dict__}
