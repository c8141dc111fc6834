"""`s3://`, `gs://`, `az://` — SlateDB on an object store.

    writer = open_writer("s3://BUCKET/PREFIX")
    writer.commit(batch)                  # on the object store when this returns

A commit costs one PUT, so its latency is the object store's: few large batches beat many small ones. Opening a store
for writing fences the writer before it; that one learns it from its next commit, which raises `Fenced` and leaves no
trace. Readers, in any process, follow the log of commits and disturb nobody.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from detent import crash
from detent.errors import Corrupt, DetentError, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.kv import _slate_fast
from detent.kv.base import BATCH_BYTES_MAX, RESERVED_PREFIX, Batch, Objects
from detent.kv.objectstore import BucketObjects, missing_extra, object_location, open_bucket
from detent.kv.urls import Location

OPEN_SECONDS = 120.0
"""Opening replays the commits since the last table was written: SlateDB writes one after 4,096 at the latest."""

COMMIT_SECONDS = 60.0
"""SlateDB retries a failed PUT without end. A caller should hear of an outage while somebody still waits."""

READ_SECONDS = 60.0
"""One step of a read is at most a few GETs."""

CLOSE_SECONDS = 10.0
"""Everything acknowledged is durable already, so a slow goodbye is cut short."""

POLL_SECONDS = 0.02
"""A reader asks for new commits at most this often: one cheap request, and a lag that people do not notice."""

COMMITS_PER_TABLE = 1024
"""Maintenance writes a table after so many commits: an opening writer or reader replays what is in none, one GET each,
and SlateDB by itself would wait for four times as many."""

CHECKPOINT_SECONDS = 900
"""A reader's checkpoint protects its tables from deletion. One that a killed reader left expires by itself."""

BASE_SECONDS = 300.0
"""A reader moves to a new checkpoint after this: views then have ten more minutes, and the log it still has to read
is younger than anything SlateDB deletes."""

OVERLAY_BYTES_MAX = 64 << 20
"""What a reader holds of the log in memory before it moves on; SlateDB's writer writes a table at the same size."""

ROWS_FIRST, ROWS_MAX = 16, 4096
"""Rows fetched at a time: few at first, because many scans want one; then more, because each fetch costs a switch."""

FETCH_BYTES = 1 << 20
"""Fetches stop growing at this size, so that big values do not fill the memory."""

FATE_SECONDS = 15.0
"""How long a fenced commit waits for its successor to say what it found. Opening takes a second or two."""

FATE_POLL_SECONDS = 0.05
FENCES_KEPT = 1024
"""What a writer found of the one before it is kept until so many more have opened; a stopped process asks late."""

READ_AHEAD_BYTES = 1 << 20
KEYS, FIRST_KEY = "kv", b"\x01"
EPOCH_KEY = RESERVED_PREFIX + b"epoch"
FENCE_KEYS = RESERVED_PREFIX + b"fence"
FORMAT_VERSION = 1
_EPOCH = struct.Struct("<BQQ")
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Pair = tuple[bytes, bytes]


def open_writer(url: str, *, commit_seconds: float = COMMIT_SECONDS, **stores: Any) -> SlateWriter:
    """Open a store for writing, creating it when it is new; every writer before this one is fenced.

    `NotFound` when the bucket does not exist, `Unavailable` when the object store cannot be reached. Tests may pass
    `object_store` (of slatedb) and `bucket` (of obstore) to replace what the URL names.
    """
    return _opened(SlateWriter(_Place(url, **stores), commit_seconds))


def open_reader(url: str, *, poll_seconds: float = POLL_SECONDS, **stores: Any) -> SlateReader:
    """Open a store for reading; `NotFound` when there is none. It never fences a writer.

    A view is at most `poll_seconds` behind what was committed when it was opened; with 0 it is never behind. Reading
    keeps a checkpoint in the store, so the credentials need the right to write.
    """
    return _opened(SlateReader(_Place(url, **stores), poll_seconds))


