"""Which right an operation needs: all of them are in the table, and each asks for the right one."""

from __future__ import annotations

from typing import Any

import pytest

import detent
from detent.errors import Denied, StaleReceipt
from detent.journal import operations as journals
from detent.ledger import operations as ledgers
from detent.queue import operations as queues
from detent.queue import peeking, surveying
from detent.queue import reader_operations as readers
from detent.queue.filters import default_filter
from detent.remote import LocalOwner, rights
from detent.remote.wire import MACHINES
from detent.schedule import operations as schedules
from detent.server.access import UNCHECKED, Caller, Grant
from detent.server.keys import parse_grant
from detent.shard import operations as shards


class Notes:
    """A caller who may do everything, and notes what was asked for."""

    name = key = "notes"
    grants = UNCHECKED.grants

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def require(self, right: str, kind: str, name: str) -> None:
        self.asked.append((right, kind, name))

    def require_everywhere(self, right: str) -> None:
        self.asked.append((right, "everywhere"))


def test_every_operation_of_the_wire_is_in_the_table() -> None:
    assert set(rights.NEEDS) == {kind for machine in MACHINES for kind in machine.operations}


def test_every_field_of_the_table_is_one_of_its_operation() -> None:
    for kind, need in rights.NEEDS.items():
        for field in (need.field, need.also):
            assert field is None or field in kind.__struct_fields__


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        (queues.Publish([b"x"], to="q"), [("publish", "queue", "q")]),
        (queues.Publish([b"x"]), [("publish", "everywhere")]),
        (queues.Publish([b"x"], [{"queue": "q"}], to="q"), [("publish", "queue", "q")]),
        (queues.Publish([b"x"], [{"queue": "r"}], to="q"), [("publish", "queue", "q"), ("publish", "queue", "r")]),
        (queues.Claim("q"), [("consume", "queue", "q")]),
        (queues.Ack(1, [0], [1]), [("consume", "queue", "q")]),
        (queues.Fail(1, [0], [1]), [("consume", "queue", "q")]),
        (queues.Extend(1, [0], [1]), [("consume", "queue", "q")]),
        (queues.Unclaim(1, [0], [1]), [("consume", "queue", "q")]),
        (queues.ReadHeld(1, [0], [1]), [("consume", "queue", "q")]),
        (queues.Ack(7, [0], [1]), []),
        (queues.Ack(0, [0], [1]), []),
        (queues.Redrive("q"), [("admin", "queue", "q")]),
        (queues.Redrive("q", to="r"), [("admin", "queue", "q"), ("publish", "queue", "r")]),
        (queues.DescribeQueues("q"), [("read", "queue", "q")]),
        (queues.DescribeQueues(None, "q"), [("read", "everywhere")]),
        (surveying.SurveyQueues("q"), [("read", "everywhere")]),
        (queues.FindMessage(0), [("read", "everywhere")]),
        (queues.SetDedupWindow(1), [("admin", "everywhere")]),
        (queues.DeleteQueue("q"), [("admin", "queue", "q")]),
        (queues.CreateQueue("q"), [("admin", "queue", "q")]),
        (queues.CreateQueue("q", queues.Settings(filter=default_filter("q"))), [("admin", "queue", "q")]),
        (queues.CreateQueue("q", queues.Settings(filter="true")), [("admin", "queue", "q")]),
        (queues.ConfigureQueue("q", queues.Settings(dead_letter="d")),
         [("admin", "queue", "q"), ("publish", "queue", "d")]),
        (readers.OpenReader("q", "r"), [("consume", "queue", "q")]),
        (readers.Assign("q", "r", 1, 0, 1), [("consume", "queue", "q")]),
        (readers.AckAssigned("q", "r", 1, 1), [("consume", "queue", "q")]),
        (readers.ReadAssignment("q", "r", 1, 1), [("consume", "queue", "q")]),
        (readers.ReleaseReader("q", "r"), [("consume", "queue", "q")]),
        (readers.DeleteReader("q", "r"), [("consume", "queue", "q")]),
        (readers.DescribeReaders("q"), [("read", "queue", "q")]),
        (journals.Append("j", [b"x"]), [("publish", "journal", "j")]),
        (journals.CheckRegisters("j", {}), [("publish", "journal", "j")]),
        (journals.TrimJournal("j", 0), [("admin", "journal", "j")]),
        (ledgers.EnterLedger("l", "q", 0), [("publish", "ledger", "l")]),
        (ledgers.ResetLedger("l"), [("admin", "ledger", "l")]),
        (ledgers.DeleteLedger("l"), [("admin", "ledger", "l")]),
        (ledgers.DescribeLedgers(name="l"), [("read", "ledger", "l")]),
        (ledgers.DescribeLedgers("l"), [("read", "everywhere")]),
        (ledgers.PinOffsets("p", {"j": 1}), [("publish", "ledger", "p")]),
        (ledgers.Unpin("p"), [("admin", "ledger", "p")]),
        (ledgers.DeclareStream("p", {"journal j": 1}, {}), [("publish", "ledger", "p")]),
        (ledgers.DescribeStreams(), [("read", "everywhere")]),
        (ledgers.PlanOffsets("p", b"", b"", b"", {"j": 1}), [("consume", "ledger", "p")]),
        (ledgers.DescribePins("p"), [("read", "everywhere")]),
        (shards.RegisterConsumer("c", 1, ["j"]), [("consume", "consumer", "c")]),
        (shards.Heartbeat("c", "m", 1), [("consume", "consumer", "c")]),
        (shards.LeaseShard("c", 0, "m", 1), [("consume", "consumer", "c")]),
        (shards.ReleaseShards("c", "m"), [("consume", "consumer", "c")]),
        (shards.OpenShard("c", 0), [("consume", "consumer", "c")]),
        (shards.FindShard("c", 0), [("read", "consumer", "c")]),
        (shards.CommitShard("c", 0, 1, b""), [("consume", "consumer", "c")]),
        (shards.ReadShardState("c", 0, ["k"]), [("consume", "consumer", "c")]),
        (shards.ScanShardState("c", 0), [("consume", "consumer", "c")]),
        (shards.ReportShard("c", 0, 0), [("consume", "consumer", "c")]),
        (shards.DescribeConsumers(name="c"), [("read", "consumer", "c")]),
        (shards.DescribeConsumers("c"), [("read", "everywhere")]),
        (shards.PauseConsumer("c", True), [("admin", "consumer", "c")]),
        (shards.ResetShards("c", {"j": 0}), [("admin", "consumer", "c")]),
        (shards.DeleteConsumer("c"), [("admin", "consumer", "c")]),
        (schedules.PutSchedule("s", "queue", "q", every_ms=1000),
         [("admin", "schedule", "s"), ("publish", "queue", "q")]),
        (schedules.PutSchedule("s", "journal", "j", every_ms=1000),
         [("admin", "schedule", "s"), ("publish", "journal", "j")]),
        (schedules.PauseSchedule("s"), [("admin", "schedule", "s")]),
        (schedules.DeleteSchedule("s"), [("admin", "schedule", "s")]),
        (schedules.AskSchedule("s"), [("publish", "schedule", "s")]),
        (schedules.DescribeSchedules(name="s"), [("read", "schedule", "s")]),
        (schedules.DescribeSchedules("s"), [("read", "everywhere")]),
    ],
)  # fmt: skip
def test_what_is_asked_for(operation: Any, asked: list[tuple[str, ...]]) -> None:
    with detent.open("memory:") as store:
        store.queue("q").create()
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        notes = Notes()
        rights.require(notes, [operation], owner.queues)
        assert notes.asked == asked
        rights.require(UNCHECKED, [operation], owner.queues)


