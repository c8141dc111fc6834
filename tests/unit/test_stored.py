"""The form in which engines store values: what was put comes back, and whatever changed is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Corrupt
from detent.kv.stored import CHECKSUM_BYTES, from_buffer, from_stored, telling, to_stored

KEYS = st.binary(min_size=1, max_size=511)
VALUES = st.binary(max_size=600)


@given(KEYS, VALUES)
def test_a_value_comes_back(key: bytes, value: bytes) -> None:
    stored = to_stored(key, value)
    assert len(stored) == len(value) + CHECKSUM_BYTES
    assert from_stored(key, stored) == from_buffer(key, memoryview(stored)) == value
    assert telling(_never)(key, stored) == value


@given(KEYS, VALUES, st.data())
def test_a_changed_bit_is_noticed_wherever_it_is(key: bytes, value: bytes, data: st.DataObject) -> None:
    stored = bytearray(to_stored(key, value))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _refused(key, bytes(stored))


@given(KEYS, VALUES, st.data())
def test_a_value_cut_short_or_made_longer_is_noticed(key: bytes, value: bytes, data: st.DataObject) -> None:
    stored = to_stored(key, value)
    _refused(key, stored[: data.draw(st.integers(0, len(stored) - 1))])
    _refused(key, stored + data.draw(st.binary(min_size=1, max_size=20)))


@given(KEYS, KEYS, VALUES)
def test_a_record_under_another_key_is_noticed(key: bytes, other: bytes, value: bytes) -> None:
    if key != other:
        _refused(other, to_stored(key, value))


@pytest.mark.parametrize(("key", "subsystem"), [(b"\x05\x01", "queue"), (b"\x00epoch", "kv engine"), (b"\x63", "63")])
def test_the_error_names_the_record_and_shows_nothing_of_it(key: bytes, subsystem: str) -> None:
    told: list[tuple[bytes, str]] = []
    assert telling(lambda *about: told.append(about))(key, b"secret" + bytes(8)) is None
    ((where, problem),) = told
    assert where == key
    assert key.hex() in problem
    assert subsystem in problem
    assert "secret" not in problem
    assert b"secret".hex() not in problem


def _refused(key: bytes, stored: bytes) -> None:
    for check in (from_stored, lambda key, stored: from_buffer(key, memoryview(stored))):
        with pytest.raises(Corrupt):
            check(key, stored)


def _never(key: bytes, problem: str) -> None:
    raise AssertionError(problem)