_Store = TypeVar("_Store", "SlateWriter", "SlateReader")


def _opened(store: _Store) -> _Store:
    try:
        store._open()
    except BaseException:
        store.close()
        raise
    return store


def _binding() -> Any:
    try:
        import slatedb.uniffi as binding
    except ImportError as error:
        raise missing_extra("slatedb") from error
    _slate_fast.install()
    return binding


class _Place:
    """Where a store is: SlateDB's handle on the bucket, the path of the keys in it, and the objects."""

    def __init__(self, url: str, *, object_store: Any = None, bucket: Any = None) -> None:
        self.url = url
        location: Location = object_location(url)
        self.binding = _binding()
        self.path = f"{location.path}/{KEYS}".strip("/")
        self.objects = BucketObjects(open_bucket(location) if bucket is None else bucket)
        # SlateDB would retry a missing bucket or a refused connection without end; this asks first.
        self.objects.check()
        self.object_store = object_store or self._resolved(location)

    def _resolved(self, location: Location) -> Any:
        try:
            return self.binding.ObjectStore.resolve(f"{location.scheme}://{location.bucket}")
        except self.binding.Error as error:
            raise Unavailable(f"the environment does not describe {self.url}: {error}") from error


class _Loop:
    """A thread with an event loop, because the binding is asynchronous and our callers are not."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="detent-slate", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        """Run it to its end, or stop it after `seconds` with a `TimeoutError`."""
        with self._gate:
            if self._stopped or self._pid != os.getpid():
                work.close()
                raise Unavailable("this store was closed, or opened before a fork: open it again")
            running = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return running.result()
        except CancelledError as error:
            raise Unavailable("this store was closed meanwhile") from error
        except BaseException:
            running.cancel()
            raise

    def stop(self) -> None:
        """End the thread. Whoever still waits for something is told; without that it would wait for ever."""
        with self._gate:
            if self._stopped or self._pid != os.getpid():
                return
            self._stopped = True
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Session:
    """What reader and writer share: the loop, translation of errors, closing."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._binding = place.binding
        self.objects: Objects = place.objects
        self._files = place.objects
        self._admin = place.binding.AdminBuilder(place.path, place.object_store).build()
        self._loop = _Loop()

    def _run(self, work: Coroutine[Any, Any, _Result], seconds: float = READ_SECONDS) -> _Result:
        try:
            return self._loop.run(work, seconds)
        except TimeoutError as error:
            raise Unavailable(f"{self._place.url} did not answer within {seconds:g} s") from error
        except self._binding.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> DetentError:
        kinds, url = self._binding.Error, self._place.url
        if isinstance(error, kinds.Closed):
            if error.reason == self._binding.CloseReason.FENCED:
                return Fenced(f"another writer has taken over {url}")
            return Unavailable(f"SlateDB has closed {url}, open it again: {error.message}")
        if isinstance(error, kinds.Data):
            return Corrupt(f"{url}: {error.message}")
        return Unavailable(f"{url}: {getattr(error, 'message', error)}")

    def size_bytes(self) -> int:
        """Tables as SlateDB estimates them, plus the log that no table holds yet. Replaced values count until they
        are compacted away; objects that wait for deletion do not count."""
        manifest = self._run(self._admin.read_manifest(None))
        trees = [manifest, *manifest.segments]
        tables = sum(part.estimated_size_bytes for tree in trees for part in (*tree.l0, *tree.compacted))
        replayed = _log_path(manifest.replay_after_wal_id)
        return int(tables) + sum(size for _, size, _ in self._files.stored(f"{KEYS}/wal/", after=replayed))

    def _shut(self, work: Coroutine[Any, Any, Any]) -> None:
        """End something of SlateDB's; a failure loses nothing that was acknowledged, so it is only reported."""
        try:
            self._run(work, CLOSE_SECONDS)
        except Fenced:
            pass  # it had ended before we asked
        except DetentError:
            _log.warning("%s did not close cleanly", self._place.url, exc_info=True)


