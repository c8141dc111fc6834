"""Fragments: immutable Arrow files beside the store, which a journal adopts by reference.

Its writer needs no owner: the file is durable before its reference is handed out, and no reader sees its messages until
a transaction adopts it. A fragment's id begins with the time it was begun at; that is what the sweeper goes by, which
deletes those that no journal has adopted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from detent import crash
from detent.codec import block, foreign
from detent.codec import journal as records
from detent.codec.journal import FRAGMENT_ID_BYTES, Fragment
from detent.codec.parts import Parts
from detent.engine import Engine, Request
from detent.errors import Corrupt, Exists, Invalid, LimitExceeded, NotFound
from detent.journal import operations as ops
from detent.journal.operations import RaiseHorizon
from detent.kv import Objects, Reader
from detent.message import TICK, clock_of_ns, new_producer_id

FRAGMENT_BYTES_MAX: Final = 1 << 30
FRAGMENT_ROWS_MAX: Final = 1 << 31
FRAGMENT_BATCH_ROWS: Final = 64 << 10
FRAGMENT_BATCH_BYTES: Final = 4 << 20

DIRECTORY: Final = "fragments/"
PASSING_BATCH_BYTES_MAX: Final = 64 << 20
"""One record batch of a fragment that passes through a server on its way to an object store. Ours have at most four
times `FRAGMENT_BATCH_BYTES`, unless a single message is larger."""

SEEN_MAX: Final = 100_000
"""How many fragments a process remembers to have checked; beyond this it checks some again."""


class _Seen:
    """What this process has checked of a fragment whose checksum was right: a bit for each record batch."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches = 0


_seen: weakref.WeakKeyDictionary[Objects, dict[tuple[bytes, int], _Seen]] = weakref.WeakKeyDictionary()
"""By store, because the writer of a fragment chooses its id: the same may stand for other bytes in another one."""

_seen_lock = threading.Lock()


def new_fragment_id(now_ms: int, random: bytes) -> bytes:
    """Six bytes of time, ten of randomness."""
    return now_ms.to_bytes(6, "big") + random[: FRAGMENT_ID_BYTES - 6]


def created_ms(fragment: bytes) -> int:
    """When a fragment was begun."""
    return int.from_bytes(fragment[:6], "big")


def object_name(fragment: bytes) -> str:
    """The object that holds a fragment. The last byte is random, so it spreads the files over 256 folders."""
    text = fragment.hex()
    return f"{DIRECTORY}{text[-2:]}/{text}.arrow"


def fragment_of(name: str) -> bytes | None:
    """The fragment that an object of this name holds, if any."""
    stem = name.rpartition("/")[2].removesuffix(".arrow")
    try:
        fragment = bytes.fromhex(stem)
    except ValueError:
        return None
    return fragment if len(fragment) == FRAGMENT_ID_BYTES and object_name(fragment) == name else None


