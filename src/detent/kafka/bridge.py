"""`FromTopic` and `ToTopic`: bridges that can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.kafka.declaration import Declaration, Inflow, Outflow
from detent.kafka.running import run

if TYPE_CHECKING:
    from detent.store import Store


class Bridge(Declaration):
    """What both have."""

    def run(self, *, store: str | Store | None = None, once: bool = False) -> None:
        """Run it in threads of this process until SIGTERM or Ctrl-C; with `once`, until all is read that there is.
        Raises what it refuses. `store` is another URL than its own, or a store that is open."""
        run(self, store=store, once=once)


class FromTopic(Inflow, Bridge):
    """A topic into a journal or a queue, each committed record once.

    >>> orders = FromTopic("orders", topic="orders", journal="orders", brokers="127.0.0.1:9092")

    Records and the offsets of the next ones are one transaction of the store. `journal` may have the word
    ``{partition}`` in its name, ``orders/{partition}``: then each partition has a journal. With `queue` records become
    messages of a queue. The order of a partition is kept.

    `start` is where partitions begin that are there when the bridge first runs; one that is added later begins with its
    first record. Partitions are divided over `shards`, which several processes may share; their number is fixed when
    the bridge first runs.

    A record that a message cannot hold, such as one of 20 MB, ends the bridge; with `dead_letters` it becomes a message
    of that journal, which says where the record is and has what there is room for. See `detent.kafka.letters`.
    """


class ToTopic(Outflow, Bridge):
    """A journal into a topic, each committed message once for readers of committed records.

    >>> paid = ToTopic("paid", journal="paid", topic="paid", brokers="127.0.0.1:9092")

    Messages and the offset of the next one are one transaction of Kafka, of a producer that fences the one before. The
    topic must be there. A key chooses the partition as with Kafka's own clients.
    """
