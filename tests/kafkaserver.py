"""A loopback Kafka broker for tests: its jars come from Maven Central once, into a folder of the user's cache.

    with kafka_broker() as broker:
        broker.brokers               # 127.0.0.1:PORT
        broker.topic("orders", partitions=2)
        broker.kill(); broker.start()    # its data stays

`shared_broker()` starts one once per test process. `needs_kafka` skips tests where Java, Maven or the client library is
missing, and says which.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mavenjars import Jar, Jars
from servers import HOST, await_answer, free_port, shared, stop

VERSION = "4.3.1"
START_SECONDS = 90.0

_JARS = Jars(f"kafka-{VERSION}", (Jar("org.apache.kafka", "kafka_2.13", VERSION),))

SASL_PASSWORD = "of-the-bridge"
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_bridge="{SASL_PASSWORD}";'

_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},SASL_PLAINTEXT://{host}:{sasl_port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},SASL_PLAINTEXT://{host}:{sasl_port}
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={jaas}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=1000
auto.create.topics.enable=false
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=200
"""


def missing() -> str | None:
    """Why there can be no broker here; None if there can."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed"
    return _JARS.missing()


needs_kafka = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Broker:
    """A broker of one process, whose data outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._sasl_port, controller = free_port(), free_port(), free_port()
        self._properties = folder / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(
                host=HOST,
                port=self._port,
                sasl_port=self._sasl_port,
                jaas=_JAAS,
                controller=controller,
                folder=folder,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        cluster = uuid.uuid4().hex[:22]
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)).check_returncode()

    @property
    def brokers(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self._port}"

    @property
    def sasl_brokers(self) -> str:
        """Where it listens to those who log in: by the mechanism PLAIN, as `bridge` with `SASL_PASSWORD`."""
        return f"{HOST}:{self._sasl_port}"

    def _java(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self._command(*words), capture_output=True, timeout=120, check=False)

    def _command(self, *words: str) -> list[str]:
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return ["java", *options, "-cp", f"{_JARS.folder()}/*", *words]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = self._folder / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._properties)), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        await_answer(self._process, self._answers, log, START_SECONDS)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), 0.5):
            try:
                found = AdminClient({"bootstrap.servers": self.brokers}, logger=_quiet()).list_topics(timeout=2)
            except KafkaException:
                return False
            return bool(found.brokers)
        return False

    def kill(self) -> None:
        """End it as by kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            stop(self._process)

    # -- what tests ask of it -----------------------------------------------------------------------------------

    @functools.cached_property
    def admin(self) -> Any:
        """A client for topics and groups."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.brokers}, logger=_quiet())

    def topic(self, name: str, *, partitions: int = 1, **config: str) -> str:
        """Make a topic; its name. Settings are written with underscores for dots."""
        from confluent_kafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([name])[name].result(30)

    def produce(self, topic: str, values: Sequence[Any], *, partition: int = -1) -> None:
        """Append records: values, or (key, value) or (key, value, headers)."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.brokers, "enable.idempotence": True}, logger=_quiet())
        for value in values:
            key, body, headers = (*value, None)[:3] if isinstance(value, tuple) else (None, value, None)
            place = {} if partition < 0 else {"partition": partition}
            while True:
                try:
                    producer.produce(topic, body, key, headers=headers, **place)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def read(self, topic: str, *, partitions: int = 1) -> list[Any]:
        """All committed records, partition by partition."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        settings = {
            "bootstrap.servers": self.brokers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        consumer = Consumer(settings, logger=_quiet())
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found, ended = [], 0
        while ended < partitions:
            message = consumer.poll(30)
            assert message is not None, f"{topic} could not be read"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended += 1
        consumer.close()
        return found


def _quiet() -> Any:
    """Where a client's own lines go: a broker that is killed is no news in a test."""
    return logging.getLogger("tests.kafka")


@contextlib.contextmanager
def kafka_broker() -> Iterator[Broker]:
    """Start a broker on free ports; stop it by its process id at the end."""
    folder = Path(tempfile.mkdtemp(prefix="detent-kafka-"))
    try:
        broker = Broker(folder)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


shared_broker = shared(kafka_broker)
