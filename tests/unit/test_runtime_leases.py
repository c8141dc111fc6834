"""Leases are renewed in time, tried again after a failure, lost or given back; by one keeper for all kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from detent.errors import Unavailable
from detent.runtime.lease import KeepLeases, Lease, Leases
from detent.runtime.supervisor import Supervised

PATIENCE_S = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def names(due: Sequence[Lease[str]]) -> list[str]:
    return [lease.thing for lease in due]


def test_lease_is_due_when_a_third_of_it_is_over(clock: Clock) -> None:
    leases: Leases[str] = Leases(clock=clock)
    leases.take(1, "a", 30.0)
    assert leases.next_s() == pytest.approx(10.0)
    clock.now += 9.9
    assert leases.due() == []
    clock.now += 0.1
    assert names(leases.due()) == ["a"]


def test_lease_counts_from_when_it_was_asked_for(clock: Clock) -> None:
    leases: Leases[str] = Leases(clock=clock)
    lease = leases.take(1, "a", 30.0, asked_s=clock.now - 8)
    assert leases.next_s() == pytest.approx(2.0)
    leases.renewed(lease, 60.0, asked_s=clock.now - 1)
    assert leases.next_s(99.0) == pytest.approx(19.0)


def test_what_is_due_soon_is_renewed_along(clock: Clock) -> None:
    leases: Leases[str] = Leases(clock=clock)
    leases.take(1, "a", 30.0)
    leases.take(2, "b", 30.0, asked_s=clock.now + 2)
    leases.take(3, "c", 30.0, asked_s=clock.now + 9)
    clock.now += 10
    assert names(leases.due()) == ["a", "b"]


def test_failed_renewal_is_tried_again_soon(clock: Clock) -> None:
    """After a sixth of a short lease, so that two more tries fit into the rest; after a second of a long one."""
    leases: Leases[str] = Leases(clock=clock)
    leases.take(1, "a", 3.0)
    clock.now += 1
    assert names(leases.due()) == ["a"]
    assert leases.next_s() == pytest.approx(0.5)
    leases.take(1, "a", 300.0, asked_s=0.0)
    assert names(leases.due()) == ["a"]
    assert leases.next_s() == pytest.approx(1.0)


def test_what_is_lost_or_given_back_is_not_held(clock: Clock) -> None:
    leases: Leases[str] = Leases(clock=clock)
    lost = leases.take(1, "a", 3.0)
    leases.take(2, "b", 3.0)
    leases.lost(lost)
    assert lost.is_lost
    assert leases.give_back(2) == "b"
    assert leases.give_back(2) is None
    assert (len(leases), leases.held()) == (0, [])
    clock.now += 9
    assert leases.due() == []


def test_keeper_is_woken_only_by_what_is_due_before_it_looks(clock: Clock) -> None:
    """A wake for each message would cost a switch of threads for each."""
    leases: Leases[str] = Leases(clock=clock)
    wakes: list[int] = []
    leases.sooner = lambda: wakes.append(1)
    leases.next_s(60.0)
    leases.take(1, "a", 30.0)
    assert len(wakes) == 1
    leases.next_s(60.0)
    leases.take(2, "b", 30.0)
    assert len(wakes) == 1
    leases.take(3, "c", 3.0)
    assert len(wakes) == 2


def test_keeper_looks_every_second(clock: Clock) -> None:
    """No wait counts the time for which a machine sleeps, and what is held may be due when it wakes. What is taken for
    long does not wake the keeper, although it held nothing."""
    leases: Leases[str] = Leases(clock=clock)
    keeper = KeepLeases("leases of a test", leases, lambda due: None)
    wakes: list[None] = []
    keeper.wake = lambda: wakes.append(None)
    assert keeper.step() == 1.0
    leases.take(1, "a", 300.0)
    assert keeper.step() == 1.0
    assert not wakes


def test_keeper_renews_in_a_thread_until_it_is_lost() -> None:
    leases: Leases[str] = Leases()
    renewed: list[str] = []
    over = threading.Event()

    def extend(due: Sequence[Lease[str]]) -> None:
        for lease in due:
            renewed.append(lease.thing)
            if len(renewed) == 2:
                raise Unavailable("away")
            if len(renewed) == 4:
                leases.lost(lease)
                over.set()
            else:
                leases.renewed(lease)

    kept = Supervised(KeepLeases("leases of a test", leases, extend)).start()
    leases.take(1, "a", 0.03)
    assert over.wait(PATIENCE_S)
    assert kept.stop(PATIENCE_S)
    assert renewed == ["a"] * 4
    assert kept.restarts == 0


def test_keeper_renews_on_a_loop() -> None:
    async def scenario() -> None:
        leases: Leases[str] = Leases()
        over = asyncio.Event()
        tries: list[int] = []

        async def extend(due: Sequence[Lease[str]]) -> None:
            await asyncio.sleep(0)
            tries.append(len(due))
            if len(tries) == 1:
                raise Unavailable("away")
            for lease in due:
                leases.lost(lease)
            over.set()

        kept = Supervised(KeepLeases("leases of a test", leases, extend))
        running = asyncio.create_task(kept.run())
        await asyncio.sleep(0)
        leases.take(1, "a", 0.03)
        await asyncio.wait_for(over.wait(), PATIENCE_S)
        kept.stop_soon()
        await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(scenario())
