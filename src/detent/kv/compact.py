"""Giving back the room that deleted records have left.

    compact("file:./data")          # a `Compacted`: how large it was, and is

LMDB takes free pages again and never makes its file shorter. So on `file:` the records are copied into a new file,
which takes the place of the old one in one step; no process may have the store open meanwhile. On an object store the
owner itself joins tables all the time; what nothing needs any more is deleted now instead of a little later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from detent import crash
from detent.errors import Invalid, NotFound, Unavailable
from detent.kv.environment import MAP_BYTES_FIRST
from detent.kv.file import FileWriter
from detent.kv.localobjects import PRIVATE, make_directories, sync_directory
from detent.kv.ownership import OwnerLock
from detent.kv.urls import parse_url

COPY: Final = "compacting"
"""The folder of the new file until it has taken the old one's place. One that was left is made anew."""


class Compacted(NamedTuple):
    """How many bytes the store took before, and takes now; fragments are not counted."""

    before: int
    after: int


def compact(url: str) -> Compacted:
    """Make a store as small as its records are. `Unavailable` if a process has a `file:` store open."""
    location = parse_url(url)
    if location.scheme == "memory":
        raise Invalid("a memory: store takes no room on a disk")
    if location.scheme == "file":
        return _compact_file(location.directory)
    from detent.kv.slate import collect_garbage

    return Compacted(*collect_garbage(url))


def _compact_file(path: Path) -> Compacted:
    data = path / "data.mdb"
    if not data.exists():
        raise NotFound(f"there is no store at {path}")
    lock = OwnerLock(path)
    if not lock.try_acquire():
        raise Unavailable("another process has this store open: end it first")
    try:
        before = data.stat().st_size
        with closing(FileWriter(path)):
            pass  # what its log holds is in the data file now
        made = _copied(path)
        crash.point("kv.compact.after_copy")
        with _alone(path):
            made.replace(data)
            sync_directory(path)
        crash.point("kv.compact.after_rename")
        shutil.rmtree(path / COPY, ignore_errors=True)
        return Compacted(before, data.stat().st_size)
    finally:
        lock.release()


def _copied(path: Path) -> Path:
    """A new data file with the same records, durable, for the same users."""
    folder = path / COPY
    shutil.rmtree(folder, ignore_errors=True)
    make_directories(folder, PRIVATE)
    old, made = path / "data.mdb", folder / "data.mdb"
    size = max(MAP_BYTES_FIRST, old.stat().st_size)
    try:
        with closing(lmdb.open(os.fspath(path), map_size=size, max_dbs=0, readonly=True, create=False)) as opened:
            opened.copy(os.fspath(folder), compact=True)
        status = old.stat()
        made.chmod(status.st_mode & 0o777)
        os.chown(made, -1, status.st_gid)
        with made.open("rb") as file:
            os.fsync(file.fileno())
    except (lmdb.Error, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(f"the records of {path} could not be copied, and the store is as it was: {error}") from error
    return made


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process has the file open, and none can open it. One that had would go on reading the old file,
    and hear of no commit. LMDB has a lock on the first byte of its lock file for as long as a process has it open."""
    descriptor = os.open(path / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            raise Unavailable(
                f"another process reads the store at {path}: end all clients, readers and Spark sessions first; the "
                "store is as it was"
            ) from error
        yield
    finally:
        os.close(descriptor)
