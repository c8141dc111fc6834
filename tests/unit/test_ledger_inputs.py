"""Inputs and plans of ledgers: which batch is taken for done and which is refused, and what a reader planned before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec.ledger import INPUTS_MAX, STEPS_MAX, BatchInputs, Plan, PlanStep
from detent.errors import AlreadyEntered, Corrupt, Invalid, NotFound, OtherInput, Unavailable
from detent.journal import operations as journals
from detent.ledger import operations as ops
from ledgerworld import LedgerWorld

ONE, TWO, THREE = (bytes([number]) * 16 for number in (1, 2, 3))


@pytest.fixture
def world() -> LedgerWorld:
    return LedgerWorld()


def enter(world: LedgerWorld, batch: int, made_from: bytes = b"", name: str = "l") -> None:
    world.commit(ops.EnterLedger(name, "q", batch, "", made_from))


# -- inputs ---------------------------------------------------------------------------------------------------------


def test_a_batch_with_the_same_input_was_entered_before(world: LedgerWorld) -> None:
    enter(world, 0, ONE)
    enter(world, 1, TWO)
    world.reopen()
    for batch, made_from in ((0, ONE), (1, TWO)):
        with pytest.raises(AlreadyEntered):
            enter(world, batch, made_from)


def test_a_batch_with_another_input_is_refused_with_the_rest_of_its_transaction(world: LedgerWorld) -> None:
    enter(world, 5, ONE)
    with pytest.raises(OtherInput, match="batch 5 of the ledger 'l' took effect with another input") as caught:
        world.commit(journals.Append("j", [b"new"]), ops.EnterLedger("l", "q", 5, "", TWO))
    assert (caught.value.name, caught.value.batch) == ("l", 5)
    assert not isinstance(caught.value, AlreadyEntered)
    assert "detent ledger reset l" in str(caught.value)
    with pytest.raises(NotFound):
        world.bodies("j")


def test_a_batch_whose_input_is_not_known_is_refused(world: LedgerWorld) -> None:
    for batch in range(INPUTS_MAX + 3):
        enter(world, 2 * batch, ONE)
    for batch in (4, 2 * INPUTS_MAX + 1):  # long ago; between two that were entered
        with pytest.raises(OtherInput, match="not among the newest"):
            enter(world, batch, ONE)


def test_without_an_input_the_number_decides(world: LedgerWorld) -> None:
    """A ledger of an earlier release has none; a caller may name none; a batch may have been entered without one."""
    enter(world, 3)
    for made_from in (b"", ONE):
        with pytest.raises(AlreadyEntered):
            enter(world, 3, made_from)
    enter(world, 4, ONE)
    enter(world, 5)
    for batch, made_from in ((4, b""), (5, ONE), (5, b"")):
        with pytest.raises(AlreadyEntered):
            enter(world, batch, made_from)
    with pytest.raises(OtherInput):
        enter(world, 3, ONE)


def test_inputs_go_with_a_reset_or_a_deletion(world: LedgerWorld) -> None:
    for operation in (ops.ResetLedger("l"), ops.DeleteLedger("l")):
        enter(world, 0, ONE)
        world.commit(operation)
        world.reopen()
        enter(world, 0, TWO)
        assert world.row().inputs == [(0, TWO)]
        world.commit(ops.DeleteLedger("l"))


def test_a_commit_that_fails_leaves_inputs_and_plans_as_they_were(world: LedgerWorld) -> None:
    enter(world, 0, ONE)
    plan(world, ONE, {"j": 1})
    world.writer.fail_before = 1
    with pytest.raises(Unavailable):
        world.commit(ops.EnterLedger("l", "q", 1, "", TWO), step(TWO, {"j": 2}))
    assert world.row().inputs == [(0, ONE)]
    assert plan(world, TWO, {"j": 3}) == ({"j": 3}, True)


@pytest.mark.parametrize("made_from", [b"short", b"x" * 17, "0" * 16, None])
def test_an_input_is_a_digest(world: LedgerWorld, made_from: object) -> None:
    with pytest.raises(Invalid, match="digest of 16 bytes"):
        enter(world, 0, made_from)  # type: ignore[arg-type]


# -- plans ----------------------------------------------------------------------------------------------------------


def step(
    start: bytes,
    moved: dict[str, int],
    *,
    end: bytes = THREE,
    journals: bytes = ONE,
    name: str = "p",
    anew: bool = False,
) -> ops.PlanOffsets:
    return ops.PlanOffsets(name, start, end, journals, moved, anew)


def plan(world: LedgerWorld, start: bytes, moved: dict[str, int], name: str = "p") -> tuple[dict[str, int], bool]:
    planned: ops.Planned = world.commit(step(start, moved, name=name))[0]
    return planned.moved, planned.new


def test_a_reader_that_asks_again_gets_the_first_answer(world: LedgerWorld) -> None:
    assert plan(world, ONE, {"a": 5}) == ({"a": 5}, True)
    world.reopen()
    assert plan(world, ONE, {"a": 9, "b": 1}) == ({"a": 5}, False)
    assert plan(world, ONE, {"a": 9}, name="another") == ({"a": 9}, True)
    assert plan(world, TWO, {"a": 9}) == ({"a": 9}, True)


def test_a_step_that_is_planned_anew_takes_the_place_of_the_old_one(world: LedgerWorld) -> None:
    plan(world, ONE, {"a": 5})
    planned: ops.Planned = world.commit(step(ONE, {"a": 9}, anew=True))[0]
    assert (planned.moved, planned.new) == ({"a": 9}, True)
    assert plan(world, ONE, {"a": 7}) == ({"a": 9}, False)


def test_a_step_says_on_which_journals_the_one_before_it_was(world: LedgerWorld) -> None:
    first: ops.Planned = world.commit(step(ONE, {"a": 5}, end=TWO, journals=THREE))[0]
    second: ops.Planned = world.commit(step(TWO, {"a": 9}, journals=ONE))[0]
    again: ops.Planned = world.commit(step(TWO, {"a": 9}, journals=TWO))[0]
    assert (first.before, second.before, again.before, again.journals) == (b"", THREE, THREE, ONE)


def test_a_plan_keeps_its_newest_steps(world: LedgerWorld) -> None:
    for number in range(STEPS_MAX + 1):
        plan(world, bytes([number]) * 16, {"a": number})
    assert plan(world, bytes([1]) * 16, {"a": 99}) == ({"a": 1}, False)
    assert plan(world, bytes([0]) * 16, {"a": 99}) == ({"a": 99}, True)


def test_a_plan_keeps_as_many_steps_as_there_is_room_for(world: LedgerWorld) -> None:
    many = {f"journal-{number}": number for number in range(2_000)}
    plan(world, ONE, many)
    plan(world, TWO, many)
    assert plan(world, TWO, {}) == (dict(sorted(many.items())), False)
    assert plan(world, ONE, {"a": 1}) == ({"a": 1}, True)


def test_plans_that_were_not_used_for_longest_make_room(world: LedgerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "PLANS_MAX", 2)
    for name in ("a", "b", "a", "c"):
        world.now_ms += 1
        plan(world, ONE if name != "a" else world.now_ms.to_bytes(16, "big"), {"j": 1}, name)
    world.reopen()
    assert plan(world, ONE, {"j": 2}, "b") == ({"j": 2}, True)  # and now a goes
    assert plan(world, ONE, {"j": 2}, "c") == ({"j": 1}, False)


@pytest.mark.parametrize(
    "operation",
    [step(b"", {}), step(ONE, {"a": -1}), step(ONE, {"": 1}), step(ONE, {}, name=""), step(ONE, {}, end=b"x")],
)
def test_what_cannot_be_planned(world: LedgerWorld, operation: ops.PlanOffsets) -> None:
    with pytest.raises(Invalid):
        world.commit(operation)


# -- records --------------------------------------------------------------------------------------------------------

DIGESTS = st.binary(min_size=16, max_size=16)
STEPS = st.builds(
    PlanStep,
    planned_ms=st.integers(0, 1 << 40),
    start=DIGESTS,
    end=DIGESTS,
    journals=DIGESTS,
    moved=st.dictionaries(st.text("ab/é", min_size=1), st.integers(0, 1 << 62)),
)


@given(batches=st.sets(st.integers(0, (1 << 63) - 1), max_size=INPUTS_MAX))
def test_inputs_are_read_as_they_were_written(batches: set[int]) -> None:
    inputs = BatchInputs(tuple((batch, ONE) for batch in sorted(batches)))
    assert BatchInputs.decode(inputs.encode()) == inputs


@given(steps=st.lists(STEPS, min_size=1, max_size=5, unique_by=lambda step: step.start))
def test_plans_are_read_as_they_were_written(steps: list[PlanStep]) -> None:
    assert Plan.decode(Plan(tuple(steps)).encode()) == Plan(tuple(steps))


def test_the_bytes_of_both() -> None:
    assert BatchInputs(((258, ONE),)).encode() == bytes.fromhex("0100 0201000000000000") + ONE
    written = Plan((PlanStep(5, ONE, TWO, THREE, {"b": 1, "a": 2}),)).encode()
    moved = bytes.fromhex("0200 0100 61 0200000000000000 0100 62 0100000000000000")
    assert written == bytes.fromhex("0100 0500000000000000") + ONE + TWO + THREE + moved


@pytest.mark.parametrize(
    "value",
    [
        BatchInputs(((1, ONE), (1, TWO))).encode(),
        BatchInputs(((-1, ONE),)).encode(),
        BatchInputs(tuple((batch, ONE) for batch in range(INPUTS_MAX + 1))).encode(),
    ],
)
def test_inputs_that_no_owner_writes(value: bytes) -> None:
    with pytest.raises(Corrupt):
        BatchInputs.decode(value)


@pytest.mark.parametrize(
    "value",
    [
        Plan(()).encode(),
        Plan((PlanStep(1, ONE, ONE, ONE, {}), PlanStep(1, ONE, TWO, ONE, {}))).encode(),
        Plan((PlanStep(1, ONE, ONE, ONE, {"": 1}),)).encode(),
    ],
)
def test_plans_that_no_owner_writes(value: bytes) -> None:
    with pytest.raises(Corrupt):
        Plan.decode(value)
