"""A server killed with kill -9 while its clients work: nothing that was answered is lost, nothing is applied twice.

The clients are in this process and go on through it all with the stores they opened at the start: they find the server
again on the same port, and send what was not answered under its old name.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import StaleReceipt, Unavailable
from processes import Child, Processes, eventually
from remoteserver import server_process
from servers import free_port

pytestmark = [
    pytest.mark.xdist_group("server-killed"),
    pytest.mark.timeout(1800),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROUNDS = 100 if os.environ.get("DETENT_SOAK") == "1" else 6
START_TRIES = 5
WRITERS = 3
CONSUMERS = 3


class KilledServer:
    """A server that is killed, at a place in its code or at any moment, and started again on its port."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._processes = processes
        self._store = f"file:{directory}"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.child = self.start()

    def start(self, point: str | None = None) -> Child:
        """Start it. On a slow machine its housekeeper may come to the point before anybody is served; then let it do
        its housekeeping once in peace, and try again."""
        for _ in range(START_TRIES):
            environment = {} if point is None else {"DETENT_CRASH_AT": point}
            child = self._processes.start(server_process, environment=environment, url=self._store, port=self._port)
            self.child = child
            if point is None:
                child.expect("serving")
                return child
            found = child.next_event()
            if found is not None:
                assert found["event"] == "serving", found
                return child
            assert child.was_killed(), child.errors()
            self.start()
            self.child.kill()
        raise AssertionError(f"every server came to {point} before it served")

    def again(self, point: str | None = None) -> None:
        self.child.kill()
        self.start(point)


@pytest.fixture
def server(processes: Processes, store_dir: Path) -> KilledServer:
    return KilledServer(processes, store_dir)


@pytest.mark.parametrize("point", ["engine.group.before_commit", "engine.group.after_commit"])
def test_killed_between_the_sync_and_the_answer(server: KilledServer, point: str) -> None:
    """Whatever became durable is answered by the server that comes next, and what did not is applied by it."""
    with detent.open(server.url) as store:
        journal, queue = store.journal("j"), store.queue("q")
        queue.create()
        journal.append(b"0")
        server.again(point)
        keeper = threading.Thread(target=lambda: (server.child.was_killed(), server.start()))
        keeper.start()
        assert journal.append(b"1").offset == 1
        keeper.join()
        assert queue.publish(b"m").message == 0
        server.again(point)
        keeper = threading.Thread(target=lambda: (server.child.was_killed(), server.start()))
        keeper.start()
        (message,) = queue.claim()
        keeper.join()
        assert (message.body, message.attempts) == (b"m", 1), "with its content, from the stored answer"
        message.ack()
        assert [found.body for found in journal.read()] == [b"0", b"1"]
        assert journal.append(b"2").offset == 2


def test_a_server_that_hangs_is_given_up_in_time_and_goes_on_where_it_was(server: KilledServer) -> None:
    """Each call ends with its timeout. What was sent and not answered is applied once when the server goes on."""
    with detent.open(server.url, timeout="500ms") as store:
        journal = store.journal("j")
        journal.append(b"0")
        server.child.stop()
        for call in (lambda: journal.append(b"1"), journal.info, lambda: list(journal.read()), store.journals):
            with pytest.raises(Unavailable):
                call()
        server.child.resume()
    with detent.open(server.url) as store:
        store.journal("j").append(b"2")
        found = [message.body for message in store.journal("j").read()]
    assert found in ([b"0", b"1", b"2"], [b"0", b"2"], [b"0", b"2", b"1"])


def test_killed_while_clients_write_claim_and_read(server: KilledServer) -> None:
    """Writers append and publish; consumers turn each message into one effect; a reader follows. In the end all of them
    have said the same."""
    end = threading.Event()
    answered: list[tuple[int, int]] = []
    errors: list[BaseException] = []
    followed: list[bytes] = []

    def guarded(work: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(writer: int) -> None:
        number = 0
        with detent.open(server.url, timeout="60s") as store:
            while not end.is_set():
                body = b"%d-%d" % (writer, number)
                with store.transaction() as t:
                    t.append("written", body)
                    t.publish(body, queue="q")
                answered.append((writer, number))
                number += 1

    def consume() -> None:
        with detent.open(server.url, timeout="60s") as store:
            while True:
                messages = store.queue("q").claim(5, wait="300ms")
                if not messages and end.is_set() and store.queue("q").info().in_flight == 0:
                    return
                for message in messages:
                    try:
                        with store.transaction() as t:
                            t.append("effects", message.body)
                            t.ack(message)
                    except StaleReceipt:
                        continue

    def follow() -> None:
        with detent.open(server.url, role="reader", timeout="60s") as store:
            for message in store.journal("written").tail(0, timeout="60s"):
                followed.append(message.body)
                if message.body == b"end":
                    return

    with detent.open(server.url) as store:
        store.queue("q").create(lease="2s", backoff="0s", max_attempts=0)
        writers = [guarded(write, number) for number in range(WRITERS)]
        others = [guarded(consume) for _ in range(CONSUMERS)] + [guarded(follow)]
        for _ in range(ROUNDS):
            before = len(answered)
            time.sleep(random.uniform(0.1, 0.6))
            eventually(lambda before=before: len(answered) > before or errors, what="an answer in each round")
            server.again()
        end.set()
        for thread in writers:
            thread.join()
        store.journal("written").append(b"end")
        for thread in others:
            thread.join()
        assert errors == []
        written = [message.body for message in store.journal("written").read()][:-1]
        effects = [message.body for message in store.journal("effects").read()]
    assert set(written) == {b"%d-%d" % name for name in answered}
    assert len(written) == len(set(written)) >= ROUNDS, "each once, and some in each round"
    assert max(Counter(effects).values()) == 1
    assert set(effects) == set(written)
    assert followed[:-1] == written


def test_killed_under_asyncio(server: KilledServer) -> None:
    async def scenario() -> None:
        async with detent.open_async(server.url, timeout="60s") as store:
            for _ in range(3):
                calls = [asyncio.create_task(store.journal("j").append(b"%d" % number)) for number in range(200)]
                await asyncio.sleep(0.02)
                await asyncio.to_thread(server.again)
                offsets = sorted(result.offset for result in await asyncio.gather(*calls))
                assert len(set(offsets)) == 200
            assert await store.journal("j").next_offset() == 600
            bodies = Counter([message.body async for message in store.journal("j").read()])
            assert set(bodies.values()) == {3}

    asyncio.run(scenario())
