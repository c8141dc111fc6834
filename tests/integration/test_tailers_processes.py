"""Tailers and appenders of real processes: killed, standing still, woken by one another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Store
from detent.stream.appender import Appender
from detent.stream.tailer import Tailer, any_of
from processes import PATIENCE_S, Child, Io, Processes, arm, eventually
from remoteserver import server_process

LINES = [b"%d" % number for number in range(40)]


def reading(io: Io, url: str, limit: int, hold: int, point: str) -> None:
    """Say what is read, until there is none for now. After so many reads stand there, with something in hand; or die at
    a point."""
    with detent.open(url) as store, Tailer(store, "j", "n") as tailer:
        if point:
            arm(point)
        while messages := tailer.read_many(limit):
            io.say("read", offsets=[message.offset for message in messages])
            hold -= 1
            if not hold:
                io.hear()
        io.say("done")


def copying(io: Io, url: str, point: str) -> None:
    """Copy what there is, exactly once, and die at a point of the way."""
    with detent.open(url) as store, Tailer(store, "j", "n", autosave=False) as tailer:
        if point:
            arm(point)
        while messages := tailer.read_many(3):
            with store.transaction() as transaction:
                transaction.append_many("out", [message.body for message in messages])
                tailer.save_in(transaction)
        io.say("done")


def standing(io: Io, url: str, autosave: bool) -> None:
    """Read a message, and go on when told."""
    with detent.open(url, role="client") as store:
        tailer = Tailer(store, "j", "n", autosave=autosave)
        message = tailer.read()
        assert message is not None
        io.say("read", offset=message.offset)
        io.hear()
        try:
            if autosave:
                tailer.read()
            else:
                with store.transaction() as transaction:
                    transaction.append("out", message.body)
                    tailer.save_in(transaction)
        except detent.DetentError as error:
            io.say("raised", kind=type(error).__name__)


def importing(io: Io, url: str, point: str) -> None:
    """Append all lines, from the first on."""
    with detent.open(url) as store:
        appender = Appender(store, "j", "import")
        if point:
            arm(point)
        for number, line in enumerate(LINES[:20]):
            appender.append(line, number=number)
        for first in range(15, len(LINES), 7):
            appender.append_many(LINES[first : first + 7], first_number=first)
        io.say("done", last=appender.last_number)


def waiting(io: Io, url: str, role: Any, journals: list[str]) -> None:
    """Say what comes."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(detent.open(url, role=role))
        tailers = [stack.enter_context(Tailer(store, journal)) for journal in journals]
        io.say("waiting")
        while (found := any_of(tailers)) is not None:
            io.say("came", journal=found[0].journal, body=found[1].body.decode())


def said(child: Child) -> list[int]:
    """The offsets that a process has read, which has ended."""
    found: list[int] = []
    while (event := child.next_event()) is not None:
        found += event.get("offsets", [])
    return found


@pytest.mark.parametrize(("is_owner", "limit"), [(True, 1), (False, 3)])
def test_killed_between_reads(processes: Processes, store_dir: Path, is_owner: bool, limit: int) -> None:
    """What was in hand comes again, and nothing else. The owner of a store, or a client."""
    url, at = f"file:{store_dir}", 0
    with contextlib.ExitStack() as stack:
        with detent.open(url) as store:
            store.journal("j").append_many(LINES)
        if not is_owner:
            stack.enter_context(detent.open(url))
        for hold in (1, 4, 0):
            child = processes.start(reading, url=url, limit=limit, hold=hold, point="")
            if hold:
                for _ in range(hold):
                    assert child.expect("read")["offsets"] == [*range(at, at + limit)]
                    at += limit
                child.kill()
                at -= limit
            child.wait()
    assert said(child) == [*range(at, len(LINES))]


@pytest.mark.parametrize(("point", "again"), [("engine.group.before_commit", 1), ("engine.group.after_commit", 0)])
def test_killed_while_it_saves(processes: Processes, store_dir: Path, point: str, again: int) -> None:
    url, lives = f"file:{store_dir}", []
    with detent.open(url) as store:
        store.journal("j").append_many(LINES)
    for armed in (f"{point}:2", f"{point}:1", ""):
        child = processes.start(reading, url=url, limit=3, hold=0, point=armed)
        assert child.was_killed() is bool(armed)
        lives.append(said(child))
    done = 0
    for flat in lives:
        assert flat == [*range(done, done + len(flat))], lives
        done = flat[-1] + 1 - 3 * again
    assert flat[-1] == len(LINES) - 1


