"""How messages become parameters, and answers messages: all without a store."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from detent.codec.block import HEADER_BYTES_MAX, HEADERS_MAX, MESSAGE_BYTES_MAX
from detent.errors import Busy, Fenced, Invalid, OutcomeUnknown, Unavailable
from detent.processor import Message, Out, Polled, Processor, Step, provenance_of, sink, source, stream
from detent.processor.calling import FunctionCalls as Caller
from detent.processor.declaration import place
from detent.processor.outcome import (
    BODIES_SHOWN_MAX,
    INPUTS_SHOWN_MAX,
    MESSAGE_CHARACTERS_MAX,
    OWED_BYTES_MAX,
    STEP_BYTES_MAX,
    TRACE_CHARACTERS_MAX,
)
from detent.processor.outcome import (
    StepOutcome as Outcome,
)
from detent.runtime.loop import call_on, loop_in_thread

if TYPE_CHECKING:
    from fractions import Fraction

SERIES = "0123456789abcdef" * 2
PATIENCE_S = 30.0


def a_message(
    body: Any = b"1",
    *,
    key: bytes | None = None,
    headers: dict[str, str] | None = None,
    journal: str = "a",
    offset: int = 0,
    published_ms: int = 1_000,
) -> Message:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Message(
        body=raw,
        key=key,
        headers=headers or {},
        producer=bytes(6),
        clock=0,
        published_ms=published_ms,
        offset=offset,
        journal=journal,
    )


def sets_of(*bodies: Any, keys: str = "") -> list[tuple[Message, ...]]:
    """Input sets of one message each; `keys` has a letter for each that has a key."""
    found: list[tuple[Message, ...]] = []
    for offset, body in enumerate(bodies):
        key = keys[offset].encode() if keys and keys[offset] != "-" else None
        found.append((a_message(body, key=key, offset=offset),))
    return found


def shown(value: Any) -> str:
    """A name for a case, the same in every process."""
    if value is DEEP or isinstance(value, memoryview | Unheard):
        return type(value).__name__
    return repr(value[:10] if isinstance(value, bytes) else value)[:40]


class Unheard:
    pass


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Ran:
    """What came of some input sets."""

    def __init__(
        self,
        processor: Processor,
        sets: Sequence[tuple[Message, ...]],
        *,
        errors: str | None = "e",
        system: Any = None,
        run_coroutine: Callable[[Any], Any] | None = None,
        first: int = 0,
    ) -> None:
        self.errors_to = None if errors is None else place(errors)
        caller = Caller("g", processor, self.errors_to, system, run_coroutine)
        try:
            self.outcome, self.error = caller.run(sets, SERIES, first)
        finally:
            caller.close()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Input sets that gave outputs, errors and nothing."""
        return self.outcome.outputs, self.outcome.errors, self.outcome.nils

    def messages(self, output: str = "x") -> list[tuple[bytes, bytes | None, dict[str, str]]]:
        out = self.outcome.outgoing.get(place(output))
        if out is None:
            return []
        return [
            (body, key, dict(headers or {}))
            for body, key, headers in zip(out.bodies, out.keys, out.headers, strict=True)
        ]

    def bodies(self, output: str = "x") -> list[bytes]:
        return [body for body, _, _ in self.messages(output)]

    def failures(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies("e")]

    def failure(self) -> str:
        """The one error."""
        (found,) = self.failures()
        assert self.counts == (0, 1, 0)
        return f"{found['error']}: {found['message']}"


def answering(answer: Any, **options: Any) -> Ran:
    """A function that answers this, whatever it is asked."""
    options = {"output": "x", **options} if "outputs" not in options else options
    return Ran(stream("f", lambda message: answer, input="a", **options), sets_of(1))


def seen_by(function: Callable[..., Any], sets: Sequence[tuple[Message, ...]], **options: Any) -> Ran:
    options = {"input": "a", **options} if not {"join", "any_of"} & set(options) else options
    return Ran(sink("f", function, **options), sets)


# -- parameters -------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    note: str = ""


class Payment(msgspec.Struct):
    amount: int


class Summing:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, order: Order) -> None:
        self.seen.append(order)

    def method(self, payment: Payment, step: Step) -> None:
        self.seen.append((payment, step.number))


