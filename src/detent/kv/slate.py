"""`s3://`, `gs://`, `az://` — SlateDB on an object store.

    writer = open_writer("s3://BUCKET/PREFIX")
    writer.commit(batch)                  # on the object store when this returns

A commit costs one PUT, so its latency is the object store's: few large batches beat many small ones. Opening a store
for writing fences the writer before it; that one learns it from its next commit, which raises `Fenced` and leaves no
trace. Readers, in any process, follow the log of commits and disturb no one else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from detent import crash
from detent.errors import Corrupt, DetentError, Exists, Fenced, LimitExceeded, NotFound, Unavailable
from detent.kv._slate_reader import POLL_SECONDS, SlateReader
from detent.kv._slate_session import (
    EPOCH_KEY,
    HEIR_KEYS,
    KEYS,
    OPEN_SECONDS,
    READ_SECONDS,
    Epoch,
    SlatePlace,
    SlateSession,
    SlateView,
    log_path,
)
from detent.kv.base import BATCH_BYTES_MAX, RESERVED_PREFIX, Batch
from detent.kv.stored import FORMAT_VERSION, RESTORING, OnDamage, from_stored, to_stored
from detent.runtime.backoff import Backoff, Failures

COMMIT_SECONDS = 60.0
"""SlateDB retries a failed PUT without end. A caller should hear of an outage while it still waits."""

COMMITS_PER_TABLE = 32
"""Maintenance, about once a second, writes a table after so many commits, whichever writers made them: an opening
writer or reader replays what is in none, two requests each. SlateDB by itself would wait for 4,096 of one writer."""

UNTABLED_MAX = 512
"""An opening writer that finds more than this in no table writes one at once: it may not live until the first
maintenance, and the next one would have still more to replay."""

TABLES_MAX = 128
"""So many small tables may wait to be compacted before SlateDB makes commits wait for it."""

TABLES_JOINED_MAX = 32
"""One compaction takes so many: at one table a second, more than come between two looks of the compactor."""

SETTINGS = {
    # Commits flush by themselves; a timer beside them would only cost requests.
    "flush_interval": "null",
    "l0_max_ssts": str(TABLES_MAX),
    "l0_max_ssts_per_key": str(TABLES_MAX),
    # An idle store asks the object store less than once a second. A fence is noticed at the next commit, or by a poll.
    "manifest_poll_interval": '"5s"',
    "compactor_options.poll_interval": '"15s"',
    "compactor_options.scheduler_options.max_compaction_sources": f'"{TABLES_JOINED_MAX}"',
    "compactor_options.worker.compactions_poll_interval": '"15s"',
    # What no manifest and no reader needs any more is deleted soon, so that the bucket does not grow under load.
    "garbage_collector_options.wal_options.interval": '"120s"',
    "garbage_collector_options.manifest_options.interval": '"120s"',
    "garbage_collector_options.compacted_options.interval": '"120s"',
    "garbage_collector_options.compactions_options.interval": '"120s"',
}

REOPENINGS_MAX = 5
"""How often in a row the object store may refuse a write, without another writer, before that is an error."""

REOPEN = Backoff(0.05, 1.0, jitter=0.5)

FATE_SECONDS = 30.0
"""How long a fenced commit waits for its successor to say what it found. Opening takes a second or two; a successor
that is slower than this leaves the commit unclear."""

FATE_POLL_SECONDS = 0.05

STEP_SECONDS = 1.0
"""How long one step of opening may take, at least, however short the caller's patience is."""

EPOCH_SECONDS = 5.0
"""How long a writer that has opened asks which epoch that has given it: one that does not know it counts as fenced with
the first write that is refused."""

FENCES_KEPT = 1024
"""What a writer found of the one before it is kept until so many more have opened; a stopped process asks late."""

OLD_FENCE_KEYS = RESERVED_PREFIX + b"fence"
"""The same in a store of version 1, without a checksum: what is there stays for writers of then that ask late."""


