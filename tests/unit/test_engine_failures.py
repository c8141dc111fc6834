"""When something goes wrong in a group: whoever caused it fails, and everybody is told the truth."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

import detent
from detent.engine import Engine, Request, Ticket
from detent.errors import (
    Conflict,
    Invalid,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from detent.journal import AckIntent, Publisher
from detent.journal import operations as ops
from detent.kv import Batch
from detent.remote import ClientSession
from detent.transaction import Transaction
from world import World

PACKAGE = str(Path(detent.__file__).parent)


@pytest.fixture
def world() -> World:
    return World()


def outcomes(tickets: list[Ticket]) -> list[str]:
    return ["ok" if ticket.error is None else type(ticket.error).__name__ for ticket in tickets]


class TestOneBadTransaction:
    def test_an_unforeseen_error_fails_its_own_transaction_alone(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = ops.UpdateRegisters("bad", {"a": "1"})
        handler = world.machine.handlers[ops.UpdateRegisters]

        def explode(operation: ops.UpdateRegisters, context: object) -> object:
            if operation is broken:
                raise ZeroDivisionError("a bug")
            return handler(operation, context)

        monkeypatch.setitem(world.engine._handlers, ops.UpdateRegisters, explode)
        tickets = world.group(
            world.request(ops.Append("j", [b"first"]), answered=0),
            world.request(broken, answered=0),
            world.request(ops.Append("j", [b"last"]), answered=0),
        )
        assert outcomes(tickets) == ["ok", "Unavailable", "ok"]
        assert world.bodies("j") == [b"first", b"last"]
        assert world.append("j", b"next").offset == 2

    def test_a_limit_met_while_writing_hits_nobody_else(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.kv.base.BATCH_BYTES_MAX", 100_000)
        tickets = world.group(
            world.request(ops.Append("j", [b"small"]), answered=0),
            world.request(ops.Append("j", [bytes(200_000)]), answered=0),
            world.request(ops.Append("j", [b"small too"]), answered=0),
        )
        assert outcomes(tickets) == ["ok", "LimitExceeded", "ok"]
        assert world.bodies("j") == [b"small", b"small too"]

    def test_a_callback_that_fails_stops_nobody(self, world: World) -> None:
        answered = threading.Semaphore(0)

        def explode(tickets: list[Ticket]) -> None:
            answered.release(len(tickets))
            raise RuntimeError("the loop is closed")

        world.concurrent = True
        for _ in range(3):
            world.engine.submit(world.request(ops.Append("j", [b"x"])), explode)
        for _ in range(3):
            assert answered.acquire(timeout=10)
        assert world.append("j", b"y").offset == 3

    def test_a_reader_that_cannot_be_woken_undoes_no_commit(self, world: World) -> None:
        def explode() -> None:
            raise RuntimeError("gone")

        world.machine.watch.add("j", 0, explode)
        assert world.append("j", b"x").offset == 0
        assert world.append("j", b"y").offset == 1


class TestUnknownCommits:
    def test_refusals_that_rest_on_what_is_gone_are_taken_back(self, world: World) -> None:
        world.writer.fail_before = 1
        tickets = world.group(
            world.request(ops.UpdateRegisters("j", {"owner": "one"}), answered=0),
            world.request(ops.CheckRegisters("j", {"owner": None}), ops.Append("j", [b"x"]), answered=0),
        )
        assert outcomes(tickets) == ["Unavailable", "Unavailable"]
        assert not any(isinstance(ticket.error, Conflict) for ticket in tickets)

    def test_a_given_up_sequence_does_not_end_the_engine(self, world: World) -> None:
        world.writer.fail_after = 1
        tickets = world.group(
            world.request(ops.Append("j", [b"given up"]), answered=0),
            world.request(ops.Append("j", [b"next"]), answered=1),
        )
        assert outcomes(tickets)[1] == "ok"
        assert world.append("j", b"later").offset == 2

    def test_an_interrupt_after_the_sync_is_not_taken_for_a_failure(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = world.writer.commit

        def interrupted(batch: Batch) -> None:
            real(batch)
            raise KeyboardInterrupt

        monkeypatch.setattr(world.writer, "commit", interrupted)
        request = world.request(ops.Append("j", [b"x"]))
        ticket = Ticket(request)
        ticket.prepare_to_wait()
        with pytest.raises(KeyboardInterrupt):
            world.engine._run_group([ticket])
        monkeypatch.undo()
        assert ticket.outcome()[0].offset == 0
        assert world.append("j", b"y").offset == 1


class TestInterrupts:
    def test_a_storm_of_signals_wedges_nobody(self, world: World) -> None:
        """Ctrl-C may strike the main thread between any two steps, also while it commits for others."""
        world.concurrent = True
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("only the main thread gets signals")
        stop = threading.Event()
        counts = [0, 0]

        def work(index: int) -> None:
            session, sequence = world.engine.new_session(), 0
            while not stop.is_set():
                world.engine.commit(Request(session, sequence, sequence, [ops.Append("j", [b"w"])]))
                sequence += 1
                counts[index] += 1

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
        storm = threading.Thread(target=_storm, args=(stop, random.Random(1)), daemon=True)
        old = signal.signal(signal.SIGUSR1, _raise)
        struck = self._commit_under(world, [*threads, storm])
        signal.signal(signal.SIGUSR1, lambda *_: None)
        before = list(counts)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and any(now < then + 3 for now, then in zip(counts, before, strict=True)):
            time.sleep(0.01)
        grown = [now - then for now, then in zip(counts, before, strict=True)]
        stop.set()
        for thread in (*threads, storm):
            thread.join(10)
        signal.signal(signal.SIGUSR1, old)
        assert struck > 5
        assert all(count >= 3 for count in grown), f"stuck after {struck} signals"
        assert world.append("j", b"end")

    def _commit_under(self, world: World, threads: list[threading.Thread]) -> int:
        struck = 0
        started = False
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                if not started:
                    started = True
                    for thread in threads:
                        thread.start()
                session, sequence = world.engine.new_session(), 0
                while time.monotonic() < end:
                    world.engine.commit(Request(session, sequence, sequence, [ops.Append("j", [b"m"])]))
                    sequence += 1
            except KeyboardInterrupt:
                struck += 1
        return struck

    def test_an_interrupted_caller_does_not_hold_the_floor_down(self) -> None:
        session = ClientSession()
        session.open(b"s" * 16)
        session.begin([1])  # interrupted before the caller could keep it
        kept = session.begin([2])
        last = session.begin([3])
        assert kept is not None
        assert last is not None
        assert (kept.answered, last.answered) == (1, 1)
        session.end(kept)
        after = session.begin([4])
        assert after is not None
        assert after.answered == 2


def _raise(_: int, frame: FrameType | None) -> None:
    """Strike Detent's own code and the locks it uses, anywhere below the engine's commit, and nowhere else.

    Hooks of the garbage collector and of weak references run inside whatever is running, and cannot raise.
    """
    struck = "" if frame is None else frame.f_code.co_filename
    if struck != threading.__file__ and not struck.startswith(PACKAGE):
        return
    while frame is not None:
        if frame.f_code is Engine.commit.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


def _storm(stop: threading.Event, rng: random.Random) -> None:
    while not stop.wait(rng.random() * 0.01):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


class TestPublishersOfUnknownOutcome:
    def flaky(self, world: World, fail: list[bool]):
        def commit(operations: list[ops.Operation]) -> list[object]:
            results = world.commit(*operations)
            if fail and fail.pop(0):
                raise OutcomeUnknown("nobody answered")
            return results

        return Publisher(commit, now_ns=lambda: world.now_ms * 1_000_000, random=world.random.randbytes)

    def test_messages_are_kept_and_recognised(self, world: World) -> None:
        publisher = self.flaky(world, [True])
        with pytest.raises(OutcomeUnknown, match="do not publish them anew"):
            publisher.publish("j", [b"once"])
        publisher.publish("j", [b"next"])
        assert world.bodies("j") == [b"once", b"next"]

    def test_pending_ones_are_covered_by_the_next_intents(self, world: World) -> None:
        publisher = self.flaky(world, [True])
        with pytest.raises(OutcomeUnknown):
            publisher.publish_uncommitted("j", [b"once"])
        with pytest.raises(Invalid, match="settle"):
            publisher.build_ack_intents()
        publisher.settle()
        publisher.acknowledge(publisher.build_ack_intents())
        assert world.bodies("j") == [b"once"]

    def test_repeating_an_acknowledgement_rolls_nothing_back(self, world: World) -> None:
        publisher = self.flaky(world, [])
        publisher.publish_uncommitted("j", [b"one"])
        first = publisher.build_ack_intents()
        publisher.acknowledge(first)
        publisher.publish_uncommitted("j", [b"two"])
        publisher.acknowledge(first)
        publisher.acknowledge(publisher.build_ack_intents())
        assert world.bodies("j") == [b"one", b"two"]

    def test_a_refused_publish_leaves_nothing_pending(self, world: World) -> None:
        publisher = self.flaky(world, [])
        with pytest.raises(Invalid):
            publisher.publish_uncommitted("bad name", [b"x"])
        assert publisher.build_ack_intents() == []

    def test_intents_travel_as_bytes_and_know_their_store(self, world: World) -> None:
        publisher = self.flaky(world, [])
        publisher.publish_uncommitted("j", [b"x"])
        (intent,) = publisher.build_ack_intents()
        assert AckIntent.from_bytes(intent.to_bytes()) == intent
        with pytest.raises(NotFound, match="another store"):
            World(seed=2).commit(intent.operation())


class TestLimits:
    def test_keys_and_headers_count(self, world: World) -> None:
        for big in (
            ops.Append("j", [bytes(9 << 20)], [bytes(9 << 20)]),
            ops.Append("j", [b""] * 5, [bytes(15 << 20)] * 5),
        ):
            with pytest.raises(LimitExceeded):
                world.commit(big)
        world.commit(ops.Append("j", [b""] * 100, None, [{"h": "x" * 60_000}] * 100))
        assert world.reader.info("j").blocks > 4

    def test_a_transaction_as_a_whole(self, world: World) -> None:
        with pytest.raises(LimitExceeded, match="transaction"):
            world.commit(*[ops.Append("j", [bytes(15 << 20)]) for _ in range(10)])

    def test_arrow_batches_meet_the_same_limits(self, world: World) -> None:
        schema = pa.schema(
            [("key", pa.binary()), ("headers", pa.map_(pa.string(), pa.string())), ("body", pa.binary())]
        )

        def send(body: bytes, headers: list[tuple[str, str | None]], **options: object) -> None:
            batch = pa.record_batch([[None], [headers], [body]], schema=schema)
            data = batch.serialize() if not options else _compressed(batch)
            world.commit(ops.AppendBatch("j", data.to_pybytes()))

        with pytest.raises(LimitExceeded):
            send(bytes(17 << 20), [])
        with pytest.raises(LimitExceeded):
            send(b"", [(str(i), "v") for i in range(300)])
        with pytest.raises(LimitExceeded):
            send(b"", [("h", "v" * 70_000)])
        with pytest.raises(Invalid):
            send(b"", [("h", None)])
        with pytest.raises(Invalid, match="compression"):
            send(bytes(1 << 20), [], compression="zstd")
        send(b"fine", [("h", "v")])
        assert world.bodies("j") == [b"fine"]


def _compressed(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    return reader.read_next_message().serialize()


class TestTransactions:
    def test_a_transaction_is_committed_once(self, world: World) -> None:
        transaction = Transaction(lambda operations: world.commit(*operations))
        with transaction as t:
            t.append("j", b"x")
            t.commit()
        assert t.results[0].offset == 0
        for again in (t.commit, lambda: t.append("j", b"y")):
            with pytest.raises(Invalid, match="committed before"):
                again()
        assert world.bodies("j") == [b"x"]


def test_an_idle_engine_says_what_is_wrong_before_it_applies(world: World) -> None:
    world.writer.fail_before = 1
    with pytest.raises(Unavailable, match="not applied"):
        world.append("j", b"x")
