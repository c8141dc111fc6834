"""A disk that is really full: what consumes goes on, and makes room for what is new."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import Unavailable
from processes import Io, Processes

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root"
)
SMALL = "8m"
TIMEOUT = "3s"
PATIENCE_S = 30.0
IS_LONG = os.environ.get("DETENT_SOAK") == "1"
ROUNDS = 3 if IS_LONG else 1
BODY_BYTES = 1000 if IS_LONG else 5000


def on_a_small_disk(io: Io, path: str, how: str) -> None:
    """In a mount namespace of its own, so that nothing is left of it afterwards."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        io.say("impossible", why="unshare")
        return
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "detent", path], check=False, capture_output=True
    )
    if done.returncode:
        io.say("impossible", why=done.stderr.decode())
        return
    fills_and_empties(io, Path(path), how)


def fills_and_empties(io: Io, disk: Path, how: str) -> None:
    url = f"file:{disk / 'store'}"
    with detent.open(url, timeout=TIMEOUT) as store:
        if how != "trim":
            store.queue("q").create()
        for number in range(ROUNDS):
            published = fill(store, how)
            take_the_rest(disk / f"others{number}")
            consumed = CONSUME[how](store)
            io.say("round", published=published, consumed=consumed)
            publish_when_there_is_room(store, how)
            CONSUME[how](store)
    # Opened and closed on the disk as it is.
    with detent.open(url, timeout=TIMEOUT) as store:
        fill(store, how)
        assert CONSUME[how](store)
    verify = [sys.executable, "-m", "detent", "store", "verify", url]
    io.say("done", verified=subprocess.run(verify, check=False, capture_output=True).returncode)


def publish(store: Any, how: str) -> int:
    bodies = [os.urandom(BODY_BYTES) for _ in range(20)]
    if how == "trim":
        store.journal("j").append_many(bodies)
    else:
        store.queue("q").publish_many(bodies)
    return len(bodies)


def fill(store: Any, how: str) -> int:
    """How many were taken before the disk was full."""
    count = 0
    while True:
        try:
            count += publish(store, how)
        except Unavailable as error:
            if "full" not in str(error):
                raise
            return count


def take_the_rest(path: Path) -> None:
    """Others fill what is left of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    assert os.statvfs(path).f_bavail == 0


def publish_when_there_is_room(store: Any, how: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            publish(store, how)
            return
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def acknowledge(store: Any) -> int:
    count = 0
    while messages := store.queue("q").claim(100):
        store.queue("q").ack(messages)
        count += len(messages)
    return count


def purge(store: Any) -> int:
    count: int = store.queue("q").purge()
    return count


def trim(store: Any) -> int:
    journal = store.journal("j")
    count = sum(1 for _ in journal.read())
    journal.trim(journal.next_offset())
    return count


CONSUME: dict[str, Callable[[Any], int]] = {"acknowledge": acknowledge, "purge": purge, "trim": trim}


@pytest.mark.parametrize("how", CONSUME if IS_LONG else ["acknowledge", "trim"])
def test_consuming_makes_room_on_a_full_disk(tmp_path: Path, processes: Processes, how: str) -> None:
    child = processes.start(on_a_small_disk, path=str(tmp_path), how=how)
    event = child.next_event(seconds=60)
    assert event is not None, child.errors()
    if event["event"] == "impossible":
        pytest.skip(f"no small disk here: {event['why']}")
    for number in range(ROUNDS):
        assert event is not None, child.errors()
        assert event["event"] == "round", (event, child.errors())
        print("\n", how, event)
        assert event["consumed"] == event["published"] > 300, number
        event = child.next_event(seconds=60)
    assert event is not None, child.errors()
    assert (event["event"], event["verified"]) == ("done", 0), child.errors()