def open_writer(
    url: str, *, commit_seconds: float = COMMIT_SECONDS, open_seconds: float | None = None, **stores: Any
) -> SlateWriter:
    """Open a store for writing, creating it when it is new; every writer before this one is fenced.

    `NotFound` when the bucket does not exist, `Unavailable` when the object store cannot be reached, or does not take
    writes with these credentials. Tests may pass `object_store` (of slatedb) and `bucket` (of obstore) to replace what
    the URL names.
    """
    return _opened(SlateWriter(SlatePlace(url, **stores), commit_seconds, open_seconds or OPEN_SECONDS))


def open_reader(url: str, *, poll_seconds: float = POLL_SECONDS, **stores: Any) -> SlateReader:
    """Open a store for reading; `NotFound` when there is none. It never fences a writer.

    A view is at most `poll_seconds` behind what was committed when it was opened; with 0 it is never behind. Reading
    keeps a checkpoint in the store, so the credentials need the right to write.
    """
    return _opened(SlateReader(SlatePlace(url, **stores), poll_seconds))


_log = logging.getLogger(__name__)
_Store = TypeVar("_Store", "SlateWriter", "SlateReader")
_Result = TypeVar("_Result")


def _opened(store: _Store) -> _Store:
    try:
        store._open()
    except BaseException:
        store.close()
        raise
    return store


