"""Graphs over any store: on memory, file, a client, a server, s3; and over two of them at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Conflict, Denied, Invalid, NotFound, Store, Unavailable
from detent.processor import (
    Graph,
    LiveGraph,
    Message,
    Out,
    Polled,
    Processor,
    Step,
    provenance_of,
    sink,
    source,
    stream,
)
from detent.server.access import Grant
from processes import eventually
from remoteserver import TOKENS, HttpServer, serving


def same(value: Any) -> Any:
    return value


def graph_of(*processors: Processor, **options: Any) -> Graph:
    return Graph("g", processors=processors, **options)


def values(live: LiveGraph, journal: str) -> list[Any]:
    return [message.json() for message in live.read(journal)]


def failures(live: LiveGraph, journal: str = "e") -> list[tuple[str, list[int]]]:
    """Errors with the offsets of their inputs."""
    return [(said["error"], [one["offset"] for one in said["inputs"]]) for said in values(live, journal)]


def done(live: LiveGraph) -> dict[str, tuple[int, int, int]]:
    """What became of the input sets of each processor: outputs, errors, nothing."""
    return {one.name: (one.outputs, one.errors, one.nils) for one in live.status()}


def ran(graph: Graph, store: Store, **options: Any) -> None:
    """All that there is to do."""
    with graph.open(store) as live:
        live.start(**options)
        live.settle()


# -- what graphs do ---------------------------------------------------------------------------------------------------


def test_everything_at_once(store: Store) -> None:
    """Streams, filters, a fork with conditions, a join, any-of, errors, a sink."""
    graph = Graph("shop", errors="failed", system={"rate": 10})
    graph.source("orders")
    graph.source("stock")
    seen: list[tuple[Any, str]] = []
    lock = threading.Lock()

    @graph.stream(input="orders", output="priced", types="order")
    def price(order: dict[str, int], step: Step) -> Out:
        return Out({**order, "price": step.system["rate"] * order["count"]}, type="priced", topics=["eu"])

    @graph.stream(input="priced", outputs={"large": "large", "small": "small"})
    def split(order: dict[str, int]) -> dict[str, Any]:
        if order["count"] == 0:
            raise ValueError("nothing was ordered")
        return {"large" if order["price"] > 20 else "small": order["id"]}

    @graph.stream(join=["small", "stock"], output="pairs")
    def pair(order: int, item: bytes) -> bytes:
        return b"%d of %s" % (order, item)

    @graph.stream(any_of=["large", "small"], output="all", batch=3)
    def gather(order: int) -> Iterator[int]:
        yield order
        if order == 4:
            yield -order

    @graph.sink(any_of=["all", "failed"], errors=False)
    def show(message: Message, step: Step) -> None:
        with lock:
            seen.append((message.json(), step.key))

    with graph.open(store) as live:
        live.start()
        for number in range(1, 6):
            live.send({"id": number, "count": 5 - number}, "orders", key=f"k{number}", type="order")
            live.send({"id": -number}, "orders", type="other")
        for item in (b"a", b"b", b"c"):
            live.send(item, "stock")
        live.settle()
        assert values(live, "large") == [1, 2]
        assert values(live, "small") == [3, 4]
        assert [message.body for message in live.read("pairs")] == [b"3 of a", b"4 of b"]
        assert sorted(values(live, "all")) == [-4, 1, 2, 3, 4]
        assert failures(live, "failed") == [("ValueError", [4])]
        shown = [body if isinstance(body, int) else body["processor"] for body, _ in seen]
        assert sorted(map(str, shown)) == ["-4", "1", "2", "3", "4", "shop/split"]
        assert len({key for _, key in seen}) == 6
        assert done(live) == {
            "price": (5, 0, 5),
            "split": (4, 1, 0),
            "pair": (2, 0, 0),
            "gather": (4, 0, 0),
            "show": (0, 0, 6),
        }
        priced = list(live.read("priced"))
        assert [message.key for message in priced] == [b"k1", b"k2", b"k3", b"k4", b"k5"]
        assert {(message.headers["type"], message.headers["topics"]) for message in priced} == {("priced", "eu")}
        (failed,) = live.read("failed")
        assert (failed.headers["type"], failed.key) == ("error", b"k5")
        lags = {(one.name, each.journal): each.lag for one in live.status() for each in one.inputs if each.lag}
        assert lags == {("pair", "stock"): 1}
    ran(graph, store)
    assert len(seen) == 6, "nobody does anything again"


def test_batches(store: Store) -> None:
    with store.transaction() as transaction:
        for number in range(25):
            headers = {"type": "t" if number % 5 else "u"}
            transaction.append("a", b"%d" % number, key=b"%d" % (number % 3), headers=headers)
    graph = graph_of(
        source("a"),
        stream("ten", lambda number: number, input="a", output="b", batch=10),
        stream("sums", lambda numbers: sum(numbers), input="b", output="sums", whole=True, batch=10),
        stream("side", lambda number: 60 // (number - 7), input="a", output="c", batch=9, parallel=3),
        stream("typed", lambda numbers: numbers, input="a", output="d", whole=True, batch=100, types="u"),
        errors="e",
    )
    with graph.open(store) as live:
        live.start(only=["ten"])
        live.settle()
        live.start()
        live.settle()
        assert values(live, "b") == [*range(25)]
        assert values(live, "sums") == [45, 145, 110]
        assert values(live, "c") == [60 // (number - 7) for number in range(25) if number != 7]
        assert failures(live) == [("ZeroDivisionError", [7])]
        assert values(live, "d") == [[0, 5, 10, 15, 20]]
        assert done(live)["typed"] == (5, 0, 20)
        assert [message.key for message in live.read("b")] == [b"%d" % (number % 3) for number in range(25)]
        steps = {one.name: one.steps for one in live.status()}
        assert (steps["ten"], steps["sums"], steps["typed"]) == (3, 3, 1)


def test_at_most_once(store: Store) -> None:
    """What fails is dropped, and nothing else is; positions are passed before the function is called."""
    graph = graph_of(
        source("a"),
        stream("f", lambda number: 6 // number, input="a", output="x", batch=10),
        stream("g", lambda number: 6 // number, input="a", output="y", errors="e"),
        stream("h", lambda numbers: sum(numbers), any_of=["x", "y"], output="z", whole=True, batch=10),
        delivery="at-most-once",
    )
    store.journal("a").append_many([b"1", b"2", b"0", b"3", b"0", b"6"])
    with graph.open(store) as live:
        live.start(only=["f"])
        with pytest.raises(ZeroDivisionError):
            live.settle()
        live.stop()
        live.start(only=["f", "g"])
        live.settle()
        assert values(live, "x") == values(live, "y") == [6, 3, 2, 1]
        assert failures(live) == [("ZeroDivisionError", [2]), ("ZeroDivisionError", [4])]
        live.start()
        live.settle()
        assert sum(values(live, "z")) == 24
        assert {one.name: one.lag for one in live.status()} == {"f": 0, "g": 0, "h": 0}
    ran(graph, store)
    assert len(list(store.journal("x").read())) == 4


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_a_step_that_gives_much_is_cut(delivery: Any) -> None:
    """Into several commits, and nothing falls between them."""
    given = bytes(1 << 20)
    graph = graph_of(
        source("a"),
        stream("f", lambda number: b"%d" % number + given, input="a", output="x", batch=12),
        delivery=delivery,
    )
    with detent.open("memory:") as store:
        store.journal("a").append_many([b"%d" % number for number in range(12)])
        with graph.open(store) as live:
            live.start()
            live.settle()
            assert [int(message.body.partition(b"\0")[0]) for message in live.read("x")] == [*range(12)]
            (status,) = live.status()
            assert (status.outputs, 1 < status.steps < 12) == (12, True)


def test_batches_of_what_passes_a_filter(store: Store) -> None:
    """Many messages that are none of its business cost no step each, and a batch holds those that are."""
    with store.transaction() as transaction:
        for number in range(2_500):
            transaction.append("a", b"%d" % number, headers={"type": "t" if number % 250 == 7 else "u"})
    graph = graph_of(source("a"), stream("f", same, input="a", output="x", types="t", batch=3))
    with graph.open(store) as live:
        live.start()
        live.settle()
        assert values(live, "x") == [*range(7, 2_500, 250)]
        (status,) = live.status()
        assert (status.outputs, status.nils, status.lag) == (10, 2_490, 0)
        assert status.steps <= 7


def test_a_source_that_is_asked(store: Store) -> None:
    pages = [["a", "b"], ["c"], [], ["d"]]
    asked: list[Any] = []
    more = threading.Event()

    def poll(cursor: int | None) -> Polled:
        page = cursor or 0
        asked.append(cursor)
        if page == 3 and not more.is_set():
            return Polled([], page)
        return Polled(pages[page], page + 1) if page < len(pages) else Polled([], page)

    graph = graph_of(source("s", poll, output="letters", every="20ms"), stream("f", same, input="letters", output="x"))
    with graph.open(store) as live:
        live.start()
        eventually(lambda: asked.count(3) > 1)
        live.settle()
        assert values(live, "letters") == values(live, "x") == ["a", "b", "c"]
    more.set()
    asked.clear()
    with graph.open(store) as live:
        live.start()
        eventually(lambda: asked.count(4) > 1)
        live.settle()
        assert values(live, "x") == ["a", "b", "c", "d"]
        assert asked[0] == 3, "it goes on where it was"
        (status, _) = live.status()
        assert (status.name, status.kind, status.outputs, status.nils) == ("s", "source", 3, 1)
        with pytest.raises(Invalid, match="reads nothing: forget it"):
            live.reset("s")
        live.stop()
        live.forget("s")
        asked.clear()
        live.start(only=["s"])
        eventually(lambda: asked)
        assert asked[0] is None


def test_where_inputs_begin(store: Store) -> None:
    store.journal("a").append_many([b"0", b"1", b"2", b"3"])
    store.journal("a").trim(1)
    graph = graph_of(
        source("a"),
        source("b"),
        stream("first", same, input="a", output="x"),
        stream("last", same, input="a", output="y", start="latest"),
        stream("third", same, input="a", output="z", start=2),
        stream("none", same, input="b", output="w", start="latest"),
    )
    with graph.open(store) as live:
        live.start()
        live.send(4, "a")
        live.send(5, "b")
        live.settle()
        assert [values(live, name) for name in "xyzw"] == [[1, 2, 3, 4], [4], [2, 3, 4], [5]]


# -- lives ------------------------------------------------------------------------------------------------------------


def test_stopped_and_started_again(store: Store) -> None:
    """Each input takes effect once, under one key, whoever runs the processor, and however often it is begun."""
    keys: list[str] = []

    def function(number: int, step: Step) -> int:
        keys.append(step.key)
        return number

    graph = graph_of(source("a"), stream("f", function, input="a", output="x"))
    for turn in range(3):
        with graph.open(store) as live:
            live.send(turn)
            live.start()
            live.settle()
            live.stop()
            live.send(turn + 10)
            live.start()
            live.settle()
    with graph.open(store) as live:
        assert values(live, "x") == [0, 10, 1, 11, 2, 12]
        written = [said.key for message in live.read("x") if (said := provenance_of(message)) is not None]
    assert written == keys
    series = {key.partition("-")[0] for key in keys}
    assert (len(series), [key.partition("-")[2] for key in keys]) == (1, [str(number) for number in range(6)])


def test_settling(store: Store) -> None:
    begun, held = threading.Event(), threading.Event()

    def hold(value: object) -> None:
        begun.set()
        held.wait(30)

    processors = [
        source("a"),
        stream("f", lambda value: 6 // value, input="a", output="x"),
        sink("g", hold, input="x"),
    ]
    graph = graph_of(*processors)
    with graph.open(store) as live:
        with pytest.raises(Invalid, match="nothing was started here"):
            live.settle()
        live.start()
        live.settle()
        live.send(1)
        assert begun.wait(30), "the sink has its message, so the stream is done with it"
        with pytest.raises(Unavailable, match="not settled within 300ms: g still at work"):
            live.settle("300ms")
        held.set()
        live.settle()
        live.send(0)
        with pytest.raises(ZeroDivisionError) as caught:
            live.settle()
        (note,) = caught.value.__notes__
        assert note.startswith("g/f was at a#1, under the key ")
        error = live.local_error("f")
        assert isinstance(error, ZeroDivisionError)
        assert live.local_error("g") is None
    with pytest.raises(ZeroDivisionError):
        graph.run(store, once=True)
    graph_of(*processors, errors="e").run(store, once=True)
    assert store.journal("e").next_offset() == 1


def test_status(store: Store) -> None:
    graph = graph_of(
        source("a"),
        source("b"),
        stream("f", lambda number: None if number > 2 else 2 // number, input="a", output="x", errors="e"),
        sink("g", lambda left, right: None, join=["x", "b"]),
        lease="500ms",
    )
    with graph.open(store) as live:
        for number in (1, 0, 2, 3):
            live.send(number, "a")
        assert [(one.name, one.status, one.steps, one.lag) for one in live.status()] == [
            ("f", "new", 0, 4),
            ("g", "new", 0, 0),
        ]
        live.start()
        live.settle()
        eventually(lambda: all(one.status == "running" for one in live.status()))
        first, second = live.status()
        assert (first.kind, first.steps, first.outputs, first.errors, first.nils) == ("stream", 4, 2, 1, 1)
        assert (first.error, first.epoch, first.owed, first.lag, first.declared) == ("", 1, 0, 0, True)
        assert [(one.journal, one.position, one.lag) for one in first.inputs] == [("a", 4, 0)]
        assert first.latency["x"]["messages"] == 2
        assert live.status(latency=False)[0].latency == {}
        assert str(live._member) == first.holder == second.holder
        assert (second.kind, second.steps, second.lag) == ("sink", 0, 2)
        with graph.open(store) as other:  # who only looks sees the same
            assert [one.name for one in other.status()] == ["f", "g"]
            assert other.status()[0].holder == first.holder
        live.stop()
        assert [(one.status, one.holder, one.outputs) for one in live.status()] == [
            ("stopped", "", 2),
            ("stopped", "", 0),
        ]
    with graph_of(source("a"), sink("new", same, input="a")).open(store) as live:
        found = {one.name: one for one in live.status()}
        assert [(name, one.declared, one.kind) for name, one in found.items()] == [
            ("new", True, "sink"),
            ("f", False, "stream"),
            ("g", False, "sink"),
        ]


# -- steering ---------------------------------------------------------------------------------------------------------


def test_resets(store: Store) -> None:
    keys: list[str] = []

    def function(left: str, right: str, step: Step) -> str:
        keys.append(step.key)
        return left + right

    graph = graph_of(source("a"), source("b"), stream("f", function, join=["a", "b"], output="x"))
    with graph.open(store) as live:
        with pytest.raises(NotFound, match="never ran"):
            live.reset("f")
        for letter in "abcd":
            live.send(letter, "a")
            live.send(letter.upper(), "b")
        live.start()
        live.settle()
        later = datetime.now(UTC) + timedelta(hours=1)

        def again(*arguments: Any, **options: Any) -> tuple[Any, list[str]]:
            count = len(values(live, "x"))
            offsets = live.reset("f", *arguments, **options)
            live.settle()
            return offsets, values(live, "x")[count:]

        assert again() == ({"a": 0, "b": 0}, ["aA", "bB", "cC", "dD"])
        assert again(2) == ({"a": 2, "b": 2}, ["cC", "dD"])
        assert again("latest") == ({"a": 4, "b": 4}, [])
        assert again({"a": 1}) == ({"a": 1}, [])  # for b there is nothing to go with
        assert again({"b": 2}) == ({"b": 2}, ["bC", "cD"])
        assert again({"a": 0, "b": 3}) == ({"a": 0, "b": 3}, ["aD"])
        assert again(time=later) == ({"a": 4, "b": 4}, [])
        first = next(live.read("b")).published_at
        assert again(time=first - timedelta(hours=1)) == ({"a": 0, "b": 0}, ["aA", "bB", "cC", "dD"])
        assert len(set(keys)) == len(keys), "what is done again is a new delivery"
        assert len({key.partition("-")[0] for key in keys}) == 6, "in a series of its own"
        with pytest.raises(NotFound, match="offsets from 0 to 4, and not 5"):
            live.reset("f", 5)
        for wrong in ("newest", 1.5, True, {"a": "first"}):
            with pytest.raises(Invalid):
                live.reset("f", wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="'f' does not read 'c': it reads a, b"):
            live.reset("f", {"c": 0})
        with pytest.raises(Invalid, match="zone"):
            live.reset("f", time=datetime(2026, 1, 1))
        with pytest.raises(Invalid, match="no processor 'nobody'"):
            live.reset("nobody")
        live.stop()
        assert live.reset("f", {"a": 3, "b": 3}) == {"a": 3, "b": 3}
        count = len(keys)
    ran(graph, store)
    assert len(keys) == count + 1


def test_a_reset_by_somebody_else(store: Store) -> None:
    """Whoever runs the processor hears of it, although no message comes."""
    graph = graph_of(source("a"), stream("f", same, input="a", output="x"), lease="500ms")
    with graph.open(store) as live, graph.open(store) as other:
        live.start()
        live.send(1)
        live.settle()
        other.reset("f")
        eventually(lambda: values(live, "x") == [1, 1])
        live.send(2)
        live.settle()
        assert values(live, "x") == [1, 1, 2]


def test_a_reset_mends_a_processor_whose_input_is_gone(store: Store) -> None:
    graph = graph_of(source("a"), stream("f", same, input="a", output="x"))
    store.journal("a").append_many([b"0", b"1", b"2"])
    ran(graph, store)
    store.journal("a").append_many([b"3", b"4"])
    store.journal("a").trim(4)
    with graph.open(store) as live:
        live.start()
        with pytest.raises(NotFound, match="begins at 4 now, and was read to 3"):
            live.settle()
        assert live.reset("f") == {"a": 4}
        eventually(lambda: values(live, "x") == [0, 1, 2, 4])
        live.settle()


def test_forgetting(store: Store) -> None:
    graph = graph_of(source("a"), stream("f", same, input="a", output="x"), lease="500ms")
    with graph.open(store) as live:
        with pytest.raises(NotFound, match="nothing to forget"):
            live.forget("f")
        live.send(1)
        live.start()
        live.settle()
        with pytest.raises(Conflict, match=r"is run by .*: stop it first"):
            live.forget("f")
        live.stop()
        live.forget("f")
        assert [one.status for one in live.status()] == ["new"]
        live.start()
        live.settle()
        assert values(live, "x") == [1, 1], "it begins anew"


def test_renaming(store: Store) -> None:
    before = graph_of(source("a"), source("b"), stream("old", same, input="a", output="x"), lease="500ms")
    after = graph_of(
        source("a"), source("b"), stream("new", same, input="a", output="x", formerly="old"), lease="500ms"
    )
    unsaid = graph_of(source("a"), source("b"), stream("new", same, input="a", output="x"))
    other = graph_of(source("a"), source("b"), stream("new", same, input="b", output="x"))
    with before.open(store) as live:
        live.send(1, "a")
        live.start()
        live.settle()
        with after.open(store) as late, pytest.raises(Conflict, match=r"'old' is run by .*: stop that process first"):
            late.start()
    with unsaid.open(store) as live, pytest.raises(Conflict, match="If it is the same one, say formerly='old'"):
        live.start()
    ran(other, store)  # which reads something else
    with other.open(store) as live:
        live.stop()
        live.forget("new")
    for turn in range(2):
        with after.open(store) as live:
            live.send(2 + turn, "a")
            live.start()
            live.settle()
            assert values(live, "x") == [1, 2, 3][: 2 + turn]
            assert [(one.name, one.declared) for one in live.status()] == [("new", True)]
    numbers = [said.key.partition("-")[2] for message in store.journal("x").read() if (said := provenance_of(message))]
    assert numbers == ["0", "1", "2"], "its deliveries go on"


def test_recreated_input_of_a_running_graph_shows_at_once_and_stops_it(store: Store) -> None:
    """Its offsets are those of another journal, whether or not that is shorter."""
    with graph_of(source("a"), stream("f", same, input="a", output="x")).open(store) as live:
        for number in range(3):
            live.send(number, "a")
        live.start()
        live.settle()
        store.journal("a").delete()
        (seen,) = live.status()
        assert (seen.status, seen.inputs[0].gone, seen.lag) == ("failed", "deleted", 0)
        for body in (b"10", b"11"):
            store.journal("a").append(body)
        (seen,) = live.status()
        assert (seen.status, seen.inputs[0].gone, seen.lag) == ("failed", "recreated", 2)
        assert "detent reset FILE --only f" in seen.error
        with pytest.raises(NotFound, match="another one of that name"):
            live.settle("30s")
        live.stop()
        (seen,) = live.status()
        assert (seen.status, seen.lag) == ("stopped", 2)
        assert "was deleted and made anew" in seen.error
        live.reset("f", "earliest")
        assert live.status()[0].error == ""
        live.start()
        live.settle()
        assert values(live, "x") == [0, 1, 2, 10, 11]
        eventually(lambda: (live.status()[0].status, live.status()[0].error) == ("running", ""), what="the report")


def test_a_processor_whose_progress_was_deleted_does_not_begin_anew_by_itself(store: Store) -> None:
    """As it would be after a rename, if a process with the old declaration still ran, or stood by."""
    graph = graph_of(source("a"), stream("f", same, input="a", output="x"), lease="500ms")
    with graph.open(store) as live, graph.open(store, member="second") as second:
        live.send(1)
        live.start()
        live.settle()
        second.start()
        store.consumer("graph/g/f").delete(force=True)
        live.send(2)
        eventually(lambda: isinstance(live.local_error("f"), Conflict))
        assert "was deleted, or has another name now" in str(live.local_error("f"))
        live.stop()
        eventually(lambda: isinstance(second.local_error("f"), Conflict))
        assert values(second, "x") == [1]


def test_inputs_of_an_any_of_are_known_by_their_names(store: Store) -> None:
    store.journal("a").append_many([b"1", b"2"])
    store.journal("b").append_many([b"3", b"4"])
    sources = [source("a"), source("b")]
    tried: list[tuple[int, str]] = []

    def failing(value: int, step: Step) -> int:
        tried.append((value, step.key))
        if len(tried) >= 3:
            raise Invalid("not now")
        return value

    def working(value: int, step: Step) -> int:
        tried.append((value, step.key))
        return value

    with pytest.raises(Invalid, match="not now"):
        ran(graph_of(*sources, stream("f", failing, any_of=["a", "b"], output="x", batch=4)), store)
    ran(graph_of(*sources, stream("f", working, any_of=["b", "a"], output="x", batch=4)), store)
    assert sorted(message.json() for message in store.journal("x").read()) == [1, 2, 3, 4]
    assert len(set(tried)) == 4, "what was begun keeps its key"
    store.journal("a").append(b"5")
    ran(graph_of(*sources, stream("f", working, any_of=["a", "b"], output="x", batch=4)), store)
    assert sorted(message.json() for message in store.journal("x").read()) == [1, 2, 3, 4, 5]


def test_migrating(store: Store) -> None:
    store.journal("a").append_many([b"1", b"2", b"3"])
    store.journal("b").append_many([b"4", b"5"])
    sources = [source("a"), source("b")]
    one = graph_of(*sources, stream("f", same, input="a", output="x"))
    two = graph_of(*sources, stream("f", same, any_of=["a", "b"], output="x"))
    ran(one, store)
    with two.open(store) as live:
        with pytest.raises(
            Conflict, match=r"g/f was a stream of a, and is a stream of any of a, b now.*migrate=\['f'\]"
        ):
            live.start()
        with pytest.raises(Invalid, match="no processor 'g'"):
            live.start(migrate=["g"])
        live.start(migrate=["f"])
        live.settle()
        assert values(live, "x") == [1, 2, 3, 4, 5]
        assert live.status()[0].epoch == 2
    ran(two, store)
    with pytest.raises(Conflict, match="was a stream of any of a, b"):
        ran(one, store)
    ran(one, store, migrate=["f"])
    others = graph_of(
        *sources, stream("f", same, input="a", output="y", errors="e", batch=5, delivery="at-most-once", types="t")
    )
    store.journal("a").append(b"6", headers={"type": "t"})
    ran(others, store)  # outputs, errors, delivery and filters are nobody's past
    assert [message.body for message in store.journal("y").read()] == [b"6"]
    assert store.journal("x").next_offset() == 5


# -- sending and reading ----------------------------------------------------------------------------------------------


def test_sending_and_reading(store: Store) -> None:
    graph = graph_of(
        source("web", output="orders"),
        source("b"),
        stream("f", same, input="orders", output="x"),
        sink("g", same, input="x"),
    )
    with graph.open(store) as live:
        assert list(live.read("orders")) == []
        assert live.send({"id": 1}, "orders").offset == 0
        assert live.send(b"2", "web", key=b"k", headers={"h": "1"}, type="t", topics=["p", "q"]).offset == 1
        assert live.send(3, "x").offset == 0  # somebody reads it
        first, second = live.read("orders")
        assert (first.json(), first.key, first.headers) == ({"id": 1}, None, {})
        assert (second.body, second.key) == (b"2", b"k")
        assert second.headers == {"h": "1", "type": "t", "topics": "p,q"}
        assert [message.offset for message in live.read("orders", 1)] == [1]
        assert [message.offset for message in live.read("orders", 0, 1)] == [0]
        with pytest.raises(NotFound):
            list(live.read("orders", 7, 8))
        with pytest.raises(Invalid, match="has 2 sources: say to which one"):
            live.send(1)
        with pytest.raises(Invalid, match="no source 'ordres', and no processor reads it: it has orders, b"):
            live.send(1, "ordres")
        with pytest.raises(Invalid, match="no store 'far'"):
            live.send(1, "orders@far")
        with pytest.raises(Invalid, match="does not become JSON"):
            live.send(object(), "orders")
        with pytest.raises(Invalid, match="written by processors themselves"):
            live.send(1, "orders", headers={"detent": "mine"})


# -- two stores -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory+file", "file+http", "http+memory", "file+client"])
def two_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URLs of two stores, of which the second is to be opened by name."""

    def url(kind: str, name: str, stack: ExitStack) -> str:
        where = f"file:{tmp_path / name}"
        if kind == "http":
            return stack.enter_context(serving(where)).url
        if kind == "client":
            stack.enter_context(detent.open(where))
        return "memory:" if kind == "memory" else where

    with ExitStack() as stack:
        home, far = request.param.split("+")
        yield url(home, "home", stack), url(far, "far", stack)


