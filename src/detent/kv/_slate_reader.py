"""A reader of a SlateDB store: a checkpoint of its tables, and the log of commits after them, followed by polling."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detent.errors import NotFound, Unavailable
from detent.kv._slate_session import (
    EPOCH_KEY,
    KEYS,
    OPEN_SECONDS,
    Epoch,
    Pair,
    SlatePlace,
    SlateSession,
    SlateView,
    log_path,
)
from detent.kv.stored import FORMAT_VERSION, OnDamage

POLL_SECONDS = 0.02
"""A reader asks for new commits at most this often: one cheap request, and a lag that people do not notice."""

CHECKPOINT_SECONDS = 900
"""A reader's checkpoint protects its tables from deletion. One that a killed reader left expires by itself."""

BASE_SECONDS = 300.0
"""A reader moves to a new checkpoint after this: views then have ten more minutes, and the log it still has to read
is younger than anything SlateDB deletes."""

OVERLAY_BYTES_MAX = 64 << 20
"""What a reader holds of the log in memory before it moves on; SlateDB's writer writes a table at the same size."""


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
        self.epoch: bytes | None = None  # the newest epoch record in the log

    def add(self, rows: list[Any], after: int) -> int:
        """Take over the rows of one commit log file; returns the last sequence number in it."""
        for row in rows:
            if row.key == EPOCH_KEY:
                self.epoch = row.value
            elif row.seq > after:
                self.versions.setdefault(row.key, []).append((row.seq, row.value))
                self.bytes += len(row.key) + len(row.value or b"")
        return max((row.seq for row in rows), default=0)


class _MergedView(SlateView):
    """A base as it was at one sequence number: the log's versions up to it, over the tables."""

    def __init__(self, session: SlateSession, base: _Base, on_damage: OnDamage | None) -> None:
        super().__init__(session, base.tables, on_damage)
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


class SlateReader(SlateSession):
    """Reads a store in any process, while its writer is at work or not.

    SlateDB's own reader has no snapshots: two reads may show two states. So this one pins a checkpoint of the tables,
    follows the commit log by itself and keeps the versions; a view is a sequence number in it.
    """

    def __init__(self, place: SlatePlace, poll_seconds: float, *, any_version: bool = False) -> None:
        super().__init__(place)
        self._any_version = any_version
        self.version = FORMAT_VERSION
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
        stored = base.epoch or await tables.get(EPOCH_KEY)
        self.version = Epoch.decode(stored, any_version=self._any_version).version  # refuses a store of another one
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
            self._base = self._run(self._pin(), OPEN_SECONDS, self.check_writable)
            if base is not None:
                self._retired.append(base)
                self._drop_unused()
            base = self._base
            self._log_found = self._files.exists(log_path(base.log_id))
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
            if not self._files.exists(log_path(base.log_id + 1)):
                return
            last = None if self._files.exists(log_path(base.log_id + 2)) else base.log_id + 1
        self._run(self._follow(base, last))

    @property
    def epoch_record(self) -> bytes | None:
        """What the store says of its newest writer, as far as this reader has read."""
        base = self._base
        assert base is not None
        return base.epoch or self._run(base.tables.get(EPOCH_KEY))

    @contextmanager
    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> Iterator[SlateView]:  # noqa: ARG002
        """One state of the store. It stays readable for at least ten minutes."""
        with self._lock:
            if self._closed:
                raise Unavailable("this store was closed")
            base = self._advance()
            base.views += 1
            view = _MergedView(self, base, on_damage)
        try:
            view.check_own()
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
