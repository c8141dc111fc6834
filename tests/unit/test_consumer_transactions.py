"""Transactions of a shard: what they hold, when they end, and what is restored."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import detent
from detent.consumer import Consumer, Source, Worker
from detent.consumer import outbox as outboxes
from detent.consumer import shard as shards
from detent.consumer.outbox import Outbox
from detent.consumer.progress import Progress
from detent.consumer.shard import Shard
from detent.consumer.sources import key_filter
from detent.errors import Conflict, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.state import Checkpoint, EngineState, RecordedState, SqlState
from processes import eventually
from shardunit import Gate, GatedState, PendingState, committed, echo, letters, living, register, rows, shard_of


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as store:
        yield store


class Transactions(GatedState):
    """Which messages came in which transaction, besides."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__(inner)
        self.seen: list[list[bytes]] = []


def noting(state: Transactions, read: Any = "in", **options: Any) -> Consumer:
    app = Consumer("c", read=read, state=state, **options)
    current: list[bytes] = []

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        current.append(message.body)

    @app.finalize
    def finalize(transaction: Any) -> None:
        assert transaction.messages == len(current)
        state.seen.append(list(current))
        current.clear()

    return app


# -- what a transaction holds -----------------------------------------------------------------------------------


def test_all_that_is_ready_is_one_transaction(store: detent.Store) -> None:
    state = Transactions()
    store.journal("in").append_many([b"a", b"b", b"c"])
    shard_of(store, noting(state)).run(once=True)
    assert state.seen == [[b"a", b"b", b"c"]]
    assert [checkpoint.offsets for checkpoint in state.commits] == [{"in": 3}]


def test_messages_that_come_while_the_last_transaction_commits_are_the_next(store: detent.Store) -> None:
    state = Transactions()
    state.gate.shut()
    with living(shard_of(store, noting(state))) as life:
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        for body in (b"b", b"c", b"d"):
            store.journal("in").append(body)
            eventually(lambda: life.shard._sources.offsets()["in"] > 1)
        eventually(lambda: life.shard._sources.offsets()["in"] == 4)
        state.gate.open()
        life.wait_processed(**{"in": 4})
    assert state.seen == [[b"a"], [b"b", b"c", b"d"]]


def test_a_transaction_lasts_at_least_the_minimum(store: detent.Store) -> None:
    state = Transactions()
    app = noting(state, min_transaction="1m", max_transaction="2m")
    with living(shard_of(store, app)) as life:
        store.journal("in").append(b"a")
        eventually(lambda: life.shard._sources.offsets()["in"] == 1)
        store.journal("in").append(b"b")
        eventually(lambda: life.shard._sources.offsets()["in"] == 2)
        assert state.commits == []
    assert state.seen == [[b"a", b"b"]], "a stop ends it, and commits it"
    assert committed_offset(store) == 2


def committed_offset(store: detent.Store) -> int:
    found = Checkpoint.decode(store.consumer("c")._store.commit([shards.ops.FindShard("c", 0)])[0].checkpoint)
    return found.offsets["in"]


def test_an_acknowledged_set_is_one_transaction(store: detent.Store) -> None:
    """Pending messages of one producer, with others between them: they come together, at their acknowledgement."""
    state = Transactions()
    with living(shard_of(store, noting(state))) as life:
        publisher = store.publisher()
        for number in range(5):
            publisher.publish_uncommitted("in", [b"set %d" % number])
            store.journal("in").append(b"between")
        life.wait_processed(**{"in": 5})
        publisher.acknowledge(publisher.build_ack_intents())
        life.wait_processed(**{"in": 10})
    (whole,) = [seen for seen in state.seen if b"set 0" in seen]
    assert [body for body in whole if body != b"between"] == [b"set %d" % number for number in range(5)]


def test_the_maximum_splits_a_set_and_each_message_still_counts_once(store: detent.Store) -> None:
    state = Transactions()
    app = noting(state, max_transaction="1ms")
    publisher = store.publisher()
    publisher.publish_uncommitted("in", [b"%d" % number for number in range(20_000)])
    publisher.acknowledge(publisher.build_ack_intents())
    shard_of(store, app).run(once=True)
    assert len(state.seen) > 1
    assert [body for seen in state.seen for body in seen] == [b"%d" % number for number in range(20_000)]


