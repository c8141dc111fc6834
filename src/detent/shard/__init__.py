"""Consumers and their shards: which shard reads which journal, who holds it, and what it has committed in this store.

Here are the records and the rules. What reads, processes and commits is built on them, elsewhere.
"""

from detent.shard.handle import (
    AsyncConsumerHandle,
    AsyncConsumers,
    AsyncShardState,
    ConsumerHandle,
    Consumers,
    ShardState,
)
from detent.shard.info import ConsumerInfo, MemberInfo, ShardInfo
from detent.shard.machine import ShardMachine
from detent.shard.reading import StateReader

__all__ = [
    "AsyncConsumerHandle",
    "AsyncConsumers",
    "AsyncShardState",
    "ConsumerHandle",
    "ConsumerInfo",
    "Consumers",
    "MemberInfo",
    "ShardInfo",
    "ShardMachine",
    "ShardState",
    "StateReader",
]
