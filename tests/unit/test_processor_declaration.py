"""What a graph refuses when it is declared and when it is checked, and that decorators and values declare the same."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from detent import Invalid
from detent.processor import Graph, Message, Processor, Step, sink, source, stream
from detent.processor.declaration import BATCH_MAX, INPUTS_MAX, NAME_MAX, OUTPUTS_MAX, PARALLEL_MAX, RETRIES_MAX, place
from detent.processor.declaration import JournalPlace as Place


def one(message: Any) -> Any:
    return message


def two(left: Any, right: Any) -> Any:
    return left, right


def a_graph(*processors: Processor, sources: tuple[str, ...] = ("a", "b", "c"), **options: Any) -> Graph:
    return Graph("g", processors=[*(source(name) for name in sources), *processors], **options)


def check(*processors: Processor, **options: Any) -> None:
    a_graph(*processors, **options).check()


# -- decorators and values --------------------------------------------------------------------------------------------


def test_decorators_and_values_declare_the_same() -> None:
    graph = Graph("g", errors="failed")
    assert graph.source("a") == "a"
    assert graph.source("web", output="b", formerly="www") == "b"
    assert graph.source("asked", poll=one, every="3s") == "asked"
    assert graph.poll(every="2s", output="c", formerly="many")(one) is one
    decorated = graph.stream(
        join=["a", "b"],
        outputs={"good": "x", "bad": "y@far"},
        types=["t", "u"],
        topics="p",
        errors="own",
        delivery="at-most-once",
        batch=7,
        retries=2,
        retry_pause="5ms",
        start="latest",
        formerly="pair",
    )(two)
    assert decorated is two  # it can still be called, and tested
    graph.stream(any_of=["a", "b"], output="z", name="either", parallel=4, errors=False)(one)
    graph.sink(input="z", name="out", whole=True, batch=10, start=3)(one)
    assert graph.processors == [
        source("a"),
        source("web", output="b", formerly="www"),
        source("asked", one, every=timedelta(seconds=3)),
        source("one", one, every="2000ms", output="c", formerly="many"),
        stream(
            "two",
            two,
            join=("a", "b"),
            outputs={"good": "x", "bad": "y@far"},
            types={"t", "u"},
            topics=["p"],
            errors="own",
            delivery="at-most-once",
            batch=7,
            retries=2,
            retry_pause=timedelta(milliseconds=5),
            start="latest",
            formerly="pair",
        ),
        stream("either", one, any_of=("a", "b"), output="z", parallel=4, errors=False),
        sink("out", one, input="z", whole=True, batch=10, start=3),
    ]


def test_what_is_left_out() -> None:
    made = stream("f", one, input="a", outputs=["x", "y@far"])
    assert (made.mode, made.batch, made.whole, made.parallel, made.retries) == ("one", 1, False, 1, 0)
    assert (made.start, made.delivery, made.errors, made.errors_off, made.formerly) == (
        "earliest",
        None,
        None,
        False,
        None,
    )
    assert (made.types, made.topics, made.retry_pause_ms) == (frozenset(), frozenset(), 100)
    assert made.outputs == {"x": Place("x"), "y@far": Place("y", "far")}
    assert stream("f", one, input="a", outputs="x").outputs == {"x": Place("x")}  # text is one name, not its letters
    assert source("a").outputs == {"a": Place("a")}
    assert (source("a").runs, source("a", one).runs) == (False, True)


def test_a_batch_holds_what_runs_in_parallel() -> None:
    assert stream("f", one, input="a", output="x", parallel=8).batch == 8
    assert stream("f", one, input="a", output="x", parallel=8, batch=20).batch == 20


def test_functions_that_are_no_plain_functions() -> None:
    class Called:
        async def __call__(self, message: Any) -> None: ...

    class Yielding:
        def __call__(self, message: Any) -> Any:
            yield message

    assert sink("s", Called(), input="a").is_async
    assert stream("s", Yielding(), input="a", output="x").is_generator
    assert not stream("s", Yielding(), input="a", output="x").is_async
    made = stream("f", functools.partial(two, 1), input="a", output="x")
    assert (made.is_async, made.is_generator) == (False, False)
    check(made)


def test_places() -> None:
    assert (str(place("orders/eu")), str(place("orders@far"))) == ("orders/eu", "orders@far")
    assert place("orders@far") == Place("orders", "far")
    for wrong in ("", "@far", "orders@", "or ders", "a@b@c", 5, None):
        with pytest.raises(Invalid):
            place(wrong)  # type: ignore[arg-type]


# -- refused when it is declared --------------------------------------------------------------------------------------


async def generating(message: Any) -> AsyncIterator[Any]:
    yield message


class GeneratingObject:
    async def __call__(self, message: Any) -> AsyncIterator[Any]:
        yield message


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "one of input='...', join=\\[...\\] and any_of=\\[...\\]"),
    ({"input": "a", "join": ["a", "b"]}, "one of input"),
    ({"input": 5}, "named by text"),
    ({"input": "no spaces please"}, "journal"),
    ({"join": ["a"]}, f"2 to {INPUTS_MAX} different journals, not a"),
    ({"join": "orders"}, "2 to"),
    ({"join": 5}, "join are a list"),
    ({"any_of": ["a", "a"]}, f"2 to {INPUTS_MAX} different journals, not a, a"),
    ({"any_of": [f"j{n}" for n in range(INPUTS_MAX + 1)]}, "2 to"),
    ({"input": "a", "delivery": "at-least-once"}, "'exactly-once' or 'at-most-once', not 'at-least-once'"),
    ({"input": "a", "start": "newest"}, "'earliest', 'latest' or an offset"),
    ({"input": "a", "start": -1}, "or an offset, not -1"),
    ({"input": "a", "start": True}, "or an offset, not True"),
    ({"input": "a", "start": 1.5}, "or an offset"),
    ({"input": "a", "errors": True}, "names a journal, or is False"),
    ({"input": "a", "errors": 5}, "names a journal"),
    ({"input": "a", "errors": "bad name"}, "journal"),
    ({"input": "a", "batch": 0}, f"batch of 'f' is a number from 1 to {BATCH_MAX}, not 0"),
    ({"input": "a", "batch": BATCH_MAX + 1}, "batch of 'f'"),
    ({"input": "a", "batch": True}, "batch of 'f'"),
    ({"input": "a", "batch": "10"}, "batch of 'f'"),
    ({"input": "a", "parallel": PARALLEL_MAX + 1}, f"parallel of 'f' is a number from 1 to {PARALLEL_MAX}"),
    ({"input": "a", "parallel": 0}, "parallel of 'f'"),
    ({"input": "a", "retries": -1}, f"retries of 'f' is a number from 0 to {RETRIES_MAX}"),
    ({"input": "a", "retries": RETRIES_MAX + 1}, "retries of 'f'"),
    ({"input": "a", "retry_pause": -5}, "negative or too long"),
    ({"input": "a", "retry_pause": "soon"}, "no duration"),
    ({"input": "a", "whole": True, "parallel": 2}, "nothing to run in parallel"),
    ({"input": "a", "types": "a,b"}, "types are texts without commas"),
    ({"input": "a", "types": [""]}, "types are texts"),
    ({"input": "a", "topics": [5]}, "topics are texts"),
    ({"input": "a", "topics": 5}, "topics are a list of texts"),
    ({"input": "a", "formerly": "a/b"}, "no '/'"),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS, ids=lambda value: str(value)[:40])
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        sink("f", one, **options)
    with pytest.raises(Invalid, match=said):
        stream("f", one, output="x", **options)
    with pytest.raises(Invalid, match=said):
        Graph("g").sink(name="f", **options)(one)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no output: say output='...', or make it a sink"),
        ({"outputs": []}, "no output"),
        ({"outputs": {}}, "no output"),
        ({"output": "x", "outputs": ["y"]}, "not both"),
        ({"outputs": ["x", "x"]}, f"up to {OUTPUTS_MAX} outputs, each a different journal"),
        ({"outputs": {"good": "x", "bad": "x"}}, "each a different journal"),
        ({"outputs": [f"x{n}" for n in range(OUTPUTS_MAX + 1)]}, "up to"),
        ({"outputs": 5}, "outputs are a list of texts"),
        ({"outputs": {"good": 5}}, "named by text"),
        ({"output": ""}, "journal"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_outputs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        stream("f", one, input="a", **options)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a", "n" * (NAME_MAX + 1), 5, None])
def test_wrong_names(name: Any) -> None:
    for make in (
        lambda: Graph(name),
        lambda: source(name),
        lambda: stream(name, one, input="a", output="x"),
        lambda: sink(name, one, input="a"),
        lambda: Graph("g").source(name),
        lambda: source("a", formerly="x y" if name is None else name),
    ):
        with pytest.raises(Invalid):
            make()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("one", "needs a function, not str"),
        (None, "needs a function, not None"),
        (generating, "async generator: return a list of Out"),
        (GeneratingObject(), "async generator"),
    ],
)
def test_wrong_functions(function: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        sink("f", function, input="a")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delivery": "maybe"}, "delivery is"),
        ({"stores": {"a b": "memory:"}}, "store"),
        ({"errors": "a b"}, "journal"),
        ({"lease": "499ms"}, "at least 500 ms"),
        ({"lease": None}, "no duration"),
        ({"processors": [one]}, "made by source"),
        ({"processors": [source("a"), source("a")]}, "'a' is declared twice"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_graphs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Graph("g", **options)


def test_names_are_there_once() -> None:
    graph = a_graph()
    graph.sink(input="a")(one)
    with pytest.raises(Invalid, match="'one' is declared twice: each processor has a name of its own"):
        graph.stream(input="b", output="x")(one)
    with pytest.raises(Invalid, match="'a' is declared twice"):
        graph.sink(input="b", name="a")(one)
    assert [each.name for each in graph.processors] == ["a", "b", "c", "one"]


def test_decorators_refuse_what_they_do_not_know() -> None:
    graph = a_graph()
    with pytest.raises(Invalid, match=r"'one'.*'bacth'"):
        graph.sink(input="a", bacth=5)(one)
    with pytest.raises(Invalid, match=r"'one'.*'output'"):
        graph.sink(input="a", output="x")(one)
    with pytest.raises(Invalid, match=r"has no name: give name='...'"):
        graph.sink(input="a")(functools.partial(two, 1))


# -- refused when the graph is checked --------------------------------------------------------------------------------


def test_a_graph_without_processors() -> None:
    with pytest.raises(Invalid, match=r"has no processors: declare one with @graph.stream\(...\)"):
        Graph("g").check()


def test_inputs_that_nobody_writes() -> None:
    with pytest.raises(
        Invalid, match="'f' reads 'order', which is neither a source nor an output: did you mean 'orders'"
    ):
        check(sink("f", one, input="order"), sources=("orders",))
    with pytest.raises(Invalid, match=r"nor an output: declare it: graph.source\('payments'\)"):
        check(sink("f", one, input="payments"), sources=("x",))
    with pytest.raises(Invalid, match=r"declare it: graph.source\('a', output='a@far'\)"):
        check(sink("f", one, input="a@far"), stores={"far": "memory:"})
    check(source("a", output="a@far"), sink("f", one, input="a@far"), sources=(), stores={"far": "memory:"})


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        check(sink("f", one, input="z@nowhere"), sink("g", one, input="y"))
    for said in ("'nowhere'", "'f' reads", "'g' reads 'y'"):
        assert said in str(caught.value)


def test_stores_that_the_graph_does_not_name() -> None:
    with pytest.raises(Invalid, match=r"x@far of 'f' is in a store 'far'.*stores=\{'far': 'file:...'\}"):
        check(stream("f", one, input="a", output="x@far"))
    with pytest.raises(Invalid, match="e@far of 'f' is in a store 'far'"):
        check(stream("f", one, input="a", output="x"), errors="e@far")
    with pytest.raises(Invalid, match="'far'"):
        check(stream("f", one, input="a", output="x", errors="e@far"))
    check(stream("f", one, input="a", output="x@far", errors="e@far"), stores={"far": "memory:"})


def test_error_journals_are_inputs_like_others() -> None:
    check(stream("f", one, input="a", output="x"), sink("g", one, input="e", errors=False), errors="e")
    with pytest.raises(Invalid, match="'g' reads the journal 'e' that its own errors go to: give it errors=False"):
        check(stream("f", one, input="a", output="x"), sink("g", one, input="e"), errors="e")
    with pytest.raises(Invalid, match="'g' reads the journal 'a' that its own errors"):
        check(sink("g", one, input="a", errors="a"))
    with pytest.raises(Invalid, match="'g' reads 'e', which is neither a source"):  # nobody's errors go there
        check(
            stream("f", one, input="a", output="x", errors=False), sink("g", one, input="e", errors=False), errors="e"
        )


def test_circles_are_named() -> None:
    with pytest.raises(Invalid, match="in a circle: ") as caught:
        check(
            stream("f", one, any_of=["a", "z"], output="x"),
            stream("g", one, input="x", output="y"),
            stream("h", one, input="y", output="z"),
        )
    circle = str(caught.value).rpartition(": ")[2].split(" -> ")
    assert len(circle) == 4
    assert (circle[0], sorted(circle[1:])) == (circle[-1], ["f", "g", "h"])
    after = dict(itertools.pairwise(circle))
    assert after == {"f": "g", "g": "h", "h": "f"}
    with pytest.raises(Invalid, match="circle: f -> f"):
        check(stream("f", one, any_of=["a", "x"], output="x"))


def test_a_circle_by_way_of_errors() -> None:
    """A processor that mends what failed, and writes it where it failed, would do so for ever."""
    failing = stream("f", one, any_of=["a", "again"], output="x")
    mending = stream("mend", one, input="e", output="again", errors=False)
    with pytest.raises(Invalid, match="circle"):
        check(failing, mending, errors="e")


def test_formerly_is_the_name_of_nobody_else() -> None:
    with pytest.raises(Invalid, match="'g' is declared, and another processor says that it was called so formerly"):
        check(sink("f", one, input="a", formerly="g"), sink("g", one, input="b"))
    check(sink("f", one, input="a", formerly="g"))


def test_order() -> None:
    graph = Graph(
        "g",
        processors=[
            sink("last", two, join=["x", "y"]),
            sink("told", one, input="e", errors=False),
            stream("second", one, input="x", output="y"),
            stream("first", one, input="a", output="x"),
            source("a"),
        ],
        errors="e",
    )
    names = [each.name for each in graph.in_order()]
    assert sorted(names) == ["a", "first", "last", "second", "told"]
    for before, after in [("a", "first"), ("first", "second"), ("second", "last"), ("first", "told")]:
        assert names.index(before) < names.index(after)
    assert graph.processor("first").outputs == {"x": Place("x")}
    with pytest.raises(Invalid, match="no processor 'frist': it has last, told, second, first, a"):
        graph.processor("frist")


# -- parameters -------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int


class Kept:
    def method(self, message: Message, step: Step) -> None: ...

    def __call__(self, message: Order) -> None: ...


def with_step(message: Any, step: Step) -> None: ...


def with_only_step(step: Step) -> None: ...


def with_default(message: Any, scale: int = 2) -> None: ...


def with_rest(*messages: Any) -> None: ...


def with_rest_and_step(*messages: Any, step: Step) -> None: ...


def with_required_keyword(message: Any, *, scale: int) -> None: ...


def with_keyword(message: Any, *, scale: int = 2, step: Step) -> None: ...


def with_nothing() -> None: ...


@pytest.mark.parametrize(
    "function",
    [one, with_step, with_default, with_rest, with_rest_and_step, with_keyword, Kept().method, Kept()],
    ids=lambda function: getattr(function, "__name__", "object"),
)
def test_functions_of_one_message(function: Callable[..., Any]) -> None:
    check(sink("f", function, input="a"))
    check(sink("f", function, any_of=["a", "b", "c"]))
    check(sink("f", function, input="a", whole=True))


@pytest.mark.parametrize(
    "function",
    [two, with_only_step, with_required_keyword, with_nothing, lambda message, context, step: None],
    ids=lambda function: function.__name__,
)
def test_functions_that_one_message_does_not_fit(function: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="the function of 'f' takes a parameter for each of its inputs, 1 in all"):
        check(sink("f", function, input="a"))
    with pytest.raises(Invalid, match="the function of 'f' takes a list for each of its inputs, 1 in all"):
        check(sink("f", function, input="a", whole=True))


def test_functions_of_joins() -> None:
    check(sink("f", two, join=["a", "b"]))
    check(sink("f", with_default, join=["a", "b"]))
    check(sink("f", with_rest, join=["a", "b", "c"]))
    for function in (one, lambda a, b, c: None):
        with pytest.raises(Invalid, match="2 in all"):
            check(sink("f", function, join=["a", "b"]))
    with pytest.raises(Invalid, match=r"3 in all.*it has left, right"):
        check(sink("f", two, join=["a", "b", "c"]))


def test_functions_of_sources() -> None:
    check(source("s", one), sources=("a",))
    with pytest.raises(Invalid, match="the function of 's'"):
        check(source("s", with_nothing), sources=("a",))


def test_a_parameter_that_no_message_becomes() -> None:
    class Unknown:
        pass

    def function(message: list[Unknown] | set[Unknown]) -> None: ...

    function.__annotations__["message"] = list[Unknown] | set[Unknown]
    with pytest.raises(Invalid, match="a message does not become a"):
        check(sink("f", function, input="a"))


def test_a_function_that_does_not_say_what_it_takes() -> None:
    with pytest.raises(Invalid, match="the function of 'f' does not say which parameters it has"):
        check(sink("f", dict, input="a"))


def test_a_picture_is_of_a_graph_that_can_run() -> None:
    with pytest.raises(Invalid, match="neither a source nor an output"):
        a_graph(sink("f", one, input="z")).draw()


def test_options_that_there_are_not() -> None:
    graph = Graph("g")
    with pytest.raises(Invalid, match="'f' has no option 'batches': did you mean 'batch'"):
        graph.stream(name="f", input="a", output="x", batches=3)(lambda value: value)
    with pytest.raises(Invalid, match="'f' has no option 'output'"):
        graph.sink(name="f", input="a", output="x")(lambda value: value)
    with pytest.raises(Invalid, match="'f' has no option 'inputs': did you mean 'input'"):
        graph.sink(name="f", inputs=["a"])(lambda value: value)
    with pytest.raises(Invalid, match="a lambda has no name"):
        graph.sink(input="a")(lambda value: value)
    for decorator in (graph.stream, graph.sink):
        with pytest.raises(Invalid, match=r"write @graph\..*input="):
            decorator(lambda value: value)
    assert graph.processors == []


def test_progress_is_taken_over_by_one() -> None:
    graph = Graph("g")
    graph.source("a")
    for name in ("f", "h"):
        graph.sink(name=name, input="a", formerly="old")(lambda value: None)
    with pytest.raises(Invalid, match="several processors say formerly='old'"):
        graph.check()
