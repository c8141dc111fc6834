"""Deliveries as lines of one file: none lost, none twice, none torn, whenever the process or the machine stops.

A delivery is noted beside the file first, then its bytes are appended; each is on the disk before the next step. Who
comes next finds in the note where the bytes had to be: either they are there, and the delivery is done; or not all of
them, and what there is of them is cut off. A lock is held meanwhile, and at no other time: its next holder
looks at the notes again if another process has had it, so that it does not matter which one stood still, for how
long, or where.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from detent import crash
from detent.durations import Duration, milliseconds
from detent.errors import Corrupt, Invalid, Unavailable
from detent.journal import Message
from detent.kv.localobjects import make_directories, sync_directory
from detent.processor.sink_base import Delivered, DeliverySink, bytes_of, chosen
from detent.processor.sink_notes import Note, Notes, load
from detent.processor.step import Step

SUFFIX: Final = ".detent"

RENEW_BYTES: Final = 256 << 10
"""Notes that are longer than this, and than four times what they were, are written anew: about every thousand
deliveries."""

LOOK_S: Final = 0.01
"""How often those look who wait for the lock."""

_NEWLINE: Final = b"\n"


class FileSink(DeliverySink):
    """A line in a file for each delivery, exactly once.

    >>> graph.sink(input="orders", name="log")(FileSink("orders.jsonl"))
    >>> graph.sink(input="orders", name="log")(FileSink("orders.txt", line=lambda message: message.json()["id"]))

    A line is the message's body, or what `line` answers for it: bytes, text, or anything that becomes JSON. It gets the
    step, too, if it has a parameter of that name. A line has no newline in it. The messages of a batch (``whole=True``)
    are a line each, all of them or none.

    What was delivered is noted in ``PATH.detent``. The two files belong together: move, copy or remove both, while
    nothing is delivered. A file that is there without notes is taken over as it is. Do not write to the file, and do
    not let anything rotate it: what is not as it was noted is `Corrupt`. Reading it is fine; the last line may be
    incomplete while it is written, and is cut off if that never ends. Files are on a local disk: locks of network
    drives may not hold.

    Several processors, threads and processes may write to one file. Each delivery waits for the one before, for `wait`
    if that is another process; longer than that it takes if the other stands still, and then it is `Unavailable`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, line: Callable[..., Any] | None = None, wait: Duration = "10s"
    ) -> None:
        super().__init__()
        try:
            self._path = Path(os.path.realpath(os.fspath(path)))
        except (TypeError, ValueError) as error:
            raise Invalid(f"a FileSink needs the path of a file, not {path!r}") from error
        self._beside = self._path.with_name(self._path.name + SUFFIX)
        self._line = chosen(line, "line")
        self._wait_s = milliseconds(wait) / 1000
        self._file: int | None = None
        self._notes_file: int | None = None
        self._notes_size = self._notes_size_anew = 0
        self._notes: Notes | None = None
        self._doubtful: Note | None = None
        self._good = 0
        self._writer = secrets.token_hex(8)
        _made.add(self)

    def __call__(self, value: Delivered, step: Step) -> None:
        data = self._lines(value, step)
        crash.point("processor.file.before_lock")
        with self._lock:
            self._require_open()
            with _reaching(self._path), self._locked() as file:
                notes = self._noted(file)
                if data and not notes.has(step):
                    self._append(file, notes, notes.entry(step, data, self._writer), data)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            super().close()
            self._let_go()

    def _lines(self, value: Delivered, step: Step) -> bytes:
        batch = value if isinstance(value, list) and all(isinstance(one, Message) for one in value) else [value]
        lines = [bytes_of(one if self._line is None else self._line(one, step), "line") for one in batch]
        lines = [line.removesuffix(_NEWLINE) for line in lines]
        if any(_NEWLINE in line for line in lines):
            raise Invalid(
                f"delivery {step.key} has a newline in it, and would be several lines of {self._path}: say what the "
                "line is to be, with line=..., for example line=Message.json"
            )
        return b"".join(line + _NEWLINE for line in lines)

    # -- a delivery ---------------------------------------------------------------------------------------------

    def _append(self, file: int, notes: Notes, entry: Note, data: bytes) -> None:
        """Note a delivery, and make it. Whatever fails in between, the next one begins by looking."""
        assert self._notes_file is not None
        self._notes, self._doubtful = None, entry
        note = entry.encode()
        crash.point("processor.file.before_intent")
        _write(self._notes_file, note, self._notes_size)
        os.fsync(self._notes_file)
        crash.point("processor.file.after_intent")
        _write(file, data, entry.at)
        crash.point("processor.file.after_append")
        os.fsync(file)
        crash.point("processor.file.after_sync")
        notes.add(entry)
        self._notes, self._doubtful, self._good = notes, None, notes.size
        self._notes_size += len(note)
        if self._notes_size > max(RENEW_BYTES, 4 * self._notes_size_anew):
            self._write_anew(notes)

    # -- the notes ----------------------------------------------------------------------------------------------

    def _noted(self, file: int) -> Notes:
        """The notes as they are, read again if another process has changed them. The lock is held."""
        if self._notes is not None and self._is_current(self._notes, file):
            return self._notes
        self._notes = None
        found = load(self._beside)
        if found is None:
            if self._notes_size:
                raise Corrupt(f"{self._beside} is gone: put it back, or make another sink to begin without it")
            notes = self._taken_over(file)
            self._write_anew(notes)
        else:
            notes, size = found
            self._open_notes(size)
            self._settle(file, notes)
        self._notes = notes
        return notes

    def _is_current(self, notes: Notes, file: int) -> bool:
        if self._notes_file is None or not _is_at(self._notes_file, self._beside):
            return False
        return os.fstat(self._notes_file).st_size == self._notes_size and os.fstat(file).st_size == notes.size

    def _taken_over(self, file: int) -> Notes:
        """Notes of a file that has none: whatever is in it stays."""
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != _NEWLINE:
            raise Invalid(f"the last line of {self._path} does not end: end it, or remove it")
        os.fsync(file)
        return Notes(size)

    def _settle(self, file: int, notes: Notes) -> None:
        """Find out what became of the delivery that was noted last, and finish it or cut it off."""
        size, entry = os.fstat(file).st_size, notes.pending
        end = notes.size if entry is None else entry.at + entry.size
        good = max(notes.size, self._good)  # all that was written; this process may know more of it than the notes do
        if size > end or size < good:
            raise Corrupt(
                f"{self._path} has {size} bytes, and {good} to {end} were written: another program has changed it. Put "
                f"it right; or move it away, together with {self._beside.name}, to begin a new one"
            )
        if entry is None:
            return
        data = _read(file, entry.at, entry.size)
        if entry != self._doubtful and size == end and entry.is_of(data):
            # Its writer may have died before it was synced, or the sync has failed, and then another process would
            # find nothing to do: so it is written again, where it is. And it is noted that it is done: a process
            # that doubts it would cut it off.
            _write(file, data, entry.at)
            os.fsync(file)
            notes.add(entry)
            if entry.writer != self._writer:
                self._write_anew(notes)
            return
        # Where a sync has failed here before, what can be read need not be what is on the disk: it is written anew.
        os.ftruncate(file, entry.at)
        os.fsync(file)
        crash.point("processor.file.after_cut")
        notes.pending = None
        self._write_anew(notes)
        self._doubtful = None

    def _open_notes(self, size: int) -> None:
        """Open the notes, without what a killed process had begun."""
        self._close_notes()
        self._notes_file = os.open(self._beside, os.O_RDWR)
        sync_directory(self._beside.parent)  # the process that wrote them anew may have died before that
        self._notes_size, self._notes_size_anew = size, 0
        if os.fstat(self._notes_file).st_size > size:
            os.ftruncate(self._notes_file, size)
            os.fsync(self._notes_file)

    def _write_anew(self, notes: Notes) -> None:
        """Write the notes as short as they can be: beside the old ones, synced, then in their place."""
        data = notes.encode()
        beside = self._beside.with_name(self._beside.name + ".next")
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write(file, data, 0)
            os.fsync(file)
            crash.point("processor.file.before_rename")
            beside.replace(self._beside)
            crash.point("processor.file.after_rename")
            sync_directory(self._beside.parent)
        except BaseException:
            os.close(file)
            self._notes = None  # it is not known which of the two are in place
            raise
        self._close_notes()
        self._notes_file = file
        self._notes_size = self._notes_size_anew = len(data)

    # -- the files ----------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, while no other process writes to it."""
        deadline = time.monotonic() + self._wait_s
        while True:
            file = self._opened()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"another process is in the middle of a delivery to {self._path}, and nothing was written. If "
                        f"it stands still, let it go on or end it: `fuser {self._path}` says which one it is"
                    ) from None
                time.sleep(LOOK_S)
                continue
            if _is_at(file, self._path):
                break
            self._let_go()  # it was moved away since it was opened
        try:
            yield file
        finally:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _opened(self) -> int:
        if self._file is None:
            make_directories(self._path.parent)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
            self._file = file
            if not os.path.isfile(self._path):
                self._let_go()
                raise Invalid(f"{self._path} is not a file: lines can be counted on only where they stay")
            sync_directory(self._path.parent)
        return self._file

    def _close_notes(self) -> None:
        file, self._notes_file = self._notes_file, None
        if file is not None:
            os.close(file)

    def _let_go(self) -> None:
        """Close the files, which gives the lock back; in a forked child, without giving back the parent's."""
        self._notes = None
        self._close_notes()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


_made: weakref.WeakSet[FileSink] = weakref.WeakSet()


def _after_fork() -> None:
    # A child that kept the files would hold the lock after its parent was killed in the middle of a delivery.
    for sink in list(_made):
        sink._let_go()
        sink._writer, sink._doubtful = secrets.token_hex(8), None  # what is doubtful is the parent's


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _reaching(path: Path) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError as error:
        raise Invalid(f"{path} is a folder: name a file") from error
    except OSError as error:
        raise Unavailable(f"{path} or its notes cannot be written: {error.strerror or error}") from error


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that has the path now."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _write(file: int, data: bytes, at: int) -> None:
    """Write all of it; the system may take a part at a time."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, at)
        rest, at = rest[written:], at + written


def _read(file: int, at: int, size: int) -> bytes:
    parts = []
    while size and (part := os.pread(file, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
