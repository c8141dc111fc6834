"""What commands show of consumers: how far their shards are, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from detent.cli._output import line_text
from detent.errors import NotFound

if TYPE_CHECKING:
    from detent.shard import ConsumerInfo, ShardInfo
    from detent.store import Store

JOURNALS_SHOWN = 3
"""Journals of a shard in a table; --json has them all."""

FREE = "free"
"""What is shown of a shard on which no process works."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A consumer, and how many messages each shard has still to process of each journal."""

    info: ConsumerInfo
    lag: Mapping[int, Mapping[str, int]]


def look(store: Store, name: str) -> Seen:
    """A consumer as it is now. `NotFound` if there is none."""
    info = store.consumer(name).info()
    ends = {journal: _extent(store, journal) for journal in info.sources}
    lag = {shard.index: {journal: _behind(shard, journal, ends) for journal in shard.journals} for shard in info.shards}
    return Seen(info, lag)


def place_of(shard: ShardInfo, journal: str) -> int | None:
    """Where a shard goes on in a journal, as far as that is known: a reset counts before a process has read on."""
    return shard.processed.get(journal, shard.resets.get(journal))


def _extent(store: Store, journal: str) -> tuple[int, int]:
    """A journal that was never written begins and ends at 0."""
    with suppress(NotFound):
        return store.reader.extent(journal)
    return 0, 0


def _behind(shard: ShardInfo, journal: str, ends: Mapping[str, tuple[int, int]]) -> int:
    first, end = ends[journal]
    return max(0, end - max(first, place_of(shard, journal) or 0))


# -- for programs ---------------------------------------------------------------------------------------------------


def consumer_fields(seen: Seen) -> dict[str, Any]:
    """A consumer with its shards and members; times in milliseconds."""
    info = seen.info
    return {
        "name": info.name,
        "partition": info.partition,
        "paused": info.paused,
        "created_ms": _ms(info.created),
        "lag": total_lag(seen),
        "members": [{"member": one.member, "info": one.info, "expires_ms": _ms(one.expires)} for one in info.members],
        "shards": [_shard_fields(shard, seen.lag[shard.index]) for shard in info.shards],
    }


def _shard_fields(shard: ShardInfo, lag: Mapping[str, int]) -> dict[str, Any]:
    return {
        "shard": shard.index,
        "journals": list(shard.journals),
        "holder": shard.holder or None,
        "lease_ms": round(shard.lease.total_seconds() * 1000),
        "status": shown_status(shard),
        "error": shard.error or None,
        "generation": shard.generation,
        "processed": shard.processed,
        "published": shard.published,
        "lag": dict(lag),
    }


# -- for people -----------------------------------------------------------------------------------------------------


def shown_status(shard: ShardInfo) -> str:
    """What a shard is at. What it said last counts for nothing when no process works on it any more."""
    return (shard.status or "starting") if shard.holder else FREE


def shown_journals(shard: ShardInfo) -> str:
    """The first few journals of a shard."""
    names = [line_text(name) for name in shard.journals[:JOURNALS_SHOWN]]
    more = len(shard.journals) - len(names)
    return " ".join([*names, f"and {more} more"] if more else names) or "-"


def total_lag(seen: Seen) -> int:
    """How many messages all shards have still to process. Those of a consumer that is divided by key are passed by
    every shard, and count once for each."""
    return sum(sum(behind.values()) for behind in seen.lag.values())


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
