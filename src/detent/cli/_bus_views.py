"""Views of apps that run: a status line on a terminal, lines in a log, JSON for programs."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from detent.cli._output import line_text
from detent.cli._views import JsonLines, Lines, LiveScreen

if TYPE_CHECKING:
    from detent.bus.app import Bus
    from detent.bus.declared import Outcome
    from detent.bus.envelope import Incoming
    from detent.bus.outbox import OutboxCounts

COUNTED: Final = ("handled", "repeated", "retried", "given up", "left")
"""What becomes of deliveries, as `Outcome` calls it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line."""

    kind: str
    app: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"event": self.kind, **({"app": self.app} if self.app else {}), **self.fields}


class Tally:
    """Counts what became of the deliveries of some apps, and tells of those that failed."""

    def __init__(self, buses: Sequence[Bus], view: View) -> None:
        self._buses = buses
        self._view = view
        self._counts: dict[str, Counter[str]] = {bus.name: Counter() for bus in buses}
        self._lock = threading.Lock()

    def see(self, bus: Bus, incoming: Incoming, outcome: Outcome) -> None:
        """Something became of a delivery. For any thread."""
        with self._lock:
            self._counts[bus.name][outcome.value] += 1
        if outcome.value in _FAILED:
            self._view.tell(_failure(bus, incoming, outcome))

    def counts(self, bus: Bus) -> dict[str, int]:
        """What became of an app's deliveries so far."""
        with self._lock:
            return {name: self._counts[bus.name][name] for name in COUNTED}

    def rows(self) -> list[tuple[str, dict[str, int | None]]]:
        """The apps, with what waits in their outboxes: None where that cannot be seen now."""
        return [
            (bus.name, {**self.counts(bus), **({} if bus.outbox is None else {"outbox": _pending(bus)})})
            for bus in self._buses
        ]


def _pending(bus: Bus) -> int | None:
    counts = outbox_of(bus)
    return None if counts is None else counts.pending


def outbox_of(bus: Bus) -> OutboxCounts | None:
    """What is in an app's outbox; None where it cannot be seen now."""
    from detent.bus.looking import OutboxLook

    try:
        return OutboxLook(bus).counts()
    except Exception as error:  # noqa: BLE001 - the database is away: the forwarder says so, and this is a look only
        logging.getLogger("detent.cli").info("the outbox of %r cannot be seen now: %s", bus.name, error)
        return None


_FAILED: Final = ("retried", "given up", "left")


def _failure(bus: Bus, incoming: Incoming, outcome: Outcome) -> Notice:
    from detent.bus.envelope import TYPE
    from detent.bus.observing import id_of
    from detent.queue.message import reason_of

    reason = "" if incoming.error is None else getattr(incoming.error, "reason", None) or reason_of(incoming.error)
    named = f"{incoming.headers.get(TYPE) or 'message'} {id_of(incoming)}"
    said = {
        "retried": f"attempt {incoming.attempts} at {named} failed, and it is tried again: {reason}",
        "given up": f"gave up {named} after attempt {incoming.attempts}: {reason}",
        "left": f"left {named} to its lease: {reason}",
    }
    fields = {
        "message": id_of(incoming),
        "type": incoming.headers.get(TYPE),
        "attempts": incoming.attempts,
        "reason": reason,
    }
    return Notice(outcome.value.replace(" ", "_"), bus.name, said[outcome.value], fields)


# -- views ----------------------------------------------------------------------------------------------------------


class View(Protocol):
    """Shows what happens. `tell` is called from many threads."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, notice: Notice) -> None:
        """Something happened."""

    def show(self, tally: Tally) -> None:
        """A moment has passed."""


def view_of(*, as_json: bool) -> View:
    """The view that suits the reader."""
    if as_json:
        return JsonView()
    return LiveView() if sys.stderr.isatty() else LineView()


class JsonView(JsonLines):
    """An object a line: what happens, and now and then how many messages were handled."""

    def tell(self, notice: Notice) -> None:
        """Print it. This may be the thread of an app."""
        self.say_elsewhere(notice.as_json())

    def show(self, tally: Tally) -> None:
        """Print a status, every few seconds."""
        self.check_read()
        if self.is_status_due():
            self.say({"event": "status", "apps": fields_of(tally)})


class LineView(Lines):
    """A line for each thing that happens, in a log or a pipe."""

    def tell(self, notice: Notice) -> None:
        """Print it. This may be the thread of an app."""
        self.say_elsewhere(line_of(notice))

    def show(self, tally: Tally) -> None:
        """Nothing: numbers that are printed again and again are no log."""
        del tally
        self.check_read()


class LiveView(LiveScreen):
    """A status line for each app that is kept up to date, under what happens."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = 0.0

    def tell(self, notice: Notice) -> None:
        """Print it above the status."""
        from rich.text import Text

        with self._lock:
            self._live.console.print(Text(line_of(notice)))

    def show(self, tally: Tally) -> None:
        """Show how it stands, about once a second."""
        from rich.text import Text

        if time.monotonic() - self._shown < 1:
            return
        self._shown = time.monotonic()
        lines = [f"{name}: {status_of(counts)}" for name, counts in tally.rows()]
        with self._lock:
            self._live.update(Text("\n".join(lines)), refresh=True)


def line_of(notice: Notice) -> str:
    """What happened, in a line."""
    return line_text(f"{notice.app}: {notice.text}" if notice.app else notice.text)


def status_of(counts: dict[str, int | None]) -> str:
    """Numbers in a line; those that are hardly ever anything but 0 only if they are."""
    shown = {name: count for name, count in counts.items() if count or name in ("handled", "outbox")}
    named = {"outbox": "in the outbox"}
    return ", ".join(
        f"{'?' if count is None else f'{count:,}'} {named.get(name, name)}" for name, count in shown.items()
    )


def fields_of(tally: Tally) -> list[dict[str, Any]]:
    """The apps for programs."""
    return [
        {"app": name, **{key.replace(" ", "_"): count for key, count in counts.items()}}
        for name, counts in tally.rows()
    ]
