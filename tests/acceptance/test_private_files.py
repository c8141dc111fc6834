"""The files of a store are its user's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa

import detent
from processes import Io, Processes


def uses_everything(io: Io, path: str, umask: int) -> None:
    """A store with all kinds of files, left as they are while it is open and when its owner was killed."""
    os.umask(umask)
    from detent.remote import owner

    owner.TICK_S = 3600.0
    store: Any = detent.open(f"file:{path}")
    journal = store.journal("j")
    journal.append(b"logged")
    journal.adopt([journal.write_fragment(pa.table({"body": pa.array([bytes(5000)], pa.binary())}))])
    with detent.open(f"file:{path}", role="reader") as reader:  # as tasks of Spark write them
        reader.journal("j").write_fragment(pa.table({"body": pa.array([b"staged"], pa.binary())}))
    store.queue("q").create()
    store.queue("q").publish(bytes(300_000))
    store._connection.owner(1e18).engine.tick()
    journal.append(b"logged")
    io.say("used")
    for _ in io.calls():
        pass


def modes(path: Path) -> dict[str, str]:
    """Every file and folder with the mode that it has."""
    found = {}
    for one in (path, *path.rglob("*")):
        name = one.relative_to(path.parent).as_posix()
        found[name] = stat.filemode(one.lstat().st_mode)
    return found


def test_files_of_a_store_are_private(tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "store"
    child = processes.start(uses_everything, path=str(path), umask=0)
    child.expect("used")
    found = modes(path)
    child.kill()
    kinds = {Path(name).suffix for name in found}
    assert kinds >= {".mdb", ".log", ".tip", ".json", ".lock", ".sock", ".arrow"}
    wrong = {name: mode for name, mode in found.items() if mode not in {"drwx------", "-rw-------", "srw-------"}}
    assert not wrong


def test_objects_are_for_those_who_may_read_the_data_file(tmp_path: Path) -> None:
    """A store that its user has opened to a group stays open to it, with all of its files."""
    path = tmp_path / "store"
    with detent.open(f"file:{path}") as store:
        (path / "data.mdb").chmod(0o640)
        journal = store.journal("j")
        journal.adopt([journal.write_fragment(pa.table({"body": pa.array([bytes(5000)], pa.binary())}))])
        found = modes(path / "objects")
    assert set(found.values()) == {"drwxr-x---", "-rw-r-----"}