def test_outputs_in_another_store(two_stores: tuple[str, str]) -> None:
    home, far = two_stores
    keys: list[str] = []

    def function(number: int, step: Step) -> dict[str, Any]:
        keys.append(step.key)
        if number == 3:
            raise ValueError("three")
        return {"here": number, "there": [Out(number, key="k"), Out(-number)]} if number % 2 else {"there": number}

    graph = graph_of(
        source("a"),
        stream("f", function, input="a", outputs={"here": "x", "there": "x@far"}, batch=3),
        stream("g", lambda left, right: [left, right], join=["x", "x@far"], output="y@far"),
        store=home,
        stores={"far": far},
        errors="e@far",
    )
    with graph.open() as live:
        live.start()
        for number in range(6):
            live.send(number)
        live.settle()
        assert values(live, "x") == [1, 5]
        assert values(live, "x@far") == [0, 1, -1, 2, 4, 5, -5]
        assert failures(live, "e@far") == [("ValueError", [3])]
        assert values(live, "y@far") == [[1, 0], [5, 1]]
        (said,) = [said for message in live.read("y@far", 1, 2) if (said := provenance_of(message))]
        assert [(str(one.place), one.first) for one in said.inputs] == [("x", 1), ("x@far", 1)]
        assert done(live) == {"f": (5, 1, 0), "g": (2, 0, 0)}
        assert live.stores["far"].journal("x").next_offset() == 7
        live.reset("f", 5)
        live.settle()
        assert values(live, "x@far")[7:] == [5, -5]
        live.stop()
        assert live.send(1, "x").offset == 3
        live.start()
        live.settle()
        assert len(keys) == len(set(keys)) == 7
        live.stop()
        live.forget("f")
        assert {one.name: one.status for one in live.status()} == {"f": "new", "g": "stopped"}
        live.start(only=["f"])
        live.settle()
        assert len(values(live, "x@far")) == 16