def test_a_raw_set_that_was_split_goes_on_where_it_was(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is taken in the middle of a delivery; the next life meets the acknowledgement again, and skips
    what was consumed."""
    monkeypatch.setattr(shards, "MESSAGES_MAX", 3)
    publisher = store.publisher()
    publisher.publish_uncommitted("in", [b"%d" % number for number in range(10)])
    publisher.acknowledge(publisher.build_ack_intents())
    seen: list[bytes] = []
    app = Consumer("c", read=Source("in", raw=True), state=PendingState())
    app.consume(lambda message, state, publish: (seen.append(message.body), publish("out", message.body)))
    for _ in range(2):
        one = shard_of(store, app)
        one._messages_max = 3
        one._await_message = once_only(one._await_message)  # type: ignore[method-assign]
        one.run()
    assert seen == [b"%d" % number for number in range(6)]
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"%d" % number for number in range(10)]


def once_only(function: Any) -> Any:
    """Answers once, then that there is no more."""
    calls = [1]
    return lambda once: bool(calls) and bool(calls.pop()) and function(once)


def test_a_raw_source_waits_for_a_transaction_that_began(store: detent.Store) -> None:
    """One that is open when messages run out is waited for, once, up to the maximum duration."""
    state = Transactions()
    app = noting(state, Source("in", raw=True), max_transaction="20s")
    publisher = store.publisher()
    store.journal("in").append(b"plain")
    publisher.publish_uncommitted("in", [b"pending"])
    with living(shard_of(store, app)) as life:
        eventually(lambda: life.shard._sources.has_pending, what="the open transaction seen")
        publisher.acknowledge(publisher.build_ack_intents())
        eventually(lambda: state.commits, what="the commit")
    assert state.seen == [[b"plain", b"pending"]]


def test_several_journals_in_one_shard_each_in_order(store: detent.Store) -> None:
    seen: list[tuple[str, bytes]] = []
    app = Consumer("c", read=["a", "b", Source("raw", raw=True)], state=PendingState())
    app.consume(lambda message, state, publish: seen.append((message.journal, message.body)))
    for journal in ("a", "b", "raw"):
        store.journal(journal).append_many([b"%d" % number for number in range(100)])
    shard_of(store, app).run(once=True)
    shard_of(store, app).run(once=True)
    for journal in ("a", "b", "raw"):
        assert [body for name, body in seen if name == journal] == [b"%d" % number for number in range(100)]


def test_a_journal_that_does_not_exist_yet(store: detent.Store) -> None:
    with living(shard_of(store, echo())) as life:
        eventually(lambda: life.shard._progress.status == "running")
        store.journal("in").append(b"first")
        life.wait_processed(**{"in": 1})
    assert committed(store, "out") == [b"first"]


@pytest.mark.parametrize(("start", "raw"), [("earliest", False), ("latest", False), (2, False), ("earliest", True)])
def test_where_a_source_begins(store: detent.Store, start: Any, raw: bool) -> None:
    store.journal("in").append_many([b"a", b"b", b"c"])
    app = echo(read=Source("in", start=start, raw=raw))
    shard_of(store, app).run(once=True)
    store.journal("in").append(b"d")
    shard_of(store, app).run(once=True)
    expected = {"earliest": [b"a", b"b", b"c", b"d"], "latest": [b"d"], 2: [b"c", b"d"]}[start]
    assert committed(store, "out") == expected, "where 'latest' was is kept, although nothing was read"


# -- limits -----------------------------------------------------------------------------------------------------


def test_a_full_outbox_ends_a_transaction(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "BYTES_MAX", 1000)
    monkeypatch.setattr(shards, "LOOK_EVERY", 1)
    state = GatedState()
    store.journal("in").append_many([b"x" * 100] * 30)
    shard_of(store, echo(state=state)).run(once=True)
    assert len(state.commits) > 3
    assert len(committed(store, "out")) == 30


def test_a_state_with_many_changed_keys_ends_a_transaction(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.state.keyed.TOUCHED_MAX", 10)
    monkeypatch.setattr(shards, "LOOK_EVERY", 1)
    state = GatedState(EngineState())
    app = Consumer("c", read="in", state=state)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        state[message.body.decode()] = 1

    store.journal("in").append_many([b"%d" % number for number in range(35)])
    shard_of(store, app).run(once=True)
    assert len(state.commits) == 4
    assert len(dict(store.consumer("c").state(0).items())) == 35


def test_publishing_is_checked_where_it_is_called() -> None:
    outbox = Outbox(frozenset({"", "far"}))
    with pytest.raises(Invalid, match="is not an output"):
        outbox.publish("j", b"x", store="near")
    with pytest.raises(Invalid, match="bytes"):
        outbox.publish("j", "text")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no journal name"):
        outbox.publish("no good", b"x")
    with pytest.raises(LimitExceeded, match="over the limit"):
        outbox.publish("j", bytes(17 << 20))
    with pytest.raises(Invalid, match="headers are text"):
        outbox.publish("j", b"x", headers={"a": 1})  # type: ignore[dict-item]
    assert outbox.entries == {}
    outbox.publish("j", bytearray(b"x"), key=b"k", store="far")  # type: ignore[arg-type]
    assert outbox.entries == {"far": {"j": [(b"x", b"k", None)]}}


@pytest.mark.parametrize("state", [PendingState(), EngineState()])
def test_large_outputs_are_divided_over_appends(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    monkeypatch.setattr(outboxes, "CHUNK_BYTES", 1000)
    app = Consumer(type(state).__name__, read="in", state=state)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        for number in range(50):
            publish(f"out/{number % 3}", b"%d" % number + bytes(100))

    store.journal("in").append(b"go")
    shard_of(store, app).run(once=True)
    for third in range(3):
        found = [body.rstrip(b"\0") for body in committed(store, f"out/{third}")]
        assert found == [b"%d" % number for number in range(third, 50, 3)]


# -- the engine's own state -------------------------------------------------------------------------------------


def test_with_engine_state_a_transaction_is_one_commit_and_needs_no_acknowledgement(store: detent.Store) -> None:
    owner: Any = store._connection.current
    state = GatedState(EngineState())
    app = echo(state=state)
    store.journal("in").append_many([b"a", b"b"])
    shard = shard_of(store, app)
    before = owner.engine.groups
    shard.run(once=True)
    assert owner.engine.groups == before + 2, "the fence, and the transaction"
    assert [row.flags for row in rows(store, "out")] == [0, 0], "neither pending messages nor acknowledgements"
    assert state.commits[0].intents == {}


def test_engine_state_with_another_store_acknowledges_there(store: detent.Store) -> None:
    with detent.open("memory:") as far:
        app = Consumer("c", read="in", outputs={"far": "memory:"})

        @app.consume
        def consume(message: Any, state: Any, publish: Any) -> None:
            publish("out", message.body)
            publish("out", message.body, store="far")

        store.journal("in").append(b"a")
        shard_of(store, app, outputs={"far": far}).run(once=True)
        assert letters(store, "out") == "a"
        assert letters(far, "out") == "a ."
        assert committed(far, "out") == [b"a"]


# -- recovery ---------------------------------------------------------------------------------------------------


def fail_after_commit(shard: Any) -> None:
    """Let a shard die between its commit and its acknowledgements."""
    commit = shard._state.commit

    def die(*arguments: Any) -> None:
        commit(*arguments)
        raise Unavailable("died after the commit")

    shard._state.commit = die
    with pytest.raises(Unavailable):
        shard.run(once=True)


def test_intents_of_deleted_journals_are_reported_and_the_rest_is_delivered(store: detent.Store) -> None:
    app = Consumer("c", read="in", state=PendingState())

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        publish("doomed", message.body)
        publish("out", message.body)

    store.journal("in").append(b"a")
    fail_after_commit(shard_of(store, app))
    store.journal("doomed").delete()
    heir = shard_of(store, app)
    heir.run(once=True)
    assert heir.missing == ["doomed"]
    assert committed(store, "out") == [b"a"]
    assert "doomed" not in store.journals(), "nothing is created by an acknowledgement"


def test_an_acknowledgement_after_the_deadline_stops_the_shard_until_it_is_reset(store: detent.Store) -> None:
    """Its messages were rolled back: that must not pass in silence."""
    store.journal("out").create(transaction_deadline="1ms")
    app = echo(output_deadline="0s")
    store.journal("in").append(b"a")
    fail_after_commit(shard_of(store, app))
    owner: Any = store._connection.current
    eventually(lambda: owner.engine.tick() or store.journal("out").info().aborted_spans, what="the roll back")
    for _ in range(2):
        with pytest.raises(Invalid, match=r"comes too late.*reset the consumer"):
            shard_of(store, app).run(once=True)
    store.consumer("c").reset({"in": 0})
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a"]


def roll_back_overdue(store: detent.Store) -> None:
    """Have the owner roll back what is past its deadline: also one of a plain publisher, to know that it looked."""
    store.journal("out").configure(transaction_deadline="1ms")
    store.publisher().publish_uncommitted("out", [b"of a plain publisher"])
    owner: Any = store._connection.current
    before = store.journal("out").info().aborted_spans
    eventually(lambda: owner.engine.tick() or store.journal("out").info().aborted_spans > before, what="the roll back")


@pytest.mark.parametrize("other", [False, True])
def test_shard_that_was_away_past_the_journals_deadline_delivers(other: bool) -> None:
    """Its own store or another one: what it has committed waits for its acknowledgement."""
    with detent.open("memory:") as store, detent.open("memory:") as far:
        target = far if other else store
        app = Consumer("c", read="in", state=PendingState(), outputs={"far": "memory:"} if other else {})
        app.consume(lambda message, state, publish: publish("out", message.body, store="far" if other else ""))
        store.journal("in").append(b"a")
        outputs = {"far": far} if other else {}
        fail_after_commit(shard_of(store, app, outputs=outputs))
        roll_back_overdue(target)
        shard_of(store, app, outputs=outputs).run(once=True)
        assert committed(target, "out") == [b"a"]


def test_next_life_rolls_back_what_a_failed_commit_left_pending(store: detent.Store) -> None:
    """A commit that fails again and again would leave one open transaction each time, for two weeks."""
    state, failures = GatedState(), [Unavailable("the database is away"), Unavailable("still away")]

    def fail(checkpoint: Checkpoint) -> None:
        if failures:
            raise failures.pop()

    state.before = fail
    store.journal("in").append(b"a")
    worker = Worker(echo(state=state), store, {})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        eventually(lambda: "c" in [one.name for one in store.consumers()], what="the consumer")
        store.consumer("c").await_processed("in", 0, "30s")
    finally:
        worker.stop()
        thread.join()
    assert letters(store, "out") == "a . a . a ."
    assert (committed(store, "out"), store.journal("out").info().open_spans) == ([b"a"], 0)


def test_roll_back_of_an_earlier_life_is_tried_again(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shards, "LEFTOVERS_S", 0.0)
    app, state = echo(state=GatedState()), GatedState()

    def fail(checkpoint: Checkpoint) -> None:
        raise Unavailable("the database is away")

    def roll_back(publisher: Any) -> None:
        tried.append(publisher)
        if len(tried) == 1:
            raise Unavailable("the store is away")
        really(publisher)

    state.before = fail
    tried: list[Any] = []
    really = detent.Publisher.roll_back
    monkeypatch.setattr(detent.Publisher, "roll_back", roll_back)
    store.journal("in").append(b"a")
    first = shard_of(store, echo(state=state))
    with pytest.raises(Unavailable):
        first.run(once=True)
    assert store.journal("out").info().open_spans == 1
    second = Shard(first._given, app.state.open(store, first._given.name), Progress(), before=first)
    second.run(once=True)
    assert len(tried) == 2
    assert "is not rolled back yet: the store is away" in caplog.text
    assert (committed(store, "out"), store.journal("out").info().open_spans) == ([b"a"], 0)


def test_next_life_leaves_what_a_checkpoint_has_promised(store: detent.Store) -> None:
    """The commit came through, and only its answer was lost."""
    store.journal("in").append(b"a")
    app = echo()
    first = shard_of(store, app)
    fail_after_commit(first)
    second = Shard(first._given, app.state.open(store, first._given.name), Progress(), before=first)
    second.run(once=True)
    assert letters(store, "out") == "a ."
    assert committed(store, "out") == [b"a"]


def test_recorded_checkpoint_holds_what_it_promises(store: detent.Store, tmp_path: Path) -> None:
    """Without a deadline of its own, too: it is in the store of those messages, and stands."""
    app = echo(state=RecordedState(tmp_path), output_deadline="0s")
    store.journal("in").append(b"a")
    fail_after_commit(shard_of(store, app))
    roll_back_overdue(store)
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a"]
    assert store.journal("out").info().open_spans == 0


def test_recovery_log_that_is_deleted_frees_what_it_held(store: detent.Store, tmp_path: Path) -> None:
    app = echo(state=RecordedState(tmp_path), output_deadline="0s")
    store.journal("in").append(b"a")
    fail_after_commit(shard_of(store, app))
    store.consumer("c").delete(force=True)
    store.journal("c/recovery/0").delete()
    store.journal("out").configure(transaction_deadline="1ms")
    owner: Any = store._connection.current
    eventually(lambda: owner.engine.tick() or store.journal("out").info().aborted_spans, what="the roll back")


def test_shard_starts_when_only_a_later_transaction_of_its_producer_was_rolled_back(store: detent.Store) -> None:
    """It died between the append and the commit of a transaction, behind one that it had acknowledged."""
    app = echo(output_deadline="0s")
    store.journal("in").append(b"a")
    dead = shard_of(store, app)
    commit = dead._state.commit

    def die_at_the_second(sealed: Any, checkpoint: Checkpoint, outputs: Any) -> None:
        if checkpoint.transaction == 2:
            raise Unavailable("died before the commit")
        commit(sealed, checkpoint, outputs)
        store.journal("in").append(b"b")

    dead._state.commit = die_at_the_second  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        dead.run(once=True)
    assert letters(store, "out") == "a . b"
    store.journal("out").configure(transaction_deadline="1ms")
    owner: Any = store._connection.current
    eventually(lambda: owner.engine.tick() or store.journal("out").info().aborted_spans, what="the roll back")
    store.journal("out").configure(transaction_deadline="1h")
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a", b"b"]


def test_shard_starts_with_a_promise_of_an_earlier_release_whose_producer_is_forgotten(store: detent.Store) -> None:
    """Such a promise does not say where its transaction began. What was open would not have been forgotten."""
    store.journal("out").create(producer_horizon="1ms")
    publisher = store.publisher()
    publisher.publish_uncommitted("out", [b"a"])
    intents = publisher.build_ack_intents()
    publisher.acknowledge(intents)
    owner: Any = store._connection.current

    def is_forgotten() -> bool:
        store.journal("out").append(b"later")  # the journal's own time goes on with its messages
        owner.journals.housekeeper.reset()
        owner.engine.tick()
        return store.journal("out").info().clock_floor >= intents[0].clock

    eventually(is_forgotten, what="the producer to be forgotten")
    old = [msgspec.structs.replace(intent, begun=0, seal=b"") for intent in intents]
    outlets = outboxes.Outlets(store, {}, with_engine=False)
    assert outlets.recover({"": old}, is_reset=False) == []
    assert committed(store, "out").count(b"a") == 1


def test_a_shard_that_rests_promises_nothing(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days later its producer is forgotten, and an acknowledgement sent again would be refused."""
    monkeypatch.setattr(shards, "SETTLE_S", 0.0)
    monkeypatch.setattr(shards, "IDLE_S", 0.01)
    state = GatedState()
    with living(shard_of(store, echo(state=state))):
        store.journal("in").append(b"a")
        eventually(lambda: len(state.commits) == 2, what="the second checkpoint")
    assert [bool(checkpoint.intents) for checkpoint in state.commits] == [True, False]
    assert [checkpoint.offsets for checkpoint in state.commits] == [{"in": 1}] * 2


def test_an_output_that_is_not_named_any_more(store: detent.Store) -> None:
    with detent.open("memory:") as far:
        app = Consumer("c", read="in", state=PendingState(), outputs={"far": "memory:"})
        app.consume(lambda message, state, publish: publish("out", message.body, store="far"))
        store.journal("in").append(b"a")
        fail_after_commit(shard_of(store, app, outputs={"far": far}))
        with pytest.raises(Invalid, match="does not have any more"):
            shard_of(store, app).run(once=True)
        shard_of(store, app, outputs={"far": far}).run(once=True)
        assert committed(far, "out") == [b"a"]


def test_a_failing_application_commits_nothing_of_its_transaction(store: detent.Store) -> None:
    app = Consumer("c", read="in", state=PendingState())
    broken = [True]

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        state["n"] = state.get("n", 0) + 1
        publish("out", message.body)
        if broken and message.body == b"b":
            raise ZeroDivisionError("a bug of the user's")

    store.journal("in").append_many([b"a", b"b"])
    with pytest.raises(ZeroDivisionError):
        shard_of(store, app).run(once=True)
    assert letters(store, "out") == ""
    broken.clear()
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a", b"b"]
    assert store.consumer("c").state(0).get("n") == 2


def test_a_journal_that_was_deleted_and_made_anew_is_not_taken_for_the_old_one(store: detent.Store) -> None:
    app = echo()
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, app).run(once=True)
    store.journal("in").delete()
    with pytest.raises(NotFound, match="deleted, or is another one"):
        shard_of(store, app).run(once=True)
    store.journal("in").append(b"new")
    with pytest.raises(NotFound, match="deleted, or is another one"):
        shard_of(store, app).run(once=True)
    store.consumer("c").reset({"in": 0})
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a", b"b", b"new"]


