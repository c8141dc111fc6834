"""What room a store has on its disk, and what it keeps of it, so that consuming still works when the disk is full.

To delete, LMDB needs pages first. So the data file has room behind its last page that no other file can take. When it
cannot have that any more, new messages are refused; acknowledging, trimming and deleting go on in what is left. New
messages are taken again once there is room: on the disk, or in pages of LMDB that have become free.

A small file beside it, the reserve, is for the owner's other files: its note of itself and its socket. It stays when
it is empty: where it is and no data file, that was lost.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from detent.errors import Unavailable

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 64 << 10

SPARE_BYTES_MAX: Final = 8 << 20
"""What the data file has behind its last page: twice what a full commit log holds."""

SPARE_PART: Final = 8
"""On a small disk it is this part of it."""

LOW: Final = 8
"""With less than so many times that on the disk, each move of the log to LMDB has it, and not only housekeeping."""

PAGE: Final = 4096

logger = logging.getLogger("detent.kv")


class DiskRoom:
    """The room of one store, as its writer sees it. `full`: take no new messages now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data.mdb"
        self.full = False
        self._spare = SPARE_BYTES_MAX

    @property
    def log_bytes(self) -> int:
        """What the log may hold before it moves to LMDB: it must leave some of the spare room."""
        return self._spare // 4 if self.full else self._spare // 2

    @property
    def log_keys(self) -> int | None:
        """How many records the log may change, if each may cost a page of its own."""
        return max(1, self._spare // 4 // PAGE) if self.full else None

    def strike(self) -> None:
        """A write found the disk full."""
        if not self.full:
            logger.warning("the disk of %s is full: new messages are refused until there is room", self._directory)
        self.full = True

    def look(self, environment: Any, *, keep: bool = False) -> None:
        """See how much room there is now, and have the spare room, if asked to or if there is not much more. (A store
        that is open for less than a second need not have it.)"""
        disk = os.statvfs(self._directory)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        self._spare = min(SPARE_BYTES_MAX, size // SPARE_PART // PAGE * PAGE)
        status, last = environment.stat(), environment.info()["last_pgno"] + 1
        page = status["psize"]
        if (keep or free < LOW * self._spare) and self._keep(last * page):
            room = free + self._spare
        else:
            room = free + max(0, self._data.stat().st_blocks * 512 - last * page)
        used = status["branch_pages"] + status["leaf_pages"] + status["overflow_pages"]
        room += max(0, last - used - 2) * page
        if self.full and room > 3 * self._spare:
            logger.warning("the disk of %s has room again: new messages are taken", self._directory)
            self.full = False
            mark(self._directory)
        elif not self.full and room < 2 * self._spare:
            logger.warning("the disk of %s is nearly full: new messages are refused", self._directory)
            self.full = True

    def _keep(self, end: int) -> bool:
        """Have the spare room behind the last page; False if the disk has not so much."""
        file = os.open(self._data, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(file, end, self._spare)
        except OSError as error:
            logger.debug("%s has no spare room: %s", self._data, error)
            return False
        finally:
            os.close(file)
        return True


def mark(directory: Path) -> None:
    """Have the reserve: from now on a missing data file is a loss, and not a new store. In durable form once the folder
    is synced."""
    file = os.open(directory / RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < RESERVE_BYTES:
            os.posix_fallocate(file, 0, RESERVE_BYTES)
    except OSError as error:
        os.ftruncate(file, 0)
        logger.info("%s has no reserve: %s", directory, error)
    finally:
        os.close(file)


def with_reserve(directory: Path, work: Callable[[], None]) -> None:
    """Do something that takes a little room; give up the reserve for it if there is none."""
    try:
        work()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        try:
            os.truncate(directory / RESERVE, 0)
            work()
        except OSError as again:
            raise Unavailable(f"the disk of {directory} is full: {again}") from again
