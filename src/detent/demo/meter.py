"""How far a run is: what is in the journals and in the table, seen from outside, without asking the owner."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import detent
from detent.demo.plan import ORDERS, PAID, REJECTED, DemoPlan


class DemoCounts(NamedTuple):
    """How many orders are at each stage."""

    placed: int
    split: int
    paid: int
    stored: int

    @property
    def is_level(self) -> bool:
        """Whether everything that was placed has gone all the way."""
        return self.placed > 0 and self.split >= self.placed and self.stored >= self.paid


NOTHING = DemoCounts(0, 0, 0, 0)


class Sample(NamedTuple):
    """The counts at a time, in seconds from the start."""

    at: float
    counts: DemoCounts


class Meter:
    """Looks at the store as a reader, which needs no owner, and at the table's log."""

    def __init__(self, plan: DemoPlan) -> None:
        self._reader = detent.open(plan.url, role="reader")
        self._table = TableRows(plan.table)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    def read(self) -> DemoCounts:
        """How far everything is now."""
        stored = self._table.count()  # the last stage first: no stage seems ahead of the one before it
        paid, rejected, placed = (self._reader.journal(name).next_offset() for name in (PAID, REJECTED, ORDERS))
        return DemoCounts(placed, paid + rejected, paid, stored)


class TableRows:
    """The rows of a Delta table that only grows, by the entries of its log."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._next = 0
        self._rows = 0

    def count(self) -> int:
        """The rows that are committed."""
        while (entry := self._log / f"{self._next:020}.json").exists():
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            self._rows += sum(json.loads(action["add"]["stats"])["numRecords"] for action in actions if "add" in action)
            self._next += 1
        return self._rows
