"""What an app is made of: its parts, its handlers, and what follows from them. All else that an app does takes this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from detent.bus.calling import Calling, is_coroutine_function
from detent.bus.envelope import Envelope, Incoming
from detent.bus.handlers import Dependencies, Handler, new_handler
from detent.bus.idempotency import IdempotencyConfig
from detent.bus.message_types import name_of
from detent.bus.middleware import Middleware
from detent.bus.outbox import OutboxStorage
from detent.bus.retries import Retries
from detent.bus.sending import Sending
from detent.bus.serializers import Serializer
from detent.bus.transport import Transport
from detent.bus.transport_urls import open_transport
from detent.bus.unit_engine import EngineUnitOfWork
from detent.bus.unit_of_work import UnitOfWork
from detent.bus.worker import checked_concurrency
from detent.durations import Duration, milliseconds
from detent.errors import Invalid

CONCURRENCY: Final = 8
GRACE: Final = "30s"
OUTBOX_LEASE: Final = "30s"
"""How long messages to one address wait when the process dies that was forwarding them."""

CLASSES_MAX: Final = 4_096

HandlerType = TypeVar("HandlerType", bound=Callable[..., Any])

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


class App(Sending):
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
        super().__init__(name, chosen, serializer, serializers, clock)
        self.middlewares: list[Middleware] = list(middlewares)
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


def _names_in(cls: type) -> set[str]:
    return {name for base in cls.__mro__[:-1] for name in base.__dict__}
