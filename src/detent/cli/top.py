"""`detent top`: queues, journals and tasks as they are now and how fast they go, on a screen that is kept up to date.

A look takes a sample of the store (`_samples.py`); the screen draws the last one, and a key changes what is drawn or
what the next look asks for. All of it is done in one thread: between two looks it waits for a key.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from detent.cli._common import listing, open_for_writing, prefix_option, store_options, takes_store
from detent.cli._output import line_text, print_json
from detent.errors import Unavailable

if TYPE_CHECKING:
    from detent.cli._samples import Sample, Sampler, SortKey

INTERVAL_MIN_S: Final = 0.2
"""A look is a few transactions and a read of each journal; more of them would show up in what they measure."""

FRAME_LINES: Final = 2
"""The line above the tables and the one below them."""

HEAD_LINES: Final = 2
"""Of each table: its heads, and an empty line behind it."""

ROWS_MIN: Final = 3
"""Rows of a table on a screen that has no room for more."""

_SORT_KEYS: Final = ("rate", "depth", "age", "failed", "name")
_SECTIONS: Final = ("queue", "journal", "task")

KEYS: Final = "q quit  s sort  / filter  p pause  j k scroll  1 2 3 all"


@click.command(short_help="Show what moves in a store, live.")
@takes_store()
@click.option("--interval", default=2.0, show_default=True, type=click.FloatRange(INTERVAL_MIN_S), metavar="SECONDS",
              help="How often to look.")  # fmt: skip
@click.option(
    "--sort", "key", type=click.Choice(_SORT_KEYS), default="rate", show_default=True, help="What comes first."
)
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print what there is, and end.")
@prefix_option
@store_options
def top(url: str, interval: float, key: SortKey, once: bool, prefix: str, force: bool, as_json: bool) -> None:
    """Show what moves in a store: queues, journals and tasks, with rates, depths and ages, until you press q.

    IN/S and OUT/S are messages a second since the last look: routed to a queue and acknowledged, committed to a
    journal. WAITING are messages that are available, delayed or blocked; AGE is how long the oldest available one has
    waited, IDLE how long ago a journal changed. Tasks are consumers, graphs, pipelines and bridges; apps and workers
    show as their queues. Of very many queues it shows 500, of journals the first 100 by name: --prefix chooses others.

    \b
    Keys:
      s      sort by the next of: rate, depth, age, failed, name
      /      show those whose names begin with what you type; Enter ends it
      p      pause, and go on
      j k    scroll down and up, as the arrows do
      1 2 3  queues, journals or tasks alone; the same key again shows all
      q      quit

    It looks at a store through its owner or a server, and is the owner itself if there is none. Without a terminal,
    or with --once, it prints tables and ends; with --json a document, without --once one a line until Ctrl-C.

    \b
    Examples:
      detent top file:./data
      detent top https://store:7410 --sort age
      detent top file:./data --once --json
    """
    from detent.cli._samples import Sampler

    with open_for_writing(url, force=force) as store, listing("queue info NAME", "/v1/queues"):
        sampler = Sampler(store)
        is_screen = not as_json and not once and sys.stdin.isatty() and sys.stdout.isatty()
        if is_screen:
            with _Screen(sampler, _Wanted(prefix, key), interval) as screen:
                screen.run()
        elif as_json and not once:
            _print_lines(sampler, prefix, key, interval)
        else:
            sampler.sample(prefix, key)
            time.sleep(interval)
            _print(sampler.sample(prefix, key), as_json=as_json)


def _print_lines(sampler: Sampler, prefix: str, key: SortKey, interval: float) -> None:
    from detent.cli._messages import encode_line

    while True:
        sys.stdout.buffer.write(encode_line(sampler.sample(prefix, key).as_json()))
        sys.stdout.buffer.flush()
        time.sleep(interval)


def _print(sample: Sample, *, as_json: bool) -> None:
    from detent.cli._output import print_table
    from detent.cli._samples import COLUMNS, SPARE, cells_of

    if as_json:
        print_json(sample.as_json())
        return
    for number, section in enumerate(_SECTIONS):
        if number:
            click.echo()
        rows = [list(map(line_text, cells_of(row))) for row in sample.of(section)]
        print_table(COLUMNS[section], rows, spare=SPARE[section])


# -- the screen -----------------------------------------------------------------------------------------------------


@dataclass
class _Wanted:
    """What the person wants to see."""

    prefix: str
    key: SortKey
    section: str = ""
    """The kind that is shown alone; empty for all."""

    paused: bool = False
    scrolled: int = 0
    typing: str | None = None
    """What was typed of a filter; None while none is."""

    is_over: bool = False

    def press(self, key: str) -> bool:
        """A key was pressed; whether to look again at once."""
        if self.typing is not None:
            return self._type(key)
        if key in {"q", "\x03", "\x04"}:
            self.is_over = True
        elif key == "p":
            self.paused = not self.paused
            return not self.paused
        elif key == "s":
            self.key = _SORT_KEYS[(_SORT_KEYS.index(self.key) + 1) % len(_SORT_KEYS)]
            return True
        elif key == "/":
            self.typing = ""
        elif key in {"j", DOWN}:
            self.scrolled += 1
        elif key in {"k", UP}:
            self.scrolled = max(0, self.scrolled - 1)
        elif key in {"1", "2", "3"}:
            section = _SECTIONS[int(key) - 1]
            self.section = "" if self.section == section else section
            self.scrolled = 0
        return False

    def _type(self, key: str) -> bool:
        assert self.typing is not None
        if key in {"\r", "\n"}:
            self.prefix, self.typing, self.scrolled = self.typing, None, 0
            return True
        if key in {"\x1b", "\x03"}:
            self.typing = None
        elif key in {"\x7f", "\b"}:
            self.typing = self.typing[:-1]
        elif key.isprintable():
            self.typing += key
        return False


UP, DOWN = "\x1b[A", "\x1b[B"
_ARROWS: Final = {"\x1bOA": UP, "\x1bOB": DOWN}


class _Screen:
    """The terminal while it is ours: its whole screen, and its keys as they are pressed."""

    def __init__(self, sampler: Sampler, wanted: _Wanted, interval: float) -> None:
        from rich.console import Console
        from rich.live import Live

        self._sampler = sampler
        self._wanted = wanted
        self._interval = interval
        self._console = Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._sample: Sample | None = None
        self._trouble = ""
        self._keys = _raw_keys()

    def __enter__(self) -> _Screen:
        self._keys.__enter__()
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._live.__exit__(*error)
        finally:
            self._keys.__exit__(*error)

    def run(self) -> None:
        """Look and draw until the person has had enough."""
        due = 0.0
        while not self._wanted.is_over:
            if not self._wanted.paused and time.monotonic() >= due:
                self._look()
                due = time.monotonic() + self._interval
            self._draw()
            wait_s = self._interval if self._wanted.paused else max(0.0, due - time.monotonic())
            for key in _pressed(wait_s):
                if self._wanted.press(key):
                    due = 0.0

    def _look(self) -> None:
        try:
            self._sample = self._sampler.sample(self._wanted.prefix, self._wanted.key)
            self._trouble = ""
        except (Unavailable, OSError) as error:  # the store comes back, or the person presses q
            self._trouble = str(error)

    def _draw(self) -> None:
        from rich.console import Group

        width, height = self._console.size
        self._live.update(Group(*self._lines(width, height)), refresh=True)

    def _lines(self, width: int, height: int) -> Iterator[Any]:
        from rich.text import Text

        yield Text(self._headline()[:width], style="bold")
        sample = self._sample
        if sample is not None:
            shown = [one for one in _SECTIONS if self._wanted.section in {"", one} and sample.of(one)]
            room = height - FRAME_LINES - HEAD_LINES * len(shown)
            sizes = _shared(room, [len(sample.of(one)) for one in shown])
            for section, size in zip(shown, sizes, strict=True):
                yield self._table(sample, section, size, width)
                yield Text("")
            if not shown:
                yield Text(
                    "nothing here yet" + (f" begins with {self._wanted.prefix!r}" if self._wanted.prefix else "")
                )
        typing = self._wanted.typing
        yield Text((f"names that begin with: {typing}_" if typing is not None else KEYS)[:width], style="dim")

    def _headline(self) -> str:
        wanted, sample = self._wanted, self._sample
        if self._trouble:
            return line_text(f"cannot look now: {self._trouble}")
        counts = "" if sample is None else f"{sample.queues:,} queues, {sample.available:,} available  "
        named = f"  names {wanted.prefix}*" if wanted.prefix else ""
        return line_text(f"detent top  {counts}by {wanted.key}{named}{'  PAUSED' if wanted.paused else ''}")

    def _table(self, sample: Sample, section: str, size: int, width: int) -> Any:
        from rich.text import Text

        from detent.cli._samples import COLUMNS, SPARE, WORDS, cells_of
        from detent.cli._views import state_style
        from detent.grid import Grid, columns_kept

        rows = sample.of(section)
        first = min(self._wanted.scrolled, max(0, len(rows) - size))
        heads = COLUMNS[section]
        cells = [list(map(line_text, cells_of(row))) for row in rows[first : first + size]]
        kept = columns_kept(heads, cells, width, SPARE[section])
        styled = [
            [Text(row[at], style=state_style(row[at])) if heads[at] == "state" else row[at] for at in kept]
            for row in cells
        ]
        names = [heads[at] for at in kept]
        return Grid(names, styled, right=[name for name in names if name not in WORDS], is_plain=True)


def _shared(room: int, wanted: Sequence[int]) -> list[int]:
    """How many rows each table gets: what it has, if there is room, and else about as many as the others."""
    left, sizes = room, dict.fromkeys(range(len(wanted)), 0)
    waiting = sorted(sizes, key=lambda index: wanted[index])
    for place, index in enumerate(waiting):
        sizes[index] = max(min(wanted[index], left // (len(waiting) - place)), min(wanted[index], ROWS_MIN))
        left -= sizes[index]
    return list(sizes.values())


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Each key as it is pressed, and not shown; Ctrl-C goes on ending the command."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(wait_s: float) -> list[str]:
    """The keys that were pressed, waiting for the first one; none after so long."""
    descriptor = sys.stdin.fileno()
    ready, _, _ = select.select([descriptor], [], [], wait_s)
    if not ready:
        return []
    text = os.read(descriptor, 1024).decode(errors="replace")
    if not text:
        return ["q"]  # the terminal has gone
    if text in {UP, DOWN, *_ARROWS}:
        return [_ARROWS.get(text, text)]
    return list(text)
