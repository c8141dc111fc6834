"""State as a dictionary: what a transaction sees and what it changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Corrupt, Invalid, LimitExceeded
from detent.state.keyed import KEY_BYTES_MAX, VALUE_BYTES_MAX, Entries, KeyedState, Space


class Stored(Entries):
    """Entries in a dictionary, and which were asked for."""

    def __init__(self, **entries: bytes) -> None:
        self.entries = entries
        self.loaded: list[str] = []

    def load(self, key: str) -> bytes | None:
        self.loaded.append(key)
        return self.entries.get(key)

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        return iter(sorted(item for item in self.entries.items() if item[0].startswith(prefix)))

    def apply(self, changes: dict[str, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


def test_values_are_loaded_once_and_only_changes_are_written() -> None:
    stored = Stored(a=b"1", b=b"[2]")
    state = KeyedState(Space(stored, kept_max=10))
    assert (state["a"], state["b"], state.get("c"), "c" in state) == (1, [2], None, False)
    assert stored.loaded == ["a", "b", "c"]
    state["a"] = 1
    assert state.seal() == {}, "the same value is no change"


def test_changes_in_place_assignments_and_removals() -> None:
    state = KeyedState(Space(Stored(a=b"1", b=b"[2]", c=b"{}"), kept_max=10))
    state["b"].append(3)
    state["c"] = {"x": None}
    state.setdefault("d", []).append(1)
    del state["a"]
    state["gone"] = 1
    del state["gone"]
    with pytest.raises(KeyError):
        del state["never"]
    assert state.seal() == {"b": b"[2,3]", "c": b'{"x":null}', "d": b"[1]", "a": None}


def test_it_is_a_dictionary_in_the_order_of_keys() -> None:
    state = KeyedState(Space(Stored(a=b"1", c=b"3", e=b"5"), kept_max=10))
    state["b"], state["d"] = 2, 4
    del state["c"]
    assert list(state) == ["a", "b", "d", "e"]
    assert len(state) == 4
    assert dict(state) == {"a": 1, "b": 2, "d": 4, "e": 5}
    assert list(state.items_with("d")) == [("d", 4)]
    assert state.pop("a") == 1
    assert "a" not in state


def test_a_sealed_state_is_nobodys() -> None:
    state = KeyedState(Space(Stored(), kept_max=10))
    state.seal()
    for use in (lambda: state["a"], lambda: state.__setitem__("a", 1), lambda: list(state), state.seal):
        with pytest.raises(Invalid, match="has ended"):
            use()


def test_what_is_discarded_was_never_there() -> None:
    space = Space(Stored(a=b"1", b=b"[2]"), kept_max=10)
    state = KeyedState(space)
    state["a"], state["new"] = 7, 8
    state["b"].append(9)
    state.discard()
    assert dict(KeyedState(space)) == {"a": 1, "b": [2]}


def test_what_is_not_durable_yet_is_never_let_go() -> None:
    """Memory is bounded, and yet the next transaction sees what the last one has changed."""
    stored = Stored()
    space = Space(stored, kept_max=3)
    space.begin({})
    first = KeyedState(space)
    for number in range(5):
        first[f"k{number}"] = number
    changes = first.seal()
    space.begin(changes)
    assert dict(KeyedState(space)) == {f"k{number}": number for number in range(5)}
    stored.apply(changes)
    space.begin({})
    assert dict(KeyedState(space)) == {f"k{number}": number for number in range(5)}


def test_a_value_is_a_copy_and_nobody_elses() -> None:
    """Whether two keys share an object must not depend on when a process was restarted between them."""
    space = Space(Stored(), kept_max=10)
    state = KeyedState(space)
    mine = [1]
    state["a"] = mine
    state["b"] = state["a"]
    mine.append(2)
    state["a"].append(3)
    held = state["a"]
    assert dict(state) == {"a": [1, 3], "b": [1]}
    state.seal()
    held.append(4)
    assert dict(KeyedState(space)) == {"a": [1, 3], "b": [1]}
    later = KeyedState(space)
    later.setdefault("c", {})["n"] = 1
    assert later.seal() == {"c": b'{"n":1}'}


@pytest.mark.parametrize("key", ["", 7, None, "\ud800", "x" * (KEY_BYTES_MAX + 1)])
def test_what_is_no_key(key: Any) -> None:
    state = KeyedState(Space(Stored(), kept_max=10))
    with pytest.raises((Invalid, LimitExceeded)):
        state[key] = 1
    with pytest.raises((Invalid, LimitExceeded)):
        state[key]
    assert state.seal() == {}


def test_what_is_no_value() -> None:
    state = KeyedState(Space(Stored(), kept_max=10))
    with pytest.raises(Invalid, match="'a' cannot be written as JSON"):
        state["a"] = object()
    for value in ({1: 2}, {1, 2}, (1,), math.inf, math.nan, [math.inf], {"a": (1,)}, datetime.now(UTC), b"bytes"):
        with pytest.raises(Invalid, match="is not JSON"):
            state["a"] = value
    state["a"] = []
    state["a"].append({1: 2})
    with pytest.raises(Invalid, match="is not JSON"):
        state.seal()
    state["a"] = "x" * VALUE_BYTES_MAX
    with pytest.raises(LimitExceeded, match="use several keys"):
        state.seal()
    with pytest.raises(Corrupt, match="not JSON"):
        KeyedState(Space(Stored(a=b"{"), kept_max=10))["a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda x: st.lists(x, max_size=3)
)
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "del", "seal", "discard"]), JSON), max_size=30
)


@given(STEPS)
def test_it_behaves_as_a_dictionary_does(steps: list[tuple[str, str, Any]]) -> None:
    stored, durable = Stored(), dict[str, Any]()
    space = Space(stored, kept_max=1)
    space.begin({})
    state, expected = KeyedState(space), dict(durable)
    for key, what, value in steps:
        if what == "set":
            state[key], expected[key] = value, value
        elif what == "del":
            assert state.pop(key, None) == expected.pop(key, None)
        elif what == "seal":
            stored.apply(state.seal())
            durable = dict(expected)
            space.begin({})
            state = KeyedState(space)
        else:
            state.discard()
            expected = dict(durable)
            state = KeyedState(space)
        assert dict(state) == expected
