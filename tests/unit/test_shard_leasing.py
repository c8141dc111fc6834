"""The rules of consumers: which shard gets a journal, who may take a shard, what a reset leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec.shard import FENCE_STEP
from detent.codec.shard import ConsumerRow as Consumer
from detent.errors import Conflict
from detent.shard import leasing

NOW = 1_700_000_000_000
NEW = leasing.new_shard(3, NOW)


def consumer(shards: int, sources: dict[str, int] | None = None, partition: str = "journal") -> Consumer:
    return Consumer(NOW, shards, partition, False, sources or {})


class TestPlacing:
    def test_the_shard_with_the_fewest_gets_it_and_of_those_the_lowest(self) -> None:
        placed = leasing.placed(consumer(3), ["z", "y", "x", "w"])
        assert placed.sources == {"z": 0, "y": 1, "x": 2, "w": 0}
        placed = leasing.placed(consumer(3, {"a": 0, "b": 0, "c": 2}), ["d", "e", "f"])
        assert placed.sources == {"a": 0, "b": 0, "c": 2, "d": 1, "e": 1, "f": 2}

    def test_those_that_are_known_stay(self) -> None:
        known = consumer(2, {"a": 1, "b": 1})
        assert leasing.placed(known, ["b", "a"]) is known
        assert leasing.placed(known, []) is known
        assert leasing.placed(known, ["b", "c", "c"]).sources == {"a": 1, "b": 1, "c": 0}

    def test_divided_by_key_nobody_is_chosen(self) -> None:
        assert leasing.placed(consumer(3, {"a": 0}, "key"), ["b", "c"]).sources == {"a": 0, "b": 0, "c": 0}

    @given(st.integers(1, 9), st.lists(st.lists(st.text(min_size=1, max_size=2)), max_size=9))
    def test_the_load_is_even_and_nothing_moves(self, shards: int, calls: list[list[str]]) -> None:
        known = consumer(shards)
        for journals in calls:
            placed = leasing.placed(known, journals)
            assert placed.sources.items() >= known.sources.items()
            assert placed.sources.keys() == known.sources.keys() | set(journals)
            counts = Counter(dict.fromkeys(range(shards), 0))
            counts.update(placed.sources.values())
            assert set(counts) == set(range(shards))
            assert max(counts.values()) - min(counts.values()) <= 1
            known = placed


class TestDividedOtherwise:
    def test_the_same_is_no_conflict(self) -> None:
        leasing.check_same("c", consumer(3), 3, "journal")

    def test_another_number_of_shards(self) -> None:
        with pytest.raises(Conflict, match="'c' has 3 shards, not 4, and their number stays: start it with 3, or give"):
            leasing.check_same("c", consumer(3), 4, "journal")

    def test_another_partition(self) -> None:
        with pytest.raises(Conflict, match=r"is divided by 'journal', not by 'key'.*or delete it"):
            leasing.check_same("c", consumer(3), 3, "key")


class TestLeases:
    def test_a_shard_that_nobody_holds(self) -> None:
        taken = leasing.leased(NEW, "m", 50, NOW, NOW + 9)
        assert taken == NEW._replace(holder="m", ttl_ms=50, updated_ms=NOW + 9)

    def test_the_same_member_keeps_it_and_nothing_is_written(self) -> None:
        taken = leasing.leased(NEW, "m", 50, NOW, NOW)
        for now_ms in (NOW + 10, NOW + 99):
            assert leasing.leased(taken, "m", 50, NOW + 50, now_ms) is taken
        assert leasing.leased(taken, "m", 60, NOW + 50, NOW).ttl_ms == 60

    def test_another_member_has_to_wait_until_the_lease_is_over(self) -> None:
        taken = leasing.leased(NEW, "m", 50, NOW, NOW)
        with pytest.raises(Conflict, match="the member 'm' holds this shard, and for 1 ms more"):
            leasing.leased(taken, "n", 50, NOW + 50, NOW + 49)
        assert leasing.leased(taken, "n", 50, NOW + 50, NOW + 50).holder == "n"

    def test_who_holds_it(self) -> None:
        taken = leasing.leased(NEW, "m", 50, NOW, NOW)
        assert leasing.living_holder(NEW, NOW + 50, NOW) == ""
        assert leasing.living_holder(taken, NOW + 50, NOW + 49) == "m"
        assert leasing.living_holder(taken, NOW + 50, NOW + 50) == ""

    def test_given_back(self) -> None:
        taken = leasing.leased(NEW, "m", 50, NOW, NOW)
        assert leasing.released(taken, NOW + 1) == NEW._replace(updated_ms=NOW + 1)


class TestFencesAndResets:
    def test_each_opening_raises_the_fence(self) -> None:
        assert NEW.fence == 3 * FENCE_STEP
        assert leasing.opened(leasing.opened(NEW, NOW), NOW + 1) == NEW._replace(
            fence=NEW.fence + 2, updated_ms=NOW + 1
        )

    def test_a_later_shard_has_a_higher_fence(self) -> None:
        assert leasing.new_shard(4, NOW).fence > NEW.fence + 1_000_000

    def test_a_reset_keeps_what_earlier_ones_said(self) -> None:
        once = leasing.reset(NEW, {"a": 5, "b": 6}, NOW)
        twice = leasing.reset(once, {"b": 0}, NOW + 1)
        assert (once.generation, leasing.resets_since(once, 0)) == (1, {"a": 5, "b": 6})
        assert (twice.generation, leasing.resets_since(twice, 0)) == (2, {"a": 5, "b": 0})
        assert (leasing.resets_since(twice, 1), leasing.resets_since(twice, 2)) == ({"b": 0}, {}), "once is enough"
        assert twice.fence == NEW.fence
