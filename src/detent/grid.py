"""A table for a terminal, in which no word is ever cut.

A grid tries, in this order: a table with lines around its cells; one without lines; each of them with long texts
wrapped at their spaces; several tables below one another, if it may be divided; and at last rows of several lines: the
short cells as columns, and each long one on a line of its own, below them, with its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    Cell = str | Text

PROSE: Final = 24
"""A text that is longer than this many characters may be wrapped, but into no narrower column."""

GAP: Final = 2
"""Spaces between two columns without a line, and in front of what stands below a row."""

NONE: Final = "-"
"""A cell in which there is nothing; below a row it is left out."""

TITLE: Final = "italic"
HEAD: Final = "bold"


def columns_kept(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, spare: Sequence[str]) -> list[int]:
    """Which columns to show in so much room: all that fit side by side, each as wide as it is. The `spare` ones are
    left out until they do, the first one first; the others stay in any case."""
    from rich.cells import cell_len
    from rich.text import Text

    natural = [
        max([cell_len(column), *(cell.cell_len if isinstance(cell, Text) else cell_len(cell) for cell in cells)])
        for column, cells in zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True)
    ]
    kept = list(range(len(columns)))
    for name in spare:
        if sum(natural[index] + GAP for index in kept) - GAP <= width:
            break
        kept = [index for index in kept if columns[index] != name]
    return kept


class Grid:
    """A table, for `rich`. Cells are text, also where they hold brackets; one that is `rich.text.Text` has a style.

    `right` names the columns that are aligned to the right. One that `is_divisible` becomes several tables below one
    another if it is too wide, each with the first column: this suits many columns of numbers. One that `is_plain` has
    no lines around its cells.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        right: Sequence[str] = (),
        title: str = "",
        is_divisible: bool = False,
        is_plain: bool = False,
    ) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        self._columns = list(columns)
        self._rows = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        self._right = right
        self._title = title
        self._is_divisible = is_divisible
        self._is_part = is_plain
        self._measure = cell_len
        self._natural = [
            max(cell_len(column), *(cell.cell_len for cell in cells), 0)
            for column, cells in zip(columns, self._by_column(), strict=True)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        if self._title:
            yield Text(self._title, style=TITLE)
        width = options.max_width
        for least in (self._natural, self._least()):
            for lined in (False,) if self._is_part else (True, False):
                if widths := _spread(least, self._natural, width - self._overhead(lined=lined)):
                    yield self._table(widths, lined=lined)
                    return
        parts = self._parts(width) if self._is_divisible else []
        if len(parts) < 2:
            yield from self._records(width)
            return
        for number, part in enumerate(parts):
            if number:
                yield Text("")
            yield self._only(part)

    def _by_column(self) -> list[list[Text]]:
        return [[row[index] for row in self._rows] for index in range(len(self._columns))]

    def _overhead(self, *, lined: bool) -> int:
        count = len(self._columns)
        return 3 * count + 1 if lined else GAP * (count - 1)

    def _least(self) -> list[int]:
        """How narrow each column may be: short cells stay on one line, heads and long texts are wrapped at spaces."""
        least = []
        for column, cells in zip(self._columns, self._by_column(), strict=True):
            words = [self._measure(word) for text in (column, *(cell.plain for cell in cells)) for word in text.split()]
            heads = [self._measure(word) for word in column.split()]
            natural = max((cell.cell_len for cell in cells), default=0)
            least.append(max(natural, *heads, 1) if natural <= PROSE else max(PROSE, *words))
        return least

    def _table(self, widths: Sequence[int], *, lined: bool) -> Any:
        from rich.box import HEAVY_HEAD
        from rich.table import Table

        table = Table(box=HEAVY_HEAD if lined else None, pad_edge=lined, padding=(0, 1) if lined else (0, GAP, 0, 0))
        for column, width in zip(self._columns, widths, strict=True):
            justify: Any = "right" if column in self._right else "left"
            table.add_column(column, width=width, justify=justify, overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of the tables: as few tables as do, all about as wide."""
        parts = self._packed(width)
        while len(parts) > 1 and len(narrower := self._packed(width - 1)) == len(parts):
            parts, width = narrower, width - 1
        return parts

    def _packed(self, width: int) -> list[list[int]]:
        """The columns in order, as many to a table as fit."""
        least = self._least()
        parts: list[list[int]] = [[0]]
        for index in range(1, len(self._columns)):
            used = sum(least[one] + GAP for one in parts[-1])
            if used + least[index] > width and len(parts[-1]) > 1:
                parts.append([0])
            parts[-1].append(index)
        return parts

    def _only(self, chosen: Sequence[int]) -> Grid:
        rows = [[row[index] for index in chosen] for row in self._rows]
        grid = Grid([self._columns[index] for index in chosen], rows, right=self._right)
        grid._is_part = True
        return grid

    def _records(self, width: int) -> Iterator[Text]:
        """Rows of several lines: columns side by side, which begin on a line of their own if the first one is too wide
        for that, and the other columns below."""
        from rich.text import Text

        lines = self._lines(width)
        shown = {index for line in lines for index in line}
        below = [index for index in range(len(self._columns)) if index not in shown]
        label = max((self._measure(self._columns[index]) for index in below), default=0) + 1
        yield from self._columned([Text(column, style=HEAD) for column in self._columns], lines)
        for row in self._rows:
            yield from self._columned(row, lines)
            for index in below:
                if row[index].plain == NONE:
                    continue
                head = f"{' ' * GAP}{self._columns[index] + ':':<{label}} "
                yield from _wrapped(head, row[index], width)

    def _lines(self, width: int) -> list[list[int]]:
        """The columns that stand side by side, on one line or two: all short ones if they fit, else as many as do. The
        first column always stays."""
        short = [index for index in range(1, len(self._columns)) if self._natural[index] <= PROSE]
        if self._taken([0, *short]) <= width:
            return [[0, *short]]
        if short and GAP + self._taken(short) <= width:
            return [[0], short]
        kept = [0, *short] if self._natural[0] <= width // 2 else [0]
        while len(kept) > 1 and self._taken(kept) > width:
            kept.remove(max(kept[1:], key=lambda index: self._natural[index]))
        return [kept]

    def _taken(self, chosen: Sequence[int]) -> int:
        return sum(self._natural[index] + GAP for index in chosen) - GAP

    def _columned(self, cells: Sequence[Text], lines: Sequence[Sequence[int]]) -> Iterator[Text]:
        from rich.text import Text

        for number, chosen in enumerate(lines):
            line = self._line([cells[index] for index in chosen], chosen)
            yield Text(" " * GAP).append_text(line) if number else line

    def _line(self, cells: Sequence[Text], kept: Sequence[int]) -> Text:
        from rich.text import Text

        line = Text()
        for cell, index in zip(cells, kept, strict=True):
            space = " " * (self._natural[index] - cell.cell_len)
            is_right = self._columns[index] in self._right
            line.append_text(Text.assemble(space, cell) if is_right else Text.assemble(cell, space))
            line.append(" " * GAP)
        line.rstrip()
        return line


def _spread(least: Sequence[int], natural: Sequence[int], room: int) -> list[int] | None:
    """The widths of columns that share some room; None if there is not enough. What is left over goes to the columns
    that want least, so that few are wrapped."""
    spare = room - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    wanting = sorted(range(len(widths)), key=lambda index: natural[index] - least[index])
    for place, index in enumerate(wanting):
        more = max(0, min(natural[index] - least[index], spare // (len(wanting) - place)))
        widths[index] += more
        spare -= more
    return widths


def _wrapped(head: str, cell: Text, width: int) -> Iterator[Text]:
    """A name and its value, wrapped at spaces and indented below itself; a word that is too long for a line is left to
    the terminal, from which it can be copied whole."""
    import textwrap

    from rich.text import Text

    lines = textwrap.wrap(
        cell.plain, max(width - len(head), PROSE), break_long_words=False, break_on_hyphens=False
    ) or [""]
    yield Text.assemble((head, "dim"), (lines[0], cell.style))
    for line in lines[1:]:
        yield Text.assemble(" " * len(head), (line, cell.style))


__all__ = ["Grid", "columns_kept"]
