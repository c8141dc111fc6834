"""Queues, one behaviour at a time: claims and their ends, retention, dedup keys, catching up, deleting, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

import queuemodel
from detent.codec import log, published
from detent.codec import queue as records
from detent.codec.queue import NOT_KEPT, Config
from detent.engine import Done
from detent.errors import Conflict, Corrupt, Exists, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.journal import operations as journal_ops
from detent.kv import Batch
from detent.queue import checkpoint, holdings, housekeeping, listing, memory, publishing
from detent.queue import operations as ops
from detent.queue.bucket import Bucket
from detent.verify import verify
from queueworld import Queues, used

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def world() -> Queues:
    return Queues()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Queues:
    """Ten messages a bucket, eight a segment, two a step."""
    default = Config.__new__.__defaults__
    assert default is not None
    monkeypatch.setattr(Config.__new__, "__defaults__", (1, *default[1:]))
    monkeypatch.setattr(holdings, "CHUNK", 8)
    monkeypatch.setattr(holdings, "SEGMENT_MESSAGES", 8)
    monkeypatch.setattr(housekeeping, "CATCH_UP_STEP", 2)
    monkeypatch.setattr(housekeeping, "COLLECT_RECORDS", 2)
    monkeypatch.setattr(housekeeping, "COLLECT_BUCKETS", 1)
    monkeypatch.setattr(ops, "STEP_MESSAGES", 2)
    return Queues()


# -- claims -----------------------------------------------------------------------------------------------------


def test_a_claim_takes_the_most_urgent_first_and_then_the_oldest(world: Queues) -> None:
    world.create()
    low, high, usual, high_too = world.urgent(200, 3, 128, 3)
    plain = world.publish()[0]
    assert world.claim(10).messages == [high, high_too, usual, plain, low]


WRONG_PRIORITIES = ["256", "-1", "", "1.0", "٣", "0007", "high", " 5"]


@pytest.mark.parametrize(("text", "priority"), [("0", 0), ("255", 255), ("007", 7)])
def test_priority_is_that_of_the_queues_header(world: Queues, text: str, priority: int) -> None:
    world.create(priority_header="urgency")
    world.publish(headers=[{"queue": "q", "urgency": text, "priority": "high"}])  # which is any text here
    assert world.claim().priorities == bytes([priority])


@pytest.mark.parametrize("text", WRONG_PRIORITIES)
@pytest.mark.parametrize("to", ["", "q"])
def test_header_that_is_not_a_priority_is_refused(world: Queues, text: str, to: str) -> None:
    world.create(priority_header="urgency")
    world.create("usual")
    for header, queue in (("urgency", "q"), ("priority", "usual")):
        wrong = [{"queue": queue, header: "1"}, {"queue": queue, header: text}]
        with pytest.raises(Invalid, match=f"the header '{header}' is a priority, a number from 0"):
            world.commit(ops.Publish([b"a", b"b"], wrong, to=queue if to else ""))
    assert not world.claim().messages
    assert not world.claim(queue="usual").messages


def test_wrong_priority_is_refused_for_message_that_no_queue_takes(world: Queues) -> None:
    with pytest.raises(Invalid, match="'priority' is a priority"):
        world.commit(ops.Publish([b"a"], [{"priority": "high"}]))
    world.commit(ops.Publish([b"a"], [{"urgency": "high"}]))


def test_message_that_comes_later_to_another_priority_header_has_the_usual_priority(world: Queues) -> None:
    world.commit(ops.Publish([b"a"], [{"urgency": "high"}]))
    world.commit(ops.CreateQueue("late", ops.Settings(filter="true", priority_header="urgency"), earliest=True))
    world.ticks()
    assert world.claim(queue="late").priorities == bytes([128])


def test_header_that_addresses_no_possible_queue_is_refused(world: Queues) -> None:
    for name in ("", "a b", "x" * 2000):
        with pytest.raises(Invalid, match="the header 'queue' says to which queue a message goes"):
            world.commit(ops.Publish([b"a"], [{"queue": name}]))
    world.commit(ops.Publish([b"a"], [{"queue": "not-there-yet"}]))


@pytest.mark.parametrize("together", [True, False])
def test_the_last_of_sixteen_is_the_oldest_whatever_its_priority(world: Queues, together: bool) -> None:
    world.create()
    old = world.urgent(200, 200)
    urgent = world.urgent(*[1] * 20)
    claimed = world.claim(17).messages if together else [world.claim().messages[0] for _ in range(17)]
    assert claimed == [*urgent[:15], old[0], urgent[15]]


def test_a_priority_that_a_claim_has_used_up_is_not_asked_for_its_oldest(world: Queues) -> None:
    world.create()
    first, low = world.urgent(1, 200)
    usual = world.urgent(*[128] * 20)
    assert world.claim(22).messages == [first, *usual[:14], low, *usual[14:]]


def test_a_paused_queue_gives_nothing_and_takes_acknowledgements(world: Queues) -> None:
    world.create()
    world.publish(2)
    claimed = world.claim()
    world.commit(ops.ConfigureQueue("q", ops.Settings(paused=True)))
    assert world.claim().messages == []
    assert world.commit(used(ops.Ack, claimed)) == [Done()]


def test_a_delayed_message_waits_for_its_time(world: Queues) -> None:
    world.create()
    message = world.publish(delay_ms=500)[0]
    world.later(499)
    assert world.claim().messages == []
    assert world.about().delayed == 1
    world.later(1)
    assert world.claim().messages == [message]


def test_delivery_numbers_only_grow_over_queues_and_restarts(world: Queues) -> None:
    world.create("a")
    world.create("b")
    world.publish(3, "a")
    world.publish(3, "b")
    numbers = []
    for queue in ("a", "b", "a", "b"):
        numbers.append(world.claim(1, queue).first_delivery)
        world.reopen()
    assert numbers == sorted(set(numbers))


def test_a_claim_has_limits(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "IN_FLIGHT_MAX", 2)
    world.create()
    world.publish(3)
    for count in (0, ops.CLAIM_MAX + 1):
        with pytest.raises(Invalid, match="a claim is for 1 to"):
            world.claim(count)
    with pytest.raises(Invalid, match="a lease lasts at least"):
        world.claim(lease_ms=0)
    assert len(world.claim(3).messages) == 2
    with pytest.raises(LimitExceeded, match="in flight"):
        world.claim()
    with pytest.raises(NotFound):
        world.claim(queue="nobody")


# -- receipts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ops.Ack, ops.Fail, ops.Extend])
def test_a_stale_receipt_changes_nothing(world: Queues, kind: type[Any]) -> None:
    world.create(backoff_ms=0)
    world.publish(2)
    first = world.claim(2, lease_ms=1_000)
    world.later(1_000)
    before = world.memory()
    with pytest.raises(StaleReceipt):
        world.commit(used(kind, first))  # the lease is over at its end, not after it
    second = world.claim(2)
    assert second.messages == first.messages
    world.commit(used(ops.Ack, second, 0))
    before = world.memory()
    for operation in (used(kind, first), used(kind, second, 0), used(kind, second, 0, 1), kind(99, [0], [1])):
        with pytest.raises(StaleReceipt):
            world.commit(operation)
        assert world.memory() == before
    with pytest.raises(Invalid, match="twice"):
        world.commit(used(kind, second, 1, 1))
    with pytest.raises(Invalid, match="delivery numbers"):
        world.commit(kind(1, [0, 1], [1]))
    assert world.memory() == before


def test_a_receipt_lasts_until_the_end_of_its_lease_and_an_extended_one_until_that(world: Queues) -> None:
    world.create()
    world.publish(2)
    claimed = world.claim(2, lease_ms=1_000)
    world.later(999)
    extended = world.commit(used(ops.Extend, claimed, 0, lease_ms=5_000))[0]
    assert extended.lease_ms == world.now_ms + 5_000
    world.reopen()
    world.later(4_999)
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed, 1))
    world.commit(used(ops.Ack, claimed, 0))


def test_a_queue_made_anew_knows_nothing_of_the_receipts_of_its_namesake(world: Queues) -> None:
    number = world.create()
    world.publish()
    claimed = world.claim()
    world.commit(ops.DeleteQueue("q"))
    with pytest.raises(StaleReceipt, match="deleted"):
        world.commit(used(ops.Ack, claimed))
    assert world.create() == number + 1
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed))


# -- all or nothing ---------------------------------------------------------------------------------------------


def test_a_refused_transaction_leaves_no_trace(tiny: Queues) -> None:
    tiny.commit(journal_ops.CreateJournal("j"))
    tiny.create(max_attempts=2)
    tiny.create("all", filter="true")
    tiny.publish(25)
    claimed = tiny.claim(12)
    tiny.commit(used(ops.Fail, claimed, 1, delay_ms=0))
    before = tiny.memory()
    operations = [
        journal_ops.Append("j", [b"x"]),
        ops.CreateQueue("new", ops.Settings(filter="true"), earliest=True),
        ops.Publish([b"a"] * 12, [{"queue": "q"}], dedup_keys=[f"k{n}" for n in range(12)]),
        used(ops.Ack, claimed, 0, 2, 3),
        used(ops.Fail, claimed, 4, delay_ms=0),
        used(ops.Fail, claimed, 5),
        used(ops.Fail, claimed, 6, final=True),
        used(ops.Extend, claimed, 7, 8),
        ops.Claim("q", 20),
        ops.Claim("all", 30),
        ops.SetDedupWindow(5),
    ]
    last = [
        (used(ops.Ack, claimed, 0), StaleReceipt),
        (journal_ops.CheckHead("j", 99), Conflict),
        (ops.Claim("nobody"), NotFound),
        (ops.CreateQueue("q"), Exists),
        (ops.Purge("q"), Invalid),
    ]
    for operation, error in last:
        with pytest.raises(error):
            tiny.commit(*operations, operation)
        assert tiny.memory() == before
    tiny.reopen()
    assert tiny.memory() == before
    assert tiny.bodies("j") == []
    results = tiny.commit(*operations)
    assert results[2].count == 12, "no key of a refused publish is held"
    tiny.memory()


def test_what_a_refused_transaction_claimed_and_acknowledged_still_ends_with_its_retention(tiny: Queues) -> None:
    """Delivery numbers can be guessed, so a transaction can claim and acknowledge."""
    tiny.create()
    messages = tiny.publish(10, retention_s=5)
    with pytest.raises(StaleReceipt):
        tiny.commit(ops.Claim("q", 10), ops.Ack(1, messages, list(range(1, 11))), ops.Ack(1, messages, [0] * 10))
    tiny.memory()
    tiny.later(5_001)
    assert (tiny.about().available, tiny.about().expired) == (0, 10)


def test_a_failure_that_was_taken_back_is_not_offered_twice(world: Queues) -> None:
    world.create()
    world.publish()
    claimed = world.claim()
    with pytest.raises(NotFound):
        world.commit(used(ops.Fail, claimed, delay_ms=0), ops.Claim("nobody"))
    world.commit(used(ops.Fail, claimed, delay_ms=0))
    assert world.claim(2).messages == claimed.messages


@pytest.mark.parametrize("kind", [ops.Ack, ops.Fail, ops.Extend])
def test_a_lease_whose_end_was_taken_back_still_ends(world: Queues, kind: type[Any]) -> None:
    world.create(backoff_ms=0)
    world.publish(2)
    claimed = world.claim(2, lease_ms=60_000)
    with pytest.raises(NotFound):
        world.commit(used(kind, claimed), ops.Claim("nobody"))
    world.memory()
    world.later(60_000)
    assert world.claim(2).messages == claimed.messages


def test_a_bucket_that_was_gone_for_a_moment_is_found_again(tiny: Queues) -> None:
    tiny.create()
    tiny.publish(10)
    claimed = tiny.claim(10)
    published_ms = tiny.now_ms
    tiny.later(10)
    later = tiny.publish(1)
    with pytest.raises(NotFound):
        tiny.commit(used(ops.Ack, claimed), ops.Claim("q", 1), ops.Claim("nobody"))
    tiny.commit(used(ops.Fail, claimed, delay_ms=0))
    assert tiny.about().oldest_ms == published_ms
    assert tiny.claim(20).messages == [*claimed.messages, *later]


def test_what_the_clock_did_before_a_refused_transaction_has_happened(world: Queues) -> None:
    world.create(backoff_ms=0)
    world.publish()
    claimed = world.claim(lease_ms=1_000)
    world.later(1_000)
    with pytest.raises(NotFound):
        world.commit(ops.Publish([b"x"], [{"queue": "q"}]), ops.Claim("q"), ops.Claim("nobody"))
    before = world.memory()
    assert world.about().available == 1
    world.publish(queue="elsewhere")
    world.reopen()
    assert world.memory()["queues"][1] == before["queues"][1]
    assert world.claim(5).messages == claimed.messages


def test_a_message_given_back_after_its_retention_stays_until_the_transaction_is_over(world: Queues) -> None:
    world.create()
    message = world.publish(retention_s=1)[0]
    claimed = world.claim()
    world.later(2_000)
    with pytest.raises(NotFound):
        world.commit(used(ops.Fail, claimed), ops.Claim("q"), ops.Claim("nobody"))
    assert world.state(message).state == "in flight"
    world.commit(used(ops.Fail, claimed), ops.Claim("q"))
    assert world.state(message) is None
    world.memory()


def test_a_commit_that_failed_is_answered_truthfully(world: Queues) -> None:
    world.create()
    world.publish(2)
    before = world.memory()
    world.writer.fail_before = 1
    with pytest.raises(Unavailable):
        world.claim()
    assert world.memory() == before
    world.writer.fail_after = 1
    claimed = world.claim(2)  # it was durable, so this is its answer
    assert len(claimed.messages) == 2
    world.commit(used(ops.Ack, claimed))
    assert world.about().acked == 2


# -- failures and leases ----------------------------------------------------------------------------------------


def test_each_attempt_waits_twice_as_long_up_to_a_maximum(world: Queues) -> None:
    world.create(backoff_ms=100, backoff_max_ms=300, max_attempts=0)
    message = world.publish()[0]
    for wait_ms in (100, 200, 300, 300):
        world.commit(used(ops.Fail, world.claim()))
        assert world.state(message).at_ms == world.now_ms + wait_ms
        world.later(wait_ms)


def test_a_failed_message_tells_who_tried_when_and_why(world: Queues) -> None:
    world.create(max_attempts=2)
    message = world.publish()[0]
    start = world.now_ms
    world.claim(lease_ms=1_000, consumer="one")
    world.later(5_000)
    world.engine.tick()
    world.later(1_000)
    world.commit(used(ops.Fail, world.claim(consumer="two"), reason="no stock"))
    for _ in range(2):
        failed = world.commit(ops.ListFailed("q"))[0].messages[0]
        assert (failed.message, failed.attempts, failed.reason, failed.failed_ms) == (
            message,
            2,
            "no stock",
            start + 6_000,
        )
        assert failed.history == [
            (start, "one", start + 5_000, "the lease expired"),
            (start + 6_000, "two", start + 6_000, "no stock"),
        ]
        world.commit(ops.WriteCheckpoint())
        world.reopen()
    assert world.about().failures == 1


def test_a_message_is_given_up_after_its_last_attempt(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "ATTEMPTS_MAX", 3)
    world.create(max_attempts=3)
    world.publish()
    for _ in range(3):
        assert world.about().failed == 0
        world.commit(used(ops.Fail, world.claim(), delay_ms=0))
    assert world.about().failed == 1


@pytest.mark.parametrize("group_header", ["", "group"])
@pytest.mark.parametrize("count", [1, 3])
def test_without_a_limit_a_message_is_tried_on_when_its_attempts_are_not_counted_any_more(
    world: Queues, count: int, group_header: str
) -> None:
    world.create(max_attempts=0, backoff_ms=0, group_header=group_header)
    world.commit(journal_ops.CreateJournal("j"))
    world.publish(count, headers=[{"queue": "q", "group": "g"}])
    attempts = world.queues.by_number[1].buckets[0].attempts
    attempts[0] = ops.ATTEMPTS_MAX - 2  # as so many claims would leave it
    world.commit(ops.WriteCheckpoint())
    for expected in (ops.ATTEMPTS_MAX - 1, ops.ATTEMPTS_MAX, ops.ATTEMPTS_MAX, ops.ATTEMPTS_MAX):
        before = world.memory()
        with pytest.raises(Conflict):
            world.commit(ops.Claim("q", count), journal_ops.CheckHead("j", 9))
        assert world.memory() == before
        claimed = world.claim(count)
        assert claimed.attempts[0] == expected
        world.survives()
        world.commit(used(ops.Fail, claimed, delay_ms=0))
        world.survives()
    assert world.about().failed == 0
    world.commit(used(ops.Ack, world.claim(count)))
    world.survives()


def test_the_first_attempt_is_remembered_however_many_come_after_it(world: Queues) -> None:
    world.create(max_attempts=0, backoff_ms=0)
    message = world.publish()[0]
    start_ms = world.now_ms
    for _ in range(records.ATTEMPTS_KEPT + 20):
        world.commit(used(ops.Fail, world.claim(consumer="c")), ops.WriteCheckpoint())
        world.later(1_000)
    world.reopen()
    found = world.state(message)
    assert found is not None
    times = [claimed_ms for claimed_ms, *_ in found.history]
    assert times == [start_ms, *(start_ms + 1_000 * n for n in range(21, records.ATTEMPTS_KEPT + 20))]


def test_a_queue_that_discards_keeps_nothing_of_what_failed(world: Queues) -> None:
    world.create(failed_policy="discard")
    message = world.publish()[0]
    world.commit(used(ops.Fail, world.claim(), final=True))
    assert (world.about().failed, world.about().failures) == (0, 1)
    assert world.state(message) is None
    assert world.stored_bodies() == {}


def test_what_the_clock_did_is_committed_by_the_next_housekeeping(world: Queues) -> None:
    world.create(max_attempts=1)
    message = world.publish()[0]
    world.claim(lease_ms=1_000)
    world.commit(ops.WriteCheckpoint())
    world.later(1_000)
    assert world.claim().messages == []  # the claim finds nothing, and is not committed
    assert world.queues.steps
    world.engine.tick()
    assert not world.queues.steps
    world.reopen()
    assert message in world.queues.by_number[1].failed


def test_somebody_who_waits_is_woken_when_another_claim_has_noticed_that_a_lease_is_over(world: Queues) -> None:
    world.create("a", backoff_ms=0)
    world.create("b")
    world.publish(1, "a")
    world.claim(1, "a", lease_ms=1_000)
    woken: list[str] = []
    world.queues.watch.add("a", lambda: woken.append("a"))
    world.later(1_000)
    assert world.claim(1, "b").messages == []
    world.engine.tick()
    assert woken == ["a"]


def test_more_timers_than_a_step_fires_are_fired_by_the_next(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "TIMERS_PER_STEP", 3)
    world.create(backoff_ms=0)
    world.publish(10)
    for _ in range(10):
        world.claim(lease_ms=1_000)
    world.later(1_000)
    assert world.about().in_flight == 7
    world.ticks()
    assert (world.about().in_flight, world.about().available) == (0, 10)


def test_a_group_ends_the_leases_of_so_many_messages_and_other_timers_do_not_wait(
    world: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LEASES_PER_GROUP", 3)
    world.create("dead")
    world.create(max_attempts=1, dead_letter="dead")
    messages = world.publish(10)
    for _ in range(5):
        world.claim(2, lease_ms=1_000)
    world.publish(1, retention_s=1)
    world.later(1_001)
    for _ in range(3):  # more calls of the same moment end no more: they are as if in one group
        assert world.about("dead").available == 4
    assert (world.about().available, world.about().expired) == (0, 1)
    world.ticks()
    assert (world.about().in_flight, world.about("dead").available) == (0, 10)
    assert world.claim(10, "dead").messages == messages, "they came in the order in which they were claimed"


def test_a_lease_that_is_over_is_over_even_if_its_timer_has_yet_to_fire(
    world: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "TIMERS_PER_STEP", 1)
    world.create(backoff_ms=0)
    world.publish(3)
    claims = [world.claim(lease_ms=1_000) for _ in range(3)]
    world.later(1_000)
    assert world.about().in_flight == 2
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claims[2]))


def test_backoff_of_an_ended_lease_counts_from_its_end(world: Queues) -> None:
    world.create(backoff_ms=1_000)
    world.publish(2)
    world.claim(2, lease_ms=5_000)
    world.reopen()
    world.later(5_999)
    assert world.about().available == 0
    world.reopen()
    world.later(1)
    assert len(world.claim(2).messages) == 2


# -- retention --------------------------------------------------------------------------------------------------


def test_a_message_leaves_when_its_age_exceeds_its_retention_unless_it_is_in_flight(world: Queues) -> None:
    world.create(max_attempts=2)
    world.publish(3, retention_s=10)
    claimed = world.claim(2)
    world.commit(used(ops.Fail, claimed, 0, final=True))
    world.later(10_000)
    assert (world.about().available, world.about().failed) == (1, 1), "its age equals its retention"
    world.later(1)
    about = world.about()
    assert (about.available, about.in_flight, about.failed, about.expired) == (0, 1, 0, 2)
    world.commit(used(ops.Fail, claimed, 1, delay_ms=0))
    assert world.claim().messages == []
    assert (world.about().in_flight, world.about().expired) == (0, 3)
    assert world.stored_bodies() == {}


@pytest.mark.parametrize("most", [1, 5])
def test_a_message_whose_lease_and_retention_are_over_is_gone_at_once(world: Queues, most: int) -> None:
    world.create(max_attempts=most)
    world.publish(retention_s=1)
    world.claim(lease_ms=1_001)
    world.later(1_001)
    about = world.about()
    assert (about.available, about.delayed, about.in_flight, about.failed, about.expired) == (0, 0, 0, 0, 1)


def test_an_unmatched_message_is_kept_until_its_retention_ends(world: Queues) -> None:
    world.create()
    message = world.publish(queue="nobody", retention_s=10)[0]
    assert world.commit(ops.DescribeQueues())[0].unmatched == 1
    assert set(world.stored_bodies()) == {message}
    assert world.commit(ops.FindMessage(message))[0] == ops.MessageFound(message, [])
    world.later(10_000)
    assert world.commit(ops.DescribeQueues())[0].unmatched == 1
    world.later(1)
    assert world.commit(ops.DescribeQueues())[0].unmatched == 0
    assert world.stored_bodies() == {}


def test_what_a_paused_queue_has_yet_to_read_of_goes_when_its_retention_ends(world: Queues) -> None:
    world.create()
    world.create("paused", filter="true", paused=True)
    done, lasting = world.publish(retention_s=10)[0], world.publish(retention_s=100)[0]
    world.commit(used(ops.Ack, world.claim(2)))
    assert set(world.stored_bodies()) == {done, lasting}
    late = world.publish(retention_s=5)[0]
    claimed = world.claim()
    world.later(10_001)
    world.commit(used(ops.Ack, claimed))
    assert set(world.stored_bodies()) == {lasting}, f"{late} was acknowledged after its retention"
    assert world.ticks() < 5
    world.commit(ops.ConfigureQueue("paused", ops.Settings(paused=False)))
    world.ticks()
    assert world.claim(5, "paused").messages == [lasting]


def test_a_queue_that_catches_up_takes_nothing_past_its_retention(world: Queues) -> None:
    world.create()
    world.publish(retention_s=10)
    claimed = world.claim()
    world.later(10_001)
    world.create("new", filter="true", earliest=True)
    world.ticks()
    assert (world.about("new").routed, world.about().in_flight) == (0, 1)
    world.commit(used(ops.Ack, claimed))


# -- done messages ----------------------------------------------------------------------------------------------


def done_records(world: Queues) -> int:
    return len([key for key in world.records(records.DONE) if len(key) > records.EMPTY_DONE_KEY_BYTES])


def test_done_messages_are_forgotten_in_steps(tiny: Queues) -> None:
    tiny.create(done_retention_s=10)
    tiny.publish(5)
    for _ in range(5):
        tiny.commit(used(ops.Ack, tiny.claim()))
        tiny.commit(ops.WriteCheckpoint())
    assert (tiny.about().done_kept, done_records(tiny)) == (5, 5)
    assert tiny.state(4).state == "done"
    tiny.later(10_001)
    assert tiny.ticks() >= 3
    assert (tiny.about().done_kept, done_records(tiny)) == (0, 0)
    assert tiny.state(4) is None


@pytest.mark.parametrize("retention_s", [10, NOT_KEPT])
def test_a_shorter_retention_of_done_messages_holds_at_once(world: Queues, retention_s: int) -> None:
    world.create()
    world.publish()
    world.commit(used(ops.Ack, world.claim()))
    world.commit(ops.WriteCheckpoint())
    world.ticks()
    world.commit(ops.ConfigureQueue("q", ops.Settings(done_retention_s=retention_s)))
    world.ticks()
    assert world.about().done_kept == (0 if retention_s == NOT_KEPT else 1)
    world.later(10_001)
    world.ticks()
    assert world.about().done_kept == 0


@pytest.mark.parametrize(("retention_s", "kept"), [(0, 1), (NOT_KEPT, 0)])
def test_done_messages_are_kept_for_ever_or_not_at_all(world: Queues, retention_s: int, kept: int) -> None:
    world.create(done_retention_s=retention_s)
    message = world.publish()[0]
    world.commit(used(ops.Ack, world.claim()))
    world.commit(ops.WriteCheckpoint())
    world.later(1_000 * DAY_MS)
    world.ticks()
    assert (world.about().done_kept, done_records(world)) == (kept, kept)
    assert (world.state(message) is not None) == bool(kept)


# -- where a message is -----------------------------------------------------------------------------------------


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The buckets in which messages were looked for."""
    found: list[int] = []
    find = Bucket.find

    def noted(bucket: Bucket, messages: Any) -> list[int]:
        found.append(bucket.number)
        return find(bucket, messages)

    monkeypatch.setattr(Bucket, "find", noted)
    return found


