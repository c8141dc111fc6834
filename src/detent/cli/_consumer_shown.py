"""What commands show of consumers: how far their shards are, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from detent.cli._output import line_text
from detent.shard.calls import behind, is_other

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
    gone: Mapping[int, Mapping[str, str]]
    """The journals of each shard that were deleted since it has read them, and what became of them."""


def look(store: Store, name: str) -> Seen:
    """A consumer as it is now. `NotFound` if there is none."""
    info = store.consumer(name).info()
    places = {journal: store.reader.whereabouts(journal) for journal in info.sources}
    lag = {
        shard.index: {journal: behind(shard, journal, places[journal]) for journal in shard.journals}
        for shard in info.shards
    }
    gone = {
        shard.index: {
            journal: "deleted" if places[journal] is None else "recreated"
            for journal in shard.journals
            if is_other(shard, journal, places[journal])
        }
        for shard in info.shards
    }
    return Seen(info, lag, gone)


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
        "shards": [_shard_fields(seen, shard) for shard in info.shards],
    }


def _shard_fields(seen: Seen, shard: ShardInfo) -> dict[str, Any]:
    return {
        "shard": shard.index,
        "journals": list(shard.journals),
        "holder": shard.holder or None,
        "lease_ms": round(shard.lease.total_seconds() * 1000),
        "status": shown_status(seen, shard),
        "error": shown_error(seen, shard) or None,
        "generation": shard.generation,
        "processed": shard.processed,
        "published": shard.published,
        "lag": dict(seen.lag[shard.index]),
        "gone": dict(seen.gone[shard.index]),
    }


# -- for people -----------------------------------------------------------------------------------------------------


def shown_status(seen: Seen, shard: ShardInfo) -> str:
    """What a shard is at. What it said last counts for nothing when no process works on it any more; nor does that it
    runs, when a journal is gone that it reads."""
    said = (shard.status or "starting") if shard.holder else FREE
    return "failed" if said == "running" and seen.gone[shard.index] else said


def shown_error(seen: Seen, shard: ShardInfo) -> str:
    """What is wrong with a shard, and what to do: at once, whether or not the shard has noticed, and runs."""
    for journal, what in seen.gone[shard.index].items():
        if what == "recreated":
            return (
                f"the journal {journal!r} was deleted and made anew: to read the new one, "
                f"detent consumer reset {seen.info.name} --journal {journal} --earliest"
            )
        return f"the journal {journal!r} was deleted: when there is another one, reset the consumer"
    return shard.error


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
