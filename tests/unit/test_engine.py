"""The engine: groups, refusals that stay alone, retries that are answered, failures that leave nothing behind."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import detent.engine.lead as lead_module
from detent.engine import Request, Ticket
from detent.engine.sessions import SESSION_IDLE_MS, decode_answers, encode_answers
from detent.errors import (
    Conflict,
    Fenced,
    Invalid,
    LimitExceeded,
    NotFound,
    SessionExpired,
    Unavailable,
)
from detent.journal import Publisher
from detent.journal import operations as ops
from detent.journal.publisher import decode_intents, encode_intents
from detent.kv import Batch
from detent.kv.memory import MemoryWriter
from detent.queue.calls import Outgoing, publish
from detent.queue.operations import PUBLISH_MESSAGES_MAX, Claim, CreateQueue
from world import World


@pytest.fixture
def world() -> World:
    return World()


class SlowWriter(MemoryWriter):
    """Commits wait until the test lets them go, so that others can queue up behind."""

    def __init__(self, space) -> None:
        super().__init__(space)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.commits = 0

    def commit(self, batch: Batch) -> None:
        self.entered.release()
        self.gate.acquire()
        super().commit(batch)
        self.commits += 1


def slow_world() -> tuple[World, SlowWriter]:
    world = World()
    writer = SlowWriter(world.space)
    world.writer = writer  # type: ignore[assignment]
    world.machine = type(world.machine)(writer)
    world.engine = type(world.engine)(writer, [world.machine], now_ms=lambda: world.now_ms)
    world.session = world.engine.new_session()
    world.concurrent = True
    return world, writer


class TestGroups:
    def test_those_who_wait_together_share_one_commit(self) -> None:
        world, writer = slow_world()
        requests = [world.request(ops.Append("j", [b"%d" % i])) for i in range(50)]
        results: dict[int, ops.Appended] = {}

        def run(index: int) -> None:
            results[index] = world.engine.commit(requests[index])[0]

        first = threading.Thread(target=run, args=(0,))
        first.start()
        writer.entered.acquire()
        others = [threading.Thread(target=run, args=(i,)) for i in range(1, 50)]
        for thread in others:
            thread.start()
        deadline = time.monotonic() + 10
        while len(world.engine._lead.waiting) < 49 and time.monotonic() < deadline:
            time.sleep(0.001)
        writer.gate.release()
        writer.entered.acquire()
        writer.gate.release()
        for thread in [first, *others]:
            thread.join(10)
            assert not thread.is_alive()
        assert writer.commits == 2
        assert sorted(result.offset for result in results.values()) == list(range(50))
        # One block holds what the group appended.
        assert world.reader is not None
        assert len(world.bodies("j")) == 50

    def test_asynchronous_and_synchronous_callers_mix(self, world: World) -> None:
        done: list[Ticket] = []
        finished = threading.Semaphore(0)

        def callback(tickets: list[Ticket]) -> None:
            done.extend(tickets)
            finished.release(len(tickets))

        def submit() -> None:
            for _ in range(50):
                world.engine.submit(world.request(ops.Append("j", [b"a"]), answered=0), callback)

        def commit() -> None:
            for _ in range(50):
                world.engine.commit(world.request(ops.Append("j", [b"s"]), answered=0))

        threads = [threading.Thread(target=target) for target in (submit, commit, submit, commit)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        for _ in range(100):
            assert finished.acquire(timeout=10)
        assert sorted(world.bodies("j")) == [b"a"] * 100 + [b"s"] * 100
        offsets = [ticket.outcome()[0].offset for ticket in done]
        assert len(set(offsets)) == 100

    def test_an_interrupted_waiter_never_has_to_lead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world, writer = slow_world()
        leader = threading.Thread(target=world.append, args=("j", b"leader"))
        leader.start()
        writer.entered.acquire()

        def interrupted(_: Ticket, _timeout: float) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Ticket, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                world.append("j", b"interrupted")
        follower = threading.Thread(target=world.append, args=("j", b"follower"))
        follower.start()
        writer.gate.release(5)
        for thread in (leader, follower):
            thread.join(10)
            assert not thread.is_alive()
        assert sorted(world.bodies("j")) == [b"follower", b"interrupted", b"leader"]


class TestRefusals:
    def test_a_failed_check_rejects_its_own_transaction_alone(self) -> None:
        world, writer = slow_world()
        outcomes: dict[str, object] = {}

        def run(name: str, *operations) -> None:
            try:
                outcomes[name] = world.engine.commit(world.request(*operations))
            except Conflict as error:
                outcomes[name] = error

        threads = [
            threading.Thread(target=run, args=("first", ops.Append("j", [b"1"]))),
            threading.Thread(target=run, args=("bad", ops.Append("j", [b"no"]), ops.CheckRegisters("j", {"a": "1"}))),
            threading.Thread(target=run, args=("last", ops.Append("j", [b"2"]))),
        ]
        threads[0].start()
        writer.entered.acquire()
        for thread in threads[1:]:
            thread.start()
            time.sleep(0.05)
        writer.gate.release(2)
        for thread in threads:
            thread.join(10)
        assert isinstance(outcomes["bad"], Conflict)
        assert world.bodies("j") == [b"1", b"2"]
        assert world.reader.info("j").next_position == 2

    def test_everything_of_a_refused_transaction_is_taken_back(self, world: World) -> None:
        world.append("j", b"kept")
        with pytest.raises(Conflict):
            world.commit(
                ops.CreateJournal("new", 1000),
                ops.Append("j", [b"a"], [b"k"], [{"h": "v"}]),
                ops.AppendStamped("j", [b"p"], None, None, b"\x01" * 6, [160], [1]),
                ops.UpdateRegisters("j", {"r": "1"}),
                ops.TrimJournal("j", 1),
                ops.ConfigureJournal("j", retention_bytes=5),
                ops.CheckHead("j", 99),
            )
        assert world.bodies("j") == [b"kept"]
        assert world.reader.names() == ["j"]
        info = world.reader.info("j")
        assert (info.registers, info.retention_bytes, info.open_spans, info.next_position) == ({}, 0, 0, 1)
        # And memory agrees with the disk: what follows behaves as if it had never been tried.
        assert world.append("j", b"next") == ops.Appended(1, 1, 1, 1)
        world.reopen()
        assert world.bodies("j") == [b"kept", b"next"]

    def test_an_unknown_operation_is_refused(self, world: World) -> None:
        class Strange(ops.Operation, frozen=True, tag=True, array_like=True):
            pass

        with pytest.raises(Invalid, match="Strange"):
            world.commit(Strange())

    def test_internal_operations_cannot_be_sent(self, world: World) -> None:
        world.append("j", b"x")
        with pytest.raises(Invalid):
            world.commit(ops.AbortSpan(1, 1))

    @pytest.mark.parametrize(
        ("session", "sequence", "answered", "operations", "error"),
        [
            (b"short", 0, 0, [ops.DeleteJournal("j")], Invalid),
            (b"s" * 16, 3, 4, [ops.DeleteJournal("j")], Invalid),
            (b"s" * 16, -1, 0, [ops.DeleteJournal("j")], Invalid),
            (b"s" * 16, 1 << 63, 0, [ops.DeleteJournal("j")], Invalid),
            (b"s" * 16, 0, 0, [], Invalid),
            (b"s" * 16, 0, 0, [ops.DeleteJournal("j")] * 10_001, LimitExceeded),
        ],
    )
    def test_malformed_requests(self, world: World, session, sequence, answered, operations, error) -> None:
        with pytest.raises(error):
            world.engine.commit(Request(session, sequence, answered, operations))


class TestRetries:
    def test_a_retry_gets_the_first_answer(self, world: World) -> None:
        request = world.request(ops.Append("j", [b"once"]))
        first = world.engine.commit(request)
        world.engine.commit(world.request(ops.Append("j", [b"between"]), answered=0))
        assert world.engine.commit(request) == first
        assert world.bodies("j") == [b"once", b"between"]

    def test_also_after_a_crash(self, world: World) -> None:
        request = world.request(ops.Append("j", [b"once"]), ops.UpdateRegisters("j", {"a": "1"}))
        first = world.engine.commit(request)
        world.reopen()
        assert world.engine.commit(request) == first
        assert world.bodies("j") == [b"once"]

    def test_also_in_the_same_group(self) -> None:
        world, writer = slow_world()
        first = world.request(ops.Append("j", [b"first"]))
        request = world.request(ops.Append("j", [b"once"]), answered=0)
        answers: list[object] = []
        blocker = threading.Thread(target=world.engine.commit, args=(first,))
        blocker.start()
        writer.entered.acquire()
        threads = [threading.Thread(target=lambda: answers.append(world.engine.commit(request))) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(world.engine._lead.waiting) < 3:
            time.sleep(0.001)
        writer.gate.release(2)
        for thread in threads:
            thread.join(10)
        assert answers[0] == answers[1] == answers[2]
        assert world.bodies("j") == [b"first", b"once"]

    def test_a_refused_transaction_may_be_tried_again(self, world: World) -> None:
        request = world.request(ops.CheckRegisters("j", {"a": "1"}), ops.Append("j", [b"x"]))
        with pytest.raises(Conflict):
            world.engine.commit(request)
        world.engine.commit(world.request(ops.UpdateRegisters("j", {"a": "1"}), answered=0))
        assert world.engine.commit(request)[1].committed == 1

    def test_what_was_answered_and_forgotten_is_refused_not_repeated(self, world: World) -> None:
        early = world.request(ops.Append("j", [b"early"]))
        world.engine.commit(early)
        world.append("j", b"later")  # says that all before it were answered
        with pytest.raises(Fenced, match="answered before"):
            world.engine.commit(early)
        world.reopen()
        with pytest.raises(Fenced, match="answered before"):
            world.engine.commit(early)
        assert world.bodies("j") == [b"early", b"later"]

    def test_an_idle_session_expires_and_stays_refused(self, world: World) -> None:
        request = world.request(ops.Append("j", [b"x"]))
        world.engine.commit(request)
        world.pass_time(SESSION_IDLE_MS + 1)
        for _ in range(2):
            with pytest.raises(SessionExpired):
                world.engine.commit(request)
            world.session = request.session
            world.reopen()
        assert world.bodies("j") == [b"x"]
        assert world.engine.new_session()[:8] > request.session[:8]

    def test_answer_records_do_not_pile_up(self, world: World) -> None:
        for i in range(500):
            world.append("j", b"%d" % i)
        with world.writer.view() as view:
            assert len(list(view.scan(b"\x07\x01\x01", b"\x07\x01\x02"))) <= 2
        world.pass_time(SESSION_IDLE_MS + 1)
        with world.writer.view() as view:
            assert not list(view.scan(b"\x07\x01\x01", b"\x07\x01\x02"))
        assert len(world.engine._sessions) == 0

    def test_out_of_order_answers_keep_what_is_outstanding(self, world: World) -> None:
        requests = [world.request(ops.Append("j", [b"%d" % i]), answered=0) for i in range(20)]
        answers = [world.engine.commit(request) for request in requests]
        world.reopen()
        assert [world.engine.commit(request) for request in requests] == answers
        assert len(world.bodies("j")) == 20

    def test_too_many_unacknowledged_answers(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.engine.sessions.ANSWERS_PER_SESSION_MAX", 5)
        for i in range(5):
            world.engine.commit(world.request(ops.Append("j", [b"%d" % i]), answered=0))
        with pytest.raises(LimitExceeded):
            world.engine.commit(world.request(ops.Append("j", [b"6"]), answered=0))
        assert world.engine.commit(world.request(ops.Append("j", [b"7"]), answered=5))

    def test_answers_round_trip(self) -> None:
        entries = [(b"s" * 16, 3, 7, b"answer"), (b"t" * 16, 0, 0, b"")]
        assert [entry[:4] for entry in decode_answers(encode_answers(entries, 99))] == entries


class TestFailures:
    def test_a_commit_that_failed_before_is_told_so_and_leaves_nothing(self, world: World) -> None:
        world.append("j", b"kept")
        world.writer.fail_before = 1
        with pytest.raises(Unavailable, match="not applied"):
            world.append("j", b"lost")
        assert world.writer.recoveries == 1
        assert world.bodies("j") == [b"kept"]
        assert world.append("j", b"next").offset == 1

    def test_a_commit_that_failed_after_it_was_durable_is_answered(self, world: World) -> None:
        world.writer.fail_after = 1
        assert world.append("j", b"in").offset == 0
        assert world.bodies("j") == [b"in"]
        assert world.append("j", b"next").offset == 1

    def test_a_retry_after_a_failed_commit_is_applied_once(self, world: World) -> None:
        request = world.request(ops.Append("j", [b"x"]))
        world.writer.fail_before = 2
        for _ in range(2):
            with pytest.raises(Unavailable):
                world.engine.commit(request)
        world.engine.commit(request)
        assert world.bodies("j") == [b"x"]

    def test_a_fenced_engine_refuses_for_ever(self, world: World) -> None:
        world.append("j", b"old")
        other = World(seed=1, space=world.space)
        other.append("j", b"new")
        for _ in range(2):
            with pytest.raises(Fenced):
                world.append("j", b"zombie")
        with pytest.raises(Fenced):
            world.engine.tick()
        assert other.bodies("j") == [b"old", b"new"]

    def test_a_broken_machine_fails_its_group_and_starts_over(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.append("j", b"kept")

        def explode(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(world.machine, "flush", explode)
        with pytest.raises(Unavailable, match="a bug"):
            world.append("j", b"lost")
        monkeypatch.undo()
        assert world.append("j", b"next").offset == 1
        assert world.bodies("j") == [b"kept", b"next"]

    def test_closing(self, world: World) -> None:
        world.engine.close()
        world.engine.close()
        with pytest.raises(Unavailable, match="closed"):
            world.append("j", b"late")


class TestBackPressure:
    def test_a_full_queue_refuses_asynchronous_callers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lead_module, "WAITING_TRANSACTIONS_MAX", 3)
        world, writer = slow_world()
        leader = threading.Thread(target=world.append, args=("j", b"leader"))
        leader.start()
        writer.entered.acquire()
        answered = threading.Semaphore(0)
        for i in range(3):
            world.engine.submit(
                world.request(ops.Append("j", [b"%d" % i]), answered=0), lambda tickets: answered.release(len(tickets))
            )
        with pytest.raises(LimitExceeded):
            world.engine.submit(world.request(ops.Append("j", [b"over"]), answered=0), lambda _: None)
        writer.gate.release(5)
        leader.join(10)
        for _ in range(3):
            assert answered.acquire(timeout=10)
        assert world.bodies("j") == [b"leader", b"0", b"1", b"2"]

    def test_a_synchronous_caller_waits_for_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lead_module, "WAITING_TRANSACTIONS_MAX", 1)
        monkeypatch.setattr(lead_module, "GROUP_TRANSACTIONS_MAX", 1)
        world, writer = slow_world()
        threads = [threading.Thread(target=world.append, args=("j", b"%d" % i)) for i in range(5)]
        for thread in threads:
            thread.start()
        writer.gate.release(20)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert sorted(world.bodies("j")) == [b"0", b"1", b"2", b"3", b"4"]

    def test_room_never_comes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lead_module, "WAITING_TRANSACTIONS_MAX", 1)
        monkeypatch.setattr(lead_module, "ROOM_WAIT_S", 0.05)
        world, writer = slow_world()
        threads = [threading.Thread(target=world.append, args=("j", b"%d" % i)) for i in range(2)]
        threads[0].start()
        writer.entered.acquire()
        threads[1].start()
        while not world.engine._lead.waiting:
            time.sleep(0.001)
        with pytest.raises(Unavailable, match="nothing was applied"):
            world.append("j", b"late")
        writer.gate.release(5)
        for thread in threads:
            thread.join(10)
        assert world.bodies("j") == [b"0", b"1"]


def test_time_never_goes_back(world: World) -> None:
    world.append("j", b"a")
    world.now_ms -= 60_000
    world.append("j", b"b")
    first, second = world.committed("j")
    assert second.published_ms >= first.published_ms
    assert second.clock > first.clock


def test_reads_of_a_missing_journal(world: World) -> None:
    with pytest.raises(NotFound):
        world.bodies("nothing")


class TestOneLimit:
    def test_a_transaction_takes_what_one_call_takes_even_if_all_messages_differ(self) -> None:
        messages = [Outgoing(b"x", delay=f"{number % 2}s") for number in range(PUBLISH_MESSAGES_MAX)]
        operations = publish(messages, "q")
        assert len(operations) == PUBLISH_MESSAGES_MAX
        Request(bytes(16), 0, 0, list(operations)).check()
        with pytest.raises(LimitExceeded, match="operations"):
            Request(bytes(16), 0, 0, [*operations, operations[0]]).check()

    def test_a_publisher_has_no_more_intents_than_a_transaction_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.publisher.JOURNALS_PER_TRANSACTION_MAX", 3)
        world = World()
        publisher = Publisher(lambda operations: world.commit(*operations), now_ns=lambda: world.now_ms * 1_000_000)
        publisher.publish_uncommitted_many({"a": [b"x"], "b": [b"x"]})
        with pytest.raises(LimitExceeded, match="at most 3 journals"):
            publisher.publish_uncommitted_many({"b": [b"x"], "c": [b"x"], "d": [b"x"]})
        publisher.publish_uncommitted_many({"b": [b"y"], "c": [b"x"]})
        publisher.acknowledge(decode_intents(encode_intents(publisher.build_ack_intents())))
        assert [world.bodies(name) for name in "abc"] == [[b"x"], [b"x", b"y"], [b"x"]]


class TestMachinesOfAGroup:
    """A group asks the machines that it has touched, and leaves the others alone."""

    def test_a_group_writes_and_announces_what_it_touched_alone(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        for machine in (world.machine, world.queues):
            for step in ("flush", "committed"):
                self._note(machine, step, asked, monkeypatch)
        world.commit(ops.Append("j", [b"a"]))
        assert asked == ["JournalMachine.flush", "JournalMachine.committed"]
        asked.clear()
        world.commit(CreateQueue("q"), ops.Append("j", [b"b"]))
        assert asked == [
            "JournalMachine.flush", "QueueMachine.flush", "JournalMachine.committed", "QueueMachine.committed",
        ]  # fmt: skip

    @staticmethod
    def _note(machine: Any, step: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        known = getattr(machine, step)

        def noted(*given: Any) -> None:
            asked.append(f"{type(machine).__name__}.{step}")
            known(*given)

        monkeypatch.setattr(machine, step, noted)

    def test_what_time_did_before_a_refused_operation_is_written_with_the_next_group(self, world: World) -> None:
        world.commit(CreateQueue("q"))
        world.commit(*publish([Outgoing(b"x")], "q"))
        world.commit(Claim("q", 1, 1_000, "me"))
        world.now_ms += 5_000
        with pytest.raises(NotFound):
            world.commit(Claim("none", 1, None, "me"))  # the lease ends, and the claim is refused
        assert world.queues.steps
        world.commit(ops.Append("j", [b"a"]))
        assert not world.queues.steps
