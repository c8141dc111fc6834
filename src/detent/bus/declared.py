"""What an app is made of: parts, handlers, hooks, and how often it tries a message. What runs it takes this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar

from detent.bus.calling import Calling, is_coroutine_function
from detent.bus.handlers import Dependencies, Handler, new_handler
from detent.bus.idempotency import IdempotencyConfig
from detent.bus.messages import Envelope, Incoming, Serializer, name_of
from detent.bus.outbox import OutboxStorage
from detent.bus.sending import Context, Poison, Sender
from detent.bus.ticks import Tick, Ticking, new_ticking
from detent.bus.transport import Transport
from detent.bus.transport_urls import open_transport
from detent.bus.unit_engine import EngineUnitOfWork
from detent.bus.unit_of_work import TransactionEnded, UnitOfWork
from detent.durations import Duration, milliseconds
from detent.errors import Invalid

CONCURRENCY: Final = 8
CONCURRENCY_MAX: Final = 1_000
GRACE: Final = "30s"
OUTBOX_LEASE: Final = "30s"
"""How long messages to one address wait when the process dies that was forwarding them."""

CLASSES_MAX: Final = 4_096
ATTEMPTS_MAX: Final = 1_000

_HOOKS: Final = ("on_start", "on_stop", "before_handle", "after_handle", "after_commit", "on_repeated", "on_failure")

HandlerType = TypeVar("HandlerType", bound=Callable[..., Any])
Starting = TypeVar("Starting")

_PARTS: Final = {
    "transport": (("receive", "send"), "a QueueTransport, an SqsTransport, an ExternalTransport or a URL"),
    "unit_of_work": (("begin", "provided"), "a unit of work, such as SqlAlchemyUnitOfWork(session_factory)"),
    "idempotency": (("tracker", "should_stop_invocation"), "IdempotencyConfig(SqlTracker())"),
    "tracker": (("track", "committed"), "a tracker, such as SqlTracker()"),
    "outbox": (("save", "claim"), "an outbox, such as SqlOutbox()"),
}


def check_parts(**given: object) -> None:
    """`Invalid` for what cannot be what it is given as: a class, or something of another kind."""
    for name, part in given.items():
        attributes, wanted = _PARTS[name]
        if part is not None and (isinstance(part, type) or not all(hasattr(part, one) for one in attributes)):
            raise Invalid(f"{name} is {wanted}, and not {part!r}")


def checked_concurrency(concurrency: int) -> int:
    """How many messages are handled at once; `Invalid` if it is not such a number."""
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"an app handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
    return concurrency


class Outcome(Enum):
    """What became of a delivery."""

    HANDLED = "handled"
    REPEATED = "repeated"
    """It was handled before, and skipped."""
    RETRIED = "retried"
    """It failed, and will be delivered again."""
    GIVEN_UP = "given up"
    """It failed for good, and is on the failed list."""
    LEFT = "left"
    """The transport could not be told what became of it: it will be delivered again when its lease has ended."""


@dataclass(frozen=True, slots=True)
class Retries:
    """A message that fails is tried again at once, `immediate` times, and then after each of the `delayed` durations;
    after that it is put onto the failed list with its error. Attempts are counted by the transport, so that they
    survive the process: a message that kills it comes to an end, too.

    Errors of the types in `fail_fast` are not tried again.
    """

    immediate: int = 2
    delayed: Sequence[Duration] = ("10s", "1m", "10m")
    fail_fast: type[BaseException] | tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.immediate, int) or not 0 <= self.immediate <= ATTEMPTS_MAX:
            raise Invalid(f"immediate retries are a number from 0 to {ATTEMPTS_MAX}, not {self.immediate!r}")
        if isinstance(self.delayed, str) or len(self.delayed) > ATTEMPTS_MAX:
            raise Invalid(f"delayed retries are up to {ATTEMPTS_MAX} durations, such as ('10s', '5m')")
        for delay in self.delayed:
            milliseconds(delay)
        kinds = self.fail_fast if isinstance(self.fail_fast, tuple) else (self.fail_fast,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise Invalid(f"fail_fast is a class of exceptions, or a tuple of some, and not {self.fail_fast!r}")
        object.__setattr__(self, "fail_fast", kinds)

    @property
    def attempts_max(self) -> int:
        """How often a message is tried at most."""
        return 1 + self.immediate + len(self.delayed)

    def delay_s(self, attempts: int, error: BaseException) -> float | None:
        """How long to wait after so many attempts; None to give up."""
        final = self.fail_fast if isinstance(self.fail_fast, tuple) else (self.fail_fast,)
        if isinstance(error, (*final, Poison, TransactionEnded)) or attempts >= self.attempts_max:
            return None
        if attempts <= self.immediate:
            return 0.0
        return milliseconds(self.delayed[attempts - self.immediate - 1]) / 1000


class Hooks(Generic[Starting]):
    """What a `Middleware` may override; see there."""

    @property
    def is_async(self) -> bool:
        """Whether one of its hooks is ``async def``: then all messages are handled on an event loop."""
        return any(is_coroutine_function(getattr(self, hook)) for hook in _HOOKS)

    def on_start(self, bus: Starting) -> Any:
        """The app is about to start."""

    def on_stop(self, bus: Starting) -> Any:
        """The app has stopped."""

    def before_handle(self, context: Context) -> Any:
        """A message's handlers are about to run, in its transaction."""

    def after_handle(self, context: Context) -> Any:
        """They have run; the transaction is not committed yet."""

    def after_commit(self, context: Context) -> Any:
        """What they did is durable."""

    def on_repeated(self, context: Context) -> Any:
        """A message was skipped because it was handled before."""

    def on_failure(self, context: Context, error: BaseException) -> Any:
        """An attempt failed, and nothing of it took effect."""

    def before_send(self, envelope: Envelope) -> Envelope:
        """A message is about to be sent, or kept to be sent: answer it, or a changed copy."""
        return envelope


