"""What bridges are declared with, and what they are called in a store and in Kafka."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from detent import names
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.kafka import cluster, place
from detent.paths import as_url
from detent.shard.operations import SHARDS_MAX
from detent.stream.opening import LEASE, lease_ms, store_url

BROKERS_VARIABLE: Final = "DETENT_KAFKA_BROKERS"
CONFIG_VARIABLE: Final = "DETENT_KAFKA_CONFIG"
"""Names a file with settings of the client library, such as credentials."""

BATCH: Final = 5_000
BATCH_MAX: Final = 10_000
BATCH_BYTES: Final = 16 << 20
"""Records of one transaction, at most. Their keys and values are in memory twice while it is made."""

TRANSACTION_TIMEOUT: Final = "60s"
"""After this time, a broker aborts the transaction of a bridge that says nothing."""

_TOPIC_LETTERS: Final = 249


class Declaration:
    """A bridge between a store and a topic of Kafka.

    `brokers` are ``HOST:PORT`` with commas between them (or DETENT_KAFKA_BROKERS). `config` has further settings of
    the client library, librdkafka, such as ``security.protocol``; passwords belong into the file that
    DETENT_KAFKA_CONFIG names. `accept` has words for what the bridge otherwise refuses: see `detent.kafka.place`.
    """

    direction: ClassVar[str]

    def __init__(
        self,
        name: str,
        *,
        topic: str,
        store: str | None = None,
        brokers: str | None = None,
        config: Mapping[str, Any] | None = None,
        start: place.Start = "earliest",
        accept: Collection[str] = (),
        batch: int = BATCH,
        shards: int = 1,
        origin: bool = True,
        lease: Duration = LEASE,
    ) -> None:
        names.check_name(name, "bridge")
        if not isinstance(topic, str) or not 0 < len(topic) <= _TOPIC_LETTERS:
            raise Invalid(f"a topic is named by 1 to {_TOPIC_LETTERS} letters, not by {topic!r}")
        if start not in {"earliest", "latest"}:
            raise Invalid(f"a bridge starts at 'earliest' or 'latest', not at {start!r}")
        if type(batch) is not int or not 1 <= batch <= BATCH_MAX:
            raise Invalid(f"a batch has 1 to {BATCH_MAX} messages, not {batch!r}")
        if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
            raise Invalid(f"a bridge has 1 to {SHARDS_MAX} shards, not {shards!r}")
        self.name = name
        self.topic = topic
        self.store = store
        self.start = start
        self.accept = place.check_accept(accept)
        self.batch = batch
        self.shards = shards
        self.origin = origin
        self.lease_ms = lease_ms(lease)
        self._brokers = brokers
        self._settings = cluster.check_config(config or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, topic={self.topic!r})"

    @property
    def consumer(self) -> str:
        """The name under which the store keeps how far it is."""
        return f"bridge/{self.name}"

    @property
    def group(self) -> str:
        """The name under which Kafka knows it: a group without members, and a transactional id."""
        return f"detent.{self.name}"

    @property
    def inputs(self) -> list[str]:
        """The journals that it reads."""
        return []

    def ends(self) -> tuple[str, str]:
        """From where and to where, in words."""
        raise NotImplementedError

    def accept_also(self, words: Collection[str]) -> None:
        """Go on after these refusals, too."""
        self.accept |= place.check_accept(words)

    def cluster(self) -> cluster.Cluster:
        """The cluster; `Invalid` if none is named."""
        brokers = self._brokers or os.environ.get(BROKERS_VARIABLE)
        if not brokers:
            raise Invalid(
                f"the bridge {self.name!r} has no brokers: give --brokers, write brokers='HOST:9092', or set "
                f"{BROKERS_VARIABLE}"
            )
        path = os.environ.get(CONFIG_VARIABLE)
        read = cluster.check_config(cluster.read_config(path)) if path else {}
        return cluster.Cluster(brokers, {**read, **self._settings})

    def store_url(self, store: str | None = None) -> str:
        """The store; `Invalid` if none is named."""
        return as_url(store_url(f"{type(self).__name__}({self.name!r}, store='file:./data', ...)", self.store, store))


class Inflow(Declaration):
    """A topic into a journal or a queue."""

    direction = "in"

    def __init__(
        self,
        name: str,
        *,
        journal: str | None = None,
        queue: str | None = None,
        dead_letters: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        if (journal is None) == (queue is None):
            raise Invalid(f"a bridge from a topic has a journal or a queue: give {name!r} one of them")
        if journal is not None:
            names.check_name(journal.replace("{partition}", "0"), "journal")
        if queue is not None:
            names.check_name(queue, "queue")
        if dead_letters is not None:
            names.check_name(dead_letters, "journal")
            if dead_letters == journal:
                raise Invalid(f"the dead letters of {name!r} need a journal of their own, and not {journal!r}")
        self.journal = journal
        self.queue = queue
        self.dead_letters = dead_letters

    def ends(self) -> tuple[str, str]:
        """From where and to where, in words."""
        where = f"queue {self.queue}" if self.journal is None else f"journal {self.journal}"
        return f"topic {self.topic}", where

    def journal_of(self, partition: int) -> str:
        """The journal of a partition."""
        assert self.journal is not None, "it goes into a queue"
        return self.journal.replace("{partition}", str(partition))


class Outflow(Declaration):
    """A journal into a topic."""

    direction = "out"

    def __init__(
        self, name: str, *, journal: str, transaction_timeout: Duration = TRANSACTION_TIMEOUT, **options: Any
    ) -> None:
        super().__init__(name, **options)
        names.check_name(journal, "journal")
        if self.shards != 1:
            raise Invalid("a bridge to a topic has one producer, and so one shard: leave shards out")
        self.journal = journal
        self.transaction_timeout_ms = milliseconds(transaction_timeout)

    @property
    def inputs(self) -> list[str]:
        """The journal that it reads."""
        return [self.journal]

    def ends(self) -> tuple[str, str]:
        """From where and to where, in words."""
        return f"journal {self.journal}", f"topic {self.topic}"
