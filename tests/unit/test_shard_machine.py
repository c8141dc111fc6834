"""The consumers' machine: who reads what, who holds what, what is committed, and what refusals and restarts leave."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.codec import shard as records
from detent.codec.shard import FENCE_STEP
from detent.engine import Done, Operation
from detent.errors import Conflict, Corrupt, DetentError, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.journal import operations as journals
from detent.kv import Batch
from detent.shard import machine as shard_machine
from detent.shard import operations as ops
from detent.shard import reading
from shardworld import TTL_MS, ShardWorld
from world import START_MS


@pytest.fixture
def world() -> ShardWorld:
    return ShardWorld()


@pytest.fixture
def made(world: ShardWorld) -> ShardWorld:
    """With a consumer of two shards, one journal each."""
    world.register(2, "a", "b")
    return world


# -- consumers ------------------------------------------------------------------------------------------------------


class TestRegistering:
    def test_a_new_consumer(self, world: ShardWorld) -> None:
        plan = world.commit(ops.RegisterConsumer("c", 2, ["z", "a", "m"]))[0]
        assert plan == ops.ConsumerPlan(2, "journal", {"a": 1, "m": 0, "z": 0}, False)
        found = world.describe()
        assert (found.shards, found.partition, found.paused, found.created_ms) == (2, "journal", False, START_MS)
        assert found.members == []
        assert [(shard.index, shard.number) for shard in found.states] == [(0, 1), (1, 2)]
        assert found.states[1] == ops.ShardDescription(1, 2, 2 * FENCE_STEP, "", 0, 0, {}, "", "", {}, {})

    def test_registered_again_nothing_is_written(self, world: ShardWorld) -> None:
        world.register(2, "a", "b")
        commits = world.writer.commits
        assert world.register(2, "b") == world.register(2) == {"a": 0, "b": 1}
        assert world.writer.commits == commits

    def test_new_journals_are_added_and_the_others_stay(self, world: ShardWorld) -> None:
        world.register(3, "a", "b")
        assert world.register(3, "d", "c", "a") == {"a": 0, "b": 1, "c": 0, "d": 2}
        world.reopen()
        assert world.register(3) == {"a": 0, "b": 1, "c": 0, "d": 2}

    def test_divided_by_key_all_read_all(self, world: ShardWorld) -> None:
        assert world.register(2, "b", "a", partition="key") == {"a": 0, "b": 0}
        world.reopen()
        found = world.describe()
        assert [found.journals_of(index) for index in range(2)] == [["a", "b"], ["a", "b"]]
        assert [shard.index for shard in found.shards_of("a")] == [0, 1]
        assert found.shards_of("c") == []

    @pytest.mark.parametrize(("shards", "partition"), [(1, "journal"), (3, "journal"), (2, "key")])
    def test_divided_otherwise_is_a_conflict(self, made: ShardWorld, shards: int, partition: str) -> None:
        before = made.stored()
        with pytest.raises(Conflict, match="give the new one a name of its own; or delete it"):
            made.commit(ops.RegisterConsumer("c", shards, ["new"], partition))
        assert made.stored() == before

    def test_numbers_are_never_given_twice(self, world: ShardWorld) -> None:
        world.register(2, name="a")
        world.register(1, name="b")
        world.commit(ops.DeleteConsumer("b"))
        world.reopen()
        world.register(1, name="b")
        assert [shard.number for name in "ab" for shard in world.describe(name).states] == [1, 2, 4]

    def test_paused_and_resumed(self, made: ShardWorld) -> None:
        made.commit(ops.PauseConsumer("c", True))
        commits = made.writer.commits
        made.commit(ops.PauseConsumer("c", True))
        assert made.writer.commits == commits
        made.reopen()
        assert made.describe().paused
        assert made.commit(ops.RegisterConsumer("c", 2, []))[0].paused
        made.commit(ops.PauseConsumer("c", False))
        assert not made.describe().paused


class TestListing:
    def test_by_name_in_pages(self, world: ShardWorld) -> None:
        for name in ("b", "a/2", "a/1", "世界"):
            world.register(1, name=name)
        assert world.names() == ["a/1", "a/2", "b", "世界"]
        assert world.names("a/") == ["a/1", "a/2"]
        page = world.commit(ops.DescribeConsumers("", "a/1", 2))[0]
        assert ([found.name for found in page.consumers], page.more) == (["a/2", "b"], True)
        page = world.commit(ops.DescribeConsumers("", "b", 2))[0]
        assert ([found.name for found in page.consumers], page.more) == (["世界"], False)

    def test_a_page_ends_by_its_bytes(self, world: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "abc":
            world.register(2, "j", name=name)
        monkeypatch.setattr(ops, "PAGE_BYTES", 400)
        page = world.commit(ops.DescribeConsumers())[0]
        assert ([found.name for found in page.consumers], page.more) == (["a", "b"], True)

    def test_looking_commits_nothing(self, made: ShardWorld) -> None:
        commits = made.writer.commits
        made.commit(
            ops.DescribeConsumers(),
            ops.DescribeConsumers(name="c"),
            ops.FindShard("c", 0),
            ops.ReadShardState("c", 0, ["k"]),
            ops.ScanShardState("c", 1),
            ops.Heartbeat("c", "m", TTL_MS),
            ops.ReportShard("c", 0, 0, "running"),
            ops.ReleaseShards("c", "m"),
        )
        assert made.writer.commits == commits


# -- members and leases ---------------------------------------------------------------------------------------------


class TestMembers:
    def test_alive_for_so_long(self, made: ShardWorld) -> None:
        made.commit(ops.Heartbeat("c", "n", 50))
        found = made.commit(ops.Heartbeat("c", "m", TTL_MS, "host:1"))[0]
        assert found == made.describe()
        assert found.members == [
            ops.MemberDescription("m", "host:1", START_MS + TTL_MS),
            ops.MemberDescription("n", "", START_MS + 50),
        ]
        made.now_ms += 50
        assert [member.member for member in made.describe().members] == ["m"]
        made.now_ms += TTL_MS
        assert made.describe().members == []

    def test_it_says_nothing_to_other_consumers(self, made: ShardWorld) -> None:
        made.register(1, name="other")
        made.commit(ops.Heartbeat("c", "m", TTL_MS))
        assert made.describe("other").members == []

    def test_members_have_a_limit_that_the_dead_do_not_use_up(
        self, made: ShardWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ops, "MEMBERS_MAX", 2)
        made.commit(ops.Heartbeat("c", "a", 50))
        made.commit(ops.Heartbeat("c", "b", 500))
        with pytest.raises(LimitExceeded, match="has 2 members already"):
            made.commit(ops.Heartbeat("c", "d", 500))
        made.commit(ops.Heartbeat("c", "b", 500))
        made.now_ms += 50
        made.commit(ops.Heartbeat("c", "d", 500))
        assert [member.member for member in made.describe().members] == ["b", "d"]

    def test_who_leaves_gives_all_back(self, made: ShardWorld) -> None:
        made.commit(ops.Heartbeat("c", "m", TTL_MS))
        made.lease("m", 0)
        made.lease("n", 1)
        made.commit(ops.ReleaseShards("c", "m"))
        assert made.describe().members == []
        assert [shard.holder for shard in made.describe().states] == ["", "n"]
        made.reopen()
        assert [shard.holder for shard in made.describe().states] == ["", "n"]


class TestLeases:
    def test_taken_kept_and_over(self, made: ShardWorld) -> None:
        assert made.lease("m") == 0
        assert (made.shard().holder, made.shard().lease_ms) == ("m", TTL_MS)
        made.now_ms += TTL_MS - 1
        assert (made.shard().holder, made.shard().lease_ms) == ("m", 1)
        with pytest.raises(Conflict, match="the member 'm' holds this shard"):
            made.lease("n")
        commits = made.writer.commits
        made.lease("m")
        assert made.writer.commits == commits, "keeping it is not written"
        made.now_ms += TTL_MS
        assert (made.shard().holder, made.shard().lease_ms) == ("", 0)
        made.lease("n")
        assert made.shard().holder == "n"
        with pytest.raises(Conflict):
            made.lease("m")

    def test_a_heartbeat_keeps_all_that_a_member_holds(self, made: ShardWorld) -> None:
        made.lease("m", 0)
        made.lease("n", 1)
        made.now_ms += TTL_MS - 1
        made.commit(ops.Heartbeat("c", "m", TTL_MS))
        made.now_ms += 1
        assert [shard.holder for shard in made.describe().states] == ["m", ""]

    def test_only_its_own_are_given_back(self, made: ShardWorld) -> None:
        made.lease("m", 0)
        made.lease("n", 1)
        commits = made.writer.commits
        made.commit(ops.ReleaseShards("c", "m", [1]))
        assert made.writer.commits == commits
        made.commit(ops.Heartbeat("c", "m", TTL_MS))
        made.commit(ops.ReleaseShards("c", "m", [0, 1, 0]))
        assert [shard.holder for shard in made.describe().states] == ["", "n"]
        assert [member.member for member in made.describe().members] == ["m"], "it is still there"
        made.lease("n", 0)

    def test_a_lease_of_the_owner_before_has_all_its_time_again(self, made: ShardWorld) -> None:
        made.lease("m", ttl_ms=500)
        made.now_ms += 499
        made.reopen()
        made.now_ms += 10_000  # nobody asked anything meanwhile
        assert (made.shard().holder, made.shard().lease_ms) == ("m", 500)
        made.now_ms += 499
        with pytest.raises(Conflict):
            made.lease("n")
        made.now_ms += 1
        made.lease("n")

    def test_a_tick_is_told_the_time_too(self, made: ShardWorld) -> None:
        made.lease("m", ttl_ms=500)
        made.reopen()
        made.pass_time(0)
        made.now_ms += 500
        assert made.shard().holder == ""

    def test_another_time_is_written(self, made: ShardWorld) -> None:
        made.lease("m", ttl_ms=500)
        made.lease("m", ttl_ms=700)
        made.reopen()
        assert made.shard().lease_ms == 700

    def test_a_member_that_comes_late_keeps_what_nobody_took(self, made: ShardWorld) -> None:
        made.lease("m")
        made.now_ms += 2 * TTL_MS
        commits = made.writer.commits
        made.lease("m")
        assert made.writer.commits == commits
        assert made.shard().holder == "m"


# -- opening and committing -----------------------------------------------------------------------------------------


class TestCommitting:
    def test_opened_committed_and_opened_again(self, made: ShardWorld) -> None:
        first = made.open(1)
        assert first == ops.ShardOpened(2, 2 * FENCE_STEP + 1, None, 0, {})
        made.put(first.fence, 1, checkpoint=b"one", x=b"1", y=b"2")
        made.put(first.fence, 1, checkpoint=b"two", x=None, z=b"3")
        assert made.state(1) == {"y": b"2", "z": b"3"}
        assert made.state(0) == {}
        made.reopen()
        assert made.find(1) == first.__class__(2, first.fence, b"two", 0, {})
        second = made.open(1)
        assert (second.fence, second.checkpoint) == (first.fence + 1, b"two")
        assert made.state(1) == {"y": b"2", "z": b"3"}

    def test_who_opened_earlier_commits_nothing(self, made: ShardWorld) -> None:
        first, second = made.open(), made.open()
        made.put(second.fence, x=b"1")
        before = made.stored()
        for fence in (first.fence, second.fence + 1, 0):
            with pytest.raises(Fenced, match="another process has opened the shard; stop this one"):
                made.put(fence, x=b"2")
        with pytest.raises(Fenced):
            made.commit(journals.Append("j", [b"x"]), ops.CommitShard("c", 0, first.fence, b""))
        assert made.stored() == before
        with pytest.raises(NotFound):
            made.bodies("j")

    def test_finding_does_not_fence(self, made: ShardWorld) -> None:
        opened = made.open()
        assert made.find() == opened
        made.put(opened.fence, x=b"1")

    def test_who_opened_a_deleted_consumer_is_fenced_from_the_one_with_its_name(self, made: ShardWorld) -> None:
        old = made.open()
        made.commit(ops.DeleteConsumer("c"))
        with pytest.raises(NotFound):
            made.put(old.fence, x=b"1")
        made.register(2, "a", "b")
        new = made.open()
        assert new.checkpoint is None
        with pytest.raises(Fenced):
            made.put(old.fence, x=b"1")
        made.put(new.fence, x=b"1")

    def test_with_the_rest_of_its_transaction(self, made: ShardWorld) -> None:
        fence = made.open().fence
        results = made.commit(
            journals.Append("j", [b"x"]),
            ops.CommitShard("c", 0, fence, b"one", {"k": b"1"}),
            ops.ReadShardState("c", 0, ["k", "none"]),
            ops.CommitShard("c", 0, fence, b"two", {"l": b"2"}, ["k"]),
            ops.ScanShardState("c", 0),
            ops.FindShard("c", 0),
        )
        assert results[1:3] == [Done(), ops.StateValues([b"1", None])]
        assert results[4] == ops.StatePage([("l", b"2")], False)
        assert results[5].checkpoint == b"two"
        assert made.bodies("j") == [b"x"]

    def test_state_by_key_in_pages(self, made: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        fence = made.open().fence
        made.put(fence, **{"a": b"1", "b/1": b"2", "b/2": b"3", "b/é": b"4", "c": b"5"})
        assert list(made.state()) == ["a", "b/1", "b/2", "b/é", "c"]
        assert list(made.state(prefix="b/")) == ["b/1", "b/2", "b/é"]
        page = made.commit(ops.ScanShardState("c", 0, "b/", "b/1", 1))[0]
        assert page == ops.StatePage([("b/2", b"3")], True)
        page = made.commit(ops.ScanShardState("c", 0, "b/", "b/2", 1))[0]
        assert page == ops.StatePage([("b/é", b"4")], False)
        assert made.commit(ops.ScanShardState("c", 0, "b/", "z"))[0] == ops.StatePage([], False)
        assert made.commit(ops.ScanShardState("c", 0, "b/", "a", 1))[0].items == [("b/1", b"2")]
        monkeypatch.setattr(reading, "PAGE_BYTES", 20)
        page = made.commit(ops.ScanShardState("c", 0))[0]
        assert ([key for key, _ in page.items], page.more) == (["a", "b/1"], True)

    def test_a_scan_sees_what_the_group_has_changed(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.put(fence, a=b"1", b=b"2", d=b"4")
        results = made.commit(
            ops.CommitShard("c", 0, fence, b"", {"c": b"3", "b": b"22", "e": b"5"}, ["a"]),
            ops.ScanShardState("c", 0),
            ops.ScanShardState("c", 0, "", "b", 2),
        )
        assert results[1].items == [("b", b"22"), ("c", b"3"), ("d", b"4"), ("e", b"5")]
        assert results[2] == ops.StatePage([("c", b"3"), ("d", b"4")], True)
        assert made.state() == {"b": b"22", "c": b"3", "d": b"4", "e": b"5"}

    def test_an_answer_with_many_values_is_cut_short(self, made: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        made.put(made.open().fence, a=b"xxxx", b=b"yyyy", c=b"zzzz")
        monkeypatch.setattr(ops, "PAGE_BYTES", 6)
        read = ops.ReadShardState("c", 0, ["none", "a", "b", "c"])
        assert made.commit(read)[0].values == [None, b"xxxx", b"yyyy"]
        monkeypatch.setattr(ops, "PAGE_BYTES", 0)
        assert made.commit(read)[0].values == [None]

    def test_the_largest_values(self, world: ShardWorld) -> None:
        name = "é" * 250
        world.register(1, name=name)
        fence = world.open(name=name).fence
        key = "k" * ops.STATE_KEY_BYTES_MAX
        value = bytes(ops.STATE_VALUE_BYTES_MAX)
        checkpoint = bytes(ops.CHECKPOINT_BYTES_MAX)
        world.commit(ops.CommitShard(name, 0, fence, checkpoint, {key: value}))
        world.reopen()
        assert world.find(name=name).checkpoint == checkpoint
        assert world.state(name=name) == {key: value}


# -- reports, resets ------------------------------------------------------------------------------------------------


class TestReports:
    def test_the_furthest_counts(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "running", "", {"a": 5}, {"x": 2, "y": 9}))
        made.commit(ops.ReportShard("c", 0, 0, "failed", "why", {"a": 3}, {"x": 7}))
        shard = made.shard()
        assert (shard.status, shard.error) == ("failed", "why")
        assert (shard.processed, shard.published) == ({"a": 5}, {"x": 7, "y": 9})
        assert made.shard(1).status == ""

    def test_a_commit_reports_too(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.commit(ops.CommitShard("c", 0, fence, b"", {}, [], {"a": 5}))
        made.commit(ops.CommitShard("c", 0, fence, b"", {}, [], {"a": 4}))
        assert made.shard().processed == {"a": 5}

    def test_they_are_not_kept_for_the_next_owner(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "running", "", {"a": 5}))
        made.reopen()
        assert (made.shard().status, made.shard().processed) == ("", {})

    def test_a_late_report_of_a_deleted_consumer_counts_for_nothing(self, made: ShardWorld) -> None:
        number = made.find().number
        made.commit(ops.DeleteConsumer("c", True))
        made.register(2, "a", "b")
        made.commit(ops.ReportShard("c", 0, 0, "running", "", {"a": 5}, keep=True, number=number))
        assert made.describe().states[0].processed == {}
        made.commit(ops.ReportShard("c", 0, 0, "running", "", {"a": 5}, keep=True, number=made.find().number))
        assert made.describe().states[0].processed == {"a": 5}

    def test_long_errors_are_cut_and_broken_ones_can_be_told(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "", "x\n" * 2_000))
        assert made.shard().error == "x\n" * 1_024
        made.commit(ops.ReportShard("c", 0, 0, "", "a\ud800b"))
        assert made.shard().error == "a?b"
        msgspec.msgpack.encode(made.describe())

    def test_the_journals_that_were_written_last_are_kept(
        self, made: ShardWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ops, "PUBLISHED_JOURNALS_MAX", 2)
        for journal in ("x", "y", "x", "z"):
            made.commit(ops.ReportShard("c", 0, 0, published={journal: 1}))
        assert made.shard().published == {"x": 1, "z": 1}

    def test_journals_that_it_does_not_read_are_not_found(self, made: ShardWorld) -> None:
        fence = made.open().fence
        for operation in (
            ops.ReportShard("c", 0, 0, processed={"x": 1}),
            ops.CommitShard("c", 0, fence, b"", {}, [], {"x": 1}),
            ops.ResetShards("c", {"a": 1, "x": 1}),
        ):
            with pytest.raises(NotFound, match="'c' does not read the journal 'x'"):
                made.commit(operation)


class TestKeptProgress:
    def test_the_next_owner_begins_with_it(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 3}, {"x": 2}))
        made.commit(ops.ReportShard("c", 0, 0, "running", "why", {"a": 5}, {"y": 9}, keep=True))
        made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 6}, {"y": 10}))
        made.reopen()
        shard = made.shard()
        assert (shard.status, shard.error) == ("", "")
        assert (shard.processed, shard.published) == ({"a": 5}, {"x": 2, "y": 9}), "as merged, and what came later not"
        assert made.shard(1).processed == {}
        made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 4}))
        assert made.shard().processed == {"a": 5}

    def test_so_does_one_that_starts_over(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 5}, {"x": 1}, keep=True))
        made.writer.fail_before = 1
        with pytest.raises(Unavailable):
            made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 9}, {"x": 2}, keep=True))
        assert (made.shard().processed, made.shard().published) == ({"a": 5}, {"x": 1})
        made.writer.fail_after = 1
        made.commit(ops.ReportShard("c", 0, 0, "", "", {"a": 7}, keep=True))
        assert made.shard().processed == {"a": 7}

    def test_the_same_again_is_not_written(self, made: ShardWorld) -> None:
        commits = made.writer.commits
        made.commit(ops.ReportShard("c", 0, 0, "running", keep=True))
        assert made.writer.commits == commits, "nothing is what is there without a record"
        keep = ops.ReportShard("c", 0, 0, "", "", {"a": 5}, {"x": 1}, keep=True)
        made.commit(keep)
        assert made.writer.commits == commits + 1
        made.commit(keep)
        made.commit(ops.ReportShard("c", 0, 0, "failed", "why", {"a": 4}, keep=True))
        made.reopen()
        commits = made.writer.commits
        made.commit(keep)
        assert made.writer.commits == commits
        made.commit(ops.ReportShard("c", 0, 0, published={"x": 2}, keep=True))
        assert made.writer.commits == commits + 1

    def test_what_a_commit_reports_is_kept_with_the_rest(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.commit(ops.CommitShard("c", 0, fence, b"", {}, [], {"a": 5}), ops.ReportShard("c", 0, 0, keep=True))
        made.reopen()
        assert made.shard().processed == {"a": 5}

    def test_a_shard_keeps_what_it_reads_itself(self, made: ShardWorld) -> None:
        numbers = {"a": 1, "b": 2}
        made.commit(ops.ReportShard("c", 0, 0, processed={"a": 5, "b": 6}, keep=True, numbers=numbers))
        kept = records.ProgressRow.decode(made.stored()[records.progress_key(1)])
        assert kept == records.ProgressRow({"a": 5}, {}, 0, {"a": 1})

    def test_divided_by_key_each_keeps_its_own(self, world: ShardWorld) -> None:
        world.register(2, "a", "b", partition="key")
        for index in range(2):
            world.commit(ops.ReportShard("c", index, 0, processed={"a": index, "b": 7}, keep=True))
        world.reopen()
        assert [shard.processed for shard in world.describe().states] == [{"a": 0, "b": 7}, {"a": 1, "b": 7}]

    def test_a_reset_forgets_what_was_processed(self, made: ShardWorld) -> None:
        report = ops.ReportShard("c", 0, 0, processed={"a": 5}, published={"x": 1}, keep=True, numbers={"a": 1})
        made.commit(report)
        made.commit(ops.ReportShard("c", 1, 0, processed={"b": 5}, keep=True))
        made.commit(ops.ReportShard("c", 0, 0, processed={"a": 6}, published={"x": 2}))
        made.commit(ops.ResetShards("c", {"a": 2}))
        assert records.ProgressRow.decode(made.stored()[records.progress_key(1)]) == records.ProgressRow(
            {}, {"x": 1}, 1
        )
        made.reopen()
        assert [(shard.processed, shard.published) for shard in made.describe().states] == [
            ({}, {"x": 1}),
            ({"b": 5}, {}),
        ]
        commits = made.writer.commits
        made.commit(ops.ReportShard("c", 0, 0, processed={"a": 6}, keep=True))
        assert (made.shard().processed, made.writer.commits) == ({}, commits), "a report from before the reset"
        made.commit(ops.ReportShard("c", 0, 1, processed={"a": 3}, keep=True))
        made.reopen()
        assert made.shard().processed == {"a": 3}

    def test_a_reset_writes_none_where_none_is(self, made: ShardWorld) -> None:
        made.commit(ops.ResetShards("c", {"a": 2}))
        assert records.progress_key(1) not in made.stored()

    def test_late_commits_from_before_a_reset_are_not_kept_by_the_next_owner(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.commit(ops.ResetShards("c", {"a": 2}))
        made.reopen()
        made.commit(ops.CommitShard("c", 0, fence, b"late", {}, [], {"a": 6}))
        made.commit(ops.ReportShard("c", 0, 1, processed={"a": 3}, keep=True))
        made.reopen()
        assert made.shard().processed == {"a": 3}
        made.commit(ops.CommitShard("c", 0, made.open().fence, b"", {}, [], {"a": 4}))
        assert made.shard().processed == {"a": 4}

    def test_of_another_generation_it_counts_for_nothing(self, made: ShardWorld) -> None:
        made.commit(ops.ResetShards("c", {"a": 2}))
        batch = Batch()
        batch.put(records.progress_key(1), records.ProgressRow({"a": 5}, {"x": 1}, 0).encode())
        made.writer.commit(batch)
        made.reopen()
        assert (made.shard().processed, made.shard().published) == ({}, {"x": 1})

    def test_it_goes_with_the_consumer(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, processed={"a": 5}, keep=True))
        made.commit(ops.DeleteConsumer("c"))
        made.register(2, "a", "b")
        assert made.shard().processed == {}
        made.reopen()
        assert made.shard().processed == {}
        assert records.progress_key(1) in made.stored()
        made.pass_time(1_000)
        assert records.progress_key(1) not in made.stored()

    def test_kept_and_deleted_in_one_group(self, made: ShardWorld) -> None:
        made.concurrent = True
        tickets = made.group(
            made.request(ops.ReportShard("c", 0, 0, processed={"a": 5}, keep=True)),
            made.request(ops.DeleteConsumer("c")),
            None,
        )
        for ticket in tickets:
            ticket.outcome()
        assert list(made.stored()) == [records.COUNTER.raw]

    def test_a_refused_transaction_keeps_nothing(self, made: ShardWorld) -> None:
        made.concurrent = True
        made.commit(ops.ReportShard("c", 0, 0, processed={"a": 5}, published={"x": 1}, keep=True))
        before, described = made.stored(), made.describe()
        fails = ops.PauseConsumer("nobody", True)
        keep = ops.ReportShard("c", 0, 0, processed={"a": 9}, published={"x": 9}, keep=True)
        tickets = made.group(
            made.request(keep, ops.ReportShard("c", 1, 0, processed={"b": 9}, keep=True), fails),
            made.request(keep, ops.ResetShards("c", {"a": 0}), fails),
            made.request(ops.DeleteConsumer("c"), ops.RegisterConsumer("c", 2, ["a"]), fails),
            made.request(journals.Append("j", [b"x"])),
        )
        for ticket in tickets[:-1]:
            with pytest.raises(NotFound, match="'nobody'"):
                ticket.outcome()
        assert (made.stored(), made.describe()) == (before, described)
        made.commit(keep)
        made.reopen()
        assert made.shard().processed == {"a": 9}, "what was refused does not count as written"


class TestResets:
    def test_the_shards_that_read_the_journals_begin_a_new_generation(self, world: ShardWorld) -> None:
        world.register(2, "a", "b", "d")
        world.commit(ops.ResetShards("c", {"a": 5, "d": 6}))
        assert [(shard.generation, shard.resets) for shard in world.describe().states] == [
            (1, {"a": 5, "d": 6}),
            (0, {}),
        ]
        world.commit(ops.ResetShards("c", {"d": 0, "b": 1}))
        world.reopen()
        assert [(shard.generation, shard.resets) for shard in world.describe().states] == [
            (2, {"a": 5, "d": 0}),
            (1, {"b": 1}),
        ]
        assert (world.open().generation, world.find().resets, world.lease("m")) == (2, {"a": 5, "d": 0}, 2)

    def test_divided_by_key_all_of_them_do(self, world: ShardWorld) -> None:
        world.register(2, "a", "b", partition="key")
        world.commit(ops.ResetShards("c", {"b": 5}))
        assert [(shard.generation, shard.resets) for shard in world.describe().states] == [(1, {"b": 5})] * 2

    def test_reports_from_before_count_for_nothing(self, made: ShardWorld) -> None:
        made.commit(ops.ReportShard("c", 0, 0, "running", "", {"a": 5}, {"x": 1}))
        made.commit(ops.ResetShards("c", {"a": 2}))
        assert (made.shard().processed, made.shard().published) == ({}, {"x": 1})
        made.commit(ops.ReportShard("c", 0, 0, "late", "", {"a": 6}))
        assert (made.shard().status, made.shard().processed) == ("running", {})
        made.commit(ops.ReportShard("c", 0, 1, "again", "", {"a": 3}))
        assert (made.shard().status, made.shard().processed) == ("again", {"a": 3})

    def test_so_do_commits_of_whoever_opened_it_before(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.commit(ops.ResetShards("c", {"a": 2}))
        made.commit(ops.CommitShard("c", 0, fence, b"late", {}, [], {"a": 6}))
        assert (made.find().checkpoint, made.shard().processed) == (b"late", {})
        made.commit(ops.ReportShard("c", 0, 1, "running"))
        made.commit(ops.CommitShard("c", 0, fence, b"late", {}, [], {"a": 2}))
        assert made.shard().processed == {"a": 2}, "who has opened it has heard of the reset"
        made.commit(ops.CommitShard("c", 0, made.open().fence, b"", {}, [], {"a": 3}))
        assert made.shard().processed == {"a": 3}


# -- deleting -------------------------------------------------------------------------------------------------------


class TestDeleting:
    def test_not_while_somebody_holds_a_shard(self, made: ShardWorld) -> None:
        made.lease("m", 1)
        with pytest.raises(Conflict, match="the member 'm' holds shard 1 of the consumer 'c': stop it first, or"):
            made.commit(ops.DeleteConsumer("c"))
        made.now_ms += TTL_MS
        made.commit(ops.DeleteConsumer("c"))
        assert made.names() == []

    def test_unless_it_is_forced(self, made: ShardWorld) -> None:
        made.lease("m", 1)
        made.commit(ops.Heartbeat("c", "m", TTL_MS))
        made.commit(ops.DeleteConsumer("c", True))
        with pytest.raises(NotFound, match="there is no consumer 'c'"):
            made.commit(ops.Heartbeat("c", "m", TTL_MS))
        made.register(2, "a")
        assert made.describe().members == []
        assert made.shard(1).holder == ""

    def test_what_it_has_written_goes_in_steps(self, made: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shard_machine, "STEP_RECORDS", 2)
        made.register(1, name="kept")
        made.put(made.open(name="kept").fence, name="kept", k=b"1")
        made.put(made.open(0).fence, 0, a=b"1", b=b"2", c=b"3", d=b"4")
        made.put(made.open(1).fence, 1, a=b"1")
        made.commit(ops.DeleteConsumer("c"))
        made.reopen()
        sizes = []
        for _ in range(4):
            sizes.append(len(made.stored()))
            made.pass_time(1_000)
        # the counter and the kept one's four, and: two doomed, two checkpoints, five of state
        assert sizes == [5 + 9, 5 + 4, 5 + 2, 5]
        assert made.state(name="kept") == {"k": b"1"}
        commits = made.writer.commits
        made.pass_time(1_000)
        assert made.writer.commits == commits

    def test_committed_deleted_and_reaped_in_one_group(self, made: ShardWorld) -> None:
        made.concurrent = True
        fence = made.open().fence
        tickets = made.group(
            made.request(ops.CommitShard("c", 0, fence, b"cp", {"k": b"1"})),
            made.request(ops.DeleteConsumer("c")),
            None,
        )
        for ticket in tickets:
            ticket.outcome()
        assert list(made.stored()) == [records.COUNTER.raw]


# -- groups, refusals, failures -------------------------------------------------------------------------------------


class TestGroups:
    def test_of_two_that_take_a_shard_at_once_one_has_it(self, made: ShardWorld) -> None:
        made.concurrent = True
        first, second = made.group(
            made.request(ops.LeaseShard("c", 0, "m", TTL_MS)), made.request(ops.LeaseShard("c", 0, "n", TTL_MS))
        )
        assert first.outcome() == [ops.Leased(0)]
        with pytest.raises(Conflict, match="'m' holds"):
            second.outcome()

    def test_opened_by_two_at_once_the_later_one_commits(self, made: ShardWorld) -> None:
        made.concurrent = True
        base = made.find().fence
        tickets = made.group(
            made.request(ops.OpenShard("c", 0)),
            made.request(ops.OpenShard("c", 0)),
            made.request(ops.CommitShard("c", 0, base + 1, b"one")),
            made.request(ops.CommitShard("c", 0, base + 2, b"two")),
            made.request(ops.FindShard("c", 0)),
        )
        assert [ticket.outcome()[0].fence for ticket in tickets[:2]] == [base + 1, base + 2]
        with pytest.raises(Fenced):
            tickets[2].outcome()
        assert tickets[4].outcome()[0].checkpoint == b"two"

    def test_a_refused_transaction_leaves_no_trace(self, made: ShardWorld) -> None:
        made.concurrent = True
        fence = made.open().fence
        made.put(fence, x=b"1", y=b"2")
        made.lease("m", 0)
        made.commit(ops.Heartbeat("c", "m", TTL_MS, "here"), ops.ReportShard("c", 0, 0, "well", "", {"a": 1}, {"p": 1}))
        before, described = made.stored(), made.describe()
        fails = ops.PauseConsumer("nobody", True)
        refused = [
            [ops.RegisterConsumer("new", 3, ["a"])],
            [ops.RegisterConsumer("c", 2, ["d"])],
            [ops.Heartbeat("c", "m", 99), ops.Heartbeat("c", "n", 99)],
            [ops.LeaseShard("c", 0, "m", 99), ops.LeaseShard("c", 1, "n", 99)],
            [ops.ReleaseShards("c", "m")],
            [ops.OpenShard("c", 0)],
            [ops.CommitShard("c", 0, fence, b"no", {"x": b"no", "z": b"no"}, ["y"], {"a": 9})],
            [ops.ReportShard("c", 0, 0, "no", "no", {"a": 9}, {"p": 9})],
            [ops.ReportShard("c", 0, 0, "no", "no", {"a": 9}, {"p": 9}, keep=True)],
            [ops.PauseConsumer("c", True)],
            [ops.ResetShards("c", {"a": 0, "b": 0})],
            [ops.DeleteConsumer("c", True)],
            [ops.DeleteConsumer("c", True), ops.RegisterConsumer("c", 5, ["e"], "key"), ops.OpenShard("c", 4)],
        ]
        tickets = made.group(
            *(made.request(*operations, fails) for operations in refused),
            made.request(journals.Append("j", [b"x"])),
            made.request(ops.DescribeConsumers(name="c"), ops.ScanShardState("c", 0)),
        )
        for ticket in tickets[:-2]:
            with pytest.raises(NotFound, match="'nobody'"):
                ticket.outcome()
        found, page = tickets[-1].outcome()
        assert found.consumers == [described]
        assert page.items == [("x", b"1"), ("y", b"2")]
        assert made.stored() == before
        assert made.names() == ["c"]
        made.register(1, name="next")
        assert made.describe("next").states[0].number == 3, "no number was used up"

    def test_a_commit_that_failed_changed_nothing(self, made: ShardWorld) -> None:
        fence = made.open().fence
        made.put(fence, x=b"1")
        made.writer.fail_before = 1
        with pytest.raises(Unavailable):
            made.commit(
                ops.CommitShard("c", 0, fence, b"no", {"x": b"2"}, [], {"a": 9}),
                ops.LeaseShard("c", 0, "m", TTL_MS),
                ops.RegisterConsumer("new", 1, []),
            )
        assert (made.state(), made.find().checkpoint, made.names()) == ({"x": b"1"}, b"cp", ["c"])
        assert (made.shard().processed, made.shard().holder) == ({}, "")
        made.put(fence, x=b"2")

    def test_a_commit_whose_answer_was_lost_is_answered(self, made: ShardWorld) -> None:
        made.writer.fail_after = 1
        opened = made.open()
        assert opened.fence == made.find().fence
        made.writer.fail_after = 1
        made.put(opened.fence, x=b"1")
        assert made.state() == {"x": b"1"}

    def test_sent_again_under_its_name_it_is_answered_and_not_repeated(self, made: ShardWorld) -> None:
        request = made.request(ops.OpenShard("c", 0), answered=0)
        opened = made.engine.commit(request)
        assert made.engine.commit(request) == opened
        made.reopen()
        assert made.engine.commit(request) == opened
        assert made.find() == opened[0]


class TestDamage:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (records.shard_key("x", 0), records.ShardRow(9, 9 * FENCE_STEP, "", 0, 0, {}, 0).encode()),
            (records.shard_key("c", 3), records.ShardRow(9, 9 * FENCE_STEP, "", 0, 0, {}, 0).encode()),
            (records.shard_key("c", 2), records.ShardRow(9, 9 * FENCE_STEP, "", 0, 0, {}, 0).encode()),
            (records.consumer_key("x"), records.ConsumerRow(0, 1, "key", False, {}).encode()),
            (records.shard_key("c", 0), b""),
            (records.progress_key(1), b"x"),
        ],
    )
    def test_an_owner_does_not_work_on_what_does_not_go_together(
        self, made: ShardWorld, key: bytes, value: bytes
    ) -> None:
        batch = Batch()
        batch.put(key, value)
        made.writer.commit(batch)
        with pytest.raises(Corrupt):
            made.reopen()


# -- limits and bad input -------------------------------------------------------------------------------------------


class TestLimits:
    def test_consumers_and_shards(self, world: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "CONSUMERS_MAX", 2)
        monkeypatch.setattr(ops, "STORE_SHARDS_MAX", 5)
        world.register(3, name="a")
        with pytest.raises(LimitExceeded, match="at most 5 shards, and 3 are there"):
            world.register(3, name="b")
        world.register(1, name="b")
        with pytest.raises(LimitExceeded, match="there are 2 consumers already"):
            world.register(1, name="d")
        world.reopen()
        world.register(1, "j", name="b")
        world.commit(ops.DeleteConsumer("a"))
        world.register(4, name="d")

    def test_shards_of_one(self, world: ShardWorld) -> None:
        world.register(ops.SHARDS_MAX)
        with pytest.raises(LimitExceeded, match="at most 1024 shards, not 1025"):
            world.register(ops.SHARDS_MAX + 1, name="d")
        with pytest.raises(NotFound, match="'d'"):
            world.open(name="d")

    def test_journals(self, world: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "JOURNALS_PER_CONSUMER_MAX", 3)
        monkeypatch.setattr(ops, "KEYED_POSITIONS_MAX", 5)
        world.register(1, "a", "b")
        with pytest.raises(LimitExceeded, match="at most 3 journals"):
            world.register(1, "x", "y")
        assert world.register(1, "x") == {"a": 0, "b": 0, "x": 0}
        with pytest.raises(LimitExceeded, match="2 shards that each read 3 journals"):
            world.register(2, "a", "b", "x", name="k", partition="key")
        world.register(2, "a", "b", name="k", partition="key")

    @pytest.mark.parametrize(
        "operation",
        [
            ops.CommitShard("c", 0, FENCE_STEP, bytes(ops.CHECKPOINT_BYTES_MAX + 1)),
            ops.CommitShard("c", 0, FENCE_STEP, b"", {"k": bytes(ops.STATE_VALUE_BYTES_MAX + 1)}),
            ops.CommitShard("c", 0, FENCE_STEP, b"", {"é" * 201: b""}),
            ops.CommitShard("c", 0, FENCE_STEP, b"", {}, [f"k{n}" for n in range(ops.CHANGES_MAX + 1)]),
            ops.CommitShard("c", 0, FENCE_STEP, b"", {f"k{n}": bytes(1 << 20) for n in range(64)}),
            ops.ReadShardState("c", 0, ["k"] * (ops.KEYS_MAX + 1)),
            ops.ScanShardState("c", 0, "k" * 401),
            ops.ReportShard("c", 0, 0, published={f"j{n}": 0 for n in range(ops.JOURNALS_PER_CONSUMER_MAX + 1)}),
        ],
        ids=lambda operation: type(operation).__name__,
    )
    def test_what_is_too_much(self, made: ShardWorld, operation: Operation) -> None:
        before = made.stored()
        with pytest.raises(LimitExceeded):
            made.commit(operation)
        assert made.stored() == before

    def test_a_commit_weighs_what_it_brings(self) -> None:
        light, heavy = (ops.CommitShard("c", 0, 1, b"", {"k": bytes(size)}) for size in (0, 10_000))
        assert heavy.weight() - light.weight() == 10_000


HALF = "\ud800"
HOSTILE: dict[str, Operation] = {
    "no name": ops.RegisterConsumer("", 1, []),
    "a long name": ops.RegisterConsumer("x" * 501, 1, []),
    "a name with a line break": ops.RegisterConsumer("a\nb", 1, []),
    "half a name": ops.RegisterConsumer(HALF, 1, []),
    "a name of bytes": ops.RegisterConsumer(b"c", 1, []),  # type: ignore[arg-type]
    "no shards": ops.RegisterConsumer("n", 0, []),
    "half a shard": ops.RegisterConsumer("n", 0.5, []),  # type: ignore[arg-type]
    "a shard that is true": ops.RegisterConsumer("n", True, []),
    "another partition": ops.RegisterConsumer("n", 1, [], "keys"),
    "journals of text": ops.RegisterConsumer("n", 1, "j"),  # type: ignore[arg-type]
    "no journal's name": ops.RegisterConsumer("n", 1, ["a b"]),
    "a journal of bytes": ops.RegisterConsumer("n", 1, [b"j"]),  # type: ignore[list-item]
    "no member": ops.Heartbeat("c", "", TTL_MS),
    "a long member": ops.Heartbeat("c", "x" * 129, TTL_MS),
    "half a member": ops.Heartbeat("c", HALF, TTL_MS),
    "a member of bytes": ops.LeaseShard("c", 0, b"m", TTL_MS),  # type: ignore[arg-type]
    "no time": ops.Heartbeat("c", "m", 0),
    "much time": ops.LeaseShard("c", 0, "m", ops.TTL_MS_MAX + 1),
    "half a time": ops.LeaseShard("c", 0, "m", 0.5),  # type: ignore[arg-type]
    "a long story": ops.Heartbeat("c", "m", TTL_MS, "x" * 1025),
    "half a story": ops.Heartbeat("c", "m", TTL_MS, HALF),
    "no story": ops.Heartbeat("c", "m", TTL_MS, None),  # type: ignore[arg-type]
    "a shard below 0": ops.LeaseShard("c", -1, "m", TTL_MS),
    "a shard beyond all": ops.OpenShard("c", ops.SHARDS_MAX),
    "a shard of text": ops.FindShard("c", "0"),  # type: ignore[arg-type]
    "give back text": ops.ReleaseShards("c", "m", "01"),  # type: ignore[arg-type]
    "give back nothing": ops.ReleaseShards("c", "m", [None]),  # type: ignore[list-item]
    "a checkpoint of text": ops.CommitShard("c", 0, FENCE_STEP, "x"),  # type: ignore[arg-type]
    "put a list": ops.CommitShard("c", 0, FENCE_STEP, b"", []),  # type: ignore[arg-type]
    "delete text": ops.CommitShard("c", 0, FENCE_STEP, b"", {}, "k"),  # type: ignore[arg-type]
    "put under nothing": ops.CommitShard("c", 0, FENCE_STEP, b"", {"": b""}),
    "put under half a key": ops.CommitShard("c", 0, FENCE_STEP, b"", {HALF: b""}),
    "put under a number": ops.CommitShard("c", 0, FENCE_STEP, b"", {7: b""}),  # type: ignore[dict-item]
    "put text": ops.CommitShard("c", 0, FENCE_STEP, b"", {"k": "x"}),  # type: ignore[dict-item]
    "put nothing": ops.CommitShard("c", 0, FENCE_STEP, b"", {"k": None}),  # type: ignore[dict-item]
    "delete half a key": ops.CommitShard("c", 0, FENCE_STEP, b"", {}, [HALF]),
    "delete a number": ops.CommitShard("c", 0, FENCE_STEP, b"", {}, [7]),  # type: ignore[list-item]
    "put and deleted": ops.CommitShard("c", 0, FENCE_STEP, b"", {"k": b""}, ["k"]),
    "processed a list": ops.CommitShard("c", 0, FENCE_STEP, b"", {}, [], ["a"]),  # type: ignore[arg-type]
    "processed below 0": ops.CommitShard("c", 0, FENCE_STEP, b"", {}, [], {"a": -1}),
    "read nothing": ops.ReadShardState("c", 0, []),
    "read text": ops.ReadShardState("c", 0, "k"),  # type: ignore[arg-type]
    "read half a key": ops.ReadShardState("c", 0, [HALF]),
    "scan by a number": ops.ScanShardState("c", 0, 7),  # type: ignore[arg-type]
    "scan after nothing": ops.ScanShardState("c", 0, "", None),  # type: ignore[arg-type]
    "scan none": ops.ScanShardState("c", 0, limit=0),
    "scan too many": ops.ScanShardState("c", 0, limit=ops.PAGE_MAX + 1),
    "report of no generation": ops.ReportShard("c", 0, -1),
    "report half a status": ops.ReportShard("c", 0, 0, HALF),
    "report an error of bytes": ops.ReportShard("c", 0, 0, "", b"x"),  # type: ignore[arg-type]
    "report no offset": ops.ReportShard("c", 0, 0, processed={"a": None}),  # type: ignore[dict-item]
    "report of no journal": ops.ReportShard("c", 0, 0, published={"a b": 1}),
    "pause nothing": ops.PauseConsumer("", True),
    "reset nothing": ops.ResetShards("c", {}),
    "reset beyond all": ops.ResetShards("c", {"a": ops.OFFSET_MAX + 1}),
    "reset a list": ops.ResetShards("c", ["a"]),  # type: ignore[arg-type]
    "describe a number": ops.DescribeConsumers(name=7),  # type: ignore[arg-type]
    "list by a number": ops.DescribeConsumers(7),  # type: ignore[arg-type]
    "list no names": ops.DescribeConsumers(limit=0),
    "delete nothing": ops.DeleteConsumer(""),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_cannot_be_is_invalid_and_changes_nothing(made: ShardWorld, what: str) -> None:
    before, described = made.stored(), made.describe()
    with pytest.raises(Invalid):
        made.commit(HOSTILE[what])
    made.concurrent = True
    refused, kept = made.group(made.request(HOSTILE[what]), made.request(journals.Append("j", [b"x"])))
    with pytest.raises(Invalid):
        refused.outcome()
    kept.outcome()
    assert (made.stored(), made.describe()) == (before, described)


@pytest.mark.parametrize(
    "operation",
    [
        ops.Heartbeat("x", "m", TTL_MS),
        ops.LeaseShard("x", 0, "m", TTL_MS),
        ops.ReleaseShards("x", "m"),
        ops.OpenShard("x", 0),
        ops.FindShard("x", 0),
        ops.CommitShard("x", 0, 1, b""),
        ops.ReadShardState("x", 0, ["k"]),
        ops.ScanShardState("x", 0),
        ops.ReportShard("x", 0, 0, keep=True),
        ops.PauseConsumer("x", True),
        ops.ResetShards("x", {"a": 0}),
        ops.DescribeConsumers(name="x"),
        ops.DeleteConsumer("x"),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_is_not_there_is_not_found(made: ShardWorld, operation: Any) -> None:
    with pytest.raises(NotFound, match="there is no consumer 'x'"):
        made.commit(operation)
    if "shard" in operation.__struct_fields__:
        with pytest.raises(NotFound, match="has no shard 2: it has 2, numbered from 0 on"):
            made.commit(msgspec.structs.replace(operation, consumer="c", shard=2))


def test_the_wire_holds_operations_to_the_same_limits() -> None:
    for operation in (
        ops.Heartbeat("c", "m", 0),
        ops.LeaseShard("c", -1, "m", 1),
        ops.OpenShard("c", ops.SHARDS_MAX),
        ops.CommitShard("c", 0, 1, b"", {}, [], {"a": -1}),
        ops.ResetShards("c", {"a": -1}),
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(operation), type=type(operation))


# -- against a plain model ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plain:
    """One shard as one would write it down on paper."""

    opened: int = 0
    checkpoint: bytes | None = None
    state: dict[str, bytes] = dataclasses.field(default_factory=dict)
    holder: str = ""
    until: int = 0
    resets: int = 0


KEYS = st.sampled_from(["a", "b", "ba", "c"])
STEP = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 1), st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=2)))),
    st.tuples(st.just("lease"), st.sampled_from(["m", "n"]), st.sampled_from([50, 100])),
    st.tuples(st.just("beat"), st.sampled_from(["m", "n"])),
    st.tuples(st.just("release"), st.sampled_from(["m", "n"])),
    st.tuples(st.just("time"), st.sampled_from([1, 49, 50, 100])),
    st.sampled_from([("open",), ("reset",), ("delete",), ("fail before",), ("fail after",)]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_against_a_plain_model(steps: list[tuple[Any, ...]]) -> None:
    world, plain = ShardWorld(), Plain()
    world.register(1, "j")
    base = world.find().fence
    for verb, *arguments in steps:
        if verb == "commit":
            back, changes = arguments
            _commit(world, plain, base, back, changes)
        elif verb == "lease":
            member, ttl_ms = arguments
            free = not plain.holder or plain.until <= world.now_ms or plain.holder == member
            if free:
                world.lease(member, ttl_ms=ttl_ms)
                plain.holder, plain.until = member, world.now_ms + ttl_ms
            else:
                with pytest.raises(Conflict):
                    world.lease(member, ttl_ms=ttl_ms)
        elif verb == "beat":
            world.commit(ops.Heartbeat("c", arguments[0], 70))
            if plain.holder == arguments[0]:
                plain.until = world.now_ms + 70
        elif verb == "release":
            world.commit(ops.ReleaseShards("c", arguments[0]))
            if plain.holder == arguments[0]:
                plain.holder, plain.until = "", 0
        elif verb == "time":
            world.now_ms += arguments[0]
        elif verb == "open":
            plain.opened += 1
            assert world.open().fence == base + plain.opened
        elif verb == "reset":
            world.commit(ops.ResetShards("c", {"j": plain.resets}))
            plain.resets += 1
        elif verb == "delete":
            world.commit(ops.DeleteConsumer("c", True))
            world.register(1, "j")
            base, plain = world.find().fence, Plain()
            world.pass_time(0)
        else:
            _fail(world, plain, verb)
        _compare(world, plain, base)


def _commit(world: ShardWorld, plain: Plain, base: int, back: int, changes: dict[str, bytes | None]) -> None:
    fence = base + plain.opened - back
    outcome: type[DetentError] | None = None
    checkpoint = b"%d" % len(changes)
    try:
        world.put(fence, checkpoint=checkpoint, **changes)
    except DetentError as error:
        outcome = type(error)
    assert outcome == (Fenced if back else None)
    if not back:
        plain.checkpoint = checkpoint
        plain.state.update({key: value for key, value in changes.items() if value is not None})
        for key in [key for key, value in changes.items() if value is None]:
            plain.state.pop(key, None)


def _fail(world: ShardWorld, plain: Plain, verb: str) -> None:
    """A commit that fails: the engine starts over from what is durable, and leases begin again."""
    if verb == "fail before":
        world.writer.fail_before = 1
        with pytest.raises(Unavailable):
            world.commit(ops.OpenShard("c", 0), ops.RegisterConsumer("never", 1, []))
    else:
        world.writer.fail_after = 1
        world.commit(ops.RegisterConsumer("other", 1, []), ops.DeleteConsumer("other"))
    lease_ms = world.shard().lease_ms
    if plain.holder:
        assert lease_ms in {50, 100}, "all of the time that it was taken for"
        plain.until = world.now_ms + lease_ms


def _compare(world: ShardWorld, plain: Plain, base: int) -> None:
    living = plain.until > world.now_ms
    shard, found = world.shard(), world.find()
    assert (shard.holder, shard.lease_ms) == ((plain.holder, plain.until - world.now_ms) if living else ("", 0))
    assert (shard.generation, shard.fence) == (plain.resets, base + plain.opened)
    assert (found.fence, found.checkpoint, found.generation) == (shard.fence, plain.checkpoint, plain.resets)
    assert world.state() == plain.state
    assert world.commit(ops.ReadShardState("c", 0, ["a", "b"]))[0].values == [
        plain.state.get("a"),
        plain.state.get("b"),
    ]
