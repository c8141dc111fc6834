"""What commands show of an app: its parts, what waits for it, and whether all of it goes together."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, cast

import click

from detent.cli._output import age_text, line_text, print_fields, print_table
from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.bus.app import Bus
    from detent.bus.looking import QueueLook
    from detent.bus.outbox import OutboxCounts


class _Heard(logging.Handler):
    """What a check warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class _WithoutDatabase:
    """An app, or its unit of work, whose database is not asked."""

    def __init__(self, part: Any, **instead: Any) -> None:
        self._part = part
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def _check(app: Bus) -> None:
    """Check an app whose database need not be there yet: then all the rest."""
    from detent.bus.checks import check
    from detent.bus.looking import NotMade

    try:
        check(app)
    except NotMade as error:
        logging.getLogger("detent.bus").warning("%s, so it was not checked: the app does that when it starts", error)
        unit = _WithoutDatabase(app.unit_of_work, check=lambda _transport: None)
        check(cast("Bus", _WithoutDatabase(app, unit_of_work=unit)))


def checked(app: Bus) -> tuple[str | None, list[str]]:
    """What is wrong with an app, and what it is warned of."""
    heard, logger = _Heard(), logging.getLogger("detent.bus")
    before = logger.propagate
    logger.addHandler(heard)
    logger.propagate = False
    try:
        _check(app)
    except Invalid as error:
        return str(error), heard.said
    finally:
        logger.removeHandler(heard)
        logger.propagate = before
    return None, heard.said


def outbox_counts(app: Bus) -> OutboxCounts | str | None:
    """What is in the outbox, or why that cannot be said."""
    from detent.bus.looking import opened_outbox

    if app.outbox is None:
        return None
    try:
        with opened_outbox(app) as outbox:
            return outbox.counts()
    except Exception as error:  # noqa: BLE001 - whatever the database says, also that there is no such table yet
        return f"{type(error).__name__}: {error}".splitlines()[0]


def print_ascii_json(document: dict[str, Any]) -> None:
    """One JSON document, in ASCII: headers and errors of others may have halves of characters in them, which a terminal
    or a pipe does not take."""
    click.echo(json.dumps(document, indent=2))


def fields_of_app(
    app: Bus,
    queue: QueueLook | None,
    outbox: OutboxCounts | str | None,
    problem: str | None,
    warnings: list[str],
) -> dict[str, Any]:
    from detent.bus.looking import described

    unit, config = app.unit_of_work, app.idempotency
    handlers = []
    for one in app.all_handlers:
        messages, parameters = described(one)
        handlers.append({"handler": one.name, "messages": messages, "parameters": parameters, "is_async": one.is_async})
    return {
        "name": app.name,
        "transport": _place(app),
        "queue": None
        if queue is None
        else {key: getattr(queue, key) for key in ("name", "available", "delayed", "in_flight", "failed")},
        "subscriptions": None if queue is None else list(queue.topics),
        "handlers": handlers,
        "send_only": app.send_only,
        "concurrency": app.concurrency,
        "attempts_max": app.retries.attempts_max,
        "unit_of_work": None if unit is None else {"kind": type(unit).__name__, "place": unit.place},
        "tracker": None
        if config is None
        else {
            "kind": type(config.tracker).__name__,
            "place": config.tracker.place,
            "is_transactional": config.tracker.is_transactional,
            "should_stop_invocation": config.should_stop_invocation,
        },
        "outbox": _outbox_fields(outbox),
        "problem": problem,
        "warnings": warnings,
    }


def _outbox_fields(outbox: OutboxCounts | str | None) -> dict[str, Any] | None:
    if outbox is None:
        return None
    return {"error": outbox} if isinstance(outbox, str) else outbox._asdict()


def _place(app: Bus) -> str:
    """Where its queue is. Before the app is open, its transport may not know what the queue is called."""
    place = app.transport.place
    return place + app.name if place.endswith("#") else place


def print_app(app: Bus, queue: QueueLook | None, outbox: OutboxCounts | str | None) -> None:
    from detent.bus.looking import described, url_of

    unit, config = app.unit_of_work, app.idempotency
    if queue is not None:
        held = (
            f"{queue.available} available, {queue.delayed} delayed, {queue.in_flight} in flight, {queue.failed} failed"
        )
        subscribed = ", ".join(queue.topics) or "nothing"
    else:
        held = "not made yet" if url_of(app) is not None else "not shown for this transport"
        subscribed = "-"
    tracker = "none: a message that is delivered again is handled again"
    if app.settles_itself:
        tracker = "the queue itself: messages are acknowledged with the commit"
    if config is not None:
        place = config.tracker.place or "the handlers' own transaction"
        then = "skipped" if config.should_stop_invocation else "handled, with context.repeated"
        tracker = f"{type(config.tracker).__name__} in {place}; repeated messages are {then}"
    print_fields(
        {
            "name": app.name,
            "transport": line_text(_place(app)),
            "queue": held,
            "subscribed to": subscribed,
            "attempts": f"up to {app.retries.attempts_max}",
            "at once": str(app.concurrency),
            "unit of work": "none" if unit is None else f"{type(unit).__name__} {line_text(unit.place or '')}".strip(),
            "tracker": line_text(tracker),
            "outbox": _outbox_text(app, outbox),
        }
    )
    if app.all_handlers:
        click.echo()
        rows = []
        for one in app.all_handlers:
            messages, parameters = described(one)
            rows.append([", ".join(messages), f"{'async ' if one.is_async else ''}{one.name}", ", ".join(parameters)])
        print_table(["messages", "handler", "parameters"], rows)


def _outbox_text(app: Bus, outbox: OutboxCounts | str | None) -> str:
    if app.outbox is None:
        return "none"
    kind = type(app.outbox).__name__
    if outbox is None or isinstance(outbox, str):
        why = f" ({line_text(outbox)})" if outbox else ""
        return f"{kind}, which cannot be looked into{why}; the app makes its tables when it starts"
    return f"{kind}: {counts_text(outbox)}"


def counts_text(counts: OutboxCounts) -> str:
    oldest = f", the oldest for {age_text(round(counts.oldest_s * 1000))}" if counts.pending else ""
    return f"{counts.pending} pending{oldest}, {counts.failed} failed"