def test_a_message_is_looked_for_only_where_it_can_be(world: Queues, searches: list[int]) -> None:
    world.create()
    world.create("large")
    world.publish(3_000, "large")
    done, there = world.publish(2)
    world.publish(3_000, "large")
    world.commit(used(ops.Ack, world.claim()))
    for _ in range(2):
        assert [state.state for state in world.commit(ops.FindMessage(done))[0].states] == ["done"]
        assert searches == []  # nobody holds it
        assert [state.state for state in world.commit(ops.FindMessage(there))[0].states] == ["available"]
        assert searches == [0]
        assert world.state(5_000, "large") is not None
        assert searches == [0, 4]
        world.commit(ops.WriteCheckpoint())
        world.reopen()
        searches.clear()


def test_messages_that_do_not_stand_in_order_are_found(tiny: Queues) -> None:
    tiny.create(max_attempts=1)
    tiny.create("other", dead_letter="q", max_attempts=1)
    early, messages = tiny.publish(4, "other"), tiny.publish(25)
    tiny.commit(used(ops.Fail, tiny.claim(2, "other")))
    claimed = tiny.claim(3)
    tiny.commit(used(ops.Fail, claimed))
    tiny.commit(ops.Redrive("q", claimed.messages[:2]))
    tiny.commit(ops.Redrive("q", claimed.messages[2:]))
    tiny.commit(used(ops.Ack, tiny.claim(4)))
    tiny.commit(used(ops.Fail, tiny.claim(2, "other")))
    for _ in range(2):
        seen = {message: tiny.state(message) for message in [*early, *messages]}
        done = [message for message, state in seen.items() if state is not None and state.state == "done"]
        assert done == messages[3:7]
        assert all(state is not None for state in seen.values())
        tiny.commit(ops.WriteCheckpoint())
        tiny.reopen()


