"""The consumers' part of `store verify`: consumers and shards belong together, and no state is without a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from detent.codec import shard as records
from detent.codec.keys import Prefix
from detent.codec.shard import FIRST_NUMBER, ConsumerRow, ProgressRow, ShardRow
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, DetentError
from detent.kv import View
from detent.shard import operations as ops

KNOWN: Final = (
    records.CONSUMER,
    records.SHARD,
    records.CHECKPOINT,
    records.STATE,
    records.COUNTER,
    records.DOOMED,
    records.PROGRESS,
)
"""All that this release writes of consumers."""

_WHAT: Final = {
    records.CONSUMER.raw: "consumer",
    records.SHARD.raw: "shard",
    records.CHECKPOINT.raw: "checkpoint",
    records.STATE.raw: "entry of state",
    records.COUNTER.raw: "counter of shards",
    records.DOOMED.raw: "deleted shard",
    records.PROGRESS.raw: "progress",
}


def check_shards(view: View, tally: Tally) -> Iterator[Finding]:
    """Every record decodes, is what an owner would have written, and belongs to another one that says so."""
    yield from _Survey(view, tally).check()


class _Survey:
    def __init__(self, view: View, tally: Tally) -> None:
        self._view = view
        self._tally = tally
        self._consumers: dict[str, ConsumerRow] = {}
        self._counts: dict[str, int] = {}
        self._numbers: set[int] = set()
        self._places: dict[int, tuple[ConsumerRow, int, int]] = {}  # by number: whose, which one, its generation
        self._doomed: set[int] = set()
        self._next_number = FIRST_NUMBER

    def check(self) -> Iterator[Finding]:
        """In an order in which each record finds those that it belongs to already known."""
        yield from self._each(records.COUNTER, self._check_counter)
        yield from self._each(records.CONSUMER, self._check_consumer)
        yield from self._each(records.SHARD, self._check_shard)
        for name, consumer in self._consumers.items():
            found = self._counts.get(name, 0)
            if found < consumer.shards:
                key = records.consumer_key(name)
                yield Finding(record_at(key), f"the consumer {name!r} has {found} shards, and not {consumer.shards}")
        yield from self._each(records.DOOMED, self._check_doomed)
        yield from self._each(records.CHECKPOINT, self._check_checkpoint)
        yield from self._each(records.STATE, self._check_state)
        yield from self._each(records.PROGRESS, self._check_progress)

    def _each(self, prefix: Prefix, check: Callable[[bytes, bytes], None]) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *prefix.range()):
            try:
                check(key, value)
            except DetentError as error:
                yield Finding(record_at(key), f"a malformed {_WHAT[prefix.raw]}: {error}")

    def _check_counter(self, key: bytes, value: bytes) -> None:
        records.COUNTER.reader(key, "shard counter").finish()
        self._next_number = records.decode_counter(value)

    def _check_consumer(self, key: bytes, value: bytes) -> None:
        name = records.decode_consumer_key(key)
        consumer = ConsumerRow.decode(value)
        self._tally.counts.consumers += 1
        self._consumers[name] = consumer
        ops.check_register(ops.RegisterConsumer(name, consumer.shards, list(consumer.sources), consumer.partition))
        _check_time(consumer.created_ms)

    def _check_shard(self, key: bytes, value: bytes) -> None:
        name, index = records.decode_shard_key(key)
        shard = ShardRow.decode(value)
        self._tally.counts.shards += 1
        consumer = self._consumers.get(name)
        if consumer is None:
            raise Corrupt(f"there is no consumer {name!r}")
        expected = self._counts.get(name, 0)
        self._counts[name] = index + 1
        if index != expected or index >= consumer.shards:
            raise Corrupt(f"shard {index} of {name!r}, where shard {expected} of {consumer.shards} should be")
        self._take_number(shard.number, self._numbers)
        self._places[shard.number] = consumer, index, shard.generation
        if shard.holder:
            ops.check_member(shard.holder, shard.ttl_ms)
        ops.check_offsets({journal: reset.offset for journal, reset in shard.resets.items()})
        strangers = [journal for journal in shard.resets if not consumer.reads(index, journal)]
        if strangers:
            raise Corrupt(f"the journal {strangers[0]!r} was reset, and is not this shard's")
        _check_time(shard.updated_ms)

    def _check_doomed(self, key: bytes, value: bytes) -> None:
        number = records.decode_number_key(records.DOOMED, key)
        self._take_number(number, self._doomed)
        if value:
            raise Corrupt(f"{len(value)} bytes where there should be none")

    def _take_number(self, number: int, mine: set[int]) -> None:
        """Each shard that is or was has a number of its own, below the one that comes next."""
        if number in self._numbers or number in self._doomed:
            raise Corrupt(f"the number {number} is that of another shard too")
        mine.add(number)
        if number >= self._next_number:
            raise Corrupt(f"the number {number} is still to be given: the next one is {self._next_number}")

    def _check_checkpoint(self, key: bytes, value: bytes) -> None:
        self._check_owned(records.decode_number_key(records.CHECKPOINT, key))
        if len(value) > ops.CHECKPOINT_BYTES_MAX:
            raise Corrupt(f"a checkpoint of {len(value)} bytes")

    def _check_state(self, key: bytes, value: bytes) -> None:
        number, name = records.decode_state_key(key)
        self._tally.counts.states += 1
        self._check_owned(number)
        ops.check_keys([name])
        if len(value) > ops.STATE_VALUE_BYTES_MAX:
            raise Corrupt(f"a value of {len(value)} bytes")

    def _check_progress(self, key: bytes, value: bytes) -> None:
        number = records.decode_number_key(records.PROGRESS, key)
        progress = ProgressRow.decode(value)
        self._check_owned(number)
        ops.check_offsets(progress.processed)
        ops.check_offsets(progress.published)
        ops.check_numbers(progress.numbers)
        if len(progress.published) > ops.PUBLISHED_JOURNALS_MAX:
            raise Corrupt(f"{len(progress.published)} journals that it has written")
        if number not in self._places:
            return
        consumer, index, generation = self._places[number]
        named = [*progress.processed, *progress.numbers]
        strangers = [journal for journal in named if not consumer.reads(index, journal)]
        if strangers:
            raise Corrupt(f"the journal {strangers[0]!r} was processed, and is not this shard's")
        if progress.generation > generation:
            raise Corrupt(f"progress of the generation {progress.generation}, and the shard is in {generation}")

    def _check_owned(self, number: int) -> None:
        if number not in self._numbers and number not in self._doomed:
            raise Corrupt(f"no shard has or had the number {number}")


def _check_time(time_ms: int) -> None:
    """Later times have no date, and the record could not be shown."""
    if not 0 <= time_ms <= ops.TIME_MS_MAX:
        raise Corrupt(f"{time_ms} is not a time in milliseconds since 1970")
