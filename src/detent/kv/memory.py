"""`memory:` — the same semantics without a disk, for tests and simulation.

``memory:`` alone is a store of its own; ``memory:NAME`` is shared by everybody in the process who uses the name, until
:func:`forget`. Views are snapshots by version, so a view opened before a commit does not see it.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from detent.errors import Exists, Fenced, NotFound, Unavailable
from detent.kv.base import (
    Batch,
    BlockView,
    ObjectInfo,
    Objects,
    check_object_name,
    check_object_prefix,
    check_object_range,
)
from detent.kv.stored import OnDamage


class MemoryObjects:
    """Objects in a dictionary."""

    local = True

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}

    def put(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        check_object_name(name)
        data = b"".join(chunks)
        made = (data, time.time_ns() // 1_000_000)
        if self._objects.setdefault(name, made) is not made:
            raise Exists(f"there is an object {name!r} already")
        return len(data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> memoryview:
        check_object_name(name)
        check_object_range(start, length)
        if name not in self._objects:
            raise NotFound(f"there is no object {name!r}")
        data = self._objects[name][0]
        return memoryview(data)[start : len(data) if length is None else start + length]

    def size(self, name: str) -> int | None:
        check_object_name(name)
        return len(self._objects[name][0]) if name in self._objects else None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_object_prefix(prefix)
        for name, (data, modified) in list(self._objects.items()):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(data), modified)

    def delete(self, name: str) -> None:
        check_object_name(name)
        self._objects.pop(name, None)

    def remove_abandoned(self, now_ms: int) -> int:  # noqa: ARG002 - a put in memory is whole, or did not happen
        return 0


class MemorySpace:
    """What would be the disk: keys with their versions, the epoch, the objects."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.epoch = 0
        self.version = 0
        self.keys: list[bytes] = []
        self.versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.views: dict[int, int] = {}
        self.objects = MemoryObjects()

    def apply(self, batch: Batch) -> None:
        """Add one version; drop the older ones that no open view can see. The caller holds the lock."""
        self.version += 1
        keep_from = min(self.views, default=self.version)
        for key, value in batch.operations.items():
            history = self.versions.get(key)
            if history is None:
                if value is None:
                    continue
                history = self.versions[key] = []
                insort(self.keys, key)
            history.append((self.version, value))
            while len(history) > 1 and history[1][0] <= keep_from:
                history.pop(0)
            if len(history) == 1 and value is None:
                del self.versions[key]
                del self.keys[bisect_left(self.keys, key)]


class MemoryView(BlockView):
    """The space as it was at one version."""

    def __init__(self, space: MemorySpace, version: int) -> None:
        self._space = space
        self._version = version

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        for version, value in reversed(self._space.versions.get(key, ())):
            if version <= self._version:
                return value
        return None

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        with self._space.lock:
            keys = self._space.keys
            low = bisect_left(keys, start)
            high = len(keys) if end is None else bisect_left(keys, end)
            chosen = keys[low:high]
        if reverse:
            chosen.reverse()
        left = len(chosen) if limit is None else limit
        for key in chosen:
            if left <= 0:
                return
            value = self.get(key)
            if value is not None:
                left -= 1
                yield key, value


class MemoryReader:
    """Reads a memory space."""

    view_bytes = 1 << 18

    def __init__(self, space: MemorySpace) -> None:
        self._space = space
        self._closed = False
        self.objects: Objects = space.objects

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable("this store was closed")

    @contextmanager
    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Iterator[MemoryView]:  # noqa: ARG002
        self._require_open()
        space = self._space
        with space.lock:
            version = space.version
            space.views[version] = space.views.get(version, 0) + 1
        view = MemoryView(space, version)
        try:
            yield view
        finally:
            view.open = False
            with space.lock:
                space.views[version] -= 1
                if not space.views[version]:
                    del space.views[version]

    def size_bytes(self) -> int:
        self._require_open()
        with self._space.lock:
            return sum(len(key) + len(h[-1][1] or b"") for key, h in self._space.versions.items())

    def close(self) -> None:
        self._closed = True


class MemoryWriter(MemoryReader):
    """The writer of a memory space."""

    full = False

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        with space.lock:
            space.epoch += 1
            self.epoch = space.epoch

    def commit(self, batch: Batch) -> None:
        self._require_open()
        with self._space.lock:
            if self._space.epoch != self.epoch:
                raise Fenced(f"a writer with epoch {self._space.epoch} has replaced this one ({self.epoch})")
            self._space.apply(batch)

    def recover(self) -> None:
        self._require_open()

    def maintain(self) -> None:
        self._require_open()


_named: dict[str, MemorySpace] = {}
_named_lock = threading.Lock()


def space_for(name: str) -> MemorySpace:
    """The shared space of a name; a new private one for the empty name."""
    if not name:
        return MemorySpace()
    with _named_lock:
        return _named.setdefault(name, MemorySpace())


def forget(name: str) -> None:
    """Let a named space go."""
    with _named_lock:
        _named.pop(name, None)