def test_one_operation_that_is_not_allowed_refuses_all() -> None:
    with detent.open("memory:") as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        caller = Caller("somebody", (Grant("publish", "journal", "a*"),))
        rights.require(caller, [journals.Append("a1", [b"x"]), journals.Append("a2", [b"x"])], owner.queues)
        with pytest.raises(Denied, match="somebody may not publish on the journal 'b'"):
            rights.require(caller, [journals.Append("a1", [b"x"]), journals.Append("b", [b"x"])], owner.queues)


def test_a_redrive_to_another_queue_needs_the_right_to_publish_there() -> None:
    with detent.open("memory:") as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        redrive = queues.Redrive("mine", to="yours")
        may = Caller("somebody", (Grant("admin", "queue", "mine"), Grant("publish", "queue", "yours")))
        rights.require(may, [redrive], owner.queues)
        for other in (Grant("consume", "queue", "yours"), Grant("publish", "queue", "others")):
            with pytest.raises(Denied, match="may not publish on the queue 'yours'"):
                rights.require(Caller("somebody", (may.grants[0], other)), [redrive], owner.queues)


def test_who_runs_a_consumer_need_not_be_allowed_to_reset_it() -> None:
    with detent.open("memory:") as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        runs = Caller("somebody", (parse_grant("consume:consumer:totals*"),))
        steers = Caller("somebody", (parse_grant("admin:consumer:totals"),))
        work = [shards.LeaseShard("totals", 0, "m", 1), shards.CommitShard("totals", 0, 1, b"")]
        for caller in (runs, steers):
            rights.require(caller, work, owner.queues)
        rights.require(steers, [shards.ResetShards("totals", {"j": 0})], owner.queues)
        with pytest.raises(Denied, match="somebody may not admin on the consumer 'totals'"):
            rights.require(runs, [*work, shards.ResetShards("totals", {"j": 0})], owner.queues)
        with pytest.raises(Denied, match="somebody may not consume on the consumer 'other'"):
            rights.require(runs, [shards.ReadShardState("other", 0, ["k"])], owner.queues)
        with pytest.raises(Denied, match="may not read on the whole store"):
            rights.require(runs, [shards.DescribeConsumers()], owner.queues)


