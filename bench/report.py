"""The result of a run: a table for people, a JSON list for machines."""

from __future__ import annotations

import json
import os
import platform
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

COLUMNS = ("what", "ours", "other", "ratio", "bar", "ok")


def environment() -> str:
    """What the numbers were measured with, on one line."""
    packages = " ".join(f"{name} {_version(name)}" for name in ("lmdb", "pyarrow", "numpy"))
    return f"Python {platform.python_version()}, {packages}, {os.cpu_count()} CPUs, {platform.system()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def table(results: Iterable[Mapping[str, Any]], width: int | None = None) -> str:
    """The rows as aligned text: each side as its median, with its range below; notes follow by number."""
    width = width or max(100, shutil.get_terminal_size((120, 40)).columns)
    notes: dict[str, int] = {}
    rows = [_cells(result, notes) for result in results]
    fixed = [max([len(name), *(len(line) for row in rows for line in row[name])]) for name in COLUMNS[1:4]]
    bar_width = 34
    what_width = max(24, width - sum(fixed) - bar_width - 6 - 2 * len(COLUMNS))
    widths = dict(zip(COLUMNS, (what_width, *fixed, bar_width, 4), strict=True))
    lines = ["  ".join(name.ljust(widths[name]) for name in COLUMNS).rstrip()]
    lines.append("  ".join("-" * widths[name] for name in COLUMNS))
    for row in rows:
        cells = {name: [part for line in row[name] for part in _wrap(line, widths[name])] for name in COLUMNS}
        for index in range(max(map(len, cells.values()))):
            parts = (cells[name][index] if index < len(cells[name]) else "" for name in COLUMNS)
            lines.append(
                "  ".join(part.ljust(widths[name]) for part, name in zip(parts, COLUMNS, strict=True)).rstrip()
            )
    if notes:
        lines.append("")
    for note, mark in notes.items():
        lines += textwrap.wrap(f"[{mark}] {note}", width, subsequent_indent=" " * 4)
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]


def _cells(result: Mapping[str, Any], notes: dict[str, int]) -> dict[str, list[str]]:
    unit, note = result.get("unit", ""), result.get("note")
    mark = f" [{notes.setdefault(note, len(notes) + 1)}]" if note else ""
    return {
        "what": [result["what"] + mark],
        "ours": _side(result["ours"], result.get("ours_range"), unit),
        "other": _side(result["other"], result.get("other_range"), unit),
        "ratio": [number(result["ratio"])],
        "bar": [result["bar"]],
        "ok": ["yes" if result["ok"] else "NO"],
    }


def _side(median: float | None, extremes: list[float] | None, unit: str) -> list[str]:
    if median is None:
        return ["-"]
    lines = [f"{number(median)} {unit}".rstrip()]
    if extremes and extremes[0] != extremes[1]:
        lines.append(f"{number(extremes[0])} - {number(extremes[1])}")
    return lines


def number(value: float | None) -> str:
    """Short: 1.23, 45.6, 789, 12.3 k, 4.56 M."""
    if value is None:
        return "-"
    for limit, suffix in ((1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if suffix == ' M' else 1e3):.3g}{suffix}"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.3g}"


def write(results: list[dict[str, Any]], path: Path) -> None:
    """The result file: a JSON list, one row a line, so that a diff shows which rows moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(result, ensure_ascii=False) for result in results)
    path.write_text(f"[\n{lines}\n]\n")
