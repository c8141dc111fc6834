"""Where messages come from: the header that says so, trees of hops, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent import Corrupt, Invalid, NotFound
from detent.codec.block import HEADER_BYTES_MAX
from detent.processor import (
    Graph,
    Hop,
    LiveGraph,
    Message,
    Out,
    Polled,
    Processor,
    provenance_of,
    sink,
    source,
    stream,
    tracing,
)
from detent.processor.declaration import INPUTS_MAX, NAME_MAX, place
from detent.processor.declaration import JournalPlace as Place
from detent.processor.outcome import AnswerWriter as Writer
from detent.processor.provenance import HEADER, INPUTS_SHOWN_MAX, born_ms, named_inputs

SERIES = "0123456789abcdef" * 2


def a_message(journal: str = "a", offset: int = 0, ms: int = 1_000, header: str | None = None) -> Message:
    headers = {} if header is None else {HEADER: header}
    return Message(
        body=b"1", producer=bytes(6), clock=0, headers=headers, journal=journal, offset=offset, published_ms=ms
    )


def read_back(header: str, ms: int = 5_000) -> Any:
    found = provenance_of(a_message(ms=ms, header=header))
    assert found is not None
    return found


def covered(header: str) -> list[tuple[str, int]]:
    """Every message that a header names."""
    return [(str(one.place), at) for one in read_back(header).inputs for at in range(one.first, one.last + 1)]


# -- the header -------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]{0,20}", fullmatch=True)
PLACES = st.builds(Place, NAMES, st.one_of(st.just(""), NAMES))
MESSAGES = st.lists(
    st.builds(
        lambda where, offset, ms: a_message(str(where), offset, ms),
        PLACES,
        st.integers(0, 1 << 62),
        st.integers(1, 1 << 50),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda message: (message.journal, message.offset),
)


@given(NAMES, NAMES, st.integers(0, 1 << 62), MESSAGES)
def test_what_is_written_is_read_back(graph: str, processor: str, number: int, messages: list[Message]) -> None:
    writer = Writer(f"{graph}/{processor}", {"x": place("x")})
    header = writer.stamp(f"{SERIES}-{number}", messages)
    said = read_back(header)
    assert (said.processor, said.key) == (f"{graph}/{processor}", f"{SERIES}-{number}")
    assert said.born_ms == min(message.published_ms for message in messages)
    assert sorted(covered(header)) == sorted((message.journal, message.offset) for message in messages)
    again = born_ms([a_message(ms=1 << 60, header=header)])
    assert again == said.born_ms, "the next hop carries it on"


@given(st.lists(st.sampled_from(["a", "b@far", "c"]), max_size=40), st.integers(0, 100))
def test_runs_of_a_journal_are_one_entry(journals: list[str], start: int) -> None:
    """Also where those of several journals alternate, as in a batch of a join."""
    at = {"a": start, "b@far": 7, "c": 0}
    messages = []
    for journal in journals:
        messages.append(a_message(journal, at[journal]))
        at[journal] += 1
    text = named_inputs(messages)
    assert len(text.split()) == len(set(journals))
    assert sorted(covered(f"1 g/f k-0 5 {text}")) == sorted((each.journal, each.offset) for each in messages)


def test_headers_stay_within_their_limit() -> None:
    """A join of as many inputs as there can be, with the longest names, in a batch; and inputs with gaps."""
    name = "n" * NAME_MAX
    wide = [a_message(f"{index:0>200}@{'s' * 200}", offset) for offset in range(5) for index in range(INPUTS_MAX)]
    header = Writer(f"{name}/{name}", {}).stamp(f"{SERIES}-{1 << 62}", wide)
    assert len(covered(header)) == len(wide)
    assert len(header) < HEADER_BYTES_MAX
    gaps = [a_message("a", 2 * offset) for offset in range(INPUTS_SHOWN_MAX + 50)]
    assert covered(Writer("g/f", {}).stamp("k-0", gaps)) == [("a", 2 * n) for n in range(INPUTS_SHOWN_MAX)]


def test_a_message_that_no_processor_wrote() -> None:
    assert provenance_of(a_message()) is None


def test_a_source_that_is_asked_has_no_inputs() -> None:
    said = read_back(Writer("g/s", {}).stamp("k-0", ()), ms=7_000)
    assert (said.inputs, said.born_ms) == ((), 7_000)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "mine",
        "1 2 3",
        "2 g/f k-0 5 a#1",
        "1 g/f k-0 soon a#1",
        "1 g/f k-0 5 a",
        "1 g/f k-0 5 a#x",
        "1 g/f k-0 5 #1",
    ],
)
def test_headers_of_somebody_else(header: str) -> None:
    """They are no provenance, and have no part in anybody's."""
    with pytest.raises(Corrupt, match="the header 'detent' of offset 3 of 'a' is not one that a processor has written"):
        provenance_of(a_message(offset=3, header=header))
    assert born_ms([a_message(ms=9_000, header="mine")]) == 9_000


