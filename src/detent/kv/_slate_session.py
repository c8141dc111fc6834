"""What SlateDB's writer and readers share: the way into the asynchronous binding, errors in our words, views."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, NamedTuple, TypeVar

from detent.errors import Corrupt, DetentError, Fenced, Unavailable
from detent.kv import _slate_fast
from detent.kv.base import FIRST_KEY, RESERVED_PREFIX, BlockView, Objects, prefix_end
from detent.kv.objectstore import BucketObjects, missing_extra, object_location, open_bucket
from detent.kv.stored import (
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    RESTORING,
    UPGRADING,
    OnDamage,
    from_stored,
    needs_upgrade,
    telling,
    to_stored,
)
from detent.kv.urls import Location
from detent.runtime import thread

OPEN_SECONDS = 120.0
"""Opening replays the commits since the last table was written: SlateDB writes one after 4,096 at the latest."""

READ_SECONDS = 60.0
"""One step of a read is at most a few GETs."""

CLOSE_SECONDS = 10.0
"""Everything acknowledged is durable already, so a slow goodbye is cut short."""

ROWS_FIRST, ROWS_MAX = 16, 4096
"""Rows fetched at a time: few at first, because many scans want one; then more, because each fetch costs a switch."""

FETCH_BYTES = 1 << 20
"""Fetches stop growing at this size, so that big values do not fill the memory."""

READ_AHEAD_BYTES = 1 << 20

LOOK_SECONDS = 3.0
"""How long an answer may take before the reason is looked for."""

PROBE_SECONDS = 5.0
KEYS = "kv"
PROBE = f"{KEYS}/probe"
"""An object that is written to see whether writing is allowed."""

EPOCH_KEY = RESERVED_PREFIX + b"epoch"
HEIR_KEYS = RESERVED_PREFIX + b"heir"
UPGRADABLE = 1
"""The version before the present one: records without a checksum."""

_EPOCH = struct.Struct("<BQQ")

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Pair = tuple[bytes, bytes]


def _binding() -> Any:
    try:
        import slatedb.uniffi as binding
    except ImportError as error:
        raise missing_extra("slatedb") from error
    _slate_fast.install()
    return binding


class SlatePlace:
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


class Loop:
    """A thread with an event loop, because the binding is asynchronous and our callers are not."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = thread.start("detent-slate", self._loop.run_forever)

    def run(
        self, work: Coroutine[Any, Any, _Result], seconds: float, look: Callable[[], None] | None = None
    ) -> _Result:
        """Run it to its end, or stop it after `seconds` with a `TimeoutError`. `look` is called now and then while it
        takes long, and raises what makes waiting useless."""
        with self._gate:
            if self._stopped or self._pid != os.getpid():
                work.close()
                raise Unavailable("this store was closed, or opened before a fork: open it again")
            running = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            while True:
                try:
                    return running.result(None if look is None else LOOK_SECONDS)
                except TimeoutError:
                    if look is None or running.done():
                        return running.result()  # its own error, or an answer that came just now
                    look()
        except CancelledError as error:
            raise Unavailable("this store was closed meanwhile") from error
        except BaseException:
            running.cancel()
            raise

    def stop(self) -> None:
        """End the thread. A caller that still waits for something is told; without that it would wait for ever."""
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


