"""The records of consumers and shards: what is written reads back as it was, and the bytes are those of the format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec import shard as records
from detent.codec.shard import CHECKPOINT, DOOMED, FENCE_STEP, PROGRESS, Reset
from detent.codec.shard import ConsumerRow as Consumer
from detent.codec.shard import ProgressRow as Progress
from detent.codec.shard import ShardRow as Shard
from detent.errors import Corrupt

TIME = 1_700_000_000_000

CONSUMERS: list[tuple[str, Consumer, str]] = [
    # created, shards, paused; partition; sources: each a count and the text, and the shard
    (
        "new",
        Consumer(TIME, 1, "journal", False, {}),
        "0068e5cf8b010000 01000000 00 0700 6a6f75726e616c 0000",
    ),
    (
        "journals in order",
        Consumer(TIME, 3, "journal", True, {"b": 2, "a/x": 0}),
        "0068e5cf8b010000 03000000 01 0700 6a6f75726e616c 0200 0300 612f78 00000000 0100 62 02000000",
    ),
    (
        "by key",
        Consumer(TIME, 2, "key", False, {"a": 0}),
        "0068e5cf8b010000 02000000 00 0300 6b6579 0100 0100 61 00000000",
    ),
]
SHARDS: list[tuple[str, Shard, str]] = [
    # number, fence, ttl, generation, updated; holder; resets: each a count and the text, the offset, the generation
    (
        "new",
        Shard(1, FENCE_STEP, "", 0, 0, {}, TIME),
        "01000000 0000100000000000 00000000 00000000 0068e5cf8b010000 0000 0000",
    ),
    (
        "with all it can have",
        Shard(2, 2 * FENCE_STEP + 5, "mé", 1000, 3, {"b": Reset(258, 3), "a": Reset(0, 1)}, TIME + 1),
        "02000000 0500200000000000 e8030000 03000000 0168e5cf8b010000 0300 6dc3a9 0200 "
        "0100 61 0000000000000000 01000000 0100 62 0201000000000000 03000000",
    ),
]
PROGRESSES: list[tuple[str, Progress, str]] = [
    # processed, published: each a count and the text, and the offset; generation
    ("nothing", Progress({}, {}, 0), "0000 0000 00000000"),
    ("which journals", Progress({}, {}, 2, {"a": 258}), "0000 0000 02000000 0100 0100 61 02010000"),
    (
        "journals in order",
        Progress({"b": 258, "a/x": 0}, {"far:é": 1 << 62}, 3),
        "0200 0300 612f78 0000000000000000 0100 62 0201000000000000 0100 0600 6661723ac3a9 0000000000000040 03000000",
    ),
]
KEYS: list[tuple[str, bytes, str]] = [
    ("consumer", records.consumer_key("orders é"), "09 01 01 6f726465727320c3a9"),
    ("shard", records.shard_key("c\0", 258), "09 01 02 63 0101 00 00000102"),
    ("checkpoint", records.checkpoint_key(258), "09 01 03 00000102"),
    ("state", records.state_key(258, "é"), "09 01 04 00000102 c3a9"),
    ("counter", records.COUNTER.raw, "09 01 05"),
    ("doomed", records.doomed_key(258), "09 01 06 00000102"),
    ("progress", records.progress_key(258), "09 01 07 00000102"),
    ("the counter's value", records.encode_counter(258), "02010000"),
]

NAME = st.text(min_size=1, max_size=12)
U32 = st.integers(0, (1 << 32) - 1)
NUMBER = st.integers(1, (1 << 32) - 1)


@pytest.mark.parametrize(("name", "row", "encoded"), CONSUMERS, ids=[name for name, _, _ in CONSUMERS])
def test_the_bytes_of_consumers(name: str, row: Consumer, encoded: str) -> None:
    assert row.encode() == bytes.fromhex(encoded)
    assert Consumer.decode(bytes.fromhex(encoded)) == row


@pytest.mark.parametrize(("name", "row", "encoded"), SHARDS, ids=[name for name, _, _ in SHARDS])
def test_the_bytes_of_shards(name: str, row: Shard, encoded: str) -> None:
    assert row.encode() == bytes.fromhex(encoded)
    assert Shard.decode(bytes.fromhex(encoded)) == row


@pytest.mark.parametrize(("name", "row", "encoded"), PROGRESSES, ids=[name for name, _, _ in PROGRESSES])
def test_the_bytes_of_progress(name: str, row: Progress, encoded: str) -> None:
    assert row.encode() == bytes.fromhex(encoded)
    assert Progress.decode(bytes.fromhex(encoded)) == row


@pytest.mark.parametrize(("name", "key", "encoded"), KEYS, ids=[name for name, _, _ in KEYS])
def test_the_bytes_of_keys(name: str, key: bytes, encoded: str) -> None:
    assert key == bytes.fromhex(encoded)


@given(NAME, NAME, U32, U32)
def test_keys_of_shards_are_in_the_order_of_names_and_indexes(one: str, other: str, low: int, high: int) -> None:
    assert (records.shard_key(one, low) < records.shard_key(other, high)) == ((one, low) < (other, high))
    assert records.decode_shard_key(records.shard_key(one, low)) == (one, low)
    assert records.decode_consumer_key(records.consumer_key(one)) == one


@given(NUMBER, NUMBER, NAME, NAME)
def test_keys_of_state_are_in_the_order_of_numbers_and_keys(one: int, other: int, low: str, high: str) -> None:
    assert (records.state_key(one, low) < records.state_key(other, high)) == ((one, low) < (other, high))
    assert records.decode_state_key(records.state_key(one, low)) == (one, low)
    assert records.decode_number_key(CHECKPOINT, records.checkpoint_key(one)) == one
    assert records.decode_number_key(DOOMED, records.doomed_key(one)) == one
    assert records.decode_number_key(PROGRESS, records.progress_key(one)) == one
    assert records.decode_counter(records.encode_counter(one)) == one


@given(st.integers(1, 9), st.sampled_from(["journal", "key"]), st.booleans(), st.dictionaries(NAME, U32))
def test_consumers_read_back(shards: int, partition: str, paused: bool, journals: dict[str, int]) -> None:
    sources = {name: shard % shards if partition == "journal" else 0 for name, shard in journals.items()}
    row = Consumer(TIME, shards, partition, paused, sources)
    assert Consumer.decode(row.encode()) == row


@given(NUMBER, U32, NAME, NUMBER, NUMBER, st.dictionaries(NAME, st.integers(0, (1 << 64) - 1), min_size=1))
def test_shards_read_back(
    number: int, opened: int, holder: str, ttl_ms: int, generation: int, offsets: dict[str, int]
) -> None:
    resets = {journal: Reset(offset, generation) for journal, offset in offsets.items()}
    row = Shard(number, number * FENCE_STEP + opened, holder, ttl_ms, generation, resets, TIME)
    assert Shard.decode(row.encode()) == row


OFFSETS = st.dictionaries(NAME, st.integers(0, (1 << 64) - 1))


@given(OFFSETS, OFFSETS, U32, st.dictionaries(NAME, NUMBER))
def test_progress_reads_back(
    processed: dict[str, int], published: dict[str, int], generation: int, numbers: dict[str, int]
) -> None:
    row = Progress(processed, published, generation, numbers)
    assert Progress.decode(row.encode()) == row


WHOLE = Shard(2, 2 * FENCE_STEP, "m", 1000, 1, {"a": Reset(1, 1)}, TIME)


@pytest.mark.parametrize(
    "row",
    [
        WHOLE._replace(number=0),
        WHOLE._replace(fence=2 * FENCE_STEP - 1),
        WHOLE._replace(holder=""),
        WHOLE._replace(ttl_ms=0),
        WHOLE._replace(generation=0),
        WHOLE._replace(resets={}),
        WHOLE._replace(resets={"": Reset(1, 1)}),
        WHOLE._replace(resets={"a": Reset(1, 2)}),
        WHOLE._replace(resets={"a": Reset(1, 1), "b": Reset(1, 0)}),
        Consumer(TIME, 0, "journal", False, {}),
        Consumer(TIME, 2, "", False, {}),
        Consumer(TIME, 2, "keys", False, {}),
        Consumer(TIME, 2, "journal", False, {"a": 2}),
        Consumer(TIME, 2, "journal", False, {"": 0}),
        Consumer(TIME, 2, "key", False, {"a": 1}),
        Progress({"": 1}, {}, 0),
        Progress({}, {}, 0, {"": 1}),
        Progress({}, {}, 0, {"a": 0}),
        Progress({}, {"": 1}, 0),
    ],
)
def test_rows_that_no_owner_writes_are_refused(row: Consumer | Shard | Progress) -> None:
    with pytest.raises(Corrupt, match=type(row).__name__.removesuffix("Row").lower()):
        type(row).decode(row.encode())


@pytest.mark.parametrize(
    "row",
    [WHOLE, Consumer(TIME, 2, "journal", False, {"a": 1, "b": 0}), Progress({"a": 1, "b": 0}, {"c": 2}, 1)],
)
def test_rows_that_end_early_or_go_on_are_refused(row: Consumer | Shard | Progress) -> None:
    whole = row.encode()
    for size in range(len(whole)):
        with pytest.raises(Corrupt):
            type(row).decode(whole[:size])
    with pytest.raises(Corrupt, match=r"follow the last field|bytes expected"):
        type(row).decode(whole + b"\0")


@pytest.mark.parametrize(
    "encoded",
    [
        "0068e5cf8b010000 02000000 02 0700 6a6f75726e616c 0000",
        "0068e5cf8b010000 02000000 00 0700 6a6f75726e616c 0200 0100 62 00000000 0100 61 00000000",
        "0068e5cf8b010000 02000000 00 0700 6a6f75726e616c 0200 0100 61 00000000 0100 61 00000000",
    ],
)
def test_consumers_whose_bytes_no_owner_writes_are_refused(encoded: str) -> None:
    with pytest.raises(Corrupt, match="consumer"):
        Consumer.decode(bytes.fromhex(encoded))


@pytest.mark.parametrize(
    "encoded",
    [
        "0200 0100 62 0000000000000000 0100 61 0000000000000000 0000 00000000",
        "0000 0200 0100 61 0000000000000000 0100 61 0000000000000000 00000000",
    ],
)
def test_progress_whose_bytes_no_owner_writes_is_refused(encoded: str) -> None:
    with pytest.raises(Corrupt, match="out of order or twice"):
        Progress.decode(bytes.fromhex(encoded))


@pytest.mark.parametrize(
    ("decode", "encoded"),
    [
        (records.decode_consumer_key, "090101"),
        (records.decode_consumer_key, "090101ff"),
        (records.decode_consumer_key, "09010263"),
        (records.decode_shard_key, "0901020000000001"),
        (records.decode_shard_key, "09010263"),
        (records.decode_shard_key, "0901026300000001"),
        (records.decode_shard_key, "090102630000000001ff"),
        (records.decode_shard_key, "090102ff0000000001"),
        (records.decode_state_key, "0901040000000061"),
        (records.decode_state_key, "09010400000001"),
        (records.decode_state_key, "09010400000001ff"),
        (records.decode_state_key, "0901040001"),
        (lambda key: records.decode_number_key(CHECKPOINT, key), "09010300000000"),
        (lambda key: records.decode_number_key(CHECKPOINT, key), "0901030000000100"),
        (lambda key: records.decode_number_key(CHECKPOINT, key), "09010600000001"),
        (lambda key: records.decode_number_key(PROGRESS, key), "09010700000000"),
        (lambda key: records.decode_number_key(PROGRESS, key), "09010300000001"),
        (records.decode_counter, "00000000"),
        (records.decode_counter, "010000"),
        (records.decode_counter, "0100000000"),
    ],
)
def test_keys_and_counters_that_no_owner_writes_are_refused(decode: Callable[[bytes], Any], encoded: str) -> None:
    with pytest.raises(Corrupt):
        decode(bytes.fromhex(encoded))


def test_which_shard_reads_what() -> None:
    row = Consumer(TIME, 2, "journal", False, {"b": 1, "c": 0, "a": 1})
    assert [row.journals_of(index) for index in range(2)] == [["c"], ["a", "b"]]
    assert row.reads(0, "c")
    assert not row.reads(1, "c")
    row = Consumer(TIME, 2, "key", False, {"b": 0, "a": 0})
    assert [row.journals_of(index) for index in range(2)] == [["a", "b"], ["a", "b"]]
    assert not row.reads(0, "c")
