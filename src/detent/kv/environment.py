"""One LMDB environment for each process and file, with the commit log of the file's writer laid over it.

The traps of LMDB are handled here: an environment must not be opened twice in a process nor cross a fork, killed
readers leave their slots behind, and the map has to grow.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import lmdb

from detent.errors import Corrupt, NotFound, Unavailable
from detent.kv.base import RESERVED_PREFIX
from detent.kv.commitlog import CommitLog
from detent.kv.commitrecord import LogName
from detent.kv.localobjects import PRIVATE, make_directories, sync_directory
from detent.kv.logfollower import LogFollower
from detent.kv.metapages import check_meta_pages
from detent.kv.overlay import Layer
from detent.kv.pages import pages_for
from detent.kv.room import RESERVE, DiskRoom
from detent.kv.stored import (
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    NOT_RESTORED,
    UPGRADING,
    from_stored,
    needs_upgrade,
    to_stored,
)

MAP_BYTES_FIRST = 4 << 30
"""Address space of a new map. It is not disk space; it doubles whenever it is full."""

MAP_BYTES_MAX: Final = 1 << 46
"""64 TiB: half of what user space can address on common machines."""

READERS_MAX: Final = 4096
"""Reader slots (64 bytes each in the lock file): every Spark worker of a large machine takes one."""

GROW_WAIT_S: Final = 30.0
"""How long a resize waits for the views of this process to end before it gives up."""

FREE_BYTES_MIN: Final = 512 << 10
"""What a new store takes: LMDB's first pages and its lock file."""

LOST_VIEWS_S: Final = 0.05
"""How often a resize looks whether a view that an interrupt has lost is gone; it does not tell."""

SNAPSHOT_TRIES: Final = 1000
"""A snapshot is taken again when the log moved on between LMDB's part and its own, a few times a second at most."""

T = TypeVar("T")
logger = logging.getLogger("detent.kv")

RESTORE_MARK: Final = "restoring"
"""A file that stands in a store's folder from before the first record of a restore until after the last one."""

STATE_KEY: Final = RESERVED_PREFIX + b"epoch"
UPGRADABLE: Final = 2
"""The version before the present one: records without a checksum."""

_STATE: Final = struct.Struct("<BQQQQB")


class EnvironmentState(NamedTuple):
    """What LMDB says of its writers: the newest one's epoch, whose log continues it, and from which commit on.

    `store` is a number that no other store has. `logged` says that there is such a log: if it is not there, something
    is wrong. `version` is that of the store's records.
    """

    store: int = 0
    epoch: int = 0
    log_epoch: int = 0
    folded: int = 0
    logged: bool = False
    version: int = FORMAT_VERSION

    @property
    def log(self) -> LogName:
        """The log that continues LMDB."""
        return LogName(self.store, self.log_epoch)

    def encode(self) -> bytes:
        """The record, as it is stored."""
        record = _STATE.pack(self.version, *self[:-1])
        return record if self.version == UPGRADABLE else to_stored(STATE_KEY, record)

    @classmethod
    def decode(cls, stored: bytes | None, *, any_version: bool = False) -> EnvironmentState:
        """The state; a new store has none. A store of another version is refused, unless `any_version`."""
        if stored is None:
            return cls()
        version = stored[0] if stored else -1
        old = version == UPGRADABLE
        known = old or version in {FORMAT_VERSION, UPGRADING}
        if not known or len(stored) != _STATE.size + (0 if old else CHECKSUM_BYTES):
            raise Corrupt(
                f"the store's epoch record has version {stored[:1].hex()} and {len(stored)} bytes; this release reads "
                f"version {FORMAT_VERSION}"
            )
        _, store, epoch, log_epoch, folded, logged = _STATE.unpack(stored if old else from_stored(STATE_KEY, stored))
        if version != FORMAT_VERSION and not any_version:
            raise needs_upgrade(version)
        return cls(store, epoch, log_epoch, folded, bool(logged), version)