def test_a_source_in_another_store(tmp_path: Path) -> None:
    graph = graph_of(
        source("a", output="a@far"),
        source("s", lambda cursor: Polled([] if cursor else [7], 1), output="s@far", every="1h"),
        stream("f", same, any_of=["a@far", "s@far"], output="x"),
        store="memory:",
        stores={"far": f"file:{tmp_path}/far"},
    )
    with graph.open() as live:
        live.start()
        live.send(1, "a")
        live.send(2, "a@far")
        live.settle()
        assert sorted(values(live, "x")) == [1, 2, 7]
        assert live.reset("f", {"a@far": 1}) == {"a@far": 1}
        live.settle()
        assert sorted(values(live, "x")) == [1, 2, 2, 7]


def test_a_store_that_another_graph_writes_under_the_same_name(tmp_path: Path) -> None:
    """Two graphs of one name, in two stores, that give to a third: the second one is refused, and mixes nothing."""
    far = f"file:{tmp_path}/far"
    graph = graph_of(source("a"), stream("f", same, input="a", output="x@far"), stores={"far": far})
    with detent.open("memory:") as one, detent.open("memory:") as other:
        for store in (one, other):
            store.journal("a").append(b"1")
        ran(graph, one)
        with pytest.raises(Conflict, match=r"has outputs of a processor g/f that is not this one.*another name"):
            ran(graph, other)
        with detent.open(far) as found:
            assert [json.loads(message.body) for message in found.journal("x").read()] == [1]


