"""How commands print: tables for people, JSON for programs, progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click


def print_json(document: Any) -> None:
    """One JSON document."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def print_answer(document: Any, text: str, *, as_json: bool) -> None:
    """What a command has done: a document for programs, a line for people."""
    print_json(document) if as_json else click.echo(text)


TABLE: Final = "detent.cli.table"
"""Where a command's context has which columns of its table are wanted."""


@dataclass
class TableColumns:
    """Which columns are wanted of a table: all, those that are named, or those for which there is room."""

    is_wide: bool = False
    named: tuple[str, ...] = ()


def table_columns() -> TableColumns:
    """What the person has said of this command's table."""
    context = click.get_current_context(silent=True)
    found: TableColumns = TableColumns() if context is None else context.meta.setdefault(TABLE, TableColumns())
    return found


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = (), is_divisible: bool = False
) -> None:
    """A table in which nothing is cut: no wider than a terminal, as `Grid` says; in a pipe plain columns, as wide as
    they are, with one line for each row. On a narrow terminal the `spare` columns are left out, the first one first,
    unless the person wants all."""
    wanted = table_columns()
    if wanted.named:
        columns, rows = _named_columns(columns, rows, wanted.named)
    if sys.stdout.isatty():
        from rich.console import Console

        from detent.grid import Grid, columns_kept

        console = Console()
        if spare and not wanted.is_wide and not wanted.named:
            kept = columns_kept(columns, rows, console.width, spare)
            left_out = [column for at, column in enumerate(columns) if at not in kept]
            columns, rows = [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
            if left_out:
                note(f"not shown, for want of room: {', '.join(left_out)} (--wide shows all, --columns those you name)")
        console.print(Grid(columns, rows, is_divisible=is_divisible), soft_wrap=True)
        return
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for row in ([column.upper() for column in columns], *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _named_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], named: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The columns that are named, in that order."""
    for name in named:
        if name not in columns:
            raise click.UsageError(f"this table has no column {name!r}; it has {', '.join(columns)}")
    places = [list(columns).index(name) for name in named]
    return list(named), [[row[at] for at in places] for row in rows]


def print_fields(fields: dict[str, str]) -> None:
    """Names and values, one a line."""
    width = max(map(len, fields)) + 1
    for name, value in fields.items():
        click.echo(f"{name + ':':<{width}} {value}")


def time_text(time_ms: int) -> str:
    """A time in UTC; a dash when there is none."""
    if not time_ms:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(value: datetime | timedelta) -> int:
    """A time or a duration in milliseconds, for programs."""
    return round((value.total_seconds() if isinstance(value, timedelta) else value.timestamp()) * 1000)


def duration_text(duration_ms: int) -> str:
    """A duration as commands take it; zero means that there is no limit."""
    if not duration_ms:
        return "no limit"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if duration_ms % size == 0:
            return f"{duration_ms // size}{unit}"
    return f"{duration_ms}ms"


def age_text(duration_ms: int) -> str:
    """How long ago, for people: the two largest units.

    >>> age_text(3_725_000)
    '1h 2m'
    """
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        count, duration_ms = divmod(duration_ms, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or f"{duration_ms}ms"


def line_text(text: str) -> str:
    """Text of others on one line of ours: line breaks and what moves a terminal's cursor are written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def note(text: str) -> None:
    """Something for the person, not for the pipe."""
    click.echo(text, err=True)


@contextmanager
def progress_bar(text: str, *, hidden: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, if that is a terminal; the function that moves it takes what is done and the total."""
    if hidden or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)

        def move(done: int, total: int | None) -> None:
            # Where the end is not known, the number itself is all there is to show.
            shown = f"{text} {done:,}" if total is None else text
            progress.update(task, completed=done, total=total, description=shown)

        yield move
