"""What journals forget, and what they must never forget."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from detent.codec import journal as records
from detent.errors import Conflict, Corrupt, Exists, Fenced, Invalid, LimitExceeded, NotFound
from detent.journal import fragments
from detent.journal import operations as ops
from detent.journal.fragments import sweep
from detent.message import clock_of_ns
from detent.verify import verify as verify_journals
from world import START_MS, World

HOUR = 3600 * 1000
DAY = 24 * HOUR


@pytest.fixture
def world() -> World:
    return World()


def settle(world: World) -> None:
    for _ in range(5):
        world.pass_time(6_000)


class TestRetention:
    def test_by_age(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", retention_ms=HOUR))
        world.append("j", b"old")
        world.pass_time(HOUR // 2)
        world.append("j", b"young")
        world.pass_time(HOUR // 2 + 1)
        settle(world)
        assert world.bodies("j") == [b"young"]
        info = world.reader.info("j")
        assert (info.first_offset, info.first_position, info.blocks) == (1, 1, 1)
        with pytest.raises(NotFound, match="begins at 1"):
            list(world.reader.committed("j", 0, 2))

    def test_by_bytes(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", retention_bytes=50_000))
        for i in range(100):
            world.append("j", bytes([i]) * 1000)
        settle(world)
        info = world.reader.info("j")
        assert info.block_bytes <= 50_000
        assert 20 < info.messages < 60
        bodies = world.bodies("j")
        assert [body[0] for body in bodies] == list(range(100 - len(bodies), 100))

    def test_never_removes_what_is_still_open(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", retention_ms=HOUR, span_deadline_ms=10 * DAY))
        world.append("j", b"before")
        world.stamped("j", [(1, 160, 1)], [b"pending"])
        world.append("j", b"after")
        world.pass_time(2 * HOUR)
        settle(world)
        assert world.bodies("j") == []
        world.reopen()
        settle(world)
        world.stamped("j", [(1, 320, 2)])
        assert world.bodies("j") == [b"pending"]

    def test_a_late_commit_of_an_early_row_is_kept(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", retention_ms=HOUR))
        world.stamped("j", [(1, 160, 1)], [b"early row, late commit"])
        world.append("j", b"a")
        world.append("j", b"b")
        world.stamped("j", [(1, 320, 2)])
        world.commit(ops.TrimJournal("j", 2))
        settle(world)
        assert world.bodies("j") == [b"early row, late commit"]
        assert world.reader.info("j").first_position == 0

    def test_in_steps(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.housekeeping.STEP_RECORDS", 7)
        for i in range(50):
            world.append("j", b"%d" % i)
        world.commit(ops.TrimJournal("j", 45))
        assert world.reader.extent("j") == (45, 50)
        assert world.reader.info("j").blocks > 10
        for _ in range(20):
            world.pass_time(6_000)
        assert world.reader.info("j").blocks == 5
        assert world.bodies("j") == [b"45", b"46", b"47", b"48", b"49"]

    def test_the_index_shrinks_too(self, world: World) -> None:
        rows = [(producer, clock, 1) for clock in range(1, 2001) for producer in (1, 2)]
        world.stamped("j", rows)
        world.stamped("j", [(1, 5000, 2), (2, 5000, 2)])
        world.commit(ops.TrimJournal("j", 3900))
        settle(world)
        with world.writer.view() as view:
            start, end = records.part_range(1, records.INDEX)
            assert len(list(view.scan(start, end))) <= 2
        assert len(world.bodies("j")) == 100

    def test_trim_past_the_end_is_refused(self, world: World) -> None:
        world.append("j", b"x")
        with pytest.raises(Invalid):
            world.commit(ops.TrimJournal("j", 2))
        world.commit(ops.TrimJournal("j", 1))
        assert world.bodies("j") == []
        assert world.append("j", b"y").offset == 1


class TestDeadlines:
    def test_an_open_transaction_past_its_deadline_is_rolled_back_with_an_alarm(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.commit(ops.CreateJournal("j", span_deadline_ms=HOUR))
        world.stamped("j", [(1, 160, 1)])
        world.pass_time(HOUR - 1)
        assert world.reader.info("j").open_spans == 1
        with caplog.at_level(logging.WARNING):
            world.pass_time(2)
        assert "passed its deadline" in caplog.text
        info = world.reader.info("j")
        assert (info.open_spans, info.aborted_spans) == (0, 1)
        for _ in range(2):
            # The late ACK, more of the same transaction, and anything else of that producer: refused.
            for row in ((1, 320, 2), (1, 480, 1), (1, 640, 0)):
                with pytest.raises(Fenced, match="deadline"):
                    world.stamped("j", [row])
            world.reopen()
        assert world.bodies("j") == []
        world.stamped("j", [(2, 160, 0)])
        assert len(world.bodies("j")) == 1

    def test_no_deadline(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", span_deadline_ms=0))
        world.stamped("j", [(1, 160, 1)])
        world.pass_time(1000 * DAY)
        world.stamped("j", [(1, 320, 2)])
        assert len(world.bodies("j")) == 1

    def test_the_deadline_counts_from_the_first_message_over_restarts(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", span_deadline_ms=HOUR))
        world.stamped("j", [(1, 160, 1)])
        world.pass_time(HOUR // 2)
        world.reopen()
        world.stamped("j", [(1, 320, 1)])
        world.pass_time(HOUR // 2 + 2)
        with pytest.raises(Fenced):
            world.stamped("j", [(1, 480, 2)])


class TestPruning:
    def clock(self, world: World, plus_ms: int = 0) -> int:
        from detent.message import clock_of_ns

        return clock_of_ns((world.now_ms + plus_ms) * 1_000_000)

    def test_a_pruned_producers_duplicates_stay_out(self, world: World) -> None:
        old = self.clock(world)
        world.stamped("j", [(1, old, 0)])
        world.pass_time(2 * DAY)
        world.stamped("j", [(2, self.clock(world), 0)])
        world.pass_time(61_000)
        with world.writer.view() as view:
            start, end = records.part_range(1, records.PRODUCER)
            assert [key[-1] for key, _ in view.scan(start, end)] == [2]
        for _ in range(2):
            with pytest.raises(Fenced, match="floor"):
                world.stamped("j", [(1, old, 0)])
            world.reopen()
        assert len(world.bodies("j")) == 2

    def test_an_open_span_is_never_pruned(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", span_deadline_ms=0))
        old = self.clock(world)
        world.stamped("j", [(1, old, 1)])
        world.pass_time(10 * DAY)
        world.stamped("j", [(2, self.clock(world), 0)])
        world.pass_time(61_000)
        world.stamped("j", [(1, old + 160, 2)])
        assert len(world.bodies("j")) == 2

    def test_a_clock_that_runs_ahead_prunes_nobody(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.message.sequence.CLOCK_AHEAD_NS", 1001 * DAY * 1_000_000)  # as earlier releases
        world.stamped("j", [(1, self.clock(world), 0)])
        world.stamped("j", [(2, self.clock(world, 1000 * DAY), 0)])
        world.pass_time(61_000)
        world.stamped("j", [(1, self.clock(world), 0)])
        assert len(world.bodies("j")) == 3

    def test_in_steps(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.housekeeping.STEP_RECORDS", 10)
        world.stamped("j", [(producer, self.clock(world), 0) for producer in range(1, 51)])
        world.pass_time(2 * DAY)
        world.append("j", b"new")
        for _ in range(12):
            world.pass_time(61_000)
        with world.writer.view() as view:
            assert len(list(view.scan(*records.part_range(1, records.PRODUCER)))) == 1

    def test_an_aborted_producer_is_remembered_longer(self, world: World) -> None:
        world.commit(ops.CreateJournal("j", span_deadline_ms=HOUR))
        world.stamped("j", [(1, self.clock(world), 1)])
        world.pass_time(2 * DAY)
        world.append("j", b"x")
        world.pass_time(61_000)
        with pytest.raises(Fenced, match="deadline"):
            world.stamped("j", [(1, self.clock(world), 1)])


class TestNames:
    def test_create_configure_delete(self, world: World) -> None:
        assert world.commit(ops.CreateJournal("j", retention_ms=5))[0] == ops.Created(1, True)
        with pytest.raises(Exists):
            world.commit(ops.CreateJournal("j"))
        assert world.commit(ops.CreateJournal("j", exist_ok=True))[0] == ops.Created(1, False)
        world.commit(ops.ConfigureJournal("j", retention_bytes=7))
        info = world.reader.info("j")
        assert (info.retention_ms, info.retention_bytes) == (5, 7)
        world.commit(ops.DeleteJournal("j"))
        with pytest.raises(NotFound):
            world.reader.info("j")
        with pytest.raises(NotFound):
            world.commit(ops.DeleteJournal("j"))

    def test_a_deleted_journals_records_go_in_steps(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.housekeeping.STEP_RECORDS", 10)
        for i in range(40):
            world.append("j", b"%d" % i)
        world.stamped("j", [(1, 160, 1)])
        world.commit(ops.UpdateRegisters("j", {"a": "b"}))
        world.commit(ops.DeleteJournal("j"))
        world.append("j", b"second life")
        world.pass_time(1000)
        world.reopen()
        for _ in range(10):
            world.pass_time(1000)
        assert world.bodies("j") == [b"second life"]
        assert world.reader.info("j").id == 2
        with world.writer.view() as view:
            left = [key.hex() for key, _ in view.scan(b"\x06\x01\x10\x00\x00\x00\x01", b"\x06\x01\x10\x00\x00\x00\x02")]
            assert left == []
            assert not list(view.scan(*records.DELETED.range()))
            assert not list(view.scan(*records.OPEN_SPAN.range()))

    def test_append_then_delete_in_one_transaction(self, world: World) -> None:
        world.commit(ops.Append("j", [b"x"]), ops.DeleteJournal("j"), ops.Append("j", [b"y"]))
        assert world.bodies("j") == [b"y"]

    @pytest.mark.parametrize("name", ["", "a b", "/a", "a/", "a//b", "ä", "a\x00b", "-a", "a" * 201, "../x", ".a"])
    def test_bad_names(self, world: World, name: str) -> None:
        with pytest.raises(Invalid):
            world.append(name, b"x")
        assert world.reader.names() == []

    @pytest.mark.parametrize("name", ["a", "a/b/c", "A_1.x:y=z+w-v", "a" * 200, "9"])
    def test_good_names(self, world: World, name: str) -> None:
        world.append(name, b"x")
        assert world.reader.names() == [name]

    def test_too_many_journals(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "JOURNALS_MAX", 2)
        world.append("a", b"x")
        world.append("b", b"x")
        with pytest.raises(LimitExceeded):
            world.append("c", b"x")

    def test_more_journals_than_stay_in_memory(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.machine.JOURNALS_LOADED_MAX", 3)
        for turn in range(3):
            for i in range(10):
                assert world.append(f"j{i}", b"x").offset == turn
        assert len(world.machine.loaded()) <= 4


class TestRegisters:
    def test_set_check_remove(self, world: World) -> None:
        world.commit(ops.UpdateRegisters("j", {"aa": "11", "bb": "22"}))
        world.commit(
            ops.CheckRegisters("j", {"aa": "11"}),
            ops.Append("j", [b"x"]),
            ops.UpdateRegisters("j", {"aa": None, "cc": "33"}),
        )
        assert world.reader.info("j").registers == {"bb": "22", "cc": "33"}
        with pytest.raises(Conflict, match="'cc'"):
            world.commit(ops.CheckRegisters("j", {"bb": "22", "cc": "55"}), ops.Append("j", [b"no"]))
        with pytest.raises(Conflict):
            world.commit(ops.CheckRegisters("j", {"cc": None}))
        world.commit(ops.CheckRegisters("j", {"aa": None}))
        world.reopen()
        world.commit(ops.CheckRegisters("j", {"bb": "22", "cc": "33", "aa": None}))
        assert world.bodies("j") == [b"x"]

    def test_an_author_register_fences_the_old_author(self, world: World) -> None:
        world.commit(ops.UpdateRegisters("log", {"author": "old"}))
        world.commit(ops.UpdateRegisters("log", {"author": "new"}))
        with pytest.raises(Conflict):
            world.commit(ops.CheckRegisters("log", {"author": "old"}), ops.Append("log", [b"zombie"]))
        assert world.bodies("log") == []

    def test_limits(self, world: World) -> None:
        for bad in ({"": "x"}, {"n" * 257: "x"}, {"n": "x" * 257}, {"n": "\ud800"}):
            with pytest.raises(Invalid):
                world.commit(ops.UpdateRegisters("j", bad))
        world.commit(ops.UpdateRegisters("j", {str(i): "x" for i in range(64)}))
        with pytest.raises(LimitExceeded):
            world.commit(ops.UpdateRegisters("j", {"one more": "x"}))
        assert len(world.reader.info("j").registers) == 64


class TestFragments:
    def write(self, world: World, *bodies: bytes, at_ms: int | None = None) -> ops.FragmentRef:
        return fragments.write_fragment(
            world.writer.objects,
            pa.table({"body": list(bodies)}),
            now_ms=world.now_ms if at_ms is None else at_ms,
        )

    def test_adopted_rows_stand_in_order_with_the_others(self, world: World) -> None:
        world.append("j", b"0")
        one, two = self.write(world, b"1", b"2"), self.write(world, b"3")
        assert world.commit(ops.AdoptFragments("j", [one, two]))[0] == ops.Appended(1, 0, 1, 3)
        world.append("j", b"4")
        assert world.bodies("j") == [b"0", b"1", b"2", b"3", b"4"]
        rows = [r for _, b in world.reader.committed("j", 2, 4) for r in b.column("body").to_pylist()]
        assert rows == [b"2", b"3"]
        info = world.reader.info("j")
        assert (info.fragments, info.next_position) == (2, 2)

    def test_refused(self, world: World) -> None:
        ref = self.write(world, b"1")
        missing = ops.FragmentRef(fragments.new_fragment_id(world.now_ms, b"x" * 10), 1, 100, 7)
        wrong_sum = ops.FragmentRef(ref.id, ref.rows, ref.size, ref.checksum ^ 1)
        wrong_rows = ops.FragmentRef(ref.id, 2, ref.size, ref.checksum)
        wrong_size = ops.FragmentRef(ref.id, ref.rows, ref.size + 1, ref.checksum)
        short = ops.FragmentRef(b"short", 1, 1, 1)
        for bad, error in (
            (missing, NotFound),
            (wrong_sum, Corrupt),
            (wrong_rows, Corrupt),
            (wrong_size, Corrupt),
            (short, Invalid),
        ):
            with pytest.raises(error):
                world.commit(ops.AdoptFragments("j", [bad]))
        with pytest.raises(Exists):
            world.commit(ops.AdoptFragments("j", [ref, ref]))
        with pytest.raises(Invalid):
            world.commit(ops.AdoptFragments("j", []))
        assert world.reader.names() == []
        world.commit(ops.AdoptFragments("j", [ref]))
        with pytest.raises(Exists):
            world.commit(ops.AdoptFragments("k", [ref]))
        assert world.bodies("j") == [b"1"]

    def test_the_sweeper_raises_its_horizon_first(self, world: World) -> None:
        orphan, adopted = self.write(world, b"orphan"), self.write(world, b"adopted")
        world.commit(ops.AdoptFragments("j", [adopted]))
        world.now_ms += 2 * DAY
        young = self.write(world, b"young")
        assert sweep(world.engine, world.writer) == 1
        with pytest.raises((Fenced, NotFound)):
            world.commit(ops.AdoptFragments("j", [orphan]))
        world.commit(ops.AdoptFragments("j", [young]))
        assert world.bodies("j") == [b"adopted", b"young"]
        assert sweep(world.engine, world.writer) == 0

    def test_a_late_adoption_is_refused_even_while_the_object_is_there(self, world: World) -> None:
        late = self.write(world, b"late")
        world.now_ms += 2 * DAY
        world.commit(ops.RaiseHorizon(world.now_ms - DAY))
        with pytest.raises(Fenced, match="horizon"):
            world.commit(ops.AdoptFragments("j", [late]))
        world.reopen()
        with pytest.raises(Fenced, match="horizon"):
            world.commit(ops.AdoptFragments("j", [late]))

    def test_writer_whose_clock_is_slow_is_told_by_how_much(self, world: World) -> None:
        """Writing again helps only with a right clock."""
        world.commit(ops.RaiseHorizon(world.now_ms - DAY))
        slow = self.write(world, b"new", at_ms=world.now_ms - 2 * DAY)
        with pytest.raises(Fenced, match=f"begun {DAY // 1000} s before .* whose clock is right"):
            world.commit(ops.AdoptFragments("j", [slow]))

    def test_trimmed_and_deleted_journals_leave_their_fragments_to_the_sweeper(self, world: World) -> None:
        refs = [self.write(world, b"%d" % i) for i in range(3)]
        world.commit(ops.AdoptFragments("j", refs[:2]), ops.AdoptFragments("k", refs[2:]))
        for i in range(300):  # fill the index record, so that the first one is closed
            world.stamped("j", [(1, 10 + 2 * i, 1), (2, 10 + 2 * i, 0)])
        world.commit(ops.TrimJournal("j", 50), ops.DeleteJournal("k"))
        settle(world)
        world.commit(ops.TrimJournal("j", 300))
        settle(world)
        world.now_ms += 2 * DAY
        assert sweep(world.engine, world.writer) == 3
        assert not list(world.writer.objects.list("fragments/"))

    def test_the_horizon_is_not_in_the_future(self, world: World) -> None:
        with pytest.raises(Invalid):
            world.commit(ops.RaiseHorizon(START_MS + DAY))


class TestAppending:
    def test_limits(self, world: World) -> None:
        for bad in (
            ops.Append("j", []),
            ops.Append("j", [b"x"], [b"k", b"l"]),
            ops.Append("j", [b"x"], None, [{}, {}]),
            ops.Append("j", [b"x"], None, [{"a": "\ud800"}]),
            ops.AppendBatch("j", b"not arrow"),
            ops.AppendBatch("j", b""),
            ops.AppendStamped("j", [b"x"], None, None, b"short", [1], [0]),
            ops.AppendStamped("j", [b"x"], None, None, b"6bytes", [], [0]),
        ):
            with pytest.raises(Invalid):
                world.commit(bad)
        for big in (
            ops.Append("j", [bytes((16 << 20) + 1)]),
            ops.Append("j", [bytes(10 << 20)] * 7),
            ops.Append("j", [b"x"], [bytes((16 << 20) + 1)]),
            ops.Append("j", [b"x"], None, [{"h": "v" * 70_000}]),
            ops.Append("j", [b"x"], None, [{str(i): "v" for i in range(256)}]),
        ):
            with pytest.raises(LimitExceeded):
                world.commit(big)
        assert world.reader.names() == []

    def test_a_message_larger_than_a_block(self, world: World) -> None:
        big = bytes(range(256)) * (12 << 12)
        world.commit(ops.Append("j", [b"small", big, b"small too"]))
        assert world.bodies("j") == [b"small", big, b"small too"]

    def test_a_large_append_becomes_blocks_near_the_target(self, world: World) -> None:
        world.commit(ops.Append("j", [bytes(1000)] * 5000))
        info = world.reader.info("j")
        assert 4 <= info.blocks <= 8
        assert len(world.bodies("j")) == 5000

    def test_keys_and_headers_mix_with_plain_ones_in_one_group(self, world: World) -> None:
        world.commit(
            ops.Append("j", [b"1"]),
            ops.Append("j", [b"2"], [b"key"]),
            ops.Append("j", [b"3"], None, [{"a": "b"}]),
            ops.Append("j", [b"4", b"5"], [None, b""], [None, {}]),
        )
        assert [(m.body, m.key, m.headers) for m in world.committed("j")] == [
            (b"1", None, {}),
            (b"2", b"key", {}),
            (b"3", None, {"a": "b"}),
            (b"4", None, {}),
            (b"5", b"", {}),
        ]

    def test_nulls_in_a_stamped_batch_are_refused(self, world: World) -> None:
        schema = pa.schema(
            [("key", pa.binary()), ("headers", pa.map_(pa.string(), pa.string())), ("body", pa.binary())]
        )
        batch = pa.record_batch([[None], [[]], [None]], schema=schema)
        with pytest.raises(Invalid, match="body"):
            world.commit(ops.AppendBatch("j", batch.serialize().to_pybytes()))

    def test_mixing_inside_and_outside_of_a_transaction_is_refused(self, world: World) -> None:
        world.stamped("j", [(1, 10, 1)])
        with pytest.raises(Conflict, match="open transaction"):
            world.stamped("j", [(1, 20, 0)])
        world.stamped("j", [(1, 30, 2), (1, 40, 0)])
        assert world.bodies("j") == [b"1:10:1", b"1:40:0"]

    def test_the_owner_stamps_in_the_order_of_appends(self, world: World) -> None:
        for i in range(20):
            world.append("j", b"%d" % i)
            if i == 10:
                world.reopen()
        clocks: dict[bytes, list[int]] = {}
        for message in world.committed("j"):
            clocks.setdefault(message.producer, []).append(message.clock)
        assert len(clocks) == 2  # a new producer at every start
        assert all(seen == sorted(set(seen)) for seen in clocks.values())


class TestOneGroup:
    """Housekeeping and transactions that meet in one group see each other's changes, not only what is durable."""

    def clock(self, world: World) -> int:
        return clock_of_ns(world.now_ms * 1_000_000)

    def verified(self, world: World) -> None:
        verification = verify_journals(world.writer)
        assert list(verification) == []

    def test_a_producer_that_is_forgotten_and_comes_back_is_remembered(self, world: World) -> None:
        world.stamped("j", [(1, self.clock(world), 0)])
        world.pass_time(2 * DAY)
        world.stamped("j", [(2, self.clock(world), 0)])
        world.now_ms += 61_000
        back = [(1, self.clock(world), 0)]
        operation = ops.AppendStamped("j", [b"back"], None, None, bytes(5) + b"\x01", [back[0][1]], [0])
        tickets = world.group(None, world.request(operation))
        assert [ticket.error for ticket in tickets] == [None, None]
        world.reopen()
        assert world.stamped("j", back).committed == 0
        self.verified(world)

    def test_two_trims_count_each_block_once(self, world: World) -> None:
        for i in range(10):
            world.append("j", b"%d" % i)
        world.commit(ops.TrimJournal("j", 4), ops.TrimJournal("j", 6))
        info = world.reader.info("j")
        assert (info.first_offset, info.blocks) == (6, 4)
        self.verified(world)

    def test_retention_of_more_than_one_step(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.journal.housekeeping.STEP_RECORDS", 10)
        for i in range(60):
            world.append("j", b"%d" % i)
        world.commit(ops.ConfigureJournal("j", retention_bytes=3000))
        for _ in range(15):
            world.pass_time(6_000)
        assert world.reader.info("j").block_bytes <= 3000
        self.verified(world)

    def test_a_journal_deleted_in_the_group_that_closes_its_span(self, world: World) -> None:
        world.stamped("j", [(1, 160, 1)])
        ack = ops.AppendStamped("j", [b""], None, None, bytes(5) + b"\x01", [320], [2])
        world.commit(ack, ops.DeleteJournal("j"))
        world.reopen()
        world.pass_time(2 * DAY)
        self.verified(world)

    def test_a_fragment_adopted_and_its_journal_deleted(self, world: World) -> None:
        ref = fragments.write_fragment(world.writer.objects, pa.table({"body": [b"x"]}), now_ms=world.now_ms)
        world.commit(ops.AdoptFragments("j", [ref]), ops.DeleteJournal("j"))
        settle(world)
        world.now_ms += 2 * DAY
        assert sweep(world.engine, world.writer) == 1
        with world.writer.view() as view:
            assert not list(view.scan(*records.FRAGMENT.range()))

    def test_a_fragment_is_adopted_once_also_after_its_messages_were_forgotten(self, world: World) -> None:
        ref = fragments.write_fragment(world.writer.objects, pa.table({"body": [b"x"]}), now_ms=world.now_ms)
        world.commit(ops.AdoptFragments("j", [ref]))
        world.commit(ops.TrimJournal("j", 1))
        world.reopen()
        with pytest.raises(Exists):
            world.commit(ops.AdoptFragments("j", [ref]))
        self.verified(world)

    def test_a_refused_append_leaves_the_owners_producer_alone(self, world: World) -> None:
        world.append("j", b"x")
        tickets = world.group(
            world.request(ops.Append("j", [b"y"]), answered=0),
            world.request(ops.Append("j", [b"no"]), ops.CheckHead("j", 99), answered=0),
        )
        assert isinstance(tickets[1].error, Conflict)
        self.verified(world)

    def test_blocks_that_a_span_kept_go_when_it_is_closed(self, world: World) -> None:
        world.stamped("j", [(1, 160, 1)])
        for i in range(5):
            world.append("j", b"%d" % i)
        world.commit(ops.TrimJournal("j", 5))
        settle(world)
        assert world.reader.info("j").blocks == 6
        world.stamped("j", [(1, 100, 2)])
        settle(world)
        assert world.reader.info("j").blocks <= 1
        self.verified(world)
