"""Commits that are durable in the commit log and not yet in LMDB, as views see them: laid over what LMDB holds.

Every change keeps the number of its commit. A view looks through two numbers, so that it neither sees what came after
it was opened nor what LMDB's own snapshot holds already.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Version = tuple[int, bytes | None]


class Overlay:
    """The changes of the commits after `base`, up to `last`. One thread adds, any number look."""

    __slots__ = ("_keys", "_lock", "_new", "_versions", "base", "last")

    def __init__(self, base: int) -> None:
        self.base = base
        self.last = base
        self._versions: dict[bytes, list[Version]] = {}
        self._keys: list[bytes] = []
        self._new: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, number: int, changes: Mapping[bytes, bytes | None]) -> None:
        """Lay the next commit over the others; views see it from the moment in which `last` says so."""
        versions = self._versions
        fresh = []
        for key, value in changes.items():
            known = versions.get(key)
            if known is None:
                versions[key] = [(number, value)]
                fresh.append(key)
            else:
                known.append((number, value))
        with self._lock:
            self._new += fresh
        self.last = number

    def latest(self) -> dict[bytes, bytes | None]:
        """What all commits together made of each key they touched; None for a key that is gone."""
        layer = Layer(self, self.base, self.last)  # not what an interrupted commit has left
        return {key: found[1] for key in self._versions if (found := layer.find(key)) is not None}

    def versions(self, key: bytes) -> list[Version] | None:
        """All that was done to a key, oldest first."""
        return self._versions.get(key)

    def keys_between(self, start: bytes, end: bytes | None) -> list[bytes]:
        """The touched keys with start <= key < end, in order."""
        if not self._versions:
            return []
        with self._lock:
            if self._new:
                self._keys += self._new
                self._keys.sort()
                self._new.clear()
            keys = self._keys
            return keys[bisect_left(keys, start) : len(keys) if end is None else bisect_left(keys, end)]


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

    def between(self, start: bytes, end: bytes | None, *, reverse: bool) -> list[tuple[bytes, bytes | None]]:
        """The changes in a range of keys, in the order of a scan."""
        changes = [
            (key, version[1])
            for key in self.overlay.keys_between(start, end)
            if (version := self.find(key)) is not None
        ]
        if reverse:
            changes.reverse()
        return changes


def merged(
    stored: Iterator[tuple[bytes, bytes]], changes: list[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Stored pairs with the changes laid over them; both in the order of the scan."""
    position = 0
    for key, value in stored:
        while position < len(changes) and (changes[position][0] > key if reverse else changes[position][0] < key):
            changed, new = changes[position]
            position += 1
            if new is not None:
                yield changed, new
        if position < len(changes) and changes[position][0] == key:
            new = changes[position][1]
            position += 1
            if new is not None:
                yield key, new
        else:
            yield key, value
    for changed, new in changes[position:]:
        if new is not None:
            yield changed, new
