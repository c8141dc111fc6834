"""A claim whose messages could not be handed over never happened: on memory, file, a client of the owner, a server, s3.

The message is claimable again at its old place, with no attempt used and no history, however the answer was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import detent
from contract.backends import OWNERS
from detent import AsyncDelivery, AsyncStore, AsyncWorker, Delivery, Queue, Store, Unavailable, Worker
from detent.codec.published import payload_key
from detent.errors import Corrupt
from detent.kv import Batch
from detent.queue.unclaiming import undoing_deliveries
from detent.remote import LocalOwner
from processes import eventually

COUNT = 10
ORDER = [*range(0, COUNT, 2), *range(1, COUNT, 2)]
"""The messages by priority, then age."""


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue where one lost attempt is one too many, with messages of two priorities."""
    made = store.queue("q")
    made.create(max_attempts=1, lease="10m")
    for number in range(COUNT):
        made.publish(str(number).encode(), headers={"priority": str(number % 2)})
    return made


def whole(queue: Queue, taken: int = 0) -> None:
    """All but the first few messages are as if they had not been claimed, and are claimed in order."""
    wanted = ORDER[taken:]
    eventually(lambda: queue.info().available == len(wanted))
    info = queue.info()
    assert (info.in_flight, info.delayed, info.failed, info.total_failed) == (taken, 0, 0, 0)
    claimed = [message for _ in wanted for message in queue.claim(1)]
    for priority in range(2):  # now and then the oldest of all comes first
        found = [int(message.body) for message in claimed if message.priority == priority]
        assert found == [number for number in wanted if number % 2 == priority]
    assert {message.attempts for message in claimed} == {1}


def run(url: str, store: Store, work: Callable[[AsyncStore], Awaitable[object]]) -> None:
    """Do something with the store from an event loop, in a client of its own where there may be one."""

    async def scenario() -> None:
        if url == "memory:" or url.startswith("s3:"):
            await work(AsyncStore(store))
        else:
            async with detent.open_async(url) as other:
                await work(other)

    asyncio.run(scenario())


async def given_up(store: AsyncStore, claiming: asyncio.Task[list[AsyncDelivery]]) -> None:
    """Cancel a claim. One that was faster has handed its messages over: they are given back as a worker would."""
    claiming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        store.undo(undoing_deliveries(await claiming))


@pytest.mark.parametrize("turns", range(5))
def test_claim_cancelled_at_any_turn_of_the_loop_is_undone(url: str, store: Store, queue: Queue, turns: int) -> None:
    async def cancel(other: AsyncStore) -> None:
        claiming = asyncio.create_task(other.queue("q").claim(3))
        for _ in range(turns):
            await asyncio.sleep(0)
        await given_up(other, claiming)

    run(url, store, cancel)
    whole(queue)


def test_storm_of_cancelled_claims_uses_no_attempts(url: str, store: Store, queue: Queue) -> None:
    async def storm(other: AsyncStore) -> None:
        rng = random.Random(7)
        for _ in range(60):
            claims = [asyncio.create_task(other.queue("q").claim(2, wait=rng.choice((None, "1s")))) for _ in range(3)]
            await asyncio.sleep(rng.choice((0, rng.random() * 0.003)))
            rng.shuffle(claims)
            for claiming in claims:
                await given_up(other, claiming)

    run(url, store, storm)
    whole(queue)


def test_claim_that_times_out_is_undone(url: str, store: Store, queue: Queue) -> None:
    async def time_out(other: AsyncStore) -> None:
        for index in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(index * 0.0003):
                    other.undo(undoing_deliveries(await other.queue("q").claim(4)))

    run(url, store, time_out)
    whole(queue)


def test_waiting_claim_that_is_cancelled_as_its_message_comes_is_undone(url: str, store: Store) -> None:
    queue = store.queue("q")
    queue.create(max_attempts=1, lease="10m")

    async def cancel(other: AsyncStore) -> None:
        for _ in range(COUNT):
            claiming = asyncio.create_task(other.queue("q").claim(COUNT, wait="10s"))
            await asyncio.sleep(0.01)
            publishing = asyncio.create_task(asyncio.to_thread(queue.publish, b"x"))
            await asyncio.sleep(random.random() * 0.01)
            await given_up(other, claiming)
            await publishing

    run(url, store, cancel)
    eventually(lambda: queue.info().available == COUNT)
    assert [message.attempts for message in queue.claim(COUNT)] == [1] * COUNT


