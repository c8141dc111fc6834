"""State as a dictionary of JSON values by text keys: what an application gets from `EngineState` and `RecordedState`.

A transaction sees its own changes and those of the one before, durable or not: if that one cannot commit, this one does
not either. Values that were changed in place are found by comparing them with what they were.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

import msgspec

from detent.engine import MALFORMED
from detent.errors import Corrupt, Invalid, LimitExceeded
from detent.shard import operations as ops

KEY_BYTES_MAX: Final = ops.STATE_KEY_BYTES_MAX
"""A key is part of a record's key in the store, which has a limit of its own."""

VALUE_BYTES_MAX: Final = ops.STATE_VALUE_BYTES_MAX
"""A value is read and written whole. What is larger belongs under several keys."""

KEPT_MAX: Final = 200_000
"""Values of one shard that are kept in memory between transactions; the others are read, or decoded, when they are
asked for."""

TOUCHED_MAX: Final = 50_000
"""Keys that a transaction uses before it ends: they are encoded, compared and written together."""

Changes = dict[str, bytes | None]
"""What a transaction changed: the new value of each key as JSON, None for those that were removed."""

_ABSENT: Final = object()
_UNKNOWN: Final = object()
_SCALARS: Final = (str, int, bool, type(None))
"""What cannot be changed in place, and is JSON as it is. (A float may be none: there is no infinity in JSON.)"""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Entries(ABC):
    """The durable entries below a dictionary."""

    @abstractmethod
    def load(self, key: str) -> bytes | None:
        """The value of a key, None if there is none."""

    @abstractmethod
    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """All entries whose keys begin with a prefix, in the order of keys."""


