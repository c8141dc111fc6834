"""Reading the state that shards keep in a store, over any view of it: the machine's, and that of a process that has the
store before it and need not ask the owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, NamedTuple

from detent.codec import shard as records
from detent.codec.keys import u32
from detent.kv import Reader, View
from detent.kv.overlay import merged

PAGE_BYTES: Final = 4 << 20
"""A page ends when it has about so many bytes, however many entries that are."""


class Page(NamedTuple):
    """Some entries by key, and whether there are more after them."""

    items: list[tuple[str, bytes]]
    more: bool


def read_checkpoint(view: View, number: int) -> bytes | None:
    """What a shard has written down last of its progress; None if it never has."""
    return view.get(records.checkpoint_key(number))


def read_state(view: View, number: int, keys: Iterable[str]) -> list[bytes | None]:
    """The values of these keys, in their order; None where there is none."""
    return [view.get(records.state_key(number, key)) for key in keys]


def scan_state(view: View, number: int, prefix: str = "", after: str = "", limit: int | None = None) -> Page:
    """Entries whose keys begin with a prefix and come after a key, in the order of their keys: at most `limit`, and
    about `PAGE_BYTES`."""
    start, end = records.STATE.range(u32(number), prefix.encode())
    if after:
        start = max(start, records.state_key(number, after) + b"\x00")
    found: list[tuple[str, bytes]] = []
    size = 0
    if end is not None and start >= end:
        return Page(found, False)
    for key, value in view.scan(start, end, limit=None if limit is None else limit + 1):
        if len(found) == limit or size >= PAGE_BYTES:
            return Page(found, True)
        found.append((records.decode_state_key(key)[1], value))
        size += len(key) + len(value)
    return Page(found, False)


class StateReader:
    """The state of shards, read straight from the store where that can be. Elsewhere, behind a server or on an object
    store, it answers None and the owner has to be asked."""

    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader

    def read(self, number: int, keys: Iterable[str]) -> list[bytes | None] | None:
        """The values of these keys, in their order, all as they were at one moment."""
        if self._reader is None:
            return None
        with self._reader.view() as view:
            return read_state(view, number, keys)

    def view(self) -> AbstractContextManager[View] | None:
        """What is there at this moment, for many reads in a row; let go of it soon."""
        return None if self._reader is None else self._reader.view()

    def scan(self, number: int, prefix: str = "", after: str = "", limit: int | None = None) -> Page | None:
        """A page of the entries whose keys begin with a prefix and come after a key."""
        if self._reader is None:
            return None
        with self._reader.view() as view:
            return scan_state(view, number, prefix, after, limit)


class Overlaid:
    """A view with changes laid over it that are not yet in the store: None for a key that is gone."""

    def __init__(self, view: View, changes: Mapping[bytes, bytes | None]) -> None:
        self._view = view
        self._changes = changes

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, as the changes leave it."""
        return self._changes[key] if key in self._changes else self._view.get(key)

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs of a range in their order, as the changes leave them."""
        touched = sorted((key for key in self._changes if start <= key and (end is None or key < end)), reverse=reverse)
        changes = ((key, self._changes[key]) for key in touched)
        found = merged(self._view.scan(start, end, reverse=reverse), changes, reverse=reverse)
        return found if limit is None else islice(found, limit)
