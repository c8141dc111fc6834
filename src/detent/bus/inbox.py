"""The inbox as one decorator, over any function that takes a message with an id.

>>> @exactly_once(session_factory, consumer="billing")
... def on_order(order: dict, session: Session) -> None:
...     session.add(Invoice(order["id"]))
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, cast

from detent import crash, names
from detent.bus import messages as wire
from detent.bus.calling import ThreadCaller, UserCaller, is_coroutine_function, run_here
from detent.bus.handlers import refuse_generator, refuse_unfinished
from detent.bus.housekeeping import STEP, SWEEP_S
from detent.bus.tracker_sql import SqlTracker
from detent.bus.unit_dbapi import DbApiUnitOfWork
from detent.bus.unit_of_work import Begun, Unit, UnitOfWork, in_unit, patiently
from detent.bus.unit_sqlalchemy import SqlAlchemyUnitOfWork
from detent.errors import Invalid
from detent.queue.message import reason_of
from detent.runtime.ground import drive

P = ParamSpec("P")
R = TypeVar("R")

_FIELDS: Final = ("message_id", "id", "MessageId")
"""Where a message's id is looked for: in attributes, in the items of a mapping, in its headers."""

logger = logging.getLogger("detent.bus")

_consumers: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def exactly_once(
    session_factory: Any,
    *,
    consumer: str,
    id: Callable[[Any], str] | None = None,
    tracker: SqlTracker | None = None,
    on_repeat: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Have a function take effect once for each message: it runs in a transaction of its own, with a mark of the
    message in it, and is not run for a message that has one.

    `session_factory` answers a session of SQLAlchemy's, plain or async, or a connection of sqlite3 or psycopg; or give
    a unit of work. The function gets it as its parameter `session` (or `connection`), if it has one. `consumer` names
    who has handled a message: each function has its own. The id of a message is its `message_id`, `id` or `MessageId`,
    or what `id` says. For a repeated message the answer is None, or what `on_repeat` answers. What the function raises
    undoes everything, and the message can be handled again.
    """
    names.check_name(consumer, "consumer")
    for name, function in (("id", id), ("on_repeat", on_repeat)):
        if function is not None and not callable(function):
            raise Invalid(f"{name} is a function that takes the message, and not {function!r}")
    unit_of_work = _unit_of_work(session_factory)
    marks = tracker or SqlTracker()

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        inbox = _Inbox(function, consumer, unit_of_work, marks, id or message_id_of, on_repeat)
        wrapped: Callable[..., Any]
        if inbox.is_async:

            @functools.wraps(function)
            async def awaited(*values: Any, **named: Any) -> Any:
                return await run_here(inbox.call, values, named, unit_is_async=unit_of_work.is_async)

            wrapped = awaited
        else:

            @functools.wraps(function)
            def plain(*values: Any, **named: Any) -> Any:
                return drive(inbox.call(ThreadCaller(), values, named))

            wrapped = plain
        _enter(consumer, function, wrapped)
        return cast("Callable[..., R]", wrapped)

    return decorate


def message_id_of(message: Any) -> str:
    """The id that a message has; `Invalid` if it has none."""
    parts = [message]
    headers = message.get("headers") if isinstance(message, Mapping) else getattr(message, "headers", None)
    if isinstance(headers, Mapping):
        parts.append(headers)
    for part in parts:
        for field in (*_FIELDS, wire.ID):
            found = part.get(field) if isinstance(part, Mapping) else getattr(part, field, None)
            if found is not None and found != "" and not callable(found):
                return str(found)
    raise Invalid(
        f"a message of the type {type(message).__name__} has no id: it cannot be said whether it was handled before. "
        "Give it one as message_id or id, or say exactly_once(..., id=lambda message: ...)"
    )


def _unit_of_work(given: Any) -> UnitOfWork:
    if hasattr(given, "begin") and hasattr(given, "provided"):
        return cast("UnitOfWork", given)
    if not callable(given):
        raise Invalid(f"exactly_once needs a function that answers a session or a connection, not {given!r}")
    if hasattr(given, "class_") or hasattr(given, "session_factory"):  # SQLAlchemy's sessionmaker and its like
        return SqlAlchemyUnitOfWork(given)
    probe = given()
    if (
        inspect.isawaitable(probe)
        or hasattr(probe, "cursor")
        or (hasattr(probe, "__enter__") and not hasattr(probe, "get_bind"))
    ):
        _drop(probe)
        return DbApiUnitOfWork(given)
    _drop(probe)
    return SqlAlchemyUnitOfWork(given)


def _drop(probe: Any) -> None:
    close = getattr(probe, "close", None)
    if close is None:
        return
    closing = close()
    if inspect.iscoroutine(closing):
        closing.close()  # a session that has done nothing yet holds nothing


def _enter(consumer: str, function: Callable[..., Any], wrapped: Callable[..., Any]) -> None:
    with _lock:
        known = _consumers.get(consumer)
        if known is not None and _identity(known.__wrapped__) != _identity(function):  # type: ignore[attr-defined]
            raise Invalid(
                f"two functions are the consumer {consumer!r}, {_place(known)} and {_place(wrapped)}: each would skip "
                "messages that the other has handled. Give one of them another name"
            )
        _consumers[consumer] = wrapped


def _identity(function: Any) -> Any:
    """What makes a function the same one when its module is imported anew."""
    if isinstance(function, functools.partial):
        return _identity(function.func), function.args, tuple(sorted(function.keywords.items()))
    code = getattr(function, "__code__", None)
    if code is None:
        return _place(function)
    return code.co_filename, code.co_qualname, list(code.co_positions())[:1], code.co_code


def _place(function: Any) -> str:
    plain = function.func if isinstance(function, functools.partial) else function
    named = plain if hasattr(plain, "__qualname__") else type(plain)
    return f"{named.__module__}.{named.__qualname__}"


class _Inbox:
    """One decorated function."""

    def __init__(
        self,
        function: Callable[..., Any],
        consumer: str,
        unit_of_work: UnitOfWork,
        tracker: SqlTracker,
        id_of: Callable[[Any], str],
        on_repeat: Callable[[Any], Any] | None,
    ) -> None:
        self._function = function
        self._consumer = consumer
        self._unit_of_work = unit_of_work
        self._tracker = tracker
        self._id_of = id_of
        self._on_repeat = on_repeat
        refuse_generator(function, _place(function))
        parameters = list(inspect.signature(function).parameters)
        self._wanted = frozenset(parameters) & {"session", "connection"}
        self._place = 1 if parameters[:1] in (["self"], ["cls"]) else 0
        if len(parameters) <= self._place:
            raise Invalid(f"{_place(function)} takes no message: its first parameter is the message")
        self._name = parameters[self._place]
        self._is_prepared = False
        self._clock = time.monotonic
        self._calls, self._sweep_at = 0, 0.0
        self.is_async = is_coroutine_function(function) or unit_of_work.is_async
        if self.is_async and not is_coroutine_function(function):
            raise Invalid(f"{_place(function)} uses an async session: make it async def")

    def _message(self, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The message among what the function is called with: the first, or in a method the second."""
        if len(values) > self._place:
            return values[self._place]
        if self._name in named:
            return named[self._name]
        raise Invalid(f"{_place(self._function)} takes a message, and is called without one")

    async def call(self, caller: UserCaller, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        message = self._message(values, named)
        message_id = self._checked_id(message)
        if not self._is_prepared:
            await self._prepare(caller)
        answer = None
        async with Begun(caller, self._unit_of_work) as unit:
            crash.point("bus.before_track")
            is_new = await caller.unit(self._tracker.track, self._consumer, message_id, unit)
            crash.point("bus.after_track")
            if is_new:
                given = {name: unit.provides[name] for name in self._wanted if name in unit.provides}
                answer = await caller.user(self._function, *values, **{**given, **named})
                refuse_unfinished(answer, _place(self._function))
            crash.point("bus.before_commit")
        crash.point("bus.after_commit")
        if not is_new:
            logger.info("%r has handled the message %s before: skipped", self._consumer, message_id)
        await self._sweep(caller)
        if not is_new and self._on_repeat is not None:
            return await caller.user(self._on_repeat, message)
        return answer

    async def _sweep(self, caller: UserCaller) -> None:
        """Remove marks beyond the tracker's retention, now and then, and more than were made meanwhile: there is
        no other process that would. What fails is logged, because the message is done."""
        self._calls += 1
        now = self._clock()
        if now < self._sweep_at:
            return
        left, self._calls, self._sweep_at = max(STEP, 2 * self._calls), 0, now + SWEEP_S
        try:
            while left > 0:
                removed = await in_unit(caller, self._unit_of_work, self._forget)
                left = left - STEP if removed == STEP else 0
        except Exception as error:  # noqa: BLE001
            logger.warning("%r could not remove marks that are old: %s", self._consumer, reason_of(error))

    def _forget(self, unit: Unit) -> Any:
        return self._tracker.forget(self._consumer, unit, STEP)

    def _checked_id(self, message: Any) -> str:
        message_id = self._id_of(message)
        if not isinstance(message_id, str) or not message_id or len(message_id.encode()) > wire.ID_BYTES_MAX:
            raise Invalid(f"an id is text of 1 to {wire.ID_BYTES_MAX} bytes, and not {message_id!r}")
        return message_id

    async def _prepare(self, caller: UserCaller) -> None:
        """Make the table, once; that two processes do so at the same time does no harm."""
        await patiently(caller, self._unit_of_work, self._tracker.prepare, self._consumer, None)
        self._is_prepared = True