@pytest.mark.parametrize(
    ("annotation", "body", "expected"),
    [
        (Any, b'{"id": 1}', {"id": 1}),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (Order, b'{"id": 1, "other": 2}', Order(1)),
        (Payment, b'{"amount": 3}', Payment(3)),
        (Order | Payment | None, b"null", None),
        (list[int], b"[1, 2]", [1, 2]),
        (float, b"1", 1.0),
        (datetime, b'"2026-01-02T03:04:05Z"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (bytes | None, b"no JSON", b"no JSON"),
        (dict, b"{}", {}),
    ],
    ids=str,
)
def test_a_parameter_gets_what_it_is_annotated_with(annotation: Any, body: bytes, expected: Any) -> None:
    seen = []

    def function(value: Any) -> None:
        seen.append(value)

    function.__annotations__["value"] = annotation
    if annotation == Order | Payment | None:  # msgspec tells several classes apart by their tags only
        function.__annotations__["value"] = Order | None
    assert seen_by(function, sets_of(body)).counts == (0, 0, 1)
    assert seen == [expected]
    assert type(seen[0]) is type(expected)


def test_a_parameter_without_annotation_gets_json() -> None:
    seen: list[Any] = []
    assert seen_by(lambda value: seen.append(value), sets_of({"a": [1, None]})).counts == (0, 0, 1)
    assert seen == [{"a": [1, None]}]


def test_the_whole_message() -> None:
    seen: list[Message] = []

    def function(message: Message) -> None:
        seen.append(message)

    def careful(message: Message | None) -> None:
        assert message is not None
        seen.append(message)

    sets = sets_of(b"no JSON", keys="k")
    for each in (function, careful):
        seen_by(each, sets)
    assert [message is sets[0][0] for message in seen] == [True, True]


def test_the_step() -> None:
    seen: list[Step] = []

    def function(value: int, step: Step) -> None:
        seen.append(step)

    system = object()
    sets = sets_of(1, 2, 3)
    Ran(sink("f", function, input="a", batch=3), sets, system=system, first=40)
    assert [step.number for step in seen] == [40, 41, 42]
    assert [step.key for step in seen] == [f"{SERIES}-{number}" for number in (40, 41, 42)]
    assert {(step.graph, step.processor, step.name, step.series) for step in seen} == {("g", "f", "g/f", SERIES)}
    assert {(step.floor, step.attempt) for step in seen} == {(40, 1)}
    assert [tuple(step.inputs) for step in seen] == sets
    assert all(step.system is system for step in seen)
    assert all(len(step.key) <= 60 for step in seen)


def test_a_step_that_is_asked_for_by_keyword_only() -> None:
    seen = []

    def function(*values: Any, step: Step) -> None:
        seen.append((values, step.number))

    pair = (a_message(1), a_message(2, journal="b"))
    seen_by(function, [pair], join=["a", "b"])
    assert seen == [((1, 2), 0)]


def test_objects_methods_and_partials() -> None:
    summing = Summing()
    seen_by(summing, sets_of({"id": 1}))
    seen_by(summing.method, sets_of({"amount": 2}))

    def scaled(scale: int, order: Order, *, offset: int) -> None:
        summing.seen.append((scale, order, offset))

    seen_by(functools.partial(scaled, 3, offset=4), sets_of({"id": 5}))
    assert summing.seen == [Order(1), (Payment(2), 0), (3, Order(5), 4)]


def test_names_that_only_a_type_checker_knows() -> None:
    """What a function returns may be one; a parameter would be filled with something else than it says."""
    seen = []

    def returns(value: bytes) -> Fraction | None:
        seen.append(value)

    seen_by(returns, sets_of(5))
    assert seen == [b"5"]

    def takes(value: Fraction) -> None:
        seen.append(value)

    with pytest.raises(Invalid, match="annotation that cannot be found when it runs: name 'Fraction'"):
        seen_by(takes, sets_of(5))


def test_parameters_of_a_join_are_in_the_order_of_the_inputs() -> None:
    seen: list[Any] = []

    def function(order: Order, raw: bytes, payment: Payment) -> None:
        seen.append((order, raw, payment))

    messages = (
        a_message({"id": 1}),
        a_message(b"raw", journal="b"),
        a_message({"amount": 2}, journal="c"),
    )
    seen_by(function, [messages], join=["a", "b", "c"])
    assert seen == [(Order(1), b"raw", Payment(2))]


def test_a_message_that_does_not_become_the_parameter_is_an_error() -> None:
    def function(order: Order) -> None:
        raise AssertionError("it is not called")

    found = seen_by(function, sets_of({"id": "one"}, b"{", {}))
    assert found.counts == (0, 3, 0)
    assert [failure["error"] for failure in found.failures()] == ["ValidationError", "DecodeError", "ValidationError"]
    assert "$.id" in found.failures()[0]["message"]


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"\xff", b"\xff"),
        (b"", b""),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"cd"), b"cd"),
        ({"b": 1, "a": None}, b'{"a":null,"b":1}'),
        ("text", b'"text"'),
        (0, b"0"),
        (False, b"false"),
        ([], b"[]"),
        ([1, "two"], b'[1,"two"]'),
        ((1, 2), b"[1,2]"),
        (Order(3), b'{"id":3,"note":""}'),
        (Payment(4), b'{"amount":4}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00Z"'),
        (Out(5), b"5"),
        (Out(b"6", to="x"), b"6"),
        ([Out(7)], b"7"),
    ],
    ids=shown,
)
def test_answers_of_one_message(answer: Any, body: bytes) -> None:
    found = answering(answer)
    assert (found.bodies(), found.counts) == ([body], (1, 0, 0))


def test_none_is_nothing() -> None:
    found = answering(None)
    assert (found.bodies(), found.counts, found.outcome.sets) == ([], (0, 0, 1), 1)