def test_reading_looks_and_never_claims() -> None:
    with detent.open("memory:") as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        store.queue("q").create()
        viewer = Caller("viewer", (parse_grant("read:*:*"),))
        looks = [queues.DescribeQueues(), queues.ListFailed("q"), peeking.PeekMessages("q"), queues.FindMessage(0)]
        rights.require(viewer, looks, owner.queues)
        for change in (queues.Claim("q"), queues.Ack(1, [0], [1]), readers.OpenReader("q", "r"), queues.Purge("q")):
            with pytest.raises((Denied, StaleReceipt)):
                rights.require(viewer, [change], owner.queues)


def test_consuming_includes_reading_and_nothing_of_the_rest() -> None:
    assert [right for right in ("read", "publish", "consume", "admin") if rights.includes("consume", right)] == [
        "read",
        "consume",
    ]
    assert not any(rights.includes("publish", right) for right in ("read", "consume", "admin"))


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        (Grant("consume", "queue", "*"), True),
        (Grant("consume", "*", "*"), True),
        (Grant("admin", "queue", "*"), True),
        (Grant("consume", "queue", "?*"), False),
        (Grant("consume", "queue", "mine*"), False),
        (Grant("consume", "journal", "*"), False),
        (Grant("publish", "*", "*"), False),
    ],
)
def test_a_filter_needs_the_right_to_consume_all_queues(grant: Grant, allowed: bool) -> None:
    caller = Caller("somebody", (Grant("admin", "queue", "mine"), grant))
    settings = queues.Settings(filter="true")
    with detent.open("memory:") as store:
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        for operation in (queues.CreateQueue("mine", settings), queues.ConfigureQueue("mine", settings)):
            if allowed:
                rights.require(caller, [operation], owner.queues)
            else:
                with pytest.raises(Denied, match="may not give 'mine' a filter"):
                    rights.require(caller, [operation], owner.queues)


@pytest.mark.parametrize("kind", [queues.Ack, queues.Fail, queues.Extend])
def test_a_number_of_a_queue_that_is_not_the_callers_is_as_one_that_no_queue_has(kind: Any) -> None:
    caller = Caller("somebody", (Grant("admin", "queue", "mine"),))
    with detent.open("memory:") as store:
        store.queue("secret").create()
        number = store.queue("secret").info().number
        owner = store._connection.current
        assert isinstance(owner, LocalOwner)
        with pytest.raises(StaleReceipt) as unknown:
            store.commit([kind(number + 70, [0], [0])])
        with pytest.raises(StaleReceipt) as hidden:
            rights.require(caller, [kind(number, [0], [0])], owner.queues)
        assert str(hidden.value) == str(unknown.value).replace(str(number + 70), str(number))
        assert hidden.value.__cause__ is None