@pytest.mark.parametrize("point", ["engine.group.before_commit", "engine.group.after_commit"])
def test_killed_around_a_commit_of_position_and_effect(processes: Processes, store_dir: Path, point: str) -> None:
    url = f"file:{store_dir}"
    with detent.open(url) as store:
        store.journal("j").append_many(LINES)
    for count in (1, 3):
        child = processes.start(copying, url=url, point=f"{point}:{count}")
        assert child.was_killed()
    child = processes.start(copying, url=url, point="")
    child.expect("done")
    child.wait()
    with detent.open(url) as store:
        assert [message.body for message in store.journal("out").read()] == LINES


@pytest.mark.parametrize("autosave", [True, False])
def test_a_tailer_that_stood_still(processes: Processes, store_dir: Path, autosave: bool) -> None:
    """Another one has it meanwhile: what the first one does then comes to nothing."""
    with detent.open(f"file:{store_dir}") as store:
        store.journal("j").append_many(LINES[:2])
        zombie = processes.start(standing, url=store.url, autosave=autosave)
        assert zombie.expect("read")["offset"] == 0
        zombie.stop()
        with Tailer(store, "j", "n", autosave=False) as tailer:
            assert [message.body for message in tailer] == LINES[:2]
            with store.transaction() as transaction:
                transaction.append_many("out", LINES[:2])
                tailer.save_in(transaction)
        zombie.resume()
        zombie.tell(go=True)
        assert zombie.expect("raised")["kind"] == "Fenced"
        with Tailer(store, "j", "n") as tailer:
            assert tailer.position == 2
        assert [message.body for message in store.journal("out").read()] == LINES[:2]


@pytest.mark.parametrize("point", ["engine.group.before_commit", "engine.group.after_commit", "kv.commit.after_sync"])
def test_an_import_that_is_killed_and_begins_again(processes: Processes, store_dir: Path, point: str) -> None:
    url = f"file:{store_dir}"
    for count in (1, 3, 12):
        child = processes.start(importing, url=url, point=f"{point}:{count}")
        if not child.was_killed():  # it had less to do than that
            child.expect("done")
    child = processes.start(importing, url=url, point="")
    assert child.expect("done")["last"] == len(LINES) - 1
    child.wait()
    with detent.open(url) as store:
        assert [message.body for message in store.journal("j").read()] == LINES


# -- waiting ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def waiter(processes: Processes, url: str, role: str) -> Iterator[Child]:
    child = processes.start(waiting, url=url, role=role, journals=["j", "k"])
    child.expect("waiting")
    yield child
    child.kill()


@pytest.mark.parametrize("role", ["auto", "client", "reader"])
def test_writes_of_another_process_are_heard(processes: Processes, store_dir: Path, role: str) -> None:
    with detent.open(f"file:{store_dir}") as store, waiter(processes, store.url, role) as child:
        for number, journal in enumerate("jkkj"):
            store.journal(journal).append(b"%d" % number)
            assert child.expect("came") == {"event": "came", "journal": journal, "body": str(number)}


def test_writes_through_a_server_are_heard(processes: Processes, tmp_path: Path) -> None:
    """Of one client, by another one."""
    port = free_port()
    processes.start(server_process, url=f"file:{tmp_path}/store", port=port).expect("serving")
    url = f"http://127.0.0.1:{port}"
    with detent.open(url) as store, waiter(processes, url, "auto") as child:
        for number, journal in enumerate("jkj"):
            store.journal(journal).append(b"%d" % number)
            assert child.expect("came") == {"event": "came", "journal": journal, "body": str(number)}


def test_the_owner_is_killed_while_somebody_waits(processes: Processes, store_dir: Path) -> None:
    """Whoever takes over is heard, too; here that is the process that waits."""
    owner = processes.store(f"file:{store_dir}")
    found: list[Any] = []
    with detent.open(f"file:{store_dir}") as store, Tailer(store, "j") as tailer:
        thread = threading.Thread(target=lambda: found.append(tailer.read(timeout=None)))
        thread.start()
        asker = eventually(asking, what="somebody asking")
        owner.kill()
        with detent.open(store.url) as other:
            other.journal("j").append(b"x")
            thread.join(PATIENCE_S)
        assert [message.body for message in found] == [b"x"]
    eventually(lambda: not asker.is_alive())


def asking() -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == "detent-growth-j"), None)


def free_port() -> int:
    from remoteserver import listening

    with listening(0) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_one_reads_what_another_appends(processes: Processes, store_dir: Path) -> None:
    """All in its order, whatever else is written to the store meanwhile."""
    writer = processes.store(f"file:{store_dir}")
    with detent.open(f"file:{store_dir}") as store, Tailer(store, "j", "n") as tailer, Tailer(store, "k") as other:
        writer.send("append_many", journal="j", bodies=[str(number) for number in range(200)])
        writer.send("append", journal="k", body="end")
        seen: list[Store | bytes] = []
        while (found := any_of([tailer, other])) is not None and found[0] is tailer:
            seen.append(found[1].body)
        seen += [message.body for message in tailer]
    assert seen == [b"%d" % number for number in range(200)]