@pytest.mark.parametrize("answer", [[Out(1), Out(2), Out(b"3")], (Out(1), Out(2), Out(b"3"))], ids=["list", "tuple"])
def test_several_messages(answer: Any) -> None:
    found = answering(answer)
    assert (found.bodies(), found.counts) == ([b"1", b"2", b"3"], (1, 0, 0))


def test_generators() -> None:
    def function(count: int) -> Iterator[Any]:
        for number in range(count):
            yield number
            yield None
        yield from [Out("last", key="k"), [Out(1), Out(2)], b"raw"]

    found = Ran(stream("f", function, input="a", output="x"), sets_of(2, 0))
    assert found.bodies() == [b"0", b"1", b'"last"', b"1", b"2", b"raw", b'"last"', b"1", b"2", b"raw"]
    assert found.counts == (2, 0, 0)


def test_a_generator_that_yields_nothing() -> None:
    def function(value: Any) -> Iterator[Any]:
        if value:
            yield value

    found = Ran(stream("f", function, input="a", output="x"), sets_of(0, 1))
    assert (found.bodies(), found.counts) == ([b"1"], (1, 0, 1))


def test_nothing_of_a_generator_that_fails_is_written() -> None:
    def function(value: Any) -> Iterator[Any]:
        yield 1
        raise KeyError("half way")

    found = Ran(stream("f", function, input="a", output="x"), sets_of(0))
    assert (found.bodies(), found.failure()) == ([], "KeyError: 'half way'")


def test_an_object_whose_call_yields() -> None:
    class Twice:
        def __call__(self, value: Any) -> Iterator[Any]:
            yield value
            yield value

    assert Ran(stream("f", Twice(), input="a", output="x"), sets_of(1)).bodies() == [b"1", b"1"]


def test_dictionaries_of_outputs() -> None:
    outputs = {"good": "x", "bad": "y@far", "none": "z"}
    answer = {"good": 1, "bad": Out(2, key="k", to="elsewhere"), "none": None}
    found = answering(answer, outputs=outputs)
    assert found.counts == (1, 0, 0)
    assert [found.bodies(name) for name in ("x", "y@far", "z")] == [[b"1"], [b"2"], []]
    assert found.messages("y@far")[0][1] == b"k"
    assert [each.store for each in found.outcome.owed()] == ["far"]
    assert len(found.outcome.operations()) == 1


@pytest.mark.parametrize(
    ("answer", "bodies"),
    [
        ({}, [[], []]),
        ({"y": 5}, [[], [b"5"]]),
        ({"x": {"y": 1}}, [[b'{"y":1}'], []]),
        ({"x": [Out(1), Out(2)], "y": [3]}, [[b"1", b"2"], [b"[3]"]]),
        (Out(1, to="y"), [[], [b"1"]]),
        ([Out(1, to="y"), Out(2, to="x"), Out(3, to="y")], [[b"2"], [b"1", b"3"]]),
    ],
    ids=shown,
)
def test_several_outputs(answer: Any, bodies: list[list[bytes]]) -> None:
    found = answering(answer, outputs=["x", "y"])
    assert [found.bodies("x"), found.bodies("y")] == bodies
    assert found.counts == ((1, 0, 0) if any(bodies) else (0, 0, 1))


def test_a_dictionary_is_a_value_where_there_is_one_output() -> None:
    assert answering({"x": 1}).bodies() == [b'{"x":1}']
    assert answering({"x": 1}, outputs={"x": "x"}).bodies() == [b'{"x":1}']


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        ({"z": 1}, {"outputs": ["x", "y"]}, "there is no output 'z': this processor has x, y"),
        (5, {"outputs": ["x", "y"]}, "has the outputs x, y: answer a dictionary of them, or Out(..., to='x'), not int"),
        (Out(5), {"outputs": ["x", "y"]}, "there is no output None"),
        (Out(5, to="y"), {}, "there is no output 'y': this processor has x"),
        ([Out(1), 2], {}, "a list of messages has an Out for each of them"),
        ({"x": [Out(1), 2]}, {"outputs": ["x", "y"]}, "a list of messages has an Out for each of them"),
        (Unheard(), {}, "Unheard does not become JSON, and is not bytes"),
        (DEEP, {}, "list does not become JSON"),
        ("\ud800", {}, "str does not become JSON"),
        (Out(1, headers={"detent": "mine"}), {}, "the header 'detent' is written by processors themselves"),
        (Out(1, headers={"a": "b" * HEADER_BYTES_MAX}), {}, "are over the limit of"),
        (Out(1, headers={str(n): "" for n in range(HEADERS_MAX)}), {}, f"at most {HEADERS_MAX} headers"),
        (Out(1, headers={"a": "\ud800"}), {}, "header names and values are text"),
        (Out(1, headers={"a": 5}), {}, "int"),  # type: ignore[dict-item]
        (Out(1, type=5), {}, "int"),  # type: ignore[arg-type]
        (Out(1, key=5), {}, "int"),  # type: ignore[arg-type]
        (Out(1, topics="topic"), {}, "topics are a list of texts without commas"),
        (Out(1, topics=["a,b"]), {}, "topics are a list of texts without commas"),
        (bytes(MESSAGE_BYTES_MAX), {}, "is over the limit of"),
        ([Out(bytes(13 << 20))] * 4, {}, "bytes came of one input set"),
        (bytes(OWED_BYTES_MAX), {"output": "x@far"}, "of them for other stores"),
    ],
    ids=shown,
)
def test_answers_that_cannot_be_written_are_errors(answer: Any, options: dict[str, Any], said: str) -> None:
    """Of the function, for this input: the processor goes on."""
    assert said in answering(answer, **options).failure()