def test_a_reset_is_applied_once(store: detent.Store) -> None:
    """A later reset of another journal must not repeat it."""
    app = echo(read=["in", "in2"])
    store.journal("in").append_many([b"a", b"b"])
    store.journal("in2").append(b"x")
    shard_of(store, app).run(once=True)
    store.consumer("c").reset({"in": 1})
    shard_of(store, app).run(once=True)
    assert sorted(committed(store, "out")) == [b"a", b"b", b"b", b"x"]
    store.consumer("c").reset({"in2": 0})
    shard_of(store, app).run(once=True)
    assert sorted(committed(store, "out")) == [b"a", b"b", b"b", b"x", b"x"]
    shard_of(store, app).run(once=True)
    assert len(committed(store, "out")) == 5


def test_a_reset_moves_raw_sources_by_position(store: detent.Store) -> None:
    app = echo(read=Source("in", raw=True))
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, app).run(once=True)
    store.consumer("c").reset({"in": 1})
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a", b"b", b"b"]


def test_the_state_of_a_deleted_consumer_is_not_taken_for_a_new_ones(store: detent.Store, tmp_path: Path) -> None:
    """A database, or a recovery log, outlives the consumer's records in the store."""
    app = echo(state=RecordedState(tmp_path))
    store.journal("in").append(b"a")
    shard_of(store, app).run(once=True)
    store.consumer("c").delete()
    with pytest.raises(Conflict, match="of another shard"):
        shard_of(store, app).run(once=True)
    store.journal("c/recovery/0").delete()
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a", b"a"]


