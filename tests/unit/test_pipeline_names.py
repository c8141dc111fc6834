"""A pipeline's streams under other names, and on inputs that were made anew: refused before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import detent
from detent.cli.ledger import ledger
from detent.errors import Denied, Fenced
from detent.spark import Pipeline, opened, queue, to_sql
from detent.spark.pipeline_prepare import prepare, settle


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.journal("orders").append(b"{}")
        owned.queue("mails").create()
        yield owned
    opened.close_all()


def pipeline(*streams: tuple[str, Any, Any], name: str = "shop") -> Pipeline:
    """A pipeline of streams: name, what it reads, what it writes."""
    made = Pipeline(name)
    for stream, read, write in streams:
        made.stream(read=read, write=write, name=stream)(lambda rows: rows)
    return made


def start(store: detent.Store, made: Pipeline, *migrate: str, write: bool = True) -> list[str]:
    """What `run` does before the first query, and the ledger rows of batches."""
    notes = [*prepare(store, made.streams), *settle(store, made.streams, made.streams, migrate)]
    for stream in made.streams if write else ():
        with store.transaction() as transaction:
            transaction.enter_ledger(stream.full_name, 5 + len(store.ledgers()), query=stream.full_name)
    return notes


@pytest.mark.parametrize("write", ["paid", queue("mails"), to_sql("sqlite:///x.db", "paid")])
def test_a_renamed_stream_is_refused_until_it_says_that_it_is_new(store: detent.Store, write: Any) -> None:
    start(store, pipeline(("paid", "orders", write)))
    renamed = pipeline(("payments", "orders", write))
    for _ in range(2):
        with pytest.raises(Fenced, match=r"shop/paid has done.*name=\"paid\".*--migrate payments.*detent ledger reset"):
            start(store, renamed)
    start(store, renamed, "payments")
    start(store, renamed)


def test_a_renamed_pipeline_is_refused(store: detent.Store) -> None:
    start(store, pipeline(("paid", "orders", "paid")))
    with pytest.raises(Fenced, match=r"Pipeline\(\"shop\"\)"):
        start(store, pipeline(("paid", "orders", "paid"), name="store"))


def test_a_stream_beside_another_one_is_not_a_renamed_one(store: detent.Store) -> None:
    paid = ("paid", "orders", "paid")
    start(store, pipeline(paid))
    start(store, pipeline(paid, ("also", "orders", "paid")))
    start(store, pipeline(("other", "orders", "elsewhere"), ("third", queue("mails"), "paid")))


def test_the_command_of_the_advice_lets_a_renamed_stream_start(store: detent.Store) -> None:
    start(store, pipeline(("paid", "orders", "paid")))
    renamed = pipeline(("payments", "orders", "paid"))
    with pytest.raises(Fenced) as caught:
        start(store, renamed)
    _say(str(caught.value).split("`")[-2])
    start(store, renamed)


@pytest.mark.parametrize("kind", ["journal", "queue"])
def test_an_input_that_was_made_anew_is_refused_until_the_ledger_is_reset(store: detent.Store, kind: str) -> None:
    made = pipeline(("paid", "orders" if kind == "journal" else queue("mails"), "paid"))
    start(store, made)
    if kind == "journal":
        store.journal("orders").delete()
    else:
        store.queue("mails").delete()
        store.queue("mails").create()
    for _ in range(2):
        with pytest.raises(Fenced, match=f"the {kind} .*was deleted and made anew") as caught:
            start(store, made)
    _say(str(caught.value).split("`")[-2])
    start(store, made)


@pytest.mark.parametrize("way", ["advice", "migrate", "delete"])
def test_stream_that_entered_no_batch_starts_on_an_input_made_anew(store: detent.Store, way: str) -> None:
    made = pipeline(("paid", "orders", "paid"))
    start(store, made, write=False)
    store.journal("orders").delete()
    with pytest.raises(Fenced, match=r"deleted and made anew.*--migrate paid") as caught:
        start(store, made, write=False)
    if way == "advice":
        _say(str(caught.value).split("`")[-2])
    elif way == "delete":
        _say(f"detent ledger delete {store.url} shop/paid --yes --json")
    start(store, made, *(["paid"] if way == "migrate" else []))
    start(store, made)


def test_migrate_does_not_skip_what_batches_have_read(store: detent.Store) -> None:
    made = pipeline(("paid", "orders", "paid"))
    start(store, made)
    store.journal("orders").delete()
    with pytest.raises(Fenced, match="deleted and made anew"):
        start(store, made, "paid")


def test_an_output_that_was_made_anew_is_written_on(store: detent.Store) -> None:
    made = pipeline(("paid", "orders", "paid"))
    start(store, made)
    store.journal("paid").delete()
    start(store, made)
    with pytest.raises(Fenced):
        start(store, pipeline(("payments", "orders", "paid")))


def test_a_stream_of_an_earlier_release_is_known_by_its_ledger(store: detent.Store) -> None:
    with store.transaction() as transaction:
        transaction.enter_ledger("shop/payments", 1, query="shop/payments")
    start(store, pipeline(("paid", "orders", "paid")))
    start(store, pipeline(("payments", "orders", "paid")))


def test_a_token_that_may_not_list_streams_runs_them(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: detent.Store) -> None:
        raise Denied("not you")

    monkeypatch.setattr(detent.Store, "declared_streams", deny)
    assert "is not checked: not you" in start(store, pipeline(("paid", "orders", "paid")))[-1]


def _say(command: str) -> None:
    """Run a command as it is printed."""
    program, group, *arguments = shlex.split(command)
    assert (program, group) == ("detent", "ledger")
    result = CliRunner().invoke(ledger, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