def test_cancelled_claim_that_lost_its_connection_is_undone(url: str, store: Store, queue: Queue) -> None:
    """The answer is asked for again under the claim's name, by a connection of its own."""
    if store.url not in OWNERS:
        pytest.skip("there is no connection")

    async def cancel(other: AsyncStore) -> None:
        await other.queue("q").info()
        remote = other._remote
        assert remote is not None
        asked = asyncio.Event()
        ask = remote._channel.ask

        async def lose(*arguments: Any) -> Any:
            answer = await ask(*arguments)
            if not asked.is_set():
                asked.set()
                await asyncio.sleep(0.02)
                raise detent.remote.Disconnected("the connection broke")
            return answer

        remote._channel.ask = lose  # type: ignore[method-assign]
        claiming = asyncio.create_task(other.queue("q").claim(3))
        await asked.wait()
        await given_up(other, claiming)

    run(url, store, cancel)
    whole(queue)


class Broken:
    """A reader of contents that fails once."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def columns(self, *_: object) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [Unavailable("the object store does not answer"), KeyboardInterrupt()])
def test_claim_whose_contents_cannot_be_read_is_undone(store: Store, queue: Queue, error: BaseException) -> None:
    if store.url.startswith("http"):
        pytest.skip("the contents come with the answer")
    reader = store.messages
    store.messages = Broken(error)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        queue.claim(4)
    store.messages = reader
    whole(queue)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_damaged_message_counts_as_tried_and_those_beside_it_do_not(
    url: str, store: Store, queue: Queue, how: str
) -> None:
    owner = OWNERS.get(store.url, store)._connection.current
    assert isinstance(owner, LocalOwner)
    batch = Batch()
    batch.put(payload_key(ORDER[1]), b"\xff")
    owner.engine._writer.commit(batch)

    async def claim(other: AsyncStore) -> None:
        await other.queue("q").claim(4)

    with pytest.raises(Corrupt):
        queue.claim(4) if how == "sync" else run(url, store, claim)
    eventually(lambda: queue.info().available == COUNT - 1)
    assert (queue.info().in_flight, queue.info().failed) == (1, 0)
    found = queue.claim(COUNT)
    assert sorted(int(message.body) for message in found) == sorted({*ORDER} - {ORDER[1]})
    assert {message.attempts for message in found} == {1}


def test_closed_iterator_gives_back_what_it_had_not_given_out(url: str, store: Store, queue: Queue) -> None:
    messages = queue.messages(batch=6)
    assert [int(next(messages).body) for _ in range(2)] == ORDER[:2]
    messages.close()  # type: ignore[attr-defined]

    async def take(other: AsyncStore) -> None:
        async with contextlib.aclosing(cast_generator(other.queue("q").messages(batch=5))) as found:
            assert int((await anext(found)).body) == ORDER[2]

    run(url, store, take)
    whole(queue, 3)


def cast_generator(messages: AsyncIterator[AsyncDelivery]) -> Any:
    return messages


def test_worker_that_stops_before_a_handler_begins_gives_back(store: Store, queue: Queue) -> None:
    seen: list[Delivery] = []
    worker = Worker(queue, seen.append, concurrency=4)
    claim = queue.claim

    def stop_after(*arguments: Any, **options: Any) -> list[Delivery]:
        found = claim(*arguments, **options)
        worker.stop()
        return found

    queue.claim = stop_after  # type: ignore[method-assign]
    worker.run()
    queue.claim = claim  # type: ignore[method-assign]
    assert seen == []
    whole(queue)


def test_async_worker_that_stops_before_a_handler_begins_gives_back(url: str, store: Store, queue: Queue) -> None:
    seen: list[AsyncDelivery] = []

    async def handle(message: AsyncDelivery) -> None:
        seen.append(message)

    async def work(other: AsyncStore) -> None:
        source = other.queue("q")
        worker = AsyncWorker(source, handle, concurrency=4, grace="0s")
        claim = source.claim

        async def stop_after(*arguments: Any, **options: Any) -> list[AsyncDelivery]:
            found = await claim(*arguments, **options)
            worker.stop()
            return found

        source.claim = stop_after  # type: ignore[method-assign]
        await worker.run()

    run(url, store, work)
    assert seen == []
    whole(queue)