@given(st.text(max_size=60))
@example("1 g/f k-0 " + "9" * 5_000)
@example("1 g/f k-0 ² a#1")
@example("1 g/f k-0 -5 a#1")
@example("1 g/f k-0 5 a#" + "9" * 5_000)
def test_any_text_is_provenance_or_corrupt(header: str) -> None:
    message = a_message(ms=9_000, header=header)
    with suppress(Corrupt):
        provenance_of(message)
    assert 0 <= born_ms([message]) < 10**18


# -- traces -----------------------------------------------------------------------------------------------------------


@contextmanager
def opened(*processors: Processor, **options: Any) -> Iterator[LiveGraph]:
    with Graph("g", processors=processors, **options).open("memory:") as live:
        live.start()
        yield live


def shape(hop: Hop) -> Any:
    """The tree without times."""
    where = f"{hop.journal}#{hop.offset}"
    return where if hop.processor is None else (where, hop.processor, [shape(one) for one in hop.inputs])


def check_times(hop: Hop) -> None:
    """Each hop's times follow from those of its inputs."""
    assert hop.published_ms is not None
    assert hop.born_ms is not None
    if hop.processor is None:
        assert (hop.hop_ms, hop.total_ms, hop.born_ms) == (None, None, hop.published_ms)
        return
    there = [one for one in hop.inputs if one.published_ms is not None]
    assert hop.hop_ms == hop.published_ms - max(one.published_ms or 0 for one in there)
    assert hop.born_ms == min(one.born_ms or 0 for one in there)
    assert hop.total_ms == hop.published_ms - hop.born_ms
    for one in there:
        check_times(one)


def test_a_trace_over_several_hops() -> None:
    with opened(
        source("a"),
        source("b"),
        stream("half", lambda value: {"x": value, "y": -value}, input="a", outputs=["x", "y"]),
        stream("pair", lambda left, right: [left, right], join=["x", "b"], output="z"),
        stream("either", lambda value: value, any_of=["y", "z"], output="end"),
    ) as live:
        for number in (1, 2):
            live.send(number, "a")
        live.settle()
        for number in (3, 4):
            live.send(number, "b")
        live.settle()
        bodies = [message.body for message in live.read("end")]
        found = live.trace("end", bodies.index(b"[2,4]"))
        half = ("x#1", "g/half", ["a#1"])
        pair = ("z#1", "g/pair", [half, "b#1"])
        assert shape(found) == (f"end#{found.offset}", "g/either", [pair])
        check_times(found)
        said = provenance_of(next(live.read("z", 1, 2)))
        assert said is not None
        assert found.inputs[0].key == said.key
        assert found.more == 0
        first = live.trace("a", 0)
        assert (shape(first), first.key) == ("a#0", None)
        check_times(first)


def test_a_trace_across_stores(store_dir: Any) -> None:
    with opened(
        source("a"),
        stream("out", lambda value: value, input="a", output="x@far"),
        stream("back", lambda value: value, input="x@far", output="y"),
        stores={"far": f"file:{store_dir}"},
    ) as live:
        live.send(1)
        live.settle()
        found = live.trace("y", 0)
        assert shape(found) == ("y#0", "g/back", [("x@far#0", "g/out", ["a#0"])])
        check_times(found)
        assert live.trace("x@far", 0) == found.inputs[0]
        with pytest.raises(Invalid, match="no store 'near'"):
            live.trace("x@near", 0)
        with Graph("g", processors=live.graph.processors[:1]).open(live.store) as other:
            ((lost,),) = [other.trace("y", 0).inputs]
            assert (lost.journal, lost.published_ms, lost.inputs) == ("x@far", None, [])


