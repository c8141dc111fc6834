"""Mappings: published vectors, balance, and how many keys move when the partitions change."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache

import pytest

from detent.errors import NotFound
from detent.message import MappingFunction, fnv1a32, modulo, random_choice, rendezvous

VECTORS = [
    ("It always", 0x5E1F62FD, 119, 21),
    ("seems", 0x2CDE002C, 54, 179),
    ("impossible", 0x45DBD4D8, 308, 50),
    ("until", 0xBAB5214F, 97, 13),
    ("it is done.", 0xFD0A5982, 179, 337),
    ("- Nelson Mandela", 0x4485D979, 437, 29),
    ("Shall I compare", 0x2F3FAC75, 84, 110),
    ("thee to", 0xFBBCCC00, 300, 395),
    ("a summer's day?", 0x1DC72D82, 214, 192),
    ("Thou art more", 0xF26FB5BD, 135, 394),
    ("lovely and more", 0x804202B0, 118, 344),
    ("temperate - Shakespeare", 0x341C3515, 228, 75),
]
KEYS = [f"user-{number}".encode() for number in range(50_000)]


def journals(count: int) -> list[str]:
    return [f"a/topic/part-{number:03}" for number in range(count)]


@lru_cache(maxsize=1000)
def name_hash(name: str) -> int:
    return fnv1a32(name.encode())


def rendezvous_xor(key: bytes, partitions: list[str]) -> str:
    """The weight that the vectors were made with; too uneven to be offered."""
    digest = fnv1a32(key)
    return max(partitions, key=lambda name: digest ^ name_hash(name))


@pytest.mark.parametrize(("key", "digest", "by_modulo", "by_xor"), VECTORS)
def test_published_vectors(key: str, digest: int, by_modulo: int, by_xor: int) -> None:
    assert fnv1a32(key.encode()) == digest
    assert modulo(key.encode(), journals(443)) == f"a/topic/part-{by_modulo:03}"
    assert rendezvous_xor(key.encode(), journals(400)) == f"a/topic/part-{by_xor:03}"
    assert rendezvous_xor(key.encode(), journals(500)) == f"a/topic/part-{by_xor:03}"


def shares(mapping: MappingFunction, count: int) -> tuple[float, float]:
    partitions = journals(count)
    loads = Counter(mapping(key, partitions) for key in KEYS)
    fair = len(KEYS) / count
    return min(loads[name] for name in partitions) / fair, max(loads.values()) / fair


# With 50,000 keys chance alone spreads a share by sqrt(count / 50,000): 0.8 % at 3 partitions, 3.6 % at 64.
@pytest.mark.parametrize(("count", "slack"), [(3, 0.03), (4, 0.04), (8, 0.06), (16, 0.08), (64, 0.14)])
def test_the_load_is_even(count: int, slack: float) -> None:
    for mapping in (rendezvous, modulo, random_choice(random.Random(1))):
        low, high = shares(mapping, count)
        assert 1 - slack < low <= high < 1 + slack, mapping


def test_the_xor_weight_would_not_be_even() -> None:
    assert shares(rendezvous_xor, 16)[1] > 5


@pytest.mark.parametrize("count", [3, 8, 16])
def test_a_new_partition_takes_its_share_and_moves_nothing_else(count: int) -> None:
    keys, before, after = KEYS[:20_000], journals(count), journals(count + 1)
    moved = [key for key in keys if rendezvous(key, before) != rendezvous(key, after)]
    assert all(rendezvous(key, after) == after[-1] for key in moved)
    assert len(moved) / len(keys) == pytest.approx(1 / (count + 1), rel=0.08)


def test_a_removed_partition_moves_only_its_own_keys() -> None:
    before = journals(8)
    after = [name for name in before if name != before[3]]
    for key in KEYS[:5000]:
        if rendezvous(key, before) != before[3]:
            assert rendezvous(key, after) == rendezvous(key, before)


def test_the_order_of_the_listing_does_not_matter_to_rendezvous() -> None:
    names = journals(16)
    assert all(rendezvous(key, names) == rendezvous(key, names[::-1]) for key in KEYS[:500])


def test_rendezvous_is_the_same_in_every_release() -> None:
    assert [rendezvous(key, journals(16)) for key in KEYS[:4]] == [
        "a/topic/part-007",
        "a/topic/part-003",
        "a/topic/part-008",
        "a/topic/part-003",
    ]


def test_random_choice_depends_on_its_source_alone() -> None:
    first, second = (random_choice(random.Random(3)) for _ in range(2))
    assert [first(b"", journals(9)) for _ in range(20)] == [second(b"x", journals(9)) for _ in range(20)]


@pytest.mark.parametrize("mapping", [modulo, rendezvous, random_choice(random.Random(0))])
def test_no_partitions_is_an_error_to_retry(mapping: MappingFunction) -> None:
    with pytest.raises(NotFound):
        mapping(b"key", [])
