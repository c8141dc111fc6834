"""Filters that Spark hands to a batch read: journals and offsets narrow the plan, times what a task passes on."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from detent.spark.ranges import Range

_COMPARISONS: Final = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_NEVER_NULL: Final = frozenset({"journal", "offset", "published_at", "body"})


class Pushed:
    """The filters that were taken. All of them hold for every row that is read."""

    def __init__(self) -> None:
        self._journals: set[str] | None = None
        self._first = 0
        self._end: int | None = None
        self.times: list[tuple[str, datetime]] = []

    def take(self, one: Filter) -> bool:
        """Take a filter if it can be kept exactly; Spark applies the others itself."""
        attribute: Any = getattr(one, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else None
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        if column == "journal":
            return self._take_journal(one)
        if column == "offset":
            return self._take_offset(one)
        return column == "published_at" and self._take_time(one)

    def _take_journal(self, one: Filter) -> bool:
        if isinstance(one, EqualTo):
            names = {one.value}
        elif isinstance(one, In):
            names = set(one.value)
        else:
            return False
        self._journals = names if self._journals is None else self._journals & names
        return True

    def _take_offset(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if not isinstance(value, int) or type(one) not in _COMPARISONS:
            return False
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._first = max(self._first, value + isinstance(one, GreaterThan))
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            end = value + (not isinstance(one, LessThan))
            self._end = end if self._end is None else min(self._end, end)
        return True

    def _take_time(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if not isinstance(value, datetime) or type(one) not in _COMPARISONS:
            return False
        self.times.append((_COMPARISONS[type(one)], value.astimezone()))
        return True

    def narrow(self, ranges: list[Range]) -> list[Range]:
        """The parts of ranges that can hold a row."""
        found = []
        for journal, start, end in ranges:
            if self._journals is not None and journal not in self._journals:
                continue
            first = max(start, self._first)
            last = end if self._end is None else min(end, self._end)
            if first < last:
                found.append(Range(journal, first, last))
        return found

    def keep(self, rows: Any) -> Any:
        """The rows of a batch whose times are wanted. Times do not rise with offsets, so every row is looked at."""
        mask: Any = None
        for comparison, time in self.times:
            found = pc.call_function(
                comparison, [rows.column("published_at"), pa.scalar(time, rows.schema.field("published_at").type)]
            )
            mask = found if mask is None else pc.and_(mask, found)
        return rows if mask is None else rows.filter(mask)
