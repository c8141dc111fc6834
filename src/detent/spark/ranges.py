"""Ranges of journals, and how a batch of them is cut into partitions: pure, so that a replay cuts the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

PARTITION_ROWS_MAX: Final = 250_000
"""A task of Spark's costs tens of milliseconds whatever it does; this many rows keep a core busy for some hundred."""


class Range(NamedTuple):
    """The messages [start, end) of a journal."""

    journal: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many messages there are."""
        return self.end - self.start


Offsets = dict[str, int]
"""How far each journal was read. In a fixed order: Spark compares offsets by their text."""


LIFE: Final = ""
"""Under this name, which no journal has, an offset in Spark's log says since when the store has its present life."""


def without_life(offsets: Mapping[str, int]) -> Offsets:
    """The journals of an offset of Spark's log."""
    return {name: at for name, at in offsets.items() if name != LIFE}


def ordered(offsets: Mapping[str, int]) -> Offsets:
    """The same offsets, by name."""
    return {name: offsets[name] for name in sorted(offsets)}


def between(start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """What lies between two offsets. A journal that is not in `start` came later, and is read from its beginning."""
    return [Range(name, start.get(name, 0), end[name]) for name in sorted(end) if end[name] > start.get(name, 0)]


def cut(ranges: list[Range], partitions_min: int, rows_max: int = PARTITION_ROWS_MAX) -> list[list[Range]]:
    """Partitions of about equal size. A long journal is split, short ones share a partition; order is kept."""
    total = sum(piece.rows for piece in ranges)
    if not total:
        return []
    count = min(total, max(partitions_min, -(-total // rows_max)))
    partitions: list[list[Range]] = [[] for _ in range(count)]
    at = 0
    for piece in ranges:
        start = piece.start
        while start < piece.end:
            number = at * count // total
            room = -(-(number + 1) * total // count) - at
            end = min(piece.end, start + room)
            partitions[number].append(Range(piece.journal, start, end))
            at += end - start
            start = end
    return partitions


def limited(start: Mapping[str, int], end: Mapping[str, int], rows_max: int) -> Offsets:
    """As far as `rows_max` messages go, each journal by its share, so that none waits for the others."""
    waiting = between(start, end)
    total = sum(piece.rows for piece in waiting)
    if total <= rows_max:
        return ordered({**start, **end})
    result = {**start}
    left = rows_max
    for piece, share in _shares(waiting, total, rows_max):
        taken = min(share, left, piece.rows)
        left -= taken
        if taken or piece.journal in start:
            result[piece.journal] = piece.start + taken
    return ordered(result)


def _shares(waiting: list[Range], total: int, rows_max: int) -> Iterator[tuple[Range, int]]:
    """One message each, or rounding would starve a journal for ever; then each by its share of the rest, and the
    longest what rounding leaves. With fewer messages than journals the longest get them; each comes to be the
    longest."""
    *others, longest = sorted(waiting, key=lambda piece: piece.rows)
    rest = rows_max - len(waiting)
    if rest < 0:
        yield from ((piece, 1) for piece in (longest, *reversed(others)))
        return
    for piece in others:
        yield piece, 1 + (piece.rows - 1) * rest // (total - len(waiting))
    yield longest, rows_max
