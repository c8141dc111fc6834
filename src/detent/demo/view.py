"""A run while it goes on: a live table on a terminal, lines elsewhere. Both on stderr; stdout is for the outcome."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import Any, Final, Self

from detent.demo.meter import Counts, Sample
from detent.demo.plan import Plan

RATE_S: Final = 3.0
"""The rate shown is that of the last seconds: several batches of Spark."""

REFRESHES_A_SECOND: Final = 4
NOTES_SHOWN: Final = 8
LINE_S: Final = 5.0
"""How often a line says how far the run is."""

STAGES: Final = {"placed": "journal orders", "split": "journals paid, rejected", "stored": "Delta table paid"}


def rate_of(samples: list[Sample], stage: str) -> float:
    """How many orders a second came to a stage lately."""
    last = samples[-1]
    since = next((one for one in reversed(samples) if last.at - one.at >= RATE_S), samples[0])
    passed = last.at - since.at
    return (getattr(last.counts, stage) - getattr(since.counts, stage)) / passed if passed else 0.0


def line_of(counts: Counts) -> str:
    """How far a run is, in a line."""
    return ", ".join(f"{getattr(counts, stage):,} in {name}" for stage, name in STAGES.items())


class LineView:
    """Lines for a log or a pipe."""

    def __init__(self) -> None:
        self._next_at = LINE_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def tell(self, at: float, text: str) -> None:
        """Something happened."""
        print(f"{at:6.1f} s  {text}", file=sys.stderr, flush=True)

    def show(self, samples: list[Sample], kills: int) -> None:
        """A line now and then."""
        del kills
        last = samples[-1]
        if last.at >= self._next_at:
            self._next_at = (math.floor(last.at / LINE_S) + 1) * LINE_S
            self.tell(last.at, line_of(last.counts))


class LiveView:
    """A table that is kept up to date, with the latest notes under it."""

    def __init__(self, plan: Plan) -> None:
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
        self._notes = [*self._notes, f"{at:6.1f} s  {text}"][-NOTES_SHOWN:]

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
        for column in ("", "orders", "", "a second"):
            table.add_column(column, justify="right" if column else "left")
        for stage, name in STAGES.items() if self._samples else ():
            counts = self._samples[-1].counts
            count = getattr(counts, stage)
            whole = max(1, counts.paid if stage == "stored" else self._plan.messages)
            rate = rate_of(self._samples, stage)
            bar = ProgressBar(total=whole, completed=min(count, whole), width=30)
            table.add_row(Text(name), f"{count:,}", bar, f"{rate:,.0f}")
        return Group(table, *map(Text, self._notes))
