"""Bringing a store of an earlier release to the format of this one, in place.

    upgrade("file:./data")          # an `Upgraded`: from which version, and how many records

What is rewritten, and how far that is, becomes durable in the same commit, a chunk at a time. So an upgrade that was
interrupted is finished by another one; until then every reader and writer refuses the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from detent import crash
from detent.errors import Corrupt, Invalid, NotFound, Unavailable
from detent.kv.base import FIRST_KEY, RESERVED_PREFIX
from detent.kv.commitlog import remove_logs
from detent.kv.commitrecord import LogName
from detent.kv.environment import STATE_KEY, UPGRADABLE, Environment, EnvironmentState, acquire, missing_log, release
from detent.kv.file import HEIRS_KEY
from detent.kv.oldlog import read_old_log
from detent.kv.overlay import Overlay
from detent.kv.ownership import OwnerLock
from detent.kv.stored import FORMAT_VERSION, UPGRADING, from_stored, to_stored
from detent.kv.urls import parse_url

CHUNK_BYTES: Final = 8 << 20
CHUNK_RECORDS: Final = 20_000
"""What one commit rewrites. Its pages are free again two commits later, so the file hardly grows."""

CURSOR_KEY: Final = RESERVED_PREFIX + b"upgrade"
"""While an upgrade is under way: the version that it began with, u8, then the last key that is rewritten."""

Progress = Callable[[int, int], None]
"""Called with how many bytes are done, and about how many there are."""


class Upgraded(NamedTuple):
    """What an upgrade did. `before` is the version that the store had; the present one if there was nothing to do."""

    before: int
    records: int


class Chunk(NamedTuple):
    """Records of a store as they are to be, and the last key of them."""

    stored: dict[bytes, bytes]
    last: bytes
    size: int


class UpgradeCursor(NamedTuple):
    """How far an upgrade is."""

    before: int
    last: bytes

    def encode(self) -> bytes:
        """The record, as it is stored."""
        return to_stored(CURSOR_KEY, bytes([self.before]) + self.last)

    @classmethod
    def decode(cls, stored: bytes | None) -> UpgradeCursor:
        """Read it back."""
        if stored is None:
            raise Corrupt("the store says that its upgrade is under way, and not how far it is: restore it from a copy")
        value = from_stored(CURSOR_KEY, stored)
        return cls(value[0], value[1:])


def upgrade(url: str, progress: Progress | None = None) -> Upgraded:
    """Bring a store to this release's format. `Unavailable` if another process owns it."""
    location = parse_url(url)
    if location.scheme == "memory":
        raise Invalid("a memory: store ends with its process, so it is never of an earlier release")
    if location.scheme == "file":
        return _upgrade_file(location.directory, progress)
    from detent.kv._slate_upgrade import upgrade_slate

    return upgrade_slate(url, progress)


