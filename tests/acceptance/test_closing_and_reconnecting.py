"""Connections that end: given up by a client with calls under way, closed by an owner with clients waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import kv
from detent.errors import DetentError
from detent.kv.ownership import read_owner
from detent.remote import Disconnected, LocalOwner, RemoteOwner
from detent.remote import owner as owner_module
from detent.remote.address import Address
from detent.remote.client import CONNECTIONS_MAX, WAITS_MAX
from processes import Io, Processes, eventually

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {target for target in found if target.startswith("socket:")}


def run_all(target: Callable[..., None], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


# -- a client gives its connections up --------------------------------------------------------------------------


class SlowOwner:
    """Takes calls on a socket, and answers none before it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.asked = 0
        self.answering = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            line, _ = self._listener.accept()
            if self._threads is None:
                return
            thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        body = b'{"epoch": 1, "pid": 2}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        with line, contextlib.suppress(ConnectionError):
            while line.recv(1 << 16):
                with self._lock:
                    self.asked += 1
                self.answering.wait()
                line.sendall(head + body)

    def close(self) -> None:
        """End, once every client has hung up."""
        threads, self._threads = self._threads, None  # type: ignore[assignment]
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.path)
        self.answering.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a connection was never closed"
        self._listener.close()


@pytest.fixture
def slow_owner(tmp_path: Path) -> Iterator[SlowOwner]:
    made = SlowOwner(tmp_path / "s")
    try:
        yield made
    finally:
        if made._threads is not None:
            made.close()


@pytest.mark.parametrize("threads", [1, CONNECTIONS_MAX])
def test_calls_under_way_are_answered_and_the_last_one_closes(slow_owner: SlowOwner, threads: int) -> None:
    before = open_sockets()
    owner = RemoteOwner(Address(slow_owner.path))
    answers: list[Any] = []

    def call(_: int) -> None:
        try:
            answers.append(owner.status())
        except BaseException as error:
            answers.append(error)

    running = run_all(call, threads)
    eventually(lambda: slow_owner.asked == threads, what="all calls under way")
    owner.retire()
    owner.retire()  # by another call that found it broken too
    with pytest.raises(Disconnected, match="given up"):
        owner.status()
    assert not answers
    slow_owner.answering.set()
    for thread in running:
        thread.join()
    assert answers == [{"epoch": 1, "pid": 2}] * threads, "a connection was closed under a call"
    # The connection object lives, and nothing is left to the garbage collector.
    eventually(lambda: open_sockets() == before, what="the end of all sockets")
    assert owner._http.is_closed


def test_without_a_call_under_way_it_closes_at_once(slow_owner: SlowOwner) -> None:
    before = open_sockets()
    slow_owner.answering.set()
    owner = RemoteOwner(Address(slow_owner.path))
    owner.status()
    assert open_sockets() != before
    owner.retire()
    eventually(lambda: open_sockets() == before, what="the end of all sockets")