def write_fragment(
    objects: Objects, content: Any, *, now_ms: int | None = None, random: Callable[[int], bytes] = os.urandom
) -> ops.FragmentRef:
    """Write messages (a table with body and, if wanted, key and headers) as a fragment; it is durable on return."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    table = block.content_table(content)
    if table.nbytes > FRAGMENT_BYTES_MAX:
        raise LimitExceeded(f"a fragment holds at most {FRAGMENT_BYTES_MAX} bytes: write several")
    fragment = new_fragment_id(now_ms, random(10))
    encoding = _Encoding(table, new_producer_id(random(6)), now_ms)
    objects.put(object_name(fragment), encoding)
    return ops.FragmentRef(fragment, table.num_rows, encoding.size, encoding.checksum.intdigest())


class _Encoding:
    """A table as the bytes of a fragment, in parts, each counted and summed as it passes.

    A fragment is never whole in memory: touching as much fresh memory as it has bytes takes longer than writing it.
    """

    def __init__(self, table: Any, producer: bytes, now_ms: int) -> None:
        self._table = table
        self._producer = producer
        self._now_ms = now_ms
        self.size = 0
        self.checksum = xxhash.xxh3_64()

    def __iter__(self) -> Iterator[memoryview]:
        table, parts = self._table, Parts()
        self.size, self.checksum = 0, xxhash.xxh3_64()
        step = max(1, min(FRAGMENT_BATCH_ROWS, table.num_rows * FRAGMENT_BATCH_BYTES // max(table.nbytes, 1)))
        with pa.ipc.new_file(pa.PythonFile(parts, "w"), block.SCHEMA) as writer:
            start = 0
            for piece in _pieces(table, step):
                batch = block.one_batch(piece)
                writer.write_batch(_stamp(batch, self._producer, start, self._now_ms))
                start += batch.num_rows
                yield from self._passing(parts)
        yield from self._passing(parts)

    def _passing(self, parts: Parts) -> Iterator[memoryview]:
        for part in parts.take():
            self.size += len(part)
            self.checksum.update(part)
            yield part


def _pieces(table: Any, step: int) -> Iterator[Any]:
    """A table cut into so many rows each; into fewer where they are far larger than elsewhere, because readers, and the
    server that passes a fragment on, hold a whole record batch in memory."""
    for start in range(0, table.num_rows, step):
        piece = table.slice(start, step)
        if piece.num_rows > 1 and piece.nbytes > 4 * FRAGMENT_BATCH_BYTES:
            yield from _pieces(piece, (piece.num_rows + 1) // 2)
        else:
            yield piece


def _stamp(piece: Any, producer: bytes, start: int, now_ms: int) -> Any:
    """Ids for the rows: unique, though no journal keeps state for them."""
    rows = piece.num_rows
    first = clock_of_ns(now_ms * 1_000_000) + (start + 1) * TICK
    clocks = np.arange(rows, dtype=np.uint64) * np.uint64(TICK) + np.uint64(first)
    times = np.full(rows, now_ms, np.int64)
    return block.stamped(rows, producer * rows, clocks, bytes(2 * rows), times, list(piece.columns))


def check_refs(refs: Iterable[ops.FragmentRef]) -> None:
    """Refuse references that cannot be right."""
    refs = list(refs)
    if not 1 <= len(refs) <= ops.FRAGMENTS_PER_OPERATION_MAX:
        raise Invalid(f"adopt 1 to {ops.FRAGMENTS_PER_OPERATION_MAX} fragments at once, not {len(refs)}")
    if len({ref.id for ref in refs}) != len(refs):
        raise Exists("a fragment is adopted once, and one of these is named twice")
    for ref in refs:
        if len(ref.id) != FRAGMENT_ID_BYTES:
            raise Invalid(f"a fragment id has {FRAGMENT_ID_BYTES} bytes, not {len(ref.id)}")
        if not 0 <= ref.checksum < 1 << 64:
            raise Invalid("a fragment's checksum has 64 bits")
        if not 1 <= ref.rows <= FRAGMENT_ROWS_MAX or not 1 <= ref.size <= 2 * FRAGMENT_BYTES_MAX:
            raise Invalid(f"a fragment with {ref.rows} rows in {ref.size} bytes cannot be right")


def check_written(objects: Objects, refs: Iterable[ops.FragmentRef]) -> None:
    """Refuse fragments that are missing or not what their reference says."""
    check_refs(refs)
    for ref in refs:
        size = objects.size(object_name(ref.id))
        if size is None:
            raise NotFound(f"there is no fragment {ref.id.hex()}")
        if size != ref.size:
            raise Corrupt(f"fragment {ref.id.hex()} has {size} bytes where its reference says {ref.size}")
        if objects.local:
            # Reading a local file costs little; on an object store the server has checked what came through it, and
            # the readers check what they fetch anyway.
            opened = open_fragment(objects, ref.id, ref.size, ref.checksum)
            if opened.rows() != ref.rows:
                raise Corrupt(f"fragment {ref.id.hex()} does not hold {ref.rows} rows")


class OpenFragment:
    """The rows of a fragment. Each record batch is checked when a process first reads it, because any client may
    have written it."""

    def __init__(self, fragment: bytes, data: memoryview, seen: _Seen) -> None:
        self._fragment = fragment
        self._seen = seen
        try:
            self._file = foreign.MessageFile(data)
        except (Invalid, LimitExceeded) as error:
            raise Corrupt(f"fragment {fragment.hex()} is no Arrow file: {error}") from error

    def batches(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """The record batches that have rows from `start` on, each with the number of its first row."""
        at = 0
        for number in range(self._file.num_record_batches):
            rows, batch = self._read(number, start - at)
            if batch is not None:
                yield at, batch
            at += rows

    def _read(self, number: int, beyond: int) -> tuple[int, Any]:
        """How many rows a record batch has, and the batch, if they are more than so many."""
        try:
            rows = self._file.rows(number)
            if 0 <= rows <= beyond:
                return rows, None
            batch = self._file.get_batch(number, again=bool(self._seen.batches >> number & 1))
        except Invalid as error:
            raise Corrupt(f"fragment {self._fragment.hex()} cannot be read: {error}") from error
        self._seen.batches |= 1 << number
        return rows, batch

    def rows(self) -> int:
        """How many rows there are, each of which was looked at."""
        return sum(batch.num_rows for _, batch in self.batches())


def open_fragment(objects: Objects, fragment: bytes, size: int, checksum: int, *, again: bool = False) -> OpenFragment:
    """A fragment, to be read. A process compares the checksum of all its bytes the first time that it opens one; what
    was validated when it was adopted is then what is read."""
    data = objects.get(object_name(fragment))
    if len(data) != size:
        raise Corrupt(f"fragment {fragment.hex()} has {len(data)} bytes instead of {size}")
    seen = None if again else _seen.get(objects, {}).get((fragment, checksum))
    if seen is None:
        if xxhash.xxh3_64_intdigest(data) != checksum:
            raise Corrupt(f"fragment {fragment.hex()} does not match its checksum")
        seen = _Seen()
        with _seen_lock:
            known = _seen.setdefault(objects, {})
            if len(known) >= SEEN_MAX:
                known.clear()
            known[fragment, checksum] = seen
    return OpenFragment(fragment, data, seen)


def read_rows(objects: Objects, fragment: bytes, record: Fragment, start: int, count: int) -> Iterator[Any]:
    """`count` rows of a fragment from `start` on, as record batches; never fewer."""
    opened = open_fragment(objects, fragment, record.size, record.checksum)
    end, at = start + count, 0
    for first, batch in opened.batches(start):
        at = first + batch.num_rows
        if max(start, first) < min(end, at):
            yield batch.slice(max(start, first) - first, min(end, at) - max(start, first))
        if at >= end:
            return
    if at < end:
        raise Corrupt(f"fragment {fragment.hex()} has {at} rows, and row {end} is asked for")


GRACE_MS: Final = 24 * 3600 * 1000
"""How long a writer may take from beginning a fragment to adopting it."""

logger = logging.getLogger("detent.journal")


def sweep(engine: Engine, reader: Reader, grace_ms: int | None = None) -> int:
    """Delete orphaned fragments older than the grace period. Returns how many."""
    now_ms = engine.now_ms() + min(0, engine.time.difference_ms)  # by both clocks: writers have gone by the wall clock
    horizon_ms = now_ms - (GRACE_MS if grace_ms is None else grace_ms)
    if horizon_ms <= 0:
        return 0
    engine.commit(Request(engine.new_session(), 0, 0, [RaiseHorizon(horizon_ms)]))
    crash.point("journal.sweep.after_horizon")
    deleted = 0
    for found in reader.objects.list(DIRECTORY):
        fragment = fragment_of(found.name)
        if fragment is None or created_ms(fragment) >= horizon_ms:
            continue
        with reader.view() as view:
            stored = view.get(records.FRAGMENT.key(fragment))
            if stored is not None and Fragment.decode(stored).journal:
                continue
        reader.objects.delete(found.name)
        deleted += 1
        crash.point("journal.sweep.after_delete")
    reader.objects.remove_abandoned(now_ms)
    if deleted:
        logger.info("swept %d orphaned fragments", deleted)
    return deleted
