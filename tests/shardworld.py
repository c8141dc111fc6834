"""A world whose engine keeps consumers and shards too, and short ways to use them."""

from __future__ import annotations

from typing import Any

from detent.codec import shard as records
from detent.engine import Engine
from detent.kv.base import prefix_end
from detent.shard import ShardMachine
from detent.shard import operations as ops
from world import World

TTL_MS = 10_000


class ShardWorld(World):
    """One store with journals, queues and consumers."""

    def _open(self) -> None:
        super()._open()
        self.shards = ShardMachine(self.writer)
        machines = [self.machine, self.queues, self.shards]
        self.engine = Engine(self.writer, machines, now_ms=self.time(), random=self.random.randbytes)
        self.session = self.engine.new_session()

    def register(self, shards: int = 1, *journals: str, name: str = "c", partition: str = "journal") -> dict[str, int]:
        """Make a consumer, or add journals to it; which shard reads which."""
        plan: ops.ConsumerPlan = self.commit(ops.RegisterConsumer(name, shards, list(journals), partition))[0]
        assert (plan.shards, plan.partition) == (shards, partition)
        return plan.sources

    def lease(self, member: str, shard: int = 0, *, name: str = "c", ttl_ms: int = TTL_MS) -> int:
        leased: ops.Leased = self.commit(ops.LeaseShard(name, shard, member, ttl_ms))[0]
        return leased.generation

    def open(self, shard: int = 0, *, name: str = "c") -> ops.ShardOpened:
        opened: ops.ShardOpened = self.commit(ops.OpenShard(name, shard))[0]
        return opened

    def find(self, shard: int = 0, *, name: str = "c") -> ops.ShardOpened:
        found: ops.ShardOpened = self.commit(ops.FindShard(name, shard))[0]
        return found

    def put(self, fence: int, shard: int = 0, *, name: str = "c", checkpoint: bytes = b"cp", **puts: Any) -> None:
        """Commit a checkpoint, and each key that is named: with a value, or deleted with None."""
        deletes = [key for key, value in puts.items() if value is None]
        values = {key: value for key, value in puts.items() if value is not None}
        self.commit(ops.CommitShard(name, shard, fence, checkpoint, values, deletes))

    def state(self, shard: int = 0, *, name: str = "c", prefix: str = "") -> dict[str, bytes]:
        page: ops.StatePage = self.commit(ops.ScanShardState(name, shard, prefix))[0]
        assert not page.more
        return dict(page.items)

    def describe(self, name: str = "c") -> ops.ConsumerDescription:
        found: ops.ConsumerDescription = self.commit(ops.DescribeConsumers(name=name))[0].consumers[0]
        return found

    def shard(self, index: int = 0, *, name: str = "c") -> ops.ShardDescription:
        return self.describe(name).states[index]

    def names(self, prefix: str = "") -> list[str]:
        return [found.name for found in self.commit(ops.DescribeConsumers(prefix))[0].consumers]

    def stored(self) -> dict[bytes, bytes]:
        """All records of consumers and shards, as they are durable."""
        subsystem = records.CONSUMER.raw[:1]
        with self.writer.view() as view:
            return dict(view.scan(subsystem, prefix_end(subsystem)))