def test_nobody_slips_in_behind_the_last_user(slow_owner: SlowOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_sockets()
    slow_owner.answering.set()
    owner = RemoteOwner(Address(slow_owner.path))
    owner.status()
    close = owner._http.close
    refused: list[Disconnected] = []

    def close_while_somebody_calls() -> None:
        monkeypatch.setattr(owner._http, "close", close)
        try:
            owner.status()  # another thread, in the very moment: nobody would close what it opens now
        except Disconnected as error:
            refused.append(error)
        close()

    monkeypatch.setattr(owner._http, "close", close_while_somebody_calls)
    owner.retire()
    assert len(refused) == 1
    eventually(lambda: open_sockets() == before, what="the end of all sockets")


def reconnects(io: Io, url: str, threads: int) -> None:
    """A client with many threads, each in a call, or waiting for a journal to grow, whenever its owner goes."""

    def used() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with detent.open(url, role="client", timeout="60s") as store:
        store.journal("j").append(b"first")
    before = used()
    failed: list[str] = []
    counts = [0] * threads
    stop = threading.Event()
    with detent.open(url, role="client", timeout="60s") as store:

        def run(number: int) -> None:
            try:
                while not stop.is_set():
                    if number % 2:
                        store.journal("j").append(f"{number}:{counts[number]}".encode())
                    else:
                        store.wait("j", store.journal("j").next_offset(), 50)
                    counts[number] += 1
            except BaseException as error:
                failed.append(repr(error))

        running = run_all(run, threads)
        io.say("busy")
        for _, _ in io.calls():
            seen = list(counts)
            eventually(
                lambda seen=seen: failed or all(now > then + 1 for now, then in zip(counts, seen, strict=True)),
                seconds=120,
            )
            io.say("all went on")
        stop.set()
        for thread in running:
            thread.join()
        appended = sum(counts[1::2])
    io.say("closed", failed=failed, before=before, after=used(), appended=appended)


@pytest.mark.parametrize("threads", [30, 90])
def test_a_crowd_that_reconnects_meets_no_error_and_leaks_nothing(url: str, processes: Processes, threads: int) -> None:
    owner = processes.store(url)
    client = processes.start(reconnects, url=url, threads=threads)
    client.expect("busy")
    for death in ("kill", "finish", "kill"):
        client.send("look")
        client.expect("all went on", seconds=120)
        getattr(owner, death)()
        owner = processes.store(url)
    client.send("look")
    client.expect("all went on", seconds=120)
    client.send("end")
    event = client.expect("closed", seconds=120)
    assert event["failed"] == []
    assert event["after"] == event["before"]
    assert len(owner.call("read", journal="j")) == 1 + event["appended"]


# -- waiting is no reason to keep others waiting ----------------------------------------------------------------


def test_many_who_wait_leave_room_for_transactions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Their wait ends with the message only, so a transaction that had to wait for one of them would never be sent.
    monkeypatch.setattr("detent.store.WAIT_SLICE_MS", 600_000)
    with detent.open(url) as store, detent.open(url, timeout="10s") as client:
        found: list[bytes] = []

        def follow(_: int) -> None:
            for message in client.journal("quiet").tail(0):
                found.append(message.body)
                return

        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        running = run_all(follow, 3 * CONNECTIONS_MAX)
        eventually(lambda: len(owner._apps[0]._waits) == WAITS_MAX, what="as many at the owner as may wait there")
        assert client.journal("loud").append(b"x").offset == 0
        store.journal("quiet").append(b"at last")
        for thread in running:
            thread.join()
        assert found == [b"at last"] * len(running)


def test_many_tasks_that_wait_leave_room_for_transactions(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.store.WAIT_SLICE_MS", 600_000)

    async def scenario(owner: LocalOwner) -> list[bytes]:
        async with detent.open_async(url, timeout="10s") as client:

            async def follow() -> bytes:
                async for message in client.journal("quiet").tail(0):
                    return message.body
                raise AssertionError("a tail without a timeout has ended")

            tasks = [asyncio.create_task(follow()) for _ in range(3 * CONNECTIONS_MAX)]
            while len(owner._apps[0]._waits) < WAITS_MAX:
                await asyncio.sleep(0.005)
            assert (await client.journal("loud").append(b"x")).offset == 0
            await client.journal("quiet").append(b"at last")
            return await asyncio.gather(*tasks)

    with detent.open(url) as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        assert asyncio.run(scenario(owner)) == [b"at last"] * (3 * CONNECTIONS_MAX)


# -- an owner closes --------------------------------------------------------------------------------------------


def test_an_owner_with_waiting_clients_closes_without_cutting_them_off(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They ask again at once when they are answered: that must not hold the owner until it loses patience."""
    store = detent.open(url)
    owner = store._connection.current
    assert isinstance(owner, LocalOwner)
    with detent.open(url) as client:
        found: list[bytes] = []

        def follow(_: int) -> None:
            for message in client.journal("j").tail(0):
                found.append(message.body)
                return

        running = run_all(follow, 8)
        eventually(lambda: len(owner._apps[0]._waits) == len(running), what="all of them waiting at the owner")
        with caplog.at_level(logging.WARNING):
            store.close()
        assert [record.getMessage() for record in caplog.records] == []
        client.journal("j").append(b"x")
        for thread in running:
            thread.join()
        assert client.is_owner
    assert found == [b"x"] * len(running)


def is_refused(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(path) != 0


class Held:
    """A store whose commits stand still until they are let go."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = detent.open(url)
        owner = self.store._connection.current
        assert isinstance(owner, LocalOwner)
        assert owner._server is not None
        self.path = str(owner._server.path)
        owner._housekeeper.stop()  # it commits too, and whoever closes waits for it before all else
        self.entered = threading.Event()
        self.let_go = threading.Event()
        writer: Any = owner.reader
        commit = writer.commit

        def slowly(batch: kv.Batch) -> None:
            self.entered.set()
            self.let_go.wait()
            commit(batch)

        monkeypatch.setattr(writer, "commit", slowly)
        self.remote = RemoteOwner(Address(self.path))
        self.session = self.remote.new_session()
        self.outcomes: list[Any] = []
        self.caller = threading.Thread(target=self._call, daemon=True)
        self.closing = threading.Thread(target=self.store.close, daemon=True)

    def _call(self) -> None:
        from detent.engine import Request
        from detent.journal.operations import Append

        try:
            self.outcomes.append(self.remote.commit(Request(self.session, 0, 0, [Append("j", [b"x"])]), 60))
        except DetentError as error:
            self.outcomes.append(error)

    def close_under_the_call(self) -> None:
        self.caller.start()
        self.entered.wait()
        self.closing.start()
        eventually(lambda: is_refused(self.path), what="the end of listening")


def test_what_is_under_way_when_an_owner_closes_is_answered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "SERVER_CLOSE_S", 60.0)
    held = Held(url, monkeypatch)
    held.close_under_the_call()
    held.let_go.set()
    held.caller.join()
    held.closing.join()
    held.remote.close()
    assert [outcome[0].offset for outcome in held.outcomes] == [0]


def test_what_does_not_end_is_cut_off_and_not_left_hanging(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "uvicorn.error")
    monkeypatch.setattr(owner_module, "SERVER_CLOSE_S", 0.05)
    held = Held(url, monkeypatch)
    held.close_under_the_call()
    held.caller.join()  # the commit still stands
    held.let_go.set()
    held.closing.join()
    held.remote.close()
    assert [type(outcome) for outcome in held.outcomes] == [Disconnected]
    assert "ReadTimeout" not in str(held.outcomes[0])


def test_whoever_knocks_while_an_owner_closes_is_not_left_hanging(url: str, store_dir: Path) -> None:
    ends: list[str] = []
    for _ in range(20):
        store = detent.open(url)
        known = read_owner(store_dir)
        assert known is not None
        knocked = threading.Semaphore(0)

        def knock(_: int, path: str = known.socket, knocked: threading.Semaphore = knocked) -> None:
            try:
                while True:
                    remote = RemoteOwner(Address(path))  # a new connection each time
                    try:
                        remote.status()
                        knocked.release()
                    finally:
                        remote.close()
            except Disconnected as error:
                ends.append(str(error))

        running = run_all(knock, 6)
        for _ in range(12):
            knocked.acquire()
        store.close()
        for thread in running:
            thread.join()
    assert len(ends) == 120
    assert not [end for end in ends if "Timeout" in end], "somebody was let in and never answered"
