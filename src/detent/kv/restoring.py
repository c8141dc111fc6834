"""A store that is being made from a backup: no reader and no owner opens it until it is whole.

    with restoring("file:./data") as target:
        target.writer.commit(batch)   # as often as it takes; a killed one goes on where it was
        target.finish()               # from here on it is a store like any other

On `file:` a mark stands in the folder meanwhile; on an object store the epoch record has a version of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from detent import crash
from detent.errors import Exists, Invalid, Unavailable
from detent.kv.base import Writer
from detent.kv.environment import RESTORE_MARK
from detent.kv.file import FileWriter
from detent.kv.localobjects import PRIVATE, make_directories, sync_directory
from detent.kv.ownership import OwnerLock
from detent.kv.urls import parse_url

MADE_BY_OPENING = frozenset({"owner.lock", "lock.mdb"})
"""What a process leaves in a folder in which it found no store."""


class RestoreTarget(Protocol):
    """Where a restore writes."""

    @property
    def writer(self) -> Writer:
        """Of the store that is being made."""
        ...

    def finish(self) -> None:
        """Let readers and owners open the store, which is whole."""
        ...


@contextmanager
def restoring(url: str) -> Iterator[RestoreTarget]:
    """Begin to make a store, or go on with one whose restore was interrupted. `Exists` if there is a store."""
    location = parse_url(url)
    if location.scheme == "memory":
        raise Invalid("a memory: store ends with its process: restore to file:PATH or to an object store")
    if location.scheme == "file":
        with _in_folder(location.directory) as folder:
            yield folder
        return
    from detent.kv.slate import SlateRestore

    made = SlateRestore(url)
    try:
        yield made
    finally:
        made.writer.close()


@contextmanager
def _in_folder(path: Path) -> Iterator[RestoreTarget]:
    _refuse_used(path)
    lock = OwnerLock(path)
    if not lock.try_acquire():
        raise Unavailable(f"another process owns {path}, or restores it: end it first")
    try:
        _refuse_used(path)  # by one that had the lock until now
        target = _Folder(path)
        try:
            yield target
        finally:
            target.writer.close()
    finally:
        lock.release()


def _refuse_used(path: Path) -> None:
    if (path / RESTORE_MARK).exists() or not path.exists():
        return
    if not path.is_dir():
        raise Exists(f"{path} is a file: restore to a folder that is new or empty")
    if {one.name for one in path.iterdir()} - MADE_BY_OPENING:
        raise Exists(f"there is a store at {path}, or something else: restore to a folder that is new or empty")


class _Folder:
    """A `file:` store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_directories(path, PRIVATE)
        mark = os.open(path / RESTORE_MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fsync(mark)
        finally:
            os.close(mark)
        sync_directory(path)
        crash.point("kv.restore.after_mark")
        self.writer: Writer = FileWriter(path, restoring=True)

    def finish(self) -> None:
        """Everything moves to LMDB, and then the mark goes."""
        self.writer.close()
        crash.point("kv.restore.before_end")
        (self._path / RESTORE_MARK).unlink(missing_ok=True)
        sync_directory(self._path)
        crash.point("kv.restore.after_end")