def test_large_answers_that_can_be_written() -> None:
    largest = bytes(MESSAGE_BYTES_MAX - HEADER_BYTES_MAX)
    assert answering(largest).counts == (1, 0, 0)
    assert answering(bytes(OWED_BYTES_MAX - 1_000), output="x@far").counts == (1, 0, 0)


def test_what_sinks_answer_is_nobodys_business() -> None:
    assert seen_by(lambda value: {"status": 200}, sets_of(1)).counts == (0, 0, 1)


def test_a_sink_that_has_not_done_anything() -> None:
    """A lambda that calls an async function, or a generator: without a word its messages would be lost."""

    async def save(value: Any) -> None:
        raise AssertionError("nobody runs it")

    assert "which is not run" in seen_by(lambda value: save(value), sets_of(1)).failure()
    assert "which is not run" in seen_by(lambda value: (x for x in [value]), sets_of(1)).failure()


def test_a_sink_that_yields() -> None:
    seen = []

    def function(value: Any) -> Iterator[Any]:
        seen.append(value)
        yield None if value == 1 else value

    found = seen_by(function, sets_of(1, 2))
    assert (seen, found.counts) == ([1, 2], (0, 1, 1))
    assert "a sink answers nothing, not int" in found.failures()[0]["message"]


# -- keys, types, topics, headers -------------------------------------------------------------------------------------


def test_keys_are_inherited() -> None:
    answers = {
        1: b"raw",
        2: {"some": "json"},
        3: Out(1),
        4: Out(1, key=b"own"),
        5: Out(1, key="text"),
        6: Out(1, key=b""),
    }
    processor = stream("f", lambda value: answers[value], input="a", output="x")
    found = Ran(processor, sets_of(*answers, keys="kkkkkk"))
    assert [key for _, key, _ in found.messages()] == [b"k", b"k", b"k", b"own", b"text", b""]
    assert [key for _, key, _ in Ran(processor, sets_of(1, 2, 3)).messages()] == [None, None, None]


@pytest.mark.parametrize("answer", [b"raw", 5])
def test_the_key_of_a_join_is_that_of_the_first_input_that_has_one(answer: Any) -> None:
    processor = stream("f", lambda a, b, c: answer, join=["a", "b", "c"], output="x")
    messages = (a_message(1), a_message(2, journal="b", key=b"second"), a_message(3, journal="c", key=b"third"))
    assert Ran(processor, [messages]).messages()[0][1] == b"second"


def test_headers_types_and_topics() -> None:
    found = answering(Out(1, headers={"trace": "5"}, type="order", topics=["eu", "urgent"]))
    headers = dict(found.messages()[0][2])
    assert headers.pop("detent").startswith(f"1 g/f {SERIES}-0 1000 a#0")
    assert headers == {"trace": "5", "type": "order", "topics": "eu,urgent"}


def test_headers_are_not_inherited() -> None:
    processor = stream("f", lambda value: value, input="a", output="x")
    found = Ran(processor, [(a_message(1, headers={"type": "order", "own": "1"}),)])
    assert set(found.messages()[0][2]) == {"detent"}


def test_each_output_says_where_it_comes_from() -> None:
    def either(value: int) -> Any:
        return b"raw" if value % 2 else {"json": value}

    found = Ran(stream("f", either, input="a", output="x"), sets_of(*range(10)), first=7)
    for offset, (body, key, headers) in enumerate(found.messages()):
        said = provenance_of(a_message(body, key=key, headers=headers))
        assert said is not None
        assert (said.processor, said.key, said.born_ms) == ("g/f", f"{SERIES}-{7 + offset}", 1_000)
        assert [(str(each.place), each.first, each.last) for each in said.inputs] == [("a", offset, offset)]


# -- filters ----------------------------------------------------------------------------------------------------------

TYPED = [
    {"type": "t"},
    {"type": "u"},
    {"type": "other"},
    {},
    {"topics": "p"},
    {"topics": "q,p"},
    {"type": "t", "topics": "p,q"},
    {"type": "pp", "topics": "pp"},
]


