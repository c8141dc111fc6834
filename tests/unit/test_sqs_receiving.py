"""What ReceiveMessage remembers, and what it does for a consumer that has hung up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import detent
from detent.queue import operations as ops
from detent.server.access import UNCHECKED
from detent.server.sqs import receiving
from detent.server.sqs.attributes import GROUP
from detent.server.sqs.call import SqsCall
from detent.server.sqs.directory import Directory
from detent.server.sqs.names import QueuePlace
from detent.server.sqs.receiving import Receiving, Undo


class Slow:
    """A store at which a claim that finds something is answered after the consumer has hung up."""

    def __init__(self, store: Any, hung_up: asyncio.Event) -> None:
        self._store = store
        self._hung_up = hung_up

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, operations: list[Any]) -> list[Any]:
        results: list[Any] = await self._store.commit(operations)
        if isinstance(operations[0], ops.Claim) and results[0].messages:
            self._hung_up.set()
            await asyncio.sleep(0.01)
        return results


def test_what_was_claimed_for_a_consumer_that_hung_up_meanwhile_is_there_for_others() -> None:
    async def scenario() -> None:
        async with detent.open_async("memory:") as store:
            queue = store.queue("orders")
            await queue.create(lease="1h", backoff="1h")
            hung_up = asyncio.Event()

            async def gone() -> None:
                await hung_up.wait()

            slow: Any = Slow(store, hung_up)
            receive = Receiving(slow, Directory(store), QueuePlace(), time.time, lambda _: True).receive
            call = SqsCall("ReceiveMessage", {"QueueUrl": "orders", "WaitTimeSeconds": 20}, UNCHECKED, "", "", "", gone)
            receiving_it = asyncio.create_task(receive(call))
            await asyncio.sleep(0.05)
            await queue.publish(b"x")
            assert await receiving_it == {}
            info = await queue.info()
            assert (info.available, info.in_flight) == (1, 0)
            assert [message.attempts for message in await queue.claim()] == [1]

    asyncio.run(scenario())


def test_new_attempts_are_remembered_however_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "ATTEMPTS_MAX", 3)
    nothing: Any = None
    known = Receiving(nothing, nothing, QueuePlace(), time.time, lambda _: True)
    result = ops.ClaimedMessages(1, 0, 0, [], [], [], b"")
    undo = Undo(nothing, result)
    for attempt in ("a", "b", "a", "c", "d"):
        known._remember(("q.fifo", attempt), result, undo)
    assert [attempt for _, attempt in known._attempts] == ["a", "c", "d"]
    monkeypatch.setattr(receiving, "ATTEMPTS_MAX", 1_000)
    monkeypatch.setattr(receiving, "ATTEMPT_S", -1.0)
    old = Receiving(nothing, nothing, QueuePlace(), time.time, lambda _: True)
    for attempt in ("a", "b"):
        old._remember(("q.fifo", attempt), result, undo)
    assert [attempt for _, attempt in old._attempts] == ["b"]


def receive_call(**fields: Any) -> SqsCall:
    async def stays() -> None:
        await asyncio.Event().wait()

    return SqsCall("ReceiveMessage", {"QueueUrl": "orders.fifo", **fields}, UNCHECKED, "", "", "", stays)


def test_receive_whose_answer_was_lost_is_undone_unless_it_was_given_again() -> None:
    async def scenario() -> None:
        async with detent.open_async("memory:") as store:
            queue = store.queue("orders.fifo")
            await queue.create(lease="1h", max_attempts=1, group_header=GROUP)
            await queue.publish(b"x")
            receive = Receiving(store, Directory(store), QueuePlace(), time.time, lambda _: True).receive
            named = {"ReceiveRequestAttemptId": "try", "MessageSystemAttributeNames": ["All"]}

            lost = receive_call(**named)
            await receive(lost)
            assert lost.undo is not None
            lost.undo()
            first, again = receive_call(**named), receive_call(**named)
            (message,) = (await receive(first))["Messages"]
            assert message["Attributes"]["ApproximateReceiveCount"] == "1"
            (same,) = (await receive(again))["Messages"]
            assert same["ReceiptHandle"] == message["ReceiptHandle"]
            assert again.undo is None
            assert first.undo is not None
            first.undo()
            assert (await queue.info()).in_flight == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError()])
def test_receive_that_fails_after_its_claim_is_undone(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with detent.open_async("memory:") as store:
            queue = store.queue("orders.fifo")
            await queue.create(lease="1h", max_attempts=1)
            await queue.publish(b"x")
            receiving = Receiving(store, Directory(store), QueuePlace(), time.time, lambda _: True)

            async def fail(*_: object) -> Any:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(receiving, "_first_receives", fail)
                with pytest.raises(type(error)):
                    await receiving.receive(receive_call())
            assert [message.attempts for message in await queue.claim()] == [1]

    asyncio.run(scenario())
