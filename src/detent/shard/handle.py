"""What a store can say and do of consumers, sync and async. They are run elsewhere: here they are looked at, paused,
reset, waited for and deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from detent.durations import Duration
from detent.engine import Operation
from detent.engine.twins import Awaited, AwaitedStore, Plain, PlainStore, Twin, drive_each
from detent.runtime.ground import drive
from detent.shard import calls
from detent.shard import operations as ops
from detent.shard.info import ConsumerInfo, consumer_info


class ConsumerStore(Protocol):
    """What a consumer's handle needs of its store."""

    @property
    def reader(self) -> calls.KnowsJournals: ...

    def commit(self, operations: list[Operation]) -> list[Any]: ...


class AsyncConsumerStore(Protocol):
    """The same, for asyncio."""

    @property
    def reader(self) -> calls.KnowsJournals: ...

    async def commit(self, operations: list[Operation]) -> list[Any]: ...


class Consumers(PlainStore):
    """The consumers of a store."""

    def consumer(self: ConsumerStore, name: str) -> ConsumerHandle:
        """A consumer by name. Nothing is asked, and nothing is made, before it is used."""
        return ConsumerHandle(self, name)

    def consumers(self, prefix: str = "") -> list[ConsumerInfo]:
        """The consumers, by name."""
        return list(map(consumer_info, drive(self._listed(partial(ops.DescribeConsumers, prefix), "consumers"))))


class _ConsumerBase(Twin):
    """What both handles of a consumer share."""

    def __init__(self, store: Any, name: str) -> None:
        ops.check_consumer(name)
        self._store = store
        self.name = name

    async def _describe(self) -> ops.ConsumerDescription:
        return calls.described(await self._ask([calls.describe(self.name)]))

    async def _await_processed(self, journal: str, offset: int, timeout: Duration | None) -> dict[str, int]:
        awaiting = calls.Awaiting(self.name, journal, offset, timeout)
        while True:
            found = await self._describe()
            published = awaiting.published(found)
            if published is not None:
                await self._aside(calls.require_same, found, journal, self._store.reader)
                return published
            await self._sleep(awaiting.pause_s(found))

    async def _lag(self) -> dict[int, dict[str, int]]:
        lag: dict[int, dict[str, int]] = await self._aside(calls.lag, await self._describe(), self._store.reader)
        return lag


class ConsumerHandle(_ConsumerBase, Plain):
    """A consumer of a store, as it looks from outside its members."""

    def info(self) -> ConsumerInfo:
        """How it is divided, and how it is doing. `NotFound` if there is no such consumer."""
        return consumer_info(drive(self._describe()))

    def pause(self) -> None:
        """Let its members rest, when they have finished what is under way."""
        self._store.commit([ops.PauseConsumer(self.name, True)])

    def resume(self) -> None:
        """Let its members go on."""
        self._store.commit([ops.PauseConsumer(self.name, False)])

    def reset(self, offsets: Mapping[str, int]) -> None:
        """Read these journals again, or on, from these offsets. The state that the consumer has made of them stays.
        `NotFound` if it does not read one of them."""
        self._store.commit([calls.reset(self.name, offsets)])

    def delete(self, *, force: bool = False) -> None:
        """Forget it, with its progress and the state that it keeps in this store. `Conflict` while a member holds a
        shard, unless forced: that member is fenced then."""
        self._store.commit([ops.DeleteConsumer(self.name, force)])

    def state(self, shard: int = 0) -> ShardState:
        """What a shard keeps in this store."""
        return ShardState(self._store, self.name, shard)

    def await_processed(self, journal: str, offset: int, timeout: Duration | None = None) -> dict[str, int]:
        """Wait until the message at an offset of a journal is processed; `Unavailable` after the time.

        Answers how far the shards that did so have written other journals: the offset after the last message of each.
        Who reads a journal up to there has seen all that the message led to. `NotFound` if the consumer does not read
        the journal, or has read another one that had its name.
        """
        return drive(self._await_processed(journal, offset, timeout))

    def lag(self) -> dict[int, dict[str, int]]:
        """How many committed messages each shard has still to process, of each journal that it reads."""
        return drive(self._lag())


class _StateBase(Twin):
    """What both share that look at the state of a shard."""

    def __init__(self, store: Any, consumer: str, shard: int) -> None:
        ops.check_index(shard)
        self._store = store
        self._consumer = consumer
        self._shard = shard

    async def _get(self, key: str, default: Any) -> Any:
        value = (await self._ask([calls.read(self._consumer, self._shard, [key])]))[0].values[0]
        return default if value is None else msgspec.json.decode(value)

    async def _items(self, prefix: str) -> AsyncGenerator[tuple[str, Any], None]:
        after, more = "", True
        while more:
            page = (await self._ask([calls.scan(self._consumer, self._shard, prefix, after)]))[0]
            for after, value in page.items:
                yield after, msgspec.json.decode(value)
            more = page.more


class ShardState(_StateBase, Plain):
    """The state that a shard keeps in the store, to look at. Values are JSON."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return drive(self._get(key, default))

    def items(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Keys that begin with a prefix, in order, and their values. They are read in pages: what is committed
        meanwhile may be among them or not."""
        return drive_each(self._items(prefix))


class AsyncConsumers(AwaitedStore):
    """`Consumers` for asyncio: the same calls, awaited."""

    def consumer(self: AsyncConsumerStore, name: str) -> AsyncConsumerHandle:
        """A consumer by name. Nothing is asked, and nothing is made, before it is used."""
        return AsyncConsumerHandle(self, name)

    async def consumers(self, prefix: str = "") -> list[ConsumerInfo]:
        """The consumers, by name."""
        return list(map(consumer_info, await self._listed(partial(ops.DescribeConsumers, prefix), "consumers")))


class AsyncConsumerHandle(_ConsumerBase, Awaited):
    """`ConsumerHandle` for asyncio: the same calls, awaited."""

    async def info(self) -> ConsumerInfo:
        """How it is divided, and how it is doing. `NotFound` if there is no such consumer."""
        return consumer_info(await self._describe())

    async def pause(self) -> None:
        """Let its members rest, when they have finished what is under way."""
        await self._store.commit([ops.PauseConsumer(self.name, True)])

    async def resume(self) -> None:
        """Let its members go on."""
        await self._store.commit([ops.PauseConsumer(self.name, False)])

    async def reset(self, offsets: Mapping[str, int]) -> None:
        """Read these journals again, or on, from these offsets. The state that the consumer has made of them stays."""
        await self._store.commit([calls.reset(self.name, offsets)])

    async def delete(self, *, force: bool = False) -> None:
        """Forget it, with its progress and the state that it keeps in this store."""
        await self._store.commit([ops.DeleteConsumer(self.name, force)])

    def state(self, shard: int = 0) -> AsyncShardState:
        """What a shard keeps in this store."""
        return AsyncShardState(self._store, self.name, shard)

    async def await_processed(self, journal: str, offset: int, timeout: Duration | None = None) -> dict[str, int]:
        """Wait until the message at an offset of a journal is processed; `Unavailable` after the time. Answers how far
        the shards that did so have written other journals."""
        return await self._await_processed(journal, offset, timeout)

    async def lag(self) -> dict[int, dict[str, int]]:
        """How many committed messages each shard has still to process, of each journal that it reads."""
        return await self._lag()


class AsyncShardState(_StateBase, Awaited):
    """`ShardState` for asyncio: the same calls, awaited."""

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return await self._get(key, default)

    def items(self, prefix: str = "") -> AsyncIterator[tuple[str, Any]]:
        """Keys that begin with a prefix, in order, and their values."""
        return self._items(prefix)
