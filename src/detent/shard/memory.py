"""What the machine remembers of consumers and shards, and how a refused change of it is taken back.

`StateRows` are their records: a group in progress changes them, and they are written with it. `Reports` are not written
down: which members are alive, which one holds what until when, how far each shard says it is. An owner that takes over
learns them anew, because members say them again and again. Of progress it knows what was to be kept: its members may
be gone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from detent.codec import shard as records
from detent.codec.shard import FIRST_NUMBER, ConsumerRow, ProgressRow, ShardRow
from detent.engine import ApplyContext
from detent.errors import Corrupt, LimitExceeded
from detent.kv import Batch, View
from detent.shard import operations as ops

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MISSING: Final = object()


def set_undoably(mapping: dict[K, V], key: K, value: V | None, context: ApplyContext) -> None:
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
        self._consumers: dict[str, ConsumerRow] = {}
        self._names: list[str] = []  # sorted: text sorts by code points as its UTF-8 does by bytes
        self._shards: dict[str, list[ShardRow]] = {}
        self.progress: dict[int, ProgressRow] = {}
        self.shard_count = 0
        self.next_number = FIRST_NUMBER
        self.doomed: dict[int, bytes] = {}
        self.writes: dict[bytes, bytes | None] = {}

    def load(self, view: View) -> None:
        """Remember what the view shows, and nothing else."""
        self.writes.clear()
        self._consumers = {
            records.decode_consumer_key(key): ConsumerRow.decode(value)
            for key, value in view.scan(*records.CONSUMER.range())
        }
        self._names = list(self._consumers)
        self._shards = {name: [] for name in self._names}
        for key, value in view.scan(*records.SHARD.range()):
            name, index = records.decode_shard_key(key)
            shards = self._shards.get(name)
            if shards is None or index != len(shards):
                raise Corrupt(f"shard {index} of {name!r} has no consumer, or no shard before it")
            shards.append(ShardRow.decode(value))
        for name, shards in self._shards.items():
            if len(shards) != self._consumers[name].shards:
                raise Corrupt(f"the consumer {name!r} has {len(shards)} shards, and not {self._consumers[name].shards}")
        self.shard_count = sum(map(len, self._shards.values()))
        numbers = {shard.number for shard in self.all_shards()}
        self.progress = {
            number: ProgressRow.decode(value)
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

    def all_shards(self) -> Iterator[ShardRow]:
        """The shards of all consumers."""
        return chain.from_iterable(self._shards.values())

    def get(self, name: str) -> ConsumerRow | None:
        """A consumer, as the group in progress has left it."""
        return self._consumers.get(name)

    def shards(self, name: str) -> list[ShardRow]:
        """The shards of a consumer that is there, by index."""
        return self._shards[name]

    def items(self, prefix: str, after: str) -> Iterator[tuple[str, ConsumerRow]]:
        """Those whose names begin with a prefix and come after a name, in order."""
        names = self._names
        first = bisect_left(names, prefix) if after < prefix else bisect_right(names, after)
        wanted = takewhile(lambda name: name.startswith(prefix), (names[at] for at in range(first, len(names))))
        return ((name, self._consumers[name]) for name in wanted)

    # -- changing -----------------------------------------------------------------------------------------------

    def add(self, name: str, consumer: ConsumerRow, make: Callable[[int], ShardRow], context: ApplyContext) -> None:
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

    def delete(self, name: str, context: ApplyContext) -> None:
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

    def _insert(self, name: str, consumer: ConsumerRow, shards: list[ShardRow]) -> None:
        self._consumers[name] = consumer
        self._shards[name] = shards
        self._names.insert(bisect_left(self._names, name), name)
        self.shard_count += len(shards)

    def _remove(self, name: str, next_number: int) -> None:
        del self._consumers[name]
        del self._names[bisect_left(self._names, name)]
        self.shard_count -= len(self._shards.pop(name))
        self.next_number = next_number

    def set_consumer(self, name: str, consumer: ConsumerRow, context: ApplyContext) -> None:
        """Put another record in the place of a consumer's."""
        set_undoably(self._consumers, name, consumer, context)
        self.write(records.consumer_key(name), consumer.encode(), context)

    def set_shard(self, name: str, index: int, shard: ShardRow, context: ApplyContext) -> None:
        """Put another record in the place of a shard's."""
        shards = self._shards[name]
        context.undo.append(partial(shards.__setitem__, index, shards[index]))
        shards[index] = shard
        self.write(records.shard_key(name, index), shard.encode(), context)

    def keep_progress(self, number: int, progress: ProgressRow, context: ApplyContext) -> bool:
        """Write down how far a shard is. False if that stands there already."""
        if progress == self.progress.get(number, ProgressRow({}, {}, progress.generation)):
            return False
        set_undoably(self.progress, number, progress, context)
        self.write(records.progress_key(number), progress.encode(), context)
        return True

    def forget_processed(self, number: int, generation: int, context: ApplyContext) -> None:
        """What was written down of a shard's progress is of a generation that is over."""
        kept = self.progress.get(number)
        if kept is not None:
            self.keep_progress(number, ProgressRow({}, kept.published, generation), context)

    def write_many(self, changes: dict[bytes, bytes | None], context: ApplyContext) -> None:
        """The same for many records, taken back together."""
        before = {key: self.writes[key] for key in changes.keys() & self.writes.keys()}
        context.undo.append(partial(self._take_back, list(changes), before))
        self.writes.update(changes)

    def _take_back(self, keys: list[bytes], before: dict[bytes, bytes | None]) -> None:
        for key in keys:
            del self.writes[key]
        self.writes.update(before)

    def write(self, key: bytes, value: bytes | None, context: ApplyContext) -> None:
        """Put a record, or delete it with None, when the group is flushed."""
        context.undo.append(partial(_put_back, self.writes, key, self.writes.get(key, _MISSING)))
        self.writes[key] = value


