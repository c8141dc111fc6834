"""Commits that are durable in the commit log and not yet in LMDB, as views see them: laid over what LMDB holds.

Every change keeps the number of its commit. A view looks through two numbers, so that it neither sees what came after
it was opened nor what LMDB's own snapshot holds already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Version = tuple[int, bytes | None]


class Overlay:
    """The changes of the commits after `base`, up to `last`. One thread adds, any number look, and none waits."""

    __slots__ = ("_added", "_order", "_versions", "base", "last")

    def __init__(self, base: int) -> None:
        self.base = base
        self.last = base
        self._versions: dict[bytes, list[Version]] = {}
        self._added: list[bytes] = []  # every key, in the order in which it came
        self._order: tuple[list[bytes], int] = ([], 0)  # the keys in order, and how many of the added ones that are

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, number: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Lay the next commit over the others; views see it from the moment in which `last` says so."""
        versions, added = self._versions, self._added
        for key, value in changes.items():
            known = versions.get(key)
            if known is None:
                versions[key] = [(number, value)]
                added.append(key)
            else:
                known.append((number, value))
        self.last = number

    def latest(self) -> dict[bytes, bytes | None]:
        """What all commits together made of each key they touched; None for a key that is gone."""
        layer = Layer(self, self.base, self.last)  # not what an interrupted commit has left
        return {key: found[1] for key in self._versions if (found := layer.find(key)) is not None}

    def versions(self, key: bytes) -> list[Version] | None:
        """All that was done to a key, oldest first."""
        return self._versions.get(key)

    def keys(self) -> list[bytes]:
        """The touched keys in order; a list that does not change any more."""
        keys, sorted_ones = self._order
        count = len(self._added)
        if count > sorted_ones:
            keys = sorted(keys + self._added[sorted_ones:count])
            self._order = (keys, count)  # in one step: an interrupt, or another thread, finds all of it or nothing
        return keys


class Layer(NamedTuple):
    """An overlay as one view sees it: the commits with floor < number <= top."""

    overlay: Overlay
    floor: int
    top: int

    def find(self, key: bytes) -> Version | None:
        """The last change of a key that this view sees."""
        versions = self.overlay.versions(key)
        if versions is not None:
            for version in reversed(versions):
                if version[0] <= self.top:
                    return version if version[0] > self.floor else None
        return None

    def between(self, start: bytes, end: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """The changes in a range of keys, in the order of a scan, found as they are asked for."""
        keys = self.overlay.keys()
        first = bisect_left(keys, start)
        behind = len(keys) if end is None else bisect_left(keys, end)
        for at in range(behind - 1, first - 1, -1) if reverse else range(first, behind):
            version = self.find(keys[at])
            if version is not None:
                yield keys[at], version[1]


def merged(
    stored: Iterator[tuple[bytes, bytes]], changes: Iterator[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Stored pairs with the changes laid over them; both in the order of the scan."""
    change = next(changes, None)
    for key, value in stored:
        while change is not None and (change[0] > key if reverse else change[0] < key):
            if change[1] is not None:
                yield change[0], change[1]
            change = next(changes, None)
        if change is None or change[0] != key:
            yield key, value
            continue
        if change[1] is not None:
            yield key, change[1]
        change = next(changes, None)
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(changes, None)
