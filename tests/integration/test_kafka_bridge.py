"""Bridges to a real broker: what arrives, what is refused, and what a replaced bridge can still do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.errors import Conflict, Denied, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.kafka import FromTopic, ToTopic, outward
from detent.kafka.inward import Inward
from detent.kafka.looking import StoredBridge
from detent.kafka.outward import Outward
from detent.runtime.report import State
from detent.shard import operations as ops
from kafkaserver import SASL_PASSWORD, Broker, needs_kafka, shared_broker
from kafkaworld import declared
from processes import eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bridges" / "copies.py"
pytestmark = [needs_kafka, pytest.mark.xdist_group("kafka")]


@pytest.fixture
def broker() -> Broker:
    return shared_broker()


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as opened:
        yield opened


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).removeprefix("test_")[:60]


def bodies(store: detent.Store, journal: str) -> list[bytes]:
    return [message.body for message in store.journal(journal).read()]


def values(broker: Broker, topic: str, partitions: int = 1) -> list[Any]:
    return [message.value() for message in broker.read(topic, partitions=partitions)]


def test_committed_records_go_through_a_store_and_out_again_as_they_were(
    broker: Broker, store: detent.Store, name: str
) -> None:
    from confluent_kafka import Producer

    broker.topic(name)
    broker.topic(f"out-{name}")
    broker.produce(name, [(b"k", b"1", [("a", b"x"), ("a", b"\xff")]), (b"k", None), (None, b"")])
    producer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"aborted")
    producer.flush(30)
    producer.abort_transaction(30)
    broker.produce(name, [b"last"])
    inward, outward = declared("in", name, broker.brokers), declared("out", name, broker.brokers)
    for _ in range(2):  # the second time there is nothing to do
        inward.run(store=store, once=True)
        outward.run(store=store, once=True)
    assert bodies(store, name) == [b"1", b"", b"", b"last"]
    found = broker.read(f"out-{name}")
    assert [(one.key(), one.value()) for one in found] == [(b"k", b"1"), (b"k", None), (None, b""), (None, b"last")]
    assert found[0].headers()[:2] == [("a", b"x"), ("a", b"\xff")]
    assert [one.timestamp() for one in found] == [one.timestamp() for one in broker.read(name)]
    report = StoredBridge(store, inward.consumer, inward).report()
    assert report.progress == {"taken": 4, "absent": 2, "skipped": 0, "letters": 0}, (
        "the aborted record, and the word that it was"
    )
    assert (report.lag, report.state) == (0, State.STOPPED)


def test_partition_that_is_added_is_read_from_its_first_record(broker: Broker, store: detent.Store, name: str) -> None:
    from confluent_kafka.admin import NewPartitions

    broker.topic(name)
    broker.produce(name, [b"old"])
    bridge = FromTopic(name, topic=name, queue=name, brokers=broker.brokers, start="latest", shards=2)
    store.queue(name).create()
    bridge.run(store=store, once=True)
    broker.admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    for number in range(3):
        broker.produce(name, [(b"key", b"%d" % number)], partition=number)
    bridge.run(store=store, once=True)
    found = store.queue(name).claim(10)
    assert sorted(one.body for one in found) == [b"0", b"1", b"2"], "latest leaves out what was there before alone"
    assert found[0].headers["kafka.key"] == "key"


def test_what_was_deleted_or_made_anew_is_refused_and_a_reset_goes_on(
    broker: Broker, store: detent.Store, name: str
) -> None:
    from confluent_kafka import TopicPartition

    broker.topic(name)
    broker.produce(name, [b"0", b"1", b"2"])
    bridge = declared("in", name, broker.brokers)
    bridge.run(store=store, once=True)
    broker.produce(name, [b"3", b"4", b"5"])
    where = TopicPartition(name, 0, 5)
    broker.admin.delete_records([where])[where].result(30)
    with pytest.raises(Conflict, match=r"up to offset 3, and begins at 5.*--accept gap"):
        bridge.run(store=store, once=True)
    assert bodies(store, name) == [b"0", b"1", b"2"]
    declared("in", name, broker.brokers, accept=["gap"]).run(store=store, once=True)
    broker.delete_topic(name)
    eventually(lambda: name not in broker.admin.list_topics(timeout=5).topics)
    broker.topic(name)
    broker.produce(name, [b"new"] * 9)
    with pytest.raises(Conflict, match=r"made anew.*--accept new-topic"):
        bridge.run(store=store, once=True)
    StoredBridge(store, bridge.consumer, bridge).reset("earliest")
    bridge.run(store=store, once=True)
    assert bodies(store, name) == [b"0", b"1", b"2", b"5", *[b"new"] * 9]


def test_compacted_topic_is_refused(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(name, cleanup_policy="compact")
    with pytest.raises(Conflict, match="compacted"):
        declared("in", name, broker.brokers).run(store=store, once=True)


def test_replaced_bridge_commits_nothing_inward(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(name)
    broker.produce(name, [b"0", b"1"])
    bridge = declared("in", name, broker.brokers)
    store.commit([_registered(bridge)])
    old = Inward(bridge, store, 0, once=True)
    old.open()
    bridge.run(store=store, once=True)
    with pytest.raises(Fenced):
        old.step()
    old.close()
    assert bodies(store, name) == [b"0", b"1"]


def test_replaced_bridge_commits_nothing_outward(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(f"out-{name}")
    store.journal(name).append_many([b"0", b"1"])
    bridge = declared("out", name, broker.brokers)
    store.commit([_registered(bridge)])
    old = Outward(bridge, store, 0, once=True, wake=lambda: None)
    old.open()
    bridge.run(store=store, once=True)
    with pytest.raises(Fenced):
        old.step()
    old.close()
    assert values(broker, f"out-{name}") == [b"0", b"1"]


@pytest.mark.parametrize("times", [1, 99], ids=["once", "always"])
def test_producer_that_was_fenced_in_passing_goes_on_and_one_with_a_twin_ends(
    broker: Broker, store: detent.Store, name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka fences a producer also because its transaction took too long: nothing is wrong with the next one."""
    from confluent_kafka import Producer

    name = f"fenced-{times}"
    broker.topic(f"out-{name}")
    store.journal(name).append_many([b"0", b"1"])
    bridge: ToTopic = declared("out", name, broker.brokers)
    add, strangers = Outward._add_mark, []

    def fenced(self: Outward, found: Any) -> None:
        if len(strangers) < times:
            strangers.append(Producer({"bootstrap.servers": broker.brokers, "transactional.id": bridge.group}))
            strangers[-1].init_transactions(30)
        add(self, found)

    monkeypatch.setattr(Outward, "_add_mark", fenced)
    if times > 1:
        with pytest.raises(Fenced, match="same transactional id"):
            bridge.run(store=store, once=True)
        assert len(strangers) == 3
    else:
        bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == ([] if times > 1 else [b"0", b"1"])


