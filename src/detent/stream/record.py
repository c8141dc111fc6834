"""What a shard keeps in a store: bytes that only its newest owner replaces.

A store has a fence for each shard. Opening the record raises it, and then reads: an owner that opened it earlier
commits nothing any more. Consumers keep a checkpoint so, processors their record and their marks, tailers a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import xxhash

from detent.engine import MALFORMED, Operation
from detent.errors import Corrupt, LimitExceeded, NotFound
from detent.shard import operations as ops

CHECKSUM_BYTES: Final = 8

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Value = TypeVar("Value", bound=msgspec.Struct)


class Committer(Protocol):
    """What a record needs of its store."""

    def commit(self, operations: list[Operation]) -> list[Any]: ...


class FencedRecord:
    """The record of one shard of a consumer, in one store."""

    def __init__(self, store: Committer, consumer: str, shard: int = 0) -> None:
        self._store = store
        self.consumer = consumer
        self.shard = shard
        self.fence = 0
        """What this owner commits with, once it has opened the record."""

    def open(self, journals: Sequence[str] | None = None) -> ops.ShardOpened:
        """Raise the fence, then read. With `journals` the consumer, of one shard, is made first, if it is new."""
        before = [] if journals is None else [ops.RegisterConsumer(self.consumer, 1, list(journals))]
        opened: ops.ShardOpened = self._store.commit([*before, ops.OpenShard(self.consumer, self.shard)])[-1]
        self.fence = opened.fence
        return opened

    def find(self, since: int = 0) -> ops.ShardOpened:
        """What the store has, with the resets after a generation. Changes nothing: the owner goes on."""
        found: ops.ShardOpened = self._store.commit([ops.FindShard(self.consumer, self.shard, since)])[0]
        return found

    def describe(self) -> ops.ConsumerDescription | None:
        """What the store has of the consumer; None if it has never heard of it."""
        try:
            found: ops.ConsumerDescriptions = self._store.commit([ops.DescribeConsumers(name=self.consumer)])[0]
        except NotFound:
            return None
        return found.consumers[0]

    def is_replaced(self) -> bool:
        """Whether the fence was raised since this owner opened the record."""
        return self.find().fence != self.fence

    def replacing(
        self,
        content: bytes,
        *,
        processed: Mapping[str, int] = _NOTHING,
        puts: dict[str, bytes] | None = None,
        deletes: list[str] | None = None,
    ) -> Operation:
        """The operation that puts other bytes in the place of the record's, behind its fence: `Fenced` if it was opened
        again since. `processed` is what the store shows of the progress, `puts` and `deletes` change the state."""
        return ops.CommitShard(
            self.consumer, self.shard, self.fence, content, puts or {}, deletes or [], processed=dict(processed)
        )

    def deleting(self) -> Operation:
        """The operation that forgets the consumer, with all that it keeps in this store."""
        return ops.DeleteConsumer(self.consumer, force=True)

    def delete(self) -> None:
        """Forget the consumer behind a new fence."""
        self._store.commit([ops.OpenShard(self.consumer, self.shard), self.deleting()])


class Sealing(Generic[Value]):
    """How a value becomes the bytes of a record: a head that says of which format it is, the value, a checksum."""

    def __init__(self, kind: type[Value], what: str, head: bytes, bytes_max: int, *, hint: str = "") -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._what = what
        self.head = head
        self._bytes_max = bytes_max
        self._hint = hint

    def encode(self, value: Value) -> bytes:
        """As bytes. `LimitExceeded` if they are too many to be read back."""
        content = self.head + _encode(value)
        if len(content) + CHECKSUM_BYTES > self._bytes_max:
            raise LimitExceeded(
                f"{self._what} of {len(content)} bytes is over the limit of {self._bytes_max}{self._hint}"
            )
        return content + xxhash.xxh64_digest(content)

    def decode(self, data: bytes) -> Value:
        """From bytes; `Corrupt` if they are something else, or not as they were written."""
        content, checksum, size = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:], len(self.head)
        if len(data) > self._bytes_max or len(content) < size:
            raise Corrupt(f"{len(data)} bytes are not {self._what}")
        if xxhash.xxh64_digest(content) != checksum:
            raise Corrupt(f"{self._what} does not match its checksum")
        if content[:size] != self.head:
            found, known = (" and kind ".join(map(str, head)) for head in (content[:size], self.head))
            raise Corrupt(
                f"{self._what} of format {found}, and this release knows format {known}. Something else has written "
                "under this name, or a newer release"
            )
        try:
            return self._decoder.decode(content[size:])
        except MALFORMED as error:
            raise Corrupt(f"these bytes are not {self._what}: {error}") from error


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
