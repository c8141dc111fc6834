"""Blocks: the columns give what the loop gives, in every corner."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Invalid, LimitExceeded
from detent.message import (
    Carried,
    Outcome,
    ProducerState,
    SequencedBlock,
    grouping,
    sequence_block,
    sequence_block_scalar,
)
from detent.message.grouping import group_rows, running_max
from detent.message.vectorised import SCALAR_ROWS_MAX, sequence_block_columns
from oracle import RawMessage, random_journal

P, Q = 7, 9
BOTH = pytest.mark.parametrize("sequence", [sequence_block_scalar, sequence_block_columns, sequence_block])
Function = Callable[..., SequencedBlock]


def columns(raw: list[RawMessage]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    producers, clocks, flags = zip(*raw, strict=True) if raw else ((), (), ())
    return np.array(producers, np.uint64), np.array(clocks, np.uint64), np.array(flags, np.uint16)


def plain(block: SequencedBlock) -> tuple[object, ...]:
    assert block.outcomes.dtype == np.uint8
    assert block.order.dtype == np.int64
    pending = {producer: rows.tolist() for producer, rows in block.pending.items()}
    return block.outcomes.tolist(), block.states, block.order.tolist(), block.carried, block.closed, pending


def check(raw: list[RawMessage], base: int, states: Mapping[int, ProducerState], floor: int = 0) -> SequencedBlock:
    loop = sequence_block_scalar(*columns(raw), base, states, floor=floor)
    assert plain(sequence_block_columns(*columns(raw), base, states, floor=floor)) == plain(loop)
    return loop


@BOTH
def test_messages_outside_of_transactions(sequence: Function) -> None:
    block = sequence(*columns([(P, 10, 0), (Q, 5, 0), (P, 10, 0), (P, 11, 0)]), 100, {Q: ProducerState(5, 5)})
    assert block.outcomes.tolist() == [0, 1, 1, 0]
    assert block.order.tolist() == [0, 3]
    assert block.states == {P: ProducerState(11, 11), Q: ProducerState(5, 5)}


@BOTH
def test_interleaved_transactions_commit_in_the_order_of_their_acks(sequence: Function) -> None:
    raw = [(P, 10, 1), (Q, 10, 1), (P, 11, 1), (Q, 11, 2), (P, 12, 2), (Q, 12, 1)]
    block = sequence(*columns(raw), 100, {})
    assert block.order.tolist() == [1, 0, 2]
    assert block.states == {P: ProducerState(12, 12), Q: ProducerState(11, 12, 105)}
    assert {producer: rows.tolist() for producer, rows in block.pending.items()} == {Q: [5]}
    assert (block.carried, block.closed) == ([], set())


@BOTH
def test_a_span_from_before_the_block_is_carried(sequence: Function) -> None:
    states = {P: ProducerState(5, 9, 40), Q: ProducerState(3, 4, 41)}
    raw = [(Q, 1, 0), (9999, 0, 0), (P, 10, 1), (P, 11, 2), (Q, 3, 2), (P, 12, 1)]
    block = sequence(*columns(raw), 100, states)
    assert block.order.tolist() == [1, 2]
    assert block.carried == [Carried(at=1, producer=P, above=5, through=11)]
    assert block.closed == {P, Q}
    assert Outcome(block.outcomes[2]) is Outcome.CONTINUE_EXTEND
    assert Outcome(block.outcomes[5]) is Outcome.CONTINUE_BEGIN
    assert block.states == {P: ProducerState(11, 12, 105), Q: ProducerState(3, 3)}


@BOTH
def test_carried_spans_at_the_same_place_keep_the_order_of_their_acks(sequence: Function) -> None:
    states = {producer: ProducerState(1, 5, producer) for producer in (10, 20, 30)}
    raw = [(20, 6, 2), (30, 6, 2), (10, 6, 2)]
    carried = sequence(*columns(raw), 100, states).carried
    assert carried == [Carried(0, 20, 1, 6), Carried(0, 30, 1, 6), Carried(0, 10, 1, 6)]


@BOTH
def test_a_span_that_goes_on_through_the_block_stays_open(sequence: Function) -> None:
    block = sequence(*columns([(P, 10, 1), (P, 9, 1), (P, 5, 0), (P, 12, 1)]), 100, {P: ProducerState(5, 9, 40)})
    assert block.states == {P: ProducerState(5, 12, 40)}
    assert block.pending[P].tolist() == [0, 3]
    assert not block.closed


@BOTH
def test_an_empty_block(sequence: Function) -> None:
    assert plain(sequence(*columns([]), 5, {P: ProducerState(1, 2, 3)})) == ([], {}, [], [], set(), {})


@BOTH
def test_a_block_without_clocks_tracks_nobody(sequence: Function) -> None:
    assert plain(sequence(*columns([(P, 0, 1), (Q, 0, 2)]), 5, {})) == ([0, 0], {}, [0, 1], [], set(), {})


@BOTH
def test_a_producer_refused_below_the_floor_leaves_no_state(sequence: Function) -> None:
    raw = [(P, 10, 1), (Q, 10, 0), (P, 20, 2), (Q, 31, 0), (Q, 15, 0)]
    block = sequence(*columns(raw), 0, {}, floor=30)
    assert block.outcomes.tolist() == [12, 12, 12, 0, 1]
    assert block.states == {Q: ProducerState(31, 31)}


@BOTH
def test_inputs_are_not_changed(sequence: Function) -> None:
    raw = random_journal(random.Random(5), messages=300)
    arrays, states = columns(raw), {100: ProducerState(5, 50, 0)}
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    sequence(*arrays, 1000, states)
    assert all((array == copy).all() for array, copy in zip(arrays, copies, strict=True))
    assert states == {100: ProducerState(5, 50, 0)}


def test_columns_of_different_lengths_are_invalid() -> None:
    producers, clocks, flags = columns([(P, 1, 0), (P, 2, 0)])
    with pytest.raises(Invalid):
        sequence_block(producers[:1], clocks, flags, 0, {})
    with pytest.raises(Invalid):
        sequence_block(producers, clocks, flags[:1], 0, {})


def test_a_block_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.message.vectorised.BLOCK_ROWS_MAX", 1)
    with pytest.raises(LimitExceeded):
        sequence_block(*columns([(P, 1, 0), (P, 2, 0)]), 0, {})


EDGES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
MESSAGES = st.lists(st.tuples(st.integers(1, 3), EDGES, st.sampled_from([0, 1, 1, 1, 2, 2, 3, 0xFFFF])), max_size=25)
IDLE = st.builds(lambda clock: ProducerState(clock, clock), EDGES)
OPEN = st.builds(lambda a, b: ProducerState(min(a, b), max(a, b), 5), EDGES, EDGES)
STATES = st.dictionaries(st.integers(1, 4), IDLE | OPEN, max_size=3)


@given(MESSAGES, STATES, st.sampled_from([0, 0, 3, 2**63]))
def test_anything_at_all_gives_what_the_loop_gives(
    raw: list[RawMessage], states: dict[int, ProducerState], floor: int
) -> None:
    check(raw, 50, states, floor)


@given(st.lists(st.tuples(st.integers(1, 3), EDGES, st.sampled_from([0, 4])), max_size=15), STATES)
def test_blocks_without_transactions(raw: list[RawMessage], states: dict[int, ProducerState]) -> None:
    check(raw, 50, states)


@pytest.mark.parametrize("producers", [1, 2, 50])
@pytest.mark.parametrize("faults", [0.0, 0.01, 0.5])
def test_long_blocks(producers: int, faults: float) -> None:
    rng = random.Random(f"{producers} {faults}")
    for ack, outside in ((0.05, 0.0), (0.05, 0.05), (0.0, 1.0)):
        raw = random_journal(rng, messages=3000, producers=producers, faults=faults, ack=ack, outside=outside)
        first, second = raw[:1700], raw[1700:]
        states = check(first, 0, {}).states
        check(second, 1700, states)
        assert len(second) > SCALAR_ROWS_MAX
        assert plain(sequence_block(*columns(second), 1700, states)) == plain(check(second, 1700, states))


def test_producers_whose_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "_MIX", np.uint64(0))
    check(random_journal(random.Random(3), messages=500), 0, {})


@given(st.lists(st.sampled_from([1, 2, 3, 2**48 - 1, 2**63]), max_size=30))
def test_grouping_is_a_stable_sort_by_producer(producers: list[int]) -> None:
    groups = group_rows(np.array(producers, np.uint64))
    seen = {}
    for producer, start, end in zip(groups.producers.tolist(), groups.starts, groups.starts[1:], strict=False):
        seen[producer] = groups.rows[start:end].tolist()
    assert seen == {p: [row for row, other in enumerate(producers) if other == p] for p in producers}


@given(st.lists(st.tuples(st.integers(0, 3), EDGES), max_size=30))
def test_running_max_stays_within_its_segment(pairs: list[tuple[int, int]]) -> None:
    pairs.sort(key=lambda pair: pair[0])
    highest = running_max(np.array([v for _, v in pairs], np.uint64), np.array([s for s, _ in pairs], np.int64))
    expected = [max(v for s, v in pairs[: i + 1] if s == pairs[i][0]) for i in range(len(pairs))]
    assert highest.tolist() == expected
