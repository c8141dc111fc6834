"""The decision function, row by row: first as decided here, then against the table of a stricter sibling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.message import (
    ACK_TXN,
    CONTINUE_TXN,
    NO_SPAN,
    OUTSIDE_TXN,
    Outcome,
    ProducerState,
    decide,
    first_sight,
    kind_of,
)

O, C, A = OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN  # noqa: E741
IDLE = ProducerState(10, 10)
OPEN = ProducerState(10, 20, 3)

TABLE = [
    (O, 9, IDLE, Outcome.OUTSIDE_DUPLICATE, IDLE),
    (O, 10, IDLE, Outcome.OUTSIDE_DUPLICATE, IDLE),
    (O, 11, IDLE, Outcome.OUTSIDE_COMMIT, ProducerState(11, 11)),
    (O, 10, OPEN, Outcome.OUTSIDE_DUPLICATE, OPEN),
    (O, 11, OPEN, Outcome.OUTSIDE_OVER_SPAN, ProducerState(11, 11)),
    (O, 21, OPEN, Outcome.OUTSIDE_OVER_SPAN, ProducerState(21, 21)),
    (C, 10, IDLE, Outcome.CONTINUE_DUPLICATE, IDLE),
    (C, 11, IDLE, Outcome.CONTINUE_BEGIN, ProducerState(10, 11, 77)),
    (C, 10, OPEN, Outcome.CONTINUE_DUPLICATE, OPEN),
    (C, 11, OPEN, Outcome.CONTINUE_OLDER_IN_SPAN, OPEN),
    (C, 20, OPEN, Outcome.CONTINUE_OLDER_IN_SPAN, OPEN),
    (C, 21, OPEN, Outcome.CONTINUE_EXTEND, ProducerState(10, 21, 3)),
    (A, 9, IDLE, Outcome.ACK_DUPLICATE, IDLE),
    (A, 10, IDLE, Outcome.ACK_DUPLICATE, IDLE),
    (A, 11, IDLE, Outcome.ACK_EMPTY, ProducerState(11, 11)),
    (A, 9, OPEN, Outcome.ACK_DEEP_ROLLBACK, ProducerState(10, 10)),
    (A, 10, OPEN, Outcome.ACK_CLEAN_ROLLBACK, ProducerState(10, 10)),
    (A, 20, OPEN, Outcome.ACK_COMMIT, ProducerState(20, 20)),
    (A, 30, OPEN, Outcome.ACK_COMMIT, ProducerState(30, 30)),
    (A, 15, OPEN, Outcome.ACK_COMMIT, ProducerState(15, 15)),
]


@pytest.mark.parametrize(("flags", "clock", "state", "outcome", "after"), TABLE)
def test_every_row_of_the_table(
    flags: int, clock: int, state: ProducerState, outcome: Outcome, after: ProducerState
) -> None:
    assert decide(flags, clock, state, position=77) == (outcome, after)


def two_clocks(last_commit: int, max_continue: int) -> ProducerState:
    return ProducerState(last_commit, max_continue, 0) if max_continue else ProducerState(last_commit, last_commit)


SIBLING = [
    (O, 10, 5, 0, Outcome.OUTSIDE_COMMIT, 10, 0),
    (O, 10, 10, 0, Outcome.OUTSIDE_DUPLICATE, 10, 0),
    (O, 5, 10, 0, Outcome.OUTSIDE_DUPLICATE, 10, 0),
    (C, 10, 5, 0, Outcome.CONTINUE_BEGIN, 5, 10),
    (C, 20, 5, 10, Outcome.CONTINUE_EXTEND, 5, 20),
    (C, 10, 5, 10, Outcome.CONTINUE_OLDER_IN_SPAN, 5, 10),
    (C, 8, 5, 10, Outcome.CONTINUE_OLDER_IN_SPAN, 5, 10),
    (C, 5, 10, 0, Outcome.CONTINUE_DUPLICATE, 10, 0),
    (C, 10, 10, 0, Outcome.CONTINUE_DUPLICATE, 10, 0),
    (A, 20, 5, 20, Outcome.ACK_COMMIT, 20, 0),
    (A, 30, 5, 20, Outcome.ACK_COMMIT, 30, 0),
    (A, 20, 10, 0, Outcome.ACK_EMPTY, 20, 0),
    (A, 10, 10, 0, Outcome.ACK_DUPLICATE, 10, 0),
    (A, 10, 10, 20, Outcome.ACK_CLEAN_ROLLBACK, 10, 0),
    (A, 3, 10, 0, Outcome.ACK_DUPLICATE, 10, 0),
]


@pytest.mark.parametrize(("flags", "clock", "ack", "top", "outcome", "ack_after", "top_after"), SIBLING)
def test_where_we_agree_with_the_sibling(
    flags: int, clock: int, ack: int, top: int, outcome: Outcome, ack_after: int, top_after: int
) -> None:
    assert decide(flags, clock, two_clocks(ack, top), position=0) == (outcome, two_clocks(ack_after, top_after))


def test_departure_a_deep_rollback_never_lowers_the_last_ack() -> None:
    outcome, after = decide(A, 3, two_clocks(10, 20), position=0)
    assert (outcome, after) == (Outcome.ACK_DEEP_ROLLBACK, ProducerState(10, 10))
    # With last_ack lowered to 3, this repeat of a committed message would be committed again.
    assert decide(O, 7, after, position=1)[0] is Outcome.OUTSIDE_DUPLICATE


def test_departure_b_a_stale_ack_without_a_span_changes_nothing() -> None:
    for clock in (1, 9, 10):
        assert decide(A, clock, IDLE, position=0) == (Outcome.ACK_DUPLICATE, IDLE)


def test_departure_c_a_message_outside_commits_over_an_open_span() -> None:
    assert decide(O, 20, two_clocks(5, 15), position=0) == (Outcome.OUTSIDE_OVER_SPAN, ProducerState(20, 20))


def test_departure_d_a_partial_ack_commits_and_rolls_back() -> None:
    assert decide(A, 15, two_clocks(5, 20), position=0) == (Outcome.ACK_COMMIT, ProducerState(15, 15))


@pytest.mark.parametrize("flags", [O, C, A, 682])
@pytest.mark.parametrize("state", [None, IDLE, OPEN])
def test_clock_zero_always_commits_and_leaves_no_trace(flags: int, state: ProducerState | None) -> None:
    assert decide(flags, 0, state, position=5, floor=1000) == (Outcome.OUTSIDE_COMMIT, state)


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [(O, Outcome.OUTSIDE_COMMIT), (C, Outcome.CONTINUE_BEGIN), (A, Outcome.ACK_EMPTY)],
)
@pytest.mark.parametrize("clock", [1, 2, 1000, 2**64 - 1])
def test_the_first_message_of_a_producer_is_accepted_at_any_clock(flags: int, outcome: Outcome, clock: int) -> None:
    assert decide(flags, clock, None, position=4)[0] is outcome


def test_first_sight() -> None:
    assert first_sight(100) == ProducerState(99, 99, NO_SPAN)
    assert first_sight(1) == ProducerState(0, 0)
    assert first_sight(0) == ProducerState(0, 0)
    assert not first_sight(5).is_open


def test_an_unknown_producer_below_the_floor_is_refused() -> None:
    assert decide(C, 50, None, position=0, floor=50) == (Outcome.BELOW_FLOOR, None)
    assert decide(C, 51, None, position=0, floor=50)[0] is Outcome.CONTINUE_BEGIN
    assert decide(C, 21, OPEN, position=0, floor=50)[0] is Outcome.CONTINUE_EXTEND


@pytest.mark.parametrize("flags", [3, 4, 0x2AA, 0x3FF])
def test_unknown_flags_are_handled_as_outside(flags: int) -> None:
    assert kind_of(flags) == O
    assert decide(flags, 11, IDLE, position=0) == decide(O, 11, IDLE, position=0)


def test_outcomes_fit_a_byte_and_keep_their_numbers() -> None:
    assert [outcome.value for outcome in Outcome] == list(range(13))
    assert {o.name for o in Outcome if o.delivers} == {"OUTSIDE_COMMIT", "OUTSIDE_OVER_SPAN", "ACK_EMPTY", "ACK_COMMIT"}
    assert {o.name for o in Outcome if o.closes} == {
        "OUTSIDE_OVER_SPAN",
        "ACK_COMMIT",
        "ACK_CLEAN_ROLLBACK",
        "ACK_DEEP_ROLLBACK",
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=40))
def test_the_laws_of_the_state(messages: list[tuple[int, int]]) -> None:
    state: ProducerState | None = None
    for position, (flags, clock) in enumerate(messages):
        before = state
        _, state = decide(flags, clock, before, position)
        if before is not None and state is not None:
            assert state.last_ack >= before.last_ack
        if state is not None:
            assert state.max_clock >= state.last_ack
            assert state.is_open == (state.max_clock > state.last_ack)