class _View:
    """Reads of one state: a SlateDB snapshot or checkpoint."""

    def __init__(self, session: _Session, source: Any) -> None:
        self._session = session
        self._source = source
        self.open = True

    def _require_open(self) -> None:
        if not self.open:
            raise Invalid("this view has ended: read inside its with-block")

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if not key or key < FIRST_KEY:
            return None
        return self._raw_get(key)

    def _raw_get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._session._run(self._source.get(key))
        return value

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Pair]:
        start = max(start, FIRST_KEY)
        if end is not None and start >= end:
            return
        left = limit if limit is not None else -1
        if left == 0:
            return
        for pair in self._pairs(start, end, reverse, limit):
            yield pair
            left -= 1
            if left == 0:
                return

    def _pairs(self, start: bytes, end: bytes | None, reverse: bool, limit: int | None) -> Iterator[Pair]:
        self._require_open()
        binding, run = self._session._binding, self._session._run
        between = binding.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
        order = binding.IterationOrder.DESCENDING if reverse else binding.IterationOrder.ASCENDING
        options = binding.ScanOptions(
            durability_filter=binding.DurabilityLevel.REMOTE,
            dirty=False,
            read_ahead_bytes=READ_AHEAD_BYTES,
            cache_blocks=True,
            max_fetch_tasks=1,
            order=order,
        )
        iterator = run(self._source.scan_with_options(between, options))
        rows = min(ROWS_FIRST, limit or ROWS_FIRST)
        while True:
            self._require_open()
            fetched = run(iterator.next_batch(rows))
            for row in fetched:
                yield row.key, row.value
            if len(fetched) < rows:
                return
            size = sum(len(row.value) for row in fetched)
            rows = max(1, rows // 2) if size > 2 * FETCH_BYTES else rows
            rows = min(rows * 2, ROWS_MAX) if size < FETCH_BYTES // 2 else rows


class SlateWriter(_Session):
    """The writer. `view` shows durable data only: the snapshot behind it is replaced after a commit is durable."""

    epoch: int

    def __init__(self, place: _Place, commit_seconds: float) -> None:
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
        # The manifest's writer epoch may already be that of the next writer when we read it. This record cannot:
        # it is durable only while nobody has fenced us, so it grows by one with each writer.
        before, last_commit = _decode_epoch(self._run(self._db.get(EPOCH_KEY)))
        self.epoch = before + 1
        batch = self._numbered_batch()
        batch.put(_fence_key(before), last_commit.to_bytes(8, "little"))
        if before >= FENCES_KEPT:
            batch.delete(_fence_key(before - FENCES_KEPT))
        self._run(self._write(batch), self._commit_seconds)
        crash.point("kv.open.after_epoch")

    def _numbered_batch(self) -> Any:
        """A new batch that carries our epoch and its number: our successor finds the last one that is durable."""
        self._number += 1
        batch = self._binding.WriteBatch()
        batch.put(EPOCH_KEY, _EPOCH.pack(FORMAT_VERSION, self.epoch, self._number))
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
                    native.put(key, value)
            self._settle(native, points=True)

    def _settle(self, native: Any, *, points: bool = False) -> None:
        """Write durably, or remember that nobody knows. An interrupt (Ctrl-C) leaves the outcome open as well."""
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
                        found = view._raw_get(_fence_key(self.epoch))
                    if found is not None:
                        return self._number <= int.from_bytes(found, "little")
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
    def view(self) -> Iterator[_View]:
        """What was durable when the view was opened. A commit that is under way in another thread is not in it."""
        self._require_usable()
        view = _View(self, self._published)
        try:
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


class _Base:
    """A checkpoint's tables, and the commits after them, version by version."""

    def __init__(self, checkpoint: str, tables: Any, log_id: int, sequence: int) -> None:
        self.checkpoint = checkpoint
        self.tables = tables
        self.log_id = log_id
        self.sequence = sequence
        self.born = time.monotonic()
        self.versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.keys: list[bytes] = []
        self.bytes = 0
        self.views = 0

    def add(self, rows: list[Any], after: int) -> int:
        """Take over the rows of one commit log file; returns the last sequence number in it."""
        for row in rows:
            if row.seq > after and row.key != EPOCH_KEY:
                self.versions.setdefault(row.key, []).append((row.seq, row.value))
                self.bytes += len(row.key) + len(row.value or b"")
        return max((row.seq for row in rows), default=0)


class _MergedView(_View):
    """A base as it was at one sequence number: the log's versions up to it, over the tables."""

    def __init__(self, session: _Session, base: _Base) -> None:
        super().__init__(session, base.tables)
        self._base, self._keys, self._sequence = base, base.keys, base.sequence

    def _logged(self, key: bytes) -> tuple[int, bytes | None] | None:
        for version in reversed(self._base.versions.get(key, ())):
            if version[0] <= self._sequence:
                return version
        return None

    def _raw_get(self, key: bytes) -> bytes | None:
        logged = self._logged(key)
        return super()._raw_get(key) if logged is None else logged[1]

    def _pairs(self, start: bytes, end: bytes | None, reverse: bool, limit: int | None) -> Iterator[Pair]:
        low = bisect_left(self._keys, start)
        keys = self._keys[low : len(self._keys) if end is None else bisect_left(self._keys, end)]
        changed = iter(reversed(keys) if reverse else keys)
        next_changed = next(changed, None)
        for key, value in super()._pairs(start, end, reverse, limit):
            while next_changed is not None and (next_changed > key if reverse else next_changed < key):
                yield from self._pair(next_changed, None)
                next_changed = next(changed, None)
            if next_changed == key:
                yield from self._pair(key, value)
                next_changed = next(changed, None)
            else:
                yield key, value
        while next_changed is not None:
            yield from self._pair(next_changed, None)
            next_changed = next(changed, None)

    def _pair(self, key: bytes, stored: bytes | None) -> Iterator[Pair]:
        logged = self._logged(key)
        value = stored if logged is None else logged[1]
        if value is not None:
            yield key, value


class SlateReader(_Session):
    """Reads a store in any process, while its writer is at work or not.

    SlateDB's own reader has no snapshots: two reads may show two states. So this one pins a checkpoint of the tables,
    follows the commit log by itself and keeps the versions; a view is a sequence number in it.
    """

    def __init__(self, place: _Place, poll_seconds: float) -> None:
        super().__init__(place)
        self._poll_seconds = poll_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._wal: Any = None
        self._base: _Base | None = None
        self._retired: list[_Base] = []
        self._log_found = False
        self._polled = 0.0

    def _open(self) -> None:
        if next(self._files.stored(f"{KEYS}/manifest/"), None) is None:
            raise NotFound(f"there is no store at {self._place.url}: open it for writing first")
        self._wal = self._binding.SlateDbWalReader(self._place.path, self._place.object_store)
        self._advance()

    async def _pin(self) -> _Base:
        lifetime = self._binding.CheckpointOptions(lifetime_ms=CHECKPOINT_SECONDS * 1000, source=None, name=None)
        made = await self._admin.create_detached_checkpoint(lifetime)
        manifest = await self._admin.read_manifest(made.manifest_id)
        builder = self._binding.DbReaderBuilder(self._place.path, self._place.object_store)
        builder.with_reader_mode(self._binding.ReaderMode.CHECKPOINT(made.id))
        builder.with_options(self._tables_options())
        tables = await builder.build()
        base = _Base(made.id, tables, manifest.replay_after_wal_id, manifest.last_l0_seq)
        await self._follow(base)
        return base

    def _tables_options(self) -> Any:
        # A pinned checkpoint has nothing to poll for, and the log is ours to read.
        return self._binding.ReaderOptions(
            manifest_poll_interval_ms=CHECKPOINT_SECONDS * 1000,
            checkpoint_lifetime_ms=2 * CHECKPOINT_SECONDS * 1000,
            max_memtable_bytes=OVERLAY_BYTES_MAX,
            skip_wal_replay=True,
        )

    async def _follow(self, base: _Base, last: int | None = None) -> None:
        """Read the log files that are new, up to `last` or the last there is; views see them all at once."""
        if last is None:
            last = await self._wal.last_wal_file_id(base.log_id)
        if last <= base.log_id:
            return
        iterator = await self._wal.iterator(base.log_id + 1)
        sequence, known = base.sequence, len(base.versions)
        try:
            while base.log_id < last:
                found = await iterator.next()
                sequence = max(sequence, base.add(found.rows, base.sequence))
                base.log_id = found.last_consumed_wal_file_id
        finally:
            # Each file holds whole commits, so what was read before an error is a state too.
            if len(base.versions) != known:
                base.keys = sorted(base.versions)
            base.sequence = sequence

    async def _drop(self, base: _Base) -> None:
        await base.tables.shutdown()
        await self._admin.delete_checkpoint(base.checkpoint)

    def _advance(self) -> _Base:
        """The newest state, asked for at most once a poll interval. The caller holds the lock."""
        base, now = self._base, time.monotonic()
        if base is None or now - base.born > BASE_SECONDS or base.bytes > OVERLAY_BYTES_MAX:
            self._base = self._run(self._pin(), OPEN_SECONDS)
            if base is not None:
                self._retired.append(base)
                self._drop_unused()
            base = self._base
            self._log_found = self._files.exists(_log_path(base.log_id))
        elif now - self._polled >= self._poll_seconds:
            self._poll(base)
        else:
            return base
        self._polled = time.monotonic()
        return base

    def _poll(self, base: _Base) -> None:
        """Looking for the next file or two is a request each; asking SlateDB where the log ends is several.

        Where the files are not found under the names we know, only SlateDB is asked.
        """
        last = None
        if self._log_found:
            if not self._files.exists(_log_path(base.log_id + 1)):
                return
            last = None if self._files.exists(_log_path(base.log_id + 2)) else base.log_id + 1
        self._run(self._follow(base, last))

    @contextmanager
    def view(self) -> Iterator[_View]:
        """One state of the store. It stays readable for at least ten minutes."""
        with self._lock:
            if self._closed:
                raise Unavailable("this store was closed")
            base = self._advance()
            base.views += 1
            view = _MergedView(self, base)
        try:
            yield view
        finally:
            view.open = False
            self._leave(base)

    def _leave(self, base: _Base) -> None:
        with self._lock:
            base.views -= 1
            self._drop_unused()

    def _drop_unused(self) -> None:
        for base in [base for base in self._retired if not base.views]:
            self._retired.remove(base)
            self._shut(self._drop(base))

    def close(self) -> None:
        with self._lock:
            bases = self._retired + ([self._base] if self._base else [])
            self._base, self._retired, self._closed = None, [], True
            for base in bases:
                self._shut(self._drop(base))
            self._loop.stop()


def _log_path(number: int) -> str:
    return f"{KEYS}/wal/{number:020}.sst"


def _fence_key(epoch: int) -> bytes:
    return FENCE_KEYS + epoch.to_bytes(8, "big")


def _decode_epoch(stored: bytes | None) -> tuple[int, int]:
    """The epoch of the last writer and the number of its last commit."""
    if stored is None:
        return 0, 0
    if len(stored) != _EPOCH.size or stored[0] != FORMAT_VERSION:
        raise Corrupt(f"the epoch record has version {stored[:1].hex()}; this release reads version 1")
    _, epoch, number = _EPOCH.unpack(stored)
    return epoch, number