class _Hold:
    """A read transaction of this process. Where an interrupt loses one, it is gone with its last reference."""

    __slots__ = ("__weakref__", "transaction")

    def __init__(self) -> None:
        self.transaction: Any = None


LENGTHEN_BYTES: Final = 1 << 20
"""The file grows in steps of this."""


class Environment:
    """One LMDB environment, shared by all readers and writers of this process that use the same file."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.users = 0
        self.room = DiskRoom(path)
        self._gate = threading.Condition()
        self._views: weakref.WeakSet[_Hold] = weakref.WeakSet()
        self._resizing = False
        self._awaited = 0  # how many wait for the views to end
        self.log: CommitLog | None = None  # of the writer in this process, if there is one
        self._follower: LogFollower | None = None
        self._seen: tuple[bytes, EnvironmentState] = (b"", EnvironmentState())
        self._following = threading.Lock()
        self._closed: Any = None  # of LMDB after an error, if it could not be opened again
        self._file_bytes = 0  # how long the data file is at least, as far as its writer knows
        self.lmdb = self._open(path, create)
        self._refuse_truncated()
        self.lmdb.reader_check()

    @staticmethod
    def _open(path: Path, create: bool) -> Any:
        size = path / "data.mdb"
        check_meta_pages(size)
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
                # No process can write to a read-only file system, so readers need no lock there.
                return lmdb.open(os.fspath(path), readonly=True, lock=False, **options)
            if "denied" in str(error):
                raise Unavailable(
                    f"{path} may not be opened: readers too need the right to write its lock.mdb, where they say what "
                    "they read, and its data.mdb, which LMDB opens for writing"
                ) from error
            if "already open" in str(error):
                raise Unavailable(
                    f"{path} is open in the process that this one was forked from, and LMDB does not cross a fork: "
                    "start workers with 'spawn' instead of 'fork', or open the store in the children only"
                ) from error
            if os.strerror(errno.EAGAIN) in str(error):
                raise Unavailable(
                    f"{path} is open in another process with the number {os.getpid()}, of another PID namespace such "
                    "as a container's, and LMDB tells processes apart by this number: let both share a namespace, or "
                    "reach the store through `detent serve`"
                ) from error
            if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError | lmdb.CorruptedError):
                raise Corrupt(f"{path} holds no readable store: {error}") from error
            raise Unavailable(f"the store at {path} could not be opened: {error}") from error

    def _refuse_truncated(self) -> None:
        """LMDB reads through a map: a page that the file lacks would end the process with a bus error."""
        needed = (self.lmdb.info()["last_pgno"] + 1) * self.lmdb.stat()["psize"]
        size = (self.path / "data.mdb").stat().st_size
        if size < needed:
            self.lmdb.close()
            raise Corrupt(f"{self.path / 'data.mdb'} has {size} bytes and needs {needed}: it was cut short")

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read transaction; another process that grew the map is followed."""
        hold = self._begin()
        try:
            yield hold.transaction
        finally:
            self.end(hold)

    def state(self, *, any_version: bool = False) -> EnvironmentState:
        """What LMDB says of its writers now. A store of another version is refused, unless `any_version`."""
        with self.read() as transaction:
            return EnvironmentState.decode(_stored_state(transaction), any_version=any_version)

    def write(self, work: Callable[[Any], T], changes: Mapping[bytes, bytes | None] | None = None) -> T:
        """One durable commit of LMDB: `work` gets its write transaction, and again a new one when the map had to grow.
        It is all there afterwards, or `Unavailable` says why nothing is. `changes` are what it will put and delete, if
        that is much."""
        turned = False
        with self.read():
            pass  # LMDB is opened again if it has to be
        while True:
            try:
                self._lengthen(changes or {})
                with self.lmdb.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self.grow()
            except lmdb.MapResizedError:
                self.resize(0)
            except lmdb.Error as error:
                if isinstance(error, DAMAGE):
                    raise corrupt(error) from error
                if isinstance(error, lmdb.DiskError) or is_full(self.path):
                    self.room.strike()
                    if not turned and self._turn_pages():
                        turned = True
                        continue
                    raise Unavailable(f"the disk of {self.path} is full; nothing was committed") from error
                raise Unavailable(f"LMDB could not commit to {self.path}: {error}") from error

    def _turn_pages(self) -> bool:
        """LMDB takes a free page again two commits after it became free: make two small ones. Whether it could."""
        try:
            for _ in range(2):
                with self.lmdb.begin(write=True) as transaction:
                    stored = transaction.get(STATE_KEY)
                    if stored is None:
                        return False
                    transaction.put(STATE_KEY, stored)
        except lmdb.Error:
            return False
        return True

    def _lengthen(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Make the file as long as the commit may need. LMDB counts pages that it takes and gives back in one commit
        and never writes, so a whole file could end before the last page that was counted; then nothing could tell it
        from one that was cut short. What is added takes no room on the disk."""
        page = self.lmdb.stat()["psize"]
        pages = self.lmdb.info()["last_pgno"] + 1 + pages_for(changes, self.lmdb.stat(), page)
        if pages * page <= self._file_bytes:
            return
        length = -(-pages * page // LENGTHEN_BYTES) * LENGTHEN_BYTES
        try:
            with (self.path / "data.mdb").open("r+b") as file:
                if os.fstat(file.fileno()).st_size < length:
                    os.ftruncate(file.fileno(), length)
        except OSError as error:
            raise Unavailable(f"{self.path / 'data.mdb'} could not be lengthened: {error}") from error
        self._file_bytes = length

    def take_snapshot(self, buffers: bool = False) -> tuple[_Hold, Layer | None]:
        """A read transaction, and the commits that are only in the log: together one state of the store. `end` it. With
        `buffers` the transaction hands out LMDB's own bytes, which are gone when it ends."""
        before: EnvironmentState | None = None
        for _ in range(SNAPSHOT_TRIES):
            hold = self._begin(buffers)
            try:
                state = self._state_in(hold.transaction)
                if not state.logged:  # LMDB says so before the first commit that is only in the log
                    return hold, None
                fits, layer = self._log_over(state, sure=state == before)
                if fits:
                    return hold, layer
            except BaseException:
                self.end(hold)
                raise
            self.end(hold)
            before = state
        raise Corrupt(f"the commit log of {self.path} does not go with its data file")

    def _state_in(self, transaction: Any) -> EnvironmentState:
        """What a snapshot of LMDB says of its writers; mostly the same as the one before said."""
        stored = _stored_state(transaction) or b""
        seen = self._seen
        if stored != seen[0]:
            stored = bytes(stored)
            seen = self._seen = (stored, EnvironmentState.decode(stored))
        return seen[1]

    def _log_over(self, state: EnvironmentState, *, sure: bool) -> tuple[bool, Layer | None]:
        """Whether the log goes with this state of LMDB, and what it has over it. If not, LMDB is to be looked at again:
        the state may be old by now. `sure` says that a second look has shown the same."""
        log = self.log
        try:
            if log is not None and log.name == state.log:
                layer = log.layer(state.folded)
            else:
                layer = self._follow(state, sure)
        except FileNotFoundError as error:
            if sure:
                raise Corrupt(missing_log(self.path, state)) from error
            return False, None  # all of it is in LMDB, and the log was removed: then the state has changed
        except Corrupt:
            if sure:
                raise
            return False, None
        if layer is None:
            return False, None
        return True, layer if layer.top > layer.floor else None

    def _follow(self, state: EnvironmentState, sure: bool) -> Layer | None:
        """What another process has in its log over this state; None if LMDB must be looked at again."""
        with self._following:
            follower = self._follower
            if follower is None or follower.name != state.log or follower.is_removed:
                self._stop_following()
                try:
                    follower = self._follower = LogFollower(self.path, state.log)
                except PermissionError as error:
                    raise Unavailable(f"the commit log of {self.path} may not be read: {error}") from error
            layer = follower.layer(state.folded)
            if follower.is_final and layer is not None and layer.top == layer.floor and not sure:
                return None  # its writer may have moved on and died since LMDB was looked at
            return layer

    def _stop_following(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def close(self) -> None:
        """Let go of the file, once the views of this process have ended."""
        self.quiesce()
        self._stop_following()
        self.lmdb.close()

    def end(self, hold: _Hold) -> None:
        """The transaction is over."""
        hold.transaction.abort()
        self._leave(hold)

    def _begin(self, buffers: bool = False) -> _Hold:
        while True:
            hold = _Hold()
            with self._gate:
                if self._resizing and not self._gate.wait_for(lambda: not self._resizing, GROW_WAIT_S):
                    raise Unavailable("the store's map has been waiting to grow for too long")
                self._views.add(hold)
                opened = self.lmdb
            try:
                hold.transaction = opened.begin(buffers=buffers)
                return hold
            except lmdb.PanicError as error:
                self._leave(hold)
                self._open_again(opened, error)
            except lmdb.MapResizedError:
                self._leave(hold)
                self.resize(0)
            except lmdb.ReadersFullError as error:
                self._leave(hold)
                if not self.lmdb.reader_check():
                    raise Unavailable(f"all {READERS_MAX} reader slots of {self.path} are taken") from error
            except lmdb.Error as error:
                self._leave(hold)
                if opened is self._closed:
                    self._open_again(opened, error)
                    continue
                raise Unavailable(f"the store at {self.path} was closed or cannot be read: {error}") from error

    def _leave(self, hold: _Hold) -> None:
        with self._gate:
            self._views.discard(hold)
            if self._awaited and not self._views:
                self._gate.notify_all()

    def _wait_for_views(self) -> bool:
        """Whether all views of this process have ended, after a while. The caller holds the gate."""
        deadline = time.monotonic() + GROW_WAIT_S
        self._awaited += 1
        try:
            while self._views and time.monotonic() < deadline:
                self._gate.wait(LOST_VIEWS_S)
        finally:
            self._awaited -= 1
        return not self._views

    def quiesce(self) -> None:
        """Wait, but not for ever, until no view of this process is open."""
        with self._gate:
            self._wait_for_views()

    def resize(self, size: int) -> None:
        """Set the map's size (0: follow the file). LMDB wants no transaction of this process open meanwhile."""
        with self._without_views("the store's map must grow"):
            self.lmdb.set_mapsize(size)

    @contextmanager
    def _without_views(self, why: str) -> Iterator[None]:
        with self._gate:
            if not self._gate.wait_for(lambda: not self._resizing, GROW_WAIT_S):
                raise Unavailable("the store's map has been waiting to grow for too long")
            self._resizing = True
            try:
                if not self._wait_for_views():
                    raise Unavailable(f"{why}, but a view of this process stays open")
                yield
            finally:
                self._resizing = False
                self._gate.notify_all()

    def _open_again(self, failed: Any, error: lmdb.Error) -> None:
        """LMDB could not write one of its two meta pages, and does nothing more until it is opened anew. It has put the
        old page back, into the cache of the system at least: that must be durable before another commit is made, or a
        power cut could bring the failed one back, over pages that were written since."""
        with self._without_views("LMDB must be opened again after an input/output error"):
            if self.lmdb is not failed:
                return  # another thread has done it
            logger.warning("LMDB failed to write a meta page of %s, and is opened again: %s", self.path, error)
            self._closed = failed
            failed.close()
            opened = self._open(self.path, create=False)
            try:
                opened.sync(True)
            except BaseException as again:
                opened.close()
                if not isinstance(again, lmdb.Error):
                    raise
                raise Unavailable(f"the disk of {self.path} fails: {again}; it is tried again") from again
            self.lmdb = opened

    def grow(self) -> None:
        """Double the map."""
        size = self.lmdb.info()["map_size"] * 2
        if size > MAP_BYTES_MAX:
            raise Unavailable(f"the store has reached the largest map of {MAP_BYTES_MAX} bytes")
        self.resize(size)


def _stored_state(transaction: Any) -> Any:
    try:
        return transaction.get(STATE_KEY)
    except DAMAGE as error:
        raise corrupt(error) from error


def missing_log(path: Path, state: EnvironmentState) -> str:
    """What to say when there should be a log, with its tip, and is none."""
    log = state.log.path(path, "log")
    missing = log.with_suffix(".tip").name if log.exists() else log.name
    return (
        f"{missing} of {path}, which belongs to the commit log, is missing. The log held the commits after number "
        f"{state.folded}: put it back, or restore the whole folder from a copy; `detent store abandon-log` goes on "
        "without what cannot be read"
    )


_environments: dict[tuple[int, int], Environment] = {}
_environments_lock = threading.Lock()


def _after_fork() -> None:
    # LMDB forbids using an environment in a child. The child forgets it, without closing: that would touch the
    # parent's locks. Other stores it may open.
    global _environments, _environments_lock
    _abandoned.append(_environments)
    _environments = {}
    _environments_lock = threading.Lock()


_abandoned: list[dict[tuple[int, int], Environment]] = []
os.register_at_fork(after_in_child=_after_fork)


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = (path / "data.mdb").stat()
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0)  # no file has this
    return status.st_dev, status.st_ino


def acquire(path: Path, *, create: bool, restoring: bool = False) -> Environment:
    """The environment of a store's file, opened at the first use in this process. Only a restore opens a store that is
    not whole yet."""
    try:
        if not restoring and (path / RESTORE_MARK).exists():
            raise Unavailable(NOT_RESTORED)
        return _acquire(path, create)
    except OSError as error:
        raise Unavailable(f"the store at {path} may not be opened: {error}") from error


def _check_place(path: Path, create: bool) -> None:
    """Refuse to take a folder for a new store that is none, and to make one where there is no room for it."""
    data = path / "data.mdb"
    if data.exists() and data.stat().st_size:
        return
    for left in ("commits-*.log", "objects/*", RESERVE):
        if any(path.glob(left)):
            raise Corrupt(
                f"{path} has been a store (it has {left}), and its data.mdb is missing or empty: restore the folder "
                "from a copy, or remove all of it"
            )
    if not create:
        raise NotFound(f"there is no store at {path}")
    if is_full(path):
        raise Unavailable(f"the disk of {path} is full; there is no room for a store")


def is_full(path: Path) -> bool:
    """Whether there is next to no room left. LMDB calls that an input/output error, or dies of it."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize < FREE_BYTES_MIN


def _acquire(path: Path, create: bool) -> Environment:
    if create:
        make_directories(path, PRIVATE)
    with _environments_lock:
        # By the file, not by its folder: a store that was deleted and made anew is another one.
        environment = _environments.get(_identity(path))
        if environment is None:
            _check_place(path, create)
            environment = Environment(path, create=create)
            _environments[_identity(path)] = environment
            if create:
                sync_directory(path)
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """One user less; the last one closes it."""
    with _environments_lock:
        environment.users -= 1
        if environment.users:
            return
        for identity, candidate in list(_environments.items()):
            if candidate is environment:
                del _environments[identity]
                environment.close()


# -- what LMDB finds wrong with its pages, said as one of our errors ---------------------------------------------------

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadTxnError)
"""The last one is what a transaction says for each further call."""


def corrupt(error: lmdb.Error) -> Corrupt:
    """The error to raise for one of these."""
    return Corrupt(f"the data file of the store is damaged ({error}): restore the store from a copy")


class reading:
    """Raises that error for what LMDB finds wrong in a with-block. (A class, because a generator costs much more.)"""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DAMAGE):
            raise corrupt(error) from error