def test_a_message_is_found_after_those_behind_it_were_taken_back(world: Queues) -> None:
    world.create()
    world.commit(journal_ops.CreateJournal("j"))
    world.publish()
    with pytest.raises(Conflict):
        world.commit(ops.Publish([b"x"] * 3, [{"queue": "q"}]), ops.FindMessage(3), journal_ops.CheckHead("j", 9))
    last = world.publish(3)[-1]
    assert world.state(last) is not None


def test_a_message_is_looked_for_in_the_queues_that_are_named(world: Queues, searches: list[int]) -> None:
    for name in ("q", "all", "more"):
        world.create(name, filter="true")
    message = world.publish()[0]
    world.commit(used(ops.Ack, world.claim(queue="more")))
    found = world.commit(ops.FindMessage(message, ["all", "nowhere", "more", "all"]))[0]
    assert (found.record, [(state.queue, state.state) for state in found.states]) == (
        message,
        [("all", "available"), ("more", "done")],
    )
    assert world.commit(ops.FindMessage(message, ["nowhere"]))[0] == ops.MessageFound(-1, [])
    assert len(searches) == 1
    with pytest.raises(LimitExceeded):
        world.commit(ops.FindMessage(message, ["q"] * (ops.QUEUES_MAX + 1)))


def test_a_search_for_a_done_message_ends_after_the_newest_ones(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "DONE_MESSAGES_SEARCHED", 2)
    world.create()
    old, new = world.publish(1)[0], world.publish(2)[-1]
    for count in (1, 2):
        world.commit(used(ops.Ack, world.claim(count)), ops.WriteCheckpoint())
    assert world.state(new) is not None
    assert world.state(old) is None


