"""Views of a graph that runs: a live table on a terminal, lines in a log, JSON for programs."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from detent.cli._logs import logs_shown
from detent.cli._output import line_text
from detent.cli._views import JsonLines, Lines, LiveScreen

if TYPE_CHECKING:
    from detent.processor.live_graph import LiveGraph
    from detent.processor.status import ProcessorStatus

NOTES_SHOWN: Final = 5
"""The latest notes under the table; older ones have scrolled away in any case."""

ROWS_SHOWN: Final = 40
"""Processors in a live table: more do not fit on a screen, and a table that scrolls cannot be read."""

COUNTED: Final = ("outputs", "errors", "nils")
"""What may come of an input set."""

COLUMNS: Final = ("processor", "status", "lag", *COUNTED, "restarts")
_TEXT: Final = frozenset({"processor", "status"})
_COLOURS: Final = {"running": "green", "standby": "cyan", "fenced": "yellow", "failed": "red"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A processor at one moment."""

    processor: str
    status: str
    lag: int
    """Messages that it has not read."""
    left: int
    """Input sets that it could take: of a join, as many as the shortest input has."""
    outputs: int
    errors: int
    nils: int
    restarts: int

    @property
    def done(self) -> int:
        """Input sets that it has taken."""
        return self.outputs + self.errors + self.nils


class Tally:
    """What is told of the processors of this process, and how often each had to start over."""

    def __init__(self, view: View, names: Sequence[str], *, silent: Sequence[str] = ()) -> None:
        self._view = view
        self._names = names
        self._silent = silent
        self._lock = threading.Lock()
        self.restarts: Counter[str] = Counter()
        self.told: dict[str, str] = {}
        """What was last told of each."""

    def see(self, what: str, processor: str, more: str) -> None:
        """Something has happened to a processor. For any thread."""
        with self._lock:
            self.told[processor] = what
            self.restarts[processor] += what == "failed"
        if what in self._silent:
            return
        said = {
            "running": "running",
            "standby": f"standing by: {more}",
            "fenced": f"replaced, or reset: {more}",
            "failed": f"failed, and starts over: {more}",
        }
        self._view.tell(Notice(what, processor, said.get(what, f"{what} {more}"), {"text": more} if more else {}))

    def stopped(self) -> None:
        """All of them have ended."""
        with self._lock:
            self.told = dict.fromkeys(self._names, "stopped")

    def look(self, live: LiveGraph) -> list[Seen]:
        """The processors as they are now."""
        found = {one.name: one for one in live.status(latency=False)}
        return [self._seen(live, found[name]) for name in self._names]

    def _seen(self, live: LiveGraph, one: ProcessorStatus) -> Seen:
        lags = [each.lag for each in one.inputs]
        joins = live.graph.processor(one.name).mode == "zip"
        left = (min(lags) if joins else sum(lags)) if lags else 0
        status = self.told.get(one.name) or one.status
        return Seen(one.name, status, one.lag, left, one.outputs, one.errors, one.nils, self.restarts[one.name])


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line."""

    kind: str
    processor: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"event": self.kind, **({"processor": self.processor} if self.processor else {}), **self.fields}


def line_of(notice: Notice) -> str:
    """What happened, in a line."""
    return line_text(f"{notice.processor}: {notice.text}" if notice.processor else notice.text)


def _stopped(one: Seen) -> Notice:
    counts = {name: getattr(one, name) for name in COUNTED}
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return Notice("stopped", one.processor, f"stopped: {said}", counts)


# -- views ------------------------------------------------------------------------------------------------------------


class View(Protocol):
    """Shows what happens. `tell` is called from many threads."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, notice: Notice) -> None:
        """Something happened."""

    def show(self, live: LiveGraph, tally: Tally) -> None:
        """A moment has passed."""

    def end(self, now: Sequence[Seen], since: Sequence[Seen]) -> None:
        """All have stopped: how they are, and what came of input sets since the start."""


