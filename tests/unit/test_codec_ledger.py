"""The ledgers' records: what is written reads back as it was, and the bytes are the ones that the format states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec import ledger
from detent.codec.ledger import NO_BATCH, PIN, REPLACED_MAX, ROW, Pin, Row, key_of, name_of
from detent.errors import Corrupt

TIME = 1_700_000_000_000
I64_MAX = (1 << 63) - 1

ROWS: list[tuple[str, Row, str]] = [
    # created, updated, batch, entries, generation; query, run, replaced: each a count and the text
    (
        "new",
        Row(TIME, TIME, 0, 1, 0, "", "", ()),
        "0068e5cf8b010000 0068e5cf8b010000 0000000000000000 0100000000000000 00000000 0000 0000 0000",
    ),
    (
        "with all it can have",
        Row(TIME, TIME + 1, 41, 7, 2, "q1", "r3", ("r1", "é")),
        "0068e5cf8b010000 0168e5cf8b010000 2900000000000000 0700000000000000 02000000 "
        "0200 7131 0200 7233 0200 0200 7231 0200 c3a9",
    ),
    (
        "reset",
        Row(TIME, TIME, NO_BATCH, 0, 1, "", "", ("r1",)),
        "0068e5cf8b010000 0068e5cf8b010000 ffffffffffffffff 0000000000000000 01000000 0000 0000 0100 0200 7231",
    ),
]
PINS: list[tuple[str, Pin, str]] = [
    ("empty", Pin(TIME, {}), "0068e5cf8b010000 0000"),
    (
        "journals in order",
        Pin(TIME, {"b": 2, "a/x": 258}),
        "0068e5cf8b010000 0200 0300 612f78 0201000000000000 0100 62 0200000000000000",
    ),
]
KEYS: list[tuple[str, bytes, str]] = [
    ("row", key_of(ROW, "orders é"), "08 01 01 6f726465727320c3a9"),
    ("pin", key_of(PIN, "p"), "08 01 02 70"),
]

TEXT = st.text(max_size=12)
NAME = st.text(min_size=1, max_size=12)
RUNS = st.lists(NAME, unique=True, max_size=REPLACED_MAX + 1)


@pytest.mark.parametrize(("name", "row", "encoded"), ROWS, ids=[name for name, _, _ in ROWS])
def test_the_bytes_of_rows(name: str, row: Row, encoded: str) -> None:
    assert row.encode() == bytes.fromhex(encoded)
    assert Row.decode(bytes.fromhex(encoded)) == row


@pytest.mark.parametrize(("name", "pin", "encoded"), PINS, ids=[name for name, _, _ in PINS])
def test_the_bytes_of_pins(name: str, pin: Pin, encoded: str) -> None:
    assert pin.encode() == bytes.fromhex(encoded)
    assert Pin.decode(bytes.fromhex(encoded)) == pin


@pytest.mark.parametrize(("name", "key", "encoded"), KEYS, ids=[name for name, _, _ in KEYS])
def test_the_bytes_of_keys(name: str, key: bytes, encoded: str) -> None:
    assert key == bytes.fromhex(encoded)


@given(NAME, NAME)
def test_keys_are_in_the_order_of_names(one: str, other: str) -> None:
    assert (key_of(ROW, one) < key_of(ROW, other)) == (one < other)
    assert name_of(ROW, key_of(ROW, one)) == one


@given(st.integers(0, 1 << 40), st.integers(0, I64_MAX), st.integers(0, (1 << 32) - 1), TEXT, RUNS)
def test_rows_read_back(entries: int, room: int, generation: int, query: str, runs: list[str]) -> None:
    entries += 1
    batch = min(I64_MAX, entries - 1 + room)
    run, *replaced = runs or [""]
    row = Row(TIME, TIME, batch, entries, generation, query, run, tuple(replaced))
    assert Row.decode(row.encode()) == row


@given(st.dictionaries(NAME, st.integers(0, (1 << 64) - 1)))
def test_pins_read_back(offsets: dict[str, int]) -> None:
    assert Pin.decode(Pin(TIME, offsets).encode()) == Pin(TIME, offsets)


@pytest.mark.parametrize(
    "row",
    [
        Row(TIME, TIME, -2, 0, 0, "", "", ()),
        Row(TIME, TIME, NO_BATCH, 1, 0, "", "", ()),
        Row(TIME, TIME, 0, 0, 0, "", "", ()),
        Row(TIME, TIME, 3, 5, 0, "", "", ()),
        Row(TIME, TIME, NO_BATCH, 0, 0, "q", "", ()),
        Row(TIME, TIME, NO_BATCH, 0, 0, "", "r", ()),
        Row(TIME, TIME, 0, 1, 0, "", "r", ("r",)),
        Row(TIME, TIME, 0, 1, 0, "", "r", ("s", "s")),
        Row(TIME, TIME, 0, 1, 0, "", "r", ("",)),
        Row(TIME, TIME, 0, 1, 0, "", "r", tuple(f"r{n}" for n in range(REPLACED_MAX + 1))),
    ],
)
def test_rows_that_no_owner_writes_are_refused(row: Row) -> None:
    with pytest.raises(Corrupt, match="ledger row"):
        Row.decode(row.encode())


@pytest.mark.parametrize(
    "encoded",
    [
        "0068e5cf8b010000 0100 0000 0200000000000000",
        "0068e5cf8b010000 0200 0100 62 0200000000000000 0100 61 0200000000000000",
        "0068e5cf8b010000 0200 0100 62 0200000000000000 0100 62 0200000000000000",
        "0068e5cf8b010000 0100 0100 62 0200000000000000 00",
        "0068e5cf8b010000 0200 0100 62 0200000000000000",
        "",
    ],
)
def test_pins_that_no_owner_writes_are_refused(encoded: str) -> None:
    with pytest.raises(Corrupt, match="pin"):
        Pin.decode(bytes.fromhex(encoded))


@pytest.mark.parametrize("key", [b"\x08\x01\x01", b"\x08\x01\x01\xff", b"\x08\x01\x02p", b""])
def test_keys_without_a_name_are_refused(key: bytes) -> None:
    with pytest.raises(Corrupt):
        ledger.name_of(ROW, key)