class SlateSession:
    """What reader and writer share: the loop, translation of errors, closing."""

    view_bytes = 8 << 20

    def __init__(self, place: SlatePlace) -> None:
        self._place = place
        self._binding = place.binding
        self.objects: Objects = place.objects
        self._files = place.objects
        self._admin = place.binding.AdminBuilder(place.path, place.object_store).build()
        self._loop = Loop()

    def check_writable(self) -> None:
        """`Unavailable` if the object store refuses writes with these credentials. SlateDB would try again without
        end, and say nothing."""
        try:
            refusal = self._loop.run(self._files.refused_write(PROBE), PROBE_SECONDS)
        except TimeoutError:  # it does not answer, so it refuses nothing
            return
        if refusal is not None:
            raise Unavailable(f"{self._place.url} cannot be written: {refusal}")

    def _run(
        self,
        work: Coroutine[Any, Any, _Result],
        seconds: float = READ_SECONDS,
        look: Callable[[], None] | None = None,
    ) -> _Result:
        try:
            return self._loop.run(work, seconds, look)
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
        replayed = log_path(manifest.replay_after_wal_id)
        return int(tables) + sum(size for _, size, _ in self._files.stored(f"{KEYS}/wal/", after=replayed))

    def stored_bytes(self) -> int:
        """What keys and values take in the bucket, with what waits for deletion."""
        return sum(size for _, size, _ in self._files.stored(f"{KEYS}/"))

    def collect_garbage(self) -> None:
        """Let SlateDB delete now what its owner would delete within minutes."""
        self._run(self._admin.run_gc_once(None), OPEN_SECONDS)

    def _run_beside(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a read of a view."""
        return self._run(work)

    def _shut(self, work: Coroutine[Any, Any, Any]) -> None:
        """End something of SlateDB's; a failure loses nothing that was acknowledged, so it is only reported."""
        try:
            self._run(work, CLOSE_SECONDS)
        except Fenced:
            pass  # it had ended before we asked
        except DetentError:
            _log.warning("%s did not close cleanly", self._place.url, exc_info=True)


class SlateView(BlockView):
    """Reads of one state: a SlateDB snapshot or checkpoint."""

    def __init__(self, session: SlateSession, source: Any, on_damage: OnDamage | None = None) -> None:
        self._session = session
        self._source = source
        self._check = from_stored if on_damage is None else telling(on_damage)
        self._checks_own = on_damage is not None

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if not key or key < FIRST_KEY:
            return None
        stored = self._raw_get(key)
        return None if stored is None else self._check(key, stored)

    def check_own(self) -> None:
        """Check the engine's own records too, if damage is to be told of."""
        if self._checks_own:
            for key, stored in self._pairs(HEIR_KEYS, prefix_end(HEIR_KEYS), False, None):
                self._check(key, stored)

    def _raw_get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._session._run_beside(self._source.get(key))
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
        for key, stored in self._pairs(start, end, reverse, limit):
            value = self._check(key, stored)
            if value is None:
                continue
            yield key, value
            left -= 1
            if left == 0:
                return

    def _pairs(self, start: bytes, end: bytes | None, reverse: bool, limit: int | None) -> Iterator[Pair]:
        self._require_open()
        binding, run = self._session._binding, self._session._run_beside
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


class Epoch(NamedTuple):
    """What a store says of its newest writer: its epoch, and the number of its last commit; and the version of its
    records."""

    epoch: int = 0
    number: int = 0
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """The record, as it is stored."""
        record = _EPOCH.pack(self.version, self.epoch, self.number)
        return record if self.version == UPGRADABLE else to_stored(EPOCH_KEY, record)

    @classmethod
    def decode(cls, stored: bytes | None, *, any_version: bool = False) -> Epoch:
        """The record of a store; a new one has none. A store of another version is refused, unless `any_version`."""
        if stored is None:
            return cls()
        version = stored[0] if stored else -1
        old = version == UPGRADABLE
        known = old or version in {FORMAT_VERSION, UPGRADING, RESTORING}
        if not known or len(stored) != _EPOCH.size + (0 if old else CHECKSUM_BYTES):
            raise Corrupt(
                f"the store's epoch record has version {stored[:1].hex()} and {len(stored)} bytes; this release reads "
                f"version {FORMAT_VERSION}"
            )
        _, epoch, number = _EPOCH.unpack(stored if old else from_stored(EPOCH_KEY, stored))
        if version != FORMAT_VERSION and not any_version:
            raise needs_upgrade(version)
        return cls(epoch, number, version)


def log_path(number: int) -> str:
    return f"{KEYS}/wal/{number:020}.sst"
