"""`file:PATH` — LMDB behind a commit log, the embedded default.

Durable means synced. A small commit is one record in the commit log and one sync; a large one is a commit of LMDB,
which syncs its pages and then its meta page, and takes along what the log holds. Any number of processes read the
same files while one writes.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from detent import crash
from detent.errors import Corrupt, DetentError, Fenced, Invalid, Unavailable
from detent.kv.base import FIRST_KEY, KEY_BYTES_MAX, RESERVED_PREFIX, Batch, BlockView, Objects
from detent.kv.commitlog import LOGGED_BYTES_MAX, CommitLog, remove_logs
from detent.kv.commitrecord import LogName, encode_record
from detent.kv.environment import (
    DAMAGE,
    STATE_KEY,
    Environment,
    EnvironmentState,
    acquire,
    corrupt,
    missing_log,
    reading,
    release,
)
from detent.kv.localobjects import LocalObjects
from detent.kv.logfollower import read_abandoned, take_over
from detent.kv.overlay import Layer, Overlay, merged
from detent.kv.room import mark
from detent.kv.stored import (
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    Check,
    OnDamage,
    digest_of,
    from_buffer,
    from_stored,
    seed_of,
    telling,
    to_stored,
)

SUCCESSOR_WAIT_S: Final = 10.0
"""How long a replaced writer waits to learn whether its successor found its last commit."""

HEIRS_MAX: Final = 16
"""Successions that are remembered, for writers that learn late that they were replaced."""

HEIRS_KEY: Final = RESERVED_PREFIX + b"heirs"
_HEIR: Final = struct.Struct("<QQ")

LAST_KEY: Final = b"\xff" * (KEY_BYTES_MAX + 1)
"""Above every key."""

logger = logging.getLogger("detent.kv")


class FileView(BlockView):
    """One LMDB read transaction, and what the commit log had on top of it."""

    _check: Check = staticmethod(from_stored)
    _buffers = False

    def __init__(self, transaction: Any, layer: Layer | None) -> None:
        self._transaction = transaction
        self._layer = layer

    def check_with(self, check: Check, *, buffers: bool) -> None:
        """Make values in another way. `buffers` says that the transaction hands out LMDB's own bytes, to be copied."""
        self._check = check
        self._buffers = buffers

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if key < FIRST_KEY:
            return None
        if self._layer is not None:
            version = self._layer.find(key)
            if version is not None:
                return version[1]
        try:
            stored = self._transaction.get(key)
        except DAMAGE as error:
            raise corrupt(error) from error
        return None if stored is None else self._check(key, stored)

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        start = max(start, FIRST_KEY)
        if self._layer is not None:
            return self._merged(self._layer, start, end, reverse, limit)
        stored = self._stored(start, end, reverse)
        return stored if limit is None else islice(stored, limit)

    def _merged(
        self, layer: Layer, start: bytes, end: bytes | None, reverse: bool, limit: int | None
    ) -> Iterator[tuple[bytes, bytes]]:
        changes = layer.between(start, end, reverse=reverse)
        with closing(self._stored(start, end, reverse)) as stored:
            yield from islice(merged(stored, changes, reverse=reverse), limit)

    def _stored(self, start: bytes, end: bytes | None, reverse: bool) -> Generator[tuple[bytes, bytes]]:
        check, buffers, last = self._check, self._buffers, LAST_KEY if end is None else end
        self._require_open()
        with reading(), self._transaction.cursor() as cursor:
            if reverse:
                pairs = self._backward(cursor, end)
            else:
                pairs = cursor.iternext() if cursor.set_range(start) else iter(())
            for found, stored in pairs:
                key = bytes(found) if buffers else found
                if not start <= key < last:
                    return
                # `check` does this too; but a call for each record would cost as much as the rest of this loop.
                value = b"" if buffers else stored[:-CHECKSUM_BYTES]
                if buffers or not stored.endswith(digest_of(value, seed_of(key))):
                    checked = check(key, stored)
                    if checked is None:
                        continue
                    value = checked
                yield key, value
                if not self.open:
                    self._require_open()

    @staticmethod
    def _backward(cursor: Any, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if end is not None and cursor.set_range(end):
            if not cursor.prev():
                return
        elif not cursor.last():
            return
        yield from cursor.iterprev()


class Viewing:
    """A view while it lasts. (A class, because a generator costs as much again as the view, and consumers open one for
    each claim.)"""

    __slots__ = ("_environment", "_hold", "_large", "_on_damage", "_view")

    def __init__(self, environment: Environment, large: bool = False, on_damage: OnDamage | None = None) -> None:
        self._environment = environment
        self._large = large
        self._on_damage = on_damage

    def __enter__(self) -> FileView:
        self._hold, layer = self._environment.take_snapshot(self._large)
        self._view = FileView(self._hold.transaction, layer)
        if self._on_damage is not None:
            check = telling(self._on_damage)
            heirs = self._hold.transaction.get(HEIRS_KEY)
            if heirs is not None:
                check(HEIRS_KEY, heirs)
            self._view.check_with(check, buffers=False)
        elif self._large:
            self._view.check_with(from_buffer, buffers=True)
        return self._view

    def __exit__(self, *_: object) -> None:
        self._view.open = False
        self._environment.end(self._hold)


class FileReader:
    """Reads a store's file directly, in any process."""

    view_bytes = 1 << 20

    def __init__(self, path: Path, *, create: bool = False, restoring: bool = False) -> None:
        self._pid = os.getpid()
        self._environment: Environment | None = acquire(path, create=create, restoring=restoring)
        self.objects: Objects = LocalObjects(path / "objects", like=path / "data.mdb")
        try:
            self._environment.state()  # refuses a store of another version
        except BaseException:
            FileReader.close(self)
            raise

    def _live(self) -> Environment:
        if self._environment is None:
            raise Unavailable("this store was closed")
        if self._pid != os.getpid():
            raise Unavailable("a store does not cross a fork: open it again in this process")
        return self._environment

    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Viewing:
        return Viewing(self._live(), large and on_damage is None, on_damage)

    def size_bytes(self) -> int:
        environment = self._live().lmdb
        with self._live().read() as transaction:
            stat, page = transaction.stat(environment.open_db(None, transaction)), environment.stat()["psize"]
            return int(page * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    def close(self) -> None:
        if self._environment is not None and self._pid == os.getpid():
            release(self._environment)
        self._environment = None


class FileWriter(FileReader):
    """The writer. A successor raises the epoch, and the fence of this one's log, before it reads that log to its end;
    so what this one answers is read, and what is not read it does not answer."""

    def __init__(self, path: Path, *, restoring: bool = False) -> None:
        super().__init__(path, create=True, restoring=restoring)
        self._lock = threading.Lock()
        self._room = self._live().room
        self._log: CommitLog | None = None
        self._unsettled = 0  # the commit that was begun in the log and has not been accepted yet
        self._fenced = False
        self._folded = 0
        self._moving = False  # whether LMDB may be ahead of what this object believes
        self._without_log = False  # there was no room for one; it is tried again after a while
        try:
            with super().view():
                pass  # what is damaged is refused before anything is changed
            self._name = self._raise_epoch()
            self.epoch = self._name.epoch
            self._inherit()
        except BaseException:
            super().close()
            raise

    # -- becoming the writer ------------------------------------------------------------------------------------

    def _raise_epoch(self) -> LogName:
        environment = self._live()

        def raise_it(transaction: Any) -> LogName:
            stored = transaction.get(STATE_KEY)
            if stored is None and transaction.stat(environment.lmdb.open_db(None, transaction))["entries"]:
                raise Invalid(f"{environment.path} is an LMDB database of something else; choose another path")
            state = (
                EnvironmentState(store=int.from_bytes(os.urandom(8), "big"))
                if stored is None
                else EnvironmentState.decode(stored)
            )
            state = state._replace(epoch=state.epoch + 1)
            transaction.put(STATE_KEY, state.encode())
            return LogName(state.store, state.epoch)

        crash.point("kv.open.before_epoch")
        name = environment.write(raise_it)
        crash.point("kv.open.after_epoch")
        return name

    def _inherit(self) -> None:
        """Move what the last writer left in its log into LMDB; from here on the log is this writer's."""
        path, state = self._live().path, self._live().state()
        left = Overlay(state.folded)
        if state.logged:
            try:
                left = take_over(path, state.log, state.folded)
            except FileNotFoundError as error:
                raise Corrupt(missing_log(path, state)) from error
        # A data file that was restored from a backup may stand beside a later log, of an epoch that comes again.
        remove_logs(path, state.store, range(self.epoch, self.epoch + 1))
        self._fold(left.latest(), left.last, heir_of=state.log_epoch)
        mark(path)
        crash.point("kv.open.after_fold")
        remove_logs(path, state.store, range(self.epoch))

    @property
    def full(self) -> bool:
        """Whether the disk is full, so that only what takes no more room should be committed."""
        if not self._room.full:
            return False
        self._look_at_room(self._live(), keep=True)  # there may be room again
        return self._room.full

    # -- committing ---------------------------------------------------------------------------------------------

    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Viewing:
        if self._fenced:
            raise self._fence()
        return super().view(large=large, on_damage=on_damage)

    def commit(self, batch: Batch) -> None:
        self._live()
        with self._lock:
            if self._fenced:
                raise self._fence()
            if self._unsettled:
                raise Unavailable("a commit was interrupted; recover before the next one")
            if self._moving:
                self._look_again()
            crash.point("kv.commit.before_sync")
            if not (batch.bytes <= LOGGED_BYTES_MAX and self._commit_to_log(batch)):
                self._fold(batch.operations, self._last + 1)
            crash.point("kv.commit.after_sync")

    @property
    def _last(self) -> int:
        return self._folded if self._log is None else self._log.overlay.last

    def _commit_to_log(self, batch: Batch) -> bool:
        """Whether the log had room; then the batch is durable."""
        log = self._log or (None if self._without_log else self._create_log())
        if log is None:
            return False
        number = log.overlay.last + 1
        record = encode_record(self._name, number, batch.operations)
        size = sum(map(len, record))
        if not log.has_room(size):
            return False
        self._unsettled = number
        try:
            log.write(record, size)
        except OSError as error:
            raise Unavailable(f"the commit log of {self._live().path} could not be written: {error}") from error
        if log.tip.fenced and not self._found_by_successor(number):
            raise self._fence()
        log.accept(number, batch.operations)
        self._unsettled = 0
        return True

    def _create_log(self) -> CommitLog | None:
        environment = self._live()
        try:
            log = CommitLog(environment.path, self._name, self._folded)
        except OSError as error:
            logger.warning("no commit log at %s, so each commit goes to LMDB for now: %s", environment.path, error)
            self._without_log = True
            return None
        try:
            # LMDB says from now on that there is a log. A successor that looked for one before this is seen here.
            self._fold({}, self._folded, logged=True)
        except BaseException:
            log.close()
            raise
        environment.log = self._log = log
        self._look_at_room(environment)
        return log

    def _found_by_successor(self, number: int) -> bool:
        """This writer was replaced while it wrote. Its successor says whether the record had come in time."""
        self._fenced = True
        deadline = time.monotonic() + SUCCESSOR_WAIT_S
        while time.monotonic() < deadline:
            with self._live().read() as transaction:
                state = EnvironmentState.decode(transaction.get(STATE_KEY))
                if state.log_epoch != self.epoch:
                    heirs = dict(_HEIR.iter_unpack(_heirs_in(transaction)))
                    if self.epoch in heirs:
                        return number <= int(heirs[self.epoch])
                    break
            time.sleep(0.01)
        raise Unavailable("this writer was replaced during a commit, and cannot say whether it was kept")

    def _fence(self) -> Fenced:
        return Fenced(
            f"another writer has taken over the store at {self._live().path}; this one had epoch {self.epoch}"
        )

    # -- LMDB ---------------------------------------------------------------------------------------------------

    def _fold(
        self,
        changes: dict[bytes, bytes | None],
        number: int,
        *,
        logged: bool | None = None,
        heir_of: int | None = None,
    ) -> None:
        """One commit of LMDB: what the log holds, then `changes`. It then stands at commit `number`."""
        environment = self._live()
        if self._log is not None and self._log.overlay.last > self._log.overlay.base:
            changes = {**self._log.overlay.latest(), **changes}
        if logged is None:
            logged = self._log is not None
        state = EnvironmentState(self._name.store, self.epoch, self.epoch, number, logged)
        crash.point("kv.fold.before_sync")
        self._moving = True
        environment.write(lambda transaction: self._write(transaction, changes, state, heir_of), changes)
        crash.point("kv.fold.after_sync")
        self._restart(number)

        self._look_at_room(environment)

    def _restart(self, number: int) -> None:
        if self._log is not None:
            self._log.restart(number)
        self._folded = number
        self._moving = False

    def _look_at_room(self, environment: Environment, *, keep: bool = False) -> None:
        room, log = environment.room, self._log
        with environment.read():
            pass  # LMDB is opened again if it has to be
        room.look(environment.lmdb, keep=keep)
        if log is not None:
            log.hold(room.log_bytes, room.log_keys)

    def _write(
        self, transaction: Any, changes: dict[bytes, bytes | None], state: EnvironmentState, heir_of: int | None
    ) -> None:
        if EnvironmentState.decode(transaction.get(STATE_KEY)).epoch != self.epoch:
            self._fenced = True
            raise self._fence()
        transaction.put(STATE_KEY, state.encode())
        if heir_of is not None:
            known = _heirs_in(transaction)[-_HEIR.size * (HEIRS_MAX - 1) :]
            transaction.put(HEIRS_KEY, to_stored(HEIRS_KEY, known + _HEIR.pack(heir_of, state.folded)))
        put_changes(transaction, changes)

    # -- after a failure, now and then, at last -----------------------------------------------------------------

    def recover(self) -> None:
        """Settle a commit that was interrupted: either all readers see it, or none ever will."""
        with self._lock:
            self._look_again()
            log, number = self._log, self._unsettled
            if log is not None and number > self._last:
                self._fold({}, number)  # past its number, the record in the log counts no more
            elif log is not None and number == self._last > self._folded:
                log.publish()
            self._unsettled = 0

    def _look_again(self) -> None:
        """Ask LMDB how far it is: a commit of it may have been durable when it was interrupted."""
        state = self._live().state()
        if state.epoch != self.epoch:
            self._fenced = True
            raise self._fence()
        log = self._log
        if log is None or not log.overlay.base == self._folded == state.folded < log.overlay.last:
            self._restart(state.folded)  # the log has nothing that continues this state
        self._moving = False

    def maintain(self) -> None:
        """Free the reader slots of killed processes, and move what the log holds to LMDB."""
        self._live().lmdb.reader_check()
        with self._lock:
            self._without_log = False
            if self._moving:
                self._look_again()
            if not self._unsettled and not self._fenced and self._last > self._folded:
                self._fold({}, self._last)
            self._look_at_room(self._live(), keep=True)

    def close(self) -> None:
        """What the log holds moves to LMDB: a store that was closed is its data file, and no log."""
        environment, log = self._environment, self._log
        if environment is not None and log is not None and self._pid == os.getpid():
            with self._lock:
                try:
                    self._empty_log(environment)
                except DetentError as error:
                    logger.warning("the next opener of %s will replay its commit log: %s", environment.path, error)
                finally:
                    if environment.log is log:
                        environment.log = None
                    self._log = None
                    log.close()
        super().close()

    def _empty_log(self, environment: Environment) -> None:
        if self._fenced or self._unsettled:
            return
        if self._moving:
            self._look_again()
        self._fold({}, self._last, logged=False)
        crash.point("kv.close.after_fold")
        remove_logs(environment.path, self._name.store, range(self.epoch, self.epoch + 1))


def _heirs_in(transaction: Any) -> bytes:
    stored = transaction.get(HEIRS_KEY)
    return b"" if stored is None else from_stored(HEIRS_KEY, stored)


def put_changes(
    transaction: Any,
    changes: Mapping[bytes, bytes | None],
    stored: Callable[[bytes, bytes], bytes] = to_stored,
) -> None:
    """In order of keys: most records then go where the one before them went."""
    with transaction.cursor() as cursor:
        cursor.putmulti((key, stored(key, value)) for key, value in sorted(changes.items()) if value is not None)
    for key in sorted(key for key, value in changes.items() if value is None):
        transaction.delete(key)


def _unchecked(_key: bytes, value: bytes) -> bytes:
    """How a store of the version before this one holds a value."""
    return value


def abandon_log(path: Path) -> Path | None:
    """Let a store go on although its commit log is damaged or missing, with the commits that can be read up to the
    first that cannot. The file, if it is there, is kept under another name. The caller holds the owner's lock."""

    def forget(transaction: Any) -> None:
        epoch = state.epoch + 1
        put_changes(transaction, readable.latest(), to_stored if state.version == FORMAT_VERSION else _unchecked)
        now = state._replace(epoch=epoch, log_epoch=epoch, folded=readable.last, logged=False)
        transaction.put(STATE_KEY, now.encode())

    environment = acquire(path, create=False)
    try:
        state = environment.state(any_version=True)  # a store must not need its log to be upgraded
        log, kept = (state.log.path(path, kind) for kind in ("log", "abandoned"))
        if log.exists():
            log.rename(kept)
        crash.point("kv.abandon.after_rename")  # a log that is only missing is refused too, until this is asked again
        readable = read_abandoned(path, state.log, state.folded) if state.logged else Overlay(state.folded)
        environment.write(forget)
        return kept if kept.exists() else None
    finally:
        release(environment)
