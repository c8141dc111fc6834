"""Many processes on one `file:` store: one owns it, the others go through it, and any of them may die at any moment."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import shutil
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import kv
from detent.errors import Invalid, NotFound, Unavailable
from detent.kv.ownership import read_owner
from processes import CallFailed, Child, Io, Processes, eventually

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TAKEOVER_S = 5.0
"""A bound for slow machines; what is measured is printed, and is a fraction of it."""

QUIET = {"detent.remote.owner.TICK_S": 3600.0}
"""An owner without housekeeping: the next group it commits is the one that the test sends."""


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


def bodies(url: str, journal: str = "j", isolation: str = "committed") -> list[str]:
    """What a reader that needs no owner finds."""
    with detent.open(url, role="reader") as store:
        return [message.body.decode() for message in store.journal(journal).read(isolation=isolation)]


def producers(url: str, journal: str = "j") -> dict[str, bytes]:
    """Which owner stamped each message: every owner is a new producer."""
    with detent.open(url, role="reader") as store:
        return {message.body.decode(): message.producer for message in store.journal(journal).read()}


# -- one owner, many clients ------------------------------------------------------------------------------------


def test_the_second_process_is_a_client_with_the_same_api(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        store.journal("j").append(b"of the owner")
        client = processes.store(url)
        assert client.call("status") == {"owner": False, "epoch": store.epoch}
        assert client.call("append", journal="j", body="one") == {
            "position": 1, "count": 1, "offset": 1, "committed": 1,
        }  # fmt: skip
        assert client.call("append_many", journal="j", bodies=["two", "three"])["offset"] == 2
        results = client.call("transaction", bodies={"j": "four", "k": "five"}, registers={"j": {"a": "1"}})
        assert [result["offset"] for result in results] == [4, 0]
        with pytest.raises(CallFailed, match="Conflict"):
            client.call("set_registers", journal="j", values={"a": "3"}, expect={"a": "2"})
        client.call("set_registers", journal="j", values={"a": "2"}, expect={"a": "1"})
        expected = ["of the owner", "one", "two", "three", "four"]
        assert client.call("read", journal="j") == expected
        assert [message.body.decode() for message in store.journal("j").read()] == expected
        assert store.journal("j").registers() == client.call("registers", journal="j") == {"a": "2"}
        assert store.is_owner
        # Reading asks no owner: it goes on while the owner stands still.
        assert processes.store(url, role="reader").call("read", journal="j") == expected


def test_a_counter_raced_by_four_processes_is_exact(url: str, processes: Processes) -> None:
    times = 25
    with detent.open(url) as store:
        store.journal("j").set_registers({"counter": "0"})
        racers = processes.stores(url, 4)
        for racer in racers:
            racer.send("count_up", journal="j", times=times)
        conflicts = [racer.answer(seconds=60) for racer in racers]
        assert store.journal("j").registers() == {"counter": str(4 * times)}
        print(f"\n4 processes raised a counter {4 * times} times; lost races, each told Conflict: {sum(conflicts)}")


def test_one_process_may_open_a_store_twice(url: str) -> None:
    with detent.open(url) as first, detent.open(url) as second:
        assert first.is_owner
        assert not second.is_owner
        assert second.epoch == first.epoch
        assert first.journal("j").append(b"a").offset == 0
        assert second.journal("j").append(b"b").offset == 1
        assert [message.body for message in first.journal("j").read()] == [b"a", b"b"]


def test_the_second_store_of_a_process_goes_on_when_the_first_is_closed(url: str) -> None:
    first = detent.open(url)
    with first, detent.open(url) as second:
        second.journal("j").append(b"a")
        first.close()
        assert second.journal("j").append(b"b").offset == 1
        assert second.is_owner
    assert bodies(url) == ["a", "b"]


def test_a_path_longer_than_a_socket_address(tmp_path: Path, processes: Processes) -> None:
    directory = tmp_path / ("d" * 80) / ("e" * 80) / "store"
    temporary = tmp_path / "t"
    temporary.mkdir()
    assert len(os.fsencode(directory)) > 160
    owner = processes.store(f"file:{directory}", environment={"TMPDIR": str(temporary)})
    client = processes.store(f"file:{directory}")
    assert owner.call("append", journal="j", body="a")["offset"] == 0
    assert client.call("append", journal="j", body="b")["offset"] == 1
    assert client.call("status")["owner"] is False
    owner.finish()
    assert client.call("append", journal="j", body="c")["offset"] == 2
    assert client.call("status")["owner"] is True
    assert not list(temporary.iterdir()), "the owner left its socket's directory behind"


def test_a_client_without_an_owner_is_told_what_to_do(url: str) -> None:
    detent.open(url).close()
    began = time.monotonic()
    with pytest.raises(Unavailable, match="start an owner"):
        detent.open(url, role="client", timeout="300ms")
    assert time.monotonic() - began < 10


def test_a_client_never_takes_over(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    client = processes.store(url, role="client", timeout="1s")
    client.call("append", journal="j", body="a")
    owner.kill()
    with pytest.raises(CallFailed, match=r"OutcomeUnknown.*start an owner"):
        client.call("append", journal="j", body="b")
    with detent.open(url) as store:
        assert store.is_owner
        assert client.call("append", journal="j", body="c")["offset"] in (1, 2)
        assert client.call("status")["owner"] is False


def test_a_reader_never_owns(url: str, processes: Processes) -> None:
    with pytest.raises(NotFound):
        detent.open(url, role="reader")
    with detent.open(url) as store:
        store.journal("j").append(b"a")
        epoch = store.epoch
    reader = processes.store(url, role="reader")
    assert reader.call("read", journal="j") == ["a"]
    with pytest.raises(CallFailed, match=r"Invalid.*reader"):
        reader.call("append", journal="j", body="b")
    with detent.open(url) as store:
        assert store.is_owner, "a reader holds the owner's lock"
        assert store.epoch == epoch + 1, "a reader raised the epoch"
        with pytest.raises(Invalid):
            detent.open(url, role="writer")  # type: ignore[arg-type]


def test_a_connection_that_another_thread_has_just_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with detent.open(url), detent.open(url) as client:
        client.journal("j").append(b"a")
        connection = client._connection
        stale, find = connection.current, connection.owner
        assert stale is not None
        found = iter([stale])
        # This call has just got the connection when another one finds it broken and closes it.
        connection.lost(stale)
        monkeypatch.setattr(connection, "owner", lambda deadline: next(found, None) or find(deadline))
        assert client.journal("j").append(b"b").offset == 1


# -- the owner dies ---------------------------------------------------------------------------------------------


def test_a_waiting_client_takes_over_from_a_killed_owner(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    client = processes.store(url)
    client.call("append", journal="j", body="before")
    before = client.call("status")["epoch"]
    owner.stop()
    client.send("append", journal="j", body="pending")
    time.sleep(0.3)  # the call has left the client; nobody answers it
    killed = time.monotonic()
    owner.kill()
    assert client.answer() == {"position": 1, "count": 1, "offset": 1, "committed": 1}
    seconds = time.monotonic() - killed
    print(f"\na pending call was answered {seconds * 1000:.0f} ms after its owner was killed")
    assert seconds < TAKEOVER_S
    assert client.call("status") == {"owner": True, "epoch": before + 1}
    assert bodies(url) == ["before", "pending"]


def test_an_idle_client_takes_over_with_its_next_call(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    client = processes.store(url)
    client.call("append", journal="j", body="before")
    owner.kill()
    began = time.monotonic()
    assert client.call("append", journal="j", body="after")["offset"] == 1
    print(f"\nthe first call after the owner's death took {(time.monotonic() - began) * 1000:.0f} ms")
    assert time.monotonic() - began < TAKEOVER_S


def test_a_relative_path_means_the_same_store_after_a_change_of_directory(
    url: str, store_dir: Path, tmp_path: Path, processes: Processes
) -> None:
    owner = processes.store(url)
    client = processes.store(f"file:{os.path.relpath(store_dir)}")
    assert client.call("append", journal="j", body="before")["offset"] == 0
    elsewhere = tmp_path / "x" / "y" / "z"
    elsewhere.mkdir(parents=True)
    client.call("change_directory", path=str(elsewhere))
    owner.kill()
    assert client.call("append", journal="j", body="after")["offset"] == 1
    assert bodies(url) == ["before", "after"]


def test_all_clients_go_on_when_the_owner_dies_and_one_of_them_owns(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    clients = processes.stores(url, 3)
    for number, client in enumerate(clients):
        client.call("append", journal="j", body=f"{number} before")
    owner.kill()
    for number, client in enumerate(clients):
        client.send("append", journal="j", body=f"{number} after")
    offsets = [client.answer()["offset"] for client in clients]
    assert sorted(offsets) == [3, 4, 5]
    assert sum(client.call("status")["owner"] for client in clients) == 1
    assert len({client.call("status")["epoch"] for client in clients}) == 1
    assert sorted(bodies(url)[3:]) == ["0 after", "1 after", "2 after"]


@pytest.mark.parametrize(
    ("point", "applied_by"),
    [
        ("engine.group.before_commit", "the next owner"),
        ("engine.group.after_commit", "the first owner"),
        ("engine.group.before_answer", "the first owner"),
    ],
)
def test_a_retry_is_answered_and_not_repeated(url: str, processes: Processes, point: str, applied_by: str) -> None:
    owner = processes.store(url, patches=QUIET)
    client = processes.store(url)
    owner.call("append", journal="j", body="by the first owner")
    client.call("append", journal="j", body="before")
    owner.call("arm", point=point)
    assert client.call("append_many", journal="j", bodies=["x", "y"]) == {
        "position": 2, "count": 2, "offset": 2, "committed": 2,
    }  # fmt: skip
    assert owner.was_killed()
    assert client.call("status")["owner"] is True
    expected = ["by the first owner", "before", "x", "y"]
    assert bodies(url) == bodies(url, isolation="uncommitted") == expected
    stamped = producers(url)
    assert (stamped["x"] == stamped["by the first owner"]) == (applied_by == "the first owner")


@pytest.mark.parametrize("point", ["engine.group.before_commit", "engine.group.after_commit"])
def test_a_retried_compare_and_set_is_no_false_conflict(url: str, processes: Processes, point: str) -> None:
    owner = processes.store(url, patches=QUIET)
    client = processes.store(url)
    client.call("set_registers", journal="j", values={"a": "1"})
    owner.call("arm", point=point)
    client.call("set_registers", journal="j", values={"a": "2"}, expect={"a": "1"})
    assert owner.was_killed()
    assert client.call("registers", journal="j") == {"a": "2"}


@pytest.mark.parametrize("point", ["engine.group.before_commit", "engine.group.after_commit"])
def test_a_retried_transaction_takes_effect_once_in_both_journals(url: str, processes: Processes, point: str) -> None:
    owner = processes.store(url, patches=QUIET)
    client = processes.store(url)
    client.call("transaction", bodies={"j": "a", "k": "b"})
    owner.call("arm", point=point)
    results = client.call("transaction", bodies={"j": "c", "k": "d"}, registers={"k": {"r": "1"}})
    assert [result["offset"] for result in results] == [1, 1]
    assert owner.was_killed()
    assert (bodies(url, "j"), bodies(url, "k")) == (["a", "c"], ["b", "d"])
    assert client.call("registers", journal="k") == {"r": "1"}


def busy_threads(io: Io, url: str, threads: int, asynchronous: bool) -> None:
    """A client with many calls under way. Says what was acknowledged; an exception ends it."""
    with detent.open(url) as store:
        io.say("open")
    if asynchronous:
        asyncio.run(_busy_tasks(io, url, threads))
        return
    failed: list[BaseException] = []
    stop = threading.Event()
    with detent.open(url) as store:

        def run(number: int) -> None:
            count = 0
            try:
                while not stop.is_set():
                    offset = store.journal("j").append(f"{number}:{count}".encode()).offset
                    io.say("appended", body=f"{number}:{count}", offset=offset)
                    count += 1
            except BaseException as error:
                failed.append(error)
                stop.set()

        running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        io.say("busy")
        for thread in running:
            thread.start()
        threading.Thread(target=lambda: (io.hear(), stop.set()), daemon=True).start()
        for thread in running:
            thread.join()
        io.say("failed" if failed else "finished", error=repr(failed[0]) if failed else "", owner=store.is_owner)


async def _busy_tasks(io: Io, url: str, tasks: int) -> None:
    stop = asyncio.Event()
    async with await detent.open_async(url) as store:

        async def run(number: int) -> None:
            count = 0
            while not stop.is_set():
                offset = (await store.journal("j").append(f"{number}:{count}".encode())).offset
                io.say("appended", body=f"{number}:{count}", offset=offset)
                count += 1

        async def end() -> None:
            await asyncio.to_thread(io.hear)
            stop.set()

        io.say("busy")
        try:
            await asyncio.gather(end(), *(run(number) for number in range(tasks)))
            error = ""
        except BaseException as caught:
            error = repr(caught)
        io.say("failed" if error else "finished", error=error, owner=store.is_owner)
        if error:
            os._exit(1)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("death", ["kill", "finish"])
def test_a_busy_client_sees_no_error_when_its_owner_goes(
    url: str, processes: Processes, asynchronous: bool, death: str
) -> None:
    owner = processes.store(url)
    client = processes.start(busy_threads, url=url, threads=16, asynchronous=asynchronous)
    client.expect("open")
    client.expect("busy")
    for _ in range(50):
        client.expect("appended")
    getattr(owner, death)()
    seen = 0
    while (event := client.next_event()) is not None:
        assert event["event"] != "failed", event["error"]
        if event["event"] == "finished":
            assert event["owner"] is True
            break
        if (seen := seen + 1) == 500:
            client.tell()
    acknowledged = {event["offset"]: event["body"] for event in client.events if event["event"] == "appended"}
    stored = bodies(url)
    assert len(set(stored)) == len(stored)
    assert {offset: stored[offset] for offset in acknowledged} == acknowledged


def test_a_tailing_client_goes_on_when_its_owner_closes(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    owner.call("append", journal="j", body="a")
    client = processes.store(url)
    client.send("tail", journal="j", count=2)
    client.expect("tailing")
    client.expect("message")
    time.sleep(0.3)  # it now waits at the owner
    began = time.monotonic()
    owner.finish()
    print(f"\nan owner with a waiting client closed in {time.monotonic() - began:.1f} s")
    with detent.open(url) as store:
        store.journal("j").append(b"b")
        event = client.next_event()
        assert event is not None
        assert event.get("body") == "b", event


# -- the owner hangs --------------------------------------------------------------------------------------------


def test_a_hung_owner_is_unavailable_and_force_takes_over(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    acknowledged = [owner.call("append", journal="j", body=str(number))["offset"] for number in range(20)]
    epoch = owner.call("status")["epoch"]
    owner.stop()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=rf"process {owner.pid} .*force"):
        detent.open(url, timeout="1s")
    print(f"\na hung owner was told after {time.monotonic() - began:.1f} s (timeout 1 s)")
    assert time.monotonic() - began < 10
    assert bodies(url) == [str(number) for number in range(20)], "reading needs no owner"
    began = time.monotonic()
    with detent.open(url, force=True) as store:
        print(f"taken over by force after {time.monotonic() - began:.1f} s")
        assert owner.was_killed()
        assert store.is_owner
        assert store.epoch > epoch
        assert store.journal("j").append(b"20").offset == 20
    assert acknowledged == list(range(20))
    assert bodies(url) == [str(number) for number in range(21)]


def test_force_leaves_an_owner_that_answers_alone(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    with detent.open(url, force=True) as store:
        assert not store.is_owner
    assert owner.running


def test_a_call_to_a_hung_owner_ends_near_its_timeout(url: str, processes: Processes) -> None:
    owner = processes.store(url)
    client = processes.store(url, timeout="2s")
    client.call("append", journal="j", body="a")
    owner.stop()
    with pytest.raises(CallFailed, match="OutcomeUnknown") as caught:
        client.call("append", journal="j", body="b", seconds=60)
    print(f"\na call with a timeout of 2 s to a hung owner ended after {caught.value.seconds:.1f} s")
    assert caught.value.seconds < 15


def kv_writer(io: Io, url: str) -> None:
    """The kv engine alone, without a lock: only the epoch keeps two writers apart."""
    from detent.errors import Fenced

    writer = kv.open_writer(url)
    io.say("open", epoch=writer.epoch)
    for call, arguments in io.calls():
        batch = kv.Batch()
        batch.put(arguments["key"].encode(), b"1")
        try:
            if call == "commit":
                writer.commit(batch)
            with writer.view() as view:
                io.say("sees", keys=[key.decode() for key, _ in view.scan(b"")])
        except Fenced as error:
            io.say("fenced", message=str(error))


def test_a_writer_that_was_replaced_is_fenced_and_leaves_nothing(url: str, processes: Processes) -> None:
    first = processes.start(kv_writer, url=url)
    epoch = first.expect("open")["epoch"]
    first.send("commit", key="a")
    assert first.expect("sees")["keys"] == ["a"]
    second = processes.start(kv_writer, url=url)
    assert second.expect("open")["epoch"] == epoch + 1
    first.send("commit", key="b")
    assert str(epoch) in first.expect("fenced")["message"]
    first.send("look", key="-")
    first.expect("fenced")
    first.send("commit", key="b")
    first.expect("fenced")
    second.send("commit", key="c")
    assert second.expect("sees")["keys"] == ["a", "c"]
    reader = kv.open_reader(url)
    with reader.view() as view:
        assert [key for key, _ in view.scan(b"")] == [b"a", b"c"]
    reader.close()


# -- forks ------------------------------------------------------------------------------------------------------


def forking(io: Io, url: str, busy: bool = False) -> None:
    """Forks with an open store. The child tries to use it, says how that went, and lives on."""
    with detent.open(url) as store:
        io.say("open", owner=store.is_owner)
        journal = store.journal("j")
        io.say("appended", offset=journal.append(b"parent 0").offset)
        io.hear()
        if busy:
            for number in range(4):
                threading.Thread(target=_append_for_ever, args=(journal, number), daemon=True).start()
            time.sleep(0.3)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                offset = journal.append(b"child").offset
                io.say("child", error="", message=f"offset {offset}")
            except BaseException as error:
                io.say("child", error=type(error).__name__, message=str(error))
            try:
                list(journal.read(0, 1))
                io.say("child reads", error="")
            except BaseException as error:
                io.say("child reads", error=type(error).__name__, message=str(error))
            time.sleep(60)
            os._exit(0)
        io.hear()
        io.say("appended", offset=journal.append(b"parent 1").offset)
        io.hear()


def _append_for_ever(journal: Any, number: int) -> None:
    while True:
        journal.append(f"thread {number}".encode())


def test_a_forked_child_of_the_owner_is_refused_and_holds_no_lock(url: str, processes: Processes) -> None:
    parent = processes.start(forking, url=url)
    assert parent.expect("open")["owner"] is True
    parent.expect("appended")
    parent.tell()
    refused = parent.expect("child")
    assert refused["error"] == "Unavailable"
    assert "fork" in refused["message"]
    assert "fork" in parent.expect("child reads")["message"]
    parent.tell()
    assert parent.expect("appended")["offset"] == 1
    parent.kill()
    began = time.monotonic()
    with detent.open(url) as store:
        assert store.is_owner
        assert store.journal("j").append(b"next").offset == 2
    print(f"\ntaken over in {time.monotonic() - began:.2f} s although a forked child of the dead owner lives")
    assert bodies(url) == ["parent 0", "parent 1", "next"]


def test_a_child_forked_in_the_middle_of_commits_is_refused_and_does_not_hang(url: str, processes: Processes) -> None:
    parent = processes.start(forking, url=url, busy=True)
    assert parent.expect("open")["owner"] is True
    parent.expect("appended")
    parent.tell()
    refused = parent.expect("child", seconds=15)
    assert refused["error"] == "Unavailable"
    assert "child" not in bodies(url)


def test_a_forked_child_of_a_client_does_not_use_the_parents_session(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        parent = processes.start(forking, url=url)
        assert parent.expect("open")["owner"] is False
        parent.expect("appended")
        parent.tell()
        refused = parent.expect("child")
        parent.expect("child reads")
        parent.tell()
        offset = parent.expect("appended")["offset"]
        stored = [message.body.decode() for message in store.journal("j").read()]
        assert stored[offset] == "parent 1", f"acknowledged at {offset} and not there: {stored}, child: {refused}"
        assert refused["error"] == "Unavailable", refused
        assert "fork" in refused["message"]


def test_clients_of_a_killed_owner_go_on_although_its_forked_child_lives(url: str, processes: Processes) -> None:
    owner = processes.start(forking, url=url)
    owner.expect("open")
    owner.expect("appended")
    client = processes.store(url)
    client.call("append", journal="j", body="client 0")
    owner.tell()
    owner.expect("child")
    owner.expect("child reads")
    owner.kill()  # the child has inherited the sockets: the client's connection stays open
    began = time.monotonic()
    assert client.call("append", journal="j", body="client 1", seconds=60)["offset"] == 2
    print(f"\nthe client's call took {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 10


# -- waking up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["auto", "reader"])
def test_a_tail_in_another_process_wakes_up(url: str, processes: Processes, role: str) -> None:
    count = 50
    with detent.open(url) as store:
        journal = store.journal("j")
        journal.append(b"first")
        tail = processes.store(url, role=role)
        tail.send("tail", journal="j", count=count + 1)
        tail.expect("tailing")
        tail.expect("message")
        delays = []
        for number in range(count):
            journal.append(str(number).encode())
            appended = time.monotonic()
            event = tail.expect("message")
            assert event["body"] == str(number)
            delays.append((event["at"] - appended) * 1000)
            time.sleep(0.01)
    print(f"\n{role}: from acknowledged here to seen there, median of {count}: {statistics.median(delays):.2f} ms, "
          f"worst {max(delays):.1f} ms")  # fmt: skip
    assert statistics.median(delays) < 1000


# -- full disks -------------------------------------------------------------------------------------------------


def fills_the_disk(io: Io, url: str, limit: int) -> None:
    """Appends until the file may not grow, then again after room was made."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with detent.open(url) as store:
        journal = store.journal("j")
        offsets = [journal.append(os.urandom(20_000)).offset for _ in range(5)]
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        refused = None
        while refused is None:
            try:
                offsets.append(journal.append(os.urandom(20_000)).offset)
            except Unavailable as error:
                refused = str(error)
            if len(offsets) > 10_000:
                raise AssertionError("nothing was refused")
        io.say("full", message=refused, offsets=offsets)
        for _ in range(3):  # still full: still a clear answer, nothing half done
            try:
                offsets.append(journal.append(os.urandom(200_000)).offset)
            except Unavailable as error:
                io.say("still full", message=str(error))
        io.say("readable", count=sum(1 for _ in journal.read()))
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            subprocess.run(
                ["mount", "-o", "remount,size=64m", url.removeprefix("file:").rpartition("/")[0]], check=True
            )
        offsets += [journal.append(os.urandom(20_000)).offset for _ in range(20)]
        io.say("goes on", offsets=offsets, end=journal.next_offset(), count=sum(1 for _ in journal.read()))
    with detent.open(url) as store:
        io.say("reopened", count=sum(1 for _ in store.journal("j").read()), end=store.journal("j").next_offset())


