"""Which open transactions stay open past their journal's deadline, and what ends them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from detent.codec import journal as records
from detent.engine import Operation
from detent.errors import Corrupt, Fenced, Invalid, NotFound, ProducerTaken, RollBackHeld
from detent.journal import AckIntent, Publisher
from detent.journal import operations as ops
from detent.journal.producers import Producers
from detent.message import CONTINUE_TXN
from detent.verify import verify as verify_journals
from world import World

HOUR = 3600 * 1000
DAY = 24 * HOUR


@pytest.fixture
def world() -> World:
    world = World()
    world.commit(ops.CreateJournal("j", span_deadline_ms=HOUR))
    world.commit(ops.CreateJournal("log"))
    return world


def publisher_of(world: World, deadline_ms: int = 0) -> Publisher:
    producers = Producers(world.engine, world.writer, world.random.randbytes)
    return Publisher(
        lambda operations: world.commit(*operations),
        give=producers.give,
        now_ns=lambda: world.now_ms * 1_000_000,
        random=world.random.randbytes,
        deadline_ms=deadline_ms,
    )


def promised(world: World, holder: str = "log") -> AckIntent:
    """The promise for a pending message, which a checkpoint holds."""
    publisher = publisher_of(world)
    publisher.publish_uncommitted("j", [b"held"])
    (intent,) = publisher.build_ack_intents()
    world.commit(ops.Append(holder, [b"checkpoint"]), intent.hold(holder))
    return intent


def test_transaction_waits_as_long_as_its_publisher_asked(world: World) -> None:
    publisher = publisher_of(world, 14 * DAY)
    publisher.publish_uncommitted("j", [b"patient"])
    (intent,) = publisher.build_ack_intents()
    world.pass_time(7 * DAY)
    world.reopen()
    world.pass_time(7 * DAY - HOUR)
    assert list(verify_journals(world.writer)) == []
    world.commit(intent.operation())
    assert world.bodies("j") == [b"patient"]


def test_transaction_is_rolled_back_when_its_own_deadline_has_passed(world: World) -> None:
    publisher = publisher_of(world, 14 * DAY)
    publisher.publish_uncommitted("j", [b"patient"])
    (intent,) = publisher.build_ack_intents()
    world.pass_time(14 * DAY + 1)
    world.reopen()
    with pytest.raises(Fenced, match="rolled back"):
        world.commit(intent.operation())


def test_journal_with_longer_deadline_keeps_it(world: World) -> None:
    world.commit(ops.ConfigureJournal("j", span_deadline_ms=20 * DAY))
    publisher = publisher_of(world, 14 * DAY)
    publisher.publish_uncommitted("j", [b"patient"])
    world.pass_time(20 * DAY - 1)
    assert world.reader.info("j").open_spans == 1


def test_deadline_that_is_too_long_is_refused(world: World) -> None:
    operation = ops.AppendStamped(
        "j", [b"x"], None, None, b"\1" * 6, [160], [CONTINUE_TXN], deadline_ms=ops.SPAN_DEADLINE_MS_MAX + 1
    )
    with pytest.raises(Invalid, match="stays open for at most"):
        world.commit(operation)


def test_promised_transaction_outlives_every_deadline_while_its_checkpoint_stands(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    intent = promised(world)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.pass_time(400 * DAY)
            world.reopen()
            world.pass_time(1000)
    assert "the checkpoint in the journal log has promised it" in caplog.text
    assert list(verify_journals(world.writer)) == []
    world.commit(intent.operation())
    assert world.bodies("j") == [b"held"]
    with world.writer.view() as view:
        assert not list(view.scan(*records.OPEN_SPAN.range())), "nothing is left of the hold"


def test_deleted_checkpoint_holds_nothing(world: World) -> None:
    intent = promised(world)
    world.pass_time(2 * HOUR)
    assert world.reader.info("j").open_spans == 1
    world.commit(ops.DeleteJournal("log"))
    world.append("log", b"another journal of that name")
    world.pass_time(1000)
    assert (world.reader.info("j").open_spans, world.reader.info("j").aborted_spans) == (0, 1)
    with pytest.raises(Fenced, match="rolled back"):
        world.commit(intent.operation())


def test_older_acknowledgement_does_not_roll_back_what_is_promised(world: World) -> None:
    intent = promised(world)
    for clock in (intent.begun - 1, intent.begun, intent.clock - 1):
        older = msgspec.structs.replace(intent.operation(), clocks=[clock], begun=0)
        with pytest.raises(RollBackHeld, match="promised") as found:
            world.commit(older)
        assert found.value.holder == "log"
    assert world.reader.info("j").open_spans == 1
    world.commit(ops.DeleteJournal("log"))
    world.commit(msgspec.structs.replace(intent.operation(), clocks=[intent.begun - 1], begun=0))
    assert (world.bodies("j"), world.reader.info("j").open_spans) == ([], 0)


def test_checkpoint_that_promises_what_is_not_pending_is_refused(world: World) -> None:
    publisher = publisher_of(world)
    publisher.publish_uncommitted("j", [b"late"])
    (intent,) = publisher.build_ack_intents()
    world.pass_time(2 * HOUR)
    for wrong in (intent, msgspec.structs.replace(intent, producer=b"\7" * 6)):
        with pytest.raises(Fenced, match="not pending"):
            world.commit(ops.Append("log", [b"checkpoint"]), wrong.hold("log"))
    with pytest.raises(NotFound, match="no journal 'nothing'"):
        world.commit(intent.hold("nothing"))
    with pytest.raises(NotFound):
        world.commit(msgspec.structs.replace(intent, journal="nothing").hold("log"))
    with pytest.raises(Invalid, match="6 bytes"):
        world.commit(msgspec.structs.replace(intent, producer=b"short").hold("log"))
    assert world.bodies("log") == [], "nothing of such a transaction is applied"


def test_refused_transaction_holds_nothing(world: World) -> None:
    publisher = publisher_of(world)
    publisher.publish_uncommitted("j", [b"a"])
    (intent,) = publisher.build_ack_intents()
    with pytest.raises(NotFound):
        world.commit(intent.hold("log"), ops.TrimJournal("nothing", 1))
    world.pass_time(2 * HOUR)
    assert world.reader.info("j").aborted_spans == 1


def test_hold_and_roll_back_in_one_group_leave_the_hold(world: World) -> None:
    """The owner found the transaction overdue, and the checkpoint came before it could act on that."""
    publisher = publisher_of(world)
    publisher.publish_uncommitted("j", [b"a"])
    (intent,) = publisher.build_ack_intents()
    world.now_ms += 2 * HOUR
    world.session = world.engine.new_session()
    world.group(world.request(ops.Append("log", [b"checkpoint"]), intent.hold("log")), None)
    world.commit(intent.operation())
    assert world.bodies("j") == [b"a"]


def test_hold_needs_the_seal_of_the_promise(world: World) -> None:
    """Otherwise any client that may publish could keep the transactions of others open for ever."""
    intent = promised(world)
    producers = Producers(world.engine, world.writer)
    producers.admit([intent.hold("log")], "any key")
    for forged in (
        msgspec.structs.replace(intent, seal=b""),
        msgspec.structs.replace(intent, clock=intent.clock + 1),
        msgspec.structs.replace(intent, journal="log"),
    ):
        with pytest.raises(ProducerTaken, match="seal"):
            producers.admit([forged.hold("log")], "any key")


def test_roll_back_passes_over_journal_that_is_gone(world: World) -> None:
    world.commit(ops.CreateJournal("k"))
    world.commit(ops.CreateJournal("anew"))
    publisher = publisher_of(world, 14 * DAY)
    publisher.publish_uncommitted_many({"j": [b"a"], "k": [b"b"], "anew": [b"c"]})
    publisher.build_ack_intents()
    world.commit(ops.DeleteJournal("k"))
    world.commit(ops.DeleteJournal("anew"))
    world.commit(ops.CreateJournal("anew"))
    publisher.roll_back()
    assert (world.reader.info("j").open_spans, publisher.last_promised()) == (0, [])
    publisher.publish_uncommitted_many({"j": [b"d"], "k": [b"e"], "anew": [b"f"]})
    publisher.acknowledge(publisher.build_ack_intents())
    assert [world.bodies(name) for name in ("j", "k", "anew")] == [[b"d"], [b"e"], [b"f"]]
    assert list(verify_journals(world.writer)) == []


def test_roll_back_keeps_what_one_journal_refuses(world: World) -> None:
    world.commit(ops.CreateJournal("k"))
    publisher = publisher_of(world)
    publisher.publish_uncommitted_many({"j": [b"held"], "k": [b"dropped"]})
    held, _ = publisher.build_ack_intents()
    world.commit(ops.Append("log", [b"checkpoint"]), held.hold("log"))
    for _ in range(2):
        with pytest.raises(RollBackHeld):
            publisher.roll_back()
        assert [world.reader.info(name).open_spans for name in ("j", "k")] == [1, 0]
        assert publisher.last_promised() == [held]
    world.commit(ops.DeleteJournal("log"))
    publisher.roll_back()
    assert (world.reader.info("j").open_spans, publisher.last_promised()) == (0, [])


def test_clock_set_back_leaves_deadlines_and_holds() -> None:
    world = World()
    world.commit(ops.CreateJournal("j", span_deadline_ms=HOUR))
    world.commit(ops.CreateJournal("log"))
    intent = promised(world)
    before = dict(world.machine.open_spans)
    world.machine.set_back(HOUR, world.now_ms)
    assert before
    for key, span in world.machine.open_spans.items():
        assert span == before[key]._replace(opened_ms=before[key].opened_ms - HOUR)
    world.commit(intent.operation())
    assert world.bodies("j") == [b"held"]


def test_open_span_of_an_earlier_release_is_read() -> None:
    plain = records.OpenSpan(5)
    assert plain.encode() == records.encode_number(5), "one without more is written as it always was"
    assert records.OpenSpan.decode(records.encode_number(5)) == plain
    for span in (records.OpenSpan(5, 7), records.OpenSpan(5, 0, 3, 9), records.OpenSpan(5, 7, 3, 9)):
        assert records.OpenSpan.decode(span.encode()) == span
    damaged: list[Any] = [records.OpenSpan(5, 7).encode()[:-1], records.OpenSpan(5, 7, 3, 0).encode(), bytes(28)]
    for value in damaged:
        with pytest.raises(Corrupt):
            records.OpenSpan.decode(value)


def test_operations_of_a_hold_pass_the_wire() -> None:
    hold: Operation = AckIntent("j", b"123456", 9, 3, b"s" * 16).hold("log")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hold), type=ops.HoldSpan) == hold
