"""What every schedule promises, whatever is below it: on memory, file, a client of the owner, a server, s3."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import detent
from detent import Exists, Invalid, NotFound, Store
from detent.schedule import ID_HEADER, SCHEDULE_HEADER, TICK_HEADER
from processes import eventually


def ids(store: Store, journal: str = "j") -> list[str]:
    try:
        return [message.headers[ID_HEADER] for message in store.journal(journal).read()]
    except NotFound:
        return []


def test_ticks_are_published_by_the_owner_once_each(store: Store) -> None:
    store.queue("q").create()
    store.schedule("s", every="1s", queue="q", body=b"beat", headers={"a": "b"})
    store.schedule("t", every="1s", journal="j", key=b"k")
    eventually(lambda: store.queue("q").info().available >= 2, what="two ticks")
    store.pause_schedule("s")
    found = store.queue("q").claim(10)
    assert {message.body for message in found} == {b"beat"}
    assert {message.headers[SCHEDULE_HEADER] for message in found} == {"s"}
    ticks = [datetime.fromisoformat(message.headers[TICK_HEADER]) for message in found]
    assert ticks == sorted(set(ticks))
    assert all((one - ticks[0]) % timedelta(seconds=1) == timedelta() for one in ticks)
    eventually(lambda: len(ids(store)) >= 2, what="two ticks")
    assert len(ids(store)) == len(set(ids(store)))
    assert store.find_schedule("t").published >= 2


def test_made_changed_listed_and_deleted(store: Store) -> None:
    made = store.schedule("b/report", cron="0 6 * * *", tz="Europe/Paris", journal="j", body=b"x", missed="all")
    assert (made.cron, made.tz, made.every, made.journal, made.queue) == ("0 6 * * *", "Europe/Paris", None, "j", None)
    assert (made.body, made.missed, made.missed_max, made.paused, made.edition) == (b"x", "all", 100, False, 1)
    first, second, *_ = made.upcoming()
    assert made.next == first > datetime.now(UTC)
    assert second - first in {timedelta(hours=hours) for hours in (23, 24, 25)}
    again = store.schedule("b/report", cron="0 6 * * *", tz="Europe/Paris", journal="j", body=b"x", missed="all")
    assert again == made
    with pytest.raises(Exists):
        store.create_schedule("b/report", every="1h", journal="j")
    changed = store.change_schedule("b/report", body=None, missed="none", key=b"k")
    assert (changed.body, changed.missed, changed.key, changed.cron, changed.next) == (
        None, "none", b"k", "0 6 * * *", made.next,
    )  # fmt: skip
    changed = store.change_schedule("b/report", every="2h")
    assert (changed.cron, changed.tz, changed.every) == (None, None, timedelta(hours=2))
    store.create_schedule("a", every="1h", journal="j", paused=True)
    assert [info.name for info in store.schedules()] == ["a", "b/report"]
    assert [info.name for info in store.schedules("b/")] == ["b/report"]
    assert store.find_schedule("a").next is None
    assert store.find_schedule("a").upcoming() == []
    store.resume_schedule("a")
    assert store.find_schedule("a").next is not None
    store.delete_schedule("a")
    for call in (store.find_schedule, store.delete_schedule, store.pause_schedule, store.run_schedule):
        with pytest.raises(NotFound):
            call("a")
    with pytest.raises(NotFound):
        store.change_schedule("a", body=b"")


def test_asked_for_by_hand(store: Store) -> None:
    store.schedule("s", every="1h", journal="j", paused=True)
    asked = [store.run_schedule("s") for _ in range(3)]
    eventually(lambda: len(ids(store)) == 3, what="the messages that were asked for")
    assert ids(store) == asked
    assert store.find_schedule("s").waiting == 0


def test_refusals_say_what_to_do(store: Store) -> None:
    with pytest.raises(NotFound, match="create it first"):
        store.schedule("s", every="1h", queue="none")
    with pytest.raises(Invalid, match="either cron"):
        store.schedule("s", queue="q")
    with pytest.raises(Invalid, match="where the messages go"):
        store.schedule("s", every="1h")
    with pytest.raises(Invalid, match="a priority is a header"):
        store.schedule("s", every="1h", journal="j", priority=5)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="no time zone"):
        store.schedule("s", cron="0 6 * * *", tz="Europe/Nowhere", journal="j")
    assert store.schedules() == []


def test_the_same_for_asyncio(url: str) -> None:
    async def run() -> None:
        async with detent.open_async(url) as store:
            made = await store.schedule("s", every="1h", journal="j")
            assert await store.find_schedule("s") == made
            assert (await store.change_schedule("s", every="2h")).every == timedelta(hours=2)
            assert [info.name for info in await store.schedules()] == ["s"]
            await store.pause_schedule("s")
            await store.resume_schedule("s")
            asked = await store.run_schedule("s")
            assert asked.startswith("s@")
            await store.journal("j").wait(0, timeout="10s")
            await store.delete_schedule("s")
            assert await store.schedules() == []

    asyncio.run(run())


def test_survives_the_store(url: str) -> None:
    if url == "memory:":
        pytest.skip("a store in memory ends with its process")
    with detent.open(url) as store:
        made = store.schedule("s", cron="0 6 * * *", journal="j", headers={"a": "b"})
    with detent.open(url) as store:
        assert store.find_schedule("s") == made
