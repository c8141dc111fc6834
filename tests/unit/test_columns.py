"""Messages by column are the messages, and what is made of them is what is made of messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import detent
from detent import Invalid, LimitExceeded, Message, Store
from detent.codec import block
from detent.codec.block import header_column, header_values
from detent.journal.columns import Columns, Rows
from detent.journal.message import messages_of
from detent.processor import Out, Processor, stream
from detent.processor.calling import FunctionCalls as Caller
from detent.processor.declaration import place
from detent.processor.inputs import Singles
from detent.processor.outcome import STEP_BYTES_MAX
from detent.processor.outcome import StepOutcome as Outcome
from detent.processor.provenance import HEADER
from detent.stream.following import Following

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from([HEADER, "dete", "ntdetent", "det", "", "ü"])
SERIES = "0123456789abcdef" * 2


def batch_of(
    bodies: list[bytes], keys: list[bytes | None] | None = None, headers: list[dict[str, str] | None] | None = None
) -> Any:
    rows = len(bodies)
    times = b"".join((1_000 + n).to_bytes(8, "little") for n in range(rows))
    content = block.content_of(bodies, keys, headers)
    return block.stamped(rows, b"\x01abcde" * rows, bytes(8 * rows), bytes(2 * rows), times, content)


# -- headers ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(NAMES, st.lists(TEXTS, min_size=1, max_size=20))
def test_one_header_each_makes_the_same_column(name: str, values: list[str]) -> None:
    made = header_column(name, values)
    made.validate(full=True)
    bodies = [b""] * len(values)
    general = block.content_batch(bodies, None, [{name: value} for value in values])
    ours = block.content_batch(bodies, None, made)
    assert ours.equals(general)
    assert ours.serialize().equals(general.serialize())


@settings(deadline=None)
@given(
    st.lists(st.none() | st.dictionaries(NAMES, TEXTS, max_size=2), min_size=1, max_size=12)
    | st.lists(st.dictionaries(NAMES, TEXTS, min_size=1, max_size=1), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_values_of_a_header(headers: list[dict[str, str] | None], start: int, count: int) -> None:
    column = batch_of([b""] * len(headers), None, headers).slice(start, count).column(5)
    expected = [(one or {}).get(HEADER) for one in headers][start : start + count]
    assert header_values(column, HEADER) == expected


def test_names_that_look_like_others_when_they_are_put_together() -> None:
    headers: list[dict[str, str] | None] = [{"dete": "1"}, {"ntdetent": "2"}]
    assert header_values(batch_of([b"", b""], None, headers).column(5), HEADER) == [None, None]


def test_small_messages_are_refused_for_what_large_ones_are() -> None:
    def content(pairs: list[list[tuple[str, str | None]]]) -> Any:
        arrays = [pa.nulls(len(pairs), pa.binary()), pa.array(pairs, block.HEADERS), pa.array([b""] * len(pairs))]
        return pa.RecordBatch.from_arrays(arrays, schema=block.CONTENT_SCHEMA)

    most: list[tuple[str, str | None]] = [(str(n), "") for n in range(block.HEADERS_MAX)]
    for fine in ([most], [most, most], [[("x", "v" * (block.HEADER_BYTES_MAX - 1))]], [[], []]):
        block.check_content(content(fine))
    with pytest.raises(LimitExceeded, match="at most 255 headers, not 256"):
        block.check_content(content([[*most, ("x", "")]]))
    with pytest.raises(Invalid, match="a name and a value"):
        block.check_content(content([[("x", None)]]))
    with pytest.raises(LimitExceeded, match="headers of 65537 bytes"):
        block.check_content(content([[("x", "v" * block.HEADER_BYTES_MAX)]]))


# -- reading ----------------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3), st.none() | st.dictionaries(NAMES, TEXTS)),
    min_size=1,
    max_size=10,
)


@settings(deadline=None)
@given(ROWS, st.data())
def test_columns_are_those_of_the_messages(rows: list[Any], data: st.DataObject) -> None:
    batch = batch_of(*map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    messages = list(messages_of(batch, offset=7, journal="a"))[start:stop]
    found = Rows(Columns(batch, 7, "a"), 0, len(rows)).part(start, stop)
    assert (len(found), found.offset, found.journal) == (len(messages), 7 + start, "a")
    assert found.bodies == [message.body for message in messages]
    assert found.keys == [message.key for message in messages]
    assert found.times == [message.published_ms for message in messages]
    assert found.values(HEADER) == [message.headers.get(HEADER) for message in messages]
    assert found.messages == messages
    sets, expected = Singles(found), [(message,) for message in messages]
    assert list(sets) == expected
    for index in range(-len(messages), len(messages)):
        assert sets[index] == expected[index]
        assert list(sets[index:]) == expected[index:]
        assert list(sets[:index]) == expected[:index]
        assert list(sets[::-1]) == expected[::-1]
    for index in (len(messages), -len(messages) - 1):
        with pytest.raises(IndexError):
            sets[index]


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as store:
        yield store


def test_rows_are_taken_as_messages_are(store: Store) -> None:
    for number in range(10):
        store.journal("j").append(b"%d" % number)
    following = Following(store.reader, "j", 2, label="j@far")

    def taken(limit: int) -> list[Message]:
        rows = following.take_rows(limit)
        return [] if rows is None else rows.messages

    assert [(one.offset, one.body, one.journal) for one in taken(1)] == [(2, b"2", "j@far")]
    assert [one.offset for one in following.take(2)] == [3, 4]  # both ways, from one read
    assert [one.offset for one in taken(2)] == [5, 6]
    assert [one.offset for one in following.take_back(5)] == [6, 5, 4, 3, 2]
    assert [one.offset for one in taken(3)] == [2, 3, 4]  # read again
    following.move(9)
    assert [one.offset for one in taken(3)] == [9]
    assert (taken(3), following.at, following.ready) == ([], 10, 0)
    store.journal("j").append(b"10")
    assert [one.offset for one in taken(3)] == [10]


def test_rows_of_a_journal_that_does_not_exist_yet(store: Store) -> None:
    following = Following(store.reader, "j", 0)
    assert following.take_rows(1) is None
    store.journal("j").append(b"x")
    assert len(following.take_rows(1) or ()) == 1


# -- plain functions --------------------------------------------------------------------------------------------------

BIG = bytes(STEP_BYTES_MAX // 2 + 1)

ANSWERS: dict[bytes, Any] = {
    b"bytes": b"answer",
    b"none": None,
    b"json": {"a": 1},
    b"text": "text",
    b"out": Out(b"x", key=b"other", headers={"h": "v"}),
    b"outs": [Out(1), Out(2, type="t")],
    b"wrong": Out(1, to="nowhere"),
    b"strange": object(),
    b"big": BIG,
}
STAMPS = st.none() | st.sampled_from(
    ["", "1 g/p k 5 a#1", "1 g/p k 0 a#1", "1 g/p k 0005 a#1", "1 g/p k 99999999999999999999 a#1", "1 g/p k x", "hi"]
)


def by_body(body: bytes) -> Any:
    return answered(body)


def by_message(message: Message) -> Any:
    return answered(message.body)


def by_json(name: str) -> Any:
    return answered(name.encode())


def answered(body: bytes) -> Any:
    if body == b"fails":
        raise ValueError("failed")
    return ANSWERS[body]


def shown(outcome: Outcome) -> Any:
    """All of it, but for the frames that errors show, and the bytes, of which the plain way does not count all."""
    outgoing = {place: [out.bodies, out.keys, out.headers] for place, out in outcome.outgoing.items() if out.bodies}
    if place("e") in outgoing:
        outgoing[place("e")][0] = [json.loads(body) | {"trace": None} for body in outgoing[place("e")][0]]
    operations = [type(one) for one in outcome.operations()]
    return outgoing, sorted(map(str, operations)), outcome.owed(), outcome.outputs, outcome.errors, outcome.nils


def ran(processor: Processor, sets: Any, errors: str | None) -> tuple[Outcome, BaseException | None]:
    caller = Caller("g", processor, None if errors is None else place(errors), None)
    try:
        return caller.run(sets, SERIES, 41)
    finally:
        caller.close()


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([by_body, by_message, by_json]),
    st.lists(
        st.tuples(st.sampled_from([*ANSWERS, *[b"bytes"] * 9, b"fails"]), st.none() | st.binary(max_size=2), STAMPS),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(["x", "x@far"]),
    st.sampled_from([None, "e"]),
)
def test_what_comes_of_columns_is_what_comes_of_messages(
    function: Any, rows: list[tuple[bytes, bytes | None, str | None]], output: str, errors: str | None
) -> None:
    """Answers of all kinds, failures, and headers that somebody else wrote; to a journal of this store or another."""
    names, keys, stamps = map(list, zip(*rows, strict=True))
    bodies = [b'"%s"' % name if function is by_json else name for name in names]
    batch = batch_of(bodies, keys, [None if stamp is None else {HEADER: stamp} for stamp in stamps])
    processor = stream("f", function, input="a", output=output)
    singles = Singles(Rows(Columns(batch, 7, "a"), 0, len(rows)))
    general = Caller("g", processor, None if errors is None else place(errors), None)
    general._is_plain = False
    expected, failure = general.run(list(singles), SERIES, 41)
    for sets in (singles, list(singles)):
        outcome, error = ran(processor, sets, errors)
        assert shown(outcome) == shown(expected)
        assert (type(error), str(error)) == (type(failure), str(failure))


@pytest.mark.parametrize("count", [1, 7, 8, 30])
@pytest.mark.parametrize("other", [None, b"out"])
def test_the_messages_that_are_written(store: Store, count: int, other: bytes | None) -> None:
    """The same by columns and one by one, whether all have only their stamp or one has more."""
    bodies = [*[b"bytes"] * (count - 1), other or b"bytes"]
    singles = Singles(Rows(Columns(batch_of(bodies), 3, "a"), 0, count))
    outcome, _ = ran(stream("f", by_body, input="a", output="x"), singles, None)
    (out,) = outcome.outgoing.values()
    store.commit(outcome.operations())
    written = list(store.journal("x").read())
    assert [(one.body, one.key, one.headers) for one in written] == list(
        zip(out.bodies, out.keys, out.headers, strict=True)
    )
    assert written[0].headers[HEADER] == f"1 g/f {SERIES}-41 1000 a#3"


def test_nothing_is_written_of_nothing() -> None:
    singles = Singles(Rows(Columns(batch_of([b"none", b"none"]), 0, "a"), 0, 2))
    outcome, _ = ran(stream("f", by_body, input="a", output="x"), singles, None)
    assert (outcome.nils, outcome.sets, outcome.operations(), outcome.owed()) == (2, 2, [], [])
