"""What can be known of consumers, their shards and members, as users see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from detent.durations import at_1970_ms
from detent.shard import operations as ops


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A process that works for a consumer: its id, what it says of itself, and until when it counts as alive."""

    member: str
    info: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard of a consumer. `holder` is the member that works on it, for `lease` more if it says nothing; empty if
    none does.

    `processed` is the offset after the last message that is done, of each journal that the shard has reported, and
    `published` the same of journals that it has written. `generation` counts resets; `resets` are the offsets from
    which journals were to be read again. `numbers` are those of the journals that it reads, as far as it has reported
    them: one that was deleted and made anew has another.
    """

    index: int
    number: int
    fence: int
    holder: str
    lease: timedelta
    generation: int
    resets: dict[str, int]
    status: str
    error: str
    journals: tuple[str, ...]
    processed: dict[str, int]
    published: dict[str, int]
    numbers: dict[str, int]


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer: how it is divided, and how it is doing. `sources` says which shard reads a journal; a consumer that
    is divided by "key" has 0 there, and all its shards read all its journals."""

    name: str
    partition: str
    paused: bool
    sources: dict[str, int]
    created: datetime
    members: tuple[MemberInfo, ...]
    shards: tuple[ShardInfo, ...]


def consumer_info(found: ops.ConsumerDescription) -> ConsumerInfo:
    """A description as users see it."""
    return ConsumerInfo(
        name=found.name,
        partition=found.partition,
        paused=found.paused,
        sources=found.sources,
        created=at_1970_ms(found.created_ms),
        members=tuple(MemberInfo(one.member, one.info, at_1970_ms(one.expires_ms)) for one in found.members),
        shards=tuple(_shard_info(shard, found.journals_of(shard.index)) for shard in found.states),
    )


def _shard_info(found: ops.ShardDescription, journals: list[str]) -> ShardInfo:
    return ShardInfo(
        index=found.index,
        number=found.number,
        fence=found.fence,
        holder=found.holder,
        lease=timedelta(milliseconds=found.lease_ms),
        generation=found.generation,
        resets=found.resets,
        status=found.status,
        error=found.error,
        journals=tuple(journals),
        processed=found.processed,
        published=found.published,
        numbers=found.numbers,
    )