def test_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(source("a"), sink("f", same, input="a"))
    monkeypatch.delenv("DETENT_URL", raising=False)
    with (
        pytest.raises(Invalid, match=r"no store: write Graph\('g', store='file:./data'\), or set DETENT_URL"),
        graph.open(),
    ):
        pass
    monkeypatch.setenv("DETENT_URL", "memory:")
    with graph.open() as live:
        assert live.send(1).offset == 0


def test_a_graph_that_is_refused_has_done_nothing(store: Store) -> None:
    first = graph_of(source("a"), source("b"), sink("g", lambda value: None, input="a"))
    with first.open(store) as live:
        live.start()
        live.send(1, "a")
        live.settle()
    changed = graph_of(
        source("a"),
        source("b"),
        stream("f", lambda value: value, input="a", output="x"),
        sink("g", lambda value, other: None, join=["a", "b"]),
    )
    with changed.open(store) as live:
        with pytest.raises(Conflict, match="was a sink of a, and is a sink that joins a, b now"):
            live.start()
        assert list(live.read("x")) == []
        assert {one.name: one.status for one in live.status()} == {"f": "new", "g": "stopped"}


def test_a_key_with_just_the_rights_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = [("consume", "consumer", "graph/g/*"), ("consume", "journal", "a"), ("publish", "journal", "x")]
    monkeypatch.setitem(TOKENS, "graph", tuple(Grant(*one) for one in granted))
    monkeypatch.setenv("DETENT_TOKEN", "graph")
    with ExitStack() as stack:
        server = HttpServer(f"file:{tmp_path}/store", guarded=True)
        stack.callback(server.stop)
        server.store.journal("a").append(b"1")
        opened = stack.enter_context(detent.open(server.url))
        live = stack.enter_context(graph_of(source("a"), stream("f", same, input="a", output="x")).open(opened))
        live.start()
        live.settle()
        assert [message.body for message in server.store.journal("x").read()] == [b"1"]
        assert [one.outputs for one in live.status(latency=False)] == [1]
        with pytest.raises(Denied):
            live.send(2, "a")
