"""`file:PATH` — LMDB, the embedded default.

Durable means synced: a commit returns after LMDB has synced the data pages and then its meta page. Any number of
processes read the same file while one writes. The traps of LMDB are handled here: one environment a process and file,
reader slots left by killed processes, a map that grows, environments that must not cross a fork.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from detent import crash
from detent.errors import Corrupt, Fenced, Invalid, NotFound, Unavailable
from detent.kv.base import RESERVED_PREFIX, Batch, Objects
from detent.kv.localobjects import LocalObjects, make_directories, sync_directory

MAP_BYTES_FIRST = 4 << 30
"""Address space of a new map. It is not disk space; it doubles whenever it is full."""

MAP_BYTES_MAX = 1 << 46
"""64 TiB: half of what user space can address on common machines."""

READERS_MAX = 4096
"""Reader slots (64 bytes each in the lock file): every Spark worker of a large machine takes one."""

GROW_WAIT_S = 30.0
"""How long a resize waits for the views of this process to end before it gives up."""

RESERVE_BYTES = 16 << 20
RESERVE_LOW_BYTES = 1 << 20
RESERVE_EVERY = 32
"""Small commits are a third slower while each of them makes the file grow, because the sync then also writes the file's
metadata. So the file is extended ahead, now and then and only while commits are small."""

SMALL_COMMIT_BYTES = 16 << 10

PUTMULTI_FROM = 8
"""Batches with at least this many puts go through one C call."""

FIRST_KEY = b"\x01"
EPOCH_KEY = RESERVED_PREFIX + b"epoch"
FORMAT_VERSION = 1
_EPOCH = struct.Struct("<BQ")


class _Environment:
    """One LMDB environment, shared by all readers and writers of this process that use the same file."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.users = 0
        self._gate = threading.Condition()
        self._views = 0
        self._resizing = False
        self.lmdb = self._open(path, create)
        self.lmdb.reader_check()

    @staticmethod
    def _open(path: Path, create: bool) -> Any:
        size = path / "data.mdb"
        options: dict[str, Any] = {
            "map_size": max(MAP_BYTES_FIRST, size.stat().st_size if size.exists() else 0),
            "max_readers": READERS_MAX,
            "max_dbs": 0,
            "create": create,
            "mode": 0o600,
            "meminit": False,
        }
        try:
            return lmdb.open(os.fspath(path), **options)
        except lmdb.Error as error:
            if "Read-only" in str(error):
                # Nobody can write to a read-only file system, so readers need no lock there.
                return lmdb.open(os.fspath(path), readonly=True, lock=False, **options)
            if "denied" in str(error):
                raise Unavailable(
                    f"{path} may not be opened: readers too need to write its lock.mdb, or the owner would reuse what "
                    "they read"
                ) from error
            if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError | lmdb.CorruptedError):
                raise Corrupt(f"{path} holds no readable store: {error}") from error
            raise Unavailable(f"the store at {path} could not be opened: {error}") from error

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read transaction; another process that grew the map is followed."""
        transaction = self._begin()
        try:
            yield transaction
        finally:
            transaction.abort()
            with self._gate:
                self._views -= 1
                if not self._views:
                    self._gate.notify_all()

    def _begin(self) -> Any:
        while True:
            with self._gate:
                if not self._gate.wait_for(lambda: not self._resizing, GROW_WAIT_S):
                    raise Unavailable("the store's map has been waiting to grow for too long")
                self._views += 1
            try:
                return self.lmdb.begin()
            except lmdb.MapResizedError:
                self._leave()
                self.resize(0)
            except lmdb.ReadersFullError as error:
                self._leave()
                if not self.lmdb.reader_check():
                    raise Unavailable(f"all {READERS_MAX} reader slots of {self.path} are taken") from error
            except lmdb.Error as error:
                self._leave()
                raise Unavailable(f"the store at {self.path} was closed or cannot be read: {error}") from error
            except BaseException:
                self._leave()
                raise

    def quiesce(self) -> None:
        """Wait, but not for ever, until no view of this process is open."""
        with self._gate:
            self._gate.wait_for(lambda: not self._views, GROW_WAIT_S)

    def _leave(self) -> None:
        with self._gate:
            self._views -= 1
            self._gate.notify_all()

    def resize(self, size: int) -> None:
        """Set the map's size (0: follow the file). LMDB wants no transaction of this process open meanwhile."""
        with self._gate:
            if not self._gate.wait_for(lambda: not self._resizing, GROW_WAIT_S):
                raise Unavailable("the store's map has been waiting to grow for too long")
            self._resizing = True
            try:
                if not self._gate.wait_for(lambda: not self._views, GROW_WAIT_S):
                    raise Unavailable("the store's map must grow, but a view of this process stays open")
                self.lmdb.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def grow(self) -> None:
        """Double the map."""
        size = self.lmdb.info()["map_size"] * 2
        if size > MAP_BYTES_MAX:
            raise Unavailable(f"the store has reached the largest map of {MAP_BYTES_MAX} bytes")
        self.resize(size)