def test_a_trace_of_messages_that_are_gone() -> None:
    with opened(source("a"), stream("f", lambda values: values, input="a", output="x", whole=True, batch=10)) as live:
        live.stop()
        for number in range(4):
            live.send(number)
        live.start()
        live.settle()
        live.store.journal("a").trim(2)
        found = live.trace("x", 0)
        assert [(one.offset, one.published_ms is None) for one in found.inputs] == [
            (0, True),
            (1, True),
            (2, False),
            (3, False),
        ]
        live.store.journal("a").delete()
        found = live.trace("x", 0)
        assert all(one.published_ms is None for one in found.inputs)
        assert (found.hop_ms, found.total_ms is None, len(found.inputs)) == (None, False, 4)
        for journal, offset, missing in (
            ("x", 1, "message 1 in the journal"),
            ("nowhere", 0, "journal"),
            ("a", 0, "journal"),
        ):
            with pytest.raises(NotFound, match=f"there is no {missing} '{journal}'"):
                live.trace(journal, offset)


def test_a_trace_shows_so_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "HOPS_MAX", 10)
    with opened(
        source("a"),
        stream("f", lambda values: [Out(value) for value in values], input="a", output="x", whole=True, batch=5),
        stream("g", lambda values: len(values), input="x", output="y", whole=True, batch=100),
    ) as live:
        live.stop()
        for number in range(20):
            live.send(number)
        live.start(only=["f"])
        live.settle()
        live.start()
        live.settle()
        found = live.trace("y", 0)

        def count(hop: Hop) -> int:
            return 1 + sum(map(count, hop.inputs))

        assert count(found) == 10
        assert len(found.inputs) + found.more == 20
        assert len(found.inputs[0].inputs) == 5


@pytest.mark.parametrize("inputs", ["x#0", "x#0-3000000", "x#5000000000000000000-5000000000000000001", "x#9-3"])
def test_a_trace_of_a_forged_header_ends(inputs: str) -> None:
    """Anybody may write to a journal, and name as input what they like."""
    with opened(source("a"), stream("f", lambda value: value, input="a", output="x")) as live:
        live.store.journal("x").append(b"1", headers={HEADER: f"1 g/f k-0 5 {inputs}"})
        found = live.trace("x", 0)
        assert (found.processor, found.key, found.born_ms) == ("g/f", "k-0", 5)


def test_somebody_elses_header_stands_in_nobodys_way() -> None:
    with opened(source("a"), stream("f", lambda value: value, input="a", output="x")) as live:
        live.store.journal("a").append(b"1", headers={HEADER: "mine"})
        live.store.journal("x").append(b"1", headers={HEADER: "mine"})
        live.settle()
        found = live.trace("x", 1)
        assert shape(found) == ("x#1", "g/f", ["a#0"])
        check_times(found)
        assert shape(live.trace("x", 0)) == "x#0"
        latency = live.latency("x")
        assert latency is not None
        assert latency.messages == 2
        assert live.status()[0].outputs == 1


def test_a_source_that_is_asked_begins_a_trace() -> None:
    with opened(
        source("s", lambda cursor: Polled([1] if cursor is None else [], 1), every="1h"),
        stream("f", lambda value: value, input="s", output="x"),
    ) as live:
        live.settle()
        found = live.trace("x", 0)
        assert shape(found) == ("x#0", "g/f", [("s#0", "g/s", [])])
        born = found.inputs[0]
        assert (born.born_ms, born.hop_ms, born.total_ms, found.born_ms) == (born.published_ms, None, 0, born.born_ms)


# -- latency ----------------------------------------------------------------------------------------------------------


def test_latency() -> None:
    with opened(source("a"), stream("f", lambda value: value, input="a", output="x")) as live:
        assert (live.latency("x"), live.latency("nowhere")) == (None, None)
        for ms in (100, 300, 200):
            live.store.journal("x").append(b"1")  # to learn what time it is
            now_ms = list(live.read("x"))[-1].published_ms
            live.store.journal("y").append(b"1", headers={HEADER: f"1 g/f k-0 {now_ms - ms} a#0"})
        found = live.latency("y")
        assert found is not None
        assert (found.messages, found.max_ms >= 300, 200 <= found.median_ms <= found.p99_ms) == (3, True, True)
        last = live.latency("y", last=1)
        assert last is not None
        assert (last.messages, last.max_ms >= 200) == (1, True)
        sources = live.latency("x")
        assert sources is not None
        assert (sources.median_ms, sources.max_ms) == (0, 0)


def test_the_latency_of_a_sink_is_that_of_nothing() -> None:
    with opened(source("a"), sink("s", lambda value: None, input="a")) as live:
        live.send(1)
        live.settle()
        (found,) = live.status()
        assert found.latency == {}
