"""The seven rules of order that carry exactly once while one transaction commits and the next one is consumed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import detent
from detent.consumer import Consumer
from detent.errors import Fenced, Invalid, Unavailable
from detent.journal import Publisher
from detent.message import ACK_TXN, CONTINUE_TXN
from processes import eventually
from shardunit import GatedState, committed, echo, letters, living, rows, shard_of


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as store:
        yield store


def test_rule_1_clocks_tick_in_the_order_of_appends(store: detent.Store) -> None:
    """Several threads publish through one publisher: no lower clock lands behind a higher one, and none is dropped."""
    publisher = store.publisher()

    def publish(name: int) -> None:
        for number in range(50):
            publisher.publish_uncommitted("out", [b"%d-%d" % (name, number)])

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.acknowledge(publisher.build_ack_intents())
    assert len(committed(store, "out")) == 200
    assert all(low.clock < high.clock for low, high in pairwise(rows(store, "out")))


def test_rule_2_an_acknowledgement_lies_between_its_transaction_and_the_next(store: detent.Store) -> None:
    state = GatedState()
    app = echo(state=state)
    with living(shard_of(store, app)) as life:
        for number in range(5):
            store.journal("in").append(b"%d" % number)
            life.wait_processed(**{"in": number + 1})
    found = rows(store, "out")
    assert [row.flags for row in found] == [CONTINUE_TXN, ACK_TXN] * 5
    assert all(low.clock < high.clock for low, high in pairwise(found)), "clocks rise, whatever the wall clock does"
    promised = [intent.clock for checkpoint in state.commits for intent in checkpoint.intents.get("", [])]
    assert promised == [row.clock for row in found if row.flags == ACK_TXN], "written as they were kept"


def test_rule_3_nothing_of_the_next_transaction_lands_before_the_acknowledgement(store: detent.Store) -> None:
    """Were it there, the late acknowledgement would roll it back."""
    state = GatedState()
    consumed: list[bytes] = []
    app = Consumer("c", read="in", state=state)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        consumed.append(message.body)
        publish("out", message.body)

    state.gate.shut()
    with living(shard_of(store, app)) as life:
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        store.journal("in").append(b"b")
        eventually(lambda: consumed == [b"a", b"b"], what="the next transaction, while this one commits")
        assert letters(store, "out") == "a", "b was consumed and published, and waits its turn"
        state.gate.open()
        life.wait_processed(**{"in": 2})
    assert letters(store, "out") == "a . b ."
    assert committed(store, "out") == [b"a", b"b"]


def test_rule_4_messages_are_durable_before_the_checkpoint(store: detent.Store) -> None:
    state = GatedState()
    seen: list[str] = []
    state.before = lambda checkpoint: seen.append(letters(store, "out"))
    store.journal("in").append_many([b"a", b"b"])
    shard_of(store, echo(state=state)).run(once=True)
    assert seen[0] == "a b", "pending, all of them, when the commit begins"


def test_rule_4_a_failed_append_stops_the_commit(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = GatedState()
    store.journal("in").append(b"a")

    def fail(self: Publisher, entries: Any) -> Any:
        raise Unavailable("the network is down")

    monkeypatch.setattr(Publisher, "publish_uncommitted_many", fail)
    with pytest.raises(Unavailable, match="network"):
        shard_of(store, echo(state=state)).run(once=True)
    assert state.commits == []
    monkeypatch.undo()
    shard_of(store, echo(state=state)).run(once=True)
    assert committed(store, "out") == [b"a"]


def test_rule_5_no_acknowledgement_before_the_commit(store: detent.Store) -> None:
    state = GatedState()
    state.gate.shut()
    with living(shard_of(store, echo(state=state))) as life:
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        assert letters(store, "out") == "a"
        assert committed(store, "out") == []
        state.gate.open()
        life.wait_processed(**{"in": 1})
    assert letters(store, "out") == "a ."


def test_rule_5_a_commit_that_is_refused_acknowledges_nothing(store: detent.Store) -> None:
    state = GatedState()
    app = echo(state=state)
    state.gate.shut()
    zombie = shard_of(store, app)
    with pytest.raises(Fenced), living(zombie):
        store.journal("in").append(b"a")
        state.gate.wait_reached()
        app.state.open(store, zombie._given.name).restore()
        state.gate.open()
        eventually(lambda: not zombie._committer or zombie._committer._failure, what="the refusal")
    assert letters(store, "out") == "a", "pending for ever: no acknowledgement was written"
    assert committed(store, "out") == []


def test_rule_6_all_acknowledgements_are_written_before_the_next_commit(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = GatedState()
    steps: list[str] = []
    inside, go_on = threading.Event(), threading.Event()
    acknowledge = Publisher.acknowledge

    def slowly(self: Publisher, intents: Any) -> None:
        steps.append("ack")
        inside.set()
        assert go_on.wait(30)
        acknowledge(self, intents)
        steps.append("acked")

    monkeypatch.setattr(Publisher, "acknowledge", slowly)
    state.before = lambda checkpoint: steps.append(f"commit {checkpoint.offsets['in']}")
    with living(shard_of(store, echo(state=state))) as life:
        store.journal("in").append(b"a")
        assert inside.wait(30)
        store.journal("in").append(b"b")
        eventually(lambda: life.shard._sources.offsets()["in"] == 2, what="b consumed meanwhile")
        assert steps == ["commit 1", "ack"], "the next one has not begun to commit"
        go_on.set()
        life.wait_processed(**{"in": 2})
    assert steps[:6] == ["commit 1", "ack", "acked", "commit 2", "ack", "acked"]


def test_rule_7_each_life_has_a_producer_of_its_own(store: detent.Store) -> None:
    """So acknowledgements that are sent again can never roll back what is new."""
    app = echo(state=GatedState())
    for number in range(3):
        store.journal("in").append(b"%d" % number)
        shard_of(store, app).run(once=True)
    producers = [row.producer for row in rows(store, "out") if row.flags == CONTINUE_TXN]
    assert len(set(producers)) == 3
    assert committed(store, "out") == [b"0", b"1", b"2"]


def test_rule_7_a_live_producer_passes_over_acknowledgements_it_has_sent(store: detent.Store) -> None:
    publisher = store.publisher()
    publisher.publish_uncommitted("out", [b"a"])
    first = publisher.build_ack_intents()
    publisher.acknowledge(first)
    publisher.publish_uncommitted("out", [b"b"])
    publisher.acknowledge(first)
    assert letters(store, "out") == "a . b", "not sent again: it would roll back b"
    publisher.acknowledge(publisher.build_ack_intents())
    assert committed(store, "out") == [b"a", b"b"]


def test_a_publisher_refuses_messages_before_its_acknowledgement(store: detent.Store) -> None:
    publisher = store.publisher()
    publisher.publish_uncommitted("out", [b"a"])
    publisher.build_ack_intents()
    with pytest.raises(Invalid, match="acknowledge them first"):
        publisher.publish_uncommitted_many({"other": [b"x"], "out": [b"b"]})
    assert letters(store, "other") == "", "all or none"
