"""Local files: opened where they were allowed, through no link, and copied only if nothing was written meanwhile."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from detent.errors import Invalid, Unavailable

COPY_BYTES: Final = 1 << 20
"""What is copied at a time."""

_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""How folders on the way are opened. With O_PATH they need not be readable, as for every other use of a path."""

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Without waiting, because a pipe that nothing writes to would be waited for without end."""


def etag_of(status: os.stat_result) -> str:
    """What tells one writing of a local file from the next."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def status_of(path: str) -> os.stat_result:
    """The status of a regular file. `path` has no links in it; one that has come since is not followed."""
    with _folder_of(path) as folder:
        status = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    return _checked(status, path)


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor of a regular file. `path` has no links in it; one that has come since is not followed."""
    with _folder_of(path) as folder:
        file = os.open(os.path.basename(path), _FILE, dir_fd=folder)
    try:
        _checked(os.fstat(file), path)
        yield file
    finally:
        os.close(file)


@contextmanager
def _folder_of(path: str) -> Iterator[int]:
    """A descriptor of a file's folder, reached from the root step by step."""
    folder = os.open("/", _FOLDER)
    try:
        for name in os.path.dirname(path).split("/"):
            if name:
                deeper = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = deeper
        yield folder
    finally:
        os.close(folder)


def _checked(status: os.stat_result, path: str) -> os.stat_result:
    if modes.S_ISLNK(status.st_mode):
        raise Unavailable(f"{path} became a link while it was opened")
    if not modes.S_ISREG(status.st_mode):
        raise Invalid(f"{path} is not a regular file: announce each file by itself")
    return status


def copy(file: int, to: Path) -> bool:
    """Copy an open file, with its time of change; False if it may have been written to meanwhile.

    The file's status tells in nearly all cases. Two writings within one tick of the file system's clock, and those
    through mapped memory, leave no trace in it, so the content is read a second time, and has to be the same.
    """
    before = os.fstat(file)
    first = xxhash.xxh3_128()
    with to.open("xb", buffering=0) as target:
        for some in _content(file):
            first.update(some)
            written = target.write(some)
            while written < len(some):
                written += target.write(some[written:])
    second = xxhash.xxh3_128()
    for some in _content(file):
        second.update(some)
    os.utime(to, ns=(before.st_atime_ns, before.st_mtime_ns))
    return _traces(os.fstat(file)) == _traces(before) and first.digest() == second.digest()


def _content(file: int) -> Iterator[memoryview]:
    """All of an open file. Each part is valid until the next one is asked for."""
    buffer = memoryview(bytearray(COPY_BYTES))
    at = 0
    while size := os.preadv(file, [buffer], at):
        yield buffer[:size]
        at += size


def _traces(status: os.stat_result) -> tuple[int, ...]:
    """What a writer changes. The time of the last status change is in it, which no program can set back."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