class SlateWriter(SlateSession):
    """The writer. `view` shows durable data only: the snapshot behind it is replaced after a commit is durable."""

    epoch: int
    full = False
    _version = FORMAT_VERSION

    def __init__(self, place: SlatePlace, commit_seconds: float, open_seconds: float = OPEN_SECONDS) -> None:
        super().__init__(place)
        self._commit_seconds = commit_seconds
        self._open_seconds = open_seconds
        self._closed = False
        self._lock = threading.Lock()
        self._db: Any = None
        self._published: Any = None
        self._failure: DetentError | None = None
        self._untabled = 0
        self._number = 0
        self._native_epoch: int | None = None
        """SlateDB's own epoch of this writer, if it is known for sure."""
        self._is_reopening = False
        """Whether it is not known yet that no other writer has come before SlateDB's writer was opened again."""

    def _open(self) -> None:
        crash.point("kv.open.before_epoch")
        self._build(self._open_seconds)
        for left in reversed(range(REOPENINGS_MAX)):
            try:
                self._take_over()
                break
            except Fenced:  # perhaps the object store refused it without another writer
                if not left or not self._is_alone():
                    raise
                self._build_again()
        self._untabled = self._count_untabled()
        if self._untabled > UNTABLED_MAX:
            self._write_table()

    def _build(self, seconds: float, *, is_ours: bool = False) -> None:
        """Open SlateDB's writer, which fences the one before it: `is_ours` if that may only be this one. A write that
        the object store refused without a reason looks like a damaged log to SlateDB, so it opens a few times."""
        deadline = time.monotonic() + seconds
        refused = Failures(REOPEN)
        while True:
            before = self._manifest_epoch(deadline - time.monotonic())
            if is_ours and (before != self._native_epoch or (refused.in_a_row and self._has_heir())):
                raise self._taken_over()
            try:
                self._build_once(before, deadline - time.monotonic())
                return
            except (Corrupt, Unavailable):
                self._note_epoch(before)
                pause_s = refused.failed()
                if refused.in_a_row >= REOPENINGS_MAX or time.monotonic() + pause_s >= deadline:
                    raise
                time.sleep(pause_s)

    def _build_once(self, before: int, seconds: float) -> None:
        settings = self._binding.Settings.default()
        for name, value in SETTINGS.items():
            settings.set(name, value)
        builder = self._binding.DbBuilder(self._place.path, self._place.object_store)
        builder.with_settings(settings)
        self._db = self._run(builder.build(), max(seconds, STEP_SECONDS), self.check_writable)
        self._note_epoch(before)

    def _note_epoch(self, before: int) -> None:
        """Each writer that opens raises SlateDB's epoch by one. If it rose by more, another one has opened since, and
        which is ours cannot be told."""
        try:
            now = self._manifest_epoch(EPOCH_SECONDS)
        except DetentError:
            self._native_epoch = None
            return
        if now != before:
            self._native_epoch = now if now == before + 1 else None

    def _manifest_epoch(self, seconds: float = READ_SECONDS) -> int:
        """The epoch of SlateDB's newest writer, which may be opening still; 0 in a store that has none."""
        manifest = self._run(self._admin.read_manifest(None), max(seconds, STEP_SECONDS))
        return 0 if manifest is None else int(manifest.writer_epoch)

    def _has_heir(self) -> bool:
        """Whether another writer has finished opening. After a try to open that failed, SlateDB's epoch does not tell:
        the try may have raised it, or the other one."""
        with closing(_opened(SlateReader(self._place, 0))) as reader:
            return Epoch.decode(reader.epoch_record).epoch > self.epoch

    def _taken_over(self) -> Fenced:
        return Fenced(f"another writer has taken over {self._place.url}")

    def _count_untabled(self) -> int:
        """How many commits of all writers are in no table."""
        replayed = log_path(self._run(self._admin.read_manifest(None)).replay_after_wal_id)
        return sum(1 for _ in self._files.stored(f"{KEYS}/wal/", after=replayed))

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
        if self._closed:
            raise Unavailable("this store was closed")
        if self._failure is None and self._is_refused(self._db):
            self._failure = self._taken_over()
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def _is_refused(self, db: Any) -> bool:
        return bool(db.status().close_reason == self._binding.CloseReason.FENCED)

    def _await_usable(self) -> None:
        """The same for threads without the lock: a writer that looks fenced may be opening again in the one that has
        it."""
        db = self._db
        if db is None or self._failure is not None or self._is_refused(db):
            with self._lock:
                self._require_usable()

    def _run_beside(self, work: Coroutine[Any, Any, _Result], seconds: float = READ_SECONDS) -> _Result:
        """Run what does not hold the lock, and what opening again may come in the way of."""
        try:
            return self._run(work, seconds)
        except Fenced as error:
            with self._lock:
                self._require_usable()
            raise Unavailable(f"{self._place.url} was opened again meanwhile: try again") from error

    def commit(self, batch: Batch) -> None:
        """Make the batch durable, whole, before returning.

        A commit that was on the object store before a takeover succeeds, and the next call raises `Fenced`; after
        that every call does. An empty batch writes nothing: it raises `Fenced` when SlateDB has noticed a newer writer
        by itself, which it does about once a second, but does not ask the object store. After `Unavailable` the
        outcome is unknown: commits are refused until :meth:`recover` has settled it, and views show the state before.
        """
        with self._lock:
            self._require_usable()
            if batch.bytes > BATCH_BYTES_MAX:
                raise LimitExceeded(f"a batch of {batch.bytes} bytes is over the limit of {BATCH_BYTES_MAX}")
            if not batch.operations:
                return
            self._settle(lambda: self._native(batch), points=True)

    def _native(self, batch: Batch) -> Any:
        native = self._numbered_batch()
        for key, value in batch.operations.items():
            if value is None:
                native.delete(key)
            else:
                native.put(key, to_stored(key, value))
        return native

    def _settle(self, made: Callable[[], Any], *, points: bool = False) -> None:
        """Write durably what `made` makes, or remember that the outcome is unknown. A write that the object store
        refused although no other writer has come is written again: S3 answers 409 to one of two requests that it
        handles at the same moment, and asks for a retry."""
        for _ in range(REOPENINGS_MAX):
            try:
                if self._written(made, points=points):
                    return
            except DetentError:
                raise
            except BaseException:  # an interrupt (Ctrl-C) leaves the outcome open as well
                self._failure = Unavailable("a commit was interrupted, and is not settled: call recover()")
                raise
        self._failure = Unavailable("the object store refused a commit again and again; call recover()")
        raise Unavailable(f"{self._place.url} refused a commit {REOPENINGS_MAX} times, and no other writer has come")

    def _written(self, made: Callable[[], Any], *, points: bool) -> bool:
        """Whether it is durable now; False if it certainly is not, and can be written again."""
        try:
            self._run(self._write(made(), points=points), self._commit_seconds, self.check_writable)
        except Fenced as error:
            self._failure = error
            if self._is_alone():
                with suppress(Fenced):  # by one that has come since, and may have found the commit
                    return self._reopened()
            if not self._found_durable():
                raise
            return True
        except DetentError as error:
            self._failure = Unavailable(f"an earlier commit is not settled: {error}; call recover()")
            raise Unavailable(f"a commit could not be written: {error}") from error
        self._failure = None
        return True

    def _is_alone(self) -> bool:
        """Whether no other writer has begun to open the store since this one did."""
        try:
            return self._native_epoch is not None and self._manifest_epoch() == self._native_epoch
        except DetentError:  # it cannot be asked: then the fence counts
            _log.warning("%s could not be asked who writes it", self._place.url, exc_info=True)
            return False

    def _build_again(self) -> None:
        _log.warning("%s refused a write, and no other writer has come: opening it again", self._place.url)
        refused, self._db = self._db, None
        if refused is not None:
            self._shut(refused.shutdown_with_options(self._binding.CloseOptions(flush_type=None)))
        self._build(self._commit_seconds, is_ours=True)

    def _reopened(self) -> bool:
        """Open SlateDB's writer anew, which the object store's refusal has closed, and see whether the last commit is
        durable."""
        self._is_reopening = True
        try:
            self._build_again()
            found = Epoch.decode(self._run(self._db.get(EPOCH_KEY)))
            if found.epoch != self.epoch:
                raise self._taken_over()
            self._published = self._run(self._db.snapshot())
        except Fenced as error:
            self._failure = error
            raise
        except DetentError as error:
            self._failure = Unavailable(f"an earlier commit is not settled: {error}; call recover()")
            raise Unavailable(f"{self._place.url} could not be opened again: {error}") from error
        self._failure, self._is_reopening = None, False
        return found.number >= self._number

    def _found_durable(self) -> bool:
        """Whether the last commit, which SlateDB calls fenced, is durable all the same.

        SlateDB says so as soon as it sees the newer writer, even when the commit got onto the object store before the
        fence did. The newer writer has recorded which commit of ours it found last.
        """
        try:
            with closing(_opened(SlateReader(self._place, 0))) as reader:
                deadline = time.monotonic() + FATE_SECONDS  # from here: opening a reader may take long as well
                while time.monotonic() < deadline:
                    with reader.view() as view:
                        newest = Epoch.decode(reader.epoch_record)
                        if newest.epoch == self.epoch and newest.number >= self._number:
                            return True
                        found = view._raw_get(_heir_key(self.epoch))
                    if found is not None:
                        return self._number <= int.from_bytes(from_stored(_heir_key(self.epoch), found), "little")
                    time.sleep(FATE_POLL_SECONDS)
        except DetentError as error:
            raise Unavailable(f"another writer has come, and cannot be asked what it found: {error}") from error
        raise Unavailable("another writer has come, and has not finished opening: it cannot be asked what it found")

    def recover(self) -> None:
        """After an `Unavailable` commit: find out what became of it, and be usable again.

        Writes a record behind the doubtful one. When that is durable, so is everything before it, and views show it.
        """
        with self._lock:
            if isinstance(self._failure, Unavailable) and not self._closed:
                if self._is_reopening:
                    self._reopened()
                else:
                    self._settle(self._numbered_batch)
            self._require_usable()

    def maintain(self) -> None:
        """Write a table when many commits are in none.

        SlateDB compacts its tables and deletes replaced files by itself, in the background. Uploads that died half-way
        are the sweeper's, about once an hour: listing them is the dearest request that an idle store could make.
        """
        self._await_usable()
        if self._untabled >= COMMITS_PER_TABLE:
            self._write_table()

    def _write_table(self) -> None:
        self._untabled = 0
        table = self._binding.FlushOptions(flush_type=self._binding.FlushType.MEM_TABLE)
        if (db := self._db) is not None:  # else it is opening again, or closed
            self._run_beside(db.flush_with_options(table), self._commit_seconds)

    @contextmanager
    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Iterator[SlateView]:  # noqa: ARG002
        """What was durable when the view was opened. A commit that is under way in another thread is not in it; nor is
        one that is not settled, which may become durable later: reading goes on while writing is refused."""
        if not self._shows_earlier():
            self._await_usable()
        view = SlateView(self, self._published, on_damage)
        try:
            view.check_own()
            yield view
        finally:
            view.open = False

    def _shows_earlier(self) -> bool:
        """Whether a commit is not settled, and the state before it can still be read."""
        db, published = self._db, self._published
        return type(self._failure) is Unavailable and None not in (db, published) and not self._is_refused(db)

    def close(self) -> None:
        with self._lock:
            db, self._db, self._published = self._db, None, None
            self._closed = True
            if db is not None:
                # With a table the next writer has nothing to replay. Without one if an outcome is unknown: what was
                # acknowledged is durable, and nothing else may become so now.
                flush = self._binding.FlushType.MEM_TABLE if self._untabled and self._failure is None else None
                self._shut(db.shutdown_with_options(self._binding.CloseOptions(flush_type=flush)))
            self._loop.stop()


