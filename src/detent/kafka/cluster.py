"""The client library of Kafka: how it is configured, what a topic is, and its errors as ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Denied, DetentError, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.extras import install_command
from detent.kafka.place import Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

ANSWER_S: Final = 15.0
"""How long a question to the cluster may take."""

OURS: Final = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "group.instance.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "isolation.level",
        "enable.partition.eof",
        "transactional.id",
        "enable.idempotence",
        "acks",
        "check.crcs",
        "allow.auto.create.topics",
    }
)
"""What the promise hangs on, and a bridge therefore sets by itself."""

logger = logging.getLogger("detent.kafka")


def read_config(path: str | Path) -> dict[str, str]:
    """Settings of the client library from a file of lines ``name=value``; lines that begin with # say nothing."""
    found: dict[str, str] = {}
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the configuration {path} cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if not equals:
                raise Invalid(f"line {number} of {path} is not name=value")
            found[name.strip()] = value.strip()
    return found


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`Invalid` if settings would break what a bridge promises."""
    if taken := sorted(OURS & config.keys()):
        raise Invalid(f"a bridge sets {taken[0]!r} itself: leave it out of the configuration")
    return dict(config)


class Cluster:
    """A Kafka cluster: clients of it, and what it says of topics."""

    def __init__(self, brokers: str, config: Mapping[str, Any]) -> None:
        self.brokers = brokers
        self._config = {**config, "bootstrap.servers": brokers}
        self._made: AdminClient | None = None

    @property
    def _admin(self) -> AdminClient:
        if self._made is None:
            imported()
            from confluent_kafka.admin import AdminClient

            with translated(self.brokers):
                self._made = AdminClient(self._config, logger=logger)
        return self._made

    def consumer(self, group: str) -> Consumer:
        """A consumer of committed records that joins no group, commits no offsets, and never resets one by itself."""
        imported()
        from confluent_kafka import Consumer

        settings = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": 65_536,
            **self._config,
        }
        with translated(self.brokers):
            return Consumer(settings, logger=logger)

    def producer(self, transactional_id: str, timeout_ms: int) -> Producer:
        """A producer of transactions. Keys choose partitions as with Kafka's own clients."""
        imported()
        from confluent_kafka import Producer

        settings = {
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "delivery.report.only.error": True,  # that a message arrived, the commit says for all
            "transaction.timeout.ms": timeout_ms,
            **self._config,
            "transactional.id": transactional_id,
            "enable.idempotence": True,
            "acks": "all",
        }
        with translated(self.brokers):
            return Producer(settings, logger=logger)

    def describe(self, topic: str) -> tuple[str, list[int]]:
        """The id of a topic and its partitions; `NotFound` if there is none."""
        from confluent_kafka import TopicCollection

        try:
            with translated(self.brokers):
                asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
                found = asked[topic].result()
        except NotFound as error:
            raise NotFound(f"there is no topic {topic!r} at {self.brokers}: create it, or mend the name") from error
        return str(found.topic_id), sorted(one.id for one in found.partitions)

    def extents(self, consumer: Consumer, topic: str, identity: str, partitions: list[int]) -> Topic:
        """A topic with the first and the next offset of these partitions."""
        from confluent_kafka import TopicPartition

        found: dict[int, tuple[int, int]] = {}
        with translated(self.brokers):
            for number in partitions:
                answer = consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)
                if answer is None:
                    raise Unavailable(f"{self.brokers} did not say within {ANSWER_S:.0f} s how long {topic!r} is")
                found[number] = answer
        return Topic(topic, identity, found)

    def is_compacted(self, topic: str) -> bool:
        """Whether a topic forgets all but the newest record of a key. False where that may not be asked."""
        from confluent_kafka.admin._config import ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            with translated(self.brokers):
                asked = self._admin.describe_configs([resource], request_timeout=ANSWER_S)
                policy = asked[resource].result().get("cleanup.policy")
        except Denied:
            logger.warning("the configuration of %r may not be read: whether it is compacted is not known", topic)
            return False
        return policy is not None and "compact" in str(policy.value)


def imported() -> None:
    """`Invalid` with the command that installs it, if the client library is not there."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise Invalid(f"bridges to Kafka need confluent-kafka: {install_command('kafka')}") from error


# -- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def translated(brokers: str) -> Iterator[None]:
    """What the client library raises, as an error of ours."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise as_ours(error.args[0], brokers) from error


_UNREACHABLE: Final = (-185, -195, -187)
"""The client library's _TIMED_OUT, _TRANSPORT and _ALL_BROKERS_DOWN."""


def as_ours(error: KafkaError, brokers: str) -> DetentError:
    """An error of the client library as the one of ours that says what to do."""
    text = f"Kafka at {brokers} says {error.name()}: {error.str()}"
    kind = _kinds().get(error.code(), Unavailable)
    if kind is Fenced:
        text += (
            ". Another producer was started with the same transactional id, as by a bridge of this name with another "
            "store; or the transaction took longer than its timeout"
        )
    if error.code() in _UNREACHABLE:
        text += ". See that a broker answers there, and that security.protocol and the credentials fit"
    return kind(text)


def _kinds() -> dict[int, type[DetentError]]:
    from confluent_kafka import KafkaError

    fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
    denied = (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    absent = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
    large = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
    return {
        **dict.fromkeys(fenced, Fenced),
        **dict.fromkeys(denied, Denied),
        **dict.fromkeys(absent, NotFound),
        **dict.fromkeys(large, LimitExceeded),
        KafkaError._INVALID_ARG: Invalid,
        KafkaError.INVALID_TRANSACTION_TIMEOUT: Invalid,
    }