def test_a_database_that_outlives_its_store_is_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    """Both consumers have the same name, and the same shard number 1."""
    seen: list[bytes] = []
    app = Consumer("c", read="in", state=SqlState(f"sqlite:///{tmp_path}/state.db"))
    app.consume(lambda message, state, publish: seen.append(message.body))
    with detent.open("memory:") as store:
        store.journal("in").append(b"0")
        app.run(store=store, once=True)
    time.sleep(0.002)  # consumers are told apart by the millisecond in which they were made
    with detent.open("memory:") as store:
        store.journal("in").append(b"1")
        with pytest.raises(Conflict, match="of another shard"):
            app.run(store=store, once=True)
    assert seen == [b"0"]


@pytest.mark.parametrize("raw", [False, True])
def test_progress_is_in_committed_offsets(store: detent.Store, raw: bool) -> None:
    """A raw source reads rows, of which there are more than committed messages."""
    publisher = store.publisher()
    for number in range(3):
        publisher.publish_uncommitted("in", [b"%d" % number])
        publisher.acknowledge(publisher.build_ack_intents())
    store.publisher().publish_uncommitted("in", [b"open"])
    app = echo(read=Source("in", raw=raw), max_transaction="50ms")
    with living(shard_of(store, app)) as life:
        life.wait_processed(**{"in": 3})
        assert life.shard._progress.processed == {"in": 3}
        assert store.journal("in").info().next_position > 6
        store.journal("in").append(b"3")
        life.wait_processed(**{"in": 4})
    assert committed(store, "out") == [b"0", b"1", b"2", b"3"]