def test_call_that_is_left_behind_is_counted_and_its_transaction_is_not_committed(
    broker: Broker, store: detent.Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topic(f"out-{name}")
    store.journal(name).append_many([b"0"])
    bridge: ToTopic = declared("out", name, broker.brokers)
    store.commit([_registered(bridge)])
    monkeypatch.setattr(outward, "MARK_S", 0.2)
    monkeypatch.setattr(outward, "LEFT_MAX", 1)
    answer = threading.Event()

    class Slow:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, part: str) -> Any:
            return getattr(self._producer, part)

        def send_offsets_to_transaction(self, *_: Any) -> None:
            answer.wait(60)

    lives = [Outward(bridge, store, 0, once=True, wake=lambda: None) for _ in range(2)]
    lives[0].open()
    lives[0]._producer = Slow(lives[0]._producer)  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="did not take the mark"):
        lives[0].step()
    lives[0].close()
    monkeypatch.setattr(outward, "MARK_S", 10.0)
    lives[1].open()
    with pytest.raises(Unavailable, match="start this process anew"):
        lives[1].step()
    lives[1].close()
    answer.set()
    assert eventually(lambda: not any(one.is_alive for one in Outward.left))
    bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == [b"0"]


def test_what_is_not_there_is_named(broker: Broker, store: detent.Store, name: str) -> None:
    with pytest.raises(NotFound, match=f"there is no topic '{name}' at .*create it"):
        Inward(declared("in", name, broker.brokers), store, 0, once=True)._cluster.describe(name)
    broker.topic(name)
    bridge = FromTopic(name, topic=name, queue="nowhere", brokers=broker.brokers)
    with pytest.raises(Conflict, match=r"there is no queue 'nowhere'.*detent queue create memory: nowhere"):
        bridge.run(store=store)


