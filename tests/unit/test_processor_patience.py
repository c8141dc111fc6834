"""A run that ends when nothing is left starts processors over that failed, as one that does not end, within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import detent
from detent.errors import Busy, Conflict, Corrupt, Invalid, Unavailable
from detent.processor import Graph, settling
from detent.runtime.backoff import Backoff

PASSING = [Unavailable("away"), Busy("full"), ConnectionError("refused"), TimeoutError("late"), RuntimeError("503")]


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as opened:
        yield opened


@pytest.fixture
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.processor.task.RETRY", Backoff(0.001, 30.0))


@pytest.fixture
def long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that fails is not called a second time before the test ends."""
    monkeypatch.setattr("detent.processor.task.RETRY", Backoff(60.0, 60.0))


def graph_of(function: Callable[[Any], Any], **options: Any) -> Graph:
    graph = Graph("g")
    graph.source("orders")
    graph.stream(input="orders", output="done", name="work", **options)(function)
    return graph


class Flaky:
    """A function that fails so often, at each message, before it answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times = error, times
        self.calls: list[Any] = []

    def __call__(self, order: Any) -> Any:
        self.calls.append(order)
        if self.calls.count(order) <= self.times:
            raise self.error
        return order


def done(store: detent.Store) -> list[Any]:
    return [message.json() for message in store.journal("done").read()] if "done" in store.journals() else []


@pytest.mark.usefixtures("short_rests")
@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_run_goes_on_behind_a_failure_that_passes(store: detent.Store, error: Exception) -> None:
    store.journal("orders").append_many([b"1", b"2", b"3", b"4", b"5"])
    flaky = Flaky(error, 2)
    graph_of(flaky).run(store, once=True)
    assert done(store) == [1, 2, 3, 4, 5], "failures count anew behind each step"
    assert len(flaky.calls) == 15


@pytest.mark.usefixtures("short_rests")
@pytest.mark.parametrize(("error", "limit"), [(PASSING[0], "AWAY_TRIES"), (PASSING[-1], "FUNCTION_TRIES")])
def test_run_ends_when_a_processor_fails_again_and_again(
    store: detent.Store, error: Exception, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, limit, 3)
    store.journal("orders").append(b"1")
    flaky = Flaky(error, 1_000)
    with pytest.raises(type(error)):
        graph_of(flaky).run(store, once=True)
    assert len(flaky.calls) >= 3
    assert done(store) == []


@pytest.mark.usefixtures("long_rests")
@pytest.mark.parametrize("error", [Invalid("wrong"), Conflict("other"), Corrupt("torn")], ids=str)
def test_run_ends_at_the_first_failure_that_does_not_pass(store: detent.Store, error: Exception) -> None:
    store.journal("orders").append(b"1")
    flaky = Flaky(error, 1)
    with pytest.raises(type(error)):
        graph_of(flaky).run(store, once=True)
    assert (flaky.calls, done(store)) == ([1], [])


@pytest.mark.usefixtures("long_rests")
def test_run_that_drops_what_failed_ends_at_once(store: detent.Store) -> None:
    store.journal("orders").append_many([b"1", b"2"])
    with pytest.raises(Unavailable):
        graph_of(Flaky(PASSING[0], 1), delivery="at-most-once").run(store, once=True)
    assert 1 not in done(store)


@pytest.mark.usefixtures("long_rests")
def test_settle_raises_the_first_failure(store: detent.Store) -> None:
    store.journal("orders").append(b"1")
    with graph_of(Flaky(PASSING[0], 1)).open(store) as live:
        live.start()
        with pytest.raises(Unavailable):
            live.settle()