def check_full_disk(child: Child, word: str) -> None:
    full = child.expect("full")
    print(f"\nafter {len(full['offsets'])} appends: {full['message']}")
    assert word in full["message"]
    assert "not applied" in full["message"]
    for _ in range(3):
        child.expect("still full")
    assert child.expect("readable")["count"] == len(full["offsets"])
    after = child.expect("goes on")
    assert after["offsets"] == list(range(len(full["offsets"]) + 20)), "offsets are dense"
    assert after["count"] == after["end"] == len(after["offsets"])
    again = child.expect("reopened")
    assert again["count"] == again["end"] == len(after["offsets"])


def test_a_full_disk_is_unavailable_and_loses_nothing(url: str, processes: Processes) -> None:
    # A file that may not grow cannot be lengthened for the next commit either.
    check_full_disk(processes.start(fills_the_disk, url=url, limit=1 << 20), "File too large")


def mounts_a_small_disk(io: Io, path: str) -> None:
    """In a mount namespace of its own, so that nothing is left of it afterwards."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        io.say("impossible", why="unshare")
        return
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "detent", path], check=False, capture_output=True)
    if done.returncode:
        io.say("impossible", why=done.stderr.decode())
        return
    io.say("mounted")
    fills_the_disk(io, f"file:{path}/store", 0)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path: Path, processes: Processes) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    child = processes.start(mounts_a_small_disk, path=str(mount))
    event = child.next_event()
    assert event is not None
    if event["event"] == "impossible":
        pytest.skip(f"no small disk here: {event['why']}")
    check_full_disk(child, "full")


# -- the map grows ----------------------------------------------------------------------------------------------


SMALL_MAP = {"detent.kv.environment.MAP_BYTES_FIRST": 1 << 20}


def grows_under_views(io: Io, url: str) -> None:
    """Appends far beyond the first map while other threads of the process read."""
    from detent.kv import environment

    environment.MAP_BYTES_FIRST = 1 << 20
    stop = threading.Event()
    failed: list[BaseException] = []
    reads = [0]
    with detent.open(url) as store:
        journal = store.journal("j")
        journal.append(b"first")

        def read() -> None:
            try:
                while not stop.is_set():
                    end = journal.next_offset()
                    assert sum(1 for _ in journal.read(0, end)) == end
                    reads[0] += 1
            except BaseException as error:
                failed.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(100):
            journal.append(os.urandom(100_000))
        stop.set()
        for reader in readers:
            reader.join()
    with detent.open(url, role="reader") as store:  # closed by its owner: nothing of it is in the log alone
        io.say("grown", failed=repr(failed[0]) if failed else "", reads=reads[0], size=store.size_bytes())


def test_the_map_grows_under_views_of_the_same_process(url: str, processes: Processes) -> None:
    event = processes.start(grows_under_views, url=url).expect("grown")
    assert not event["failed"], event["failed"]
    assert event["size"] > 8 << 20
    print(f"\nthe map grew from 1 MiB to hold {event['size'] >> 20} MiB under {event['reads']} whole reads")
    assert len(bodies_count(url)) == 101


def bodies_count(url: str) -> list[int]:
    with detent.open(url, role="reader") as store:
        return [len(message.body) for message in store.journal("j").read()]


def test_the_map_grows_under_readers_and_clients_of_other_processes(url: str, processes: Processes) -> None:
    owner = processes.store(url, patches=SMALL_MAP)
    owner.call("append", journal="j", body="first")
    reader = processes.store(url, role="reader", patches=SMALL_MAP)
    client = processes.store(url, patches=SMALL_MAP)
    assert reader.call("count", journal="j") == client.call("count", journal="j") == 1
    for step in range(1, 4):
        owner.call("append_big", journal="j", size=100_000, count=20)
        client.call("append_big", journal="j", size=100_000, count=20)
        assert reader.call("count", journal="j") == client.call("count", journal="j") == 1 + step * 40
    owner.kill()  # the client takes over a map that is larger than its own first one
    assert client.call("append", journal="j", body="last")["offset"] == 121
    client.call("append_big", journal="j", size=100_000, count=20)
    assert reader.call("count", journal="j") == 142


# -- nothing is left behind -------------------------------------------------------------------------------------


def opens_and_closes(io: Io, url: str) -> None:
    def used() -> dict[str, int]:
        gc.collect()
        return {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}

    def once(role: str) -> None:
        with detent.open(url) as store:
            store.journal("j").append(b"x")
            if role == "owner":
                return
            with detent.open(url, role=role) as second:  # type: ignore[arg-type]
                if role != "reader":
                    second.journal("j").append(b"y")
                list(second.journal("j").read(0, 1))

    for role in ("owner", "auto", "reader"):
        once(role)
        before = used()
        for _ in range(50 if role == "owner" else 10):
            once(role)
        io.say("used", role=role, before=before, after=used())


def test_opening_and_closing_leaks_neither_threads_nor_files(url: str, processes: Processes) -> None:
    child = processes.start(opens_and_closes, url=url)
    for _ in range(3):
        event = child.expect("used", seconds=120)
        print(f"\n{event}")
        assert event["after"] == event["before"], event
    assert child.wait() == 0


def closes_with_transactions_under_way(io: Io) -> None:
    """One sync caller in its commit, one asynchronous caller behind it, and then the engine is closed."""
    from detent.engine import Engine, Request
    from detent.journal import JournalMachine
    from detent.journal.operations import Append

    writer: Any = kv.open_writer("memory:closing")
    engine = Engine(writer, [JournalMachine(writer)])
    commit, inside, most = writer.commit, [0], [0]

    def slowly(batch: kv.Batch) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.3)
        commit(batch)
        inside[0] -= 1

    def request() -> Request:
        return Request(engine.new_session(), 0, 0, [Append("j", [b"x"])])

    answered: list[Any] = []
    engine.submit(request(), answered.extend)  # from now on there is a committing thread
    eventually(lambda: answered)
    writer.commit = slowly
    caller = threading.Thread(target=lambda: engine.commit(request()))
    caller.start()
    time.sleep(0.1)
    engine.submit(request(), answered.extend)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    caller.join()
    closing.join(10)
    io.say("closed", hangs=closing.is_alive(), most=most[0], answered=len(answered))
    os._exit(0)


def test_closing_waits_for_what_is_under_way_and_leads_once(processes: Processes) -> None:
    event = processes.start(closes_with_transactions_under_way).expect("closed")
    assert event["answered"] == 2
    assert event["most"] == 1, "two threads committed at the same time"
    assert not event["hangs"], "close did not return"


def holds_a_view(io: Io, url: str) -> None:
    reader = kv.open_reader(url)
    with reader.view() as view:
        io.say("holds", keys=len(list(view.scan(b""))))
        io.hear()


def test_a_killed_reader_leaves_no_slot_behind(url: str, store_dir: Path, processes: Processes) -> None:
    with detent.open(url) as store:
        store.journal("j").append(b"x")
        environment = store._kv._environment.lmdb
        before = environment.info()["num_readers"]
        held = [processes.start(holds_a_view, url=url) for _ in range(3)]
        for child in held:
            child.expect("holds")

        def holders() -> int:
            return sum(str(child.pid) in environment.readers() for child in held)

        assert holders() == 3
        for child in held:
            child.kill()
        eventually(lambda: holders() == 0, what="the housekeeper freeing the slots of killed readers")
        # Replaced pages are used again: the file does not grow while the same record is written over and over.
        for number in range(100):
            store.journal("j").set_registers({"r": str(number)})
        size = (store_dir / "data.mdb").stat().st_size
        for number in range(1500):
            store.journal("j").set_registers({"r": str(number)})
        assert (store_dir / "data.mdb").stat().st_size <= size + (4 << 20)
        print(f"\nreader slots before {before}, after three killed readers {environment.info()['num_readers']}")


def test_a_killed_owner_is_seen_as_dead(url: str, store_dir: Path, processes: Processes) -> None:
    owner = processes.store(url)
    known = read_owner(store_dir)
    assert known is not None
    assert known.pid == owner.pid
    owner.kill()
    assert read_owner(store_dir) is None
