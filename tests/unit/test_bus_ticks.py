"""Handlers that run at times: `@bus.every`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from detent.bus import Bus, Context, ExternalTransport, QueueTransport, Tick
from detent.errors import Invalid
from processes import eventually


@dataclass
class Order:
    id: str


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as opened:
        yield opened


def test_handler_gets_its_own_ticks_with_their_ids(store: detent.Store) -> None:
    bus, called = Bus("shop", QueueTransport(store)), []

    @bus.every("1h")
    def sweep(tick: Tick, context: Context) -> None:
        called.append(("sweep", tick.schedule, tick.tick, context.message_id))

    @bus.every(cron="0 6 * * *", tz="Europe/Paris", name="morning", missed="none")
    def report(tick: Tick) -> None:
        called.append(("report", tick.schedule, tick.tick, ""))

    @bus.handler
    def place(order: Order) -> None:
        called.append(("place", order.id, None, ""))

    bus.prepare()
    found = {info.name: info for info in store.schedules()}
    assert set(found) == {"shop/sweep", "morning"}
    assert (found["shop/sweep"].every, found["shop/sweep"].queue) == (timedelta(hours=1), "shop")
    assert (found["morning"].cron, found["morning"].tz, found["morning"].missed) == (
        "0 6 * * *",
        "Europe/Paris",
        "none",
    )
    assert "tick." not in store.queue("shop").info().filter
    asked = [store.run_schedule("shop/sweep"), store.run_schedule("morning")]
    bus.send_local(Order("o-1"))
    eventually(lambda: store.queue("shop").info().available == 3, what="ticks and order")
    bus.drain()
    bus.stop()
    by_name = {one[0]: one for one in called}
    assert len(called) == 3
    assert by_name["sweep"][1] == "shop/sweep"
    assert by_name["sweep"][3] == asked[0]
    assert by_name["sweep"][2] == datetime.fromisoformat(asked[0].partition("@")[2].removesuffix("/by-hand"))
    assert by_name["report"][1] == "morning"
    assert by_name["report"][2] is not None
    assert by_name["report"][2].tzinfo is not None


def test_app_that_runs_handles_each_tick_once(store: detent.Store) -> None:
    bus, ticks = Bus("beats", QueueTransport(store)), []

    @bus.every("1s")
    async def beat(tick: Tick) -> None:
        ticks.append(tick.tick)

    with bus:
        eventually(lambda: len(ticks) >= 2, what="two ticks")
    assert len(ticks) == len(set(ticks))
    assert all(tick.tzinfo == UTC for tick in ticks)


def test_start_changes_the_schedule_to_what_the_app_says_and_leaves_it_paused(store: detent.Store) -> None:
    for interval in ("1h", "2h"):
        bus = Bus("shop", QueueTransport(store))
        bus.every(interval)(_sweep)
        bus.prepare()
        bus.stop()
        store.pause_schedule("shop/_sweep")
    info = store.find_schedule("shop/_sweep")
    assert (info.every, info.paused) == (timedelta(hours=2), True)


def _sweep(tick: Tick) -> None:
    raise AssertionError(tick)


def test_refuses_what_is_not_a_schedule_where_it_is_declared(store: detent.Store) -> None:
    bus = Bus("shop", QueueTransport(store))
    for given in ({}, {"interval": "1h", "cron": "0 6 * * *"}, {"cron": "often"}, {"interval": "1ms"}):
        with pytest.raises(Invalid):
            bus.every(**given)(_sweep)  # type: ignore[arg-type]
    bus.every("1h")(_sweep)
    with pytest.raises(Invalid, match="two handlers for the schedule"):
        bus.every("2h")(_sweep)


def test_app_on_other_queues_is_refused_at_its_start() -> None:
    def make(name: str) -> Any:
        raise AssertionError(name)

    bus = Bus("shop", ExternalTransport(make))
    bus.every("1h")(_sweep)
    with pytest.raises(Invalid, match="needs schedules of a Detent store"):
        bus.prepare()