def test_a_raw_source_that_has_not_committed_is_reset_too(store: detent.Store) -> None:
    app = echo(read=Source("in", raw=True))
    store.journal("in").append_many([b"a", b"b"])
    register(store, app)
    store.consumer("c").reset({"in": 1})
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"b"]


@pytest.mark.parametrize("raw", [False, True])
def test_a_journal_that_is_named_again_goes_on_where_it_was(store: detent.Store, raw: bool) -> None:
    store.journal("in").append(b"a")
    store.journal("in2").append(b"x")
    sources = [Source("in", raw=raw), Source("in2", raw=raw)]
    shard_of(store, echo(read=sources)).run(once=True)
    store.journal("in").append(b"b")
    store.journal("in2").append(b"y")
    shard_of(store, echo(read=sources[:1])).run(once=True)
    shard_of(store, echo(read=sources)).run(once=True)
    assert sorted(committed(store, "out")) == [b"a", b"b", b"x", b"y"]


def test_a_coroutine_that_nobody_would_await_is_refused(store: detent.Store) -> None:
    """A function that is not declared with `async def` and answers a coroutine would do nothing, in silence."""

    async def consume(message: Any) -> None:
        raise AssertionError("nobody calls this")

    app = Consumer("c", read="in", state=PendingState())
    made = []
    app.consume(lambda message, state, publish: made.append(consume(message)) or made[-1])
    store.journal("in").append(b"a")
    with pytest.raises(Invalid, match="it is not awaited"):
        app.run(store=store, once=True)
    made[0].close()
    assert committed_offsets(store) is None