_environments: dict[tuple[int, int], _Environment] = {}
_environments_lock = threading.Lock()


def _after_fork() -> None:
    # LMDB forbids using an environment in a child. The child forgets it (without closing: that would touch the
    # parent's locks) and opens its own.
    global _environments, _environments_lock
    _abandoned.append(_environments)
    _environments = {}
    _environments_lock = threading.Lock()


_abandoned: list[dict[tuple[int, int], _Environment]] = []
os.register_at_fork(after_in_child=_after_fork)


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = (path / "data.mdb").stat()
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0)  # no file has this
    return status.st_dev, status.st_ino


def _acquire(path: Path, *, create: bool) -> _Environment:
    if create:
        make_directories(path)
    with _environments_lock:
        # By the file, not by its folder: a store that was deleted and made anew is another one.
        environment = _environments.get(_identity(path))
        if environment is None:
            if not create and not (path / "data.mdb").exists():
                raise NotFound(f"there is no store at {path}")
            environment = _Environment(path, create=create)
            _environments[_identity(path)] = environment
            if create:
                sync_directory(path)
        environment.users += 1
        return environment


def _release(environment: _Environment) -> None:
    with _environments_lock:
        environment.users -= 1
        if environment.users:
            return
        for identity, candidate in list(_environments.items()):
            if candidate is environment:
                del _environments[identity]
                environment.quiesce()
                environment.lmdb.close()


