"""A worker takes handlers that it can run, and no others."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

import detent
from detent import AsyncWorker, Worker
from detent.runtime.thread import DaemonPool


async def coroutine(message: Any) -> None:
    """Handles a message, once it is awaited."""


class Callable:
    async def __call__(self, message: Any) -> None: ...


@pytest.mark.parametrize("handler", [coroutine, functools.partial(coroutine), Callable(), None, "print"])
def test_a_worker_refuses_what_it_cannot_run(handler: Any) -> None:
    """A coroutine that nobody awaits does nothing, and its message would count as handled."""
    with detent.open("memory:") as store, pytest.raises(detent.Invalid):
        Worker(store.queue("q"), handler)


@pytest.mark.parametrize("handler", [print, lambda message: None, None, 7])
def test_an_async_worker_refuses_what_it_cannot_await(handler: Any) -> None:
    with detent.open("memory:") as store, pytest.raises(detent.Invalid):
        AsyncWorker(store.queue("q"), handler)  # type: ignore[arg-type]


class Aborted(BaseException):
    """What a library raises so that nothing on the way catches it."""


def test_worker_reports_base_exception_of_its_handler() -> None:
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create(max_attempts=1)
        queue.publish(b"x")

        def abort(message: Any) -> None:
            worker.stop()
            raise Aborted("now")

        worker = Worker(queue, abort)
        worker.run()
        assert [one.reason for one in queue.failed()] == ["Aborted: now"]
        assert worker.failed == 1


def test_async_worker_reports_base_exception_of_its_handler() -> None:
    async def scenario() -> tuple[list[str], int]:
        async with await detent.open_async("memory:") as store:
            queue = store.queue("q")
            await queue.create(max_attempts=1)
            await queue.publish(b"x")

            async def abort(message: Any) -> None:
                worker.stop()
                raise Aborted("now")

            worker = AsyncWorker(queue, abort)
            await worker.run()
            return [one.reason async for one in queue.failed()], worker.failed

    assert asyncio.run(scenario()) == (["Aborted: now"], 1)


def test_fence_ends_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with detent.open("memory:") as store:
        queue = store.queue("q")
        fenced = [detent.Fenced("another process owns the store")]

        def claim(*values: Any, **options: Any) -> list[detent.Delivery]:
            if fenced:
                raise fenced.pop()
            worker.stop()
            return []

        worker = Worker(queue, print)
        monkeypatch.setattr(queue, "claim", claim)
        with pytest.raises(detent.Fenced):
            worker.run()


def test_worker_without_a_thread_gives_its_messages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not claim them again and again meanwhile."""

    def refuse(*values: object) -> None:
        raise RuntimeError("can't start new thread")

    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create()
        queue.publish_many([b"x", b"y"])
        worker = Worker(queue, print, concurrency=2)
        with monkeypatch.context() as without:
            without.setattr(DaemonPool, "submit", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                worker.run()
        handled: list[int] = []

        def handle(message: detent.Delivery) -> None:
            handled.append(message.attempts)
            if len(handled) == 2:
                again.stop()

        again = Worker(queue, handle)
        again.run()
        assert handled == [1, 1]


def test_worker_runs_again_after_a_claim_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads were let go of when it failed, and what it claims then has others."""
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create()
        claim = queue.claim
        handled = threading.Event()

        def claim_once(*values: Any, **options: Any) -> list[detent.Delivery]:
            if handled.is_set():
                raise detent.Denied("not now")
            return claim(*values, **options)

        worker = Worker(queue, lambda message: handled.set())
        monkeypatch.setattr(queue, "claim", claim_once)
        for body in (b"x", b"y"):
            handled.clear()
            queue.publish(body)
            with pytest.raises(detent.Denied):
                worker.run()
        assert queue.info().done == worker.handled == 2


def test_each_takes_its_own() -> None:
    with detent.open("memory:") as store:
        Worker(store.queue("q"), print)
        AsyncWorker(store.queue("q"), coroutine)  # type: ignore[arg-type]
        AsyncWorker(store.queue("q"), Callable())  # type: ignore[arg-type]