# -- dedup keys -------------------------------------------------------------------------------------------------


def keyed(world: Queues, *keys: str | None, **options: Any) -> ops.PublishedMessages:
    result: ops.PublishedMessages = world.commit(
        ops.Publish([b"x"] * len(keys), [{"queue": "q"}], dedup_keys=list(keys), **options)
    )[0]
    return result


def test_a_key_is_answered_with_its_first_message(world: Queues) -> None:
    world.create()
    first = keyed(world, "a", None, "a", "b", retention_s=1)
    assert (first.count, first.duplicates) == (3, [(2, first.first)])
    world.commit(used(ops.Ack, world.claim(3)))
    assert world.stored_bodies() == {}
    world.reopen()
    again = keyed(world, "b", "a", "c")
    assert (again.count, again.duplicates) == (1, [(0, first.first + 2), (1, first.first)])
    nothing = keyed(world, "a")
    assert nothing == ops.PublishedMessages(0, 0, [(0, first.first)])


@pytest.mark.parametrize(("window_ms", "retention_s", "held_ms"), [(2_000, 1, 2_000), (2_000, 5, 5_000), (0, 1, 1_000)])
def test_a_key_is_held_for_the_window_or_the_retention_whichever_is_longer(
    world: Queues, window_ms: int, retention_s: int, held_ms: int
) -> None:
    world.create()
    world.commit(ops.SetDedupWindow(window_ms))
    first = keyed(world, "a", retention_s=retention_s)
    world.later(held_ms)
    assert keyed(world, "a", retention_s=retention_s).duplicates == [(0, first.first)]
    world.later(1)
    assert keyed(world, "a", retention_s=retention_s).count == 1
    world.ticks()
    assert len(world.records(records.DEDUP)) == len(world.records(records.DEDUP_EXPIRY)) == 1
    world.later(held_ms + 1)
    world.ticks()
    assert world.records(records.DEDUP) == world.records(records.DEDUP_EXPIRY) == []


