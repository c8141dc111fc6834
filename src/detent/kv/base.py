"""What every kv engine offers: consistent views, durable atomic batches, one fenced writer, a space for objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from detent.errors import Invalid, LimitExceeded
from detent.kv.stored import OnDamage

KEY_BYTES_MAX = 511
"""LMDB's compiled-in limit, and so the limit of every engine: a store can move between them."""

VALUE_BYTES_MAX = 64 << 20
"""A record this large is a mistake: blocks are near 1 MiB, and anything bigger is a fragment."""

BATCH_BYTES_MAX = 256 << 20
"""One commit holds its batch in memory; group commit stops far below this."""

RESERVED_PREFIX = b"\x00"
"""Keys that start with this byte belong to the engine itself (its epoch); no other layer may use them."""

FIRST_KEY = b"\x01"
"""The lowest key that is not the engine's own."""

OBJECT_NAME_MAX = 512
OBJECT_NAME_PART_MAX = 200
"""A file system's 255 bytes, less what a temporary name adds."""

_OBJECT_NAME_PART = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{OBJECT_NAME_PART_MAX - 1}}}")
_OBJECT_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)*([A-Za-z0-9_-][A-Za-z0-9._-]*)?")


class Batch:
    """Puts and deletes that become durable together. The last word on a key wins."""

    __slots__ = ("bytes", "operations")

    def __init__(self) -> None:
        self.operations: dict[bytes, bytes | None] = {}
        self.bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Set `key` to `value`."""
        size = len(value)
        if not 0 < len(key) <= KEY_BYTES_MAX or not key[0] or size > VALUE_BYTES_MAX:
            _check_key(key)
            raise LimitExceeded(f"a record of {size} bytes is over the limit of {VALUE_BYTES_MAX}")
        size += self.bytes + len(key)
        if size > BATCH_BYTES_MAX:
            raise LimitExceeded(f"a batch of {size} bytes is over the limit of {BATCH_BYTES_MAX}")
        self.operations[key] = value
        self.bytes = size

    def delete(self, key: bytes) -> None:
        """Remove `key`; a key that is not there is no error."""
        _check_key(key)
        self.operations[key] = None
        self.bytes += len(key)

    def extend(self, changes: dict[bytes, bytes | None]) -> None:
        """Put or, where the value is None, delete each key. Written out, because it may be a hundred thousand."""
        size = self.bytes
        for key, value in changes.items():
            length = len(key)
            if not 0 < length <= KEY_BYTES_MAX or not key[0]:
                _check_key(key)
            size += length
            if value is not None:
                size += len(value)
                if len(value) > VALUE_BYTES_MAX:
                    raise LimitExceeded(f"a record of {len(value)} bytes is over the limit of {VALUE_BYTES_MAX}")
        if size > BATCH_BYTES_MAX:
            raise LimitExceeded(f"a batch of {size} bytes is over the limit of {BATCH_BYTES_MAX}")
        self.operations.update(changes)
        self.bytes = size

    def __len__(self) -> int:
        return len(self.operations)


def _check_key(key: bytes) -> None:
    if not key or len(key) > KEY_BYTES_MAX:
        raise Invalid(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    if key[0] == 0:
        raise Invalid("keys that start with byte 00 are reserved for the kv engine")


@runtime_checkable
class View(Protocol):
    """One consistent state of the store: what had been committed when the view was opened, and nothing later."""

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, or None."""
        ...

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end in key order (or from the highest down). `end` None: to the last key."""
        ...


class BlockView:
    """What every engine's view has in common: it ends with its with-block, and says so to those who read on."""

    open = True

    def _require_open(self) -> None:
        if not self.open:
            raise Invalid("this view has ended: read inside its with-block")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as a listing shows it."""

    name: str
    size: int
    modified_ms: int


@runtime_checkable
class Objects(Protocol):
    """Immutable named byte strings beside the keys: what is too big for a record.

    Names are relative paths of ASCII letters, digits, ``.``, ``_``, ``-`` and ``/``. `local` says whether reading one
    costs no network.
    """

    local: bool

    def put(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Store a new object; it is durable when this returns. Returns its size. `Exists` if the name is taken."""
        ...

    def get(self, name: str, start: int = 0, length: int | None = None) -> memoryview:
        """The object's bytes (or a part). `NotFound` when there is no such object."""
        ...

    def size(self, name: str) -> int | None:
        """The object's size, or None when there is no such object."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose names start with `prefix`, in no particular order."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def remove_abandoned(self, now_ms: int) -> int:
        """Delete what writers left behind that must have died half-way, by the wall clock. Returns how many."""
        ...


@runtime_checkable
class Reader(Protocol):
    """Reads a store, in any process, while a writer is at work or not.

    `view_bytes` is how much a long scan should read in one view before it opens the next: little where a view costs
    nothing and old pages are kept alive by it, much where each scan is a request to an object store.
    """

    objects: Objects
    view_bytes: int

    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> AbstractContextManager[View]:
        """A consistent view. Keep it short: an open view keeps replaced pages alive.

        What it reads is checked: a record that has changed since it was written is `Corrupt`. With `on_damage` that is
        called instead, for the engine's own records as the view begins, and the record is passed over. `large` says
        that mostly large values will be read; it changes nothing but the speed.
        """
        ...

    def size_bytes(self) -> int:
        """Roughly what the keys and values occupy."""
        ...

    def close(self) -> None:
        """Release everything. Calling it twice is fine."""
        ...


@runtime_checkable
class Writer(Reader, Protocol):
    """The one writer of a store. Opening it raised the store's epoch, which fences every writer before it."""

    epoch: int

    @property
    def full(self) -> bool:
        """Whether there is no room for more: only what deletes, or adds very little, should be committed."""
        ...

    def commit(self, batch: Batch) -> None:
        """Make the batch durable, whole, before returning.

        `Fenced` when a later writer has opened the store: nothing of the batch is ever visible. `Unavailable`
        when the engine could not say whether it was written; the caller then drops what it remembers, calls
        :meth:`recover` and reads again.
        """
        ...

    def recover(self) -> None:
        """After an `Unavailable` commit: be a usable writer again, showing exactly what is durable."""
        ...

    def maintain(self) -> None:
        """Housekeeping that is due now and then, such as freeing what killed readers left behind."""
        ...


def check_object_name(name: str) -> None:
    """Refuse names that could leave the object space or that some file system would not keep."""
    parts = name.split("/")
    if len(name) > OBJECT_NAME_MAX or not all(_OBJECT_NAME_PART.fullmatch(part) for part in parts):
        raise Invalid(f"{name!r} is not an object name: use ASCII letters, digits, '.', '_', '-' and '/'")


def check_object_prefix(prefix: str) -> None:
    """Refuse what no object name begins with, before a file system takes it for a way out."""
    if len(prefix) > OBJECT_NAME_MAX or not _OBJECT_PREFIX.fullmatch(prefix):
        raise Invalid(f"no object name begins with {prefix!r}")


def check_object_range(start: int, length: int | None) -> None:
    """Refuse a part of an object that cannot be."""
    if start < 0 or (length is not None and length < 0):
        raise Invalid(f"no object has a part of {length} bytes at {start}")


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])
