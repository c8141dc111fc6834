"""An announced object as the task reads it that parses it: in ranges, each of which asks for the version or etag that
was announced or seen.

So what was written over meanwhile is noticed with the first request behind that, and the task fails: no row comes of
two writings of an object. What fails is told to the driver in the text of the task's error, which is all that Spark
hands on (`ObjectFailed`, `failure_in`).
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

from detent.errors import Busy, Denied, DetentError, Invalid, NotFound, Unavailable
from detent.ingest.announcements import Announced
from detent.ingest.objects import FileObjects, ObjectPart, S3Options, Superseded
from detent.runtime import thread

PIECE_BYTES: Final = 8 << 20
"""What one request asks for at most."""

BEHIND_BYTES: Final = 64 << 10
"""What is asked for at a time behind the end of a part, to complete its last line."""

AHEAD: Final = 8
"""Requests that a task has under way: small objects take as long as the way to the bucket and back."""

_KINDS: Final[dict[str, type[DetentError]]] = {
    "superseded": Superseded,
    "missing": NotFound,
    "denied": Denied,
    "invalid": Invalid,
    "unavailable": Unavailable,
}
_TOLD: Final = re.compile(r"detent-object (\d+) (\w+): ([^\n]*)")


class PinnedObject(NamedTuple):
    """An object of a batch: its number there, what it is called in Spark's rows, and what it was announced as."""

    number: int
    name: str
    file: Announced

    @property
    def size(self) -> int:
        """What it is said to have; what is there is found out by reading."""
        return self.file.size or 0


class ObjectSplit(NamedTuple):
    """A part of an object, for one task; without an `end` it reaches to the object's own."""

    object: PinnedObject
    start: int = 0
    end: int | None = None


class ObjectAccess(NamedTuple):
    """What a task needs for reading objects, besides their names. Keys come from its own environment."""

    policy: str
    options: S3Options


class ObjectFailed(DetentError):
    """An object that a task could not read, in words that the driver understands."""

    def __init__(self, number: int, reason: DetentError) -> None:
        kind = next((name for name, kind in _KINDS.items() if isinstance(reason, kind)), "unavailable")
        super().__init__(f"detent-object {number} {kind}: {str(reason).replace(chr(10), ' ')}")


def failure_in(text: str) -> tuple[int, DetentError] | None:
    """The object that an error of Spark's names, and why it could not be read; None if it names none."""
    found = _TOLD.search(text)
    if found is None or found[2] not in _KINDS:
        return None
    return int(found[1]), _KINDS[found[2]](found[3])


@contextmanager
def blamed(one: PinnedObject) -> Iterator[None]:
    """What cannot be read in here is this object's fault."""
    try:
        yield
    except (ObjectFailed, Busy):
        raise
    except DetentError as error:
        raise ObjectFailed(one.number, error) from error
    except (OSError, EOFError, UnicodeError, ValueError, zlib.error) as error:
        reason = Invalid(f"{one.file.uri} cannot be read: {type(error).__name__}: {error}")
        raise ObjectFailed(one.number, reason) from error


@lru_cache(maxsize=4)
def objects_of(access: ObjectAccess) -> FileObjects:
    """The objects of a source. A worker of Spark's keeps its connections from task to task."""
    return FileObjects(access.policy, access.options)


class OpenSplit(NamedTuple):
    """A part of an object whose first piece was read."""

    split: ObjectSplit
    first: ObjectPart
    pieces: Iterable[bytes]
    """All of its bytes, from the start on, and then further ones to the end of the object, as far as they are taken."""


def open_splits(access: ObjectAccess, splits: Iterable[ObjectSplit]) -> Iterator[OpenSplit]:
    """Parts of objects, one after another; the first pieces of later ones are on their way meanwhile."""
    objects = objects_of(access)
    remaining = iter(splits)
    with thread.pool("ingest-read", AHEAD) as threads:
        waiting: deque[tuple[ObjectSplit, Future[ObjectPart]]] = deque()
        while True:
            while len(waiting) < AHEAD and (split := next(remaining, None)) is not None:
                length = min(PIECE_BYTES, (split.end or max(split.object.size, split.start + 1)) - split.start)
                waiting.append((split, threads.submit(objects.read, split.object.file, split.start, max(1, length))))
            if not waiting:
                return
            split, future = waiting.popleft()
            with blamed(split.object):
                first = future.result()
            yield OpenSplit(split, first, _pieces(objects, split, first, threads))