class App(Sender):
    """An app as it was declared, whether or not it runs."""

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
        middlewares: Sequence[Hooks[Any]] = (),
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
        super().__init__(name, chosen, serializer, serializers, clock)
        self.middlewares: list[Hooks[Any]] = list(middlewares)
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
        self.ticking: list[Ticking] = []
        """The schedules of handlers that run at times."""
        self._handlers_of: dict[type, tuple[Handler, ...]] = {}
        self.calling = Calling(unit_is_async=self._parts_are_async())
        for cls, queue in (routes or {}).items():
            self.route(cls, queue)
        for key, value in (dependencies or {}).items():
            self.provide(key, value)

        self._assembled()

    # -- what a running app does ----------------------------------------------------------------------------------

    def _assembled(self) -> None:
        """The parts are there: make what runs with them."""

    def _declares(self) -> None:
        """A handler is about to be declared."""

    def handle(self, incoming: Incoming) -> Outcome:
        """What became of one delivery."""
        raise NotImplementedError

    def _before_send(self, envelope: Envelope) -> Envelope:
        for hook in self.middlewares:
            envelope = hook.before_send(envelope)
        return envelope

    def wake(self) -> None:
        """Something was committed that is to be forwarded."""
        raise NotImplementedError

    # -- declaring ----------------------------------------------------------------------------------------------

    def handler(self, target: Any = None, *classes: type) -> Any:
        """Declare a handler: ``@bus.handler`` for the class that its first parameter is of, or
        ``@bus.handler(OrderPlaced)``. Several may handle the same class: all of them run, in one transaction."""
        if target is None or (isinstance(target, type) and "__call__" not in _names_in(target)):
            given = (*(() if target is None else (target,)), *classes)
            return lambda actual: self._add(actual, given)
        return self._add(target, classes)

    def _add(self, target: HandlerType, classes: tuple[type, ...]) -> HandlerType:
        self._declares()
        handler = new_handler(target, classes)
        for cls in handler.classes:
            self.types.add(cls)
        self.all_handlers.append(handler)
        self._handlers_of.clear()
        return target

    def every(
        self,
        interval: Duration | None = None,
        *,
        cron: str | None = None,
        tz: str | None = None,
        name: str | None = None,
        missed: Literal["none", "last", "all"] = "last",
        missed_max: int | None = None,
    ) -> Callable[[HandlerType], HandlerType]:
        """Declare a handler that runs at times: ``@bus.every("30s")``, or ``@bus.every(cron="0 6 * * *", tz="UTC")``.
        It is called with a `Tick`, and each tick takes effect once, however many processes run the app.

        The app's start makes a schedule in the store, called after the app and the function unless `name` says
        otherwise; `missed` is the schedule's. One of a handler that is taken out stays until it is deleted.
        """

        def declare(target: HandlerType) -> HandlerType:
            schedule = name or f"{self.name}/{getattr(target, '__name__', type(target).__name__)}"
            if any(one.name == schedule for one in self.ticking):
                raise Invalid(f"{self.name!r} has two handlers for the schedule {schedule!r}: give one of them a name")
            ticking = new_ticking(
                schedule,
                self.name,
                {"every": interval, "cron": cron, "tz": tz, "missed": missed, "missed_max": missed_max},
            )
            self._add(target, (ticking.kind,))
            self.ticking.append(ticking)
            return target

        return declare

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
        """The names of what it handles. Ticks are sent to its queue by name, and are not published."""
        classes = {cls for handler in self.all_handlers for cls in handler.classes}
        return sorted(name_of(cls) for cls in classes if not issubclass(cls, Tick))

    def handlers_of(self, cls: type) -> tuple[Handler, ...]:
        """The handlers of a class of messages, and those of the classes that it is derived from."""
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
        return self.always_on_loop or any(handler.is_async for handler in self.all_handlers)

    @property
    def always_on_loop(self) -> bool:
        """Whether every message is handled on the loop."""
        return self.calling.unit_is_async or self.dependencies.is_async or any(one.is_async for one in self.middlewares)


def _names_in(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in base.__dict__}
