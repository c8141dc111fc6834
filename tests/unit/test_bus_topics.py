"""Names to publish under, and filters that are taken apart and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.bus.topics import TOPIC_MAX, Rule, check_topic, joined, make_filter, names_in, parse_filter
from detent.errors import Invalid, LimitExceeded
from detent.queue.filters import FILTER_BYTES_MAX, Filter, default_filter

DEFAULT = default_filter("billing")
A = 'headers["detent-topics"].contains("|A|")'
OWN = [
    DEFAULT,
    "true",
    'headers.tier == "gold"',
    'headers.a == "1" ? true : headers.b == "2"',
    '(headers.a == "1") ? (true) : (headers.b == "2")',
    '(headers.a == "1") || (headers.b == "2")',
    'headers.a == "1" // what matters',
    'headers.a == "//"',
    'headers.a == "1" // )\n&& true',
    default_filter("mail"),
    f'headers.a == "1" ? true : false || {A}',
    f"true // || {A}",
    f"'x' == ' || {A}'",
]
NAMES = st.from_regex(r"[A-Za-z0-9_.:-]{1,12}", fullmatch=True)


@pytest.mark.parametrize("name", ["A", "shop.orders:OrderPlaced-v2", "_", "9", "x" * TOPIC_MAX])
def test_good_names(name: str) -> None:
    check_topic(name)
    assert names_in(joined([name, "B", name])) == [name, "B"]


@pytest.mark.parametrize("name", ["", "a b", "a|b", 'a"b', "a\\", "grün", "a\n", "x" * (TOPIC_MAX + 1), None, b"A"])
def test_bad_names(name: str) -> None:
    with pytest.raises(Invalid, match="not a name to publish under"):
        check_topic(name)
    with pytest.raises(Invalid):
        joined([name])
    with pytest.raises(Invalid):
        make_filter("billing", Rule(DEFAULT, frozenset({name})))


@pytest.mark.parametrize("header", ["", "|", "||", "|||", "A", "|A", "A|", "|A||B|", "|A b|"])
def test_bad_lists_of_names(header: str) -> None:
    with pytest.raises(Invalid):
        names_in(header)


def test_a_message_has_a_name() -> None:
    with pytest.raises(Invalid, match="one name at least"):
        joined([])


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("topics", [{"A"}, {"B", "A", "shop:C-1.x"}])
def test_what_a_queue_had_is_kept(own: str, topics: set[str]) -> None:
    Filter(own)
    assert parse_filter("billing", own) == Rule(own, frozenset())
    text = make_filter("billing", Rule(own, frozenset(topics)))
    assert parse_filter("billing", text) == Rule(own, frozenset(topics))
    assert make_filter("billing", Rule(own, frozenset())) == own
    taken = Filter(text)
    assert all(taken.matches({"detent-topics": f"|X|{topic}|", "queue": "other"}) for topic in topics)
    for headers in ({}, {"queue": "billing"}, {"queue": "mail"}, {"a": "1"}, {"b": "2"}, {"tier": "gold"}):
        assert taken.matches(headers) == Filter(own).matches(headers)


@given(st.frozensets(NAMES, min_size=1, max_size=8), NAMES)
def test_only_whole_names_match(topics: frozenset[str], other: str) -> None:
    taken = Filter(make_filter("billing", Rule(DEFAULT, topics)))
    assert taken.matches({"detent-topics": joined([other])}) == (other in topics)


def test_the_plain_form() -> None:
    assert make_filter("billing", Rule(DEFAULT, frozenset("BA"))) == (
        f'headers.queue == "billing" || {A} || headers["detent-topics"].contains("|B|")'
    )


def test_a_filter_of_another_queue_is_a_foreign_one() -> None:
    text = make_filter("mail", Rule(default_filter("mail"), frozenset("A")))
    assert parse_filter("billing", text) == Rule(text, frozenset())


def test_too_many_names_are_refused() -> None:
    topics = frozenset(f"shop.OrderPlaced{number}" for number in range(100))
    with pytest.raises(LimitExceeded, match=str(FILTER_BYTES_MAX)):
        make_filter("billing", Rule(DEFAULT, topics))
