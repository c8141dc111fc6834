"""What the owner undoes because an answer was lost: in the next commit, once, and never behind its client's back."""

from __future__ import annotations

import logging

import pytest

from detent.engine import Request, Ticket
from detent.engine.engine import POSTED, _Posted
from detent.engine.verify import Tally, check_engine
from detent.errors import Fenced, Unavailable
from detent.queue import operations as ops
from detent.queue.unclaiming import undoing
from processes import eventually
from queueworld import Queues, used


@pytest.fixture
def world() -> Queues:
    made = Queues()
    made.create(max_attempts=1)
    made.publish(4)
    return made


def claim(world: Queues, count: int = 2) -> tuple[Request, ops.ClaimedMessages]:
    request = world.request(ops.Claim("q", count))
    return request, world.engine.commit(request)[0]  # type: ignore[return-value]


def lose(world: Queues, request: Request, claimed: ops.ClaimedMessages) -> None:
    """The answer was lost, and what the owner does about it is committed."""
    world.engine.post(undoing([claimed]), request)
    world.commit(ops.DescribeQueues())  # in a later group, or in the same one behind it


def findings(world: Queues) -> list[str]:
    with world.writer.view() as view:
        return [str(finding) for finding in check_engine(view, Tally())]


def test_claim_whose_answer_was_lost_is_undone_and_applied_anew_when_it_is_asked_for_again(world: Queues) -> None:
    request, lost = claim(world)
    lose(world, request, lost)
    eventually(lambda: world.about().in_flight == 0)
    (again,) = world.engine.commit(request)
    assert isinstance(again, ops.ClaimedMessages)
    assert (again.messages, again.attempts) == (lost.messages, [1, 1])
    assert again.first_delivery > lost.first_delivery
    assert world.engine.commit(request) == [again], "a retry is answered, not repeated"
    assert findings(world) == []
    world.reopen()
    assert world.engine.commit(request) == [again]
    world.commit(used(ops.Ack, again))


def test_undone_answer_stays_undone_over_a_restart(world: Queues) -> None:
    request, lost = claim(world)
    lose(world, request, lost)
    eventually(lambda: world.about().in_flight == 0)
    world.reopen()
    assert findings(world) == []
    (again,) = world.engine.commit(request)
    assert isinstance(again, ops.ClaimedMessages)
    assert again.first_delivery > lost.first_delivery


def test_claim_that_was_asked_for_again_is_not_undone(world: Queues) -> None:
    request, claimed = claim(world)
    assert world.engine.commit(request) == [claimed]
    for _ in range(2):
        lose(world, request, claimed)
    world.engine.tick()
    assert world.about().in_flight == 2
    world.commit(used(ops.Ack, claimed))


def test_claim_that_was_asked_for_again_is_not_undone_by_a_second_try_either(world: Queues) -> None:
    request, claimed = claim(world)
    assert world.engine.commit(request) == [claimed]
    posted = Ticket(_Posted(b"", POSTED, 0, undoing([claimed]), request), world.engine._after_post)
    publishing = Ticket(world.request(ops.Publish([b"more"], [{"queue": "q"}])), lambda _: None)
    world.writer.fail_before = 1
    world.engine._run_group([posted, publishing])
    assert [type(ticket.error) for ticket in (posted, publishing)] == [Unavailable, Unavailable]
    world.engine.tick()
    assert not world.engine._to_post
    assert world.about().in_flight == 2
    world.commit(used(ops.Ack, claimed))


def test_client_that_has_gone_on_cannot_ask_again(world: Queues) -> None:
    """Its floor is above the claim: that one is undone, and its name is of no use any more."""
    request, lost = claim(world)
    world.commit(ops.Publish([b"more"], [{"queue": "q"}]))
    lose(world, request, lost)
    eventually(lambda: world.about().in_flight == 0)
    with pytest.raises(Fenced):
        world.engine.commit(request)
    assert findings(world) == []


@pytest.mark.parametrize("fault", ["before", "after"])
def test_failed_commit_of_an_undone_claim_is_tried_again(world: Queues, fault: str) -> None:
    request, lost = claim(world)
    setattr(world.writer, f"fail_{fault}", 1)
    world.engine.post(undoing([lost]), request)
    eventually(lambda: not getattr(world.writer, f"fail_{fault}"))
    eventually(lambda: world.engine._to_post)
    world.engine.tick()
    eventually(lambda: world.about().in_flight == 0)
    (again,) = world.engine.commit(request)
    assert isinstance(again, ops.ClaimedMessages)
    assert again.attempts == [1, 1]
    assert findings(world) == []


def test_closed_engine_says_what_it_cannot_undo(world: Queues, caplog: pytest.LogCaptureFixture) -> None:
    _, lost = claim(world)
    world.engine.close()
    with caplog.at_level(logging.WARNING, "detent.engine"):
        world.engine.post(undoing([lost]))
    assert "Unclaim" in caplog.text
