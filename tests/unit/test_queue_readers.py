"""Readers of queues, one behaviour at a time: planning, reading again, being past it, releasing, and what survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detent.codec import queue as records
from detent.codec.published import FOREVER
from detent.codec.queue import Config
from detent.codec.reader import READER, ReaderRecord, reader_key
from detent.engine import Done, Operation
from detent.errors import (
    Conflict,
    Corrupt,
    DetentError,
    Fenced,
    Invalid,
    LimitExceeded,
    NotFound,
    StaleReceipt,
    Unavailable,
)
from detent.journal import operations as journal_ops
from detent.kv import Batch
from detent.queue import assigning, housekeeping
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.verify import verify
from queueworld import Queues, used

DAY_MS = 24 * 3600 * 1000
GROUPS = [{"queue": "q", "group": group} for group in "aabab"]


class Readers(Queues):
    """A world with shorter words for what readers do, and the generation that each of them was last told."""

    def __init__(self) -> None:
        super().__init__()
        self.generations: dict[str, int] = {}

    def open(self, reader: str = "r", queue: str = "q") -> int:
        """The last assignment that is done."""
        opened = self.commit(reader_ops.OpenReader(queue, reader))[0]
        self.generations[reader] = opened.generation
        return int(opened.acked)

    def base(self, reader: str = "r", queue: str = "q") -> tuple[str, str, int]:
        return queue, reader, self.generations[reader]

    def plan(self, start: int, count: int = 10, reader: str = "r", **options: Any) -> tuple[int, int]:
        """The number of an assignment, and how many messages it has."""
        found = self.commit(reader_ops.Assign(*self.base(reader), start, count, **options))[0]
        return found.number, found.count

    def page(self, number: int, after: int = 0, limit: int = 100, reader: str = "r") -> reader_ops.AssignedMessages:
        page: reader_ops.AssignedMessages = self.commit(
            reader_ops.ReadAssignment(*self.base(reader), number, after, limit)
        )[0]
        return page

    def read(self, number: int, reader: str = "r") -> list[int]:
        return self.page(number, reader=reader).messages

    def done(self, upto: int, reader: str = "r") -> None:
        assert self.commit(reader_ops.AckAssigned(*self.base(reader), upto)) == [Done()]

    def release(self, reader: str = "r", queue: str = "q") -> int:
        return int(self.commit(reader_ops.ReleaseReader(queue, reader))[0].count)

    def readers(self, queue: str = "q") -> dict[str, tuple[int, int]]:
        """By name, how far each has come, and how many messages it has."""
        found = self.commit(reader_ops.DescribeReaders(queue))[0].readers
        return {one.name: (one.acked, one.count) for one in found}

    def problems(self) -> list[str]:
        return [finding.problem for finding in verify(self.writer)]

    def refuses(self, kind: type[DetentError], *operations: Operation, match: str | None = None) -> None:
        """A transaction is refused, and changes nothing."""
        before = self.memory()
        with pytest.raises(kind, match=match):
            self.commit(*operations)
        assert self.memory() == before


@pytest.fixture
def world() -> Readers:
    made = Readers()
    made.create()
    made.open()
    return made


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Readers:
    """Ten messages a bucket."""
    default = Config.__new__.__defaults__
    assert default is not None
    monkeypatch.setattr(Config.__new__, "__defaults__", (1, *default[1:]))
    made = Readers()
    made.create()
    made.open()
    return made


@pytest.fixture
def grouped() -> Readers:
    made = Readers()
    made.create(group_header="group")
    made.open()
    return made


# -- opening ----------------------------------------------------------------------------------------------------


def test_a_reader_is_opened_once_and_then_found(world: Readers) -> None:
    first = world.commit(reader_ops.OpenReader("q", "other"))[0]
    commits = world.writer.commits
    assert world.commit(reader_ops.OpenReader("q", "other"))[0] == first
    assert world.writer.commits == commits
    world.reopen()
    assert world.commit(reader_ops.OpenReader("q", "other"))[0] == first
    assert first.acked == 0
    assert first.generation != world.generations["r"]


def test_opening_finds_how_far_a_reader_has_come(world: Readers) -> None:
    world.publish(3)
    world.plan(0, 2)
    assert world.open() == 0
    world.plan(1, 2)
    assert world.open() == 1


@pytest.mark.parametrize(("name", "kind"), [("", Invalid), ("x" * 257, LimitExceeded), ("\ud800", Invalid)])
def test_names_that_no_reader_has(world: Readers, name: str, kind: type[DetentError]) -> None:
    for operation in (reader_ops.OpenReader("q", name), reader_ops.ReleaseReader("q", name)):
        with pytest.raises(kind):
            world.commit(operation)
    assert list(world.readers()) == ["r"]


def test_the_longest_name_stands_with_each_message(world: Readers) -> None:
    name = "é" * 128
    world.publish(2)
    world.open(name)
    world.plan(0, 2, name)
    world.survives()
    world.commit(ops.WriteCheckpoint())
    world.survives()
    assert world.problems() == []
    assert world.read(1, name) == [0, 1]


def test_a_queue_has_so_many_readers(world: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_ops, "READERS_MAX", 3)
    world.open("s")
    world.open("t")
    world.refuses(LimitExceeded, reader_ops.OpenReader("q", "u"), match="delete one")
    world.open("t")
    world.commit(reader_ops.DeleteReader("q", "s"))
    world.open("u")
    assert sorted(world.readers()) == ["r", "t", "u"]


@pytest.mark.parametrize(
    "make",
    [
        lambda q, r: reader_ops.Assign(q, r, 1, 0, 1),
        lambda q, r: reader_ops.AckAssigned(q, r, 1, 0),
        lambda q, r: reader_ops.ReadAssignment(q, r, 1, 1),
        lambda q, r: reader_ops.ReleaseReader(q, r),
        lambda q, r: reader_ops.DeleteReader(q, r),
    ],
)
def test_what_is_not_there(world: Readers, make: Callable[[str, str], Operation]) -> None:
    world.refuses(NotFound, make("q", "nobody"), match="open it first")
    world.refuses(NotFound, make("none", "r"), match="no queue")
    world.refuses(NotFound, reader_ops.OpenReader("none", "r"))
    world.refuses(NotFound, reader_ops.DescribeReaders("none"))


@pytest.mark.parametrize(
    "operation",
    [
        reader_ops.Assign("q", "r", 1, -1, 1),
        reader_ops.Assign("q", "r", 1, 0, True),
        reader_ops.Assign("q", "r", 1, 0, 1, -1),
        reader_ops.OpenReader("q", 7),  # type: ignore[arg-type]
        reader_ops.ReadAssignment("q", "r", 1, 1.5),  # type: ignore[arg-type]
        reader_ops.Assign("q", "r", 1, 0, 0),
        reader_ops.Assign("q", "r", 1, 0, reader_ops.ASSIGNED_MAX + 1),
    ],
)
def test_what_is_no_operation(world: Readers, operation: Operation) -> None:
    world.publish()
    world.refuses(Invalid, operation)


# -- planning ---------------------------------------------------------------------------------------------------


def test_planning_from_a_number_acknowledges_all_up_to_it(world: Readers) -> None:
    world.publish(5)
    assert world.plan(0, 2) == (1, 2)
    assert world.about().in_flight == 2
    assert world.read(1) == [0, 1]
    assert world.plan(1, 2) == (2, 2)
    about = world.about()
    assert (about.acked, about.in_flight, about.available, about.done_kept) == (2, 2, 1, 2)
    assert world.read(2) == [2, 3]
    assert [world.state(message).state for message in range(5)] == [  # type: ignore[union-attr]
        *["done"] * 2,
        *["assigned"] * 2,
        "available",
    ]
    assert world.readers() == {"r": (1, 2)}
    assert sorted(world.stored_bodies()) == [2, 3, 4]
    world.survives()


def test_what_was_planned_and_not_read_of_is_answered_as_it_is(world: Readers) -> None:
    world.publish(2)
    first = world.commit(reader_ops.Assign(*world.base(), 0, 1))[0]
    assert first == reader_ops.Assigned(1, 1, world.now_ms, True)
    world.later(5_000)
    commits = world.writer.commits
    again = world.commit(reader_ops.Assign(*world.base(), 0, 100))[0]
    assert again == reader_ops.Assigned(1, 1, world.now_ms - 5_000, False)
    assert world.writer.commits == commits


def test_nothing_to_plan_is_no_assignment_and_what_is_done_counts(world: Readers) -> None:
    world.publish()
    assert world.plan(0) == (1, 1)
    assert world.plan(1) == (1, 0)
    assert world.about().acked == 1
    assert world.readers() == {"r": (1, 0)}
    commits = world.writer.commits
    assert world.plan(1) == (1, 0)
    assert world.writer.commits == commits
    world.survives()
    world.publish()
    assert world.plan(1) == (2, 1)


def test_a_retry_is_answered_and_not_repeated(world: Readers) -> None:
    world.publish(4)
    world.concurrent = True
    first = world.request(reader_ops.Assign(*world.base(), 0, 2))
    assert world.engine.commit(first) == [reader_ops.Assigned(1, 2, world.now_ms, True)]
    world.plan(1, 2)
    world.plan(2)
    assert world.engine.commit(first)[0].number == 1
    assert world.readers() == {"r": (2, 0)}


def test_a_paused_queue_gives_nothing_and_takes_what_is_done(world: Readers) -> None:
    world.publish(3)
    world.plan(0, 1)
    world.commit(ops.ConfigureQueue("q", ops.Settings(paused=True)))
    assert world.read(1) == [0]
    assert world.plan(0) == (1, 1)
    assert world.plan(1) == (1, 0)
    assert world.about().acked == 1
    world.commit(ops.ConfigureQueue("q", ops.Settings(paused=False)))
    world.ticks()
    assert world.plan(1) == (2, 2)


def test_the_most_urgent_first_then_the_oldest_and_every_16th_the_oldest_of_all() -> None:
    claims, plans = Readers(), Readers()
    for each in (claims, plans):
        each.create()
        each.open()
        each.urgent(*[200, 3, 128, 3] * 12)
    claimed = claims.claim(40)
    assert plans.plan(0, 40) == (1, 40)
    page = plans.page(1)
    assert page.messages == claimed.messages
    assert page.messages != sorted(page.messages)
    assert (page.priorities, page.attempts, page.records) == (claimed.priorities, claimed.attempts, claimed.records)
    plans.commit(ops.WriteCheckpoint())
    plans.reopen()
    assert plans.page(1) == page


def test_a_delayed_message_is_not_planned_before_its_time(world: Readers) -> None:
    world.publish(delay_ms=1_000)
    assert world.plan(0) == (0, 0)
    world.later(1_000)
    assert world.plan(0) == (1, 1)


def test_groups_are_planned_in_order_and_none_while_another_of_it_is_assigned(grouped: Readers) -> None:
    grouped.publish(5, headers=GROUPS)
    assert grouped.plan(0, 3) == (1, 3)
    assert grouped.read(1) == [0, 1, 3]
    assert grouped.claim(10).messages == [2, 4]
    grouped.survives()
    assert grouped.plan(1) == (1, 0)


def test_two_readers_share_a_queue_with_consumers(world: Readers) -> None:
    world.publish(6)
    world.open("s")
    world.plan(0, 2)
    assert world.claim(1).messages == [2]
    world.plan(0, 2, "s")
    assert (world.read(1), world.read(1, "s"), world.about().available) == ([0, 1], [3, 4], 1)
    world.plan(1, 5)
    assert (world.read(2), world.read(1, "s")) == ([5], [3, 4])
    world.survives()


def test_a_queue_with_too_many_in_flight_gives_none(world: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "IN_FLIGHT_MAX", 3)
    world.publish(6)
    assert world.plan(0, 5) == (1, 3)
    assert world.plan(1, 5) == (2, 3)  # what is done makes room
    world.open("s")
    world.publish(2)
    assert world.plan(0, 5, "s") == (0, 0)
    with pytest.raises(LimitExceeded):
        world.claim()


@pytest.mark.parametrize("start", [0, 1, 4, 1_000])
def test_a_number_that_cannot_be_is_refused(world: Readers, start: int) -> None:
    world.publish(4)
    for number in range(3):
        world.plan(number, 1)
    match = "deleted, or is older" if start < 2 else "of another store"
    world.refuses(Conflict, reader_ops.Assign(*world.base(), start, 1), match=match)
    world.refuses(Conflict, reader_ops.Assign(*world.base(), start, 1), match="`detent queue release q r`")
    assert world.read(3) == [2]


def test_the_way_out_can_be_typed(world: Readers) -> None:
    world.open("my query")
    with pytest.raises(Conflict, match="release q 'my query'`"):
        world.plan(1, reader="my query")


# -- limited in bytes -------------------------------------------------------------------------------------------


def publish_sizes(world: Readers, *sizes: int, headers: dict[str, str] | None = None) -> None:
    world.commit(ops.Publish([b"x" * size for size in sizes], [{"queue": "q", **(headers or {})}]))


@pytest.mark.parametrize(("bytes_max", "count"), [(1, 1), (10, 1), (29, 2), (30, 3), (59, 3), (60, 4), (1_000, 4)])
def test_an_assignment_limited_in_bytes(world: Readers, bytes_max: int, count: int) -> None:
    publish_sizes(world, 10, 10, 10)
    publish_sizes(world, 30)
    assert world.plan(0, bytes_max=bytes_max) == (1, count)
    assert world.read(1) == list(range(count))
    world.survives()
    assert world.claim(10).messages == list(range(count, 4))


def test_what_has_no_room_is_chosen_next_whatever_its_priority(tiny: Readers) -> None:
    publish_sizes(tiny, *[10] * 12)
    publish_sizes(tiny, 10, 10, headers={"priority": "3"})
    publish_sizes(tiny, *[10] * 12)
    assert tiny.plan(0, 30, bytes_max=30) == (1, 3)
    tiny.memory()
    assert tiny.read(1) == [12, 13, 0]
    assert tiny.plan(1, 30, bytes_max=200) == (2, 20)
    assert tiny.read(2) == [*range(1, 12), *range(14, 23)]
    tiny.survives()


def test_what_has_no_room_stays_in_its_group(grouped: Readers) -> None:
    for group, priority in zip("aabab", ("3", "3", "7", "9", "7"), strict=True):
        publish_sizes(grouped, 10, headers={"group": group, "priority": priority})
    assert grouped.plan(0, 10, bytes_max=20) == (1, 2)
    assert grouped.read(1) == [0, 1]
    grouped.survives()
    assert grouped.claim(10).messages == [2, 4]
    assert grouped.plan(1, 10, bytes_max=20) == (2, 1)


def test_only_so_many_records_are_looked_at(world: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_ops, "SIZED_RECORDS_MAX", 2)
    publish_sizes(world, 1, 1, 1)
    publish_sizes(world, 1)
    publish_sizes(world, 1)
    assert world.plan(0, 10, bytes_max=1_000) == (1, 4)
    assert world.plan(1, 10, bytes_max=1_000) == (2, 1)


def test_a_size_that_cannot_be_had_changes_nothing(busy: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: bytes) -> None:
        raise Corrupt("a body of type 07")

    with monkeypatch.context() as patch:
        patch.setattr(assigning, "PayloadRecord", unreadable)
        busy.refuses(Corrupt, reader_ops.Assign(*busy.base(), 1, 10, 1_000))
    assert busy.plan(1, 10, bytes_max=1_000)[0] == 2
    busy.survives()


def test_the_size_of_what_the_same_group_publishes(world: Readers) -> None:
    publish = world.request(ops.Publish([b"x" * 10, b"y" * 10], [{"queue": "q"}]), answered=0)
    plan = world.request(reader_ops.Assign(*world.base(), 0, 10, 10), answered=0)
    assert [ticket.error for ticket in world.group(publish, plan)] == [None, None]
    assert world.read(1) == [0]
    world.survives()


# -- reading ----------------------------------------------------------------------------------------------------


def test_an_assignment_is_read_page_by_page_in_its_order(tiny: Readers) -> None:
    tiny.urgent(*[200, 3] * 12)
    tiny.plan(0, 24)
    whole = tiny.page(1)
    pages = [tiny.page(1, after, 5) for after in range(0, 24, 5)]
    assert [message for page in pages for message in page.messages] == whole.messages
    assert [page.first_delivery for page in pages] == [whole.first_delivery + after for after in range(0, 24, 5)]
    assert [page.more for page in pages] == [True] * 4 + [False]
    assert b"".join(page.priorities for page in pages) == whole.priorities
    assert tiny.page(1, 24) == reader_ops.AssignedMessages(0, [], [], [], b"", False)


def test_delivery_numbers_are_fencing_tokens_that_stay(world: Readers) -> None:
    world.publish(2)
    before = world.claim(1)
    world.commit(used(ops.Fail, before, delay_ms=0))
    world.plan(0)
    page = world.page(1)
    assert page.messages == [0, 1]
    assert page.attempts == [2, 1]
    assert page.first_delivery > before.first_delivery
    world.commit(ops.WriteCheckpoint())
    world.reopen()
    assert world.page(1) == page


@pytest.mark.parametrize(("after", "limit"), [(4, 1), (0, 0), (0, reader_ops.PAGE_MAX + 1)])
def test_pages_that_there_are_not(world: Readers, after: int, limit: int) -> None:
    world.publish(3)
    world.plan(0)
    with pytest.raises(Invalid):
        world.page(1, after, limit)


def test_assignments_that_there_are_not(world: Readers) -> None:
    world.publish(2)
    with pytest.raises(NotFound, match="the last one is 0"):
        world.page(1)
    world.plan(0, 1)
    with pytest.raises(NotFound, match="the last one is 1"):
        world.page(2)
    with pytest.raises(NotFound, match="acknowledged"):
        world.page(0)
    world.plan(1, 1)
    with pytest.raises(NotFound, match="cannot be read again"):
        world.page(1)


# -- acknowledging without planning -----------------------------------------------------------------------------


def test_done_without_planning_on(world: Readers) -> None:
    world.publish(3)
    world.plan(0, 2)
    world.done(0)
    assert world.about().acked == 0
    world.done(1)
    assert (world.about().acked, world.readers()) == (2, {"r": (1, 0)})
    commits = world.writer.commits
    world.done(1)
    world.done(0)
    assert world.writer.commits == commits
    world.survives()
    assert world.plan(1) == (2, 1)
    world.refuses(Conflict, reader_ops.AckAssigned(*world.base(), 3), match="the last one is 2")


def test_done_messages_are_remembered_for_their_time(world: Readers) -> None:
    world.publish()
    world.plan(0)
    world.done(1)
    assert world.state(0).state == "done"  # type: ignore[union-attr]
    world.pass_time(ops.DONE_RETENTION_S * 1000 + 1)
    world.ticks()
    assert world.state(0) is None


# -- assigned messages, and all that happens to messages ----------------------------------------------------------


def test_no_time_takes_an_assigned_message(world: Readers) -> None:
    world.publish(2)
    world.plan(0)
    for _ in range(3):
        world.pass_time(ops.LEASE_MS_MAX)
        world.ticks()
        world.reopen()
        assert world.read(1) == [0, 1]
    assert world.about().in_flight == 2
    world.ticks()
    assert len(world.queues.wheel) == 0


def test_an_assigned_message_outlives_its_retention_and_goes_when_it_comes_back(world: Readers) -> None:
    world.publish(2, retention_s=1)
    world.plan(0)
    world.pass_time(DAY_MS)
    assert sorted(world.stored_bodies()) == [0, 1]
    world.reopen()
    assert world.read(1) == [0, 1]
    assert world.release() == 2
    about = world.about()
    assert (about.available, about.delayed, about.in_flight, about.expired) == (0, 0, 0, 2)
    assert world.stored_bodies() == {}
    world.survives()


def test_an_assigned_message_is_done_after_its_retention(world: Readers) -> None:
    world.publish(retention_s=1)
    world.plan(0)
    world.pass_time(DAY_MS)
    assert world.plan(1) == (1, 0)
    assert (world.about().acked, world.about().expired, world.stored_bodies()) == (1, 0, {})


@pytest.mark.parametrize("kind", [ops.Ack, ops.Fail, ops.Extend])
def test_a_receipt_of_an_assigned_message_is_worth_nothing(world: Readers, kind: type[Any]) -> None:
    world.publish(2)
    world.plan(0)
    page = world.page(1)
    number = world.about().number
    world.refuses(StaleReceipt, kind(number, [0], [page.first_delivery]), match="assigned to the reader 'r'")
    assert world.commit(ops.ReadHeld(number, page.messages, [page.first_delivery + i for i in range(2)])) == [
        ops.HeldMessages([], [])
    ]


def test_a_purge_leaves_what_is_assigned(world: Readers) -> None:
    world.publish(3)
    world.plan(0, 2)
    assert world.commit(ops.Purge("q"))[0].count == 1
    assert world.read(1) == [0, 1]
    world.survives()


def test_a_redrive_does_not_bring_a_message_twice_to_a_queue(world: Readers) -> None:
    world.create("all", filter="true")
    world.publish()
    world.commit(used(ops.Fail, world.claim(queue="all"), final=True))
    world.plan(0)
    world.refuses(DetentError, ops.Redrive("all", [0], to="q"), match="already")
    assert world.commit(ops.Redrive("all", to="q"))[0].count == 0
    assert world.commit(ops.Redrive("all"))[0].count == 1
    assert world.read(1) == [0]


def test_a_dead_letter_that_is_assigned_there_stays_where_it_failed(world: Readers) -> None:
    world.create("all", filter="true", dead_letter="q")
    world.publish()
    world.plan(0)
    world.commit(used(ops.Fail, world.claim(queue="all"), final=True))
    assert (world.about("all").failed, world.about().routed) == (1, 1)
    world.survives()


def test_a_released_message_that_failed_before_has_its_history(world: Readers) -> None:
    world.publish()
    world.commit(used(ops.Fail, world.claim(consumer="me"), reason="no", delay_ms=0))
    world.plan(0)
    world.release()
    state = world.state(0)
    assert state is not None
    assert (state.state, state.attempts, [why for *_, why in state.history]) == ("available", 1, ["no"])
    world.commit(ops.WriteCheckpoint())
    assert world.problems() == []


def test_a_queue_that_is_regrouped_keeps_its_readers(world: Readers) -> None:
    world.publish()
    world.plan(0)
    world.refuses(Invalid, ops.ConfigureQueue("q", ops.Settings(group_header="g")), match="holds messages")
    world.done(1)
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_header="g")))
    world.survives()
    published = world.publish()
    assert world.plan(1) == (2, 1)
    assert world.read(2) == published
    world.survives()


# -- releasing, deleting ----------------------------------------------------------------------------------------


def test_a_release_gives_all_back_at_once_and_fences(tiny: Readers) -> None:
    tiny.publish(25)
    old = tiny.claim(1)
    tiny.plan(0, 20)
    stale = tiny.base()
    assert tiny.release() == 20
    about = tiny.about()
    assert (about.available, about.in_flight, about.failed) == (24, 1, 0)
    assert {tiny.state(message).attempts for message in range(1, 25)} == {0}  # type: ignore[union-attr]
    for operation in (
        reader_ops.Assign(*stale, 1, 1),
        reader_ops.Assign(*stale, 0, 1),
        reader_ops.AckAssigned(*stale, 1),
        reader_ops.ReadAssignment(*stale, 1),
    ):
        tiny.refuses(Fenced, operation, match="released")
    tiny.survives()
    assert tiny.open() == 0
    assert tiny.generations["r"] > stale[2]
    assert tiny.plan(0, 30) == (1, 24)
    assert tiny.read(1) == list(range(1, 25))
    tiny.commit(used(ops.Ack, old))
    tiny.survives()


def test_a_release_of_nothing_fences_too(world: Readers) -> None:
    world.publish()
    world.plan(0)
    world.done(1)
    stale = world.base()
    assert world.release() == 0
    world.refuses(Fenced, reader_ops.Assign(*stale, 1, 1))
    assert world.open() == 0
    world.survives()


def test_released_messages_of_groups_stand_before_those_that_came_later(grouped: Readers) -> None:
    grouped.publish(5, headers=GROUPS)
    grouped.plan(0, 3)
    grouped.publish(1, headers=GROUPS[:1])
    assert grouped.release() == 3
    grouped.survives()
    assert grouped.claim(10).messages == [0, 1, 3, 5, 2, 4]


def test_a_message_that_was_tried_as_often_as_it_is_counted_comes_back(
    world: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "ATTEMPTS_MAX", 2)
    world.commit(ops.ConfigureQueue("q", ops.Settings(max_attempts=0, backoff_ms=0)))
    world.publish()
    for _ in range(4):
        world.commit(used(ops.Fail, world.claim()))
    world.plan(0)
    world.release()
    assert world.state(0).attempts == 2  # type: ignore[union-attr]


def test_a_reader_that_has_messages_is_not_deleted(world: Readers) -> None:
    world.publish()
    world.plan(0)
    world.refuses(Conflict, reader_ops.DeleteReader("q", "r"), match="1 messages are assigned .*release it first")
    world.release()
    assert world.commit(reader_ops.DeleteReader("q", "r")) == [Done()]
    assert (world.readers(), world.records(READER)) == ({}, [])
    world.survives()
    with pytest.raises(NotFound):
        world.plan(0)


def test_no_generation_comes_again(world: Readers) -> None:
    """Or a zombie could acknowledge what it has never seen."""
    seen = [world.generations["r"]]
    world.release()
    world.open()
    seen.append(world.generations["r"])
    world.commit(reader_ops.DeleteReader("q", "r"))
    world.reopen()
    world.open()
    seen.append(world.generations["r"])
    world.commit(ops.DeleteQueue("q"))
    world.ticks()
    world.create()
    world.reopen()
    world.open()
    seen.append(world.generations["r"])
    assert sorted(set(seen)) == seen
    world.publish()
    world.plan(0)
    for generation in seen[:-1]:
        world.refuses(Fenced, reader_ops.AckAssigned("q", "r", generation, 1))


@pytest.mark.parametrize("assigned", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_deleted_queue_takes_its_readers_along(
    tiny: Readers, monkeypatch: pytest.MonkeyPatch, assigned: bool, checkpointed: bool
) -> None:
    monkeypatch.setattr(housekeeping, "COLLECT_BUCKETS", 1)
    monkeypatch.setattr(housekeeping, "COLLECT_RECORDS", 2)
    tiny.publish(35)
    tiny.open("s")
    if assigned:
        tiny.plan(0, 30)
    if checkpointed:
        tiny.commit(ops.WriteCheckpoint())
    tiny.commit(reader_ops.DeleteReader("q", "s"))
    stale = tiny.base()
    tiny.commit(ops.DeleteQueue("q"))
    assert tiny.records(READER) == []
    assert tiny.problems() == []
    tiny.refuses(NotFound, reader_ops.Assign(*stale, 1, 1))
    tiny.survives()
    tiny.create()
    tiny.reopen()
    tiny.refuses(NotFound, reader_ops.ReadAssignment(*stale, 1))
    tiny.open()
    assert tiny.plan(0) == (0, 0)
    tiny.refuses(Fenced, reader_ops.Assign(*stale, 0, 1))
    assert tiny.problems() == []
    tiny.ticks()
    assert tiny.stored_bodies() == {}
    assert [key for key in tiny.records(records.ACTIVE) if key[3:7] == (1).to_bytes(4, "big")] == []
    assert tiny.problems() == []


def test_a_reader_opened_another_deleted_and_their_queue_too_in_one_group(world: Readers) -> None:
    world.concurrent = True
    opened = world.request(reader_ops.OpenReader("q", "new"))
    deleted = world.request(reader_ops.DeleteReader("q", "r"))
    gone = world.request(ops.DeleteQueue("q"))
    assert [ticket.error for ticket in world.group(opened, deleted, gone)] == [None] * 3
    assert world.records(READER) == []
    world.survives()


# -- refused transactions, failed commits, restarts -------------------------------------------------------------


def refused_after(world: Readers, *operations: Operation) -> None:
    """A transaction does all this, and then a check in it fails."""
    world.refuses(Conflict, *operations, journal_ops.CheckHead("j", 99))
    world.survives()


@pytest.fixture(params=["plain", "grouped"])
def busy(request: pytest.FixtureRequest) -> Readers:
    """A queue with all kinds of messages, and an assignment."""
    made = Readers()
    made.create(backoff_ms=0, **({"group_header": "group"} if request.param == "grouped" else {}))
    made.commit(journal_ops.CreateJournal("j"))
    made.open()
    made.publish(5, headers=GROUPS)
    made.commit(used(ops.Fail, made.claim(2), reason="no"))
    made.urgent(3, 200, 3)
    made.plan(0, 5)
    return made


def test_what_is_refused_is_taken_back(busy: Readers) -> None:
    base = busy.base()
    refused_after(busy, reader_ops.Assign(*base, 1, 2))
    refused_after(busy, reader_ops.Assign(*base, 1, 10, 9))
    refused_after(busy, reader_ops.AckAssigned(*base, 1))
    refused_after(busy, reader_ops.ReleaseReader("q", "r"))
    refused_after(busy, reader_ops.ReleaseReader("q", "r"), ops.Claim("q", 10))
    refused_after(busy, reader_ops.OpenReader("q", "new"))
    refused_after(busy, reader_ops.ReleaseReader("q", "r"), reader_ops.DeleteReader("q", "r"))
    refused_after(busy, ops.CreateQueue("p"), reader_ops.OpenReader("p", "r"))
    refused_after(busy, ops.Publish([b"x"], [{"queue": "q"}]), reader_ops.Assign(*base, 1, 10))
    assert busy.read(1) == busy.read(1)
    assert busy.plan(1, 10)[0] == 2


def test_after_all_is_released_and_refused_it_is_released_for_good(busy: Readers) -> None:
    messages = busy.read(1)
    refused_after(busy, reader_ops.ReleaseReader("q", "r"))
    assert busy.read(1) == messages
    busy.release()
    busy.survives()
    busy.open()
    busy.plan(0, 20)
    assert len(busy.read(1)) == 8


@pytest.mark.parametrize("fault", ["fail_before", "fail_after"])
def test_a_commit_that_fails(busy: Readers, fault: str) -> None:
    busy.open("s")
    for operation in (
        reader_ops.Assign(*busy.base("s"), 0, 1),
        reader_ops.Assign(*busy.base(), 1, 2),
        reader_ops.AckAssigned(*busy.base(), 2),
        reader_ops.OpenReader("q", "t"),
        reader_ops.ReleaseReader("q", "s"),
        reader_ops.DeleteReader("q", "s"),
    ):
        before = busy.memory()
        setattr(busy.writer, fault, 1)
        if fault == "fail_before":
            with pytest.raises(Unavailable):
                busy.commit(operation)
            assert busy.memory() == before
        busy.commit(operation)
        assert busy.memory() != before
        busy.survives()


def test_a_restart_after_each_step(busy: Readers) -> None:
    number = 1
    while busy.about().available or busy.about().in_flight:
        messages = busy.read(number)
        for checkpointed in (False, True):
            if checkpointed:
                busy.commit(ops.WriteCheckpoint())
            busy.survives()
            assert busy.problems() == []
            assert busy.read(number) == messages
            assert busy.plan(number - 1) == (number, len(messages))
        found, count = busy.plan(number, 1)
        assert found == number + bool(count)
        number = found
        busy.survives()
    assert (busy.about().acked, busy.stored_bodies()) == (8, {})


# -- what is stored ---------------------------------------------------------------------------------------------


def put(world: Readers, key: bytes, value: bytes | None) -> None:
    batch = Batch()
    if value is None:
        batch.delete(key)
    else:
        batch.put(key, value)
    world.writer.commit(batch)


def damage(world: Readers, **changes: int) -> Callable[[], None]:
    def change() -> None:
        key = reader_key(1, "r")
        with world.writer.view() as view:
            stored = view.get(key)
        assert stored is not None
        put(world, key, ReaderRecord.decode(stored)._replace(**changes).encode())

    return change


@pytest.mark.parametrize(
    ("how", "problem", "loads"),
    [
        (lambda w: damage(w, length=1), "others are in flight for it", False),
        (lambda w: damage(w, first_delivery=1), "others are in flight for it", False),
        (lambda w: damage(w, length=0, first_delivery=0, assigned_ms=0), "others are in flight for it", False),
        (lambda w: damage(w, assigned_ms=5), "at another time", True),
        (lambda w: damage(w, generation=99), "numbers that come next", True),
        (lambda w: damage(w, opened_ms=-1), "impossible time", True),
        (lambda w: lambda: put(w, reader_key(1, "r"), None), "which is no reader", False),
        (lambda w: lambda: put(w, reader_key(1, "r"), b"short"), "bytes expected", False),
        (lambda w: lambda: put(w, reader_key(1, "x" * 257), ReaderRecord(1, 0, 0).encode()), "over the limit", True),
        (lambda w: lambda: put(w, reader_key(9, "r"), ReaderRecord(1, 0, 0).encode()), "does not exist", False),
        (lambda w: lambda: put(w, reader_key(1, ""), ReaderRecord(1, 0, 0).encode()), "it has no name", False),
        (lambda w: lambda: put(w, READER.raw + b"\0\0\0\1\xff", ReaderRecord(1, 0, 0).encode()), "not UTF-8", False),
        (lambda w: lambda: put(w, READER.raw + b"\0", b""), "malformed", False),
    ],
)
def test_damage_is_named(
    world: Readers, how: Callable[[Readers], Callable[[], None]], problem: str, loads: bool
) -> None:
    world.publish(3)
    world.plan(0, 2)
    world.commit(ops.WriteCheckpoint())
    assert world.problems() == []
    how(world)()
    assert any(problem in found for found in world.problems()), world.problems()
    if not loads:
        with pytest.raises(Corrupt):
            world.reopen()


def test_messages_assigned_to_a_reader_of_a_deleted_queue_are_no_damage(world: Readers) -> None:
    world.publish(3)
    world.plan(0, 2)
    world.commit(ops.DeleteQueue("q"))
    world.reopen()
    assert world.problems() == []
    put(world, reader_key(1, "r"), ReaderRecord(1, 0, 0).encode())
    assert any("a queue that nobody reads" in found for found in world.problems())


def test_the_state_log_of_a_reader_that_is_not_there_is_corrupt(world: Readers) -> None:
    world.publish()
    world.commit(ops.WriteCheckpoint())
    world.plan(0)
    put(world, reader_key(1, "r"), None)
    with pytest.raises(Corrupt, match="does not fit"):
        world.reopen()


def test_an_assigned_message_in_the_bucket_has_no_end(world: Readers) -> None:
    world.publish()
    world.plan(0)
    world.commit(ops.WriteCheckpoint())
    with world.writer.view() as view:
        stored = view.get(records.queue_key(records.ACTIVE, 1, 0))
        record = view.get(reader_key(1, "r"))
    assert stored is not None
    assert record is not None
    _, (flying,), _ = records.decode_active(stored)
    assert (flying.lease_ms, flying.consumer, flying.attempts) == (FOREVER, "r", 1)
    assert ReaderRecord.decode(record) == ReaderRecord(1, world.now_ms, 0, world.now_ms, flying.delivery, 1)