class FileView:
    """One LMDB read transaction."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.open = True

    def _require_open(self) -> None:
        if not self.open:
            raise Invalid("this view has ended: read inside its with-block")

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if key < FIRST_KEY:
            return None
        value: bytes | None = self._transaction.get(key)
        return value

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        start = max(start, FIRST_KEY)
        left = -1 if limit is None else limit
        with self._transaction.cursor() as cursor:
            if reverse:
                pairs = self._backward(cursor, end)
            else:
                pairs = cursor.iternext() if cursor.set_range(start) else iter(())
            for key, value in pairs:
                if left == 0 or (key < start if reverse else end is not None and key >= end):
                    return
                left -= 1
                yield key, value
                self._require_open()

    @staticmethod
    def _backward(cursor: Any, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if end is not None and cursor.set_range(end):
            if not cursor.prev():
                return
        elif not cursor.last():
            return
        yield from cursor.iterprev()


class FileReader:
    """Reads a store's file directly, in any process."""

    view_bytes = 1 << 18

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._pid = os.getpid()
        self._environment: _Environment | None = _acquire(path, create=create)
        self.objects: Objects = LocalObjects(path / "objects")

    def _live(self) -> _Environment:
        if self._environment is None:
            raise Unavailable("this store was closed")
        if self._pid != os.getpid():
            raise Unavailable("a store does not cross a fork: open it again in this process")
        return self._environment

    @contextmanager
    def view(self) -> Iterator[FileView]:
        with self._live().read() as transaction:
            view = FileView(transaction)
            try:
                yield view
            finally:
                view.open = False

    def size_bytes(self) -> int:
        environment = self._live().lmdb
        with self._live().read() as transaction:
            stat, page = transaction.stat(environment.open_db(None, transaction)), environment.stat()["psize"]
            return int(page * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    def close(self) -> None:
        if self._environment is not None and self._pid == os.getpid():
            _release(self._environment)
        self._environment = None


class FileWriter(FileReader):
    """The writer. Its epoch is checked inside every write transaction, so a replaced writer changes nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, create=True)
        try:
            self.epoch = self._raise_epoch()
        except BaseException:
            self.close()
            raise
        self._stored = _EPOCH.pack(FORMAT_VERSION, self.epoch)
        self._fenced = False
        self._commits = 0
        self._small_commits = 0

    def _raise_epoch(self) -> int:
        environment = self._live()
        crash.point("kv.open.before_epoch")
        try:
            with environment.lmdb.begin(write=True) as transaction:
                stored = transaction.get(EPOCH_KEY)
                if stored is None and transaction.stat(environment.lmdb.open_db(None, transaction))["entries"]:
                    raise Invalid(f"{environment.path} is an LMDB database of something else; choose another path")
                epoch = _decode_epoch(stored) + 1
                transaction.put(EPOCH_KEY, _EPOCH.pack(FORMAT_VERSION, epoch))
        except lmdb.Error as error:
            raise Unavailable(f"the store at {environment.path} cannot be written: {error}") from error
        crash.point("kv.open.after_epoch")
        return epoch

    @contextmanager
    def view(self) -> Iterator[FileView]:
        if self._fenced:
            raise self._fence()
        with super().view() as view:
            yield view

    def commit(self, batch: Batch) -> None:
        environment = self._live()
        if self._fenced:
            raise self._fence()
        crash.point("kv.commit.before_sync")
        while True:
            try:
                self._write(environment, batch)
                break
            except lmdb.MapFullError:
                environment.grow()
            except lmdb.MapResizedError:
                environment.resize(0)
            except lmdb.DiskError as error:
                raise Unavailable(f"the disk of {environment.path} is full; nothing was committed") from error
            except lmdb.Error as error:
                raise Unavailable(f"LMDB could not commit to {environment.path}: {error}") from error
        crash.point("kv.commit.after_sync")

    def _write(self, environment: _Environment, batch: Batch) -> None:
        with environment.lmdb.begin(write=True) as transaction:
            if transaction.get(EPOCH_KEY) != self._stored:
                self._fenced = True
                raise self._fence()
            self._small_commits += batch.bytes <= SMALL_COMMIT_BYTES
            self._commits += 1
            if self._commits == RESERVE_EVERY:
                if self._small_commits == RESERVE_EVERY:
                    _reserve(environment)
                self._commits = self._small_commits = 0
            operations = batch.operations
            if len(operations) >= PUTMULTI_FROM:
                puts = [(key, value) for key, value in operations.items() if value is not None]
                with transaction.cursor() as cursor:
                    cursor.putmulti(puts)
                for key, value in operations.items():
                    if value is None:
                        transaction.delete(key)
                return
            for key, value in operations.items():
                if value is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, value)

    def _fence(self) -> Fenced:
        return Fenced(
            f"another writer has taken over the store at {self._live().path}; this one had epoch {self.epoch}"
        )

    def recover(self) -> None:
        """LMDB's failed transaction left nothing behind, so there is nothing to redo."""
        self._live()

    def maintain(self) -> None:
        """Free the reader slots of killed processes; they would keep replaced pages from being used again."""
        self._live().lmdb.reader_check()


def _reserve(environment: _Environment) -> None:
    """Extend the file with zeros behind the last page in use. The caller is inside a write transaction, which keeps
    every other writer, an old owner's too, from growing the file at the same time."""
    used = (environment.lmdb.info()["last_pgno"] + 1) * environment.lmdb.stat()["psize"]
    with (environment.path / "data.mdb").open("r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size - used >= RESERVE_LOW_BYTES:
            return
        try:
            os.pwrite(file.fileno(), bytes(RESERVE_BYTES), size)
        except OSError:
            os.ftruncate(file.fileno(), size)  # no room for comfort; the commit itself will say if it has none


def _decode_epoch(stored: bytes | None) -> int:
    if stored is None:
        return 0
    if len(stored) != _EPOCH.size or stored[0] != FORMAT_VERSION:
        raise Corrupt(f"the store's epoch record has version {stored[:1].hex()}; this release reads version 1")
    return int(_EPOCH.unpack(stored)[1])