class _RestoringWriter(SlateWriter):
    """The writer of a store that is being made from a backup, and that opens for nothing else."""

    _version = RESTORING

    def _take_over(self) -> None:
        stored = self._run(self._db.get(EPOCH_KEY))
        before = Epoch.decode(stored, any_version=True)
        if stored is not None and before.version != RESTORING:
            raise Exists(f"there is a store at {self._place.url}: restore to a prefix that is new")
        self.epoch = before.epoch + 1
        crash.point("kv.restore.before_mark")
        self._run(self._write(self._numbered_batch()), self._commit_seconds)
        crash.point("kv.restore.after_mark")

    def end(self) -> None:
        """It is a store like any other once this is durable."""
        with self._lock:
            self._require_usable()
            self._version = FORMAT_VERSION
            crash.point("kv.restore.before_end")
            self._settle(self._numbered_batch)
            crash.point("kv.restore.after_end")


class SlateRestore:
    """Where a restore to an object store writes."""

    def __init__(self, url: str) -> None:
        place = SlatePlace(url)
        # Looked at before the writer opens: that alone would fence the owner of a store that exists.
        with closing(SlateReader(place, 0, any_version=True)) as reader:
            try:
                reader._open()
            except NotFound:
                if next(place.objects.list(), None) is not None:
                    raise Exists(f"there are objects of a store below {url}: restore to a prefix that is new") from None
            else:
                if reader.version != RESTORING and reader.epoch_record is not None:
                    raise Exists(f"there is a store at {url}: restore to a prefix that is new")
        self.writer = _RestoringWriter(place, COMMIT_SECONDS)
        _opened(self.writer)

    def finish(self) -> None:
        """Let readers and owners open the store, which is whole."""
        self.writer.end()


def collect_garbage(url: str) -> tuple[int, int]:
    """Delete what no table list and no reader needs any more, beside the owner or without one: the bytes of keys and
    values in the bucket before, and after."""
    with closing(open_reader(url, poll_seconds=0)) as reader:
        before = reader.stored_bytes()
        reader.collect_garbage()
        return before, reader.stored_bytes()


def _heir_key(epoch: int) -> bytes:
    return HEIR_KEYS + epoch.to_bytes(8, "big")