def test_bridge_that_is_removed_while_it_runs_ends(broker: Broker, store: detent.Store, name: str) -> None:
    from detent.kafka.running import opened

    broker.topic(name)
    bridge = declared("in", name, broker.brokers)
    with opened(bridge, store) as running:
        removal = ops.DeleteConsumer(bridge.consumer, force=True)

        def remove() -> None:
            if running.report().state is State.RUNNING and store.consumers("bridge/"):
                store.commit([removal])
                broker.produce(name, [b"late"])

        with pytest.raises(Conflict, match="was removed while it ran"):
            running.run(threading.Event(), look=remove)
    assert not store.reader.whereabouts(name)


def test_batch_is_cut_by_its_headers_too(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(name)
    broker.produce(name, [(None, b"%d" % number, [("a", b"y" * 60_000)]) for number in range(600)])
    declared("in", name, broker.brokers, batch=5_000).run(store=store, once=True)
    assert bodies(store, name) == [b"%d" % number for number in range(600)]
    assert len({message.published_ms for message in store.journal(name).read()}) > 1, "in several transactions"


def test_record_that_a_message_cannot_hold_ends_a_bridge_or_becomes_one_dead_letter(
    broker: Broker, store: detent.Store, name: str
) -> None:
    broker.topic(name, max_message_bytes=str(32 << 20))
    broker.produce(name, [b"0", (b"k", b"1", [("large", b"y" * 70_000)]), b"2"])
    with pytest.raises(LimitExceeded, match=r"partition 0, offset 1, .*headers of .*--dead-letters JOURNAL"):
        declared("in", name, broker.brokers).run(store=store, once=True)
    assert name not in store.journals(), "its neighbours wait with it"
    bridge: FromTopic = declared("in", name, broker.brokers, dead_letters=f"dead-{name}")
    for _ in range(2):
        bridge.run(store=store, once=True)
    assert bodies(store, name) == [b"0", b"2"]
    (letter,) = store.journal(f"dead-{name}").read()
    assert (letter.body, letter.key, letter.headers["kafka.offset"]) == (b"1", b"k", "1")
    assert (letter.headers["kafka.left"], "over the limit" in letter.headers["kafka.refused"]) == ("1 headers", True)
    report = StoredBridge(store, bridge.consumer, bridge).report()
    assert (report.progress, report.lag) == ({"taken": 2, "absent": 0, "skipped": 0, "letters": 1}, 0)


def test_bridge_logs_in_with_the_settings_of_its_file_and_not_without(
    broker: Broker, store: detent.Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topic(name)
    broker.produce(name, [b"0"])
    settings = tmp_path / "kafka.properties"
    monkeypatch.setenv("DETENT_KAFKA_CONFIG", str(settings))
    lines = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=bridge"]
    bridge = declared("in", name, broker.sasl_brokers)
    settings.write_text("\n".join([*lines, "sasl.password=wrong"]))
    with pytest.raises((Denied, Unavailable), match=r"(?i)credentials|authentication"):
        bridge.cluster().describe(name)
    settings.write_text("\n".join([*lines, f"sasl.password={SASL_PASSWORD}"]))
    bridge.run(store=store, once=True)
    declared("out", name, broker.sasl_brokers, topic=name).run(store=store, once=True)
    assert bodies(store, name) == [b"0"]
    assert values(broker, name) == [b"0", b"0"], "the producer logged in as well"


def _registered(bridge: Any) -> Any:
    return ops.RegisterConsumer(bridge.consumer, bridge.shards, bridge.inputs)


def test_forgotten_mark_is_refused_and_nothing_is_written(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(f"out-{name}")
    store.journal(name).append_many([b"0", b"1"])
    bridge = declared("out", name, broker.brokers)
    bridge.run(store=store, once=True)
    store.journal(name).append(b"2")
    broker.admin.delete_consumer_groups([bridge.group])[bridge.group].result(30)
    with pytest.raises(Conflict, match=r"up to 2 .*expired.*--accept lost-mark"):
        bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == [b"0", b"1"]
    accepted = declared("out", name, broker.brokers, accept=["lost-mark"])
    accepted.run(store=store, once=True)
    bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == [b"0", b"1", b"2"]
    StoredBridge(store, bridge.consumer).reset("earliest")
    bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == [b"0", b"1", b"2"] * 2, "a reset writes all of them again"


def test_message_that_a_topic_does_not_take_is_named(broker: Broker, store: detent.Store, name: str) -> None:
    broker.topic(f"out-{name}", max_message_bytes="2000")
    store.journal(name).append_many([b"small", b"x" * 5000])
    bridge: ToTopic = declared("out", name, broker.brokers, batch=1)
    with pytest.raises(LimitExceeded, match=f"message 1 of '{name}'"):
        bridge.run(store=store, once=True)
    assert values(broker, f"out-{name}") == [b"small"]


def test_commands_run_look_at_and_steer_bridges(broker: Broker, name: str, tmp_path: Any) -> None:
    from click.testing import CliRunner

    from detent.cli import cli

    def run(*words: str, code: int = 0) -> str:
        environment = {"DETENT_KAFKA_BROKERS": broker.brokers, "DETENT_URL": f"file:{tmp_path}/data"}
        found = CliRunner().invoke(cli, words, env=environment)
        assert found.exit_code == code, (found.output, found.exception)
        return found.output

    broker.topic("commands")
    broker.topic("copies")
    broker.produce("commands", [b"0", b"1"])
    file = tmp_path / "bridges.py"
    file.write_text(
        "from detent.kafka import FromTopic, ToTopic\n"
        "orders = FromTopic('commands', topic='commands', journal='orders')\n"
        "copies = ToTopic('copies', journal='orders', topic='copies')\n"
    )
    assert "topic commands" in run("run", str(file), "--check")
    assert '"taken": 2' in run("bridge", "kafka", "in", "commands", "--journal", "orders", "--once", "--json")
    run("run", str(file), "--once")
    assert values(broker, "copies") == [b"0", b"1"]
    assert "bridge/copies" in run("ls")
    assert "2 written" in run("ls", str(file))
    run("wait", f"{file}:orders")
    run("pause", "bridge/copies")
    assert "paused" in run("show", "bridge/copies")
    run("resume", "bridge/copies")
    run("reset", "bridge/copies", "--yes")
    run("bridge", "kafka", "out", "orders", "--topic", "copies", "--name", "copies", "--once")
    assert values(broker, "copies") == [b"0", b"1"] * 2
    run("rm", "bridge/copies", "--yes")
    assert "bridge/copies" not in run("ls")
    with pytest.raises(Invalid, match="a bridge can accept"):
        cli.main(["run", str(file), "--accept", "everything"], standalone_mode=False)


def test_example_sums_each_order_once(broker: Broker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from detent.cli import cli

    monkeypatch.setenv("DETENT_KAFKA_BROKERS", broker.brokers)
    monkeypatch.setenv("DETENT_URL", f"file:{tmp_path}/data")
    broker.topic("orders")
    broker.topic("totals")
    for amounts in ([1, 2], [4]):
        broker.produce("orders", [json.dumps({"customer": "Ada", "amount": amount}).encode() for amount in amounts])
        for name in ("orders", "sums", "totals"):
            cli.main(["run", f"{EXAMPLE}:{name}", "--once"], standalone_mode=False)
    assert [json.loads(value)["total"] for value in values(broker, "totals")] == [1, 3, 7]