class Space:
    """The values that are in memory, over the entries that are durable."""

    def __init__(self, entries: Entries, *, kept_max: int = KEPT_MAX) -> None:
        self._entries = entries
        self._kept_max = kept_max
        self._values: dict[str, Any] = {}
        self._encoded: dict[str, bytes | None] = {}

    def begin(self, unsettled: Changes) -> None:
        """A transaction begins. If too much is in memory all is let go but what is not durable yet: `unsettled`.

        Only here: a value that the application holds in its hands must not be replaced by a copy.
        """
        if len(self._values) > self._kept_max:
            self._values = {key: self._values[key] for key in unsettled}
            self._encoded = dict(unsettled)

    @property
    def values(self) -> dict[str, Any]:
        """What is in memory. A key that is there can be given another value; for others there is `put`."""
        return self._values

    def get(self, key: str) -> Any:
        """A value, or `_ABSENT`."""
        found = self._values.get(key, _UNKNOWN)
        if found is not _UNKNOWN:
            return found
        check_key(key)
        raw = self._entries.load(key)
        found = _ABSENT if raw is None else decoded(key, raw)
        self._values[key] = found
        self._encoded[key] = raw
        return found

    def put(self, key: str, value: Any) -> None:
        """A value for the running transaction; `_ABSENT` removes it."""
        if key not in self._encoded:
            check_key(key)
            self._encoded[key] = self._entries.load(key)
        self._values[key] = value

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that are there, in order."""
        known = sorted(key for key in self._values if key.startswith(prefix))
        stored = (key for key, _ in self._entries.scan(prefix))
        last = None
        for key in heapq.merge(known, stored):
            if key != last:
                last = key
                if self._values.get(key) is not _ABSENT:
                    yield key

    def take_back(self, touched: list[str]) -> None:
        """Forget what a transaction did to these keys, in place or not."""
        for key in touched:
            raw = self._encoded[key]
            self._values[key] = _ABSENT if raw is None else decoded(key, raw)

    def changes(self, touched: list[str]) -> Changes:
        """What became different among the keys that a transaction touched."""
        changes: Changes = {}
        for key in touched:
            value = self._values[key]
            raw = None if value is _ABSENT else encoded(key, value)
            if raw is not None and type(value) not in _SCALARS:
                # From here on as after a restart, and out of reach of code that still holds the old one.
                self._values[key] = same(key, value, raw)
            if raw != self._encoded[key]:
                changes[key] = self._encoded[key] = raw
        return changes


class KeyedState(MutableMapping[str, Any]):
    """The state of a shard in one transaction: a dictionary of text keys and JSON values.

    >>> state["words"] = state.get("words", 0) + 1
    >>> state.setdefault("orders", []).append(7)        # values may be changed in place
    >>> state["orders"] = orders                         # a copy: what becomes of `orders` later does not matter
    >>> dict(state.items_with("user/"))

    It is good for the transaction only in which it was handed out.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known = space.values
        self._touched: dict[str, None] = {}
        self._sealed = False

    def _live(self) -> Space:
        if self._sealed:
            raise Invalid("this state belongs to a transaction that has ended: use the one that consume() was given")
        return self._space

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        value = self._known.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._live().get(key)
        if value is _ABSENT:
            return default
        if type(value) not in _SCALARS:
            self._touched[key] = None  # it may be changed in place
        return value

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._live().get(key) is not _ABSENT

    def __setitem__(self, key: str, value: Any) -> None:
        if type(value) not in _SCALARS:
            value = normal(key, value)
        if key in self._known:
            self._known[key] = value
        else:
            self._live().put(key, value)
        self._touched[key] = None

    def __delitem__(self, key: str) -> None:
        if self._live().get(key) is _ABSENT:
            raise KeyError(key)
        self._space.put(key, _ABSENT)
        self._touched[key] = None

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is the default from now on if there was none."""
        if key not in self:
            self[key] = default
        return self[key]

    def __iter__(self) -> Iterator[str]:
        return self._live().keys("")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items_with(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """The entries whose keys begin with a prefix, in the order of keys."""
        for key in self._live().keys(prefix):
            yield key, self[key]

    @property
    def is_full(self) -> bool:
        """Whether the transaction should end."""
        return len(self._touched) >= TOUCHED_MAX

    def seal(self) -> Changes:
        """What the transaction changed. This object is not used afterwards."""
        changes = self._live().changes(list(self._touched))
        self._end()
        return changes

    def discard(self) -> None:
        """The transaction will not commit."""
        if not self._sealed:
            self._end()
            self._space.take_back(list(self._touched))

    def _end(self) -> None:
        self._sealed = True
        self._known = {}


def puts_and_deletes(changes: Changes) -> tuple[dict[str, bytes], list[str]]:
    """The keys that get a value, and those that are removed."""
    deletes = [key for key, value in changes.items() if value is None]
    puts: Any = changes if not deletes else {key: value for key, value in changes.items() if value is not None}
    return puts, deletes


def check_key(key: str) -> None:
    """Refuse what cannot be a key."""
    if not isinstance(key, str) or not key:
        raise Invalid(f"a key of the state is text, and not empty: {key!r}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"a key of the state is text: {error}") from error
    if size > KEY_BYTES_MAX:
        raise LimitExceeded(f"a key of {size} bytes is over the limit of {KEY_BYTES_MAX}: {key[:40]}...")


def encoded(key: str, value: Any) -> bytes:
    """A value as JSON."""
    try:
        raw = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"the value of {key!r} cannot be written as JSON: {error}") from error
    if len(raw) > VALUE_BYTES_MAX:
        raise LimitExceeded(
            f"the value of {key!r} has {len(raw)} bytes as JSON, over the limit of {VALUE_BYTES_MAX}: use several keys"
        )
    return raw


def normal(key: str, value: Any) -> Any:
    """A value as it will be after a restart: a copy, so that no other object is the same one by accident."""
    return same(key, value, encoded(key, value))


def same(key: str, value: Any, raw: bytes) -> Any:
    """What JSON makes of a value; `Invalid` if that is something else: it would depend on when a process ended."""
    found = decoded(key, raw)
    if found != value:
        raise Invalid(
            f"the value of {key!r} is not JSON, and would come back as something else: use dictionaries with text "
            "keys, lists, text, finite numbers, True, False and None"
        )
    return found


def decoded(key: str, raw: bytes) -> Any:
    """A value from JSON."""
    try:
        return _decode(raw)
    except MALFORMED as error:
        raise Corrupt(f"the value of {key!r} is not JSON: {error}") from error