def committed_offsets(store: detent.Store) -> Any:
    return store.commit([shards.ops.FindShard("c", 0)])[0].checkpoint


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("read", ["in", "in*"])
def test_a_longer_journal_of_the_same_name_is_another_one(store: detent.Store, raw: bool, read: str) -> None:
    """Nothing of it is skipped in silence, although the offset that the shard has is there."""
    app = echo(read=Source(read, raw=raw))
    given: Any = {"journals": ["in"]}
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, app, **given).run(once=True)
    store.journal("in").delete()
    store.journal("in").append_many([b"%d" % number for number in range(10)])
    with pytest.raises(NotFound, match="deleted, or is another one"):
        shard_of(store, app, **given).run(once=True)
    store.consumer("c").reset({"in": 0})
    shard_of(store, app, **given).run(once=True)
    assert committed(store, "out")[2:] == [b"%d" % number for number in range(10)]


def test_a_source_is_not_read_in_two_ways(store: detent.Store) -> None:
    store.journal("in").append(b"a")
    for one, other in ((False, True), (True, False)):
        name = f"c-{one}"
        shard_of(store, echo(name, read=Source("in", raw=one))).run(once=True)
        with pytest.raises(Conflict, match="is to read it otherwise"):
            shard_of(store, echo(name, read=Source("in", raw=other))).run(once=True)
        store.consumer(name).reset({"in": 1})
        shard_of(store, echo(name, read=Source("in", raw=other))).run(once=True)
    assert committed(store, "out") == [b"a", b"a"]


