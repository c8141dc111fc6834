"""A run while it goes on: a live table on a terminal, lines elsewhere. Both on stderr; stdout is for the outcome."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final, Self

from detent.demo.meter import NOTHING, Sample
from detent.demo.plan import DemoPlan
from detent.demo.story import progress

RATE_S: Final = 3.0
"""The rate shown is that of the last seconds: several batches of Spark."""

REFRESHES_A_SECOND: Final = 4
NOTES_SHOWN: Final = 5
LINE_S: Final = 10.0
"""How often a line says how far the run is, if that has changed."""

QUIET_S: Final = 30.0
"""How often a line says so if nothing has changed, as while Spark starts."""

BAR_WIDTH: Final = 20
INDENT: Final = " " * 10
"""Below the time, where a text has several lines."""

STAGES: Final = {"placed": "journal orders", "split": "journals paid, rejected", "stored": "Delta table paid"}


def rate_of(samples: list[Sample], stage: str) -> float:
    """How many orders a second came to a stage lately."""
    last = samples[-1]
    since = next((one for one in reversed(samples) if last.at - one.at >= RATE_S), samples[0])
    passed = last.at - since.at
    return (getattr(last.counts, stage) - getattr(since.counts, stage)) / passed if passed else 0.0


def told(at: float, text: str) -> str:
    """What happened, and when."""
    return f"{at:6.1f} s  " + text.replace("\n", f"\n{INDENT}")


class DemoLines:
    """Lines for a log or a pipe."""

    def __init__(self, plan: DemoPlan) -> None:
        self._plan = plan
        self._said = NOTHING
        self._said_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def tell(self, at: float, text: str) -> None:
        """Something happened."""
        print(told(at, text), file=sys.stderr, flush=True)

    def show(self, samples: list[Sample], kills: int) -> None:
        """A line now and then: at most every ten seconds, and only every half minute while nothing changes."""
        del kills  # a line has said each of them
        at, counts = samples[-1]
        is_quiet = counts == self._said
        if at - self._said_at >= (QUIET_S if is_quiet else LINE_S):
            self._said, self._said_at = counts, at
            self.tell(at, progress(self._plan, counts, is_quiet=is_quiet))


class DemoScreen:
    """A table that is kept up to date, with the latest notes under it."""

    def __init__(self, plan: DemoPlan) -> None:
        from rich.console import Console
        from rich.live import Live

        self._plan = plan
        self._notes: list[str] = []
        self._samples: list[Sample] = []
        self._kills = 0
        self._live = Live(
            console=Console(stderr=True), refresh_per_second=REFRESHES_A_SECOND, get_renderable=self._rendered
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def tell(self, at: float, text: str) -> None:
        """Something happened."""
        self._notes = [*self._notes, told(at, text)][-NOTES_SHOWN:]

    def show(self, samples: list[Sample], kills: int) -> None:
        """How it is now."""
        self._samples, self._kills = samples, kills

    def _rendered(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        at = self._samples[-1].at if self._samples else 0.0
        title = f"{self._plan.messages:,} orders, {self._kills} of {self._plan.kills} kills, {at:.0f} s"
        table = Table(title=title, title_justify="left")
        for column in ("place", "orders", "", "a second"):
            table.add_column(column, justify="right" if column in ("orders", "a second") else "left")
        for stage, name in STAGES.items() if self._samples else ():
            counts = self._samples[-1].counts
            count = getattr(counts, stage)
            whole = max(1, counts.paid if stage == "stored" else self._plan.messages)
            rate = rate_of(self._samples, stage)
            bar = ProgressBar(total=whole, completed=min(count, whole), width=BAR_WIDTH)
            table.add_row(Text(name), f"{count:,}", bar, f"{rate:,.0f}")
        return Group(table, *map(Text, self._notes))
