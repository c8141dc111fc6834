"""Consumers and shards in memory, what a group in progress has changed of them, and how that is taken back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final, TypeVar

from detent.codec import shard as records
from detent.codec.shard import FIRST_NUMBER, Consumer, Progress, Shard
from detent.engine import Context
from detent.errors import Corrupt
from detent.kv import Batch, View

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MISSING: Final = object()


def set_undoably(mapping: dict[K, V], key: K, value: V | None, context: Context) -> None:
    """Set one entry, or remove it with None; the context learns how to take that back."""
    context.undo.append(partial(_put_back, mapping, key, mapping.get(key, _MISSING)))
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _put_back(mapping: dict[Any, Any], key: Any, old: Any) -> None:
    if old is _MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = old


class StateRows:
    """All consumers and shards of a store, and how far each shard was when that was last written down. Checkpoints and
    state go through here on their way to the disk, and are not kept."""

    def __init__(self) -> None:
        self._consumers: dict[str, Consumer] = {}
        self._names: list[str] = []  # sorted: text sorts by code points as its UTF-8 does by bytes
        self._shards: dict[str, list[Shard]] = {}
        self.progress: dict[int, Progress] = {}
        self.shard_count = 0
        self.next_number = FIRST_NUMBER
        self.doomed: dict[int, bytes] = {}
        self.writes: dict[bytes, bytes | None] = {}

    def load(self, view: View) -> None:
        """Remember what the view shows, and nothing else."""
        self.writes.clear()
        self._consumers = {
            records.decode_consumer_key(key): Consumer.decode(value)
            for key, value in view.scan(*records.CONSUMER.range())
        }
        self._names = list(self._consumers)
        self._shards = {name: [] for name in self._names}
        for key, value in view.scan(*records.SHARD.range()):
            name, index = records.decode_shard_key(key)
            shards = self._shards.get(name)
            if shards is None or index != len(shards):
                raise Corrupt(f"shard {index} of {name!r} has no consumer, or no shard before it")
            shards.append(Shard.decode(value))
        for name, shards in self._shards.items():
            if len(shards) != self._consumers[name].shards:
                raise Corrupt(f"the consumer {name!r} has {len(shards)} shards, and not {self._consumers[name].shards}")
        self.shard_count = sum(map(len, self._shards.values()))
        numbers = {shard.number for shard in self.all_shards()}
        self.progress = {
            number: Progress.decode(value)
            for key, value in view.scan(*records.PROGRESS.range())
            if (number := records.decode_number_key(records.PROGRESS, key)) in numbers
        }
        self.doomed = {
            records.decode_number_key(records.DOOMED, key): value for key, value in view.scan(*records.DOOMED.range())
        }
        stored = view.get(records.COUNTER.raw)
        self.next_number = FIRST_NUMBER if stored is None else records.decode_counter(stored)

    def flush(self, batch: Batch) -> None:
        """Put the group's changes into its batch."""
        batch.extend(self.writes)
        self.writes.clear()

    # -- looking ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._names)

    def all_shards(self) -> Iterator[Shard]:
        """The shards of all consumers."""
        return chain.from_iterable(self._shards.values())

    def get(self, name: str) -> Consumer | None:
        """A consumer, as the group in progress has left it."""
        return self._consumers.get(name)

    def shards(self, name: str) -> list[Shard]:
        """The shards of a consumer that is there, by index."""
        return self._shards[name]

    def items(self, prefix: str, after: str) -> Iterator[tuple[str, Consumer]]:
        """Those whose names begin with a prefix and come after a name, in order."""
        names = self._names
        first = bisect_left(names, prefix) if after < prefix else bisect_right(names, after)
        wanted = takewhile(lambda name: name.startswith(prefix), (names[at] for at in range(first, len(names))))
        return ((name, self._consumers[name]) for name in wanted)

    # -- changing -----------------------------------------------------------------------------------------------

    def add(self, name: str, consumer: Consumer, make: Callable[[int], Shard], context: Context) -> None:
        """A new consumer, and its shards, each made with a number that none had before."""
        first = self.next_number
        shards = [make(first + index) for index in range(consumer.shards)]
        context.undo.append(partial(self._remove, name, first))
        self._insert(name, consumer, shards)
        self.next_number = first + consumer.shards
        self.write(records.consumer_key(name), consumer.encode(), context)
        for index, shard in enumerate(shards):
            self.write(records.shard_key(name, index), shard.encode(), context)
        self.write(records.COUNTER.raw, records.encode_counter(self.next_number), context)

    def delete(self, name: str, context: Context) -> None:
        """Forget a consumer. What its shards have written is doomed, and goes in steps."""
        consumer, shards = self._consumers[name], self._shards[name]
        context.undo.append(partial(self._insert, name, consumer, shards))
        self._remove(name, self.next_number)
        self.write(records.consumer_key(name), None, context)
        for index, shard in enumerate(shards):
            self.write(records.shard_key(name, index), None, context)
            self.write(records.doomed_key(shard.number), b"", context)
            set_undoably(self.doomed, shard.number, b"", context)
            set_undoably(self.progress, shard.number, None, context)

    def _insert(self, name: str, consumer: Consumer, shards: list[Shard]) -> None:
        self._consumers[name] = consumer
        self._shards[name] = shards
        self._names.insert(bisect_left(self._names, name), name)
        self.shard_count += len(shards)

    def _remove(self, name: str, next_number: int) -> None:
        del self._consumers[name]
        del self._names[bisect_left(self._names, name)]
        self.shard_count -= len(self._shards.pop(name))
        self.next_number = next_number

    def set_consumer(self, name: str, consumer: Consumer, context: Context) -> None:
        """Put another record in the place of a consumer's."""
        set_undoably(self._consumers, name, consumer, context)
        self.write(records.consumer_key(name), consumer.encode(), context)

    def set_shard(self, name: str, index: int, shard: Shard, context: Context) -> None:
        """Put another record in the place of a shard's."""
        shards = self._shards[name]
        context.undo.append(partial(shards.__setitem__, index, shards[index]))
        shards[index] = shard
        self.write(records.shard_key(name, index), shard.encode(), context)

    def keep_progress(self, number: int, progress: Progress, context: Context) -> bool:
        """Write down how far a shard is. False if that stands there already."""
        if progress == self.progress.get(number, Progress({}, {}, progress.generation)):
            return False
        set_undoably(self.progress, number, progress, context)
        self.write(records.progress_key(number), progress.encode(), context)
        return True

    def forget_processed(self, number: int, generation: int, context: Context) -> None:
        """What was written down of a shard's progress is of a generation that is over."""
        kept = self.progress.get(number)
        if kept is not None:
            self.keep_progress(number, Progress({}, kept.published, generation), context)

    def write_many(self, changes: dict[bytes, bytes | None], context: Context) -> None:
        """The same for many records, taken back together."""
        before = {key: self.writes[key] for key in changes.keys() & self.writes.keys()}
        context.undo.append(partial(self._take_back, list(changes), before))
        self.writes.update(changes)

    def _take_back(self, keys: list[bytes], before: dict[bytes, bytes | None]) -> None:
        for key in keys:
            del self.writes[key]
        self.writes.update(before)

    def write(self, key: bytes, value: bytes | None, context: Context) -> None:
        """Put a record, or delete it with None, when the group is flushed."""
        context.undo.append(partial(_put_back, self.writes, key, self.writes.get(key, _MISSING)))
        self.writes[key] = value
