"""Consumers that stand still past their leases, owners that hang, workers that are told to end: real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import AsyncWorker, Worker
from detent.errors import Unavailable
from processes import CallFailed, Child, Io, Processes, eventually

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENDS = ["ack", "fail", "extend", "effect"]
WAIT = "30s"


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


# -- in the children --------------------------------------------------------------------------------------------


class Calls:
    """What a consumer can be asked for."""

    def __init__(self, store: detent.Store) -> None:
        self._store = store
        self._queue = store.queue("q")
        self._held: dict[int, detent.Delivery] = {}

    def create(self) -> None:
        self._queue.create(backoff="0s")

    def publish(self, body: str) -> int:
        return self._queue.publish(body.encode()).message

    def claim(self, lease: str, wait: str | None = None) -> list[list[Any]]:
        messages = self._queue.claim(10, lease=lease, wait=wait)
        self._held |= {message.id: message for message in messages}
        return [[message.id, message.fencing_token, str(message.receipt), message.attempts] for message in messages]

    def ack(self, message: int) -> None:
        self._held[message].ack()

    def fail(self, message: int) -> None:
        self._held[message].fail("late", delay="0s")

    def extend(self, message: int) -> None:
        self._held[message].extend("1h")

    def effect(self, message: int) -> None:
        with self._store.transaction() as transaction:
            transaction.publish(b"follow-up", queue="q")
            transaction.append("effects", b"done")
            transaction.ack(self._held[message])

    def owner(self) -> bool:
        return self._store.is_owner


def consumer(io: Io, url: str, timeout: str = "30s") -> None:
    with detent.open(url, timeout=timeout) as store:
        io.say("open", owner=store.is_owner)
        calls = Calls(store)
        for call, arguments in io.calls():
            try:
                io.say("answer", result=getattr(calls, call)(**arguments))
            except Exception as error:
                io.say("raised", kind=type(error).__name__, message=str(error), seconds=0)


def started(processes: Processes, url: str, **options: Any) -> Child:
    child = processes.start(consumer, url=url, **options)
    child.expect("open")
    return child


def snapshot(store: detent.Store, message: int) -> tuple[Any, ...]:
    """All that can be seen from outside."""
    return store.queues(), store.message(message), store.unmatched(), store.journals()


# -- a holder that stands still ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDS)
def test_a_consumer_that_stood_still_past_its_lease_changes_nothing(url: str, processes: Processes, how: str) -> None:
    """Another one has the message by then, under a higher number; what the first one says is refused."""
    with detent.open(url) as store:
        queue = store.queue("q")
        queue.create(backoff="0s")
        slow = started(processes, url)
        number = queue.publish(b"x").message
        ((message, delivery, _, _),) = slow.call("claim", lease="500ms")
        slow.stop()
        slow.send(how, message=message)  # what it was about to do when it was stopped
        (current,) = queue.claim(wait=WAIT)
        assert (current.id, current.attempts) == (message, 2)
        assert current.fencing_token > delivery
        before = snapshot(store, number)
        slow.resume()
        for _ in range(2):
            with pytest.raises(CallFailed, match="StaleReceipt"):
                slow.answer()
            assert snapshot(store, number) == before
            slow.send("extend", message=message)
        with pytest.raises(CallFailed, match="StaleReceipt"):
            slow.answer()
        current.ack()
        with pytest.raises(CallFailed, match="StaleReceipt"):
            slow.call(how, message=message)
        info = queue.info()
        assert (info.total_acked, info.total_routed, info.available, info.in_flight) == (1, 1, 0, 0)
        assert store.journals() == []


@pytest.mark.parametrize("how", ENDS)
def test_an_owner_that_stood_still_past_its_own_lease_changes_nothing(url: str, processes: Processes, how: str) -> None:
    """While it stands still nobody gets anything: its store is unavailable. When it goes on, its lease is over for it
    as for anybody else."""
    owner = started(processes, url)
    owner.call("create")
    other = started(processes, url)
    number = other.call("publish", body="x")
    ((message, delivery, _, _),) = owner.call("claim", lease="100ms")
    assert (owner.call("owner"), other.call("owner"), message) == (True, False, number)
    owner.stop()
    with pytest.raises(Unavailable, match=rf"process {owner.pid} .*force"):
        detent.open(url, timeout="500ms")
    owner.send(how, message=message)
    other.send("claim", lease="1h", wait=WAIT)
    owner.resume()
    with pytest.raises(CallFailed, match="StaleReceipt"):
        owner.answer()
    ((again, later, _, attempts),) = other.answer()
    assert (again, attempts) == (message, 2)
    assert later > delivery
    with pytest.raises(CallFailed, match="StaleReceipt"):
        owner.call(how, message=message)
    other.call("ack", message=message)
    with detent.open(url) as store:
        info = store.queue("q").info()
        assert (info.total_acked, info.total_routed, info.available, info.in_flight) == (1, 1, 0, 0)
        assert store.journals() == []


def test_a_hung_owner_that_is_replaced_by_force_keeps_its_lease_and_no_longer(url: str, processes: Processes) -> None:
    """The new owner knows what the old one held: until its lease ends it is nobody else's; then it is somebody's, under
    a higher number."""
    owner = started(processes, url)
    owner.call("create")
    owner.call("publish", body="short")
    ((short, short_delivery, short_receipt, _),) = owner.call("claim", lease="100ms")
    owner.call("publish", body="long")
    ((long, long_delivery, long_receipt, _),) = owner.call("claim", lease="1h")
    owner.stop()
    with pytest.raises(Unavailable, match="force"):
        detent.open(url, timeout="500ms")
    with detent.open(url, force=True) as store:
        assert owner.was_killed()
        assert store.is_owner
        queue = store.queue("q")
        (message,) = queue.claim(10, wait=WAIT)
        assert (message.id, message.attempts) == (short, 2)
        assert message.fencing_token > max(short_delivery, long_delivery)
        assert queue.claim(10) == []
        (place,) = store.message(long).places
        assert (place.state, place.delivery, place.attempts) == ("in flight", long_delivery, 1)
        with pytest.raises(detent.StaleReceipt):
            queue.ack([short_receipt])
        queue.ack([long_receipt])  # the receipt is what counts, not who shows it
        message.ack()
        assert queue.info().total_acked == 2


def test_a_consumer_that_is_killed_loses_its_messages_to_the_next(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        queue = store.queue("q")
        queue.create(backoff="0s")
        queue.publish_many([b"a", b"b"])
        first = started(processes, url)
        held = first.call("claim", lease="300ms")
        first.kill()
        found: list[detent.Delivery] = []
        while len(found) < 2:
            found += queue.claim(10, wait=WAIT)
        assert [message.id for message in found] == [message for message, *_ in held]
        assert min(message.fencing_token for message in found) > max(delivery for _, delivery, *_ in held)
        history = store.message(found[0].id).places[0].history
        assert [attempt.reason for attempt in history] == ["the lease expired"]


def test_a_consumer_waits_through_the_death_of_its_owner(url: str, processes: Processes) -> None:
    """It takes over, or finds the next owner, and gets what is published there."""
    owner = started(processes, url)
    owner.call("create")
    waiting, other = started(processes, url), started(processes, url)
    waiting.send("claim", lease="1h", wait=WAIT)
    owner.kill()
    number = other.call("publish", body="x")
    ((message, *_),) = waiting.answer(seconds=60)
    assert message == number
    waiting.call("ack", message=message)


# -- workers ----------------------------------------------------------------------------------------------------


def work(io: Io, url: str, kind: str, concurrency: int) -> None:
    """A worker whose handlers say when they begin, and go on when they are told."""
    if kind == "sync":
        _work(io, url, concurrency)
    else:
        asyncio.run(_work_async(io, url, concurrency))
    io.say("returned")


def _work(io: Io, url: str, concurrency: int) -> None:
    class Announcing(Worker):
        def stop(self) -> None:
            io.say("stopping")
            super().stop()

    def handle(message: detent.Delivery) -> None:
        io.say("begun", message=message.id)
        io.hear()
        io.say("done", message=message.id)

    with detent.open(url) as store:
        io.say("open")
        Announcing(store.queue("q"), handle, concurrency=concurrency, lease="2s").run()


async def _work_async(io: Io, url: str, concurrency: int) -> None:
    class Announcing(AsyncWorker):
        def stop(self) -> None:
            io.say("stopping")
            super().stop()

    async def handle(message: detent.AsyncDelivery) -> None:
        io.say("begun", message=message.id)
        await asyncio.to_thread(io.hear)
        io.say("done", message=message.id)

    async with detent.open_async(url) as store:
        io.say("open")
        await Announcing(store.queue("q"), handle, concurrency=concurrency, lease="2s").run()


@pytest.mark.parametrize(
    ("kind", "number"), [("sync", signal.SIGTERM), ("async", signal.SIGTERM), ("sync", signal.SIGINT)]
)
def test_a_worker_that_is_told_to_end_finishes_what_it_has_begun(
    url: str, processes: Processes, kind: str, number: signal.Signals
) -> None:
    """Its running handlers end and are acknowledged, it claims nothing more, and ends well."""
    with detent.open(url) as store:
        queue = store.queue("q")
        queue.create()
        before = [one.message for one in queue.publish_many([b"a", b"b", b"c", b"d"])]
        worker = processes.start(work, url=url, kind=kind, concurrency=2)
        worker.expect("open")
        begun = sorted(worker.expect("begun")["message"] for _ in range(2))
        assert begun == before[:2]
        os.kill(worker.pid, number)
        worker.expect("stopping")
        after = queue.publish(b"after the signal").message
        assert queue.info().in_flight == 2
        for _ in range(2):
            worker.tell()
        assert sorted(worker.expect("done")["message"] for _ in range(2)) == begun
        worker.expect("returned")
        assert worker.wait() == 0, worker.errors()
        assert worker.next_event() is None
        info = queue.info()
        assert (info.total_acked, info.available, info.in_flight, info.failed) == (2, 3, 0, 0)
        for untouched in (*before[2:], after):
            (place,) = store.message(untouched).places
            assert (place.state, place.attempts, place.history) == ("available", 0, [])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_worker_that_waits_takes_nothing_after_it_was_told_to_end(url: str, processes: Processes, kind: str) -> None:
    """Also when it stands in the queue's list of those that wait at that moment."""
    with detent.open(url) as store:
        queue = store.queue("q")
        queue.create()
        worker = processes.start(work, url=url, kind=kind, concurrency=1)
        worker.expect("open")
        owner: Any = store._connection.current
        eventually(lambda: len(owner.queues.watch), what="a worker that waits")
        os.kill(worker.pid, signal.SIGTERM)
        worker.expect("stopping")
        number = queue.publish(b"after the signal").message
        worker.expect("returned")
        assert worker.wait() == 0, worker.errors()
        (place,) = store.message(number).places
        assert (place.state, place.attempts) == ("available", 0)


def test_a_worker_that_is_killed_leaves_its_messages_to_another(url: str, processes: Processes) -> None:
    """After its lease; what it had finished stays finished."""
    with detent.open(url) as store:
        queue = store.queue("q")
        queue.create(backoff="0s")
        queue.publish_many([b"a", b"b"])
        first = processes.start(work, url=url, kind="sync", concurrency=1)
        first.expect("open")
        done = first.expect("begun")["message"]
        first.tell()
        first.expect("done")
        left = first.expect("begun")["message"]
        eventually(lambda: queue.info().total_acked == 1, what="the first acknowledgement")
        first.kill()
        second = processes.start(work, url=url, kind="async", concurrency=1)
        second.expect("open")
        assert second.expect("begun")["message"] == left != done
        second.tell()
        second.expect("done")
        eventually(lambda: queue.info().total_acked == 2, what="the second acknowledgement")
        assert store.message(left).places[0].state == "done"
