"""Dead letter queues: what is given up in one queue goes on in another, each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest

from detent.codec import queue as records
from detent.errors import Conflict, Invalid, LimitExceeded, NotFound, StaleReceipt
from detent.journal import operations as journal_ops
from detent.queue import listing
from detent.queue import operations as ops
from queueworld import Queues, used

TO_Q = {"queue": "q"}


@pytest.fixture
def world() -> Queues:
    """A queue q that tries once, and sends to `dead` what it gives up."""
    made = Queues()
    made.create("dead")
    made.create("q", dead_letter="dead", max_attempts=1, backoff_ms=0)
    return made


def give_up(world: Queues, count: int = 1, queue: str = "q", **options: Any) -> list[int]:
    claimed = world.claim(count, queue)
    world.commit(used(ops.Fail, claimed, **options))
    return claimed.messages


def counts(world: Queues, queue: str) -> tuple[int, int, int, int]:
    """Available, failed, routed, given up."""
    about = world.about(queue)
    return about.available, about.failed, about.routed, about.failures


# -- when, and what -------------------------------------------------------------------------------------------------


def test_a_message_whose_attempts_are_used_up_goes_to_the_dead_letter_queue(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=2)))
    message = world.publish()[0]
    give_up(world)
    assert counts(world, "dead") == (0, 0, 0, 0)
    give_up(world, reason="again")
    assert (counts(world, "q"), counts(world, "dead")) == ((0, 0, 1, 1), (1, 0, 1, 0))
    world.survives()
    claimed = world.claim(queue="dead")
    assert (claimed.messages, claimed.attempts) == ([message], [1])


def test_a_message_that_is_failed_for_good_goes_there_at_its_first_attempt(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=9)))
    message = world.publish()[0]
    give_up(world, final=True)
    assert world.claim(queue="dead").messages == [message]


def test_a_lease_that_ends_after_the_last_attempt_sends_its_message_there(world: Queues) -> None:
    message = world.publish()[0]
    world.claim(lease_ms=500)
    world.later(500)
    assert world.claim(queue="dead").messages == [message]
    assert world.about().failures == 1
    world.survives()


def test_leases_that_end_at_once_send_their_messages_in_the_order_of_their_ends_and_claims(world: Queues) -> None:
    world.create("p", dead_letter="dead", max_attempts=1)
    first, second, third = world.publish(3)
    other = world.publish(queue="p")[0]
    world.claim(lease_ms=900)
    world.claim(lease_ms=500)
    world.claim(queue="p", lease_ms=500)
    world.claim(lease_ms=500)
    world.later(1_000)
    assert world.claim(10, "dead").messages == [second, other, third, first]


def test_a_dead_letter_stands_behind_all_others_and_is_available_at_once(world: Queues) -> None:
    message = world.publish()[0]
    there = world.publish(2, "dead")
    give_up(world, delay_ms=60_000)
    assert world.claim(10, "dead").messages == [*there, message]


def test_a_dead_letter_has_the_priority_that_its_new_queue_gives_it(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(priority_header="urgency")))
    world.publish(headers=[{**TO_Q, "priority": "3", "urgency": "200"}])
    give_up(world)
    assert world.claim(queue="dead").priorities == bytes([200])


def test_a_dead_letter_keeps_number_body_and_deadline_and_nothing_is_copied(world: Queues) -> None:
    first, second = world.publish(2, retention_s=10)
    give_up(world, 2)
    assert world.stored_bodies() == {first: b"body 0", second: b"body 1"}
    assert world.queues.holdings.count(first) == 1
    world.later(10_001)
    assert world.claim(queue="dead").messages == []
    assert world.about("dead").expired == 2
    assert world.stored_bodies() == {}


def test_the_attempts_of_a_dead_letter_are_forgotten_where_it_was(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=2)))
    message = world.publish()[0]
    give_up(world)
    world.commit(ops.WriteCheckpoint())
    assert len(world.records(records.ATTEMPTS)) == 1
    give_up(world)
    world.survives()
    world.commit(ops.WriteCheckpoint())
    assert world.records(records.ATTEMPTS) == []
    assert world.state(message) is None
    found = world.state(message, "dead")
    assert found is not None
    assert (found.state, found.attempts, found.history) == ("available", 0, [])


# -- where it came from ---------------------------------------------------------------------------------------------


def origin(world: Queues, message: int, queue: str = "dead") -> list[ops.DeadLetterMove]:
    found = world.state(message, queue)
    assert found is not None
    return found.moves


def test_dead_letter_tells_its_reason_its_attempts_and_its_queue(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=2)))
    message = world.publish()[0]
    first = world.claim(consumer="ann", lease_ms=500)
    world.later(500)
    second = world.claim(consumer="ben")
    world.commit(used(ops.Fail, second, reason="ValueError: boom"))
    (move,) = origin(world, message)
    assert (move.number, move.source, move.attempts, move.reason) == (1, "q", 2, "ValueError: boom")
    assert (move.moved_ms, move.delivery) == (world.now_ms, second.first_delivery)
    assert [(who, why) for _, who, _, why in move.history] == [("ann", ops.EXPIRED_REASON), ("ben", "ValueError: boom")]
    assert move.history[0][0] < first.lease_ms <= move.history[0][2] <= move.history[1][0]
    world.survives()
    assert origin(world, message) == [move]
    world.commit(ops.WriteCheckpoint())
    world.survives()
    assert origin(world, message) == [move]
    assert world.about().dead_lettered == 1


def test_claim_of_a_dead_letter_goes_on_counting(world: Queues) -> None:
    world.publish(queue="dead")
    message = world.publish()[0]
    give_up(world, reason="no")
    claimed = world.claim(2, "dead")
    assert (claimed.messages[1], claimed.attempts, claimed.earlier) == (message, [1, 1], [0, 1])


def test_dead_letter_of_a_dead_letter_queue_keeps_its_first_and_its_newest_moves(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(dead_letter="q", max_attempts=1, backoff_ms=0)))
    message = world.publish()[0]
    for number in range(7):
        give_up(world, queue="q" if number % 2 == 0 else "dead", reason=f"{number}" * 1_000)
    moves = origin(world, message)
    assert [move.number for move in moves] == [1, 4, 5, 6, 7]
    assert [move.source for move in moves] == ["q", "dead", "q", "dead", "q"]
    assert [len(move.reason) for move in moves] == [512, 512, 512, 512, 1_000]
    assert world.claim(queue="dead").earlier == [7]
    world.survives()


def test_origin_has_the_first_and_the_newest_attempts(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=25)))
    message = world.publish()[0]
    for number in range(25):
        give_up(world, reason=f"{number}", delay_ms=0)
    (move,) = origin(world, message)
    assert (move.attempts, [why for *_, why in move.history]) == (25, ["0", *map(str, range(16, 25))])


def test_transaction_that_is_refused_leaves_no_origin(world: Queues) -> None:
    message = world.publish()[0]
    world.commit(journal_ops.CreateJournal("j"))
    claimed = world.claim()
    with pytest.raises(Conflict):
        world.commit(used(ops.Fail, claimed), journal_ops.CheckHead("j", 9))
    assert world.records(records.ORIGIN) == []
    assert world.about().dead_lettered == 0
    world.commit(used(ops.Fail, claimed, reason="now"))
    assert [move.reason for move in origin(world, message)] == ["now"]


@pytest.mark.parametrize("how", ["acknowledged", "purged", "expired", "queue deleted"])
def test_origin_goes_with_its_message(world: Queues, how: str) -> None:
    message = world.publish(retention_s=60)[0]
    give_up(world)
    assert len(world.records(records.ORIGIN)) == 1
    if how == "acknowledged":
        world.commit(used(ops.Ack, world.claim(queue="dead")))
    elif how == "purged":
        world.commit(ops.Purge("dead"))
    elif how == "expired":
        world.later(60_001)
        world.engine.tick()
    else:
        world.commit(ops.DeleteQueue("dead"))
    world.survives()
    world.commit(ops.WriteCheckpoint())
    world.ticks()
    assert world.records(records.ORIGIN) == []
    world.survives()
    assert world.state(message, "dead") is None or how == "acknowledged"


def test_redrive_keeps_an_origin_within_the_queue_and_forgets_it_elsewhere(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(max_attempts=1)))
    message = world.publish()[0]
    give_up(world, reason="first")
    give_up(world, queue="dead", reason="second")
    failed = world.commit(ops.ListFailed("dead"))[0].messages[0]
    assert (failed.reason, [move.reason for move in failed.moves]) == ("second", ["first"])
    world.commit(ops.Redrive("dead"))
    claimed = world.claim(queue="dead")
    assert (claimed.attempts, claimed.earlier) == ([1], [1])
    world.commit(used(ops.Fail, claimed, final=True))
    world.commit(ops.Redrive("dead", to="q"))
    assert (origin(world, message, "q"), world.claim().earlier) == ([], [])
    assert world.records(records.ORIGIN) == []
    world.survives()


def test_dead_letter_that_comes_again_has_its_newer_origin_after_a_restart(world: Queues) -> None:
    world.create("p", dead_letter="dead", max_attempts=1, filter="true")
    message = world.publish()[0]
    give_up(world, reason="by q")
    world.commit(used(ops.Ack, world.claim(queue="dead")))
    give_up(world, queue="p", reason="by p")
    world.survives()
    assert [(move.source, move.reason) for move in origin(world, message)] == [("p", "by p")]


def test_one_whose_retention_ended_in_flight_is_given_to_nobody(world: Queues) -> None:
    world.publish(retention_s=1)
    claimed = world.claim(lease_ms=5_000)
    world.later(2_000)
    results = world.commit(used(ops.Fail, claimed), ops.Claim("dead"))
    assert results[1].messages == []
    world.survives()
    assert (world.about("dead").expired, world.about("dead").available) == (1, 0)


# -- for how long -----------------------------------------------------------------------------------------------------


def keep(world: Queues, seconds: int, queue: str = "dead") -> None:
    world.commit(ops.ConfigureQueue(queue, ops.Settings(dead_letter_retention_s=seconds)))


def test_a_dead_letter_queue_keeps_what_comes_for_its_own_time(world: Queues) -> None:
    keep(world, 600)
    message = world.publish(retention_s=60)[0]
    world.later(50_000)
    give_up(world)
    world.survives()
    world.later(600_000)
    world.ticks()
    assert world.stored_bodies() == {message: b"body 0"}
    world.survives()
    assert world.about("dead").available == 1
    world.later(1)
    assert world.claim(queue="dead").messages == []
    assert world.about("dead").expired == 1
    assert world.stored_bodies() == {}


@pytest.mark.parametrize("retention_s", [3_600, 0])
def test_a_dead_letter_that_would_stay_longer_by_itself_does(world: Queues, retention_s: int) -> None:
    keep(world, 60)
    message = world.publish(retention_s=retention_s)[0]
    give_up(world)
    world.survives()
    world.later(3_599_999)
    claimed = world.claim(queue="dead")
    assert claimed.messages == [message]


def test_one_whose_retention_ended_in_flight_is_kept_where_dead_letters_are(world: Queues) -> None:
    keep(world, 600)
    message = world.publish(retention_s=1)[0]
    claimed = world.claim(lease_ms=5_000)
    world.later(2_000)
    results = world.commit(used(ops.Fail, claimed), ops.Claim("dead"))
    assert results[1].messages == [message]
    world.survives()
    world.commit(ops.WriteCheckpoint())
    world.survives()
    assert world.stored_bodies() == {message: b"body 0"}


def test_a_dead_letter_that_is_tried_again_keeps_its_time(world: Queues) -> None:
    keep(world, 600)
    world.commit(ops.ConfigureQueue("dead", ops.Settings(max_attempts=1)))
    message = world.publish(retention_s=1)[0]
    give_up(world)
    world.later(10_000)
    give_up(world, queue="dead")
    world.survives()
    world.commit(ops.Redrive("dead", to="q"))
    world.later(589_999)
    world.survives()
    assert world.claim().messages == [message]


def test_another_time_is_for_what_comes_from_then_on(world: Queues) -> None:
    keep(world, 600)
    first, second = world.publish(2, retention_s=60)
    give_up(world)
    keep(world, 0)
    give_up(world)
    world.survives()
    world.later(60_001)
    assert world.claim(9, "dead").messages == [first]
    assert second not in world.stored_bodies()


def test_the_time_of_dead_letters_in_a_transaction_that_is_refused(world: Queues) -> None:
    keep(world, 600)
    world.commit(journal_ops.CreateJournal("j"))
    world.publish(retention_s=60)
    claimed = world.claim()
    before = world.memory()
    with pytest.raises(Conflict):
        world.commit(used(ops.Fail, claimed), journal_ops.CheckHead("j", 9))
    assert world.memory() == before


def test_a_dead_letter_that_a_queue_has_yet_to_read_of_is_not_read_after_its_own_retention(world: Queues) -> None:
    keep(world, 600)
    world.create("late", filter="true", paused=True)
    message = world.publish(retention_s=60)[0]
    give_up(world)
    world.later(61_000)
    world.commit(used(ops.Ack, world.claim(queue="dead")))
    world.survives()
    assert world.stored_bodies() == {message: b"body 0"}
    world.commit(ops.ConfigureQueue("late", ops.Settings(paused=False)))
    world.ticks()
    assert counts(world, "late") == (0, 0, 0, 0)
    assert world.stored_bodies() == {}


def test_a_dead_letter_keeps_its_key_no_longer_than_any_other(world: Queues) -> None:
    world.commit(ops.SetDedupWindow(0))
    keep(world, 600)
    world.publish(retention_s=60, dedup_keys=["a"])
    give_up(world)
    world.later(60_001)
    assert len(world.publish(dedup_keys=["a"])) == 1


def test_the_time_of_dead_letters_has_a_limit(world: Queues) -> None:
    with pytest.raises(LimitExceeded):
        keep(world, ops.RETENTION_S_MAX + 1)
    keep(world, ops.RETENTION_S_MAX)
    world.publish()
    give_up(world)
    world.survives()
    assert world.about("dead").settings.dead_letter_retention_s == ops.RETENTION_S_MAX


def test_the_receipt_of_a_dead_letter_is_stale(world: Queues) -> None:
    world.publish()
    claimed = world.claim()
    world.commit(used(ops.Fail, claimed))
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed))


# -- when it cannot go ------------------------------------------------------------------------------------------------


def test_without_its_dead_letter_queue_a_message_is_kept_where_it_failed(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(failed_policy="discard")))
    world.commit(ops.DeleteQueue("dead"))
    world.publish()
    give_up(world, reason="why")
    assert counts(world, "q") == (0, 1, 1, 1)
    world.survives()
    world.create("dead")
    world.publish()
    give_up(world)
    assert (counts(world, "q"), counts(world, "dead")) == ((0, 1, 2, 2), (1, 0, 1, 0))


@pytest.mark.parametrize("there", ["available", "in flight", "failed"])
def test_a_message_that_the_dead_letter_queue_has_already_stays_where_it_failed(world: Queues, there: str) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(filter="true")))
    message = world.publish()[0]
    if there != "available":
        claimed = world.claim(queue="dead")
    if there == "failed":
        world.commit(used(ops.Fail, claimed, final=True))
    give_up(world)
    assert world.about().failed == 1
    assert world.about("dead").routed == 1
    assert world.queues.holdings.count(message) == 2
    world.survives()


def test_a_message_that_was_done_in_the_dead_letter_queue_comes_there_again(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(filter="true")))
    message = world.publish()[0]
    world.commit(used(ops.Ack, world.claim(queue="dead")))
    give_up(world)
    assert world.claim(queue="dead").messages == [message]
    world.survives()


def test_a_message_that_the_dead_letter_queue_has_yet_to_read_of_stays_where_it_failed(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(filter="true", paused=True)))
    world.publish()
    give_up(world)
    assert world.about().failed == 1
    world.commit(ops.ConfigureQueue("dead", ops.Settings(paused=False)))
    world.ticks()
    assert counts(world, "dead") == (1, 0, 1, 0)


def test_a_paused_dead_letter_queue_takes_what_it_has_read_of(world: Queues) -> None:
    message = world.publish()[0]
    world.commit(ops.ConfigureQueue("dead", ops.Settings(paused=True)))
    give_up(world)
    assert counts(world, "dead") == (1, 0, 1, 0)
    world.survives()
    world.commit(ops.ConfigureQueue("dead", ops.Settings(paused=False)))
    world.ticks()
    assert world.claim(9, "dead").messages == [message]


def test_what_is_in_flight_in_a_deleted_queue_does_not_go_to_its_dead_letters(world: Queues) -> None:
    world.publish()
    world.claim(lease_ms=100)
    world.commit(ops.DeleteQueue("q"))
    world.later(200)
    assert counts(world, "dead") == (0, 0, 0, 0)
    world.ticks()
    assert world.stored_bodies() == {}


def test_some_go_and_some_stay_in_one_step(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(filter='headers.tier == "gold"')))
    headers = [TO_Q, {**TO_Q, "tier": "gold"}, TO_Q]
    messages = world.publish(3, headers=headers)
    give_up(world, 3)
    assert counts(world, "q") == (0, 1, 3, 3)
    world.survives()
    assert world.claim(9, "dead").messages == [messages[1], messages[0], messages[2]]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_queue_cannot_be_its_own_dead_letter_queue(world: Queues) -> None:
    with pytest.raises(Invalid, match="cannot be its own"):
        world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="q")))
    with pytest.raises(Invalid, match="cannot be its own"):
        world.create("new", dead_letter="new")


def test_a_dead_letter_queue_must_be_there_when_it_is_named(world: Queues) -> None:
    with pytest.raises(NotFound, match="create it first"):
        world.create("new", dead_letter="nowhere")
    with pytest.raises(NotFound, match="create it first"):
        world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="nowhere")))
    with pytest.raises(Invalid):
        world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="bad name")))
    world.commit(ops.DeleteQueue("dead"))
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=7)))
    assert world.about().settings.dead_letter == "dead"


def test_without_a_dead_letter_queue_messages_fail_as_ever(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="")))
    world.publish()
    give_up(world)
    assert (counts(world, "q"), counts(world, "dead")) == ((0, 1, 1, 1), (0, 0, 0, 0))


def test_queues_that_are_each_others_dead_letters_hand_a_message_to_and_fro_one_step_at_a_time(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(dead_letter="q", max_attempts=1)))
    message = world.publish()[0]
    for queue, other in [("q", "dead"), ("dead", "q")] * 3:
        assert give_up(world, queue=queue) == [message]
        assert (world.about(queue).available, world.about(other).available) == (0, 1)
        world.survives()
    assert (world.about().failures, world.about("dead").failures) == (3, 3)


# -- transactions, crashes --------------------------------------------------------------------------------------------


def test_a_transaction_that_is_refused_leaves_dead_letters_where_they_were(world: Queues) -> None:
    world.commit(journal_ops.CreateJournal("j"))
    world.publish(3)
    claimed = world.claim(3)
    before = world.memory()
    with pytest.raises(Conflict):
        world.commit(used(ops.Fail, claimed, 0, 1), ops.Claim("dead", 1), journal_ops.CheckHead("j", 9))
    assert world.memory() == before
    results = world.commit(used(ops.Fail, claimed, 0, 1), ops.Claim("dead", 1), journal_ops.CheckHead("j", 0))
    assert results[1].messages == claimed.messages[:1]
    world.survives()


def test_a_crash_at_any_step_finds_dead_letters_in_one_place(world: Queues) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=2)))
    for _ in range(3):
        world.publish(2)
        world.survives()
        claimed = world.claim(2)
        world.survives()
        world.commit(used(ops.Fail, claimed, 0))
        world.survives()
        world.commit(used(ops.Fail, claimed, 1, final=True))
        world.survives()
        world.commit(used(ops.Fail, world.claim()))
        world.survives()
        world.commit(used(ops.Ack, world.claim(queue="dead")))
        world.survives()
    world.commit(ops.WriteCheckpoint())
    world.survives()
    assert counts(world, "dead") == (3, 0, 6, 0)


def test_a_lease_that_the_timers_name_twice_ends_once(world: Queues) -> None:
    world.commit(journal_ops.CreateJournal("j"))
    world.publish(2)
    claimed = world.claim(2, lease_ms=500)
    with pytest.raises(Conflict):
        world.commit(used(ops.Fail, claimed), journal_ops.CheckHead("j", 9))
    world.later(500)
    assert world.claim(9, "dead").messages == claimed.messages
    world.survives()


# -- answers --------------------------------------------------------------------------------------------------------


def test_a_list_of_failed_messages_ends_early_after_long_reasons(
    world: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(ops.ConfigureQueue("dead", ops.Settings(max_attempts=1)))
    messages = world.publish(5)
    give_up(world, 5, reason="r" * 1_000)
    give_up(world, 5, "dead", reason="s" * 1_000)
    monkeypatch.setattr(listing, "FAILED_TEXT_MAX", 6_000)
    found: list[int] = []
    after, more, pages = -1, True, 0
    while more:
        page = world.commit(ops.ListFailed("dead", after, 100))[0]
        found += [entry.message for entry in page.messages]
        after, more, pages = found[-1], page.more, pages + 1
    assert (found, pages) == (messages, 3)
