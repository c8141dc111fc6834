"""The consumers' state machine: which shard reads which journal, who holds it, and what it has committed.

Consumers and shards are read at the start and stay in memory, with how far each shard was, for they are few and small.
Checkpoints and state are neither: they are written with their group, and read from the store, under what the group in
progress has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from detent.codec import shard as records
from detent.codec.keys import u32
from detent.codec.shard import BY_KEY, ConsumerRow, ProgressRow, ShardRow
from detent.engine import ApplyContext, Done, Operation, Result
from detent.errors import Conflict, Fenced, LimitExceeded, NotFound
from detent.kv import Batch, Reader, View
from detent.shard import leasing, reading
from detent.shard import operations as ops
from detent.shard.memory import Presence, Reports, StateRows, set_undoably

STEP_RECORDS: Final = 1_000
"""Records of a deleted shard that one step of housekeeping removes: a few milliseconds."""

STEP_SHARDS: Final = 16
"""Deleted shards that one tick sees to."""


class ShardMachine:
    """All consumers and shards of one store, as their owner sees them."""

    operations: tuple[type[Operation], ...] = (
        ops.RegisterConsumer,
        ops.Heartbeat,
        ops.LeaseShard,
        ops.ReleaseShards,
        ops.OpenShard,
        ops.FindShard,
        ops.CommitShard,
        ops.ReadShardState,
        ops.ScanShardState,
        ops.ReportShard,
        ops.PauseConsumer,
        ops.ResetShards,
        ops.DescribeConsumers,
        ops.DeleteConsumer,
    )
    local: tuple[type[Operation], ...] = ()
    prepared: tuple[type[Operation], ...] = ()
    results: tuple[type[Result], ...] = (
        ops.ConsumerPlan,
        ops.Leased,
        ops.ShardOpened,
        ops.StateValues,
        ops.StatePage,
        ops.ConsumerDescription,
        ops.ConsumerDescriptions,
    )

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rows = StateRows()
        self._reports = Reports()
        self._first_ms: int | None = None
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.RegisterConsumer: self._register,
            ops.Heartbeat: self._heartbeat,
            ops.LeaseShard: self._lease,
            ops.ReleaseShards: self._release,
            ops.OpenShard: self._open,
            ops.FindShard: self._find,
            ops.CommitShard: self._commit,
            ops.ReadShardState: self._read_state,
            ops.ScanShardState: self._scan_state,
            ops.ReportShard: self._report,
            ops.PauseConsumer: self._pause,
            ops.ResetShards: self._reset,
            ops.DescribeConsumers: self._describe,
            ops.DeleteConsumer: self._delete,
            ops.ReapShard: self._reap,
        }

    # -- the machine's interface --------------------------------------------------------------------------------

    def prepare(self, operation: Any) -> None:
        """Nothing here needs slow checks."""

    def load(self, view: View) -> None:
        """Read all consumers and shards, and the progress that was kept. Leases that are found begin again, with the
        first time that is told."""
        self._rows.load(view)
        self._reports.clear()
        for shard in self._rows.all_shards():
            self._reports.restore(shard, self._rows.progress.get(shard.number))
        self._first_ms = None

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """Leases begin again after a load, and nothing else here waits for a time."""

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write what the group has changed."""
        del now_ms
        self._rows.flush(batch)

    def committed(self) -> None:
        """Nothing waits here: members ask again and again."""

    def due(self, now_ms: int) -> Iterable[Operation]:
        """What deleted consumers have left."""
        self._note_time(now_ms)
        return [ops.ReapShard(number) for number in islice(self._rows.doomed, STEP_SHARDS)]

    def next_due_ms(self, now_ms: int) -> int | None:
        """A tick a second is enough: leases that are over are seen when one is asked for."""
        del now_ms
        return None

    def closing(self) -> Iterable[Operation]:
        """Nothing is left to do: every commit was whole."""
        return ()

    # -- consumers ----------------------------------------------------------------------------------------------

    def _register(self, op: ops.RegisterConsumer, context: ApplyContext) -> Result:
        ops.check_register(op)
        known = self._rows.get(op.consumer)
        if known is None:
            consumer = ConsumerRow(context.now_ms, op.shards, op.partition, False, {})
        else:
            leasing.check_same(op.consumer, known, op.shards, op.partition)
            consumer = known
        consumer = leasing.placed(consumer, op.journals)
        if consumer == known:
            context.idle += 1
        else:
            self._check_room(consumer, new=known is None)
            if known is None:
                make = partial(leasing.new_shard, now_ms=context.now_ms)
                self._rows.add(op.consumer, consumer, make, context)
            else:
                self._rows.set_consumer(op.consumer, consumer, context)
        sources = dict(sorted(consumer.sources.items()))
        return ops.ConsumerPlan(consumer.shards, consumer.partition, sources, consumer.paused)

    def _check_room(self, consumer: ConsumerRow, *, new: bool) -> None:
        if len(consumer.sources) > ops.JOURNALS_PER_CONSUMER_MAX:
            raise LimitExceeded(f"a consumer reads at most {ops.JOURNALS_PER_CONSUMER_MAX} journals")
        if consumer.partition == BY_KEY and consumer.shards * len(consumer.sources) > ops.KEYED_POSITIONS_MAX:
            raise LimitExceeded(
                f"{consumer.shards} shards that each read {len(consumer.sources)} journals are over the limit of "
                f"{ops.KEYED_POSITIONS_MAX} positions: use fewer shards or journals, or divide by journal"
            )
        if not new:
            return
        if len(self._rows) >= ops.CONSUMERS_MAX:
            raise LimitExceeded(f"there are {ops.CONSUMERS_MAX} consumers already: delete those that are not used")
        if self._rows.shard_count + consumer.shards > ops.STORE_SHARDS_MAX:
            raise LimitExceeded(
                f"a store has at most {ops.STORE_SHARDS_MAX} shards, and {self._rows.shard_count} are there: delete "
                "consumers that are not used"
            )

    def _pause(self, op: ops.PauseConsumer, context: ApplyContext) -> Result:
        consumer = self._consumer(op.consumer)
        if consumer.paused == bool(op.paused):
            context.idle += 1
        else:
            self._rows.set_consumer(op.consumer, consumer._replace(paused=bool(op.paused)), context)
        return Done()

    def _reset(self, op: ops.ResetShards, context: ApplyContext) -> Result:
        ops.check_reset(op)
        consumer = self._consumer(op.consumer)
        self._check_sources(op.consumer, consumer, op.offsets)
        for index, shard in enumerate(self._rows.shards(op.consumer)):
            offsets = {journal: offset for journal, offset in op.offsets.items() if consumer.reads(index, journal)}
            if offsets:
                new = leasing.reset(shard, offsets, context.now_ms)
                self._rows.set_shard(op.consumer, index, new, context)
                self._rows.forget_processed(shard.number, new.generation, context)
                self._reports.note_reset(shard.number, shard.fence, context)
        return Done()

    def _delete(self, op: ops.DeleteConsumer, context: ApplyContext) -> Result:
        self._consumer(op.consumer)
        shards = self._rows.shards(op.consumer)
        for index, shard in enumerate(shards):
            holder = leasing.living_holder(shard, self._lease_end_ms(shard, context.now_ms), context.now_ms)
            if holder and not op.force:
                raise Conflict(
                    f"the member {holder!r} holds shard {index} of the consumer {op.consumer!r}: stop it first, or "
                    "delete the consumer with force"
                )
        self._reports.forget(op.consumer, [shard.number for shard in shards], context)
        self._rows.delete(op.consumer, context)
        return Done()

    def _consumer(self, name: str) -> ConsumerRow:
        """A consumer that exists."""
        ops.check_consumer(name)
        consumer = self._rows.get(name)
        if consumer is None:
            raise NotFound(f"there is no consumer {name!r}")
        return consumer

    def _shard(self, name: str, index: int) -> ShardRow:
        """A shard that exists."""
        ops.check_index(index)
        consumer = self._consumer(name)
        if index >= consumer.shards:
            raise NotFound(f"the consumer {name!r} has no shard {index}: it has {consumer.shards}, numbered from 0 on")
        return self._rows.shards(name)[index]

    @staticmethod
    def _check_sources(name: str, consumer: ConsumerRow, journals: Iterable[str]) -> None:
        for journal in journals:
            if journal not in consumer.sources:
                raise NotFound(f"the consumer {name!r} does not read the journal {journal!r}")

    # -- members and leases -------------------------------------------------------------------------------------

    def _heartbeat(self, op: ops.Heartbeat, context: ApplyContext) -> Result:
        context.idle += 1
        ops.check_member(op.member, op.ttl_ms, op.info)
        consumer = self._consumer(op.consumer)
        end_ms = context.now_ms + op.ttl_ms
        self._reports.note_member(op.consumer, op.member, Presence(op.info, end_ms), context)
        for shard in self._rows.shards(op.consumer):
            if shard.holder == op.member:
                self._reports.set_lease_end(shard.number, end_ms, context)
        return self._description(op.consumer, consumer, context.now_ms)

    def _lease(self, op: ops.LeaseShard, context: ApplyContext) -> Result:
        ops.check_member(op.member, op.ttl_ms)
        shard, now_ms = self._shard(op.consumer, op.shard), context.now_ms
        leased = leasing.leased(shard, op.member, op.ttl_ms, self._lease_end_ms(shard, now_ms), now_ms)
        self._reports.set_lease_end(shard.number, now_ms + op.ttl_ms, context)
        if leased is shard:
            context.idle += 1
        else:
            self._rows.set_shard(op.consumer, op.shard, leased, context)
        return ops.Leased(shard.generation)

    def _release(self, op: ops.ReleaseShards, context: ApplyContext) -> Result:
        ops.check_member(op.member)
        consumer = self._consumer(op.consumer)
        ops.check_indexes(op.shards)
        if op.shards is None:
            self._reports.drop_member(op.consumer, op.member, context)
        changed = False
        for index in range(consumer.shards) if op.shards is None else op.shards:
            shard = self._shard(op.consumer, index)
            if shard.holder == op.member:
                self._rows.set_shard(op.consumer, index, leasing.released(shard, context.now_ms), context)
                self._reports.set_lease_end(shard.number, None, context)
                changed = True
        if not changed:
            context.idle += 1
        return Done()

    def _lease_end_ms(self, shard: ShardRow, now_ms: int) -> int:
        """When a lease ends. One that was found in the store has all its time again, from the first time that this
        machine was told: what had passed of it is not known, and its holder may be alive."""
        self._note_time(now_ms)
        known = self._reports.lease_end_ms(shard.number)
        assert self._first_ms is not None
        return self._first_ms + shard.ttl_ms if known is None else known

    def _note_time(self, now_ms: int) -> None:
        if self._first_ms is None:
            self._first_ms = now_ms

    # -- what a shard commits -----------------------------------------------------------------------------------

    def _open(self, op: ops.OpenShard, context: ApplyContext) -> Result:
        shard = leasing.opened(self._shard(op.consumer, op.shard), context.now_ms)
        self._rows.set_shard(op.consumer, op.shard, shard, context)
        return self._opened(shard, 0)

    def _find(self, op: ops.FindShard, context: ApplyContext) -> Result:
        context.idle += 1
        return self._opened(self._shard(op.consumer, op.shard), op.since)

    def _opened(self, shard: ShardRow, since: int) -> Result:
        with self._view() as view:
            checkpoint = reading.read_checkpoint(view, shard.number)
        resets = leasing.resets_since(shard, since)
        return ops.ShardOpened(shard.number, shard.fence, checkpoint, shard.generation, resets)

    def _commit(self, op: ops.CommitShard, context: ApplyContext) -> Result:
        shard = self._shard(op.consumer, op.shard)
        ops.check_commit(op)
        if op.fence != shard.fence:
            raise Fenced(
                f"shard {op.shard} of the consumer {op.consumer!r} has the fence {shard.fence}, not {op.fence}: "
                "another process has opened the shard; stop this one"
            )
        self._check_sources(op.consumer, self._consumer(op.consumer), op.processed)
        number = shard.number
        prefix = records.state_key(number, "")
        changes: dict[bytes, bytes | None] = {prefix + key.encode(): value for key, value in op.puts.items()}
        changes.update((prefix + key.encode(), None) for key in op.deletes)
        changes[records.checkpoint_key(number)] = op.checkpoint
        self._rows.write_many(changes, context)
        if op.fence > self._reports.report(number).stale_fence:
            self._reports.note_progress(number, op.processed, {}, context)
        return Done()

    def _read_state(self, op: ops.ReadShardState, context: ApplyContext) -> Result:
        context.idle += 1
        ops.check_read(op)
        number = self._shard(op.consumer, op.shard).number
        values: list[bytes | None] = []
        size = 0
        with self._view() as view:
            for key in op.keys:
                (value,) = reading.read_state(view, number, [key])
                values.append(value)
                size += 0 if value is None else len(value)
                if size >= ops.PAGE_BYTES:
                    break
        return ops.StateValues(values)

    def _scan_state(self, op: ops.ScanShardState, context: ApplyContext) -> Result:
        context.idle += 1
        ops.check_scan(op)
        number = self._shard(op.consumer, op.shard).number
        with self._view() as view:
            page = reading.scan_state(view, number, op.prefix, op.after, op.limit)
        return ops.StatePage(page.items, page.more)

    @contextmanager
    def _view(self) -> Iterator[View]:
        """What is durable, under what the group in progress has changed."""
        with self._reader.view() as view:
            yield reading.Overlaid(view, self._rows.writes) if self._rows.writes else view

    # -- reports ------------------------------------------------------------------------------------------------

    def _report(self, op: ops.ReportShard, context: ApplyContext) -> Result:
        ops.check_report(op)
        shard, kept = self._shard(op.consumer, op.shard), False
        self._check_sources(op.consumer, self._consumer(op.consumer), [*op.processed, *op.numbers])
        if op.generation >= shard.generation and op.number in {0, shard.number}:
            self._reports.note_state(shard.number, op.status, op.error, context)
            self._reports.note_progress(shard.number, op.processed, op.published, context)
            self._reports.note_journals(shard.number, op.numbers, context)
            kept = op.keep and self._keep(op.consumer, op.shard, context)
        if not kept:
            context.idle += 1
        return Done()

    def _keep(self, name: str, index: int, context: ApplyContext) -> bool:
        """Write down how far a shard is, by all that was reported. False if that is written already."""
        consumer, shard = self._consumer(name), self._shard(name, index)
        report = self._reports.report(shard.number)
        processed = {journal: offset for journal, offset in report.processed.items() if consumer.reads(index, journal)}
        numbers = {journal: number for journal, number in report.numbers.items() if consumer.reads(index, journal)}
        progress = ProgressRow(processed, dict(report.published), shard.generation, numbers)
        return self._rows.keep_progress(shard.number, progress, context)

    def _describe(self, op: ops.DescribeConsumers, context: ApplyContext) -> Result:
        context.idle += 1
        if op.name:
            found = self._description(op.name, self._consumer(op.name), context.now_ms)
            return ops.ConsumerDescriptions([found], False)
        ops.check_page(op.prefix, op.after, op.limit)
        listed: list[ops.ConsumerDescription] = []
        size = 0
        for name, consumer in self._rows.items(op.prefix, op.after):
            if len(listed) == op.limit or size >= ops.PAGE_BYTES:
                return ops.ConsumerDescriptions(listed, True)
            listed.append(self._description(name, consumer, context.now_ms))
            size += ops.description_bytes(listed[-1])
        return ops.ConsumerDescriptions(listed, False)

    def _description(self, name: str, consumer: ConsumerRow, now_ms: int) -> ops.ConsumerDescription:
        members = self._reports.members(name, now_ms)
        return ops.ConsumerDescription(
            name=name,
            shards=consumer.shards,
            partition=consumer.partition,
            paused=consumer.paused,
            sources=dict(sorted(consumer.sources.items())),
            created_ms=consumer.created_ms,
            members=[ops.MemberDescription(member, known.info, known.expires_ms) for member, known in members],
            states=[self._shard_description(*item, now_ms) for item in enumerate(self._rows.shards(name))],
        )

    def _shard_description(self, index: int, shard: ShardRow, now_ms: int) -> ops.ShardDescription:
        end_ms = self._lease_end_ms(shard, now_ms)
        holder = leasing.living_holder(shard, end_ms, now_ms)
        report = self._reports.report(shard.number)
        return ops.ShardDescription(
            index=index,
            number=shard.number,
            fence=shard.fence,
            holder=holder,
            lease_ms=end_ms - now_ms if holder else 0,
            generation=shard.generation,
            resets=leasing.resets_since(shard, 0),
            status=report.status,
            error=report.error,
            processed=dict(sorted(report.processed.items())),
            published=dict(sorted(report.published.items())),
            numbers=dict(sorted(report.numbers.items())),
        )

    # -- deleted shards -----------------------------------------------------------------------------------------

    def _reap(self, op: ops.ReapShard, context: ApplyContext) -> Result:
        """Remove some of what a shard has left; with the last of it, the note that it is doomed."""
        start, end = records.STATE.range(u32(op.number))
        with self._view() as view:
            found = [key for key, _ in view.scan(start, end, limit=STEP_RECORDS)]
        for key in found:
            self._rows.write(key, None, context)
        if len(found) < STEP_RECORDS:
            self._rows.write(records.checkpoint_key(op.number), None, context)
            self._rows.write(records.progress_key(op.number), None, context)
            self._rows.write(records.doomed_key(op.number), None, context)
            set_undoably(self._rows.doomed, op.number, None, context)
        return Done()
