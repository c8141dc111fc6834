"""What Spark's planners decide, without Spark: options, places, ranges, partitions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent.errors import Invalid
from detent.spark.options import FormatOptions
from detent.spark.places import EARLIEST, LATEST, OffsetPlaces
from detent.spark.ranges import Range, between, cut, limited, ordered

offsets = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 400), max_size=8)


def offset_at(name: str, time_ms: int) -> int:
    return 10 + time_ms % 10


# -- ranges -----------------------------------------------------------------------------------------------------


@given(start=offsets, more=offsets, parts=st.integers(1, 9), rows_max=st.integers(1, 500))
def test_partitions_hold_every_message_once_and_in_order(
    start: dict[str, int], more: dict[str, int], parts: int, rows_max: int
) -> None:
    end = {name: start.get(name, 0) + count for name, count in more.items()}
    ranges = between(start, end)
    partitions = cut(ranges, parts, rows_max)
    read = [
        (piece.journal, offset) for part in partitions for piece in part for offset in range(piece.start, piece.end)
    ]
    assert read == [(piece.journal, offset) for piece in ranges for offset in range(piece.start, piece.end)]
    sizes = [sum(piece.rows for piece in part) for part in partitions]
    assert not sizes or (max(sizes) <= rows_max and max(sizes) - min(sizes) <= 1 and min(sizes) > 0)
    assert len(partitions) >= min(parts, sum(sizes))
    assert partitions == cut(between(start, end), parts, rows_max)


@example(start={}, more={"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 4, "h": 4}, rows=8)
@given(start=offsets, more=offsets, rows=st.integers(1, 700))
@example(start={}, more={"a": 1, "b": 1, "c": 3, "d": 3, "e": 3, "f": 3}, rows=8)
def test_a_limit_is_kept_and_everybody_moves(start: dict[str, int], more: dict[str, int], rows: int) -> None:
    end = {name: start.get(name, 0) + count for name, count in more.items()}
    waiting = between(start, end)
    reached = limited(start, end, rows)
    taken = between(start, reached)
    assert list(reached) == sorted(reached)  # Spark compares offsets by their text
    assert sum(piece.rows for piece in taken) <= rows
    assert all(reached[name] >= offset for name, offset in start.items())
    assert all(piece.end <= end[piece.journal] for piece in taken)
    if waiting:
        assert taken
        if rows >= len(waiting):
            assert {piece.journal for piece in taken} == {piece.journal for piece in waiting}


def test_a_journal_that_came_later_is_read_from_its_beginning() -> None:
    assert between({"a": 5}, {"a": 5, "b": 3}) == [Range("b", 0, 3)]


def test_few_messages_of_many_journals_share_a_partition() -> None:
    ranges = [Range(f"j{number:02}", 0, 1) for number in range(64)]
    assert cut(ranges, 1) == [ranges]


def test_offsets_have_one_order() -> None:
    assert list(ordered({"b": 1, "a": 2})) == ["a", "b"]


# -- places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", 10),
        ("LATEST", 20),
        ('{"a": 12}', 12),
        ('{"a": "latest"}', 20),
        ("{}", 10),
        ("1970-01-01T00:00:00.004Z", 14),
        ("1970-01-01T01:00:00.004+01:00", 14),
        ("1970-01-01T00:00:00.004", 14),
    ],
)
def test_places(text: str, found: int) -> None:
    assert OffsetPlaces("startingOffsets", text, EARLIEST).find({"a": (10, 20)}, offset_at) == {"a": found}


@pytest.mark.parametrize(
    "text",
    ["", "soon", "{", '{"a": 1.5}', '{"a": -1}', '{"a": null}', '{"a": "soon"}', '{"a": 99999999999999999999}', "[1]"],
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(Invalid, match="startingOffsets"):
        OffsetPlaces("startingOffsets", text, EARLIEST)


def test_places_of_journals_that_are_not_read() -> None:
    with pytest.raises(Invalid, match="'orders'"):
        OffsetPlaces("endingOffsets", '{"orders": 5}', LATEST).check_names(["order"])


def test_which_places_never_move() -> None:
    assert OffsetPlaces("startingOffsets", '{"a": 3}', EARLIEST).is_fixed
    for text in ("latest", '{"a": "latest"}', datetime(2026, 1, 1, tzinfo=UTC).isoformat()):
        assert not OffsetPlaces("startingOffsets", text, EARLIEST).is_fixed


# -- options ----------------------------------------------------------------------------------------------------


def options(**given: str) -> FormatOptions:
    return FormatOptions(given, ("maxMessagesPerTrigger", "failOnDataLoss", "size", "isolation"), "the format")


def test_options_ignore_case_and_read_their_kinds() -> None:
    some = options(maxmessagespertrigger="12", FAILONDATALOSS="False", size="64m", path="file:x")
    assert some.number("maxMessagesPerTrigger") == 12
    assert some.truth("failOnDataLoss", True) is False
    assert some.size("size") == 64 << 20
    assert some.choice("isolation", ("committed", "uncommitted")) == "committed"
    assert some.url() == "file:x"


def test_a_misspelt_option_is_refused_with_the_right_one() -> None:
    with pytest.raises(Invalid, match="did you mean maxMessagesPerTrigger"):
        options(maxMessagePerTrigger="12")
    with pytest.raises(Invalid, match="there are maxMessagesPerTrigger"):
        options(zzz="12")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "-1"),
        ("maxMessagesPerTrigger", "1e6"),
        ("maxMessagesPerTrigger", "9" * 30),
        ("maxMessagesPerTrigger", "٣"),
        ("failOnDataLoss", "yes"),
        ("size", "0"),
        ("size", "many"),
        ("size", "9" * 30),
        ("isolation", "serializable"),
    ],
)
def test_option_values_that_are_wrong(name: str, value: str) -> None:
    some = options(**{name: value})
    read = {
        "maxMessagesPerTrigger": lambda: some.number(name),
        "failOnDataLoss": lambda: some.truth(name, True),
        "size": lambda: some.size(name),
        "isolation": lambda: some.choice(name, ("committed", "uncommitted")),
    }
    with pytest.raises(Invalid, match=name):
        read[name]()


def test_the_url_is_needed() -> None:
    with pytest.raises(Invalid, match="path"):
        options().url()
