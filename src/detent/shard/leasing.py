"""The rules, which are pure: which shard gets a new journal, who may take a shard, and what a reset leaves.

A lease is advice. It keeps members from working on the same shard for nothing, and it is as good as their clocks. What
keeps them from both having an effect is the shard's fence.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from detent.codec.shard import BY_KEY, FENCE_STEP, ConsumerRow, Reset, ShardRow
from detent.errors import Conflict


def placed(consumer: ConsumerRow, journals: Iterable[str]) -> ConsumerRow:
    """The consumer with these journals too. Each new one goes to the shard that has the fewest, the lowest of them;
    those that are there stay where they are, so that their progress does."""
    new = [journal for journal in dict.fromkeys(journals) if journal not in consumer.sources]
    if not new:
        return consumer
    if consumer.partition == BY_KEY:
        return consumer._replace(sources={**consumer.sources, **dict.fromkeys(new, 0)})
    counts = [0] * consumer.shards
    for shard in consumer.sources.values():
        counts[shard] += 1
    order = [(count, shard) for shard, count in enumerate(counts)]
    heapq.heapify(order)
    sources = dict(consumer.sources)
    for journal in new:
        count, shard = order[0]
        sources[journal] = shard
        heapq.heapreplace(order, (count + 1, shard))
    return consumer._replace(sources=sources)


def check_same(name: str, consumer: ConsumerRow, shards: int, partition: str) -> None:
    """`Conflict` if the consumer is divided otherwise: its journals and keys would be in other shards than their
    progress."""
    if shards != consumer.shards:
        raise Conflict(
            f"the consumer {name!r} has {consumer.shards} shards, not {shards}, and their number stays: start it with "
            f"{consumer.shards}, or give the new one a name of its own; or delete it, and with it its progress"
        )
    if partition != consumer.partition:
        raise Conflict(
            f"the consumer {name!r} is divided by {consumer.partition!r}, not by {partition!r}, and that stays: start "
            "it as it was, or give the new one a name of its own; or delete it, and with it its progress"
        )


def new_shard(number: int, now_ms: int) -> ShardRow:
    """A shard that was never opened."""
    return ShardRow(number, number * FENCE_STEP, "", 0, 0, {}, now_ms)


def living_holder(shard: ShardRow, lease_end_ms: int, now_ms: int) -> str:
    """Which member holds a shard now; empty if none does, or not any more."""
    return shard.holder if lease_end_ms > now_ms else ""


def leased(shard: ShardRow, member: str, ttl_ms: int, lease_end_ms: int, now_ms: int) -> ShardRow:
    """The shard in the hands of a member; the same one if it is there already. `Conflict` while another holds it."""
    holder = living_holder(shard, lease_end_ms, now_ms)
    if holder not in {"", member}:
        raise Conflict(
            f"the member {holder!r} holds this shard, and for {lease_end_ms - now_ms} ms more if it says nothing: take "
            "it when it is given back, or then"
        )
    if (shard.holder, shard.ttl_ms) == (member, ttl_ms):
        return shard
    return shard._replace(holder=member, ttl_ms=ttl_ms, updated_ms=now_ms)


def released(shard: ShardRow, now_ms: int) -> ShardRow:
    """The shard without a holder."""
    return shard._replace(holder="", ttl_ms=0, updated_ms=now_ms)


def opened(shard: ShardRow, now_ms: int) -> ShardRow:
    """The shard with a fence that no process has had."""
    return shard._replace(fence=shard.fence + 1, updated_ms=now_ms)


def reset(shard: ShardRow, offsets: Mapping[str, int], now_ms: int) -> ShardRow:
    """The shard in its next generation. Earlier resets of other journals stay: a checkpoint may be from before them."""
    generation = shard.generation + 1
    new = {journal: Reset(offset, generation) for journal, offset in offsets.items()}
    return shard._replace(generation=generation, resets={**shard.resets, **new}, updated_ms=now_ms)


def resets_since(shard: ShardRow, generation: int) -> dict[str, int]:
    """Where journals are to be read from by a process whose progress is of this generation. What it has seen already
    must not be done again: it has read on since."""
    return {journal: reset.offset for journal, reset in sorted(shard.resets.items()) if reset.generation > generation}