def test_the_key_of_a_message_without_a_deadline_is_held_for_ever(world: Queues) -> None:
    world.create()
    first = keyed(world, "a", retention_s=0)
    world.later(1_000 * DAY_MS)
    world.ticks()
    assert keyed(world, "a").duplicates == [(0, first.first)]


def test_a_queue_that_is_made_anew_has_seen_no_key(world: Queues) -> None:
    world.create()
    first = keyed(world, "a", to="q")
    assert keyed(world, "a", to="q").duplicates == [(0, first.first)]
    world.commit(ops.DeleteQueue("q"))
    world.create()
    second = keyed(world, "a", to="q")
    assert (second.count, second.duplicates) == (1, [])
    world.reopen()
    assert keyed(world, "a", to="q").duplicates == [(0, second.first)]


def test_a_key_of_the_store_is_no_queues_key(world: Queues) -> None:
    number = world.create()
    for key in ("a", f"{number}", f"{number}a"):
        assert keyed(world, key).count == keyed(world, key, to="q").count == 1
        assert keyed(world, key).duplicates != keyed(world, key, to="q").duplicates


def test_the_keys_of_a_deleted_queue_go_in_steps_and_no_others(tiny: Queues) -> None:
    tiny.create()
    tiny.create("other", filter="true")
    keyed(tiny, *(f"k{n}" for n in range(7)), to="q")
    keyed(tiny, *(f"e{n}" for n in range(7)), to="q", retention_s=0)
    keyed(tiny, "a", to="other")
    keyed(tiny, "a")
    tiny.commit(ops.DeleteQueue("q"))
    assert tiny.ticks() >= 4
    assert [key[3:] for key in tiny.records(records.DEDUP)] == [b"2\0a", b"a"]
    assert len(tiny.records(records.DEDUP_EXPIRY)) == 2


def test_a_key_that_is_taken_in_the_group_that_deletes_its_queue_goes_with_it(world: Queues) -> None:
    world.create()
    requests = [
        world.request(ops.Publish([b"x"], [{"queue": "q"}], dedup_keys=["a"], to="q")),
        world.request(ops.DeleteQueue("q")),
        world.request(ops.Collect()),
    ]
    world.group(*requests)
    world.ticks()
    assert world.records(records.DEDUP) == world.records(records.DEDUP_EXPIRY) == []


def test_keys_are_forgotten_in_steps(tiny: Queues) -> None:
    tiny.create()
    keyed(tiny, *(f"k{n}" for n in range(7)), retention_s=1)
    tiny.later(DAY_MS + 1)
    assert tiny.ticks() >= 4
    assert tiny.records(records.DEDUP) == tiny.records(records.DEDUP_EXPIRY) == []


# -- bodies and the metadata log ------------------------------------------------------------------------------


def test_a_record_that_several_messages_share_is_written_anew_without_those_that_are_done(world: Queues) -> None:
    world.create()
    messages = world.publish(4)
    world.commit(used(ops.Ack, world.claim(4), 1, 3))
    assert world.stored_bodies() == {messages[0]: b"body 0", messages[2]: b"body 2"}
    assert len(world.records(published.PAYLOAD)) == 1


