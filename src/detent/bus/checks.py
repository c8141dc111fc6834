"""What is refused when an app starts: each would lose messages or handle them twice, sooner or later."""

from __future__ import annotations

import logging
import threading
import weakref

from detent.bus.declared import App
from detent.bus.unit_engine import EngineUnitOfWork
from detent.durations import no_shorter_text, span_text
from detent.errors import Invalid

logger = logging.getLogger("detent.bus")

_running: weakref.WeakValueDictionary[str, App] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def check(bus: App) -> None:
    """`Invalid`, with what to change, if the parts of an app do not go together."""
    _check_outbox(bus)
    _check_tracker(bus)
    if bus.unit_of_work is not None:
        bus.unit_of_work.check(bus.transport)
    if bus.ticking and not bus.send_only and not bus.transport.keeps_schedules:
        raise Invalid(
            f"{bus.name!r} has handlers that run at times, which needs schedules of a Detent store, and "
            f"{type(bus.transport).__name__} has none: carry its messages in a store, or have another program send "
            "a message at these times"
        )
    if not bus.has_handlers and not bus.send_only:
        raise Invalid(f"{bus.name!r} has no handlers: declare one with @bus.handler, or say send_only=True")
    if bus.calling.unit_is_async and bus.unit_of_work is not None and not bus.unit_of_work.is_async:
        raise Invalid(
            f"{bus.name!r} has a tracker or an outbox that is async, and a unit of work that is not: they cannot share "
            "a transaction. Use those of one kind"
        )
    if bus.is_async and getattr(bus.unit_of_work, "for_plain_handlers", False):
        raise Invalid(
            f"{bus.name!r} has handlers or hooks that are async def, and its transactions belong to a thread: what "
            "they write would be in another transaction. Make them plain functions"
        )
    provided = frozenset() if bus.unit_of_work is None else bus.unit_of_work.provided
    for handler in bus.all_handlers:
        wanted = (*handler.wanted, *(handler.made_with or ()))
        bus.dependencies.check(wanted, provided, handler.name)


def _check_outbox(bus: App) -> None:
    if bus.outbox is None:
        return
    if bus.unit_of_work is None:
        raise Invalid(
            f"{bus.name!r} has an outbox and no unit of work: its messages could not be in the transaction of the "
            "handlers. Add unit_of_work=SqlAlchemyUnitOfWork(session_factory), or leave the outbox out"
        )
    if isinstance(bus.unit_of_work, EngineUnitOfWork):
        raise Invalid(
            f"{bus.name!r} writes to the store that its messages are in, so that what it sends is in the same "
            "transaction: leave the outbox out"
        )


def _check_tracker(bus: App) -> None:
    config = bus.idempotency
    if config is None:
        return
    tracker = config.tracker
    if isinstance(bus.unit_of_work, EngineUnitOfWork):
        raise Invalid(
            f"{bus.name!r} acknowledges a message in the transaction of its effect, and messages that are sent twice "
            "are kept once: leave idempotency out"
        )
    if tracker.is_transactional and bus.unit_of_work is None:
        raise Invalid(
            f"{bus.name!r} tracks messages in the transaction of its handlers, and has no unit of work: add "
            "unit_of_work=SqlAlchemyUnitOfWork(session_factory)"
        )
    if not tracker.is_transactional and bus.unit_of_work is not None and not config.separate:
        raise Invalid(
            f"{bus.name!r} tracks messages in {tracker.place} and writes to {bus.unit_of_work.place}: a crash between "
            "the two commits would have a message handled twice. Use SqlTracker() without an engine of its own, which "
            "is then in the transaction of the handlers; or say IdempotencyConfig(..., separate=True)"
        )
    if config.should_stop_invocation and bus.outbox is None and not bus.send_only:
        logger.warning(
            "%r skips repeated messages and has no outbox: what a handler sends is lost if the process dies between "
            "its commit and the sending, and the message is given up if it cannot be sent. Add an outbox, or say "
            "should_stop_invocation=False and see context.repeated",
            bus.name,
        )


def check_memory(bus: App) -> None:
    """`Invalid` if the tracker forgets a message sooner than the transport stops to deliver it; a warning where one of
    the two cannot be known."""
    if bus.idempotency is None:
        return
    kept_s = getattr(bus.idempotency.tracker, "retention_s", None)
    redelivery = getattr(bus.transport, "redelivery_s", None)
    redelivered_s = None if redelivery is None else redelivery()
    if kept_s is None or redelivered_s is None:
        _warn_of_memory(bus, kept_s, redelivered_s)
    elif kept_s < redelivered_s:
        raise Invalid(
            f"{bus.name!r} remembers for {span_text(kept_s)} which messages it has handled, and {bus.transport.place} "
            f"can deliver one again for {span_text(redelivered_s)}: it would be handled twice. Say "
            f"SqlTracker(retention={no_shorter_text(redelivered_s)!r}) or longer, or have the transport keep messages "
            "for less"
        )


def _warn_of_memory(bus: App, kept_s: float | None, redelivered_s: float | None) -> None:
    logger.warning(
        "%r remembers handled messages for %s, and %s can deliver one again for %s: see to it that the first is "
        "longer, or a message that comes late is handled twice",
        bus.name,
        "a time that its tracker does not say" if kept_s is None else span_text(kept_s),
        bus.transport.place,
        "a time that is not known" if redelivered_s is None else span_text(redelivered_s),
    )


def enter(bus: App) -> None:
    """No other app of this process may have the name: with one tracker, each would take the other's messages for
    handled."""
    with _lock:
        known = _running.get(bus.name)
        if known is not None and known is not bus:
            raise Invalid(
                f"two apps in this process are called {bus.name!r}: each would take messages that the other has "
                "handled for its own. Give one of them another name, or stop the first one"
            )
        _running[bus.name] = bus


def leave(bus: App) -> None:
    """The name is free again."""
    with _lock:
        if _running.get(bus.name) is bus:
            del _running[bus.name]
