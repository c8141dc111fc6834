"""Mappings: which partition journal a message belongs to.

A mapping is a function of a key and a list of partitions. All messages of one key go to one partition for as long as
the list stays the same:

* `rendezvous` keeps almost all keys in place when a partition is added or removed; the default choice.
* `modulo` is cheaper, but a change of the list moves nearly every key.
* `random_choice` ignores the key and spreads the load evenly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import xxhash

from detent.errors import NotFound

MappingFunction = Callable[[bytes, Sequence[str]], str]
"""Takes a key and the partitions, returns one of the partitions."""

NAME_CACHE: Final = 65_536
"""Hashes of partition names that are kept; a listing of more partitions than this is hashed again each time."""

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_U32: Final = 0xFFFF_FFFF


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _U32
    return value


def modulo(key: bytes, partitions: Sequence[str]) -> str:
    """The partition at the key's hash modulo their number."""
    _check(partitions)
    return partitions[fnv1a32(key) % len(partitions)]


def rendezvous(key: bytes, partitions: Sequence[str]) -> str:
    """The partition with the highest weight for this key; of equal weights the first.

    Key and name are mixed by one hash. Weights made of two separate hashes (their XOR, say) would load the
    partitions unevenly, by a factor of eight with sixteen of them.
    """
    _check(partitions)
    weight = xxhash.xxh3_64_intdigest
    best, best_weight = partitions[0], -1
    for name in partitions:
        candidate = weight(key, _seed(name))
        if candidate > best_weight:
            best, best_weight = name, candidate
    return best


def random_choice(rng: random.Random) -> MappingFunction:
    """A mapping that picks any partition with equal probability, from the given source of randomness."""

    def choose(_key: bytes, partitions: Sequence[str]) -> str:
        _check(partitions)
        return rng.choice(partitions)

    return choose


@lru_cache(maxsize=NAME_CACHE)
def _seed(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def _check(partitions: Sequence[str]) -> None:
    if not partitions:
        raise NotFound("there is no partition to map to; create one, or retry once the listing has it")