class Presence(NamedTuple):
    """A member that is alive until a time, and what it says of itself."""

    info: str
    expires_ms: int


class ShardReport(NamedTuple):
    """What a shard says of itself. `stale_fence` is the fence that the shard had when it was last reset: a process
    that opened it with that one commits progress of the generation before, until it reports that it knows of the reset.
    An owner that takes over does not know that fence, and takes the present one for it."""

    status: str
    error: str
    processed: Mapping[str, int]
    published: Mapping[str, int]
    stale_fence: int
    numbers: Mapping[str, int] = MappingProxyType({})


NOTHING: Final = ShardReport("", "", {}, {}, -1)


class Reports:
    """Members, ends of leases, and reports of shards by their number."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Presence]] = {}
        self._lease_ends: dict[int, int] = {}
        self._reports: dict[int, ShardReport] = {}

    def clear(self) -> None:
        """Memory was dropped. What had been reported may not have become durable."""
        self._members.clear()
        self._lease_ends.clear()
        self._reports.clear()

    def restore(self, shard: ShardRow, kept: ProgressRow | None) -> None:
        """Begin with what was written down of a shard. It is further by now, or just there."""
        report = NOTHING._replace(stale_fence=shard.fence) if shard.generation else NOTHING
        if kept is not None:
            is_current = kept.generation == shard.generation
            report = report._replace(
                processed=kept.processed if is_current else {},
                published=kept.published,
                numbers=kept.numbers if is_current else {},
            )
        if report != NOTHING:
            self._reports[shard.number] = report

    def forget(self, name: str, numbers: list[int], context: ApplyContext) -> None:
        """The consumer is deleted."""
        set_undoably(self._members, name, None, context)
        for number in numbers:
            set_undoably(self._lease_ends, number, None, context)
            set_undoably(self._reports, number, None, context)

    # -- members ------------------------------------------------------------------------------------------------

    def note_member(self, name: str, member: str, presence: Presence, context: ApplyContext) -> None:
        """A member is alive."""
        members = self._members.setdefault(name, {})
        if member not in members:
            self._drop_dead(members, context.now_ms)
            if len(members) >= ops.MEMBERS_MAX:
                raise LimitExceeded(f"the consumer {name!r} has {ops.MEMBERS_MAX} members already")
        set_undoably(members, member, presence, context)

    @staticmethod
    def _drop_dead(members: dict[str, Presence], now_ms: int) -> None:
        for member in [member for member, presence in members.items() if presence.expires_ms <= now_ms]:
            del members[member]

    def drop_member(self, name: str, member: str, context: ApplyContext) -> None:
        """A member has left."""
        set_undoably(self._members.get(name, {}), member, None, context)

    def members(self, name: str, now_ms: int) -> list[tuple[str, Presence]]:
        """Those that are alive, by their ids."""
        known = self._members.get(name, {})
        return sorted((member, presence) for member, presence in known.items() if presence.expires_ms > now_ms)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease_end_ms(self, number: int) -> int | None:
        """When a shard's lease ends, if that was said since the store was opened."""
        return self._lease_ends.get(number)

    def set_lease_end(self, number: int, end_ms: int | None, context: ApplyContext) -> None:
        """A lease was taken, renewed or given back."""
        set_undoably(self._lease_ends, number, end_ms, context)

    # -- progress -----------------------------------------------------------------------------------------------

    def report(self, number: int) -> ShardReport:
        """What is known of a shard."""
        return self._reports.get(number, NOTHING)

    def note_state(self, number: int, status: str, error: str, context: ApplyContext) -> None:
        """A shard of the current generation says how it is. Text that has no UTF-8 form could not be told to others."""
        cut = error[: ops.ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
        set_undoably(
            self._reports, number, self.report(number)._replace(status=status, error=cut, stale_fence=-1), context
        )

    def note_progress(
        self, number: int, processed: Mapping[str, int], published: Mapping[str, int], context: ApplyContext
    ) -> None:
        """A shard says how far it is. It may say so late: what is further counts."""
        if not processed and not published:
            return
        known = self.report(number)
        new = known._replace(
            processed=furthest(known.processed, processed) if processed else known.processed,
            published=_newest(furthest(known.published, published)) if published else known.published,
        )
        set_undoably(self._reports, number, new, context)

    def note_journals(self, number: int, numbers: Mapping[str, int], context: ApplyContext) -> None:
        """A shard says which journals it reads."""
        known = self.report(number)
        if numbers and dict(numbers) != known.numbers:
            set_undoably(self._reports, number, known._replace(numbers=dict(numbers)), context)

    def note_reset(self, number: int, fence: int, context: ApplyContext) -> None:
        """A shard was reset: how far it was says nothing any more."""
        new = self.report(number)._replace(processed={}, numbers={}, stale_fence=fence)
        set_undoably(self._reports, number, new, context)


def furthest(known: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each journal. Those that are in `new` come last."""
    merged = dict(known)
    for journal, offset in new.items():
        merged[journal] = max(merged.pop(journal, 0), offset)
    return merged


def _newest(offsets: dict[str, int]) -> dict[str, int]:
    """Those that were reported last, as many as are kept."""
    surplus = len(offsets) - ops.PUBLISHED_JOURNALS_MAX
    for journal in list(offsets)[: max(0, surplus)]:
        del offsets[journal]
    return offsets