def chunks(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    """Records without a checksum, as they are to be, so many at a time."""
    iterator = iter(pairs)
    while True:
        chunk: dict[bytes, bytes] = {}
        size, last = 0, b""
        for key, value in islice(iterator, CHUNK_RECORDS):
            chunk[key] = to_stored(key, value)
            size, last = size + len(key) + len(value), key
            if size >= CHUNK_BYTES:
                break
        if not chunk:
            return
        yield Chunk(chunk, last, size)


# -- file: --------------------------------------------------------------------------------------------------------


def _upgrade_file(path: Path, progress: Progress | None) -> Upgraded:
    if not (path / "data.mdb").exists():
        raise NotFound(f"there is no store at {path}")
    lock = OwnerLock(path)
    if not lock.try_acquire():
        raise Unavailable("another process has this store open: end it first")
    try:
        environment = acquire(path, create=False)
        try:
            return _FileUpgrade(environment, progress).run()
        finally:
            release(environment)
    finally:
        lock.release()


class _FileUpgrade:
    """The upgrade of one `file:` store, whose lock is held."""

    def __init__(self, environment: Environment, progress: Progress | None) -> None:
        self._environment = environment
        self._progress = progress
        self._state = environment.state(any_version=True)

    def run(self) -> Upgraded:
        """Do what is left of it."""
        if self._state.version == FORMAT_VERSION:
            return Upgraded(FORMAT_VERSION, 0)
        if self._state.version == UPGRADABLE:
            self._begin()
        # The log is in LMDB by now; an upgrade that was interrupted may have left it.
        remove_logs(self._environment.path, self._state.store, range(self._state.epoch + 1))
        with self._environment.read() as transaction:
            cursor = UpgradeCursor.decode(transaction.get(CURSOR_KEY))
        records = self._rewrite(cursor)
        self._end()
        return Upgraded(cursor.before, records)

    def _begin(self) -> None:
        """Take the store over, move its log to LMDB, and say that the upgrade has begun: from here on only an upgrade
        opens it."""
        left = _take_over_old_log(self._environment)
        state = self._environment.state(any_version=True)
        changes = left.latest()
        begun = state._replace(log_epoch=state.epoch, folded=left.last, logged=False, version=UPGRADING)

        def begin(transaction: Any) -> None:
            for key, value in changes.items():
                if value is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, value)
            transaction.put(CURSOR_KEY, UpgradeCursor(UPGRADABLE, b"").encode())
            transaction.put(STATE_KEY, begun.encode())

        crash.point("kv.upgrade.before_begin")
        self._environment.write(begin, changes)
        crash.point("kv.upgrade.after_begin")
        self._state = begun

    def _rewrite(self, cursor: UpgradeCursor) -> int:
        records = done = 0
        total = self._total()
        while (chunk := self._next_chunk(cursor.last)) is not None:
            cursor = cursor._replace(last=chunk.last)
            crash.point("kv.upgrade.before_chunk")
            self._put({**chunk.stored, CURSOR_KEY: cursor.encode()})
            crash.point("kv.upgrade.after_chunk")
            records += len(chunk.stored)
            done += chunk.size
            if self._progress is not None:
                self._progress(min(done, total), total)
        return records

    def _next_chunk(self, after: bytes) -> Chunk | None:
        with self._environment.read() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(after or FIRST_KEY)
            if found and cursor.key() == after:
                found = cursor.next()
            return next(chunks(cursor.iternext()), None) if found else None

    def _put(self, stored: dict[bytes, bytes]) -> None:
        def put(transaction: Any) -> None:
            with transaction.cursor() as cursor:
                cursor.putmulti(sorted(stored.items()))

        self._environment.write(put, stored)

    def _end(self) -> None:
        """All records are of this release; so is the store, from this commit on."""

        def end(transaction: Any) -> None:
            heirs = transaction.get(HEIRS_KEY)
            if heirs is not None:
                transaction.put(HEIRS_KEY, to_stored(HEIRS_KEY, heirs))
            transaction.delete(CURSOR_KEY)
            transaction.put(STATE_KEY, self._state._replace(version=FORMAT_VERSION).encode())

        crash.point("kv.upgrade.before_end")
        self._environment.write(end)
        crash.point("kv.upgrade.after_end")

    def _total(self) -> int:
        with self._environment.read() as transaction:
            stat = transaction.stat(self._environment.lmdb.open_db(None, transaction))
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return int(pages * self._environment.lmdb.stat()["psize"])


def _take_over_old_log(environment: Environment) -> Overlay:
    """What the last owner left in its commit log, as an owner of its own release would find it: the epoch is raised
    before the log is read."""

    def raise_epoch(transaction: Any) -> EnvironmentState:
        state = EnvironmentState.decode(transaction.get(STATE_KEY), any_version=True)
        transaction.put(STATE_KEY, state._replace(epoch=state.epoch + 1).encode())
        return state

    state = environment.write(raise_epoch)
    try:
        return read_old_log(environment.path, LogName(state.store, state.log_epoch), state.folded)
    except FileNotFoundError:
        if state.logged:
            raise Corrupt(missing_log(environment.path, state)) from None
        return Overlay(state.folded)