def view_of(graph: str, *, as_json: bool) -> View:
    """The view that suits the reader."""
    if as_json:
        return JsonView()
    return LiveView(graph) if sys.stderr.isatty() else LineView()


class JsonView(JsonLines):
    """An object a line: what happens, and now and then how far the processors are."""

    def tell(self, notice: Notice) -> None:
        """Print it. This may be the thread of a processor."""
        self.say_elsewhere(notice.as_json())

    def show(self, live: LiveGraph, tally: Tally) -> None:
        """Print a status, every few seconds."""
        self.check_read()
        if self.is_status_due():
            self.say({"event": "status", "processors": fields_of(tally.look(live))})

    def end(self, now: Sequence[Seen], since: Sequence[Seen]) -> None:
        """Print what each has done."""
        del now
        for one in since:
            self.tell(_stopped(one))


class LineView(Lines):
    """A line for each thing that happens, in a log or a pipe."""

    def tell(self, notice: Notice) -> None:
        """Print it. This may be the thread of a processor."""
        self.say_elsewhere(line_of(notice))

    def show(self, live: LiveGraph, tally: Tally) -> None:
        """Nothing: numbers that are printed again and again are no log."""
        del live, tally
        self.check_read()

    def end(self, now: Sequence[Seen], since: Sequence[Seen]) -> None:
        """Print what each has done."""
        del now
        for one in since:
            self.tell(_stopped(one))


class LiveView(LiveScreen):
    """A table that is kept up to date, with the latest notes under it."""

    def __init__(self, graph: str) -> None:
        super().__init__()
        self._graph = graph
        self._notes: list[str] = []
        self._seen: Sequence[Seen] = ()
        self._looked = 0.0

    def tell(self, notice: Notice) -> None:
        """Note it under the table."""
        with self._lock:
            self._notes = [*self._notes, line_of(notice)][-NOTES_SHOWN:]
            self._draw()

    def show(self, live: LiveGraph, tally: Tally) -> None:
        """Show how it stands, about once a second."""
        if time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        self._see(tally.look(live))

    def end(self, now: Sequence[Seen], since: Sequence[Seen]) -> None:
        """Show it a last time: the table stays."""
        del since
        self._see(now)

    def _see(self, seen: Sequence[Seen]) -> None:
        with self._lock:
            self._seen = seen
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        parts = [table_of(self._graph, self._seen)] if self._seen else []
        self._live.update(Group(*parts, *map(Text, self._notes)), refresh=True)


def table_of(graph: str, seen: Sequence[Seen]) -> Any:
    """The processors as a table."""
    from rich.text import Text

    from detent.grid import Grid

    hidden = f", {len(seen) - ROWS_SHOWN} processors not shown" if len(seen) > ROWS_SHOWN else ""
    title = f"graph {graph}: lag {sum(one.lag for one in seen):,}{hidden}"
    right = [column for column in COLUMNS if column not in _TEXT]
    rows: list[list[str | Text]] = [
        [
            one.processor,
            Text(one.status, style=_COLOURS.get(one.status, "")),
            *(f"{getattr(one, column):,}" for column in right),
        ]
        for one in seen[:ROWS_SHOWN]
    ]
    return Grid(COLUMNS, rows, right=right, title=title)


def fields_of(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """The processors for programs."""
    return [asdict(one) for one in seen]


# -- logs -------------------------------------------------------------------------------------------------------------


def logs(view: View, *, verbose: bool, as_json: bool) -> AbstractContextManager[None]:
    """What a graph says in its log. What is said there of a processor that failed is told already."""

    def tell(text: str) -> None:
        view.tell(Notice("warning", text=text, fields={"text": text}))

    def is_told(said: logging.LogRecord) -> bool:
        return said.module == "life" and bool(said.exc_info)

    return logs_shown(tell, is_told, verbose=verbose, as_json=as_json)
