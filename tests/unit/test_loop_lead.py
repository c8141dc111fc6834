"""An event loop that leads the groups of its own callers: who commits, together with whom, and what if it is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from detent.engine import Request, Ticket
from detent.errors import Conflict
from detent.journal import operations as ops
from detent.remote.dispatch import Dispatcher, caller_on
from world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.concurrent = True
    yield world
    world.engine.close()


class Watched:
    """Which threads committed, and how many transactions at a time."""

    def __init__(self, world: World) -> None:
        self.threads: list[int] = []
        self.sizes: list[int] = []
        world.engine.observer = self

    def group(self, group: list[Ticket], seconds: float, sync_seconds: float) -> None:
        self.threads.append(threading.get_ident())
        self.sizes.append(len(group))


async def submitted(world: World, requests: list[Request]) -> list[Ticket]:
    loop = asyncio.get_running_loop()
    lost: list[Ticket] = []
    dispatcher = Dispatcher(loop, lost.append)
    futures: list[asyncio.Future[Ticket]] = [loop.create_future() for _ in requests]
    for request, future in zip(requests, futures, strict=True):
        world.engine.submit(request, dispatcher.deliver, future)
    tickets = [await asyncio.wait_for(future, 30) for future in futures]
    assert lost == []
    return tickets


def test_what_comes_in_one_turn_of_the_loop_is_one_commit_in_its_own_thread(world: World) -> None:
    watched = Watched(world)

    async def run() -> list[Ticket]:
        world.engine.lead_on(caller_on(asyncio.get_running_loop()))
        return await submitted(world, [world.request(ops.Append("j", [b"%d" % i])) for i in range(20)])

    tickets = asyncio.run(run())
    assert sorted(ticket.outcome()[0].offset for ticket in tickets) == list(range(20))
    assert (watched.threads, watched.sizes) == ([threading.get_ident()], [20])


def test_without_the_offer_a_thread_of_the_engine_commits(world: World) -> None:
    watched = Watched(world)
    asyncio.run(submitted(world, [world.request(ops.Append("j", [b"x"]))]))
    assert threading.get_ident() not in watched.threads


def test_a_refusal_stays_alone(world: World) -> None:
    async def run() -> list[Ticket]:
        world.engine.lead_on(caller_on(asyncio.get_running_loop()))
        wrong = world.request(ops.CheckRegisters("j", {"author": "me"}), ops.Append("j", [b"never"]))
        return await submitted(world, [world.request(ops.Append("j", [b"x"])), wrong])

    first, second = asyncio.run(run())
    assert first.outcome()[0].offset == 0
    with pytest.raises(Conflict):
        second.outcome()


def test_threads_that_commit_for_themselves_and_a_loop_share_the_lead(world: World) -> None:
    each, threads = 50, 4
    requests = [[world.request(ops.Append("j", [b"t"])) for _ in range(each)] for _ in range(threads)]
    own = [world.request(ops.Append("j", [b"l"])) for _ in range(each)]

    async def run() -> None:
        world.engine.lead_on(caller_on(asyncio.get_running_loop()))
        others = [asyncio.to_thread(lambda mine=mine: [world.engine.commit(one) for one in mine]) for mine in requests]
        working = asyncio.gather(*others)
        for one in own:
            (ticket,) = await submitted(world, [one])
            ticket.outcome()
        await asyncio.wait_for(working, 60)

    asyncio.run(run())
    assert world.reader.next_offset("j") == each * (threads + 1)


def test_when_the_loop_is_gone_the_engines_thread_goes_on(world: World) -> None:
    async def offer() -> None:
        world.engine.lead_on(caller_on(asyncio.get_running_loop()))

    asyncio.run(offer())
    watched = Watched(world)
    (ticket,) = asyncio.run(submitted(world, [world.request(ops.Append("j", [b"x"]))]))
    assert ticket.outcome()[0].offset == 0
    assert watched.threads != [threading.get_ident()]


def test_an_answered_ticket_and_its_waiter_do_not_hold_each_other(world: World) -> None:
    """They would, with all that they carry, until the garbage collector looks for cycles."""
    (ticket,) = asyncio.run(submitted(world, [world.request(ops.Append("j", [b"x"]))]))
    assert ticket.waiter is None
