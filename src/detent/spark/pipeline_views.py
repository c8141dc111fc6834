"""Views of a running pipeline: a live table on a terminal, lines in a log, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, Any, Final, Self

from detent.spark.stream_state import Event, StreamState

NOTES_SHOWN: Final = 5
"""The latest notes under the table; older ones have scrolled away in any case."""

COLUMNS: Final = ("stream", "state", "in/s", "waiting", "batch", "took", "read up to", "quarantined", "failures")
_TEXT: Final = ("stream", "state", "read up to")
_COLOURS: Final = {"running": "green", "starting": "cyan", "idle": "cyan", "waiting": "yellow", "failed": "red"}
_QUIET: Final = frozenset({"progress", "stopped"})
"""Events that are not worth a line for a person: there are many, or the end of the run shows them."""


class JsonView:
    """An object a line: every event, as it happens."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Print an event, at once: the reader of the pipe waits for it."""
        said: dict[str, Any] = {"event": event.kind}
        if event.stream:
            said["stream"] = event.stream
        if event.text:
            said["text"] = event.text
        print(json.dumps({**said, **event.fields}, ensure_ascii=False), file=self._out, flush=True)

    def show(self, states: Sequence[StreamState]) -> None:
        """Nothing: programs take the events."""


class LineView:
    """A line for what a person wants to know, in a log or a pipe."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Print an event, unless it is one of many."""
        if event.kind not in _QUIET:
            print(line_of(event), file=self._out, flush=True)

    def show(self, states: Sequence[StreamState]) -> None:
        """Nothing: a table that is printed again and again is no log."""


class LiveView:
    """A table that is kept up to date, with the latest notes under it."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._notes: list[str] = []
        self._states: list[StreamState] = []
        # Drawn when the runner says so: a thread that draws by itself would look at streams while they change.
        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def tell(self, event: Event) -> None:
        """Note an event under the table."""
        if event.kind not in _QUIET:
            self._notes = [*self._notes, line_of(event)][-NOTES_SHOWN:]
            self._draw()

    def show(self, states: Sequence[StreamState]) -> None:
        """Show the streams as they are now."""
        self._states = list(states)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        self._live.update(Group(table_of(self._title, self._states), *map(Text, self._notes)), refresh=True)


def table_of(title: str, states: Sequence[StreamState]) -> Any:
    """The streams as a table."""
    from rich.text import Text

    from detent.grid import Grid

    rows: list[list[str | Text]] = []
    for state in states:
        name, phase, *others = cells_of(state)
        rows.append([name, Text(phase, style=_COLOURS.get(state.phase, "")), *others])
    return Grid(COLUMNS, rows, right=[column for column in COLUMNS if column not in _TEXT], title=title)


def cells_of(state: StreamState) -> list[str]:
    """What a stream's row says."""
    return [
        state.name,
        state.phase,
        f"{state.rate:,.0f}",
        "-" if state.lag is None else f"{state.lag:,}",
        "-" if state.batch is None else str(state.batch),
        duration_of(state.batch_ms) if state.batch is not None else "-",
        _places(state),
        f"{state.quarantined:,}" if state.quarantined else "-",
        str(state.failures) if state.failures else "-",
    ]


def _places(state: StreamState) -> str:
    found = [f"{name} {offset:,}" for name, offset in state.offsets.items()]
    found += [f"queue {name} #{at.number}" for name, at in state.assignments.items()]
    return ", ".join(found) or "-"


def duration_of(milliseconds: int) -> str:
    """How long a batch took, for people.

    >>> duration_of(87), duration_of(2_340)
    ('87 ms', '2.3 s')
    """
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def line_of(event: Event) -> str:
    """An event on one line."""
    words = [event.stream + ":" if event.stream else "", event.kind.replace("_", " "), event.text]
    text = " ".join(word for word in words if word)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
