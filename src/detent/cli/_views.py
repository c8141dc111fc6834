"""The frame in which tasks are shown while they run: JSON for programs, lines in a log, a live screen.

A task says what happens in notices, and how it is in reports. Its kind says which columns the parts of a report have.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self

from detent.cli._logs import Warnings, logs_shown
from detent.cli._output import line_text
from detent.errors import Unavailable
from detent.runtime.report import Report, State

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

STATUS_S: Final = 3.0
"""How often a program is told how a task is."""

DRAW_S: Final = 1.0
"""How often a live screen looks at a task: a look may be a question to a store."""

NOTES_SHOWN: Final = 5
"""The latest notes under the tables; older ones have scrolled away in any case."""

ROWS_SHOWN: Final = 40
"""Parts in a live table: more do not fit on a screen, and a table that scrolls cannot be read."""

_COLOURS: Final = {
    "running": "green", "restoring": "cyan", "starting": "cyan", "idle": "cyan", "standby": "cyan",
    "paused": "yellow", "fenced": "yellow", "waiting": "yellow", "failed": "red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskNotice:
    """Something that happened to a task, or a part of it."""

    event: str
    """What it is called for programs; empty if it is not for them."""

    text: str = ""
    """What it is for people, on one line; empty if there are too many such lines."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    live: Literal["note", "above", "no"] = "note"
    """On a live screen: among the latest notes, for good above what is kept up to date, or not at all."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"event": self.event, **self.fields}


def warning(text: str) -> TaskNotice:
    """What a part of the program warns of by its log."""
    return TaskNotice("warning", text, {"text": text})


class ReportColumn(NamedTuple):
    """A column of the parts of a report."""

    head: str
    cell: Callable[[Report], str]
    is_number: bool = True


def counted(name: str) -> ReportColumn:
    """A column with something that is counted."""
    return ReportColumn(name, lambda part: f"{part.progress.get(name, 0):,}")


def said(name: str, *, is_number: bool = False) -> ReportColumn:
    """A column with what only this kind has."""
    return ReportColumn(name, lambda part: part.about.get(name, "-"), is_number)


LAG: Final = ReportColumn("lag", lambda part: "-" if part.lag is None else f"{part.lag:,}")


def line_of(report: Report) -> str:
    """A task in a line: what it has done, and how much waits."""
    done = [f"{count:,} {name}" for name, count in report.progress.items() if count]
    return ", ".join([*done, *([] if report.lag is None else [f"{report.lag:,} waiting"])]) or str(report.state)


class Look(NamedTuple):
    """How a task is, for when it is to be shown: looking may cost something."""

    title: str
    reports: Callable[[], Sequence[Report]]
    fields: Callable[[], dict[str, Any]]
    """A status for programs."""

    columns: Sequence[ReportColumn] = ()
    """Of the parts, a row each. Without columns each report is a line."""

    line: Callable[[Report], str] = line_of
    first_status_s: float = STATUS_S


class TaskView(Protocol):
    """Shows what happens. `tell` is called by many threads."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, notice: TaskNotice) -> None:
        """Something happened."""

    def show(self, look: Look, *, is_last: bool = False) -> None:
        """A moment has passed; at last, the task has ended."""


def view_of(*, as_json: bool, is_live: bool = True) -> TaskView:
    """The view that suits the reader."""
    if as_json:
        return JsonTaskView()
    return LiveTaskView() if is_live and sys.stderr.isatty() else LineTaskView()


class _Printed:
    """A view that prints, and needs no beginning and no end."""

    _gone: BrokenPipeError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def _write(self, out: IO[str], line: str) -> None:
        """Print it at once, in one write. This may be a thread with other work to do: that the reader has gone is
        raised by `_check_read`."""
        try:
            out.write(f"{line}\n")
            out.flush()
        except BrokenPipeError as error:
            self._gone = error

    def _check_read(self) -> None:
        """Raise what went wrong elsewhere: the reader is gone."""
        if self._gone is not None:
            raise self._gone


