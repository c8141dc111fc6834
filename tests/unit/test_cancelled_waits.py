"""A wait on an event loop that is cancelled at the moment it is woken ends, and so does the task that waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import detent
from detent.runtime.ground import OnLoop


async def cancelled_after(turns: int, wait: Callable[[], Awaitable[object]], wake: Callable[[], object]) -> None:
    waiting = asyncio.ensure_future(wait())
    for _ in range(10):
        await asyncio.sleep(0)
    wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("turns", range(8))
def test_a_task_of_a_loop(turns: int) -> None:
    async def scenario() -> None:
        ground = OnLoop()
        await cancelled_after(turns, lambda: ground.wait(30), ground.wake)

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("kind", ["queue", "journal"])
def test_a_reader_of_a_store(turns: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with detent.open_async("memory:") as store:
            await store.queue("q").create()
            alarms: list[Callable[[], None]] = []
            make = store._alarm

            def alarm() -> tuple[asyncio.Event, Callable[[], None]]:
                woken, wake = make()
                alarms.append(wake)
                return woken, wake

            monkeypatch.setattr(store, "_alarm", alarm)
            owner = store._store._connection.at_hand
            assert owner is not None
            if kind == "queue":
                await cancelled_after(turns, lambda: store._await_claimable(owner, "q", 30_000), lambda: alarms[0]())
            else:
                await cancelled_after(turns, lambda: store._await_growth(owner, "j", 0, 30_000), lambda: alarms[0]())

    asyncio.run(scenario())
