"""A commit log as processes see it that do not write it: readers, and the successor of its writer.

What was acknowledged and cannot be read is `Corrupt`, never the end of the log. docs/format.md has the rule.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

from detent.errors import Corrupt
from detent.kv.commitlog import Tip, durable_through
from detent.kv.commitrecord import (
    HEAD,
    NUMBER_MAX,
    PAGE,
    SECTOR,
    CommitRecord,
    LogName,
    RecordHead,
    decode_head,
    decode_record,
    pages,
)
from detent.kv.loghead import GIVE_UP, HEAD_BYTES, decode_log_head
from detent.kv.oldlog import is_old_log, refuse_old_log
from detent.kv.oldlog import read_readable as read_old_readable
from detent.kv.overlay import Layer, Overlay


def take_over(directory: Path, name: LogName, folded: int) -> Overlay:
    """All that a replaced writer's log holds beyond `folded`. That writer answers no call now.

    `FileNotFoundError` if there is no log. The caller has raised the epoch. The fence comes before the reading, so a
    commit that the old writer still answers is one that is read here.
    """
    follower = LogFollower(directory, name)
    try:
        try:
            tip = Tip(directory, name)
        except FileNotFoundError:
            if not follower.is_final:
                raise Corrupt(f"the commit log {name.path(directory, 'log')} has a writer and no tip") from None
        else:
            tip.fence()
            tip.close()
        return follower.read_all(folded)
    finally:
        follower.close()


def read_abandoned(directory: Path, name: LogName, folded: int) -> Overlay:
    """What an abandoned log holds beyond `folded`, up to the first commit that cannot be read."""
    try:
        data = name.path(directory, "abandoned").read_bytes()
        if is_old_log(directory, name, data):
            return read_old_readable(data, name, folded)[0]
        follower = LogFollower(directory, name, kind="abandoned")
    except (FileNotFoundError, Corrupt):
        return Overlay(folded)  # nothing of it can be read
    try:
        return follower.read_readable(folded)
    finally:
        follower.close()


class LogFollower:
    """A log that another process writes, or has written."""

    def __init__(self, directory: Path, name: LogName, kind: str = "log") -> None:
        """`FileNotFoundError` if there is no such log, or no tip of a writer that lives."""
        self.name = name
        self._directory = directory
        self._file = os.open(name.path(directory, kind), os.O_RDONLY | os.O_CLOEXEC)
        self._at = PAGE
        self.overlay = Overlay(-1)  # of no snapshot yet
        self._last_words: Overlay | None = None  # what was found after the writer's death
        self._tip: Tip | None = None
        try:
            gone = self._writer_is_gone()
            data = os.pread(self._file, HEAD_BYTES, 0)
            refuse_old_log(directory, name, data)
            self._head = decode_log_head(name, data)
            if not gone:
                self._tip = Tip(directory, name, writable=False)
        except BaseException:
            self.close()
            raise

    def _writer_is_gone(self) -> bool:
        """Without a writer, what is in the log is all there will be; it counts once it is synced."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        try:
            os.fdatasync(self._file)
        except OSError as error:
            if error.errno != errno.EROFS:  # nothing waits to be written on a read-only file system
                raise
        return True

    @property
    def is_final(self) -> bool:
        """Whether there will be no more in it, because its writer is dead."""
        return self._tip is None

    @property
    def is_removed(self) -> bool:
        """Whether the file has lost its name; another log may have it now."""
        return os.fstat(self._file).st_nlink == 0

    def layer(self, folded: int) -> Layer | None:
        """The log over an LMDB snapshot that holds commits through `folded`; None if that snapshot is too old."""
        if self._tip is None:
            overlay = self._last_words
            if overlay is None or overlay.base != folded:
                overlay = self._last_words = self.read_all(folded)
            return Layer(overlay, folded, overlay.last)
        published = self._tip.published
        if published > folded and not self._read_through(published, folded):
            return None
        return Layer(self.overlay, folded, max(published, folded))

    def read_readable(self, folded: int) -> Overlay:
        """Everything after `folded`, up to the first record that cannot be read, whatever that means."""
        self._read_through(NUMBER_MAX, folded)
        return self.overlay

    def read_all(self, folded: int) -> Overlay:
        """Everything after `folded`, up to a last record that was being written and never acknowledged.

        `Corrupt` if a commit cannot be read that was acknowledged.
        """
        size = os.fstat(self._file).st_size
        if size < self._head.size:
            self._refuse(f"it has {size} bytes, and had {self._head.size}")
        through = durable_through(self._directory, self.name)
        overlay = self.read_readable(folded)
        last = overlay.last
        if through is None and not self._head.machine_restarted:
            self._refuse("its tip is missing or damaged, which alone can say whether the log is whole")
        if through is not None and through > last:
            self._refuse(f"commit {last + 1} cannot be read, and {through} were durable")
        self._refuse_more(last, size)
        if self._head.machine_restarted:
            self._refuse_damaged_sector(last)
        return overlay

    def _refuse(self, why: str) -> NoReturn:
        raise Corrupt(f"the commit log {self.name.path(Path(), 'log')} is damaged: {why}; {GIVE_UP}")

    def _refuse_more(self, last: int, size: int) -> None:
        """Each record was begun after the one before it was durable. So only the next one may be there in part."""
        for at in range(PAGE, size, PAGE):
            head = self._head_at(at)
            if head is not None and head.number > last and (head.number, at) != (last + 1, self._at):
                self._refuse(f"commit {head.number} was begun, and commit {last + 1} cannot be read")

    def _refuse_damaged_sector(self, last: int) -> None:
        """The tip may be older than the log. But a sector of a disk is whole, or as it was before; so a record of one
        sector cannot be there in part, nor anything but a record begin the log."""
        sector = os.pread(self._file, SECTOR, self._at)
        head = decode_head(self.name, sector)
        if head is None:
            if self._at == PAGE and any(sector):
                self._refuse("its first record cannot be read")
        elif head.number == last + 1 and head.size <= SECTOR:
            self._refuse(f"commit {head.number} has a wrong checksum, and is too short to be there in part")

    def _read_through(self, number: int, folded: int) -> bool:
        if self.overlay.base != folded:
            self.overlay = Overlay(folded)
            self._at = self._after(folded)
        overlay, self.overlay = self.overlay, Overlay(-1)  # if this is interrupted, the next one starts over
        while overlay.last < number:
            record = self._read(overlay.last + 1)
            if record is None:
                break
            overlay.add(record.number, record.changes)
        self.overlay = overlay
        return overlay.last >= number

    def _after(self, folded: int) -> int:
        """Where the record after `folded` is, or would be. The log may begin with some that LMDB has by now."""
        at, head = PAGE, self._head_at(PAGE)
        if head is None or head.number > folded:
            return at
        number = head.number
        while head is not None and head.number == number <= folded:
            at += pages(head.size)
            number += 1
            head = self._head_at(at)
        return at if head is not None and head.number == folded + 1 else PAGE

    def _read(self, number: int) -> CommitRecord | None:
        record = self._record_at(self._at)
        if record is None or record.number != number:
            return None
        self._at += pages(record.size)
        return record

    def _head_at(self, at: int) -> RecordHead | None:
        return decode_head(self.name, os.pread(self._file, HEAD.size, at))

    def _record_at(self, at: int) -> CommitRecord | None:
        page = os.pread(self._file, PAGE, at)
        head = decode_head(self.name, page)
        if head is None:
            return None
        return decode_record(self.name, page if head.size <= len(page) else os.pread(self._file, head.size, at))

    def close(self) -> None:
        """Let go of the files. Forgotten first: a number that was closed may be another file's a moment later."""
        file, self._file = self._file, -1
        tip, self._tip = self._tip, None
        if file >= 0:
            os.close(file)
        if tip is not None:
            tip.close()