def test_promises_of_an_earlier_life_are_settled_too(store: detent.Store) -> None:
    app = echo()
    store.journal("in").append(b"a")
    fail_after_commit(shard_of(store, app))
    shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a"]
    assert Checkpoint.decode(committed_offsets(store)).intents == {}


def test_what_a_shard_passes_over_is_durable(store: detent.Store) -> None:
    """Or it would look for it again after it is gone."""
    app = Consumer("c", read="in", state=PendingState(), shards=2, partition="key")
    app.consume(lambda message, state, publish: publish("out", message.body))
    keys = [b"k%d" % number for number in range(50)]
    others = [key for key in keys if not key_filter(1, 2)(detent.Message(body=b"", key=key, producer=b"", clock=0))]
    store.journal("in").append_many([(b"x", key) for key in others])
    shard_of(store, app, shard=1).run(once=True)
    store.journal("in").trim(len(others))
    shard_of(store, app, shard=1).run(once=True)
    assert committed(store, "out") == []


def test_a_shard_that_starts_again_says_how_far_it_has_written(store: detent.Store) -> None:
    for state in (PendingState(), EngineState()):
        app = echo(type(state).__name__, state=state)
        store.journal("in").append(b"a")
        with pytest.raises(Unavailable):
            one = shard_of(store, app)
            commit = one._state.commit
            one._state.commit = lambda *given, commit=commit: (commit(*given), fail())  # type: ignore[method-assign]
            one.run(once=True)
        again = shard_of(store, app)
        again.run(once=True)
        assert again._progress.published == {"out": store.journal("out").next_offset()}


def fail() -> None:
    raise Unavailable("died after the commit")


def test_what_ended_with_its_transaction_cannot_be_used(store: detent.Store) -> None:
    kept: list[Any] = []
    app = Consumer("c", read="in", state=PendingState())

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        kept.append(publish)
        kept[0]("out", message.body)

    store.journal("in").append(b"a")
    shard_of(store, app).run(once=True)
    store.journal("in").append(b"b")
    with pytest.raises(Invalid, match="belongs to a transaction that has ended"):
        shard_of(store, app).run(once=True)
    assert committed(store, "out") == [b"a"]


def test_a_function_with_a_yield_is_refused() -> None:
    app = Consumer("c", read="in")

    def consume(message: Any, state: Any, publish: Any) -> Any:
        yield message

    async def finalize(transaction: Any) -> Any:
        yield transaction

    for decorate, function in ((app.consume, consume), (app.finalize, finalize), (app.consume, 7)):
        with pytest.raises(Invalid):
            decorate(function)


# -- keys, class, async -----------------------------------------------------------------------------------------


def test_shards_by_key_divide_the_messages(store: detent.Store) -> None:
    seen: dict[int, list[bytes]] = {}
    app = Consumer("c", read="in", state=PendingState(), shards=3, partition="key")
    entries = [(b"%d" % number, b"key %d" % (number % 10)) for number in range(200)]
    store.journal("in").append_many([*entries, b"no key"])
    for index in range(3):
        seen[index] = []
        app._consume = lambda message, state, publish, index=index: seen[index].append(message.body)
        shard = shard_of(store, app, shard=index)
        shard.run(once=True)
        assert shard._progress.processed == {"in": 201}, "what is not its own counts as done"
    assert sorted(body for some in seen.values() for body in some) == sorted([*(b for b, _ in entries), b"no key"])
    assert all(seen.values())
    for some in seen.values():
        numbers = [int(body) for body in some if body != b"no key"]
        assert numbers == sorted(numbers)
    assert key_filter(0, 3)(detent.Message(body=b"", producer=b"", clock=0))


