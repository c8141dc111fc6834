"""What a store promises of consumers and shards, whatever is below it: on memory, file, a client, a server, s3."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from contract.backends import OWNERS, SERVERS
from detent import AsyncStore, Conflict, Fenced, Invalid, NotFound, Store, Unavailable
from detent.shard import operations as ops
from detent.shard.reading import read_state, scan_state
from remoteserver import serving

TTL_MS = 60_000


def register(store: Store, shards: int = 2, journals: tuple[str, ...] = ("a", "b"), **options: Any) -> ops.ConsumerPlan:
    plan: ops.ConsumerPlan = store.commit([ops.RegisterConsumer("c", shards, list(journals), **options)])[0]
    return plan


def put(store: Store, shard: int = 0, *, processed: dict[str, int] | None = None, **puts: bytes) -> int:
    """Open a shard and commit something; its fence."""
    fence: int = store.commit([ops.OpenShard("c", shard)])[0].fence
    store.commit([ops.CommitShard("c", shard, fence, b"cp", puts, [], processed or {})])
    return fence


def test_what_is_known_of_a_consumer(store: Store) -> None:
    assert register(store) == ops.ConsumerPlan(2, "journal", {"a": 0, "b": 1}, False)
    store.commit([ops.LeaseShard("c", 1, "m", TTL_MS)])
    found = store.commit([ops.Heartbeat("c", "m", TTL_MS, "host:1")])[0]
    assert (found.name, found.states[1].holder) == ("c", "m")
    store.commit([ops.ReportShard("c", 1, 0, "running", "why", {"b": 5}, {"x": 7})])
    info = store.consumer("c").info()
    now = datetime.now(UTC)
    assert (info.name, info.partition, info.paused, info.sources) == ("c", "journal", False, {"a": 0, "b": 1})
    assert now - timedelta(hours=1) < info.created < now + timedelta(hours=1)
    (member,) = info.members
    assert (member.member, member.info) == ("m", "host:1")
    assert now < member.expires < now + timedelta(hours=1)
    idle, busy = info.shards
    assert (idle.index, idle.holder, idle.lease, idle.journals, idle.processed) == (0, "", timedelta(0), ("a",), {})
    assert (busy.index, busy.holder, busy.journals, busy.status, busy.error) == (1, "m", ("b",), "running", "why")
    assert (busy.processed, busy.published, busy.generation, busy.resets) == ({"b": 5}, {"x": 7}, 0, {})
    assert timedelta(0) < busy.lease <= timedelta(milliseconds=TTL_MS)
    assert busy.number != idle.number


def test_listed_by_name(store: Store) -> None:
    names = ["a", "a b", "a/x", "b", "世界"]
    for name in reversed(names):
        store.commit([ops.RegisterConsumer(name, 1, [])])
    assert [info.name for info in store.consumers()] == names
    assert [info.name for info in store.consumers("a")] == names[:3]
    assert store.consumers("c") == []


def test_more_than_one_page(store: Store) -> None:
    names = [f"c{number:04}" for number in range(ops.PAGE_MAX + 1)]
    with store.transaction() as transaction:
        for name in names:
            transaction.add(ops.RegisterConsumer(name, 1, []))
    assert [info.name for info in store.consumers()] == names


def test_a_shard_commits_with_the_rest_of_its_transaction(store: Store) -> None:
    register(store)
    opened = store.commit([ops.OpenShard("c", 0)])[0]
    with store.transaction() as transaction:
        transaction.append("out", b"one")
        transaction.add(ops.CommitShard("c", 0, opened.fence, b"first", {"k": b"1"}, [], {"a": 1}))
    again = store.commit([ops.OpenShard("c", 0)])[0]
    assert (again.number, again.fence, again.checkpoint) == (opened.number, opened.fence + 1, b"first")
    with pytest.raises(Fenced, match="another process has opened the shard"), store.transaction() as transaction:
        transaction.append("out", b"two")
        transaction.add(ops.CommitShard("c", 0, opened.fence, b"second", {"k": b"2"}))
    assert [message.body for message in store.journal("out").read()] == [b"one"]
    assert store.commit([ops.FindShard("c", 0)])[0].checkpoint == b"first"


def test_state_to_look_at(store: Store) -> None:
    register(store)
    put(store, 1, **{"a": b"1", "b/1": b'{"x": [2]}', "b/2": b'"\xc3\xa9"', "n": b"null"})
    state = store.consumer("c").state(1)
    assert (state.get("a"), state.get("b/1"), state.get("b/2")) == (1, {"x": [2]}, "é")
    assert (state.get("none"), state.get("none", 7), state.get("n", 7)) == (None, 7, None)
    assert list(state.items()) == [("a", 1), ("b/1", {"x": [2]}), ("b/2", "é"), ("n", None)]
    assert list(state.items("b/")) == [("b/1", {"x": [2]}), ("b/2", "é")]
    assert list(store.consumer("c").state(0).items()) == []
    with pytest.raises(NotFound, match="has no shard 2"):
        store.consumer("c").state(2).get("a")


def test_more_than_one_page_of_state(store: Store) -> None:
    register(store)
    keys = [f"k{number:04}" for number in range(ops.PAGE_MAX + 1)]
    put(store, **dict.fromkeys(keys, b"1"))
    assert [key for key, _ in store.consumer("c").state(0).items()] == keys


def test_state_read_without_the_owner_where_that_can_be(store: Store) -> None:
    register(store)
    put(store, 1, a=b"1", b=b"2", ba=b"3")
    number = store.consumer("c").info().shards[1].number
    found = store.states.read(number, ["b", "none", "a"])
    if found is None:  # behind a server, or a network away
        assert store.url.startswith(("http", "s3"))
        assert store.states.scan(number) is None
        return
    assert found == [b"2", None, b"1"]
    assert store.states.scan(number, "b") == ([("b", b"2"), ("ba", b"3")], False)
    assert store.states.scan(number, "", "a", 1) == ([("b", b"2")], True)
    with store._kv.view() as view:
        assert read_state(view, number, ["a"]) == [b"1"]
        assert scan_state(view, number, "b", "b", 9) == ([("ba", b"3")], False)


def test_leases(store: Store) -> None:
    register(store)
    assert store.commit([ops.LeaseShard("c", 0, "m", TTL_MS)]) == [ops.Leased(0)]
    with pytest.raises(Conflict, match="the member 'm' holds this shard"):
        store.commit([ops.LeaseShard("c", 0, "n", TTL_MS)])
    store.commit([ops.ReleaseShards("c", "m")])
    assert store.commit([ops.LeaseShard("c", 0, "n", TTL_MS)]) == [ops.Leased(0)]


def test_divided_otherwise_is_a_conflict(store: Store) -> None:
    register(store, 2)
    with pytest.raises(Conflict, match="has 2 shards, not 3"):
        register(store, 3)
    with pytest.raises(Conflict, match="is divided by 'journal', not by 'key'"):
        register(store, 2, partition="key")


def test_paused_reset_and_deleted(store: Store) -> None:
    register(store)
    consumer = store.consumer("c")
    consumer.pause()
    assert consumer.info().paused
    consumer.resume()
    assert not consumer.info().paused
    consumer.reset({"b": 7})
    assert [(shard.generation, shard.resets) for shard in consumer.info().shards] == [(0, {}), (1, {"b": 7})]
    with pytest.raises(NotFound, match="does not read the journal 'x'"):
        consumer.reset({"x": 0})
    store.commit([ops.LeaseShard("c", 0, "m", TTL_MS)])
    with pytest.raises(Conflict, match="the member 'm' holds shard 0"):
        consumer.delete()
    consumer.delete(force=True)
    for call in (consumer.info, consumer.pause, consumer.resume, consumer.delete, consumer.lag):
        with pytest.raises(NotFound, match="there is no consumer 'c'"):
            call()
    assert store.consumers() == []


def test_lag(store: Store) -> None:
    store.journal("a").append_many([b"%d" % number for number in range(5)])
    store.journal("a").trim(2)
    register(store, 2, ("a", "b", "new"))
    consumer = store.consumer("c")
    assert consumer.lag() == {0: {"a": 3, "new": 0}, 1: {"b": 0}}
    store.journal("b").append(b"x")
    store.commit([ops.ReportShard("c", 0, 0, processed={"a": 4})])
    assert consumer.lag() == {0: {"a": 1, "new": 0}, 1: {"b": 1}}
    consumer.reset({"a": 3})
    assert consumer.lag() == {0: {"a": 2, "new": 0}, 1: {"b": 1}}


def test_recreated_journal_is_recognised_by_its_identity(url: str) -> None:
    """Offsets say nothing of another journal of that name; also for the next owner, from what was written down."""
    with detent.open(url) as store:
        store.journal("a").append_many([b"1", b"2"])
        register(store, 1, ("a",))
        number = store.reader.number("a")
        assert number is not None
        report = ops.ReportShard("c", 0, 0, "running", "", {"a": 2}, {"x": 7}, keep=True, numbers={"a": number})
        store.commit([report])
        assert store.consumer("c").info().shards[0].numbers == {"a": number}
        assert store.consumer("c").await_processed("a", 1) == {"x": 7}
        if url == "memory:":
            check_recreated(store)
            return
    with owned_anew(url) as store:
        check_recreated(store)


def check_recreated(store: Store) -> None:
    consumer = store.consumer("c")
    store.journal("a").delete()
    assert consumer.lag() == {0: {"a": 0}}
    with pytest.raises(NotFound, match="reset the consumer"):
        consumer.await_processed("a", 1, "1ms")
    store.journal("a").append_many([b"new", b"new", b"new"])
    assert consumer.lag() == {0: {"a": 3}}, "it has read none of them"
    with pytest.raises(NotFound, match="reset the consumer"):
        consumer.await_processed("a", 0, "1ms")
    consumer.reset({"a": 1})
    assert consumer.info().shards[0].numbers == {}
    assert consumer.lag() == {0: {"a": 2}}
    store.commit([ops.ReportShard("c", 0, 1, processed={"a": 3}, numbers={"a": store.reader.number("a") or 0})])
    assert consumer.await_processed("a", 2, "1ms") == {"x": 7}
    for numbers in ({"a": 0}, {"a": 1 << 32}):
        with pytest.raises(Invalid):
            store.commit([ops.ReportShard("c", 0, 1, numbers=numbers)])
    with pytest.raises(NotFound):
        store.commit([ops.ReportShard("c", 0, 1, numbers={"strange": 1})])


def test_lag_of_shards_by_key(store: Store) -> None:
    store.journal("a").append_many([b"%d" % number for number in range(5)])
    register(store, 2, ("a",), partition="key")
    store.commit([ops.ReportShard("c", 1, 0, processed={"a": 5})])
    assert store.consumer("c").lag() == {0: {"a": 5}, 1: {"a": 0}}


def test_waiting_for_a_message_to_be_processed(store: Store) -> None:
    register(store)
    consumer = store.consumer("c")

    def work() -> None:
        for done in range(1, 4):
            time.sleep(0.05)
            report = ops.ReportShard("c", 0, 0, processed={"a": done}, published={"x": 10 + done, "y": 1})
            store.commit([report])

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert consumer.await_processed("a", 2, "30s") == {"x": 13, "y": 1}
        assert consumer.await_processed("a", 0) == {"x": 13, "y": 1}
    finally:
        worker.join()
    with pytest.raises(Unavailable, match=r"offset 3 of 'a' in time: shard 0 has processed what is below offset 3"):
        consumer.await_processed("a", 3, "20ms")
    with pytest.raises(Unavailable, match=r"shard 1 has not reported anything; no member holds it"):
        consumer.await_processed("b", 0, "1ms")
    with pytest.raises(NotFound, match="does not read the journal 'x'"):
        consumer.await_processed("x", 0)


def test_waiting_for_all_shards_of_a_consumer_by_key(store: Store) -> None:
    register(store, 2, ("a",), partition="key")
    consumer = store.consumer("c")
    store.commit([ops.ReportShard("c", 0, 0, processed={"a": 9}, published={"x": 5, "y": 2})])
    store.commit([ops.ReportShard("c", 1, 0, "failed", "no way", {"a": 3}, {"x": 6})])
    assert consumer.await_processed("a", 2) == {"x": 6, "y": 2}
    consumer.pause()
    message = "shard 1 has processed what is below offset 3; its last error: no way; no member holds it; the consumer"
    with pytest.raises(Unavailable, match=message):
        consumer.await_processed("a", 3, "1ms")


def test_a_commit_says_how_far_it_is(store: Store) -> None:
    register(store)
    put(store, processed={"a": 5})
    assert store.consumer("c").await_processed("a", 4, "1s") == {}


def test_progress_that_is_kept_is_known_when_nobody_runs(url: str) -> None:
    if url == "memory:":
        pytest.skip("a memory store ends with its last user")
    with detent.open(url) as store:
        store.journal("a").append_many([b"1", b"2", b"3"])
        store.journal("b").append_many([b"1", b"2"])
        register(store)
        store.commit(
            [
                ops.ReportShard("c", 0, 0, "running", "", {"a": 3}, {"x": 7}, keep=True),
                ops.ReportShard("c", 1, 0, "running", "", {"b": 1}, {"x": 8}, keep=True),
            ]
        )
        store.commit([ops.ReportShard("c", 1, 0, "running", "", {"b": 1})])
    with owned_anew(url) as store:
        consumer = store.consumer("c")
        assert [shard.status for shard in consumer.info().shards] == ["", ""], "somebody else is the owner"
        assert consumer.await_processed("a", 2, "1ms") == {"x": 7}
        assert consumer.await_processed("b", 0, "1ms") == {"x": 8}
        assert consumer.lag() == {0: {"a": 0}, 1: {"b": 1}}
        with pytest.raises(Unavailable, match="shard 1 has processed what is below offset 1; no member holds it"):
            consumer.await_processed("b", 1, "1ms")
        consumer.reset({"a": 1})
        assert consumer.lag() == {0: {"a": 2}, 1: {"b": 1}}
        with pytest.raises(Unavailable, match="shard 0 has not reported anything"):
            consumer.await_processed("a", 0, "1ms")


@contextlib.contextmanager
def owned_anew(url: str) -> Iterator[Store]:
    """The same store, with an owner that has just started."""
    with contextlib.ExitStack() as stack:
        owner = OWNERS.get(url)
        if url in SERVERS:
            SERVERS[url].stop()
            assert owner is not None
            url = stack.enter_context(serving(owner.url)).url
        elif owner is not None:
            owner.close()
        yield stack.enter_context(detent.open(url))


@pytest.mark.parametrize("name", ["", "a\nb", " a", "x" * 501, None, "\ud800"])
def test_bad_names_are_refused_before_anything_is_sent(store: Store, name: Any) -> None:
    with pytest.raises(Invalid, match="is no consumer name"):
        store.consumer(name)


def test_bad_arguments(store: Store) -> None:
    register(store)
    consumer = store.consumer("c")
    for offsets in ({}, {"a": -1}, {"a": "0"}, {"a b": 0}, ["a"], None):
        with pytest.raises(Invalid):
            consumer.reset(offsets)  # type: ignore[arg-type]
    for shard in (-1, "0", None):
        with pytest.raises(Invalid):
            consumer.state(shard)  # type: ignore[arg-type]
    for key in ("", 7, "\ud800"):
        with pytest.raises(Invalid):
            consumer.state(0).get(key)  # type: ignore[arg-type]
    for arguments in (("a b", 0), ("a", -1), ("a", "0"), ("a", 0, -5)):
        with pytest.raises(Invalid):
            consumer.await_processed(*arguments)  # type: ignore[arg-type]


def test_kept_by_the_next_owner(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        register(store)
        fence = put(store, k=b"1")
        store.commit([ops.LeaseShard("c", 0, "m", TTL_MS)])
    with detent.open(url) as store:
        assert store.commit([ops.FindShard("c", 0)])[0].checkpoint == b"cp"
        assert store.consumer("c").state(0).get("k") == 1
        with pytest.raises(Conflict):
            store.commit([ops.LeaseShard("c", 0, "n", TTL_MS)])
        store.commit([ops.CommitShard("c", 0, fence, b"on")])


def test_the_same_for_asyncio(url: str) -> None:
    async def use(store: AsyncStore) -> None:
        await store.commit([ops.RegisterConsumer("c", 2, ["a", "b"])])
        assert [info.name for info in await store.consumers()] == ["c"]
        consumer = store.consumer("c")
        await consumer.pause()
        assert (await consumer.info()).paused
        await consumer.resume()
        assert not (await consumer.info()).paused
        await consumer.reset({"a": 3})
        assert (await consumer.info()).shards[0].resets == {"a": 3}
        fence = (await store.commit([ops.OpenShard("c", 0)]))[0].fence
        keys = [f"k{number:04}" for number in range(ops.PAGE_MAX + 1)]
        await store.commit([ops.CommitShard("c", 0, fence, b"", dict.fromkeys(keys, b"[1]"), [], {"a": 4})])
        state = consumer.state(0)
        assert (await state.get(keys[0]), await state.get("none", 7)) == ([1], 7)
        assert [key async for key, _ in state.items()] == keys
        await store.journal("a").append(b"x")
        assert await consumer.lag() == {0: {"a": 0}, 1: {"b": 0}}
        waiting = asyncio.create_task(consumer.await_processed("b", 0, "30s"))
        await asyncio.sleep(0.02)
        await store.commit([ops.ReportShard("c", 1, 0, processed={"b": 1}, published={"x": 2})])
        assert await waiting == {"x": 2}
        with pytest.raises(Unavailable, match="has not processed offset 1 of 'b' in time"):
            await consumer.await_processed("b", 1, "1ms")
        with pytest.raises(Invalid):
            store.consumer("")
        await consumer.delete()
        with pytest.raises(NotFound):
            await consumer.info()
        assert await store.consumers() == []

    async def run() -> None:
        async with detent.open_async(url) as store:
            await use(store)

    asyncio.run(run())


def test_more_than_one_page_for_asyncio() -> None:
    names = [f"c{number:04}" for number in range(ops.PAGE_MAX + 1)]

    async def run() -> None:
        async with detent.open_async("memory:") as store:
            async with store.transaction() as transaction:
                for name in names:
                    transaction.add(ops.RegisterConsumer(name, 1, []))
            assert [info.name for info in await store.consumers()] == names

    asyncio.run(run())
