"""Who owns a `file:` store: a lock that dies with its process, and a note that says how to reach the owner."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from detent.errors import Unavailable
from detent.kv.localobjects import PRIVATE, make_directories
from detent.kv.room import with_reserve

SOCKET_PATH_MAX: Final = 100
"""The kernel cuts socket paths near 108 bytes; longer ones live in the temporary directory."""

END_WAIT_S: Final = 10.0
_SOCKET: Final = "owner.sock"
_SOCKET_FOLDER: Final = "detent-socket-"
SOCKET_FOLDER_MAX: Final = 36


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that owns a store. `born` tells it from a later process with the same number, and `space` is where
    that number counts: in a container it means another process, or none."""

    pid: int
    born: str
    socket: str
    epoch: int
    space: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether its number means nothing to this process."""
        return self.space != "" and self.space != process_space()


def process_born(pid: int) -> str:
    """When a process started, in whatever form the system tells it; empty when there is no such process."""
    with contextlib.suppress(OSError):
        # The second field, a name in parentheses, may hold spaces; the start time is the 22nd.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    if Path("/proc/self").exists():
        return ""
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def process_space() -> str:
    """The namespace of this process's number; empty where the system has no such thing."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class OwnerLock:
    """The right to write a store. Held until released, or until the process ends in whatever way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None
        self._announced = False

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        try:
            make_directories(self._directory, PRIVATE)
            file = os.open(self._directory / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"the store at {self._directory} cannot be opened for writing: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        _held.add(self)
        _remove_remains(self._directory)  # at once: whatever fails from now on may take the note of it along
        return True

    def announce(self, epoch: int, socket: str) -> None:
        """Say how this owner can be reached. Replaced whole, so that a reader never sees half a note."""
        owner = Owner(os.getpid(), process_born(os.getpid()), socket, epoch, process_space())
        temporary = self._directory / f"owner.json.{os.getpid()}"
        with_reserve(self._directory, lambda: _write_privately(temporary, json.dumps(asdict(owner))))
        temporary.replace(self._directory / "owner.json")
        self._announced = True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            if self._announced:  # else it is another's: of one that was killed, and may be looked for
                (self._directory / "owner.json").unlink(missing_ok=True)
                self._announced = False
            os.close(self._file)
            self._file = None

    def forget(self) -> None:
        """In a forked child: let go of the parent's lock without releasing it for the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write_privately(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # a process with this number may have left one
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _after_fork() -> None:
    # A child that kept the descriptor would hold the lock after its parent's death, with no process that answers.
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)


def _read_note(directory: Path) -> Owner | None:
    """The owner that announced itself last, dead or alive."""
    try:
        note = json.loads((directory / "owner.json").read_text())
        return Owner(**{field.name: note[field.name] for field in fields(Owner) if field.name in note})
    except (OSError, ValueError, TypeError):
        return None


def is_owned(directory: Path) -> bool:
    """Whether a process holds the lock of this very folder: the note about an owner may be a copy."""
    try:
        file = os.open(directory / "owner.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def read_owner(directory: Path) -> Owner | None:
    """The owner that announced itself last, if it still lives. Where its number says nothing, the lock does."""
    owner = _read_note(directory)
    if owner is None:
        return None
    if owner.is_elsewhere:
        return owner if is_owned(directory) else None
    return owner if is_same_process(owner.pid, owner.born) else None


def is_same_process(pid: int, born: str) -> bool:
    """Whether the process with this number is still the one that started then."""
    return process_born(pid) == born and not _is_zombie(pid)


def end_owner(directory: Path, owner: Owner) -> None:
    """Kill the owner of a store that does not answer, so that its lock is free; no other process, if it was
    replaced."""
    if read_owner(directory) != owner:
        return
    if owner.is_elsewhere:
        raise Unavailable(
            f"the owner of {directory} is process {owner.pid} of another PID namespace, perhaps in a container: end it "
            "there"
        )
    if owner.pid == os.getpid():
        raise Unavailable(f"{directory} is owned by this very process")
    with contextlib.suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + END_WAIT_S
    while is_same_process(owner.pid, owner.born):
        if time.monotonic() > deadline:
            raise Unavailable(f"process {owner.pid}, the owner of {directory}, does not end")
        time.sleep(0.01)


def _is_zombie(pid: int) -> bool:
    """Dead, but not yet collected by its parent: its locks are gone all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def socket_path(directory: Path) -> Path:
    """Where the owner of a store listens."""
    path = directory / _SOCKET
    return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else temporary_socket()


def temporary_socket() -> Path:
    """A place for a socket in a new folder that only this user can enter."""
    for base in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(base)) + SOCKET_FOLDER_MAX <= SOCKET_PATH_MAX:
            return Path(tempfile.mkdtemp(prefix=_SOCKET_FOLDER, dir=base)) / _SOCKET
    raise Unavailable("the temporary directory has too long a name for a socket: set TMPDIR to a shorter one")


def remove_socket_folder(path: Path) -> None:
    """Remove the folder that was made for a socket whose own place had too long a name."""
    if path.parent.name.startswith(_SOCKET_FOLDER):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _remove_remains(directory: Path) -> None:
    """Remove what a killed owner has left in the temporary directory. Its note may be a copy, or forged: what
    goes is a socket on which no process listens, in a folder such as we make, of our own user; and nothing else."""
    note = _read_note(directory)
    if note is not None and isinstance(note.socket, str):
        remove_dead_socket(Path(note.socket))


def remove_dead_socket(path: Path) -> None:
    """Remove a socket on which no process listens, with the folder that was made for it; nothing of another kind."""
    if not path.is_absolute() or path.name != _SOCKET or not path.parent.name.startswith(_SOCKET_FOLDER):
        return
    with contextlib.suppress(OSError, ValueError):
        folder = path.parent.lstat()
        ours = stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.geteuid() and not folder.st_mode & 0o077
        if not ours or _is_served(path):
            return
        path.unlink(missing_ok=True)
        remove_socket_folder(path)


def _is_served(path: Path) -> bool:
    """Whether a socket has a listener, or is something else altogether."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
                caller.setblocking(False)
                caller.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except BlockingIOError:
        pass  # more callers than it can take: the owner is there
    return True
