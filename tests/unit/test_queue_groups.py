"""Groups: within one, messages are given out strictly in the order in which they came. Each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest

from detent.codec import queue as records
from detent.codec.queue import Config
from detent.errors import Conflict, Invalid, StaleReceipt
from detent.journal import operations as journal_ops
from detent.queue import grouped as groups_module
from detent.queue import operations as ops
from detent.queue.grouped import GroupedState
from detent.queue.state import QueueState
from queueworld import Queues, used


class Grouped(Queues):
    """A queue q with groups by the header g."""

    def __init__(self) -> None:
        super().__init__()
        self.create(group_header="g", backoff_ms=0)

    def grouped(self, *groups: str | None, **options: Any) -> list[int]:
        """One message of each of these groups, in one publish; "a/3" is one of group a with priority 3."""
        return self.publish(len(groups), headers=[about(group) for group in groups], **options)

    def counts(self, queue: str = "q") -> tuple[int, int, int, int]:
        """Claimable, delayed, blocked, in flight."""
        found = self.about(queue)
        return found.available, found.delayed, found.blocked, found.in_flight

    @property
    def q(self) -> GroupedState:
        state = self.queues.queues["q"]
        assert isinstance(state, GroupedState)
        return state


def about(group: str | None, queue: str = "q") -> dict[str, str]:
    headers = {"queue": queue}
    if group is not None:
        name, _, priority = group.partition("/")
        headers |= {"g": name} | ({"priority": priority} if priority else {})
    return headers


@pytest.fixture
def world() -> Grouped:
    return Grouped()


# -- the order ------------------------------------------------------------------------------------------------------


def test_no_message_of_a_group_is_given_out_while_another_is_in_flight(world: Grouped) -> None:
    a1, a2, b1 = world.grouped("a", "a", "b")
    first = world.claim()
    assert first.messages == [a1]
    assert world.claim(9).messages == [b1]
    assert world.claim(9).messages == []
    world.commit(used(ops.Ack, first))
    assert world.claim(9).messages == [a2]


def test_one_claim_takes_several_of_a_group_in_order(world: Grouped) -> None:
    a1, a2, b1, a3, b2 = world.grouped(*"aabab")
    assert world.claim(9).messages == [a1, a2, a3, b1, b2]
    assert world.counts() == (0, 0, 0, 5)
    world.survives()


def test_claim_takes_as_many_of_one_group_as_it_can(world: Grouped) -> None:
    a1, b1, a2, a3, b2 = world.grouped("a", "b", "a", "a", "b")
    assert world.claim(2).messages == [a1, a2]
    assert world.claim(2).messages == [b1, b2]
    assert world.claim(2).messages == []
    assert world.about().blocked == 1
    assert a3 not in world.q.flights


def test_with_overlap_first_message_comes_back_while_later_ones_are_in_flight(world: Grouped) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_overlap=True)))
    a1, a2, a3 = world.grouped(*"aaa")
    claimed = world.claim(2)
    world.commit(used(ops.Fail, claimed, 0))
    assert world.claim(9).messages == [a1]
    world.survives()
    world.commit(used(ops.Fail, claimed, 1))  # the first one is in flight again, and holds this one back
    assert world.claim(9).messages == []
    assert (claimed.messages, world.q.flights.keys()) == ([a1, a2], {a1})
    world.survives()
    assert a3 not in world.q.flights


def test_with_overlap_message_behind_one_in_flight_waits(world: Grouped) -> None:
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_overlap=True)))
    a1, a2, a3 = world.grouped(*"aaa")
    claimed = world.claim(2)
    world.commit(used(ops.Fail, claimed, 0))
    again = world.claim(9)
    assert again.messages == [a1]
    world.commit(used(ops.Ack, again))
    assert world.claim(9).messages == []  # the second one is in flight still
    world.commit(used(ops.Ack, claimed, 1))
    assert world.claim(9).messages == [a3]
    assert claimed.messages == [a1, a2]


def test_overlap_that_is_switched_on_lets_go_what_it_allows(world: Grouped) -> None:
    a1, _ = world.grouped(*"aa")
    claimed = world.claim(2)
    world.commit(used(ops.Fail, claimed, 0))
    assert world.claim(9).messages == []
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_overlap=True)))
    assert world.counts() == (1, 0, 0, 1)
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_overlap=False)))
    assert world.counts() == (0, 0, 1, 1)
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_overlap=True)))
    assert world.claim(9).messages == [a1]
    world.survives()


def test_purge_of_what_is_in_flight_frees_its_groups(world: Grouped) -> None:
    world.grouped(*"aab")
    claimed = world.claim(1)
    world.commit(ops.Purge("q", in_flight=True))
    assert world.counts() == (0, 0, 0, 0)
    world.survives()
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed))
    (new,) = world.grouped("a")
    assert world.claim(9).messages == [new]


def test_what_a_claim_leaves_of_a_group_waits_until_all_it_took_are_gone(world: Grouped) -> None:
    a1, a2, a3 = world.grouped(*"aaa")
    claimed = world.claim(2)
    world.commit(used(ops.Ack, claimed, 1))
    assert world.claim().messages == []
    world.commit(used(ops.Ack, claimed, 0))
    assert (claimed.messages, world.claim().messages) == ([a1, a2], [a3])


def test_within_a_group_priority_does_not_matter(world: Grouped) -> None:
    low, high = world.grouped("a/200", "a/1")
    assert world.claim(9).messages == [low, high]


def test_between_groups_the_priority_of_the_first_one_decides(world: Grouped) -> None:
    a1, a2, b1, none = world.grouped("a/200", "a/1", "b/100", None)
    claimed = world.claim(9)
    assert claimed.messages == [b1, none, a1, a2]
    assert claimed.priorities == bytes([100, 128, 200, 1])


def test_one_that_becomes_the_first_of_its_group_competes_in_the_same_claim(world: Grouped) -> None:
    a1, a2, a3, b1 = world.grouped("a/5", "a/1", "a/9", "b/7")
    assert world.claim(9).messages == [a1, a2, b1, a3]


def test_the_last_of_sixteen_is_the_oldest_that_can_be_claimed(world: Grouped) -> None:
    old = world.grouped("a/200", "a/200")
    urgent = world.grouped(*["b/1"] * 20)
    claimed = world.claim(17).messages
    assert claimed == [*urgent[:15], old[0], urgent[15]]


def test_messages_without_the_header_are_in_no_group(world: Grouped) -> None:
    messages = world.grouped(None, None, None)
    assert [world.claim().messages[0] for _ in messages] == messages
    world.survives()


def test_an_empty_value_is_a_group_like_others(world: Grouped) -> None:
    first, _ = world.grouped("", "")
    assert world.claim().messages == [first]
    assert world.counts() == (0, 0, 1, 1)


def test_each_queue_has_its_own_groups(world: Grouped) -> None:
    world.create("all", filter="true", group_header="h")
    world.create("plain", filter="true")
    messages = world.publish(3, headers=[{**about("a"), "h": str(n)} for n in range(3)])
    assert world.claim().messages == messages[:1]
    for queue in ("all", "plain"):
        assert [world.claim(queue=queue).messages[0] for _ in messages] == messages


# -- what holds a group back, and what lets it go on ------------------------------------------------------------------


def test_a_delayed_message_holds_back_those_of_its_group_that_came_later(world: Grouped) -> None:
    first = world.grouped("a", delay_ms=500)[0]
    second, other = world.grouped("a", "b")
    assert world.counts() == (1, 1, 1, 0)
    assert world.claim(9).messages == [other]
    world.survives()
    world.later(500)
    assert world.claim(9).messages == [first, second]


def test_a_delayed_message_behind_others_holds_back_only_what_is_behind_it(world: Grouped) -> None:
    first = world.grouped("a")[0]
    second = world.grouped("a", delay_ms=500)[0]
    third = world.grouped("a")[0]
    claimed = world.claim(9)
    assert claimed.messages == [first]
    world.commit(used(ops.Ack, claimed))
    assert world.counts() == (0, 1, 1, 0)
    world.later(500)
    assert world.claim(9).messages == [second, third]


def test_a_returned_message_holds_back_its_group_for_its_back_off(world: Grouped) -> None:
    first, second = world.grouped("a", "a")
    world.commit(used(ops.Fail, world.claim(), delay_ms=500))
    assert world.counts() == (0, 1, 1, 0)
    assert world.claim(9).messages == []
    world.survives()
    world.later(500)
    assert world.claim(9).messages == [first, second]


def test_a_lease_that_ends_returns_messages_to_their_old_places(world: Grouped) -> None:
    messages = world.grouped(*"aaaa")
    world.claim(2, lease_ms=500)
    world.later(500)
    world.survives()
    assert world.claim(9).messages == messages


def test_messages_that_come_back_one_by_one_are_given_out_in_their_order(world: Grouped) -> None:
    messages = world.grouped(*"aaaa")
    claimed = world.claim(3)
    for index in (2, 0, 1):
        assert world.counts()[0] == 0
        world.commit(used(ops.Fail, claimed, index))
        world.survives()
    assert world.claim(9).messages == messages


@pytest.mark.parametrize("how", ["acknowledged", "given up", "expired", "purged", "moved"])
def test_what_leaves_a_group_lets_the_next_one_go_on(world: Grouped, how: str) -> None:
    if how == "moved":
        world.create("dead")
        world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="dead")))
    world.grouped("a", delay_ms=0 if how in {"acknowledged", "given up", "moved"} else 60_000, retention_s=1)
    second = world.grouped("a")[0]
    assert world.counts() == ((1, 0, 1, 0) if how in {"acknowledged", "given up", "moved"} else (0, 1, 1, 0))
    if how == "acknowledged":
        world.commit(used(ops.Ack, world.claim()))
    elif how in {"given up", "moved"}:
        world.commit(used(ops.Fail, world.claim(), final=True))
    elif how == "expired":
        world.later(1_001)
    else:
        world.commit(ops.Purge("q", below=second))
    assert world.counts() == (1, 0, 0, 0)
    world.survives()
    assert world.claim(9).messages == [second]


def test_blocked_messages_expire_and_are_purged_like_others(world: Grouped) -> None:
    first = world.grouped("a")[0]
    world.grouped(*"aaa", retention_s=1)
    last = world.grouped("a")[0]
    claimed = world.claim()
    world.later(1_001)
    assert world.counts() == (0, 0, 1, 1)
    world.survives()
    assert world.about().expired == 3
    world.commit(ops.Purge("q"))
    assert (claimed.messages, world.about().purged, world.counts()) == ([first], 1, (0, 0, 0, 1))
    world.commit(used(ops.Ack, claimed))
    assert world.q.lines == {}
    assert world.stored_bodies() == {}
    assert last > first


def test_a_redriven_message_stands_behind_its_group(world: Grouped) -> None:
    first, second = world.grouped("a", "a")
    world.commit(used(ops.Fail, world.claim(), final=True))
    world.commit(ops.Redrive("q"))
    assert world.counts() == (1, 0, 1, 0)
    assert world.claim(9).messages == [second, first]


def test_a_dead_letter_is_in_the_group_that_its_new_queue_puts_it_into(world: Grouped) -> None:
    world.create("p", dead_letter="q", max_attempts=1)
    there = world.grouped("a")[0]
    moved = world.publish(2, headers=[about("a", "p"), about("b", "p")])
    world.commit(used(ops.Fail, world.claim(2, "p")))
    world.survives()
    assert world.claim(2).messages == [there, moved[0]]
    assert world.counts() == (1, 0, 0, 2)


def test_blocked_messages_are_found_as_such(world: Grouped) -> None:
    first, second = world.grouped("a", "a")
    states = [world.state(message) for message in (first, second)]
    assert [state.state for state in states if state is not None] == ["available", "blocked"]


# -- who is woken -----------------------------------------------------------------------------------------------------


def test_whoever_waits_is_woken_when_a_group_is_free_and_not_before(world: Grouped) -> None:
    world.grouped("a", "a")
    claimed = world.claim()
    woken: list[str] = []
    world.queues.wait("q", lambda: woken.append("woken"))
    assert not world.queues.claimable("q")
    world.grouped("a")
    assert woken == []
    world.commit(used(ops.Ack, claimed))
    assert woken == ["woken"]
    assert world.queues.claimable("q")


def test_a_claim_looks_at_what_it_takes_however_many_are_blocked(world: Grouped) -> None:
    for _ in range(4):
        world.grouped(*["a"] * 1_000)
    looked: list[int] = []
    is_available = world.q._is_available

    def counted(place: int) -> bool:
        looked.append(place)
        return is_available(place)

    world.q._is_available = counted  # type: ignore[method-assign]
    claimed = world.claim(3)
    assert world.claim(100).messages == []
    world.commit(used(ops.Fail, claimed, 1))
    world.commit(used(ops.Ack, claimed, 0, 2))
    assert world.claim().messages == [claimed.messages[1]]
    assert len(looked) < 60


def test_a_line_forgets_what_is_gone_from_its_middle(world: Grouped) -> None:
    world.grouped("a")
    world.claim()
    for _ in range(5):
        world.grouped(*["a"] * 100, retention_s=1)
        world.later(1_001)
        world.about()
    assert len(world.q.lines[b"a"]._fresh) <= groups_module.STALE_MAX


@pytest.mark.parametrize("kept", [0, 1])
def test_what_expires_unclaimed_is_not_offered_for_ever(world: Grouped, kept: int) -> None:
    if kept:
        world.grouped("kept")
    for turn in range(5):
        world.grouped(*(f"{turn}-{n}" for n in range(100)), None, retention_s=1)
        world.later(1_001)
        assert world.counts() == (kept, 0, 0, 0)
    offers = world.q.offers.get(128)
    assert (offers is None) == (not kept)
    assert offers is None or len(offers._heap) <= 101 + groups_module.STALE_MAX + 2 * kept
    assert len(world.claim(9).messages) == kept


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_group_that_is_too_long_is_refused_where_it_would_be_one(world: Grouped) -> None:
    world.create("plain", filter="true")
    with pytest.raises(Invalid, match="at most 128 bytes, not 130"):
        world.grouped("a", "é" * 65)
    with pytest.raises(Invalid, match="names the group of a message in 'q'"):
        world.commit(ops.Publish([b"x"], [about("x" * 129)]), ops.Claim("plain"))
    assert world.about("plain").routed == 0
    world.publish(headers=[about("x" * 129, "elsewhere")])
    world.grouped("x" * 128)
    assert (world.about("plain").routed, world.about().routed) == (2, 1)


def test_one_that_is_too_long_and_comes_later_is_in_the_group_of_its_first_128_bytes(world: Grouped) -> None:
    world.publish(3, headers=[{"g": "x" * 200}, {"g": "x" * 129}, {"g": "y" * 129}])
    world.create("late", earliest=True, filter="true", group_header="g")
    world.ticks()
    assert world.counts("late") == (2, 0, 1, 0)
    world.survives()


@pytest.mark.parametrize("state", ["available", "in flight", "failed"])
def test_groups_do_not_change_under_messages(world: Grouped, state: str) -> None:
    world.grouped("a")
    if state != "available":
        claimed = world.claim()
    if state == "failed":
        world.commit(used(ops.Fail, claimed, final=True))
    for header in ("other", ""):
        with pytest.raises(Invalid, match="create another queue"):
            world.commit(ops.ConfigureQueue("q", ops.Settings(group_header=header)))
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_header="g", max_attempts=7)))
    assert world.about().settings.group_header == "g"


def test_an_empty_queue_gets_groups_and_loses_them(world: Grouped) -> None:
    for header in ("", "h", "", "g"):
        messages = world.grouped("a", "a")
        world.commit(used(ops.Ack, world.claim(2)))
        world.commit(ops.ConfigureQueue("q", ops.Settings(group_header=header)))
        assert type(world.queues.queues["q"]) is (GroupedState if header else QueueState)
        world.survives()
        assert world.state(messages[0]).state == "done"  # type: ignore[union-attr]
    assert world.about().acked == 8
    world.grouped("a", "a")
    assert world.claim().messages
    assert world.counts() == (0, 0, 1, 1)
    world.survives()


def test_a_queue_that_is_behind_gets_groups_and_reads_on(world: Grouped) -> None:
    world.create("p", paused=True, filter="true")
    world.grouped("a", "a")
    world.commit(ops.ConfigureQueue("p", ops.Settings(group_header="g")))
    world.commit(ops.ConfigureQueue("p", ops.Settings(paused=False)))
    world.ticks()
    assert world.counts("p") == (1, 0, 1, 0)
    world.survives()


# -- transactions, crashes --------------------------------------------------------------------------------------------


def refused(world: Grouped, *operations: Any) -> None:
    """A transaction that is refused after all of its operations leaves everything as it was."""
    before = world.memory()
    with pytest.raises(Conflict):
        world.commit(*operations, journal_ops.CheckHead("j", 9))
    assert world.memory() == before


def test_a_transaction_that_is_refused_leaves_groups_as_they_were(world: Grouped) -> None:
    world.commit(journal_ops.CreateJournal("j"))
    world.grouped(*"aaab", delay_ms=0)
    world.grouped("c", delay_ms=500)
    publish = ops.Publish([b"x"] * 5, [about(group) for group in ("a", "new", "new", "c", None)])
    refused(world, publish)
    refused(world, ops.Claim("q", 2), ops.Claim("q", 9))
    refused(world, publish, ops.Claim("q", 9))
    claimed = world.claim(2)
    for kind, options in ((ops.Ack, {}), (ops.Fail, {}), (ops.Fail, {"delay_ms": 9}), (ops.Fail, {"final": True})):
        refused(world, used(kind, claimed, **options))
        refused(world, used(kind, claimed, 0, **options), ops.Claim("q", 9), publish)
        refused(world, used(kind, claimed, **options), ops.Claim("q", 1), publish, ops.Claim("q", 9))
    world.commit(used(ops.Ack, claimed), ops.Claim("q", 9))
    world.survives()


def test_a_crash_at_any_step_finds_groups_as_they_were(world: Grouped) -> None:
    for step in range(3):
        world.grouped("a", "b/3", None, "a/1")
        world.survives()
        claimed = world.claim(3)
        world.survives()
        world.commit(used(ops.Fail, claimed, 0, delay_ms=100))
        world.survives()
        world.commit(used(ops.Ack, claimed, 1))
        world.survives()
        world.commit(used(ops.Extend, claimed, 2, lease_ms=50))
        world.survives()
        world.later(60)
        world.survives()
        world.later(60)
        world.survives()
        if step:
            world.commit(ops.WriteCheckpoint())
            world.survives()


def test_groups_are_in_the_bucket_and_nowhere_else(world: Grouped) -> None:
    world.create("plain", filter="true")
    messages = world.grouped("a", None, "b", "a")
    world.claim()
    world.commit(ops.WriteCheckpoint())
    found = {}
    with world.writer.view() as view:
        for name in ("q", "plain"):
            number = Config.decode(view.get(records.config_key(name)) or b"").number
            stored = view.get(records.queue_key(records.ACTIVE, number, 0)) or b""
            available, in_flight, groups = records.decode_active(stored)
            rows = [*available["message"].tolist(), *(flying.message for flying in in_flight)]
            found[name] = None if groups is None else dict(zip(rows, groups, strict=True))
    assert found == {"q": dict(zip(messages, [b"a", None, b"b", b"a"], strict=True)), "plain": None}
    world.survives()


def test_a_deleted_queue_with_groups_leaves_nothing(world: Grouped) -> None:
    world.grouped(*"aab", None)
    world.claim(2)
    world.commit(ops.DeleteQueue("q"))
    world.reopen()
    world.ticks()
    assert world.stored_bodies() == {}
    assert world.records(records.ACTIVE) == []


def test_blocked_messages_that_are_not_visible_yet_are_counted(world: Grouped) -> None:
    world.grouped("a", "b", delay_ms=5_000)
    world.grouped("a", "a", "b", "c")
    world.grouped("c", "a", None, delay_ms=2_000)
    world.grouped(*"d" * 3_000, delay_ms=1_000)

    def seen() -> tuple[int, int, int, int]:
        found = world.about()
        return found.available, found.delayed, found.blocked, found.blocked_delayed

    assert seen() == (1, 4, 5 + 2_999, 2 + 2_999)
    world.survives()
    world.later(1_000)
    assert seen() == (2, 3, 5 + 2_999, 2)
    claimed = world.claim()  # of c, so that what stands behind it is the first
    world.commit(used(ops.Ack, claimed))
    assert (world.about().delayed, world.about().blocked_delayed) == (4, 1)
    world.later(9_000)
    assert world.about().blocked_delayed == 0