def test_a_body_stays_until_the_last_queue_is_done_with_it(world: Queues) -> None:
    world.create()
    world.create("all", filter="true")
    messages = world.publish(2)
    world.commit(used(ops.Ack, world.claim(2)))
    assert list(world.stored_bodies()) == messages
    claimed = world.claim(2, "all")
    world.commit(used(ops.Ack, claimed, 0))
    assert list(world.stored_bodies()) == messages[1:]
    world.commit(used(ops.Ack, claimed, 1))
    assert world.stored_bodies() == {}


def test_a_publish_of_many_messages_is_spread_over_records(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RECORD_MESSAGES_MAX", 3)
    world.create()
    messages = world.publish(7)
    assert len(world.records(published.PAYLOAD)) == 3
    assert world.claim(7).records == [messages[0]] * 3 + [messages[3]] * 3 + [messages[6]]


def test_segments_of_the_log_go_when_nobody_holds_any_of_them(tiny: Queues) -> None:
    tiny.create()
    for _ in range(6):
        tiny.publish(4)
    with tiny.writer.view() as view:
        assert len(queuemodel.segments(view)) == 3
    claimed = tiny.claim(24)
    tiny.commit(used(ops.Ack, claimed, *range(1, 24)))
    tiny.ticks()
    with tiny.writer.view() as view:
        assert queuemodel.segments(view) == [1, 3]  # one is held, one is the last
    tiny.commit(used(ops.Ack, claimed, 0))
    tiny.ticks()
    with tiny.writer.view() as view:
        assert [len(messages) for messages in queuemodel.entries(view).values()] == [8]
    tiny.memory()


def test_a_segment_that_lives_within_one_group_leaves_nothing(tiny: Queues) -> None:
    number = tiny.create()
    publish = ops.Publish([b"x"] * 8, [{"queue": "q"}])
    claim, ack = ops.Claim("q", 8), ops.Ack(number, list(range(8)), list(range(1, 9)))
    last = ops.Publish([b"x"], [{"queue": "q"}])
    tiny.group(tiny.request(publish, claim, ack), tiny.request(last), None)
    with tiny.writer.view() as view:
        entries = queuemodel.entries(view)
        assert [[m.message for m in messages] for messages in entries.values()] == [[8]]
    tiny.reopen()
    tiny.memory()


# -- queues that are behind -------------------------------------------------------------------------------------


def test_a_paused_queue_reads_on_where_it_stopped(tiny: Queues) -> None:
    tiny.create(filter="true")
    before = tiny.publish(3)
    tiny.commit(ops.ConfigureQueue("q", ops.Settings(paused=True)))
    missed = [*tiny.publish(3), *tiny.publish(3, delay_ms=1_000)]
    assert (tiny.about().routed, tiny.about().behind) == (3, True)
    tiny.commit(ops.ConfigureQueue("q", ops.Settings(paused=False)))
    tiny.engine.tick()
    assert tiny.about().behind
    meanwhile = tiny.publish(1)
    tiny.reopen()
    tiny.ticks()
    assert not tiny.about().behind
    after = tiny.publish(1)
    tiny.later(1_000)
    assert tiny.claim(20).messages == [*before, *missed, *meanwhile, *after]


def test_a_new_queue_gets_what_is_stored_and_matches(tiny: Queues) -> None:
    tiny.create("old")
    done, held = tiny.publish(2, "old")
    unmatched = tiny.publish(1, "new")
    tiny.commit(used(ops.Ack, tiny.claim(1, "old")))
    tiny.create("new", filter="true", earliest=True)
    tiny.ticks()
    assert tiny.claim(9, "new").messages == [held, *unmatched]
    assert tiny.commit(ops.DescribeQueues())[0].unmatched == 0
    assert done not in tiny.stored_bodies()


def test_a_new_filter_holds_from_the_queues_position_onward(tiny: Queues) -> None:
    tiny.create(filter="true")
    before = tiny.publish(1, headers=[{"a": "1"}])
    tiny.commit(ops.ConfigureQueue("q", ops.Settings(paused=True)))
    tiny.publish(1, headers=[{"a": "1"}])
    tiny.commit(ops.ConfigureQueue("q", ops.Settings(filter="has(headers.b)", paused=False)))
    after = tiny.publish(1, headers=[{"b": "1"}])
    tiny.ticks()
    assert tiny.claim(9).messages == [*before, *after]


def test_a_message_done_elsewhere_waits_for_every_queue_that_is_behind(tiny: Queues) -> None:
    tiny.create()
    for name in ("one", "two"):
        tiny.create(name, filter="true", paused=True)
    messages = tiny.publish(3)
    tiny.commit(used(ops.Ack, tiny.claim(3)))
    for name in ("one", "two"):
        assert list(tiny.stored_bodies()) == messages
        tiny.commit(ops.ConfigureQueue(name, ops.Settings(paused=False)))
        tiny.ticks()
        claimed = tiny.claim(3, name)
        assert claimed.messages == messages
        tiny.commit(used(ops.Ack, claimed))
    assert tiny.stored_bodies() == {}
    tiny.memory()


# -- redrive and purge ------------------------------------------------------------------------------------------


def failed(world: Queues, count: int, queue: str = "q") -> list[int]:
    """So many new messages that have failed at once."""
    world.publish(count, queue)
    claimed = world.claim(count, queue)
    world.commit(used(ops.Fail, claimed, final=True, reason="no"))
    return claimed.messages


def test_redriven_messages_come_last_as_if_never_tried(world: Queues) -> None:
    world.create()
    messages = failed(world, 2)
    waiting = world.publish(1)
    assert world.commit(ops.Redrive("q"))[0] == ops.Moved(2, messages[-1])
    claimed = world.claim(3)
    assert (claimed.messages, claimed.attempts) == ([*waiting, *messages], [1, 1, 1])
    assert world.state(messages[0]).history == []
    assert world.commit(ops.Redrive("q"))[0] == ops.Moved(0)


def test_a_redrive_takes_those_named_or_those_that_match_in_steps(tiny: Queues) -> None:
    tiny.create(filter="true")
    for index in range(5):
        tiny.publish(1, headers=[{"tier": "gold"} if index % 2 else {}])
    tiny.commit(used(ops.Fail, tiny.claim(5), final=True))
    first = tiny.commit(ops.Redrive("q", filter='headers.tier == "gold"'))[0]
    assert (first.count, first.more) == (1, True)
    second = tiny.commit(ops.Redrive("q", filter='headers.tier == "gold"', after=first.after))[0]
    assert (second.count, second.more) == (1, True)
    with pytest.raises(NotFound, match="not among the failed"):
        tiny.commit(ops.Redrive("q", [0, 1]))
    assert tiny.commit(ops.Redrive("q", [0]))[0].count == 1
    assert (tiny.about().failed, tiny.about().available) == (2, 3)


def test_a_message_is_redriven_to_another_queue_once(world: Queues) -> None:
    world.create()
    world.create("second", priority_header="urgency")
    world.create("all", filter="true")
    messages = failed(world, 2)
    with pytest.raises(Exists):
        world.commit(ops.Redrive("q", [messages[0]], to="all"))
    assert world.commit(ops.Redrive("q", to="all"))[0].count == 0
    assert world.commit(ops.Redrive("q", to="second"))[0].count == 2
    assert world.claim(5, "second").messages == messages
    assert (world.about().failed, world.about("second").routed) == (0, 2)
    world.memory()


def test_a_message_is_not_redriven_to_a_queue_that_will_read_of_it(world: Queues) -> None:
    world.create()
    world.create("slow", filter="true", paused=True)
    messages = failed(world, 1)
    with pytest.raises(Exists, match="has yet to read"):
        world.commit(ops.Redrive("q", messages, to="slow"))
    assert world.commit(ops.Redrive("q", to="slow"))[0].count == 0
    world.commit(ops.ConfigureQueue("slow", ops.Settings(paused=False)))
    world.ticks()
    assert world.claim(5, "slow").messages == messages


def test_a_purge_leaves_what_is_in_flight(tiny: Queues) -> None:
    tiny.create()
    held = tiny.publish(1)
    claimed = tiny.claim()
    failed(tiny, 3)
    tiny.publish(15)
    tiny.publish(2, delay_ms=1_000)
    count, below, more = 0, -1, True
    while more:
        moved = tiny.commit(ops.Purge("q", below=below))[0]
        count, below, more = count + moved.count, moved.after, moved.more
        tiny.publish(1)
    about = tiny.about()
    assert (count, about.purged, about.failed, about.in_flight) == (20, 20, 0, 1)
    assert about.available > 0, "what came meanwhile stays"
    assert set(held) <= set(tiny.stored_bodies())
    tiny.commit(used(ops.Ack, claimed))


def test_failed_messages_are_purged_by_number(world: Queues) -> None:
    world.create()
    messages = failed(world, 3)
    with pytest.raises(NotFound):
        world.commit(ops.Purge("q", messages=[messages[0], 99]))
    assert world.commit(ops.Purge("q", messages=[messages[0], messages[2], messages[0]]))[0].count == 2
    assert [entry.message for entry in world.commit(ops.ListFailed("q"))[0].messages] == [messages[1]]


@pytest.mark.parametrize(
    "operation",
    [ops.DeleteQueue("q"), ops.ConfigureQueue("q", ops.Settings()), ops.Redrive("q"), ops.Purge("q")],
    ids=lambda operation: type(operation).__name__,
)
def test_what_cannot_be_taken_back_stands_alone(world: Queues, operation: Any) -> None:
    world.create()
    with pytest.raises(Invalid, match="stands alone"):
        world.commit(ops.Claim("q"), operation)


# -- deleting ---------------------------------------------------------------------------------------------------


def test_a_deleted_queue_goes_in_steps_and_leaves_nothing(tiny: Queues) -> None:
    number = tiny.create(max_attempts=2)
    tiny.publish(35)
    claimed = tiny.claim(12)
    tiny.commit(used(ops.Ack, claimed, 0, 1))
    tiny.commit(used(ops.Fail, claimed, 2, 3, final=True))
    tiny.commit(used(ops.Fail, claimed, 4, delay_ms=1))
    tiny.commit(ops.WriteCheckpoint())
    tiny.commit(ops.DeleteQueue("q"))
    tiny.engine.tick()
    tiny.reopen()
    assert tiny.create() == number + 1
    assert tiny.ticks() > 3
    with tiny.writer.view() as view:
        assert queuemodel.records_of(view, number) == []
    assert tiny.stored_bodies() == {}
    assert tiny.publish(1) == tiny.claim(5).messages
    tiny.memory()


# -- restarts and checkpoints -----------------------------------------------------------------------------------


def test_a_restart_finds_what_was_there(tiny: Queues) -> None:
    tiny.create(max_attempts=2, backoff_ms=500)
    tiny.create("all", filter="true", lease_ms=2_000)
    tiny.create("slow", filter="true", paused=True)
    for _ in range(4):
        tiny.publish(5, retention_s=3)
        tiny.urgent(5, 9, 200)
        claimed = tiny.claim(6, consumer="me")
        tiny.commit(used(ops.Ack, claimed, 0, 1), used(ops.Extend, claimed, 2, lease_ms=60_000))
        tiny.commit(used(ops.Fail, claimed, 3, delay_ms=5), used(ops.Fail, claimed, 4, final=True))
        tiny.claim(3, "all")
        tiny.later(900)
        tiny.engine.tick()
        before = tiny.memory()
        tiny.engine.tick()
        tiny.reopen()
        assert tiny.memory() == before


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_closed_store_has_nothing_to_replay_and_goes_on_with_the_next_number(world: Queues, steps: int) -> None:
    world.create()
    messages = [world.publish()[0] for _ in range(steps)]
    before = world.memory()
    world.engine.close()
    world.reopen()
    assert world.records(records.STATE_LOG) == []
    assert world.memory() == before
    assert messages + world.publish() == list(range(steps + 1))


def test_a_checkpoint_comes_by_itself(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "RECORDS_MAX", 3)
    world.create()
    found = []
    for _ in range(5):
        world.publish()
        found.append(len(world.records(records.STATE_LOG)))
    assert found == [1, 2, 3, 0, 1]
    world.later(checkpoint.AGE_MS_MAX)
    world.engine.tick()
    assert world.records(records.STATE_LOG) == []


def test_message_numbers_are_never_given_twice(world: Queues) -> None:
    world.create()
    seen = world.publish(3)
    with pytest.raises(NotFound):
        world.commit(ops.Publish([b"x"] * 3, [{"queue": "q"}]), ops.Claim("nobody"))
    for _ in range(3):
        world.reopen()
        new = world.publish(3)
        assert min(new) > max(seen)
        seen += new


def test_a_state_log_with_a_gap_is_corrupt(world: Queues) -> None:
    world.create()
    for _ in range(3):
        world.publish()
    batch = Batch()
    batch.delete(world.records(records.STATE_LOG)[1])
    world.writer.commit(batch)
    with pytest.raises(Corrupt, match="goes on with record"):
        world.reopen()


def test_a_state_log_that_does_not_fit_is_corrupt(world: Queues) -> None:
    world.create()
    world.publish()
    world.claim()
    key = world.records(records.STATE_LOG)[-1]
    with world.writer.view() as view:
        value = view.get(key)
    assert value is not None
    batch = Batch()
    batch.put(key, value + value)  # the same place claimed twice
    world.writer.commit(batch)
    with pytest.raises(Corrupt, match="does not fit"):
        world.reopen()


# -- rarer things -----------------------------------------------------------------------------------------------------


def test_a_queue_made_and_deleted_in_the_group_that_collects_it_leaves_nothing(world: Queues) -> None:
    """Its empty records are in no view yet; they go all the same, and the store opens."""
    made = world.request(ops.CreateQueue("q"))
    world.group(made, world.request(ops.DeleteQueue("q")), None)
    world.ticks()
    assert [world.records(prefix) for prefix in (records.ACTIVE, records.FAILED, records.DONE, records.DELETED)] == [
        [records.queue_key(records.ACTIVE, 0, 0)] if world.records(records.ACTIVE) else [], [], [], []
    ]  # fmt: skip
    world.reopen()
    assert world.create() > 0


def test_a_segment_goes_whatever_older_one_is_still_held(tiny: Queues) -> None:
    """One old message keeps its own segment, not all that came after it."""
    tiny.create()
    tiny.create("old")
    tiny.publish(queue="old", retention_s=0)
    for _ in range(6):
        tiny.publish(8)
        tiny.commit(used(ops.Ack, tiny.claim(8)))
    tiny.ticks()
    assert len(tiny.queues.holdings.segments) == 2
    tiny.reopen()
    assert [segment.number for segment in tiny.queues.holdings.segments] == [1, 6]
    assert tiny.claim(queue="old").messages == [0]


def test_done_messages_of_a_queue_that_keeps_none_any_more_are_forgotten_at_once(world: Queues) -> None:
    """Also those that no checkpoint had written when the setting changed."""
    world.create(done_retention_s=0)
    world.publish(3)
    world.commit(used(ops.Ack, world.claim(3)))
    world.group(world.request(ops.ConfigureQueue("q", ops.Settings(done_retention_s=NOT_KEPT))), None)
    world.ticks()
    assert (world.about().done_kept, done_records(world)) == (0, 0)


def test_whoever_still_waits_is_woken_by_the_next_tick(world: Queues) -> None:
    """A wake-up that went to somebody who has gone away is not the only one."""
    world.create()
    woken: list[str] = []
    world.queues.wait("q", lambda: woken.append("gone"))
    world.queues.wait("q", lambda: woken.append("still there"))
    world.publish()
    assert woken == ["gone"]
    world.engine.tick()
    assert woken == ["gone", "still there"]


def test_one_who_cannot_be_woken_does_not_keep_the_others_asleep(
    world: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    world.create()
    woken: list[str] = []

    def fail() -> None:
        raise RuntimeError("its loop is gone")

    world.queues.wait("q", fail)
    world.queues.wait("q", lambda: woken.append("me"))
    world.publish(2)
    assert woken == ["me"]
    assert "could not be woken" in caplog.text


def test_headers_count_as_bytes_of_a_publish(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "PUBLISH_BYTES_MAX", 1000)
    world.create()
    with pytest.raises(LimitExceeded, match="a publish of"):
        world.commit(ops.Publish([b""] * 3, [{"a": "x" * 400}] * 3))
    assert world.commit(ops.Publish([b""] * 3, [{"a": "x" * 400}]))[0].count == 3


@pytest.mark.parametrize(
    "operation",
    [ops.Claim("q", 1, None, b"me"), ops.Publish([b"x"], None, dedup_keys=[b"k"]), ops.Fail(1, [0], [1], b"why")],
    ids=lambda operation: type(operation).__name__,
)
def test_bytes_are_no_text(world: Queues, operation: Any) -> None:
    """Refused with a reason, and not as a failure of the engine, which callers would try again."""
    world.create()
    with pytest.raises(Invalid, match="is text, not bytes"):
        world.commit(operation)


def test_a_redrive_reads_the_metadata_of_a_record_once(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand messages in one step must not hold everybody up."""
    world.create()
    world.create("other")
    world.publish(50)
    world.commit(used(ops.Fail, world.claim(50), final=True))
    decoded: list[int] = []
    original = published.decode_entry
    monkeypatch.setattr(published, "decode_entry", lambda value: (decoded.append(1), original(value))[1])
    world.commit(ops.Redrive("q", filter="true"))
    assert len(decoded) == 1
    world.commit(used(ops.Fail, world.claim(50), final=True))
    world.commit(ops.Redrive("q"))
    assert len(decoded) == 1


def test_what_was_in_flight_in_a_deleted_queue_ends_its_retention_whoever_owns_the_store(tiny: Queues) -> None:
    tiny.create()
    tiny.publish(35, retention_s=1)
    tiny.claim(35, lease_ms=HOUR_MS)
    tiny.later(1_000)
    tiny.about()
    tiny.commit(ops.DeleteQueue("q"))
    tiny.engine.tick()
    before = tiny.memory()
    tiny.reopen()
    assert tiny.memory() == before
    tiny.ticks()
    assert tiny.stored_bodies() == {}


# -- the newest segment of the log --------------------------------------------------------------------------------


def entries(world: Queues) -> list[bytes]:
    """The keys of the metadata log's entries."""
    with world.writer.view() as view:
        return [key for key, _ in view.scan(b"\x03", b"\x04") if key[6] == log.TAG_ENTRY]


def segments(world: Queues) -> list[int]:
    with world.writer.view() as view:
        return [log.decode_segment_key(key) for key, _ in view.scan(*log.segment_range())]


def test_expired_headers_go_in_a_store_in_which_nothing_more_is_published(world: Queues) -> None:
    world.create()
    world.publish(3, retention_s=100)
    world.later(100_000)
    world.ticks()
    assert len(entries(world)) == 1, "their age equals their retention"
    world.later(1)
    world.ticks()
    assert (world.stored_bodies(), entries(world)) == ({}, [])
    assert segments(world) == [2], "its number is not given again: readers may remember where segment 1 began"
    assert world.publish(1) == [3]
    assert world.claim().messages == [3]
    assert segments(world) == [2]


def test_the_newest_segment_stays_while_more_is_published(world: Queues) -> None:
    world.create()
    for _ in range(5):
        world.publish()
        world.commit(used(ops.Ack, world.claim()))
        world.later(housekeeping.QUIET_MS - 1)
        world.ticks()
    assert (len(entries(world)), segments(world)) == (5, [1])
    world.later(1)
    world.ticks()
    assert (entries(world), segments(world)) == ([], [2])


def test_the_newest_segment_stays_while_a_queue_has_yet_to_read_of_it(world: Queues) -> None:
    world.create()
    world.create("paused", filter="true", paused=True)
    world.publish(retention_s=0)
    world.commit(used(ops.Ack, world.claim()))
    world.later(housekeeping.QUIET_MS)
    world.ticks()
    assert (len(entries(world)), segments(world)) == (1, [1])


def test_numbers_left_out_by_a_restart_begin_a_segment_of_their_own(world: Queues) -> None:
    world.create()
    world.publish()
    world.commit(used(ops.Ack, world.claim()))
    world.later(housekeeping.QUIET_MS)
    world.ticks()
    assert segments(world) == [2]
    world.reopen()
    (message,) = world.publish()
    assert message > 1, "the rest of the reserved block is left out"
    world.ticks()
    assert world.claim().messages == [message]
    assert segments(world) == [3]
    assert list(verify(world.writer)) == []


def test_an_owner_that_takes_over_drops_the_newest_segment_after_a_quiet_minute(world: Queues) -> None:
    world.create()
    world.publish()
    world.commit(used(ops.Ack, world.claim()))
    world.reopen()
    world.ticks()
    assert len(entries(world)) == 1
    world.later(housekeeping.QUIET_MS)
    world.ticks()
    assert (entries(world), segments(world)) == ([], [2])
    assert list(verify(world.writer)) == []
