"""The commit log of `file:`: small commits are durable after one sync here, and move into LMDB many at a time.

A log belongs to one writer, and its name to that writer's epoch, so a replaced writer can write into no log but its
own. Its first page says whose it is. Each record starts a new page: a page that holds an acknowledged commit is not
written again before LMDB has that commit. Beside the log stands its tip; other processes read both
through :mod:`detent.kv.logfollower`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from detent import crash
from detent.kv.commitrecord import NUMBER_MAX, PAGE, LogName, pages
from detent.kv.localobjects import sync_directory
from detent.kv.loghead import LogHead, boot_id
from detent.kv.overlay import Layer, Overlay

_TIP: Final = struct.Struct("<8sQQQQQ")
_MAGIC: Final = b"dtnttip2"
_PUBLISHED, _FENCE, _INVERSE = 1, 2, 5


class Tip:
    """The page that a log's writer shares with readers and with its successor."""

    def __init__(self, directory: Path, name: LogName, *, create: bool = False, writable: bool = True) -> None:
        """`FileNotFoundError` if there is none, or only part of one."""
        path = name.path(directory, "tip")
        mode = os.O_RDWR if writable else os.O_RDONLY
        if create:
            path.unlink(missing_ok=True)  # never cut short: a process that has it mapped would die of that
        descriptor = os.open(path, mode | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                page = _TIP.pack(_MAGIC, 0, 0, *name, NUMBER_MAX).ljust(PAGE, b"\0")
                if os.pwrite(descriptor, page, 0) != PAGE:
                    path.unlink(missing_ok=True)
                    raise OSError(errno.ENOSPC, "there is no room for the tip of the commit log")
            elif os.fstat(descriptor).st_size < PAGE:
                raise FileNotFoundError(f"{path} is not whole")
            self._page = mmap.mmap(descriptor, PAGE, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
            # Whole words, so that others see the old number or the new one; `struct` writes zeros in between.
            self._words = memoryview(self._page).cast("Q")
        finally:
            os.close(descriptor)

    @property
    def published(self) -> int:
        """The last commit that readers may see."""
        return self._words[_PUBLISHED]

    def publish(self, number: int) -> None:
        """Let readers see all commits through `number`; they are durable. Written twice: each says so by itself."""
        self._words[_INVERSE] = number ^ NUMBER_MAX
        self._words[_PUBLISHED] = number

    @property
    def fenced(self) -> bool:
        """Whether a successor has come."""
        return self._words[_FENCE] != 0

    def fence(self) -> None:
        """From now on the log's writer answers no call."""
        self._words[_FENCE] = 1

    def close(self) -> None:
        """Let go of the page."""
        self._words.release()
        self._page.close()


def durable_through(directory: Path, name: LogName) -> int | None:
    """The last commit that the tip of this log names; None where there is no tip of it, or only part of one."""
    try:
        with name.path(directory, "tip").open("rb") as file:
            data = file.read(PAGE)
    except FileNotFoundError:
        return None
    if len(data) < PAGE:
        return None
    magic, published, _, store, epoch, inverse = _TIP.unpack_from(data)
    if magic != _MAGIC or (store, epoch) != name:
        return None
    return int(max(published, inverse ^ NUMBER_MAX))


LOG_BYTES_FIRST: Final = 1 << 20
LOG_BYTES_MAX: Final = 4 << 20
"""The log's zeros are written ahead, because a sync that also records a new file size is slower. When it is full, its
commits move to LMDB; this bounds what an opener has to replay, and the memory of the overlay."""

LOGGED_BYTES_MAX: Final = 256 << 10
"""Larger commits go to LMDB at once: they would be written twice, and gain little from the one sync saved."""

DIRECT_BYTES_MAX: Final = 2 * LOGGED_BYTES_MAX
"""What is written past the page cache at once: more than a record of the largest commit, with all its lengths."""

LOGGED_KEYS_MAX: Final = 16_384
"""Different keys in the log; they are put in order for scans."""

_NAME: Final = re.compile(r"commits-([0-9a-f]{16})-(\d{1,20})\.(log|tip|new)")


logger = logging.getLogger("detent.kv")


def remove_logs(directory: Path, store: int, epochs: range) -> None:
    """Delete the logs of a store's writers with these epochs; what they held must be in LMDB by now. Logs of a store
    that was here before are not ours to delete."""
    for path in directory.glob("commits-*"):
        found = _NAME.fullmatch(path.name)
        if found and int(found[1], 16) == store and int(found[2]) in epochs:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # it takes room and does no harm: LMDB is past it
                logger.warning("%s was not removed: %s", path, error)


class DirectFile:
    """Writes past the page cache that are durable when they return: one call instead of two, and no page of the cache
    that is copied into and written back. Readers come through the cache, which drops what it had of such pages. Where a
    file system cannot do this, it is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._buffer: mmap.mmap | None = None  # aligned, as such writes must be
        self._works = hasattr(os, "O_DIRECT")

    def write(self, pieces: Sequence[bytes], size: int, at: int) -> bool:
        """Make the pieces durable, filled up with zeros to `size`, whole pages both. False if nothing was written that
        counts: it has to be done otherwise."""
        if not self._works or size > DIRECT_BYTES_MAX:
            return False
        try:
            if self._buffer is None:
                self._buffer = mmap.mmap(-1, DIRECT_BYTES_MAX)
                self._file = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
            return os.pwrite(self._file, self._fill(self._buffer, pieces, size), at) == size
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._works = False
            return False

    @staticmethod
    def _fill(buffer: mmap.mmap, pieces: Sequence[bytes], size: int) -> memoryview:
        end = 0
        for piece in pieces:
            start, end = end, end + len(piece)
            buffer[start:end] = piece
        buffer[end:size] = bytes(size - end)
        return memoryview(buffer)[:size]

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class CommitLog:
    """A writer's own log. The overlay holds what is in it and not in LMDB."""

    def __init__(self, directory: Path, name: LogName, base: int) -> None:
        """A new log for the commits after `base`; its name is durable when this returns."""
        self.name = name
        self.overlay = Overlay(base)
        self.hold(LOG_BYTES_MAX, None)
        self._base = base
        self._at = self._end = PAGE
        self._size = 0
        self._file = -1
        self._direct = DirectFile(name.path(directory, "log"))
        tip, path, unnamed = (name.path(directory, kind) for kind in ("tip", "log", "new"))
        self.tip = Tip(directory, name, create=True)
        try:
            self._file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            # A user who may read the data file may read these too.
            like = (directory / "data.mdb").stat()
            for made in (unnamed, tip):
                with contextlib.suppress(PermissionError):
                    os.chown(made, -1, like.st_gid)
                made.chmod(like.st_mode & 0o777)
            # Readers ask by this lock whether the writer is alive; it goes with the process. So it comes before the
            # name under which they look.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._extend(LOG_BYTES_FIRST)
            unnamed.rename(path)
            sync_directory(directory)
        except BaseException:
            self.close()
            unnamed.unlink(missing_ok=True)  # under its own name it does no harm: it is empty
            raise
        crash.point("kv.log.after_create")

    def _extend(self, size: int) -> None:
        """Write zeros ahead, and then say in the head that they are there: a reader that finds less knows of a loss."""
        more = size - self._size
        try:
            if os.pwrite(self._file, bytes(more), self._size) != more:
                raise OSError(errno.ENOSPC, "there is no room for the commit log")
            if self._size:
                os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        head = LogHead(self.name, self._base, size, boot_id()).encode()
        if os.pwrite(self._file, head, 0) != len(head):
            raise OSError(errno.ENOSPC, "there is no room for the head of the commit log")
        os.fsync(self._file)
        self._size = size

    def hold(self, size: int, keys: int | None) -> None:
        """Take only so many bytes, and changes of so many keys: what is in the log must find room in LMDB."""
        self._bytes_max, self._keys_max = min(size, LOG_BYTES_MAX), keys or LOGGED_KEYS_MAX

    def has_room(self, size: int) -> bool:
        """Whether a record of `size` bytes fits; the log grows for it, up to its largest size."""
        end = self._at + pages(size)
        if end > self._bytes_max or len(self.overlay) > self._keys_max:
            return False
        if end <= self._size:
            return True
        try:
            self._extend(min(max(self._size * 2, pages(end)), LOG_BYTES_MAX))
        except OSError:  # the disk is full: what is in the log moves to LMDB, which may have free pages
            return False
        return True

    def write(self, record: Sequence[bytes], size: int) -> None:
        """Make a record, in pieces of `size` bytes together, durable behind the others. Readers do not see it yet."""
        whole = pages(size)
        self._end = self._at + whole
        if not self._direct.write(record, whole, self._at):
            if os.pwritev(self._file, record, self._at) != size:
                raise OSError(errno.ENOSPC, "only a part of a commit was written")
            crash.point("kv.log.after_write")
            os.fdatasync(self._file)
        crash.point("kv.log.after_sync")

    def accept(self, number: int, changes: Mapping[bytes, bytes | None]) -> None:
        """The record that was written last counts: show it to everybody."""
        self.overlay.add(number, changes)
        self.publish()

    def publish(self) -> None:
        """Show other processes what this one shows."""
        self._at = self._end
        self.tip.publish(self.overlay.last)

    def restart(self, base: int) -> None:
        """LMDB holds everything through `base`: begin at the front again."""
        self.overlay = Overlay(base)
        self._at = self._end = PAGE
        self.tip.publish(base)  # it also says what LMDB must have, should that go back to an older state

    def layer(self, folded: int) -> Layer | None:
        """The log over an LMDB snapshot that holds commits through `folded`; None if that snapshot is too old."""
        overlay = self.overlay
        return None if overlay.base > folded else Layer(overlay, folded, overlay.last)

    def close(self) -> None:
        """Let go of the files; they stay."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
            self._direct.close()
            self.tip.close()

    def __del__(self) -> None:
        # An interrupt may lose one that was just made; its lock would then tell readers that it is in use.
        if hasattr(self, "tip"):
            self.close()
