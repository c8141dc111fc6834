"""Seventeen ways in which other systems of this kind have lost or doubled messages, and that they cannot happen here.

H6, H7 and H8 of databases are in test_state_sql.py, with a real PostgreSQL.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import detent
from detent.consumer import Consumer, Source
from detent.errors import Fenced, Invalid, NotFound, OutcomeUnknown
from detent.journal import Publisher
from detent.message import ACK_TXN, CONTINUE_TXN, Envelope, Sequencer
from detent.message.clock import COUNTER_BITS, STEP_NS
from detent.state import Checkpoint
from processes import eventually
from shardunit import GatedState, PendingState, committed, echo, letters, living, rows, shard_of

HOUR = 3_600_000_000_000 // STEP_NS << COUNTER_BITS


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as store:
        yield store


def collecting(read: Any, seen: list[bytes], **options: Any) -> Consumer:
    """Notes what reaches the application."""
    app = Consumer("c", read=read, state=options.pop("state", None) or PendingState(), **options)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        seen.append(message.body)

    return app


def test_h1_the_next_transactions_message_before_the_last_acknowledgement(store: detent.Store) -> None:
    """It would be rolled back by it. While a commit takes its time, the next transaction's messages stay in memory."""
    state = GatedState()
    state.gate.shut()
    with living(shard_of(store, echo(state=state))) as life:
        for number in range(10):
            store.journal("in").append(b"%d" % number)
        state.gate.wait_reached()
        stored = letters(store, "out")
        eventually(lambda: life.shard._sources.offsets()["in"] == 10, what="the rest consumed")
        assert letters(store, "out") == stored
        state.gate.open()
        life.wait_processed(**{"in": 10})
    assert committed(store, "out") == [b"%d" % number for number in range(10)]


def test_h2_a_clock_that_ticked_outside_of_the_order_of_appends(store: detent.Store) -> None:
    """Transaction after transaction, clocks in the journal rise with positions."""
    app = echo()
    with living(shard_of(store, app)) as life:
        for number in range(20):
            store.journal("in").append(b"%d" % number)
        life.wait_processed(**{"in": 20})
    assert all(low.clock < high.clock for low, high in pairwise(rows(store, "out")))
    assert len(committed(store, "out")) == 20


def test_h3_an_old_acknowledgement_after_newer_messages_of_a_live_producer(store: detent.Store) -> None:
    """A shard that starts over sends its checkpoint's acknowledgements again; whatever it publishes then is another
    producer's, so nothing is rolled back."""
    app = echo()
    store.journal("in").append(b"a")
    shard_of(store, app).run(once=True)
    first = shard_of(store, app)
    checkpoint = Checkpoint(intents={"": [intent_of(store, "out")]})
    store.journal("in").append(b"b")
    first.run(once=True)
    again = shard_of(store, app)
    again._outlets.recover(checkpoint.intents, is_reset=False)  # once more, behind newer messages
    again.run(once=True)
    assert committed(store, "out") == [b"a", b"b"]


def intent_of(store: detent.Store, journal: str) -> detent.AckIntent:
    """The acknowledgement that was written first."""
    row = next(row for row in rows(store, journal) if row.flags == ACK_TXN)
    return detent.AckIntent(journal, row.producer, row.clock)


def test_h4_an_idle_producer_with_an_open_span_is_not_forgotten(store: detent.Store) -> None:
    """Or its acknowledgement, which comes later, would find nothing to commit."""
    sequencer = Sequencer()
    sequencer.queue(Envelope("j", 0, 1, 1, 100, CONTINUE_TXN, "late"))
    sequencer.queue(Envelope("j", 1, 2, 2, 100 + 48 * HOUR, 0, "other"))
    while sequencer.step() is not None:
        pass
    kept = sequencer.checkpoint(24 * 3_600_000_000_000)
    assert [one.producer for one in kept.producers] == [1, 2]
    resumed = Sequencer(checkpoint=kept)
    resumed.queue(Envelope("j", 2, 3, 1, 200, ACK_TXN, None))
    resumed.start_replay([Envelope("j", 0, 1, 1, 100, CONTINUE_TXN, "late")])
    step = resumed.step()
    assert step is not None
    assert step.message == "late"


def test_h4_a_span_that_nobody_can_acknowledge_any_more_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sequencer = Sequencer()
    sequencer.queue(Envelope("j", 0, 1, 1, 100, CONTINUE_TXN, "dead"))
    sequencer.queue(Envelope("j", 1, 2, 2, 100 + 48 * HOUR, 0, "other"))
    while sequencer.step() is not None:
        pass
    day = 24 * 3_600_000_000_000
    with caplog.at_level(logging.WARNING):
        kept = sequencer.checkpoint(day, open_horizon_ns=day)
    assert [one.producer for one in kept.producers] == [2]
    assert "never acknowledged" in caplog.text
    assert kept.floors == {"j": 100}, "and what it sends late is known to be late"


