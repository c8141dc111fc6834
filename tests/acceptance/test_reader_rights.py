"""A reader that may not write `lock.mdb`: LMDB keeps there who reads what, so it cannot be let in, and is told why.

Root passes every permission, so the reader is another process which, if it was started by root, becomes somebody else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from processes import CallFailed, Child, Io, Processes

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

UNKNOWN = 65534
CLEAR = r"^Unavailable: .*/store may not be opened.* the right to write its lock\.mdb"


def reads_without_privileges(io: Io, path: str) -> None:
    """Opens the store for reading whenever it is asked to, as a user whom permissions hold back."""
    url, folder = f"file:{path}", Path(path)
    # What is imported only on first use must be there before: the interpreter's own files may be root's alone.
    read(url)
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setgid(UNKNOWN)
            os.setuid(UNKNOWN)
        except OSError as error:
            io.say("impossible", why=f"root cannot become anybody else: {error}")
            return
    if not os.access(folder / "data.mdb", os.R_OK | os.W_OK):
        io.say("impossible", why=f"{folder} is out of reach for other users")
        return
    io.say("ready")
    for call, _ in io.calls():
        try:
            io.say("answer", result=os.access(folder / "lock.mdb", os.W_OK) if call == "may_write" else read(url))
        except BaseException as error:
            io.say("raised", kind=type(error).__name__, message=str(error), seconds=0)


def read(url: str) -> list[str]:
    with detent.open(url, role="reader") as store:
        return [message.body.decode() for message in store.journal("j").read()]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a store can be that other users reach; pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory(prefix="detent-rights-") as base:
        Path(base).chmod(0o711)
        store = Path(base, "store")
        yield store
        store.chmod(0o700)  # so that it can be removed


def permit(folder: Path, *, lock: int = 0o666) -> None:
    """Give everybody all rights but, perhaps, those to the lock file."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        if file.is_file():
            file.chmod(lock if file.name == "lock.mdb" else 0o666)


def start(processes: Processes, folder: Path) -> Child:
    """A reader without privileges, which can read the store as it is now."""
    child = processes.start(reads_without_privileges, path=str(folder))
    event: Any = child.next_event()
    assert event is not None, child.errors()
    if event["event"] == "impossible":
        pytest.skip(event["why"])
    assert event["event"] == "ready", event
    return child


@pytest.mark.parametrize("rights", [0o444, 0o000], ids=["may only read it", "may not even read it"])
def test_a_reader_that_may_not_write_the_lock_is_told_so(folder: Path, processes: Processes, rights: int) -> None:
    with detent.open(f"file:{folder}") as owner:
        owner.journal("j").append(b"a")
        permit(folder)
        child = start(processes, folder)
        assert child.call("read") == ["a"]  # so it is the lock alone that it fails for
        permit(folder, lock=rights)
        if child.call("may_write"):
            pytest.skip("this file system does not hold anybody back")
        with pytest.raises(CallFailed, match=CLEAR):
            child.call("read")
        # Nobody is worse off for the attempt: not the owner, and not the reader once it has the right.
        owner.journal("j").append(b"b")
        assert read(f"file:{folder}") == ["a", "b"]
        permit(folder)
        assert child.call("read") == ["a", "b"]


def test_a_reader_that_may_not_make_the_lock_is_told_so(folder: Path, processes: Processes) -> None:
    """As in a copy of a store without its lock file, in a folder of somebody else's."""
    with detent.open(f"file:{folder}") as owner:
        owner.journal("j").append(b"a")
    permit(folder)
    child = start(processes, folder)
    assert child.call("read") == ["a"]
    (folder / "lock.mdb").unlink()
    folder.chmod(0o555)
    with pytest.raises(CallFailed, match=CLEAR):
        child.call("read")
    assert not (folder / "lock.mdb").exists()
    folder.chmod(0o777)
    assert child.call("read") == ["a"]
