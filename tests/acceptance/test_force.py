"""`force` ends one owner: the one that was in the way and did not answer. Never a later one, never a bystander."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import Unavailable
from detent.kv.ownership import end_owner, read_owner
from processes import Io, Processes, store_process

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IMPATIENT = {"detent.remote.connection.HUNG_S": 0.2}
"""A client to whom an owner counts as hung soon."""


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


def bystander(io: Io) -> None:
    io.say("here")
    io.hear()
    io.say("still here")


def silent_owner(io: Io, url: str) -> None:
    """An owner that hangs from its first moment on: it says when it is asked, and does not answer."""
    from detent.remote.app import OwnerApp

    is_open = threading.Event()

    async def never(*_: Any) -> None:
        if is_open.is_set():  # a client may ask as soon as the socket is there, before this process has said so
            io.say("asked")
        await asyncio.Event().wait()

    OwnerApp.answer = never  # type: ignore[method-assign, assignment]
    with detent.open(url) as store:
        io.say("open", owner=store.is_owner)
        is_open.set()
        io.hear()


def test_is_spent_when_an_owner_was_found_that_answers(url: str, processes: Processes) -> None:
    first = processes.store(url)
    client = processes.store(url, role="client", force=True, timeout="60s", patches=IMPATIENT)
    assert client.call("append", journal="j", body="a")["offset"] == 0
    first.stop()
    client.send("append", journal="j", body="b")
    first.kill()  # now, or with the call under way: either way the client has to look for an owner again
    second = processes.start(silent_owner, url=url)
    assert second.expect("open")["owner"] is True
    for _ in range(5):  # each time the client has waited for an answer until the owner counts as hung
        second.expect("asked")
    assert second.running, "a client that was opened with force long ago has killed the next owner"
    second.kill()
    third = processes.store(url)
    assert client.answer(seconds=60)["offset"] == 1
    assert third.call("read", journal="j") == ["a", "b"]


def test_is_spent_on_the_owner_that_was_ended(url: str, processes: Processes) -> None:
    first = processes.store(url)
    first.stop()
    # As a client it does not take over itself: it waits for the next owner, with the same open() still under way.
    client = processes.start(store_process, url=url, role="client", force=True, timeout="60s", patches=IMPATIENT)
    assert first.was_killed()
    second = processes.start(silent_owner, url=url)
    assert second.expect("open")["owner"] is True
    for _ in range(5):
        second.expect("asked")
    assert second.running
    second.kill()
    third = processes.store(url)
    client.expect("open")
    assert client.call("append", journal="j", body="a")["offset"] == 0
    assert third.call("status")["owner"] is True


def test_of_several_at_once_makes_one_owner(url: str, processes: Processes) -> None:
    hung = processes.store(url)
    hung.call("append", journal="j", body="before")
    epoch = hung.call("status")["epoch"]
    hung.stop()
    forcing = [processes.start(store_process, url=url, force=True, patches=IMPATIENT) for _ in range(4)]
    for child in forcing:
        child.expect("open")
    assert hung.was_killed()
    assert all(child.running for child in forcing)
    states = [child.call("status") for child in forcing]
    assert sorted(state["owner"] for state in states) == [False, False, False, True]
    assert {state["epoch"] for state in states} == {epoch + 1}, "the owner was replaced more than once"
    assert sorted(child.call("append", journal="j", body="after")["offset"] for child in forcing) == [1, 2, 3, 4]


def test_does_not_end_a_process_that_has_got_the_number_of_a_dead_owner(
    url: str, store_dir: Path, processes: Processes
) -> None:
    owner = processes.store(url)
    found = read_owner(store_dir)
    assert found is not None
    other = processes.start(bystander)
    other.expect("here")
    end_owner(store_dir, replace(found, pid=other.pid))
    other.tell()
    other.expect("still here")
    # Found hung, and replaced before it could be ended: the new owner is not meant.
    end_owner(store_dir, replace(found, epoch=found.epoch - 1))
    assert owner.call("status")["owner"] is True
    end_owner(store_dir, found)
    assert owner.was_killed()


def test_does_not_end_the_process_itself(url: str, store_dir: Path) -> None:
    with detent.open(url) as store:
        found = read_owner(store_dir)
        assert found is not None
        assert found.pid == os.getpid()
        with pytest.raises(Unavailable, match="this very process"):
            end_owner(store_dir, found)
        assert store.journal("j").append(b"x").offset == 0
