"""The committed index against the oracle: any raw journal, cut into any appends, with crashes between them."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.codec import block
from detent.errors import Conflict, Unavailable
from detent.journal import operations as ops
from oracle import RawMessage, committed, random_journal
from world import World

EXAMPLES = 2000 if os.environ.get("DETENT_SOAK") else 60


def append_rows(world: World, rows: list[RawMessage], as_arrow: bool) -> None:
    if not as_arrow:
        world.stamped("j", rows)
        return
    producers = b"".join(producer.to_bytes(6, "big") for producer, _, _ in rows)
    content = block.content_of([f"{p}:{c}:{f}".encode() for p, c, f in rows])
    batch = block.stamped(
        len(rows),
        producers,
        pa.array([clock for _, clock, _ in rows], pa.uint64()).buffers()[1],
        pa.array([flags for _, _, flags in rows], pa.uint16()).buffers()[1],
        bytes(8 * len(rows)),
        content,
    )
    world.commit(ops.AppendBatch("j", batch.serialize().to_pybytes(), True))


def feed(world: World, rng: random.Random, raw: list[RawMessage]) -> list[RawMessage]:
    """Append all of it in random pieces, crashing now and then. Returns what the owner accepted: it refuses a producer
    that publishes outside of its own open transaction, which a journal can therefore not hold."""
    accepted: list[RawMessage] = []
    at = 0
    while at < len(raw):
        piece = raw[at : at + rng.choice((1, 1, 2, 3, 10, 40))]
        at += len(piece)
        as_arrow = rng.random() < 0.3
        if rng.random() < 0.1:
            world.writer.fail_before = 1
            with pytest.raises((Unavailable, Conflict)):
                append_rows(world, piece, as_arrow)
            world.writer.fail_before = 0
        try:
            append_rows(world, piece, as_arrow)
            accepted += piece
        except Conflict:
            for row in piece:
                try:
                    append_rows(world, [row], as_arrow)
                    accepted.append(row)
                except Conflict:
                    continue
        if rng.random() < 0.15:
            world.reopen()
    return accepted


def body(row: RawMessage) -> bytes:
    return "{}:{}:{}".format(*row).encode()


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), faults=st.sampled_from((0.0, 0.25, 0.6)), outside=st.sampled_from((0.0, 0.2)))
def test_the_index_is_what_the_oracle_commits(seed: int, faults: float, outside: float) -> None:
    rng = random.Random(seed)
    world = World(seed)
    raw = random_journal(rng, messages=rng.randint(1, 120), producers=rng.randint(1, 6), faults=faults, outside=outside)
    world.commit(ops.CreateJournal("j", producer_horizon_ms=0))
    accepted = feed(world, rng, raw)
    expected = [body(accepted[index]) for index in committed(accepted)]
    assert world.bodies("j") == expected
    messages = world.committed("j")
    assert [message.offset for message in messages] == list(range(len(expected)))
    assert [(int.from_bytes(m.producer, "big"), m.clock, m.flags) for m in world.raw("j")] == accepted
    info = world.reader.info("j")
    assert (info.next_offset, info.next_position) == (len(expected), len(accepted))
    assert info.lag(0) == len(expected)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_range_reads_exactly_that_range(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed)
    world.commit(ops.CreateJournal("j", producer_horizon_ms=0))
    accepted = feed(world, rng, random_journal(rng, messages=80, producers=4))
    expected = [body(accepted[index]) for index in committed(accepted)]
    for _ in range(10):
        start = rng.randint(0, len(expected))
        end = rng.randint(start, len(expected))
        rows = [r for _, batch in world.reader.committed("j", start, end) for r in batch.column("body").to_pylist()]
        assert rows == expected[start:end]


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_trimming_anywhere_keeps_all_that_is_left(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed)
    world.commit(ops.CreateJournal("j", producer_horizon_ms=0))
    raw = random_journal(rng, messages=150, producers=4)
    cut = rng.randint(1, len(raw))
    accepted = feed(world, rng, raw[:cut])
    before = rng.randint(0, len(committed(accepted)))
    world.commit(ops.TrimJournal("j", before))
    for _ in range(rng.randint(0, 2)):
        world.pass_time(10_000)
    accepted += feed(world, rng, raw[cut:])
    world.pass_time(10_000)
    expected = [body(accepted[index]) for index in committed(accepted)]
    assert world.bodies("j") == expected[before:]
    assert world.reader.extent("j") == (before, len(expected))


def test_nothing_blocks_behind_an_open_transaction() -> None:
    world = World()
    world.stamped("j", [(1, 160, 1)])
    for i in range(5):
        world.append("j", b"%d" % i)
    assert world.bodies("j") == [b"0", b"1", b"2", b"3", b"4"]
    world.stamped("j", [(1, 320, 2)])
    assert world.bodies("j")[-1] == b"1:160:1"


def test_messages_above_the_ack_roll_back() -> None:
    """A transaction's message that lands before the previous acknowledgement is lost: which is why publishers refuse
    to send it."""
    world = World()
    world.stamped("j", [(1, 160, 1), (1, 480, 1), (1, 320, 2), (1, 640, 2)])
    assert world.bodies("j") == [b"1:160:1"]


def test_a_repeated_ack_of_a_live_producer_rolls_back_what_came_after() -> None:
    world = World()
    world.stamped("j", [(1, 80, 1), (1, 90, 2), (1, 100, 1), (1, 90, 2), (1, 110, 2)])
    assert world.bodies("j") == [b"1:80:1"]


def test_an_ack_takes_no_offset_and_an_interleaved_span_commits_in_order() -> None:
    world = World()
    world.stamped("j", [(1, 10, 1), (2, 10, 1), (1, 20, 1), (2, 20, 1), (2, 30, 2), (1, 30, 2)])
    assert world.bodies("j") == [b"2:10:1", b"2:20:1", b"1:10:1", b"1:20:1"]
    assert [m.offset for m in world.committed("j")] == [0, 1, 2, 3]


def test_many_runs_spread_over_index_records() -> None:
    world = World()
    rows = [(producer, clock, 1) for clock in range(1, 401) for producer in (1, 2)]
    world.stamped("j", rows)
    world.stamped("j", [(2, 500, 2)])
    world.reopen()
    world.stamped("j", [(1, 500, 2)])
    expected = [f"{p}:{c}:1".encode() for p in (2, 1) for c in range(1, 401)]
    assert world.bodies("j") == expected
    with world.writer.view() as view:
        index = [key for key, _ in view.scan(b"\x06\x01\x10") if key[7:8] == b"\x06"]
    assert len(index) > 3