def test_h5_a_duplicate_of_a_forgotten_producer(store: detent.Store) -> None:
    """Its clock is below the floor that forgotten producers leave."""
    sequencer = Sequencer()
    seen = []
    for envelope in (
        Envelope("j", 0, 1, 1, 100, 0, "once"),
        Envelope("j", 1, 2, 2, 100 + 48 * HOUR, 0, "other"),
        Envelope("j", 2, 3, 1, 100, 0, "once"),
    ):
        sequencer.queue(envelope)
        while (step := sequencer.step()) is not None:
            seen.append(step.message)
        sequencer.checkpoint(24 * 3_600_000_000_000)
    assert seen == ["once", "other"]


def test_h6_restore_raises_the_fence_before_it_reads(store: detent.Store) -> None:
    """In the engine both are one operation: whoever opened earlier cannot commit behind what was read."""
    app = echo()
    old = app.state.open(store, shard_of(store, app)._given.name)
    old.restore()
    new = app.state.open(store, shard_of(store, app)._given.name)
    assert new.restore() is None
    with pytest.raises(Fenced):
        old.commit(old.seal(old.begin(lambda: None)), Checkpoint({"in": 7}), [])
    new.commit(new.seal(new.begin(lambda: None)), Checkpoint({"in": 1}), [])
    assert app.state.open(store, shard_of(store, app)._given.name).restore() == Checkpoint({"in": 1})


def test_h7_a_transaction_reads_what_the_one_before_is_still_committing(store: detent.Store) -> None:
    state = GatedState()
    app = Consumer("c", read="in", state=state)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        state["n"] = state.get("n", 0) + 1
        publish("out", b"%d" % state["n"])

    state.gate.shut()
    with living(shard_of(store, app)) as life:
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        store.journal("in").append_many([b"b", b"c"])
        eventually(lambda: life.shard._sources.offsets()["in"] == 3, what="b and c consumed meanwhile")
        state.gate.open()
        life.wait_processed(**{"in": 3})
    assert committed(store, "out") == [b"1", b"2", b"3"]
    assert store.consumer("c").state(0).get("n") == 3


def test_h8_a_commit_tells_that_it_was_fenced(store: detent.Store) -> None:
    """The error ends the shard, and nothing of the transaction is acknowledged."""
    state = GatedState()
    app = echo(state=state)
    state.gate.shut()
    zombie = shard_of(store, app)
    with pytest.raises(Fenced), living(zombie) as life:
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        heir = app.state.open(store, zombie._given.name)
        heir.restore()
        state.gate.open()
        eventually(lambda: life.error, what="the shard's end")
    assert committed(store, "out") == []


def test_h9_messages_that_were_forgotten_before_they_were_read(store: detent.Store) -> None:
    """A hole is an error that says what to do, never a skip."""
    seen: list[bytes] = []
    app = collecting("in", seen)
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, app).run(once=True)
    store.journal("in").append_many([b"c", b"d"])
    store.journal("in").trim(3)
    with pytest.raises(NotFound, match=r"begins at 3 now.*Reset the consumer to 3"):
        shard_of(store, app).run(once=True)
    assert seen == [b"a", b"b"]
    store.consumer("c").reset({"in": 3})
    shard_of(store, app).run(once=True)
    assert seen == [b"a", b"b", b"d"]


def test_h9_a_raw_source_fails_where_rows_are_gone(store: detent.Store) -> None:
    seen: list[bytes] = []
    app = collecting(Source("in", raw=True), seen)
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, app).run(once=True)
    for number in range(3):
        store.journal("in").append(b"%d" % number)
    store.journal("in").trim(5)
    owner: Any = store._connection.current
    eventually(lambda: owner.engine.tick() or store.journal("in").info().first_position > 2, what="the space freed")
    with pytest.raises(NotFound, match="gone"):
        shard_of(store, app).run(once=True)
    assert seen == [b"a", b"b"]


def test_h10_the_journals_of_a_transaction_become_visible_together(store: detent.Store) -> None:
    """Within a store all acknowledgements of a transaction are one commit: no reader sees one journal without the
    other."""
    app = Consumer("c", read="in", state=PendingState())

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        publish("left", message.body)
        publish("right", message.body)

    differences = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            found = store.reader.extents()
            differences.append(found.get("left", (0, 0))[1] - found.get("right", (0, 0))[1])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with living(shard_of(store, app)) as life:
        for number in range(50):
            store.journal("in").append(b"%d" % number)
        life.wait_processed(**{"in": 50})
    stop.set()
    watcher.join()
    assert len(committed(store, "left")) == 50
    assert set(differences) == {0}


def test_h11_a_shard_that_begins_in_the_middle_sees_whole_transactions(store: detent.Store) -> None:
    """By the committed index a transaction has its place where it was acknowledged. A raw reader that began between its
    messages would see a part of it, and so begins at the beginning."""
    publisher = store.publisher()
    publisher.publish_uncommitted("in", [b"a1"])
    store.journal("in").append(b"other")
    seen: list[bytes] = []
    app = collecting(Source("in", start="latest"), seen)
    with living(shard_of(store, app)) as life:
        eventually(lambda: life.shard._progress.status == "running", what="a start at the end")
        publisher.publish_uncommitted("in", [b"a2"])
        publisher.acknowledge(publisher.build_ack_intents())
        eventually(lambda: seen[-1:] == [b"a2"], what="the transaction")
    assert seen == [b"a1", b"a2"]
    with pytest.raises(Invalid, match="without their beginning"):
        Source("in", start="latest", raw=True)


