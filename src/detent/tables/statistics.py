"""What a table's log says of a data file, so that readers can pass it over: rows, nulls, bounds of columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

STATISTICS_TEXT_MAX: Final = 64
"""Texts of up to so many characters are given as bounds of their column; longer ones would have to be rounded."""


def statistics(table: Any, metadata: Any) -> dict[str, Any]:
    """What a table's log says of a file, so that readers can pass it over: rows, nulls, and the bounds of columns whose
    values can be said exactly, or rounded outwards."""
    nulls = {name: table.column(name).null_count for name in table.column_names}
    return _statistics(metadata, nulls)


def footer_statistics(metadata: Any) -> dict[str, Any]:
    """The same of a file that another program wrote, by what its footer says."""
    nulls: dict[str, int] = {}
    silent: set[str] = set()
    for name, column in _columns(metadata):
        stats = column.statistics
        if stats is None or not stats.has_null_count or "." in name:
            silent.add(name)
        else:
            nulls[name] = nulls.get(name, 0) + stats.null_count
    return _statistics(metadata, {name: count for name, count in nulls.items() if name not in silent})


def _statistics(metadata: Any, nulls: dict[str, int]) -> dict[str, Any]:
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name, (low, high) in _bounds(metadata).items():
        bounds = _outwards(low, high)
        if bounds is not None and "." not in name:
            least[name], most[name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _columns(metadata: Any) -> Iterator[tuple[str, Any]]:
    """The columns of all groups of rows, by name."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            yield column.path_in_schema, column


def _bounds(metadata: Any) -> dict[str, tuple[Any, Any]]:
    """The bounds of the columns that are not nested and have them in every group of rows with a value."""
    found: dict[str, tuple[Any, Any]] = {}
    unknown: set[str] = set()
    for name, column in _columns(metadata):
        stats = column.statistics
        if stats is not None and stats.null_count == column.num_values:
            continue
        if stats is None or not stats.has_min_max:
            unknown.add(name)
            continue
        low, high = found.get(name, (stats.min, stats.max))
        found[name] = min(low, stats.min), max(high, stats.max)
    return {name: bounds for name, bounds in found.items() if name not in unknown}


def _outwards(low: Any, high: Any) -> tuple[Any, Any] | None:
    """Bounds as a log has them; None for kinds of values that are left out."""
    if isinstance(low, bool) or type(low) is not type(high):
        return None
    if isinstance(low, datetime):
        return _instant(low, up=False), _instant(high, up=True)
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, str):
        return (low, high) if max(len(low), len(high)) <= STATISTICS_TEXT_MAX else None
    return (low, high) if isinstance(low, int) else None


def _instant(time: datetime, *, up: bool) -> str:
    """A time in whole milliseconds, which is what a log has."""
    rest = timedelta(microseconds=time.microsecond % 1000)
    whole = time - rest + timedelta(milliseconds=1 if up and rest else 0)
    text = whole.replace(tzinfo=None) if whole.tzinfo is None else whole.astimezone(UTC).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds") + ("" if whole.tzinfo is None else "Z")