@pytest.mark.parametrize(
    ("filters", "passing"),
    [
        ({"types": "t"}, [0, 6]),
        ({"types": ["t", "u"]}, [0, 1, 6]),
        ({"topics": "p"}, [4, 5, 6]),
        ({"topics": ["q", "r"]}, [5, 6]),
        ({"types": "t", "topics": "p"}, [6]),
        ({"types": "nobody"}, []),
    ],
    ids=str,
)
def test_filters(filters: dict[str, Any], passing: list[int]) -> None:
    seen = []

    def function(number: int) -> int:
        seen.append(number)
        return number

    sets = [(a_message(offset, headers=headers, offset=offset),) for offset, headers in enumerate(TYPED)]
    found = Ran(stream("f", function, input="a", output="x", **filters), sets)
    assert seen == passing
    assert found.bodies() == [b"%d" % number for number in passing]
    assert found.counts == (len(passing), 0, len(TYPED) - len(passing))


def test_filters_of_a_join() -> None:
    """Messages that do not match are None; where nothing is left, nobody is called."""
    seen: list[Any] = []

    def function(order: Order | None, raw: bytes | None, step: Step) -> list[Any]:
        seen.append((order, raw, [message.offset for message in step.inputs]))
        return [order, raw is not None]

    def pair(offset: int, left: str, right: str) -> tuple[Message, ...]:
        return (
            a_message({"id": offset}, headers={"type": left}, offset=offset),
            a_message(b"raw", headers={"type": right}, journal="b", offset=offset),
        )

    sets = [pair(0, "t", "t"), pair(1, "u", "t"), pair(2, "t", "u"), pair(3, "u", "u")]
    found = Ran(stream("f", function, join=["a", "b"], output="x", types="t"), sets)
    assert seen == [(Order(0), b"raw", [0, 0]), (None, b"raw", [1, 1]), (Order(2), None, [2, 2])]
    assert found.counts == (3, 0, 1)
    said = provenance_of(a_message(headers=found.messages()[1][2]))
    assert said is not None
    assert [str(each.place) for each in said.inputs] == ["a", "b"]  # both were taken


# -- errors and retries -----------------------------------------------------------------------------------------------


def test_errors_go_to_their_journal_with_the_inputs() -> None:
    def function(left: Any, right: bytes) -> None:
        raise ValueError("no good")

    messages = (
        a_message({"id": 1}, key=b"k\xff", offset=3),
        a_message(b"\xff", journal="b@far", offset=4),
    )
    found = Ran(sink("f", function, join=["a", "b@far"], retries=2, retry_pause="0ms"), [messages], first=9)
    assert found.counts == (0, 1, 0)
    ((_, key, headers),) = found.messages("e")
    (said,) = found.failures()
    assert (key, headers["type"]) == (b"k\xff", "error")
    assert headers["detent"] == f"1 g/f {SERIES}-9 1000 a#3 b@far#4"
    trace = said.pop("trace")
    assert said == {
        "processor": "g/f",
        "key": f"{SERIES}-9",
        "attempts": 3,
        "error": "ValueError",
        "message": "no good",
        "inputs": [
            {"journal": "a", "offset": 3, "key": "k\\xff", "body": '{"id":1}'},
            {"journal": "b@far", "offset": 4, "base64": "/w=="},
        ],
    }
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: no good\n")
    assert "/processor/calling.py" not in trace, "frames of ours tell nobody anything"


def test_errors_go_on_behind_the_one_that_failed() -> None:
    processor = stream("f", lambda value: 6 // value, input="a", output="x", batch=4)
    found = Ran(processor, sets_of(1, 0, 2, 0))
    assert (found.bodies(), found.counts, found.error) == ([b"6", b"3"], (2, 2, 0), None)
    assert [failure["key"] for failure in found.failures()] == [f"{SERIES}-1", f"{SERIES}-3"]


def test_without_an_error_journal_the_first_failure_ends_the_step() -> None:
    """What came before it is kept."""
    called = []

    def function(value: int) -> int:
        called.append(value)
        return 6 // value

    found = Ran(stream("f", function, input="a", output="x", batch=4), sets_of(1, 2, 0, 3), errors=None)
    assert (found.bodies(), found.counts, found.outcome.sets) == ([b"6", b"3"], (2, 0, 0), 2)
    assert isinstance(found.error, ZeroDivisionError)
    assert called == [1, 2, 0]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("\udcff.txt"), "FileNotFoundError: \\udcff.txt"),
        (Mute(), "Mute: str() of this error failed with RuntimeError"),
        (ExceptionGroup("both", [ValueError(1), KeyError(2)]), "ExceptionGroup: both (2 sub-exceptions)"),
        (AssertionError(), "AssertionError: "),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_are_hard_to_tell(error: Exception, said: str) -> None:
    def function(value: Any) -> None:
        raise error

    assert seen_by(function, sets_of(1)).failure() == said


