"""What every ledger promises, whatever is below it: on memory, file, a client of the owner, a server, s3."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from detent import AlreadyEntered, AsyncStore, Entered, Fenced, Invalid, LedgerInfo, LimitExceeded, NotFound, Store
from detent.ledger import operations as ops


def enter(store: Store, batch: int, name: str = "l", **options: Any) -> Any:
    with store.transaction() as transaction:
        at = transaction.enter_ledger(name, batch, **options)
    return transaction.results[at]


def table(*bodies: str) -> Any:
    return pa.table({"body": pa.array([body.encode() for body in bodies], pa.binary())})


def bodies(store: Store, journal: str = "j") -> list[str]:
    return [message.body.decode() for message in store.journal(journal).read()]


def test_a_batch_is_entered_with_the_fragments_that_it_adopts(store: Store) -> None:
    def commit(body: str) -> list[Any]:
        ref = store.journal("j").write_fragment(table(body))
        with store.transaction() as transaction:
            transaction.adopt("j", [ref])
            transaction.enter_ledger("to j", 0, query="q", run="r")
        return transaction.results

    assert commit("first")[1] == Entered("to j", -1)
    with pytest.raises(AlreadyEntered) as caught:
        commit("replayed")
    assert (caught.value.name, caught.value.batch) == ("to j", 0)
    assert bodies(store) == ["first"]
    assert store.ledger("to j").entries == 1


def test_the_rule(store: Store) -> None:
    assert enter(store, 0, query="q", run="a") == Entered("l", -1)
    assert enter(store, 4, query="q", run="b") == Entered("l", 0)
    with pytest.raises(AlreadyEntered, match="batch 4 of the ledger 'l'") as caught:
        enter(store, 4, query="q", run="c")
    assert (caught.value.name, caught.value.batch) == ("l", 4)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.name, again.batch, str(again)) == ("l", 4, str(caught.value))
    with pytest.raises(Fenced, match="run 'a' of the ledger 'l' was replaced"):
        enter(store, 5, query="q", run="a")
    with pytest.raises(Fenced, match="detent ledger reset l"):
        enter(store, 5, query="other", run="c")
    info = store.ledger("l")
    assert (info.query, info.batch, info.run, info.replaced, info.entries) == ("q", 4, "b", ("a",), 2)


def test_what_is_known_of_a_ledger(store: Store) -> None:
    enter(store, 7, query="q", run="r")
    info = store.ledger("l")
    now = datetime.now(UTC)
    assert now - timedelta(hours=1) < info.created <= info.updated < now + timedelta(hours=1)
    assert info == LedgerInfo("l", "q", 7, "r", (), 1, 0, info.created, info.updated)
    with pytest.raises(NotFound, match="there is no ledger 'other'"):
        store.ledger("other")


def test_listed_by_name(store: Store) -> None:
    names = ["a", "a b", "a/x", "b", "世界"]
    for name in reversed(names):
        enter(store, 0, name)
        store.pin(name, {})
    assert [info.name for info in store.ledgers()] == names
    assert [info.name for info in store.ledgers("a")] == names[:3]
    assert [info.name for info in store.pins()] == names
    assert [info.name for info in store.pins("a/")] == ["a/x"]
    assert store.ledgers("c") == []


def test_more_than_one_page(store: Store) -> None:
    names = [f"l{number:04}" for number in range(ops.PAGE_MAX + 1)]
    with store.transaction() as transaction:
        for name in names:
            transaction.enter_ledger(name, 0)
            transaction.add(ops.PinOffsets(name, {"j": 1}))
    assert [info.name for info in store.ledgers()] == names
    assert [info.name for info in store.pins()] == names


def test_reset_and_deleted(store: Store) -> None:
    enter(store, 7, query="old", run="a")
    store.reset_ledger("l")
    info = store.ledger("l")
    assert (info.query, info.batch, info.run, info.entries, info.generation) == ("", -1, "", 0, 1)
    with pytest.raises(Fenced):
        enter(store, 8, query="old", run="a")
    assert enter(store, 0, query="new", run="b") == Entered("l", -1)
    store.delete_ledger("l")
    for call in (store.reset_ledger, store.delete_ledger, store.ledger):
        with pytest.raises(NotFound):
            call("l")
    assert store.ledgers() == []


def test_pins(store: Store) -> None:
    assert store.pin("reader", {"b": 5, "a/x": 0}) == {"a/x": 0, "b": 5}
    assert store.pin("reader", {"b": 6}) == {"a/x": 0, "b": 5}
    (info,) = store.pins()
    assert (info.name, info.offsets) == ("reader", {"a/x": 0, "b": 5})
    assert datetime.now(UTC) - timedelta(hours=1) < info.created
    store.unpin("reader")
    assert store.pins() == []
    with pytest.raises(NotFound, match="there is no pin 'reader'"):
        store.unpin("reader")
    assert store.pin("reader", {}) == {}


@pytest.mark.parametrize("name", ["", "a\nb", " a", "x" * 501, None, "\ud800"])
def test_bad_names_are_refused_before_anything_is_sent(store: Store, name: Any) -> None:
    for call in (store.ledger, store.reset_ledger, store.delete_ledger, store.unpin, lambda name: store.pin(name, {})):
        with pytest.raises(Invalid):
            call(name)
    with pytest.raises(Invalid), store.transaction() as transaction:
        transaction.append("j", b"with it")
        transaction.enter_ledger(name, 0)
    assert store.journals() == []


def test_bad_batches_queries_runs_and_offsets(store: Store) -> None:
    for options in ({"batch": -1}, {"batch": 1 << 63}, {"batch": "0"}, {"query": "\0"}, {"run": "x" * 129}):
        with pytest.raises(Invalid):
            enter(store, **{"batch": 0, **options})  # type: ignore[arg-type]
    for offsets in ({"j": -1}, {"j": "0"}, {"a b": 0}, ["j"], None):
        with pytest.raises(Invalid):
            store.pin("p", offsets)  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded):
        store.pin("p", {f"j{number}": 0 for number in range(ops.PIN_JOURNALS_MAX + 1)})
    assert (store.ledgers(), store.pins()) == ([], [])


def test_kept_by_the_next_owner(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        enter(store, 3, query="q", run="a")
        store.pin("p", {"j": 1})
    with detent.open(url) as store:
        with pytest.raises(AlreadyEntered):
            enter(store, 3, query="q", run="b")
        assert store.pin("p", {"j": 2}) == {"j": 1}


def test_the_same_for_asyncio(url: str) -> None:
    async def use(store: AsyncStore) -> None:
        async with store.transaction() as transaction:
            at = transaction.enter_ledger("l", 2, query="q", run="a")
        assert transaction.results[at] == Entered("l", -1)
        with pytest.raises(AlreadyEntered) as caught:
            async with store.transaction() as transaction:
                transaction.append("j", b"again")
                transaction.enter_ledger("l", 2, query="q", run="a")
        assert (caught.value.name, caught.value.batch) == ("l", 2)
        assert (await store.ledger("l")).batch == 2
        assert [info.name for info in await store.ledgers()] == ["l"]
        assert await store.journals() == []
        await store.reset_ledger("l")
        assert (await store.ledger("l")).generation == 1
        await store.delete_ledger("l")
        with pytest.raises(NotFound):
            await store.ledger("l")
        assert await store.pin("p", {"j": 1}) == await store.pin("p", {"j": 2}) == {"j": 1}
        assert [info.offsets for info in await store.pins()] == [{"j": 1}]
        await store.unpin("p")
        assert await store.pins() == []

    async def run() -> None:
        async with detent.open_async(url) as store:
            await use(store)

    asyncio.run(run())


def test_more_than_one_page_for_asyncio() -> None:
    names = [f"l{number:04}" for number in range(ops.PAGE_MAX + 1)]

    async def run() -> None:
        async with detent.open_async("memory:") as store:
            async with store.transaction() as transaction:
                for name in names:
                    transaction.enter_ledger(name, 0)
                    transaction.add(ops.PinOffsets(name, {"j": 1}))
            assert [info.name for info in await store.ledgers()] == names
            assert [info.name for info in await store.pins()] == names

    asyncio.run(run())
