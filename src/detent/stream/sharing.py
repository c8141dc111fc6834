"""Who works on which shard: rules that every process of a consumer applies by itself to the same table.

They are pure. What they decide is advice: two processes that see the table at different moments may both want a shard;
one gets the lease, and if both ever work, the state's fence lets one of them commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import xxhash

from detent.shard.operations import ConsumerDescription, ShardDescription

STANDBY_FIRST_S: Final = 1.0
"""How long a shard that became free is left to its standby, before another member takes it."""


def fair_share(table: ConsumerDescription) -> int:
    """How many shards a process should have."""
    return -(-table.shards // max(1, len(table.members)))


def standbys_of(table: ConsumerDescription, shard: ShardDescription, standbys: int) -> list[str]:
    """The members that follow a shard: some that do not hold it, the same whichever member asks."""
    others = [one.member for one in table.members if one.member != shard.holder]
    others.sort(key=lambda member: (xxhash.xxh3_64_intdigest(f"{shard.index}/{member}".encode()), member))
    return others[:standbys]


def wanted(
    table: ConsumerDescription, member: str, standbys: int, free_s: Sequence[float], running: Sequence[int]
) -> list[int]:
    """The free shards that a member should take now. `free_s` says how long each shard has been free, `running` which
    ones the member works on."""
    room = fair_share(table) - len(running)
    mine: list[int] = []
    for shard in table.states:
        if shard.holder:
            continue
        followers = standbys_of(table, shard, standbys) if standbys else []
        is_first = not followers or member in followers
        if len(mine) < room and (is_first or free_s[shard.index] >= STANDBY_FIRST_S):
            mine.append(shard.index)
    return mine


def excess(table: ConsumerDescription, running: Sequence[int]) -> list[int]:
    """The shards that a member has beyond its share; the last ones."""
    return sorted(running)[fair_share(table) :]
