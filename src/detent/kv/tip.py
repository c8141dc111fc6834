"""The tip of a commit log: a page of shared memory in a file beside it, which outlives its process and not a power cut.

It says through which number commits are durable: readers of other processes look so far while the writer lives, and
when it is dead, each of these commits must be in the log or in LMDB. And it holds the fence, which a successor raises.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from detent.kv.commitrecord import NUMBER_MAX, PAGE, LogName

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
