"""Views of a consumer that runs: a live table on a terminal, lines in a log, JSON for programs."""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from detent.cli._consumers import consumer_fields, look, shown_journals, shown_status, total_lag
from detent.cli._output import line_text
from detent.cli._views import JsonLines, Lines, LiveScreen

if TYPE_CHECKING:
    from detent.cli._consumers import Seen
    from detent.consumer.supervisor import Notice
    from detent.store import Store

NOTES_SHOWN = 5
"""The latest notes under the table; older ones have scrolled away in any case."""

ROWS_SHOWN = 40
"""Shards in a live table: more do not fit on a screen, and a table that scrolls cannot be read."""

COLUMNS = ("shard", "journals", "holder", "status", "processed", "lag", "msgs/s")
_TEXT = frozenset({"journals", "holder", "status"})
_COLOURS = {"running": "green", "restoring": "cyan", "starting": "cyan", "paused": "yellow", "failed": "red"}


class View(Protocol):
    """Shows what happens. Its calls come from several threads."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, notice: Notice) -> None:
        """Something happened."""

    def show(self, store: Store) -> None:
        """A second has passed."""


def view_of(name: str, *, as_json: bool) -> View:
    """The view that suits the reader."""
    if as_json:
        return JsonView(name)
    return LiveView(name) if sys.stderr.isatty() else LineView()


class JsonView(JsonLines):
    """An object a line: what happens, and now and then how far the shards are."""

    def __init__(self, name: str, out: IO[str] | None = None) -> None:
        super().__init__(out, first_status_s=0)
        self._name = name

    def tell(self, notice: Notice) -> None:
        """Print it."""
        self.say(notice.as_json())

    def show(self, store: Store) -> None:
        """Print a status, every few seconds."""
        if self.is_status_due():
            self.say({"event": "status", **consumer_fields(look(store, self._name))})


class LineView(Lines):
    """A line for each thing that happens, in a log or a pipe."""

    def tell(self, notice: Notice) -> None:
        """Print it."""
        self.say(line_of(notice))

    def show(self, store: Store) -> None:
        """Nothing: a table that is printed again and again is no log."""


class LiveView(LiveScreen):
    """A table that is kept up to date, with the latest notes under it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._notes: list[str] = []
        self._seen: Seen | None = None
        self._rates = Rates()

    def tell(self, notice: Notice) -> None:
        """Note it under the table. What the application prints goes above it, as it does without a table."""
        from rich.text import Text

        with self._lock:
            if notice.kind == "output":
                self._live.console.print(Text(notice.text))
                return
            self._notes = [*self._notes, line_of(notice)][-NOTES_SHOWN:]
            self._draw()

    def show(self, store: Store) -> None:
        """Show the shards as they are now."""
        seen = look(store, self._name)
        with self._lock:
            self._seen = seen
            self._rates.note(seen, time.monotonic())
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        parts = [] if self._seen is None else [table_of(self._seen, self._rates)]
        self._live.update(Group(*parts, *map(Text, self._notes)), refresh=True)


class Rates:
    """Messages a second of each shard, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, int]] = {}
        self.by_shard: dict[int, float] = {}

    def note(self, seen: Seen, now: float) -> None:
        """The shards as they are at a moment."""
        for shard in seen.info.shards:
            count = sum(shard.processed.values())
            then, before = self._before.get(shard.index, (now, count))
            self.by_shard[shard.index] = max(0, count - before) / (now - then) if now > then else 0.0
            self._before[shard.index] = now, count


def table_of(seen: Seen, rates: Rates) -> Any:
    """The shards as a table."""
    from rich.text import Text

    from detent.grid import Grid

    info = seen.info
    hidden = f", {len(info.shards) - ROWS_SHOWN} shards not shown" if len(info.shards) > ROWS_SHOWN else ""
    paused = ", paused" if info.paused else ""
    rows: list[list[str | Text]] = []
    for shard in info.shards[:ROWS_SHOWN]:
        status = shown_status(seen, shard)
        rows.append(
            [
                str(shard.index),
                shown_journals(shard),
                line_text(shard.holder) or "-",
                Text(status, style=_COLOURS.get(status, "")),
                f"{sum(shard.processed.values()):,}",
                f"{sum(seen.lag[shard.index].values()):,}",
                f"{rates.by_shard.get(shard.index, 0.0):,.0f}",
            ]
        )
    right = [column for column in COLUMNS if column not in _TEXT]
    title = f"consumer {info.name}{paused}: lag {total_lag(seen):,}{hidden}"
    return Grid(COLUMNS, rows, right=right, title=title)


def line_of(notice: Notice) -> str:
    """What happened, in a line."""
    text, who = line_text(notice.text), line_text(notice.member)
    said = {
        "started": f"worker {who} started (process {notice.pid})",
        "died": f"worker {who} died (process {notice.pid}): {text}",
        "taken": f"shard {notice.shard} taken by {who}",
        "released": f"shard {notice.shard} released by {who}",
        "following": f"shard {notice.shard} followed by {who}",
        "failed": f"shard {notice.shard} failed, and is tried again: {text}",
        "fenced": f"shard {notice.shard} taken over from {who}",
        "waiting": f"shard {notice.shard} is waited for: {text}",
        "stopping": "stopping: transactions under way are finished",
    }
    return said.get(notice.kind, f"{notice.kind} {text}".strip())
