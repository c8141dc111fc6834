"""The examples of consumers, run as their texts say: by Python, by `detent consume`, again, and after a `kill -9`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import detent
import zygote
from acceptance.test_cli import PATIENCE_S, environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "consumers"
JOINED = ("shop/customers", "shop/orders", "shop/enriched")
BOOKS = ("bank/deposits", "bank/transfers", "bank/audit", "bank/refused")


class Folder:
    """Where a person tries the examples: the store is ./data, and everything else lies beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"file:{path / 'data'}"

    def run(self, *command: str, code: int = 0, **env: str) -> str:
        """What a command prints that ends with this code."""
        done = zygote.run(
            [sys.executable, *command], timeout=PATIENCE_S, cwd=str(self.path), env=environment(**env), text=True
        )
        assert done.returncode == code, (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return str(done.stdout)

    def example(self, name: str, *, code: int = 0, **env: str) -> str:
        return self.run(str(EXAMPLES / name), code=code, **env)

    def consume(self, name: str) -> int:
        """Run it with `detent consume`; how many messages that were."""
        said = self.run("-m", "detent.cli", "consume", f"{EXAMPLES / name}:app", "--once", "--json")
        return int(json.loads(said)["messages"])

    def append(self, journal: str, record: dict[str, Any] | bytes) -> None:
        with detent.open(self.url) as store:
            store.journal(journal).append(record if isinstance(record, bytes) else json.dumps(record).encode())

    def contents(self, *journals: str) -> dict[str, list[bytes]]:
        """What readers see."""
        with detent.open(self.url) as store:
            return {name: [message.body for message in store.journal(name).read()] for name in journals}

    def records(self, journal: str) -> list[Any]:
        return [json.loads(body) for body in self.contents(journal)[journal]]

    def state(self, name: str) -> dict[str, Any]:
        with detent.open(self.url) as store:
            return dict(store.consumer(name).state().items())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# -- word_count.py ----------------------------------------------------------------------------------------------------


def test_words_are_counted_once(folder: Folder) -> None:
    said = folder.example("word_count.py")
    assert said.splitlines()[0] == "4 lines have 34 words, 26 different ones"
    assert said.splitlines()[-1] == "the journal word-counts says the same"
    before = folder.contents("lines", "word-counts"), folder.state("word-count")
    assert folder.example("word_count.py") == said
    assert folder.consume("word_count.py") == 0
    assert (folder.contents("lines", "word-counts"), folder.state("word-count")) == before
    folder.append("lines", b"to be")
    assert folder.consume("word_count.py") == 1
    assert folder.records("word-counts")[-2:] == [{"word": "to", "count": 5}, {"word": "be", "count": 3}]
    assert folder.state("word-count").keys() == before[1].keys(), "what finalize takes out again is never written"


# -- enrichment_join.py -----------------------------------------------------------------------------------------------


def test_orders_wait_for_their_customer(folder: Folder) -> None:
    said = folder.example("enrichment_join.py")
    assert said.splitlines() == ["20 of 30 orders are enriched, each once: True", "the others wait for cyd"]
    before = folder.contents(*JOINED)
    assert folder.example("enrichment_join.py") == said
    assert folder.consume("enrichment_join.py") == 0
    assert folder.contents(*JOINED) == before
    folder.append("shop/customers", {"id": "cyd", "name": "Cyd", "city": "Caen"})
    assert folder.consume("enrichment_join.py") == 1
    late = folder.records("shop/enriched")[20:]
    assert [order["order"] for order in late] == list(range(2, 30, 3)), "in the order in which they came"
    assert {order["city"] for order in late} == {"Caen"}
    folder.append("shop/orders", {"order": 30, "customer": "cyd", "cents": 1})
    assert folder.consume("enrichment_join.py") == 1
    assert folder.records("shop/enriched")[30:] == [
        {"order": 30, "customer": "cyd", "cents": 1, "name": "Cyd", "city": "Caen"}
    ]


@pytest.mark.parametrize("point", ["consumer.after_commit", "consumer.after_append", "state.recorded.after_handoff"])
def test_the_join_is_killed_and_each_order_is_enriched_once(folder: Folder, point: str) -> None:
    folder.example("enrichment_join.py", code=-signal.SIGKILL, DETENT_CRASH_AT=point)
    said = folder.example("enrichment_join.py")
    assert said.splitlines()[0] == "20 of 30 orders are enriched, each once: True"
    assert Counter(order["order"] for order in folder.records("shop/enriched")).most_common(1)[0][1] == 1


# -- bank_transfers.py ------------------------------------------------------------------------------------------------

BALANCED = "the balances add up to the deposits, and the audit journal agrees"


def test_money_is_conserved(folder: Folder) -> None:
    said = folder.example("bank_transfers.py")
    assert said.splitlines()[-1] == BALANCED
    assert said.splitlines()[0].startswith("40 deposits of together ")
    before = folder.contents(*BOOKS)
    assert len(before["bank/audit"]) + len(before["bank/refused"]) == 120
    assert len(before["bank/audit"]) > 40, "some transfers went well"
    assert before["bank/refused"], "and some did not"
    assert folder.example("bank_transfers.py") == said
    assert folder.consume("bank_transfers.py") == 0
    assert folder.contents(*BOOKS) == before
    folder.append("bank/transfers", {"id": "big", "from": "ada", "to": "bob", "cents": 10**9})
    folder.append("bank/transfers", {"id": "wrong", "from": "ada", "to": "bob", "cents": -1})
    folder.append("bank/deposits", {"id": "more", "account": "eve", "cents": 7})
    assert folder.consume("bank_transfers.py") == 3
    assert [order["id"] for order in folder.records("bank/refused")[-2:]] == ["big", "wrong"]
    assert folder.example("bank_transfers.py").splitlines()[-1] == BALANCED


@pytest.mark.parametrize(
    "point", ["consumer.after_commit:2", "consumer.after_append:2", "consumer.after_ack:2", "state.sql.before_commit:2"]
)
def test_the_bank_is_killed_and_money_is_conserved(folder: Folder, point: str) -> None:
    folder.example("bank_transfers.py", code=-signal.SIGKILL, DETENT_CRASH_AT=point)
    said = folder.example("bank_transfers.py")
    assert said.splitlines()[-1] == BALANCED
    assert folder.example("bank_transfers.py") == said, "and nothing is left to do"


def test_the_bank_is_killed_again_and_again(folder: Folder) -> None:
    """Each time there is something new to book, so that it comes to the point at which it dies."""
    points = ("consumer.after_commit", "consumer.after_append", "consumer.after_recover", "consumer.before_ack")
    for number, point in enumerate(points):
        folder.append("bank/deposits", {"id": f"more{number}", "account": "eve", "cents": 1})
        folder.example("bank_transfers.py", code=-signal.SIGKILL, DETENT_CRASH_AT=point)
    assert folder.example("bank_transfers.py").splitlines()[-1] == BALANCED


def test_the_checker_finds_what_is_wrong(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that cannot fail is none."""
    folder.example("bank_transfers.py")
    specification = importlib.util.spec_from_file_location("bank_transfers", EXAMPLES / "bank_transfers.py")
    assert specification is not None
    assert specification.loader is not None
    bank = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(bank)
    file = folder.path / "bank.db"
    monkeypatch.setenv("BANK_DATABASE", f"sqlite:///{file}")

    def damage(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(file)) as database, database:
            database.execute(statement)

    with detent.open(folder.url) as store:
        assert bank.check(store) == []
        damage("UPDATE accounts SET cents = cents + 1 WHERE name = 'ada'")
        assert "the balances do not add up to the deposits" in bank.check(store)
        damage("UPDATE accounts SET cents = cents - 1 WHERE name = 'bob'")
        assert bank.check(store) == ["the audit journal tells of other balances than the database"]
        damage("UPDATE accounts SET cents = cents - 1 WHERE name = 'ada'")
        damage("UPDATE accounts SET cents = cents + 1 WHERE name = 'bob'")
        assert bank.check(store) == []
        damage("UPDATE accounts SET cents = CASE name WHEN 'ada' THEN -1 ELSE cents END")
        assert "an account is overdrawn" in bank.check(store)
        store.journal("bank/refused").append(b'{"id": "d0"}')
        assert "an order was answered twice, or not at all" in bank.check(store)
