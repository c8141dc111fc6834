"""A path too long for a socket: its folder in the temporary directory goes with its owner, however that ends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.kv.ownership import read_owner
from processes import Processes, eventually

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory with a short name: pytest's own are too long for sockets."""
    made = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / ("d" * 80) / ("e" * 80) / "store"


def folder_of(directory: Path, temporary: Path) -> Path:
    """The folder of the owner's socket, which must be where it is expected."""
    known = read_owner(directory)
    assert known is not None
    folder = Path(known.socket).parent
    assert folder.parent == temporary
    assert folder.is_dir()
    return folder


def test_the_next_owner_removes_the_folder_of_a_killed_one(
    directory: Path, temporary: Path, processes: Processes
) -> None:
    url = f"file:{directory}"
    first = processes.store(url, environment={"TMPDIR": str(temporary)})
    left = folder_of(directory, temporary)
    first.kill()
    assert (left / "owner.sock").exists(), "nobody was there to remove it"
    elsewhere = temporary / "x"
    elsewhere.mkdir()
    second = processes.store(url, environment={"TMPDIR": str(elsewhere)})
    assert not left.exists()
    own = folder_of(directory, elsewhere)
    assert second.call("append", journal="j", body="a")["offset"] == 0
    second.finish()
    assert not own.exists()
    assert sorted(temporary.rglob("*")) == [elsewhere], "something remains after a clean close"


def test_a_client_that_takes_over_removes_it_too(directory: Path, temporary: Path, processes: Processes) -> None:
    url = f"file:{directory}"
    environment = {"TMPDIR": str(temporary)}
    owner = processes.store(url, environment=environment)
    clients = [processes.store(url, environment=environment) for _ in range(2)]
    left = folder_of(directory, temporary)
    owner.kill()
    for number, client in enumerate(clients):
        assert client.call("append", journal="j", body="a")["offset"] == number
    assert list(temporary.iterdir()) == [folder_of(directory, temporary)] != [left]
    for client in clients:
        client.finish()
    assert list(temporary.iterdir()) == []


def test_it_goes_although_the_next_owner_fails_to_start(
    directory: Path, temporary: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file:{directory}"
    owner = processes.store(url, environment={"TMPDIR": str(temporary)})
    folder_of(directory, temporary)
    owner.kill()

    def broken(*_: Any) -> None:
        raise OSError("no room for a socket")

    # The note of the folder goes when the lock is given back: whoever comes next would not find it.
    with monkeypatch.context() as patch:
        patch.setattr("detent.remote.owner.socket_path", broken)
        with pytest.raises(OSError, match="no room"):
            detent.open(url)
    assert list(temporary.iterdir()) == []


# -- what a note may say without anything being removed ---------------------------------------------------------


class Place:
    """Something that a note names, which looks like what an owner leaves."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.folder = temporary / "detent-socket-abcdefgh"
        self.socket = self.folder / "owner.sock"
        self.listener = socket.socket(socket.AF_UNIX)

    def make(self) -> Path:
        """As after `kill -9`: the folder, and a socket without a listener."""
        self.folder.mkdir(mode=0o700)
        self.listener.bind(str(self.socket))
        return self.socket


@pytest.fixture
def place(temporary: Path) -> Iterator[Place]:
    made = Place(temporary)
    yield made
    made.listener.close()


def remains(place: Place) -> Path:
    return place.make()


def another_name(place: Place) -> Path:
    place.folder = place.temporary / "my-folder"
    place.socket = place.folder / "owner.sock"
    return place.make()


def another_socket(place: Place) -> Path:
    place.socket = place.folder / "other.sock"
    return place.make()


def no_socket(place: Place) -> Path:
    place.folder.mkdir(mode=0o700)
    place.socket.write_text("precious")
    return place.socket


def open_to_others(place: Place) -> Path:
    made = place.make()
    place.folder.chmod(0o755)
    return made


def a_link(place: Place) -> Path:
    real = place.temporary / "real"
    place.socket = real / "owner.sock"
    place.folder.symlink_to(real)
    real.mkdir(mode=0o700)
    place.listener.bind(str(place.socket))
    return place.folder / "owner.sock"


def somebody_listens(place: Place) -> Path:
    # As when the note came with a copy of the store, whose owner is alive.
    made = place.make()
    place.listener.listen(1)
    return made


def nobody_can_get_through(place: Place) -> Path:
    made = place.make()
    place.listener.listen(0)
    with socket.socket(socket.AF_UNIX) as caller:  # waits in the queue, which has room for no other
        caller.connect(str(made))
        place.caller = caller.dup()  # type: ignore[attr-defined]
    return made


def relative(place: Place) -> Path:
    return Path(os.path.relpath(place.make()))


KEPT: list[Callable[[Place], Path]] = [
    another_name,
    another_socket,
    no_socket,
    open_to_others,
    a_link,
    somebody_listens,
    nobody_can_get_through,
    relative,
]


def open_with_note(store_dir: Path, **changes: Any) -> None:
    """Open a store in which a dead owner has left a note."""
    store_dir.mkdir(exist_ok=True)
    note = {"pid": 1, "born": "never", "socket": "", "epoch": 1, **changes}
    (store_dir / "owner.json").write_text(json.dumps(note))
    with detent.open(f"file:{store_dir}") as store:
        assert store.is_owner
        assert store.journal("j").append(b"x").offset >= 0


def test_what_an_owner_left_is_removed(store_dir: Path, place: Place) -> None:
    open_with_note(store_dir, socket=str(remains(place)))
    assert list(place.temporary.iterdir()) == []
    open_with_note(store_dir, socket=str(place.socket))  # and when it is gone, that is fine


@pytest.mark.parametrize("make", KEPT, ids=lambda make: make.__name__)
def test_anything_else_is_kept(store_dir: Path, place: Place, make: Callable[[Place], Path]) -> None:
    named = make(place)
    before = sorted(place.temporary.rglob("*"))
    open_with_note(store_dir, socket=str(named))
    assert sorted(place.temporary.rglob("*")) == before
    assert place.socket.exists()
    if make is nobody_can_get_through:
        place.caller.close()  # type: ignore[attr-defined]


def test_what_belongs_to_another_user_is_kept(store_dir: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr("detent.kv.ownership.os.geteuid", lambda: other)
    open_with_note(store_dir, socket=str(remains(place)))
    assert place.socket.exists()


def test_a_file_beside_the_socket_is_kept(store_dir: Path, place: Place) -> None:
    remains(place)
    (place.folder / "precious").write_text("mine")
    open_with_note(store_dir, socket=str(place.socket))
    assert (place.folder / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    "path", [7, None, ["x"], "", "\0", "/detent-socket-\0/owner.sock", "detent-socket-x/owner.sock"]
)
def test_a_note_that_makes_no_sense_does_no_harm(store_dir: Path, path: Any) -> None:
    open_with_note(store_dir, socket=path)
    eventually(lambda: not (store_dir / "owner.json").exists())
