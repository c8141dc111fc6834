"""Records by name: all of them in memory, listed in order, and taken back out of a group when they are refused."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from typing import Any, Final, Generic, TypeVar

from detent.codec.keys import Prefix
from detent.codec.ledger import key_of, name_of
from detent.engine import ApplyContext
from detent.kv import Batch, View

T = TypeVar("T")

_UNTOUCHED: Final = object()
"""What a group says of a record that it has not changed."""


class Shelf(Generic[T]):
    """The records of one kind. What a group changes is written when it is flushed."""

    def __init__(self, prefix: Prefix) -> None:
        self._prefix = prefix
        self._rows: dict[str, T] = {}
        self._names: list[str] = []  # sorted: text sorts by code points as its UTF-8 does by bytes
        self._writes: dict[bytes, Any] = {}

    def load(self, view: View, decode: Callable[[bytes], T]) -> None:
        """Remember what the view shows, and nothing else."""
        self._writes.clear()
        self._rows = {name_of(self._prefix, key): decode(value) for key, value in view.scan(*self._prefix.range())}
        self._names = list(self._rows)

    def __len__(self) -> int:
        return len(self._names)

    def get(self, name: str) -> T | None:
        """A record, as the group in progress has left it."""
        return self._rows.get(name)

    def items(self, prefix: str, after: str) -> Iterator[tuple[str, T]]:
        """Those whose names begin with a prefix and come after a name, in order."""
        names = self._names
        first = bisect_left(names, prefix) if after < prefix else bisect_right(names, after)
        wanted = takewhile(lambda name: name.startswith(prefix), (names[at] for at in range(first, len(names))))
        return ((name, self._rows[name]) for name in wanted)

    def set(self, name: str, row: T | None, value: bytes | None, context: ApplyContext) -> None:
        """Put a record there, as it is in memory and as it is written; or, with None for both, remove it."""
        old = self._writes.get(key_of(self._prefix, name), _UNTOUCHED)
        context.undo.append(partial(self._assign, name, self._rows.get(name), old))
        self._assign(name, row, value)

    def _assign(self, name: str, row: T | None, value: Any) -> None:
        if row is None:
            if self._rows.pop(name, None) is not None:
                del self._names[bisect_left(self._names, name)]
        else:
            if name not in self._rows:
                self._names.insert(bisect_left(self._names, name), name)
            self._rows[name] = row
        key = key_of(self._prefix, name)
        if value is _UNTOUCHED:
            self._writes.pop(key, None)
        else:
            self._writes[key] = value

    def flush(self, batch: Batch) -> None:
        """Put the group's changes into its batch."""
        batch.extend(self._writes)
        self._writes.clear()