def test_errors_have_an_end() -> None:
    def function(values: list[Any]) -> None:
        raise ValueError("x" * 100_000)

    body = bytes(BODIES_SHOWN_MAX // 4)
    sets = [(a_message(body, offset=offset),) for offset in range(INPUTS_SHOWN_MAX + 5)]

    def raw(values: list[bytes]) -> None:
        function(values)

    found = seen_by(raw, sets, whole=True)
    (said,) = found.failures()
    assert (len(said["message"]), len(said["trace"])) == (MESSAGE_CHARACTERS_MAX, TRACE_CHARACTERS_MAX)
    assert len(said["inputs"]) == INPUTS_SHOWN_MAX
    assert ["body" in shown for shown in said["inputs"][:6]] == [True] * 4 + [False] * 2
    assert said["inputs"][5] == {"journal": "a", "offset": 5, "bytes": len(body)}


def test_retries() -> None:
    attempts: list[int] = []

    def function(value: Any, step: Step) -> str:
        attempts.append(step.attempt)
        if step.attempt < 3:
            raise ConnectionError("not yet")
        return step.key

    found = Ran(stream("f", function, input="a", output="x", retries=3, retry_pause="0ms"), sets_of(1))
    assert (attempts, found.counts) == ([1, 2, 3], (1, 0, 0))
    assert found.bodies() == [f'"{SERIES}-0"'.encode()]


@pytest.mark.parametrize("plain", [True, False])
def test_retries_that_are_not_enough(plain: bool) -> None:
    calls = []

    def function(value: Any) -> Any:
        calls.append(value)
        return Unheard()  # an answer that cannot be written is tried again like any failure

    def with_step(value: Any, step: Step) -> Any:
        return function(value)

    options: dict[str, Any] = {"input": "a", "output": "x", "retries": 2, "retry_pause": "0ms"}
    found = Ran(stream("f", function if plain else with_step, **options), sets_of(1))
    assert (calls, found.counts, found.failures()[0]["attempts"]) == ([1, 1, 1], (0, 1, 0), 3)
    calls.clear()
    found = Ran(stream("f", function if plain else with_step, **options), sets_of(1), errors=None)
    assert (calls, found.counts, type(found.error)) == ([1, 1, 1], (0, 0, 0), Invalid)


@pytest.mark.parametrize("errors", ["e", None])
def test_who_is_told_to_stop_rests_no_longer(errors: str | None) -> None:
    """What was not tried often enough is no error yet: whoever goes on tries it again."""
    calls = []

    def function(value: Any) -> None:
        calls.append(value)
        caller.stop()
        raise ConnectionError("not yet")

    processor = stream("f", function, input="a", output="x", retries=5, retry_pause="1h")
    caller = Caller("g", processor, None if errors is None else place(errors), None)
    outcome, error = caller.run(sets_of(1, 2), SERIES, 0)
    assert (calls, outcome.sets, type(error)) == ([1], 0, ConnectionError)


@pytest.mark.parametrize(
    "error", [Unavailable("away"), OutcomeUnknown("away"), Busy("full"), Fenced("replaced")], ids=repr
)
def test_what_is_away_is_no_error_of_the_message(error: Exception) -> None:
    """It is tried again, as if there were no error journal: the next message would fail the same way."""
    calls = []

    def function(value: Any) -> None:
        calls.append(value)
        if value == 2:
            raise error

    found = seen_by(function, sets_of(1, 2, 3), retries=1, retry_pause="0ms")
    assert (calls, found.counts, found.error) == ([1, 2, 2], (0, 0, 1), error)


def test_what_is_no_exception_is_nobodys_error() -> None:
    def function(value: Any) -> None:
        sys.exit(3)

    for processor in (sink("f", function, input="a", batch=3), sink("f", function, input="a", batch=3, parallel=2)):
        found = Ran(processor, sets_of(1, 2, 3))
        assert (type(found.error), found.counts) == (SystemExit, (0, 0, 0))


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_step_ends_early_when_it_has_given_much() -> None:
    body = bytes(STEP_BYTES_MAX // 2)
    answers: list[tuple[Any, int]] = [
        (body, len(body)),
        (Out(body), len(body)),
        (Out(b"", headers={"h": "x" * 60_000}), 60_000),
    ]
    for answer, size in answers:
        sets = sets_of(*range(100))
        found = Ran(stream("f", lambda value, answer=answer: answer, input="a", output="x", batch=100), sets)
        assert found.error is None
        assert STEP_BYTES_MAX // size <= found.outcome.sets <= STEP_BYTES_MAX // size + 2
        assert found.counts == (found.outcome.sets, 0, 0)


def test_whole_batches() -> None:
    seen: list[Any] = []

    def function(orders: list[Order], step: Step) -> Any:
        seen.append((orders, step.number, step.floor, [message.offset for message in step.inputs]))
        return {"count": len(orders)}

    found = Ran(
        stream("f", function, input="a", output="x", whole=True, batch=3),
        sets_of({"id": 1}, {"id": 2}, {"id": 3}, keys="-kl"),
        first=5,
    )
    assert seen == [([Order(1), Order(2), Order(3)], 5, 5, [0, 1, 2])]
    assert (found.bodies(), found.counts) == ([b'{"count":3}'], (3, 0, 0))
    ((_, key, headers),) = found.messages()
    assert (key, headers["detent"]) == (b"k", f"1 g/f {SERIES}-5 1000 a#0-2")


def test_whole_batches_of_joins() -> None:
    def function(left: list[bytes], right: list[Message], step: Step) -> Iterator[Any]:
        for one, other in zip(left, right, strict=True):
            yield Out(one + other.body)

    sets = [(a_message(b"l%d" % n, offset=n), a_message(b"r%d" % n, journal="b", offset=n)) for n in range(300)]
    found = Ran(stream("f", function, join=["a", "b"], output="x", whole=True, batch=300), sets)
    assert found.bodies() == [b"l%dr%d" % (n, n) for n in range(300)]
    assert found.counts == (300, 0, 0)
    assert {headers["detent"].partition(" 1000 ")[2] for _, _, headers in found.messages()} == {"a#0-299 b#0-299"}


def test_a_whole_batch_that_gives_nothing() -> None:
    found = Ran(stream("f", lambda values: None, input="a", output="x", whole=True, batch=3), sets_of(1, 2, 3))
    assert (found.bodies(), found.counts) == ([], (0, 0, 3))


def test_a_whole_batch_that_fails() -> None:
    processor = stream("f", lambda values: 1 // 0, input="a", output="x", whole=True, batch=3)
    found = Ran(processor, sets_of(1, 2, 3))
    assert (found.bodies(), found.counts) == ([], (0, 3, 0))
    (said,) = found.failures()
    assert (said["key"], [shown["offset"] for shown in said["inputs"]]) == (f"{SERIES}-0", [0, 1, 2])
    found = Ran(processor, sets_of(1, 2, 3), errors=None)
    assert (found.outcome.sets, type(found.error)) == (0, ZeroDivisionError)


def test_a_whole_batch_with_filters() -> None:
    calls = []

    def function(values: list[int]) -> Any:
        calls.append(values)
        return 1 // (len(values) - 1)

    def typed(*types: str) -> list[tuple[Message, ...]]:
        return [(a_message(n, headers={"type": kind}, offset=n),) for n, kind in enumerate(types)]

    processor = stream("f", function, input="a", output="x", whole=True, batch=4, types="t")
    assert Ran(processor, typed("t", "u", "t", "u")).counts == (2, 0, 2)
    assert Ran(processor, typed("u", "u", "t")).counts == (0, 1, 2)
    assert Ran(processor, typed("u", "u")).counts == (0, 0, 2)
    assert calls == [[0, 2], [2]]
    failed = Ran(processor, typed("u", "u", "t"), errors=None)
    assert (failed.outcome.sets, type(failed.error)) == (0, ZeroDivisionError)


def test_a_whole_batch_of_a_join_with_filters() -> None:
    calls = []

    def function(left: list[int | None], right: list[bytes | None]) -> None:
        calls.append((left, right))

    sets = [
        (
            a_message(n, headers={"type": left}, offset=n),
            a_message(b"r", headers={"type": right}, journal="b", offset=n),
        )
        for n, (left, right) in enumerate([("t", "t"), ("t", "u"), ("u", "t"), ("u", "u")])
    ]
    found = seen_by(function, sets, join=["a", "b"], whole=True, types="t")
    assert calls == [([0, 1, None], [b"r", None, b"r"])]
    assert found.counts == (0, 0, 4)


# -- in parallel ------------------------------------------------------------------------------------------------------


def test_different_keys_run_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def function(value: int) -> int:
        together.wait(PATIENCE_S)
        return value

    found = Ran(stream("f", function, input="a", output="x", parallel=3), sets_of(1, 2, 3, keys="ab-"))
    assert (found.bodies(), found.counts) == ([b"1", b"2", b"3"], (3, 0, 0))


def test_messages_of_one_key_run_in_order_and_outputs_are_in_the_order_of_the_inputs() -> None:
    order: dict[bytes, list[int]] = {}
    running: set[bytes] = set()
    lock = threading.Lock()
    first_done = threading.Event()

    def function(message: Message) -> bytes:
        key = message.key
        assert key is not None
        with lock:
            assert key not in running, "two of one key at once"
            running.add(key)
        if message.offset == 0:
            assert first_done.wait(PATIENCE_S)  # the first ends when the last has begun
        if message.offset == 8:
            first_done.set()
        with lock:
            running.discard(key)
            order.setdefault(key, []).append(message.offset)
        return b"%d" % message.offset

    processor = stream("f", function, input="a", output="x", parallel=4)
    found = Ran(processor, sets_of(*range(9), keys="abcabcabc"))
    assert order == {b"a": [0, 3, 6], b"b": [1, 4, 7], b"c": [2, 5, 8]}
    assert found.bodies() == [b"%d" % offset for offset in range(9)]


def test_one_of_many_in_parallel_fails() -> None:
    """Without an error journal those before it are kept, and those behind it of the same key are not even tried."""
    called = []

    def function(message: Message) -> bytes:
        called.append(message.offset)
        if message.offset == 2:
            raise ValueError("this one")
        return b"%d" % message.offset

    options: dict[str, Any] = {"input": "a", "output": "x", "parallel": 2, "batch": 8}
    found = Ran(stream("f", function, **options), sets_of(*range(6), keys="ababab"), errors=None)
    assert (found.bodies(), found.counts) == ([b"0", b"1"], (2, 0, 0))
    assert isinstance(found.error, ValueError)
    assert 4 not in called
    found = Ran(stream("f", function, **options), sets_of(*range(6), keys="ababab"))
    assert (found.bodies(), found.counts, found.error) == ([b"0", b"1", b"3", b"4", b"5"], (5, 1, 0), None)
    assert found.failures()[0]["key"] == f"{SERIES}-2"


def test_filters_and_limits_in_parallel() -> None:
    sets = [(a_message(n, headers={"type": "t" if n % 2 else "u"}, offset=n),) for n in range(10)]
    found = Ran(stream("f", lambda value: value, input="a", output="x", parallel=4, types="t", batch=10), sets)
    assert (found.bodies(), found.counts) == ([b"1", b"3", b"5", b"7", b"9"], (5, 0, 5))
    body = bytes(STEP_BYTES_MAX // 2)
    found = Ran(stream("f", lambda value: body, input="a", output="x", parallel=4), sets)
    assert (found.outcome.sets in {2, 3}, found.error) == (True, None)


def test_several_outputs_in_parallel() -> None:
    def function(value: int) -> dict[str, int]:
        return {"x" if value % 2 else "y": value}

    found = Ran(stream("f", function, input="a", outputs=["x", "y"], parallel=3), sets_of(*range(6)))
    assert (found.bodies("x"), found.bodies("y")) == ([b"1", b"3", b"5"], [b"0", b"2", b"4"])


# -- async functions --------------------------------------------------------------------------------------------------


def test_async_functions() -> None:
    async def function(value: int, step: Step) -> Any:
        await asyncio.sleep(0)
        if value == 2:
            raise ValueError("two")
        return [Out(value), Out(step.number)]

    class Saving:
        async def __call__(self, order: Order) -> None:
            await asyncio.sleep(0)
            saved.append(order)

    saved: list[Order] = []
    with loop_in_thread() as loop:
        run = call_on(loop)
        found = Ran(stream("f", function, input="a", output="x"), sets_of(1, 2, 3), run_coroutine=run)
        assert found.bodies() == [b"1", b"0", b"3", b"2"]
        assert found.counts == (2, 1, 0)
        assert Ran(sink("s", Saving(), input="a"), sets_of({"id": 1}), run_coroutine=run).counts == (0, 0, 1)
    assert saved == [Order(1)]


def test_async_functions_in_parallel() -> None:
    """They wait for each other on one loop."""
    arrived: list[int] = []

    async def function(value: int) -> int:
        arrived.append(value)
        async with asyncio.timeout(PATIENCE_S):
            while len(arrived) < 4:
                await asyncio.sleep(0.001)
        return value

    with loop_in_thread() as loop:
        processor = stream("f", function, input="a", output="x", parallel=4)
        found = Ran(processor, sets_of(*range(4)), run_coroutine=call_on(loop))
    assert found.bodies() == [b"0", b"1", b"2", b"3"]


# -- sources that are asked -------------------------------------------------------------------------------------------


def polled(function: Callable[..., Any], cursor: bytes = b"null") -> tuple[Outcome, bytes]:
    caller = Caller("g", source("s", function), None, "the system")
    try:
        return caller.poll(SERIES, 3, cursor)
    finally:
        caller.close()


def test_a_source_that_is_asked() -> None:
    def function(cursor: Any, step: Step) -> Polled:
        assert (cursor, step.key, step.inputs, step.system) == ({"page": 1}, f"{SERIES}-3", (), "the system")
        return Polled([b"raw", {"n": 1}, None, Out(2, key="k", topics=["t"])], {"page": 2})

    outcome, cursor = polled(function, b'{"page":1}')
    out = outcome.outgoing[place("s")]
    assert (out.bodies, out.keys, cursor) == ([b"raw", b'{"n":1}', b"2"], [None, None, b"k"], b'{"page":2}')
    said = provenance_of(a_message(headers=out.headers[0]))
    assert said is not None
    assert (said.processor, said.key, said.inputs, said.born_ms) == ("g/s", f"{SERIES}-3", (), 1_000)


def test_a_source_that_has_nothing() -> None:
    outcome, cursor = polled(lambda cursor: Polled([], cursor), b"7")
    assert (outcome.outgoing, outcome.sets, cursor) == ({}, 1, b"7")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, r"answers Polled\(values, cursor\), not NoneType"),
        ([1, 2], r"answers Polled\(values, cursor\), not list"),
        (Polled([], Unheard()), "Unheard does not become JSON"),
        (Polled([Unheard()]), "Unheard does not become JSON"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_answers_of_sources(answer: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        polled(lambda cursor: answer)
