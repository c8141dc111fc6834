"""Promises of processors that somebody who meant them ill has found broken, each with a test."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Conflict, Invalid, Store, Unavailable, crash
from detent.processor import FileSink, Graph, Message, Out, Step, moving, sink, source, stream
from detent.processor.runner import Runner, consumer_name
from detent.shard import operations as ops
from detent.stream.membership import has_died, new_member
from processes import eventually
from smallgraphs import graph_of, ran, values


class Died(BaseException):
    """A process that ends here, in the middle of what it does."""


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        yield opened


def dies(graph: Graph, name: str, store: Store, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor runs until it reaches a point, and is gone."""

    def point(reached: str) -> None:
        if reached == at:
            raise Died

    runner = Runner("g", graph.processor(name), {"": store}, errors=None, delivery="exactly-once")
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(crash, "point", point)
        runner.open()
        runner.run()
    runner.close()


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_delivery_is_known_under_another_name(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.journal("a").append(b"7")
    with FileSink(tmp_path / "lines") as lines:
        dies(graph_of(source("a"), sink("old", lines, input="a")), "old", store, "processor.before_commit", monkeypatch)
        assert (tmp_path / "lines").read_text() == "7\n"
        ran(graph_of(source("a"), sink("new", lines, input="a", formerly="old")), store)
    assert (tmp_path / "lines").read_text() == "7\n"


@pytest.mark.parametrize("inputs", [{"input": "b"}, {"any_of": ["b", "a"]}, {"join": ["a", "b"]}])
def test_other_inputs_have_other_keys(store: Store, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was tried with one input set must never be found with another."""
    seen: dict[str, set[str]] = {}

    def function(*messages: Any, step: Step) -> None:
        del messages
        seen.setdefault(step.key, set()).add(" ".join(f"{one.journal}#{one.offset}" for one in step.inputs))

    for journal in ("a", "b", "b"):
        store.journal(journal).append(b"1")
    before = graph_of(source("a"), source("b"), sink("f", function, input="a"))
    dies(before, "f", store, "processor.before_commit", monkeypatch)
    ran(graph_of(source("a"), source("b"), sink("f", function, **inputs)), store, migrate=["f"])
    assert all(len(sets) == 1 for sets in seen.values()), seen
    tried = set().union(*seen.values())
    assert ("b#1" in tried) == ("join" not in inputs)


def test_an_output_has_the_key_of_what_its_function_saw(store: Store) -> None:
    graph = graph_of(
        source("a"), stream("f", lambda values: len(values), input="a", output="x", types="t", batch=9, whole=True)
    )
    store.journal("a").append(b"1", key=b"other", headers={"type": "u"})
    store.journal("a").append(b"2", key=b"right", headers={"type": "t"})
    ran(graph, store)
    assert [(one.body, one.key) for one in store.journal("x").read()] == [(b"1", b"right")]


# -- how often a function is called -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_what_did_not_fail_is_not_tried_again(store: Store, delivery: Any) -> None:
    """Threads that are ahead of a step which is full have done their part."""
    calls: Counter[int] = Counter()

    def function(number: int) -> bytes:
        calls[number] += 1
        return b"%d" % number + b" " * (1 << 20)

    for number in range(24):
        store.journal("a").append(b"%d" % number)
    graph = graph_of(source("a"), stream("f", function, input="a", output="x", batch=24, parallel=4), delivery=delivery)
    ran(graph, store)
    assert set(calls.values()) == {1}
    assert values(store, "x") == list(range(24))


def test_at_most_once_is_once_for_those_beside_a_failure(store: Store) -> None:
    calls: Counter[int] = Counter()

    def function(number: int) -> int:
        calls[number] += 1
        return 6 // number

    for number in (3, 0, 2, 1, 6, 1):
        store.journal("a").append(b"%d" % number, key=b"%d" % (number % 2))
    graph = graph_of(
        source("a"), stream("f", function, input="a", output="x", batch=9, parallel=4), delivery="at-most-once"
    )
    with graph.open(store) as live:
        live.start()
        eventually(lambda: sum(one.lag for one in live.status()) == 0)
    assert values(store, "x") == [2, 3, 6, 1, 6]
    assert calls == {3: 1, 0: 1, 2: 1, 1: 2, 6: 1}


def test_at_most_once_keeps_what_another_store_is_owed(store: Store, tmp_path: Path) -> None:
    calls: list[int] = []

    def function(number: int) -> int:
        calls.append(number)
        return number

    for number in range(4):
        store.journal("a").append(b"%d" % number)
    graph = graph_of(
        source("a"),
        stream("f", function, input="a", output="x@b", batch=9),
        stores={"b": f"file:{tmp_path}/b"},
        delivery="at-most-once",
    )
    with graph.open(store) as live:
        far, away = live.stores["b"], iter([Unavailable("away")])
        commit = far.commit

        def refuses(operations: Any) -> Any:
            if any(type(one).__name__ == "Append" for one in operations) and (error := next(away, None)) is not None:
                raise error
            return commit(operations)

        far.commit = refuses  # type: ignore[method-assign]
        live.start()
        eventually(lambda: sum(one.lag for one in live.status()) == 0 and values(far, "x") == [0, 1, 2, 3])
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt("x"), asyncio.CancelledError("x"), GeneratorExit("x"), Died()])
def test_nothing_that_a_function_raises_ends_its_processor(store: Store, error: BaseException) -> None:
    raised = [error]

    def function(number: int) -> int:
        if raised:
            raise raised.pop()
        return number

    store.journal("a").append(b"1")
    with graph_of(source("a"), stream("f", function, input="a", output="x")).open(store) as live:
        live.start()
        eventually(lambda: [one.body for one in live.read("x")] == [b"1"])
        assert live._lives["f"].restarts == 1


# -- answers that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (Out(1, key=0), "a key is bytes or text, not int"),  # type: ignore[arg-type]
        (Out(1, key=False), "a key is bytes or text, not bool"),  # type: ignore[arg-type]
        (Out(1, headers={"a": b"x"}), "are text, not bytes"),  # type: ignore[dict-item]
        (Out(1, key=b"k" * (17 << 20)), "is over the limit"),
        (Out(b"x" * (15 << 20), key=b"k" * (2 << 20)), "is over the limit"),
    ],
    ids=["number", "false", "header", "key", "both"],
)
def test_what_cannot_be_written_is_an_error_and_no_end(store: Store, out: Out, said: str) -> None:
    graph = graph_of(source("a"), stream("f", lambda value: out if value else 1, input="a", output="x"), errors="e")
    for value in (b"1", b"0"):
        store.journal("a").append(value)
    ran(graph, store)
    (failed,) = values(store, "e")
    assert failed["error"] == "Invalid"
    assert said in failed["message"]
    assert values(store, "x") == [1]


def test_many_large_keys_are_several_steps(store: Store) -> None:
    graph = graph_of(
        source("a"), stream("f", lambda value: Out(value, key=b"k" * (1 << 20)), input="a", output="x", batch=100)
    )
    store.journal("a").append_many([b"%d" % number for number in range(80)])
    ran(graph, store)
    assert values(store, "x") == list(range(80))


@pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}])
def test_what_a_source_answers_is_a_list(values: Any) -> None:
    from detent.processor import Polled
    from detent.processor.calling import FunctionCalls as Caller

    caller = Caller("g", source("s", lambda cursor: Polled(values, 1)), None, None)
    with pytest.raises(Invalid, match="Polled takes a list of values"):
        caller.poll("0" * 32, 0, b"null")


# -- steering ---------------------------------------------------------------------------------------------------------


def test_one_store_has_one_name(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/a"
    for stores in ({"again": url}, {"b": f"file:{tmp_path}/b", "c": f"file:{tmp_path}/./b"}):
        graph = graph_of(source("a"), sink("f", print, input="a"), store=url, stores=stores)
        with pytest.raises(Invalid, match="use one name for it"), graph.open():
            pass


def test_latest_is_where_it_is_when_nobody_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(source("a"), stream("f", lambda value: value, input="a", output="x"))
    with graph.open(store) as live:
        live.start()
        live.send(0)
        live.settle()
        look = moving._offsets

        def looks(*arguments: Any) -> Any:
            """The processor goes on between what is asked and what is done."""
            found = look(*arguments)
            monkeypatch.setattr(moving, "_offsets", look)
            live.send(1)
            live.settle()
            return found

        monkeypatch.setattr(moving, "_offsets", looks)
        assert live.reset("f", "latest") == {"a": 2}
        live.settle()
    assert values(store, "x") == [0, 1]


def test_who_is_started_while_it_is_forgotten_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(source("a"), stream("f", lambda value: value, input="a", output="x"))
    store.journal("a").append(b"1")
    ran(graph, store)
    settle = moving._settle
    refused: list[bool] = []

    def settles(*arguments: Any) -> None:
        with pytest.raises(Conflict):
            store.commit([ops.LeaseShard(consumer_name("g", "f"), 0, "somebody", 10_000)])
        refused.append(True)
        settle(*arguments)

    monkeypatch.setattr(moving, "_settle", settles)
    with graph.open(store) as live:
        live.forget("f")
        assert refused == [True]
        assert [one.status for one in live.status()] == ["new"]


def test_a_restart_forgets_the_error_before(store: Store) -> None:
    mended = threading.Event()

    def function(number: int) -> int:
        if not mended.is_set():
            raise ValueError("no")
        return number

    store.journal("a").append(b"1")
    with graph_of(source("a"), stream("f", function, input="a", output="x")).open(store) as live:
        live.start()
        with pytest.raises(ValueError, match="no"):
            live.settle()
        mended.set()
        live.restart("f")
        live.settle()
    assert values(store, "x") == [1]


def test_starts_and_stops_at_the_same_time(store: Store) -> None:
    graph = graph_of(source("a"), stream("f", lambda value: value, input="a", output="x"))
    with graph.open(store) as live:
        for _ in range(10):
            starts = [threading.Thread(target=live.start) for _ in range(3)]
            for thread in starts:
                thread.start()
            live.stop()
            for thread in starts:
                thread.join()
            live.stop()
        live.start()
        live.send(1)
        live.settle()
        beats = [one for one in threading.enumerate() if one.name == "detent-graph-g"]
        assert len(beats) == 1
    assert values(store, "x") == [1]


def test_a_journal_that_is_another_one_before_the_first_step(store: Store) -> None:
    graph = graph_of(source("a"), sink("f", print, input="a", start="latest"))
    store.journal("a").append_many([b"1", b"2", b"3"])
    ran(graph, store)
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(5)])
    with graph.open(store) as live:
        live.start()
        with pytest.raises(detent.NotFound, match="another one"):
            live.settle()


def test_who_cannot_see_a_process_does_not_call_it_dead() -> None:
    member = new_member()
    host, number, word = member.rsplit("-", 2)
    assert not has_died(member)
    assert has_died(f"{host}-{2**22 + 1}-{word}")
    assert not has_died(f"{host}0-{2**22 + 1}-{word}"), "of another machine, or another space of processes"
    assert number.isdigit()


def test_a_message_parameter_is_a_message(store: Store) -> None:
    def function(message: Message) -> bytes:
        return message.body

    store.journal("a").append(b"1")
    ran(graph_of(source("a"), stream("f", function, input="a", output="x")), store)
    assert values(store, "x") == [1]