def test_an_application_as_a_class(store: detent.Store) -> None:
    class Words:
        def __init__(self) -> None:
            self.transactions = 0

        def consume(self, message: Any, state: Any, publish: Any) -> None:
            for word in message.body.decode().split():
                state[word] = state.get(word, 0) + 1

        def finalize(self, transaction: Any) -> None:
            self.transactions += 1
            transaction.publish("totals", str(dict(transaction.state)).encode())

    words = Words()
    app = Consumer("words", read="in", application=words)
    store.journal("in").append_many([b"a b a", b"b"])
    app.run(store=store, once=True)
    assert committed(store, "totals") == [b"{'a': 2, 'b': 2}"]
    assert words.transactions == 1


def test_asynchronous_functions(store: detent.Store) -> None:
    app = Consumer("c", read="in")
    loops = set()

    @app.consume
    async def consume(message: Any, state: Any, publish: Any) -> None:
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        publish("out", message.body)

    @app.finalize
    async def finalize(transaction: Any) -> None:
        await asyncio.sleep(0)
        transaction.publish("totals", b"%d" % transaction.messages)

    store.journal("in").append_many([b"a", b"b"])
    app.run(store=store, once=True)
    assert committed(store, "out") == [b"a", b"b"]

    async def on_my_loop() -> None:
        loops.clear()
        store.journal("in").append(b"c")
        await app.run_async(store=store, once=True)
        assert loops == {id(asyncio.get_running_loop())}

    asyncio.run(on_my_loop())
    assert committed(store, "out") == [b"a", b"b", b"c"]
    assert committed(store, "totals") == [b"2", b"1"]


def test_an_asynchronous_run_ends_when_it_is_cancelled(store: detent.Store) -> None:
    app = Consumer("c", read="in")

    @app.consume
    async def consume(message: Any, state: Any, publish: Any) -> None:
        await asyncio.sleep(0)
        publish("out", message.body)

    async def main() -> None:
        task = asyncio.create_task(app.run_async(store=store))
        store.journal("in").append(b"a")
        async with asyncio.timeout(30):
            while not committed(store, "out"):
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert committed(store, "out") == [b"a"]
    assert not [one.name for one in threading.enumerate() if one.name.startswith(("detent-shard", "detent-watch"))]


def test_what_cannot_be_a_consumer() -> None:
    for wrong in (
        {"read": []},
        {"read": ["a", "a"]},
        {"read": "no good"},
        {"read": "a", "shards": 0},
        {"read": "a", "partition": "tables"},
        {"read": "a", "outputs": {"": "memory:"}},
        {"read": "a", "min_transaction": "2s"},
        {"read": "a", "max_transaction": "0s"},
        {"read": "a", "lease": "1ms"},
        {"read": "a", "state": "sqlite://"},
        {"read": "a", "standbys": -1},
    ):
        with pytest.raises(Invalid):
            Consumer("c", **wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Consumer("no good", read="a")
    with pytest.raises(Invalid):
        Consumer("c" * 151, read="a")
    app = Consumer("c", read="a")
    with pytest.raises(Invalid, match="consumes nothing"):
        app.run(store="memory:", once=True)
    app.consume(lambda *_: None)
    with pytest.raises(Invalid, match="already"):
        app.consume(lambda *_: None)
    with pytest.raises(Invalid, match="no store"):
        app.run(once=True)


def test_another_number_of_shards_is_refused(store: detent.Store) -> None:
    register(store, echo())
    with pytest.raises(Conflict, match="1 shards, not 2"):
        echo(shards=2).run(store=store, once=True)


def test_gates_are_fair() -> None:
    """The tests' own tool: what waits at a gate has not passed it."""
    gate, passed = Gate(), []
    gate.shut()
    thread = threading.Thread(target=lambda: (gate.pass_through(), passed.append(1)))
    thread.start()
    gate.wait_reached()
    assert passed == []
    gate.open()
    thread.join()
    assert passed == [1]


def test_pending_state_is_fenced_like_the_others(store: detent.Store) -> None:
    app = echo()
    first = app.state.open(store, shard_of(store, app)._given.name)
    first.restore()
    app.state.open(store, shard_of(store, app)._given.name).restore()
    with pytest.raises(Fenced):
        first.commit(first.seal(first.begin(lambda: None)), Checkpoint(), [])
