"""One transaction of a shard: from its first message until it is acknowledged."""

from __future__ import annotations

from typing import Any

from detent.consumer.outbox import Outbox
from detent.state.checkpoint import Checkpoint


class ConsumerTransaction:
    """What `finalize` gets: the transaction whose messages were all consumed, and which is about to commit.

    `state` and `publish` are those that `consume` had; `messages` is how many messages there were, `number` counts the
    shard's transactions over all its lives, `shard` is the shard's number.
    """

    def __init__(self, number: int, shard: int, state: Any, outbox: Outbox, began: float, ends: float) -> None:
        self.number = number
        self.shard = shard
        self.state = state
        self.outbox = outbox
        self.publish = outbox.publish
        self.messages = 0
        self.began = began
        self.ends = ends


class Sealed:
    """A transaction that only has to be committed: what changed, how far it read (`read`, a checkpoint that lacks what
    only the committing thread knows), what it publishes. `progress` is how far it read by committed offsets, for raw
    sources too, and `numbers` which journals these are."""

    __slots__ = ("changes", "messages", "numbers", "outbox", "progress", "read")

    def __init__(
        self,
        changes: Any,
        read: Checkpoint,
        progress: dict[str, int],
        numbers: dict[str, int],
        outbox: Outbox,
        messages: int,
    ) -> None:
        self.changes = changes
        self.read = read
        self.progress = progress
        self.numbers = numbers
        self.outbox = outbox
        self.messages = messages