def _pieces(
    objects: FileObjects, split: ObjectSplit, first: ObjectPart, threads: ThreadPoolExecutor
) -> Iterator[bytes]:
    """The bytes of a part, and what follows it; one piece is on its way while another is worked on."""
    file, at = split.object.file, split.start + len(first.data)
    coming = _ask(objects, file, at, first.size, split.end, threads)
    yield first.data
    while coming is not None:
        with blamed(split.object):
            part = coming()
            if not part.data:
                raise Unavailable(f"{file.uri} ended at byte {at} of {first.size}")
        at += len(part.data)
        coming = _ask(objects, file, at, first.size, split.end, threads)
        yield part.data


def _ask(
    objects: FileObjects, file: Announced, at: int, size: int, end: int | None, threads: ThreadPoolExecutor
) -> Callable[[], ObjectPart] | None:
    """Ask for the next piece; behind the end of the part only when it is taken."""
    if at >= size:
        return None
    if end is not None and at >= end:
        return lambda: objects.read(file, at, BEHIND_BYTES)
    return threads.submit(objects.read, file, at, min(PIECE_BYTES, (end or size) - at)).result


# -- what is in it ----------------------------------------------------------------------------------------------------

_UNPACKED: Final[dict[str, Callable[[Any], Any]]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
}
_PACKED_ELSE: Final = (".deflate", ".lz4", ".snappy", ".zst")
"""Endings by which Spark tells that a file is packed, in ways that are Hadoop's own or take its libraries."""


def is_packed(name: str) -> bool:
    """Whether a task has to unpack a file, which begins at its start."""
    return name.lower().endswith(tuple(_UNPACKED))


def is_packed_else(name: str) -> bool:
    """Whether a file is packed in a way that only Spark's own readers unpack."""
    return name.lower().endswith(_PACKED_ELSE)


def unpacked(one: OpenSplit) -> Iterable[bytes]:
    """The bytes of an object as they were before it was packed."""
    name = one.split.object.name.lower()
    opening = next((opener for ending, opener in _UNPACKED.items() if name.endswith(ending)), None)
    if opening is None:
        return one.pieces
    packed = opening(io.BufferedReader(_PieceFile(one.pieces), PIECE_BYTES))
    return iter(lambda: bytes(packed.read(PIECE_BYTES)), b"")


class _PieceFile(io.RawIOBase):
    """Pieces as a file that is read once."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = memoryview(piece)
        some = self._held[: len(buffer)]
        buffer[: len(some)] = some
        self._held = self._held[len(some) :]
        return len(some)


class PinnedFile(io.RawIOBase):
    """An object as a file that one can seek in. Each read is one request."""

    def __init__(self, objects: FileObjects, one: PinnedObject) -> None:
        self._objects = objects
        self._file = one.file
        head = objects.read(one.file, max(0, one.size - BEHIND_BYTES), BEHIND_BYTES + 1)
        self._tail_at = max(0, one.size - BEHIND_BYTES)
        self._tail = head.data
        self.size = head.size
        self.modified_ms = head.modified_ms
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.size - self._at)
        length = left if size < 0 else min(size, left)
        data = self._read(self._at, length)
        self._at += len(data)
        return data

    def _read(self, at: int, length: int) -> bytes:
        if not length:
            return b""
        if at >= self._tail_at and at + length <= self._tail_at + len(self._tail):
            return bytes(self._tail[at - self._tail_at :][:length])
        parts = []
        while length:
            part = self._objects.read(self._file, at, min(length, PIECE_BYTES)).data
            if not part:
                raise Unavailable(f"{self._file.uri} ended at byte {at} of {self.size}")
            parts.append(part)
            at, length = at + len(part), length - len(part)
        return b"".join(parts)
