"""A claim that could not be handed over is undone: the messages are as if they had not been claimed."""

from __future__ import annotations

from typing import Any

import pytest

from detent.codec import queue as records
from detent.engine import Done
from detent.errors import Invalid, StaleReceipt
from detent.queue import operations as ops
from queueworld import Queues, used


@pytest.fixture
def world() -> Queues:
    return Queues()


def undo(world: Queues, claimed: ops.ClaimedMessages, *indexes: int) -> Any:
    return world.commit(used(ops.Unclaim, claimed, *indexes))[0]


@pytest.mark.parametrize("failed_policy", ["keep", "discard"])
@pytest.mark.parametrize("dead_letter", ["", "dead"])
def test_undone_claims_use_no_attempts_however_many_there_are(
    world: Queues, failed_policy: str, dead_letter: str
) -> None:
    world.create("dead")
    world.create(max_attempts=1, failed_policy=failed_policy, dead_letter=dead_letter)
    messages = world.publish(3)
    for _ in range(5):
        assert undo(world, world.claim(3)) == Done()
    about = world.about()
    assert (about.available, about.in_flight, about.failed, about.failures) == (3, 0, 0, 0)
    claimed = world.claim(3)
    assert (claimed.messages, claimed.attempts) == (messages, [1, 1, 1])
    assert world.about("dead").routed == 0


def test_messages_of_an_undone_claim_keep_their_places(world: Queues) -> None:
    world.create()
    low, high, usual, high_too = world.urgent(200, 3, 128, 3)
    undo(world, world.claim(3), 2, 0, 1)
    plain = world.publish()[0]
    assert world.claim(10).messages == [high, high_too, usual, plain, low]


def test_undone_claim_lets_its_group_go_on_where_it_was(world: Queues) -> None:
    world.create(group_header="g")
    headers = [{"queue": "q", "g": group} for group in "xyxyx"]
    messages = world.publish(5, headers=headers)
    claimed = world.claim(2)
    assert claimed.messages == [messages[0], messages[2]]
    assert world.about().blocked == 2
    undo(world, claimed)
    assert world.claim(5).messages == [messages[n] for n in (0, 2, 4, 1, 3)]
    world.survives()


def test_receipt_of_an_undone_claim_is_stale_for_good(world: Queues) -> None:
    world.create()
    world.publish()
    lost = world.claim()
    undo(world, lost)
    for kind in (ops.Ack, ops.Fail, ops.Extend):
        with pytest.raises(StaleReceipt):
            world.commit(used(kind, lost))
    again = world.claim()
    assert again.first_delivery > lost.first_delivery
    for _ in range(2):  # also while another consumer has the message
        assert undo(world, lost) == Done()
    assert world.about().in_flight == 1
    world.commit(used(ops.Ack, again))
    undo(world, again)
    assert world.about().acked == 1


def test_undoing_a_claim_leaves_out_what_has_gone_on(world: Queues) -> None:
    world.create(backoff_ms=5_000)
    world.publish(5)
    claimed = world.claim(4)
    world.commit(used(ops.Ack, claimed, 0))
    world.commit(used(ops.Fail, claimed, 1))
    undo(world, claimed)
    about = world.about()
    assert (about.available, about.delayed, about.in_flight, about.acked) == (3, 1, 0, 1)
    assert world.claim(10).attempts == [1, 1, 1]


def test_lease_that_is_over_is_not_undone(world: Queues) -> None:
    world.create(backoff_ms=0, lease_ms=1_000)
    message = world.publish()[0]
    claimed = world.claim()
    world.later(1_000)
    undo(world, claimed)
    assert world.claim().attempts == [2]
    state = world.state(message)
    assert state is not None
    assert len(state.history) == 1


def test_attempts_that_were_made_still_count(world: Queues) -> None:
    world.create(max_attempts=3, backoff_ms=0)
    message = world.publish()[0]
    world.commit(used(ops.Fail, world.claim(), reason="one"))
    undo(world, world.claim())
    world.commit(used(ops.Fail, world.claim(), reason="two"))
    undo(world, world.claim())
    last = world.claim()
    assert last.attempts == [3]
    world.commit(used(ops.Fail, last, reason="three"))
    state = world.state(message)
    assert state is not None
    assert (state.state, [entry[3] for entry in state.history]) == ("failed", ["one", "two", "three"])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_undone_claim_survives_a_restart(world: Queues, checkpoint: bool) -> None:
    world.create(max_attempts=1)
    world.publish(4)
    world.urgent(1, 200)
    if checkpoint:
        world.commit(ops.WriteCheckpoint())
    claimed = world.claim(5)
    undo(world, claimed, 0, 2, 3)
    world.survives()
    assert world.about().in_flight == 2
    if checkpoint:
        world.commit(ops.WriteCheckpoint())
        assert not world.records(records.STATE_LOG)
        world.survives()
    assert world.claim(10).attempts == [1, 1, 1, 1]


def test_message_whose_retention_ended_in_flight_goes_when_its_claim_is_undone(world: Queues) -> None:
    world.create(lease_ms=60_000)
    world.publish(retention_s=10)
    claimed = world.claim()
    world.later(20_000)
    undo(world, claimed)
    about = world.about()
    assert (about.available, about.in_flight, about.expired) == (0, 0, 1)
    assert world.stored_bodies() == {}


def test_refused_transaction_undoes_no_claim(world: Queues) -> None:
    world.create(group_header="g")
    world.publish(4, headers=[{"queue": "q", "g": group} for group in "xxyy"])
    claimed = world.claim(3)
    before = world.memory()
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Unclaim, claimed), used(ops.Ack, claimed))
    assert world.memory() == before
    world.survives()


def test_claim_that_counts_no_attempts_any_more_is_undone_without_a_count(
    world: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "ATTEMPTS_MAX", 2)
    world.create(max_attempts=0, backoff_ms=0)
    world.publish()
    for _ in range(3):
        world.commit(used(ops.Fail, world.claim()))
    undo(world, world.claim())
    assert world.claim().attempts == [2]


def test_what_is_assigned_to_a_reader_is_not_undone_by_receipt(world: Queues) -> None:
    from detent.queue import reader_operations as reader_ops

    number = world.create()
    world.publish(2)
    generation = world.commit(reader_ops.OpenReader("q", "r"))[0].generation
    world.commit(reader_ops.Assign("q", "r", generation, 0, 2))
    page = world.commit(reader_ops.ReadAssignment("q", "r", generation, 1, 0, 2))[0]
    world.commit(ops.Unclaim(number, page.messages, [page.first_delivery, page.first_delivery + 1]))
    assert world.about().in_flight == 2


def test_undoing_names_no_queue_or_too_many_messages(world: Queues) -> None:
    number = world.create()
    for messages, deliveries in (([], []), ([1], []), ([0] * 10_001, [0] * 10_001)):
        with pytest.raises(Invalid):
            world.commit(ops.Unclaim(number, messages, deliveries))
    assert world.commit(ops.Unclaim(99, [0], [1])) == [Done()]
    world.publish()
    claimed = world.claim()
    twice = ops.Unclaim(claimed.queue, claimed.messages * 2, [claimed.first_delivery] * 2)
    assert world.commit(twice) == [Done()]
    assert world.claim().attempts == [1]


def test_waiting_consumer_is_woken_by_an_undone_claim(world: Queues) -> None:
    world.create()
    world.publish()
    claimed = world.claim()
    woken: list[int] = []
    world.queues.wait("q", lambda: woken.append(1))
    undo(world, claimed)
    assert woken == [1]
