"""`detent ledger` as a user runs it: real processes, real pipes, real exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from acceptance.test_cli import environment, ok, refused
from detent import AlreadyEntered, NotFound
from remoteserver import serving

COMMANDS = ["ls", "show", "reset", "delete", "pins", "unpin"]


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """The store, owned by the test: each command is a client of it."""
    with detent.open(url) as opened:
        for batch, run in enumerate(["r1", "r1", "r2"]):
            with opened.transaction() as transaction:
                transaction.enter_ledger("orders to table", batch, query="q1", run=run)
        yield opened


def document(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str) -> None:
    text = ok("ledger", command, "--help").decode()
    assert f"detent ledger {command} file:./data" in text
    assert "--json" in text
    assert "--force" in text


def test_the_group_teaches() -> None:
    assert "detent ledger show orders-to-table" in ok("ledger", "--help").decode()
    assert "ledger" in ok("--help").decode()


def test_listed_and_shown(url: str, store: detent.Store) -> None:
    info = store.ledger("orders to table")
    (row,) = document("ledger", "ls", url)
    assert row == document("ledger", "show", url, "orders to table") == {
        "name": "orders to table", "query": "q1", "batch": 2, "entries": 3, "run": "r2", "replaced": ["r1"],
        "generation": 0, "created_ms": round(info.created.timestamp() * 1000),
        "updated_ms": round(info.updated.timestamp() * 1000),
    }  # fmt: skip
    assert document("ledger", "ls", url, "--prefix", "other") == []
    lines = ok("ledger", "ls", url).decode().splitlines()
    assert lines[0].split() == ["NAME", "BATCH", "QUERY", "RUN", "UPDATED"]
    assert lines[1].startswith("orders to table  2      q1     r2")
    shown = ok("ledger", "show", url, "orders to table").decode()
    for line in ("highest batch: 2", "batches:       3", "replaced runs: r1"):
        assert line in shown


def test_reset_asks_and_lets_another_query_in(url: str, store: detent.Store) -> None:
    text = refused("ledger", "reset", url, "orders to table", code=2)
    assert "this resets ledger orders to table with 3 batches of query q1; say --yes" in text
    would = ok("ledger", "reset", url, "orders to table", "--dry-run").decode()
    assert would == "would reset ledger orders to table with 3 batches of query q1\n"
    assert document("ledger", "reset", url, "orders to table", "--dry-run")["reset"] is False
    assert store.ledger("orders to table").batch == 2
    done = ok("ledger", "reset", url, "orders to table", "--yes").decode()
    assert done == "reset ledger orders to table with 3 batches of query q1\n"
    assert "highest batch: -" in ok("ledger", "show", url, "orders to table").decode()
    assert document("ledger", "show", url, "orders to table")["batch"] is None
    with store.transaction() as transaction:
        transaction.enter_ledger("orders to table", 0, query="q2")
    assert document("ledger", "show", url, "orders to table")["generation"] == 1


def test_deleted(url: str, store: detent.Store) -> None:
    assert "say --yes" in refused("ledger", "delete", url, "orders to table", code=2)
    assert document("ledger", "delete", url, "orders to table", "--dry-run")["deleted"] is False
    assert document("ledger", "delete", url, "orders to table", "--yes")["deleted"] is True
    with pytest.raises(NotFound):
        store.ledger("orders to table")
    assert "there is no ledger 'orders to table'" in refused(
        "ledger", "delete", url, "orders to table", "--yes", code=1
    )


def test_pins(url: str, store: detent.Store) -> None:
    store.pin("few", {"a": 1})
    store.pin("many", {f"j{number}": number for number in range(5)})
    many = document("ledger", "pins", url)[1]
    assert (many["name"], many["offsets"]) == ("many", {f"j{number}": number for number in range(5)})
    lines = ok("ledger", "pins", url).decode().splitlines()
    assert lines[1].split()[:3] == ["few", "1", "a=1"]
    assert "j0=0 j1=1 j2=2 and 2 more" in lines[2]
    assert [pin["name"] for pin in document("ledger", "pins", url, "--prefix", "m")] == ["many"]
    assert "say --yes" in refused("ledger", "unpin", url, "few", code=2)
    assert ok("ledger", "unpin", url, "few", "--yes") == b"forgot the pin few\n"
    assert document("ledger", "unpin", url, "many", "--yes") == {"name": "many", "unpinned": True}
    assert store.pins() == []
    assert "there is no pin 'few'" in refused("ledger", "unpin", url, "few", "--yes", code=1)


def test_the_way_out_that_a_refusal_names_is_one(url: str, store: detent.Store) -> None:
    transaction = store.transaction()
    transaction.enter_ledger("orders to table", 0, query="q2")
    with pytest.raises(detent.Fenced) as caught:
        transaction.commit()
    assert "`detent ledger reset 'orders to table'`" in str(caught.value)
    ok("ledger", "reset", "orders to table", "--yes", env=environment(DETENT_URL=url))
    with store.transaction() as transaction:
        transaction.enter_ledger("orders to table", 0, query="q2")
    with pytest.raises(AlreadyEntered), store.transaction() as transaction:
        transaction.enter_ledger("orders to table", 0, query="q2")


def test_without_an_owner_and_without_a_store(url: str) -> None:
    assert "there is no store" in refused("ledger", "ls", url, code=1)
    with detent.open(url) as store, store.transaction() as transaction:
        transaction.enter_ledger("l", 0)
    assert [row["name"] for row in document("ledger", "ls", url)] == ["l"]
    assert "1 ledger," in ok("store", "verify", url).decode()
    assert document("store", "verify", url)["counts"]["ledgers"] == 1


def test_names_that_move_a_cursor_are_refused(url: str, store: detent.Store) -> None:
    assert "is no ledger name" in refused("ledger", "show", url, "a\x1b[2J", code=1)
    assert "the argument NAME is missing" in refused("ledger", "show", url, code=2)


def test_behind_a_server(tmp_path: Path) -> None:
    with serving(f"file:{tmp_path / 'store'}", guarded=True) as server:
        assert server.store is not None
        with server.store.transaction() as transaction:
            transaction.enter_ledger("l", 4)
        may = environment(DETENT_URL=server.url, DETENT_TOKEN="all")
        assert json.loads(ok("ledger", "show", "l", "--json", env=may))["batch"] == 4
        may_not = environment(DETENT_URL=server.url, DETENT_TOKEN="orders")
        text = refused("ledger", "ls", code=1, env=may_not)
        assert "look at one with `detent ledger show NAME`" in text
        assert "may not read on the ledger 'l'" in refused("ledger", "show", "l", code=1, env=may_not)
        assert "may not read" in refused("ledger", "delete", "l", "--yes", code=1, env=may_not)
        assert server.store.ledger("l").batch == 4
