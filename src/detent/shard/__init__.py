"""Consumers and their shards as records of a store: who reads which journal, and how far it is.

Here are the records and the rules. `detent.consumer` runs what is built on them.

    handle.py      `store.consumer(name)`: look, pause, reset, wait, delete; sync and async
    info.py        what these answer
    calls.py       the operations that both halves send, and what they make of the answers
    operations.py  the operations themselves, and what each answers
    machine.py     the state machine in the owner
    leasing.py     the rules, pure: which shard gets a journal, which member may take a shard
    memory.py      consumers and shards in memory; which members are alive, how far each shard says it is
    reading.py     reading a shard's state from any view of the store
    verify.py      the consumers' part of `store verify`
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
