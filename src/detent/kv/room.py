"""What room a store has on its disk, and a reserve of it, so that consuming still works when the disk is full.

To delete, LMDB needs pages first. So a store holds a file that only takes room. When a write finds the disk full, the
file gives its room up, the write is tried again, and new messages are refused from then on; acknowledging, trimming and
deleting go on. The reserve is taken back, and messages are taken again, once there is room: on the disk, or in pages of
LMDB that have become free. The file stays when it is empty: where it is and no data file, that was lost.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RESERVE: Final = "reserve"

RESERVE_BYTES_MAX: Final = 8 << 20
"""Twice what a full commit log holds."""

RESERVE_PART: Final = 16
"""On a small disk the reserve is this part of it."""

PAGE: Final = 4096

logger = logging.getLogger("detent.kv")


class Room:
    """The room of one store, as its writer sees it. `full`: take no new messages now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / RESERVE
        self.full = False
        self.wanted = RESERVE_BYTES_MAX
        """How large the reserve should be on this disk; and what the log may hold, because it must fit in there."""

    def mark(self) -> None:
        """Have the file, empty: from now on a missing data file is a loss, and not a new store. In durable form once
        the folder is synced."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def strike(self, changes: Mapping[bytes, bytes | None]) -> bool:
        """A write found the disk full. Whether the reserve gave up some room, so that it may be tried again: not for
        much that is new, because the reserve is there to delete."""
        if not self.full:
            logger.warning("the disk of %s is full: new messages are refused until there is room", self._directory)
        self.full = True
        if sum(len(value) for value in changes.values() if value is not None) > self.wanted:
            return False
        return give_up_reserve(self._directory)

    def look(self, environment: Any, *, reserve: bool = False) -> None:
        """See how much room there is now, for what the log may hold until the next time; and, if asked to, have the
        reserve. (A store that is open for less than a second needs none.)"""
        disk = os.statvfs(self._directory)
        free = disk.f_bavail * disk.f_frsize
        wanted = self.wanted = min(RESERVE_BYTES_MAX, disk.f_blocks * disk.f_frsize // RESERVE_PART // PAGE * PAGE)
        held = self._path.stat().st_size if self._path.exists() else 0
        if reserve and held < wanted and free > 3 * wanted and self._take(wanted):
            held, free = wanted, free - wanted
        room = free + held + _free_in(environment, self._directory / "data.mdb")
        if self.full and room > 3 * wanted:
            logger.warning("the disk of %s has room again: new messages are taken", self._directory)
            self.full = False
        elif not self.full and room < 2 * wanted:
            logger.warning("the disk of %s is nearly full: new messages are refused", self._directory)
            self.full = True

    def _take(self, size: int) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.ftruncate(file, 0)
            logger.info("no room was reserved in %s: %s", self._directory, error)
            return False
        finally:
            os.close(file)
        return True


def give_up_reserve(directory: Path) -> bool:
    """Free what the reserve of this store takes. Whether it took anything."""
    try:
        file = os.open(directory / RESERVE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # it has none, or not for this user
    try:
        if os.fstat(file).st_size == 0:
            return False
        os.ftruncate(file, 0)
        os.fsync(file)  # some file systems give room back only with their next commit
        return True
    finally:
        os.close(file)


def _free_in(environment: Any, data: Path) -> int:
    """About how many bytes LMDB can write without room from the disk: free pages, and what the file has behind its
    last page, as a commit leaves it that found no room."""
    status = environment.stat()
    page, last = status["psize"], environment.info()["last_pgno"] + 1
    used = status["branch_pages"] + status["leaf_pages"] + status["overflow_pages"]
    behind = max(0, data.stat().st_blocks * 512 - last * page)
    return int(max(0, last - used - 2) * page + behind)
