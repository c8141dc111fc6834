"""Objects as files on a local disk, synced: the file before its name appears, the directory before the call returns."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from detent import crash
from detent.errors import Exists, Invalid, NotFound, Unavailable
from detent.kv.base import ObjectInfo, check_object_name, check_object_prefix, check_object_range

TEMPORARY_SUFFIX = ".part~"
"""No object name may hold a tilde, so a half-written file is never taken for an object."""

TEMPORARY_AGE_MS = 24 * 3600 * 1000
"""A half-written file older than this has no living writer; listing removes it."""


_WRONG_PLACE: Final = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM}
)
"""What is wrong with a path, and stays wrong. Other errors, a full disk or a failing one, are the disk's."""


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable: without this a power cut can take a synced file's name away."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, mode: int | None = None) -> None:
    """Create a directory and its missing parents, durably; with this mode, whatever the umask, if one is given.

    `Invalid` if there can be none at this place, `Unavailable` if the disk has no room for it or fails.
    """
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    try:
        for directory in reversed(missing):
            try:
                directory.mkdir(0o777 if mode is None else mode)
            except FileExistsError:  # another process was faster
                if not directory.is_dir():
                    raise
            else:
                if mode is not None:
                    directory.chmod(mode)
            sync_directory(directory.parent)
    except OSError as error:
        if error.errno in _WRONG_PLACE:
            raise Invalid(f"{missing[0]} cannot be a folder: {error.strerror}") from error
        raise Unavailable(f"the folder {missing[0]} could not be made: {error.strerror}") from error


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """`Unavailable`, with words, for what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror}") from error


PRIVATE: Final = 0o700
"""The mode of a store's folders; its files have the same without the right to execute."""


class LocalObjects:
    """Objects below one directory. Those of a store are for the users who may read its data file, `like`; others are
    for everybody whom the umask lets in."""

    local = True

    def __init__(self, root: Path, like: Path | None = None) -> None:
        self._root = root
        self._like = like
        self._synced: set[Path] = set()

    def _make_folder(self, folder: Path) -> None:
        """Have a folder whose name is durable, also when a process that was killed had made it and not synced."""
        if folder in self._synced:
            return
        mode = self._mode()
        make_directories(folder, None if mode is None else mode | (mode & 0o444) >> 2)
        with _explained(f"the folder {folder} could not be synced"):
            for one in (folder, *folder.parents):
                sync_directory(one.parent)
                if one == self._root:
                    break
        self._synced.add(folder)

    def _mode(self) -> int | None:
        """The mode of new files; None to leave it to the umask."""
        if self._like is None:
            return None
        try:
            return self._like.stat().st_mode & 0o666
        except FileNotFoundError:
            return PRIVATE & 0o666

    def _path(self, name: str) -> Path:
        check_object_name(name)
        return self._root / name

    def put(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = self._path(name)
        self._make_folder(path.parent)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        crash.point("kv.object.before_write")
        try:
            size = self._write(temporary, chunks)
            crash.point("kv.object.before_rename")
            # A link refuses a taken name where a rename would replace the object behind it.
            os.link(temporary, path)
        except FileExistsError as error:
            if path.is_dir():
                raise Invalid(f"{name!r} is a folder of other objects; choose another name") from error
            with _explained(f"the object {name!r} could not be synced"):
                sync_directory(path.parent)  # its writer may have died before that, and callers take it for there
            raise Exists(f"there is an object {name!r} already") from error
        except OSError as error:
            raise Unavailable(f"the object {name!r} could not be written: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):  # an old one goes with the abandoned ones
                temporary.unlink(missing_ok=True)
        crash.point("kv.object.after_rename")
        with _explained(f"the object {name!r} could not be synced"):
            sync_directory(path.parent)
        crash.point("kv.object.after_sync")
        return size

    def _write(self, path: Path, chunks: Iterable[bytes | memoryview]) -> int:
        size, mode = 0, self._mode()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # whatever the umask
            for chunk in chunks:
                size += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return size

    def get(self, name: str, start: int = 0, length: int | None = None) -> memoryview:
        check_object_range(start, length)
        with _explained(f"the object {name!r} could not be read"):
            mapped = self._map(name)
        return mapped[start : len(mapped) if length is None else start + length]

    def _map(self, name: str) -> memoryview:
        try:
            with self._path(name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:
                    return memoryview(b"")
                # Mapped, not read: Arrow then works on the page cache without a copy.
                return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotFound(f"there is no object {name!r}") from error

    def size(self, name: str) -> int | None:
        with _explained(f"the object {name!r} could not be looked up"):
            try:
                status = self._path(name).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_object_prefix(prefix)
        base = self._root / prefix.rpartition("/")[0]
        for directory, _, files in os.walk(base):
            for file in files:
                path = Path(directory, file)
                name = path.relative_to(self._root).as_posix()
                if not name.startswith(prefix) or file.endswith(TEMPORARY_SUFFIX):
                    continue
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def remove_abandoned(self, now_ms: int) -> int:
        """Delete half-written files whose writer must be dead. Returns how many."""
        removed = 0
        for directory, _, files in os.walk(self._root):
            for file in files:
                path = Path(directory, file)
                if not file.endswith(TEMPORARY_SUFFIX):
                    continue
                try:
                    if now_ms - path.stat().st_mtime_ns // 1_000_000 > TEMPORARY_AGE_MS:
                        path.unlink()
                        removed += 1
                except FileNotFoundError:
                    continue  # its writer finished meanwhile
        return removed

    def delete(self, name: str) -> None:
        path = self._path(name)
        if self.size(name) is not None:
            with _explained(f"the object {name!r} could not be deleted"):
                path.unlink(missing_ok=True)
        crash.point("kv.object.after_delete")
