"""Messages a second through a bridge, beside a bare consumer and a bare producer of transactions.

The bare consumer reads committed records in batches, commits its offsets after each, and drops the records. The bare
producer writes bodies that it has in memory, in transactions of the same size with an offset in each.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, Skipped, Suite
from bench.place import Place
from detent.kafka import FromTopic, ToTopic

SUITE = Suite("kafka")
BATCH = 5_000
BODY = b"x" * 100
NOTE = "bodies of 100 bytes with keys, transactions of 5,000, one partition; Detent syncs its store at each"


def _server() -> Any:
    """The broker of the tests."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    found = importlib.import_module("kafkaserver")
    if (reason := found.missing()) is not None:
        raise Skipped(reason)
    return found


@SUITE.measurement("kafka")
@contextmanager
def both_directions(place: Place, size: Size) -> Iterator[Plan]:
    """Each side works over the same records, and each round under a name of its own."""
    total, names = size.of(200_000, 20_000), count()
    with _server().kafka_broker() as broker, place.fresh() as folder, detent.open(f"file:{folder}") as store:
        broker.topic("in")
        broker.topic("out")
        entries = [(BODY, b"%d" % (number % 1000)) for number in range(total)]
        broker.produce("in", [(key, body) for body, key in entries])
        for at in range(0, total, BATCH):
            store.journal("out").append_many(entries[at : at + BATCH])

        def inward(**options: Any) -> float:
            name = f"in-{next(names)}"
            bridge = FromTopic(name, topic="in", journal=name, brokers=broker.brokers, batch=BATCH, **options)
            began = time.perf_counter()
            bridge.run(store=store, once=True)
            taken = time.perf_counter() - began
            assert store.reader.next_offset(name) == total
            store.journal(name).delete()
            return total / taken

        def outward() -> float:
            name = f"out-{next(names)}"
            bridge = ToTopic(name, journal="out", topic="out", brokers=broker.brokers, batch=BATCH)
            began = time.perf_counter()
            bridge.run(store=store, once=True)
            return total / (time.perf_counter() - began)

        yield Plan(
            {
                "inward": inward,
                "plain": lambda: inward(origin=False),
                "consumer": lambda: total / _consume(broker.brokers, f"group-{next(names)}", total),
                "outward": outward,
                "producer": lambda: total / _produce(broker.brokers, f"id-{next(names)}", entries),
            },
            [
                Row("topic to journal", "messages/s", "inward", INFORMATIVE, "consumer", NOTE),
                Row("the same without kafka.* headers", "messages/s", "plain", INFORMATIVE, "consumer", NOTE),
                Row("journal to topic", "messages/s", "outward", INFORMATIVE, "producer", NOTE),
            ],
        )


def _consume(brokers: str, group: str, total: int) -> float:
    """Seconds that a bare consumer takes."""
    from confluent_kafka import Consumer, TopicPartition

    began = time.perf_counter()
    settings = {"bootstrap.servers": brokers, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("in", 0, 0)])
    taken = 0
    while taken < total:
        found = consumer.consume(BATCH, 0.5)
        if found:
            assert sum(len(message.value()) for message in found) == len(BODY) * len(found)
            taken += len(found)
            consumer.commit(offsets=[TopicPartition("in", 0, taken)], asynchronous=False)
    consumer.close()
    return time.perf_counter() - began


def _produce(brokers: str, name: str, entries: list[tuple[bytes, bytes]]) -> float:
    """Seconds that a bare producer of transactions takes."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    began = time.perf_counter()
    group = Consumer({"bootstrap.servers": brokers, "group.id": name})
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": name, "linger.ms": 5})
    producer.init_transactions(30)
    for at in range(0, len(entries), BATCH):
        producer.begin_transaction()
        for body, key in entries[at : at + BATCH]:
            producer.produce("out", body, key)
        mark = TopicPartition("out", 0, at + BATCH)
        producer.send_offsets_to_transaction([mark], group.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
    group.close()
    return time.perf_counter() - began
