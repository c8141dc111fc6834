"""`s3://`, `gs://`, `az://` — SlateDB on an object store.

    writer = open_writer("s3://BUCKET/PREFIX")
    writer.commit(batch)                  # on the object store when this returns

A commit costs one PUT, so its latency is the object store's: few large batches beat many small ones. Opening a store
for writing fences the writer before it; that one learns it from its next commit, which raises `Fenced` and leaves no
trace. Readers, in any process, follow the log of commits and disturb no one else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from detent import crash
from detent.errors import DetentError, Fenced, LimitExceeded, Unavailable
from detent.kv._slate_reader import POLL_SECONDS, SlateReader
from detent.kv._slate_session import EPOCH_KEY, HEIR_KEYS, OPEN_SECONDS, Epoch, Place, Session, SlateView
from detent.kv.base import BATCH_BYTES_MAX, RESERVED_PREFIX, Batch
from detent.kv.stored import FORMAT_VERSION, OnDamage, from_stored, to_stored

COMMIT_SECONDS = 60.0
"""SlateDB retries a failed PUT without end. A caller should hear of an outage while it still waits."""

COMMITS_PER_TABLE = 1024
"""Maintenance writes a table after so many commits: an opening writer or reader replays what is in none, one GET each,
and SlateDB by itself would wait for four times as many."""

FATE_SECONDS = 15.0
"""How long a fenced commit waits for its successor to say what it found. Opening takes a second or two."""

FATE_POLL_SECONDS = 0.05

FENCES_KEPT = 1024
"""What a writer found of the one before it is kept until so many more have opened; a stopped process asks late."""

OLD_FENCE_KEYS = RESERVED_PREFIX + b"fence"
"""The same in a store of version 1, without a checksum: what is there stays for writers of then that ask late."""


def open_writer(url: str, *, commit_seconds: float = COMMIT_SECONDS, **stores: Any) -> SlateWriter:
    """Open a store for writing, creating it when it is new; every writer before this one is fenced.

    `NotFound` when the bucket does not exist, `Unavailable` when the object store cannot be reached. Tests may pass
    `object_store` (of slatedb) and `bucket` (of obstore) to replace what the URL names.
    """
    return _opened(SlateWriter(Place(url, **stores), commit_seconds))


def open_reader(url: str, *, poll_seconds: float = POLL_SECONDS, **stores: Any) -> SlateReader:
    """Open a store for reading; `NotFound` when there is none. It never fences a writer.

    A view is at most `poll_seconds` behind what was committed when it was opened; with 0 it is never behind. Reading
    keeps a checkpoint in the store, so the credentials need the right to write.
    """
    return _opened(SlateReader(Place(url, **stores), poll_seconds))


_Store = TypeVar("_Store", "SlateWriter", "SlateReader")


def _opened(store: _Store) -> _Store:
    try:
        store._open()
    except BaseException:
        store.close()
        raise
    return store


class SlateWriter(Session):
    """The writer. `view` shows durable data only: the snapshot behind it is replaced after a commit is durable."""

    epoch: int
    full = False
    _version = FORMAT_VERSION

    def __init__(self, place: Place, commit_seconds: float) -> None:
        super().__init__(place)
        self._commit_seconds = commit_seconds
        self._lock = threading.Lock()
        self._db: Any = None
        self._published: Any = None
        self._failure: DetentError | None = None
        self._untabled = 0
        self._number = 0

    def _open(self) -> None:
        crash.point("kv.open.before_epoch")
        settings = self._binding.Settings.default()
        # Commits flush by themselves; a timer beside them would only cost requests.
        settings.set("flush_interval", "null")
        builder = self._binding.DbBuilder(self._place.path, self._place.object_store)
        builder.with_settings(settings)
        self._db = self._run(builder.build(), OPEN_SECONDS)
        self._take_over()

    def _take_over(self) -> None:
        # The manifest's writer epoch may already be that of the next writer when we read it. This record cannot:
        # it is durable only while no later writer has fenced us, so it grows by one with each writer.
        before, last_commit, _ = Epoch.decode(self._run(self._db.get(EPOCH_KEY)))
        self.epoch = before + 1
        batch = self._numbered_batch()
        batch.put(_heir_key(before), to_stored(_heir_key(before), last_commit.to_bytes(8, "little")))
        if before >= FENCES_KEPT:
            batch.delete(_heir_key(before - FENCES_KEPT))
            batch.delete(OLD_FENCE_KEYS + _heir_key(before - FENCES_KEPT)[-8:])
        self._run(self._write(batch), self._commit_seconds)
        crash.point("kv.open.after_epoch")

    def _numbered_batch(self) -> Any:
        """A new batch that carries our epoch and its number: our successor finds the last one that is durable."""
        self._number += 1
        batch = self._binding.WriteBatch()
        batch.put(EPOCH_KEY, Epoch(self.epoch, self._number, self._version).encode())
        return batch

    async def _write(self, batch: Any, *, points: bool = False) -> None:
        """Write, flush, wait for durability, and only then let views see it."""
        handle = await self._db.write(batch)
        if points:
            crash.point("kv.commit.before_sync")
        wal = self._binding.FlushType.WAL
        await self._db.flush_with_options(self._binding.FlushOptions(flush_type=wal))
        await handle.await_durable()
        if points:
            crash.point("kv.commit.after_sync")
        self._published = await self._db.snapshot()
        self._untabled += 1

    def _require_usable(self) -> None:
        if self._db is None:
            raise Unavailable("this store was closed")
        if self._failure is None and self._db.status().close_reason == self._binding.CloseReason.FENCED:
            self._failure = Fenced(f"another writer has taken over {self._place.url}")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def commit(self, batch: Batch) -> None:
        """Make the batch durable, whole, before returning.

        A commit that was on the object store before a takeover succeeds, and the next call raises `Fenced`; after
        that every call does. An empty batch writes nothing: it raises `Fenced` when SlateDB has noticed a newer writer
        by itself, which it does about once a second, but does not ask the object store. After `Unavailable` the
        outcome is unknown, and views and commits are refused until :meth:`recover` has settled it.
        """
        with self._lock:
            self._require_usable()
            if batch.bytes > BATCH_BYTES_MAX:
                raise LimitExceeded(f"a batch of {batch.bytes} bytes is over the limit of {BATCH_BYTES_MAX}")
            if not batch.operations:
                return
            native = self._numbered_batch()
            for key, value in batch.operations.items():
                if value is None:
                    native.delete(key)
                else:
                    native.put(key, to_stored(key, value))
            self._settle(native, points=True)

    def _settle(self, native: Any, *, points: bool = False) -> None:
        """Write durably, or remember that the outcome is unknown. An interrupt (Ctrl-C) leaves the outcome open as
        well."""
        try:
            self._run(self._write(native, points=points), self._commit_seconds)
        except Fenced as error:
            self._failure = error
            if not self._found_durable():
                raise
            return
        except DetentError as error:
            self._failure = Unavailable(f"the outcome of a commit is unknown: {error}; call recover()")
            raise Unavailable(f"the commit failed, its outcome is unknown: {error}") from error
        except BaseException:
            self._failure = Unavailable("a commit was interrupted, its outcome is unknown: call recover()")
            raise
        self._failure = None

    def _found_durable(self) -> bool:
        """Whether the last commit, which SlateDB calls fenced, is durable all the same.

        SlateDB says so as soon as it sees the newer writer, even when the commit got onto the object store before the
        fence did. The newer writer has recorded which commit of ours it found last.
        """
        deadline = time.monotonic() + FATE_SECONDS
        try:
            with closing(_opened(SlateReader(self._place, 0))) as reader:
                while time.monotonic() < deadline:
                    with reader.view() as view:
                        found = view._raw_get(_heir_key(self.epoch))
                    if found is not None:
                        return self._number <= int.from_bytes(from_stored(_heir_key(self.epoch), found), "little")
                    time.sleep(FATE_POLL_SECONDS)
        except DetentError as error:
            raise Unavailable(f"fenced, and the commit's outcome is unknown: {error}") from error
        raise Unavailable("fenced by a writer that did not finish opening; the commit's outcome is unknown")

    def recover(self) -> None:
        """After an `Unavailable` commit: find out what became of it, and be usable again.

        Writes a record behind the doubtful one. When that is durable, so is everything before it, and views show it.
        """
        with self._lock:
            if isinstance(self._failure, Unavailable) and self._db is not None:
                self._settle(self._numbered_batch())
            self._require_usable()

    def maintain(self) -> None:
        """Write a table when many commits are in none, and delete uploads that died half-way.

        SlateDB compacts its tables and deletes replaced files by itself, in the background.
        """
        self._require_usable()
        self._write_table()
        self._files.remove_abandoned()

    def _write_table(self) -> None:
        if self._untabled >= COMMITS_PER_TABLE:
            self._untabled = 0
            table = self._binding.FlushOptions(flush_type=self._binding.FlushType.MEM_TABLE)
            self._run(self._db.flush_with_options(table), self._commit_seconds)

    @contextmanager
    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Iterator[SlateView]:  # noqa: ARG002
        """What was durable when the view was opened. A commit that is under way in another thread is not in it."""
        self._require_usable()
        view = SlateView(self, self._published, on_damage)
        try:
            view.check_own()
            yield view
        finally:
            view.open = False

    def close(self) -> None:
        with self._lock:
            db, self._db, self._published = self._db, None, None
            if db is not None:
                # No flush: whatever was acknowledged is durable, and nothing else may become so now.
                self._shut(db.shutdown_with_options(self._binding.CloseOptions(flush_type=None)))
            self._loop.stop()


def _heir_key(epoch: int) -> bytes:
    return HEIR_KEYS + epoch.to_bytes(8, "big")