def test_h12_publishing_the_message_that_was_read(store: detent.Store) -> None:
    """Messages cannot be changed, and what is published has an id of its own."""
    seen: list[Any] = []
    app = Consumer("c", read=Source("in", raw=True), state=PendingState())

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        with pytest.raises(AttributeError):
            message.clock = 7
        seen.append(message)
        publish("in2", message.body, key=message.key, headers=message.headers)

    store.journal("in").append(b"a", key=b"k", headers={"h": "1"})
    shard_of(store, app).run(once=True)
    shard_of(store, app).run(once=True)
    assert len(seen) == 1
    (copy,) = store.journal("in2").read()
    assert (copy.body, copy.key, copy.headers) == (b"a", b"k", {"h": "1"})
    assert copy.uuid != seen[0].uuid


def test_h13_committed_and_pending_messages_of_one_producer_in_one_journal(store: detent.Store) -> None:
    publisher = store.publisher()
    publisher.publish_uncommitted("out", [b"pending"])
    with pytest.raises(Invalid, match="pending messages"):
        publisher.publish("out", [b"at once"])
    publisher.acknowledge(publisher.build_ack_intents())
    assert committed(store, "out") == [b"pending"]


def test_h14_a_wall_clock_that_steps_back(store: detent.Store) -> None:
    times = iter([5_000_000_000_000_000_000, 4_000_000_000_000_000_000, 3_000_000_000_000_000_000] * 10)
    publisher = Publisher(store.commit, now_ns=lambda: next(times))
    for number in range(3):
        publisher.publish_uncommitted("out", [b"%d" % number])
        publisher.acknowledge(publisher.build_ack_intents())
    assert committed(store, "out") == [b"0", b"1", b"2"]
    assert store.publisher().producer != store.publisher().producer, "and no two publishers are one producer"


def test_h15_an_append_that_failed_and_is_there_nevertheless(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows: so the transaction is begun anew, under another producer, and the first try is never
    acknowledged."""
    publish = Publisher.publish_uncommitted_many
    failures = [1]

    def unsure(self: Publisher, entries: Any) -> Any:
        publish(self, entries)
        if failures.pop():
            raise OutcomeUnknown("the line broke after the append")

    store.journal("in").append(b"a")
    app = echo()
    monkeypatch.setattr(Publisher, "publish_uncommitted_many", unsure)
    with pytest.raises(OutcomeUnknown):
        shard_of(store, app).run(once=True)
    monkeypatch.undo()
    shard_of(store, app).run(once=True)
    assert letters(store, "out") == "a a ."
    assert committed(store, "out") == [b"a"]


def test_h15_a_commit_that_failed_and_is_there_nevertheless(store: detent.Store) -> None:
    """The next life finds it in the checkpoint, and delivers what it promised."""
    state = GatedState()
    app = echo(state=state)
    store.journal("in").append(b"a")
    shard = shard_of(store, app)
    commit = shard._state.commit

    def unsure(*arguments: Any) -> None:
        commit(*arguments)
        raise OutcomeUnknown("the line broke after the commit")

    shard._state.commit = unsure  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        shard.run(once=True)
    assert committed(store, "out") == []
    shard_of(store, app).run(once=True)
    assert letters(store, "out") == "a ."
    assert committed(store, "out") == [b"a"]


@pytest.mark.parametrize("raw", [False, True])
def test_h16_acknowledgements_never_reach_the_application(store: detent.Store, raw: bool) -> None:
    publisher = store.publisher()
    publisher.publish_uncommitted("in", [b"a", b"b"])
    publisher.acknowledge(publisher.build_ack_intents())
    publisher.publish("in", [b"c"])
    publisher.publish_uncommitted("in", [b"rolled back"])
    seen: list[bytes] = []
    shard_of(store, collecting(Source("in", raw=raw), seen, max_transaction="50ms")).run(once=True)
    assert seen == [b"a", b"b", b"c"]


def test_h17_producers_of_dead_transactions_do_not_fill_checkpoints(store: detent.Store) -> None:
    """A checkpoint of committed offsets has no producers at all, however many have died. One of raw positions has those
    of open transactions, until the journal's deadline has passed twice."""
    for _ in range(200):
        store.publisher().publish_uncommitted("in", [b"dead"])
    store.journal("in").append(b"a")
    sizes = {}
    for raw in (False, True):
        state = GatedState()
        app = Consumer(f"c-{raw}", read=Source("in", raw=raw), state=state, max_transaction="50ms")
        app.consume(lambda message, state, publish: None)
        shard_of(store, app).run(once=True)
        sizes[raw] = len(state.commits[-1].encode())
    assert len(state.commits[-1].raw["in"].producers) == 201, "of all that are open, and the one who wrote a"
    assert sizes[False] < 100
    assert sizes[True] < 201 * 40