class JsonTaskView(_Printed):
    """An object a line, in ASCII: texts of others may have halves of characters in them."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}

    def tell(self, notice: TaskNotice) -> None:
        """Print it."""
        if notice.event:
            self.say(notice.as_json())

    def say(self, document: dict[str, Any]) -> None:
        """Print one object."""
        with self._lock:
            self._write(self._out, json.dumps(document))

    def show(self, look: Look, *, is_last: bool = False) -> None:
        """Print a status, every few seconds."""
        self._check_read()
        now = time.monotonic()
        if not is_last and now >= self._due.setdefault(look.title, now + look.first_status_s):
            self._due[look.title] = now + STATUS_S
            if fields := _seen(look.fields):
                self.say({"event": "status", **fields})


class LineTaskView(_Printed):
    """A line for each thing that happens, in a log or a pipe."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out

    def tell(self, notice: TaskNotice) -> None:
        """Print it. A progress bar moves up what is printed under it, and takes the place of stderr for that."""
        if notice.text:
            self._write(self._out or sys.stderr, line_text(notice.text))

    def show(self, look: Look, *, is_last: bool = False) -> None:
        """Nothing: numbers that are printed again and again are no log."""
        del look, is_last
        self._check_read()


class LiveTaskView:
    """Tables and lines that are kept up to date, with the latest notes under them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._pictures: dict[str, list[Any]] = {}
        self._due: dict[str, float] = {}
        # Drawn when something has changed: a thread that draws by itself would look at tasks while they change.
        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def tell(self, notice: TaskNotice) -> None:
        """Note it under the tables, or print it above them."""
        from rich.text import Text

        if not notice.text or notice.live == "no":
            return
        with self._lock:
            if notice.live == "above":
                self._live.console.print(Text(line_text(notice.text)))
                return
            self._notes = [*self._notes, line_text(notice.text)][-NOTES_SHOWN:]
            self._draw()

    def show(self, look: Look, *, is_last: bool = False) -> None:
        """Show the task, about once a second, and a last time: what is shown then stays."""
        now = time.monotonic()
        if not is_last and now < self._due.get(look.title, 0.0):
            return
        self._due[look.title] = now + DRAW_S
        reports = _seen(look.reports)
        if reports is None:
            return
        with self._lock:
            self._pictures[look.title] = [picture_of(report, look) for report in reports]
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        pictures = [picture for some in self._pictures.values() for picture in some]
        self._live.update(Group(*pictures, *map(Text, self._notes)), refresh=True)


def _seen(look: Callable[[], Any]) -> Any:
    """A look at a task; None if its store is away, which the task says by itself."""
    try:
        return look()
    except BrokenPipeError:
        raise
    except (Unavailable, OSError) as error:
        logging.getLogger("detent.cli").info("a task cannot be seen now: %s", error)
        return None


def picture_of(report: Report, look: Look) -> Any:
    """A task for a live screen: a table of its parts, or a line."""
    from rich.text import Text

    from detent.grid import Grid

    if not look.columns:
        return Text(line_text(f"{report.name}: {look.line(report)}"))
    rows = [[_cell(column, part) for column in look.columns] for part in report.parts[:ROWS_SHOWN]]
    right = [column.head for column in look.columns if column.is_number]
    return Grid([column.head for column in look.columns], rows, right=right, title=title_of(report))


def _cell(column: ReportColumn, part: Report) -> Any:
    from rich.text import Text

    text = line_text(column.cell(part))
    return Text(text, style=state_style(text)) if column.head in {"state", "status"} else text


def state_style(state: str) -> str:
    """The colour of a state, on a terminal that has colours and where NO_COLOR is not set."""
    return _COLOURS.get(state, "")


def title_of(report: Report) -> str:
    """What stands over the table of a task's parts."""
    paused = ", paused" if report.state is State.PAUSED else ""
    lag = "" if report.lag is None else f": lag {report.lag:,}"
    hidden = len(report.parts) - ROWS_SHOWN
    more = f", {hidden} {report.parts[0].kind}s not shown" if hidden > 0 else ""
    return line_text(f"{report.kind} {report.name}{paused}{lag}{more}")


class PartView:
    """The view of one task of several that run in one process: what it says has its title with it."""

    def __init__(self, view: TaskView, title: str) -> None:
        self._view = view
        self._title = title

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, notice: TaskNotice) -> None:
        """Tell it with the task's title."""
        text = notice.text and f"{self._title}: {notice.text}"
        self._view.tell(replace(notice, text=text, fields={"task": self._title, **notice.fields}))

    def show(self, look: Look, *, is_last: bool = False) -> None:
        """Show it among the others."""
        named = look._replace(title=self._title, fields=lambda: {"task": self._title, **look.fields()})
        self._view.show(named, is_last=is_last)


def logs_told(
    view: TaskView, is_told: Callable[[logging.LogRecord], bool], *, verbose: bool, as_json: bool
) -> AbstractContextManager[None]:
    """What parts of the program say in their logs, as notices; what `is_told` in another way is left out."""
    warnings = Warnings(lambda text: view.tell(warning(text)), is_told)
    return logs_shown(warnings, verbose=verbose, as_json=as_json)
