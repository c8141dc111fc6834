"""The ledgers' machine: which batch is entered and which is not, what a refusal leaves, and what a restart finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.codec.ledger import REPLACED_MAX
from detent.engine import Operation
from detent.errors import AlreadyEntered, Conflict, DetentError, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.journal import operations as journals
from detent.ledger import operations as ops
from ledgerworld import LedgerWorld
from world import START_MS


@pytest.fixture
def world() -> LedgerWorld:
    return LedgerWorld()


# -- entering -------------------------------------------------------------------------------------------------------


class TestEntering:
    def test_the_first_batch_makes_the_row(self, world: LedgerWorld) -> None:
        assert world.enter(3, query="q", run="r") == -1
        row = world.row()
        assert (row.query, row.batch, row.run, row.replaced) == ("q", 3, "r", [])
        assert (row.entries, row.generation, row.created_ms, row.updated_ms) == (1, 0, START_MS, START_MS)

    def test_higher_batches_raise_it(self, world: LedgerWorld) -> None:
        world.enter(0)
        world.now_ms += 5
        assert world.enter(1) == 0
        assert world.enter(7) == 1
        row = world.row()
        assert (row.batch, row.entries, row.created_ms, row.updated_ms) == (7, 3, START_MS, START_MS + 5)

    @pytest.mark.parametrize("batch", [0, 4, 5])
    def test_a_batch_that_is_not_above_the_highest_was_entered_before(self, world: LedgerWorld, batch: int) -> None:
        world.enter(5)
        with pytest.raises(AlreadyEntered, match=f"batch {batch} of the ledger 'l' was entered before") as caught:
            world.enter(batch)
        assert (caught.value.name, caught.value.batch) == ("l", 5)
        assert isinstance(caught.value, Conflict)
        assert world.row().entries == 1

    def test_a_batch_that_was_entered_before_refuses_the_whole_transaction(self, world: LedgerWorld) -> None:
        world.commit(ops.EnterLedger("l", "q", 5), journals.Append("j", [b"first"]))
        for operations in (
            [journals.Append("j", [b"again"]), ops.EnterLedger("l", "q", 5)],
            [ops.EnterLedger("l", "q", 5), journals.Append("j", [b"again"])],
            [ops.EnterLedger("other", "q", 1), ops.EnterLedger("l", "q", 5)],
        ):
            with pytest.raises(AlreadyEntered):
                world.commit(*operations)
        assert world.bodies("j") == [b"first"]
        assert world.names() == ["l"]

    def test_the_highest_batch_of_all(self, world: LedgerWorld) -> None:
        world.enter(ops.BATCH_MAX)
        world.reopen()
        with pytest.raises(AlreadyEntered):
            world.enter(ops.BATCH_MAX)
        assert world.row().batch == ops.BATCH_MAX

    def test_several_in_one_transaction(self, world: LedgerWorld) -> None:
        results = world.commit(ops.EnterLedger("l", "q", 1), ops.EnterLedger("l", "q", 2), ops.EnterLedger("m", "p", 0))
        assert [result.previous_batch for result in results] == [-1, 1, -1]
        assert (world.row("l").batch, world.row("m").batch) == (2, 0)
        with pytest.raises(AlreadyEntered):
            world.commit(ops.EnterLedger("l", "q", 3), ops.EnterLedger("l", "q", 3))
        assert world.row("l").batch == 2

    def test_another_query_is_fenced_and_told_the_way_out(self, world: LedgerWorld) -> None:
        world.enter(5, name="my ledger", query="old")
        for batch in (0, 6):
            with pytest.raises(Fenced, match="checkpoint was deleted, or another query") as caught:
                world.enter(batch, name="my ledger", query="new")
            assert "detent ledger reset 'my ledger'" in str(caught.value)
        assert world.row("my ledger").query == "old"
        assert world.enter(6, name="my ledger", query="old") == 5

    def test_no_query_is_a_query_like_any_other(self, world: LedgerWorld) -> None:
        world.enter(0, query="")
        assert world.enter(1, query="") == 0
        with pytest.raises(Fenced):
            world.enter(2, query="q")


class TestRuns:
    def test_a_new_run_replaces_the_one_before(self, world: LedgerWorld) -> None:
        world.enter(0, run="a")
        world.enter(1, run="a")
        world.enter(2, run="b")
        assert (world.row().run, world.row().replaced) == ("b", ["a"])

    @pytest.mark.parametrize("batch", [0, 2, 3])
    def test_a_replaced_run_is_fenced_whatever_its_batch(self, world: LedgerWorld, batch: int) -> None:
        world.enter(0, run="a")
        world.enter(2, run="b")
        with pytest.raises(Fenced, match="run 'a' of the ledger 'l' was replaced"):
            world.enter(batch, run="a")
        assert world.row().batch == 2

    def test_a_replaced_run_of_another_query_is_told_that_it_was_replaced(self, world: LedgerWorld) -> None:
        world.enter(0, run="a")
        world.enter(1, run="b")
        with pytest.raises(Fenced, match="was replaced") as caught:
            world.enter(2, query="other", run="a")
        assert "detent ledger reset" not in str(caught.value)

    def test_a_new_run_that_replays_the_last_batch_changes_nothing(self, world: LedgerWorld) -> None:
        world.enter(0, run="a")
        before = world.row()
        with pytest.raises(AlreadyEntered):
            world.enter(0, run="b")
        assert world.row() == before
        assert world.enter(1, run="a") == 0, "the run that was there is still the current one"
        world.enter(2, run="b")
        with pytest.raises(Fenced):
            world.enter(3, run="a")

    def test_no_run_replaces_nobody_and_is_not_replaced(self, world: LedgerWorld) -> None:
        world.enter(0)
        world.enter(1, run="a")
        assert (world.row().run, world.row().replaced) == ("a", [])
        world.enter(2)
        assert (world.row().run, world.row().replaced) == ("a", [])
        world.enter(3, run="b")
        world.enter(4)
        assert (world.row().run, world.row().replaced) == ("b", ["a"])

    def test_the_last_replaced_runs_are_remembered(self, world: LedgerWorld) -> None:
        for batch in range(REPLACED_MAX + 3):
            world.enter(batch, run=f"r{batch}")
        row = world.row()
        assert row.replaced == [f"r{n}" for n in range(2, REPLACED_MAX + 2)]
        with pytest.raises(Fenced):
            world.enter(100, run="r2")
        assert world.enter(100, run="r1") == REPLACED_MAX + 2, "that one was forgotten"
        world.reopen()
        assert world.row().replaced[-1] == row.run


class TestResetAndDelete:
    def test_after_a_reset_another_query_may_use_the_name(self, world: LedgerWorld) -> None:
        world.enter(5, query="old", run="a")
        world.now_ms += 1
        world.commit(ops.ResetLedger("l"))
        row = world.row()
        assert (row.query, row.batch, row.run, row.entries, row.generation) == ("", -1, "", 0, 1)
        assert (row.created_ms, row.updated_ms) == (START_MS, START_MS + 1)
        assert world.enter(0, query="new", run="b") == -1
        with pytest.raises(Fenced, match="query 'new'"):
            world.enter(6, query="old")
        world.commit(ops.ResetLedger("l"))
        assert world.row().generation == 2

    def test_a_driver_from_before_a_reset_stays_out(self, world: LedgerWorld) -> None:
        world.enter(0, query="old", run="a")
        world.enter(1, query="old", run="b")
        world.commit(ops.ResetLedger("l"))
        for run in ("a", "b"):
            with pytest.raises(Fenced, match="or the ledger was reset"):
                world.enter(2, query="old", run=run)
        assert world.row().entries == 0
        world.commit(ops.ResetLedger("l"))
        assert world.row().replaced == ["a", "b"]

    def test_a_deleted_ledger_is_forgotten(self, world: LedgerWorld) -> None:
        world.enter(5, run="a")
        world.enter(6, run="b")
        world.commit(ops.DeleteLedger("l"))
        assert world.names() == []
        assert world.stored() == ({}, {})
        assert world.enter(0, query="new", run="a") == -1
        assert world.row().generation == 0

    @pytest.mark.parametrize(
        "operation", [ops.ResetLedger("l"), ops.DeleteLedger("l"), ops.DescribeLedgers(name="l"), ops.Unpin("l")]
    )
    def test_what_is_not_there_is_not_found(self, world: LedgerWorld, operation: Operation) -> None:
        with pytest.raises(NotFound, match=r"there is no (ledger|pin) 'l'"):
            world.commit(operation)

    def test_reset_and_entered_in_one_transaction(self, world: LedgerWorld) -> None:
        world.enter(5, query="old")
        world.commit(ops.ResetLedger("l"), ops.EnterLedger("l", "new", 0))
        assert (world.row().query, world.row().batch) == ("new", 0)


# -- pins -----------------------------------------------------------------------------------------------------------


class TestPins:
    def test_the_first_one_counts(self, world: LedgerWorld) -> None:
        assert world.commit(ops.PinOffsets("p", {"b": 2, "a": 1}))[0] == ops.Pinned({"a": 1, "b": 2}, True)
        commits = world.writer.commits
        assert world.commit(ops.PinOffsets("p", {"a": 9}))[0] == ops.Pinned({"a": 1, "b": 2}, False)
        assert world.writer.commits == commits, "what finds its pin there changes nothing"
        world.reopen()
        assert world.commit(ops.PinOffsets("p", {"a": 9}))[0] == ops.Pinned({"a": 1, "b": 2}, False)

    def test_unpinned_it_can_be_pinned_anew(self, world: LedgerWorld) -> None:
        world.commit(ops.PinOffsets("p", {"a": 1}))
        world.commit(ops.Unpin("p"))
        assert world.stored() == ({}, {})
        assert world.commit(ops.PinOffsets("p", {}))[0] == ops.Pinned({}, True)

    def test_pins_and_ledgers_of_one_name_are_apart(self, world: LedgerWorld) -> None:
        world.commit(ops.PinOffsets("l", {"a": 1}), ops.EnterLedger("l", "q", 0))
        world.commit(ops.DeleteLedger("l"))
        assert world.pin_names() == ["l"]
        world.enter(0)
        world.commit(ops.Unpin("l"))
        assert world.names() == ["l"]

    def test_described(self, world: LedgerWorld) -> None:
        world.commit(ops.PinOffsets("p", {"b": 2, "a": 1}))
        found: ops.PinDescriptions = world.commit(ops.DescribePins())[0]
        assert found == ops.PinDescriptions([ops.PinDescription("p", {"a": 1, "b": 2}, START_MS)], False)


# -- listing --------------------------------------------------------------------------------------------------------

NAMES = ["a", "a b", "a/x", "a/y", "b", "é", "\U0001f600"]


class TestListing:
    @pytest.mark.parametrize(
        ("prefix", "after", "found"),
        [
            ("", "", NAMES),
            ("a", "", NAMES[:4]),
            ("a/", "", ["a/x", "a/y"]),
            ("a", "a/x", ["a/y"]),
            ("a/", "a", ["a/x", "a/y"]),
            ("", "a/y", ["b", "é", "\U0001f600"]),
            ("", "a/z", ["b", "é", "\U0001f600"]),
            ("a", "b", []),
            ("", "\U0001f600", []),
            ("c", "", []),
        ],
    )
    def test_by_prefix_and_after_a_name(self, world: LedgerWorld, prefix: str, after: str, found: list[str]) -> None:
        for name in reversed(NAMES):
            world.commit(ops.EnterLedger(name, "q", 0), ops.PinOffsets(name, {}))
        for _ in range(2):
            rows: ops.LedgerDescriptions = world.commit(ops.DescribeLedgers(prefix, after))[0]
            pins: ops.PinDescriptions = world.commit(ops.DescribePins(prefix, after))[0]
            assert [row.name for row in rows.ledgers] == [pin.name for pin in pins.pins] == found
            assert (rows.more, pins.more) == (False, False)
            world.reopen()

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
    def test_pages(self, world: LedgerWorld, limit: int) -> None:
        for name in NAMES:
            world.commit(ops.EnterLedger(name, "q", 0), ops.PinOffsets(name, {}))
        for kind, field in ((ops.DescribeLedgers, "ledgers"), (ops.DescribePins, "pins")):
            found: list[str] = []
            more = True
            while more:
                page: Any = world.commit(kind("", found[-1] if found else "", limit))[0]
                more = page.more
                names = [one.name for one in getattr(page, field)]
                assert len(names) == limit or not more
                found += names
            assert found == NAMES

    def test_a_page_of_large_pins_ends_early(self, world: LedgerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "PAGE_BYTES", 100)
        for number in range(5):
            world.commit(ops.PinOffsets(f"p{number}", {f"journal-{n}": n for n in range(9)}))
        page: ops.PinDescriptions = world.commit(ops.DescribePins())[0]
        assert [pin.name for pin in page.pins] == ["p0"]
        assert page.more
        page = world.commit(ops.DescribePins("", "p3"))[0]
        assert [pin.name for pin in page.pins] == ["p4"]
        assert not page.more

    def test_looking_commits_nothing(self, world: LedgerWorld) -> None:
        world.enter(0)
        commits = world.writer.commits
        world.commit(ops.DescribeLedgers(), ops.DescribePins(), ops.DescribeLedgers(name="l"))
        assert world.writer.commits == commits


# -- groups, refusals, failures -------------------------------------------------------------------------------------


class TestGroups:
    def test_two_of_one_batch_in_one_group(self, world: LedgerWorld) -> None:
        """Two drivers on one checkpoint commit the same batch at the same moment: one of them does."""
        world.concurrent = True
        first, second, third = world.group(
            world.request(journals.Append("j", [b"one"]), ops.EnterLedger("l", "q", 0, "a")),
            world.request(journals.Append("j", [b"two"]), ops.EnterLedger("l", "q", 0, "b")),
            world.request(journals.Append("j", [b"three"]), ops.EnterLedger("l", "q", 1, "b")),
        )
        assert first.outcome()[1] == ops.Entered("l", -1)
        with pytest.raises(AlreadyEntered):
            second.outcome()
        assert third.outcome()[1] == ops.Entered("l", 0)
        assert world.bodies("j") == [b"one", b"three"]
        assert world.stored()[0]["l"].batch == 1

    def test_a_refused_transaction_is_taken_back_out_of_its_group(self, world: LedgerWorld) -> None:
        world.concurrent = True
        world.enter(0, name="kept", run="a")
        world.commit(ops.PinOffsets("kept", {"j": 1}))
        fails = ops.ResetLedger("nobody")
        tickets = world.group(
            world.request(ops.EnterLedger("new", "q", 0), fails),
            world.request(ops.EnterLedger("kept", "q", 1, "b"), fails),
            world.request(ops.ResetLedger("kept"), fails),
            world.request(ops.DeleteLedger("kept"), fails),
            world.request(ops.DeleteLedger("kept"), ops.EnterLedger("kept", "z", 9), fails),
            world.request(ops.PinOffsets("new", {}), fails),
            world.request(ops.Unpin("kept"), fails),
            world.request(ops.Unpin("kept"), ops.PinOffsets("kept", {}), fails),
            world.request(ops.EnterLedger("kept", "q", 1)),
        )
        for ticket in tickets[:-1]:
            with pytest.raises(NotFound):
                ticket.outcome()
        assert tickets[-1].outcome() == [ops.Entered("kept", 0)]
        for _ in range(2):
            row = world.row("kept")
            assert (world.names(), row.batch, row.run, row.replaced, row.generation) == (["kept"], 1, "a", [], 0)
            assert world.pin_names() == ["kept"]
            assert world.commit(ops.PinOffsets("kept", {}))[0].offsets == {"j": 1}
            world.reopen()

    def test_what_a_refused_transaction_touched_is_not_written(self, world: LedgerWorld) -> None:
        world.enter(0)
        before = world.stored()
        world.concurrent = True
        refused, kept = world.group(
            world.request(ops.ResetLedger("l"), ops.Unpin("nobody")), world.request(journals.Append("j", [b"x"]))
        )
        with pytest.raises(NotFound):
            refused.outcome()
        kept.outcome()
        assert world.stored() == before

    def test_room_for_pins_that_were_refused_is_given_back(
        self, world: LedgerWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ops, "PINS_BYTES_MAX", 50)
        for _ in range(9):
            with pytest.raises(NotFound):
                world.commit(ops.PinOffsets("p", {"j": 1}), ops.Unpin("nobody"))
            world.commit(ops.PinOffsets("p", {"j": 1}))
            with pytest.raises(NotFound):
                world.commit(ops.Unpin("p"), ops.Unpin("nobody"))
            world.commit(ops.Unpin("p"))
        world.commit(ops.PinOffsets("p", {"j": 1}), ops.PinOffsets("q", {"j": 1}))
        with pytest.raises(LimitExceeded, match="of 50 bytes together"):
            world.commit(ops.PinOffsets("r", {"j": 1}))
        world.reopen()
        with pytest.raises(LimitExceeded, match="of 50 bytes together"):
            world.commit(ops.PinOffsets("r", {"j": 1}))

    def test_a_commit_that_failed_entered_nothing(self, world: LedgerWorld) -> None:
        world.enter(0)
        world.writer.fail_before = 1
        with pytest.raises(Unavailable):
            world.enter(1, run="a")
        assert (world.row().batch, world.row().run) == (0, "")
        assert world.enter(1) == 0

    def test_a_commit_whose_answer_was_lost_is_answered(self, world: LedgerWorld) -> None:
        world.writer.fail_after = 1
        assert world.enter(0) == -1
        with pytest.raises(AlreadyEntered):
            world.enter(0)

    def test_sent_again_under_its_name_it_is_answered_and_not_refused(self, world: LedgerWorld) -> None:
        request = world.request(ops.EnterLedger("l", "q", 0), answered=0)
        assert world.engine.commit(request) == world.engine.commit(request) == [ops.Entered("l", -1)]
        world.reopen()
        assert world.engine.commit(request) == [ops.Entered("l", -1)]


# -- limits and bad input -------------------------------------------------------------------------------------------


class TestLimits:
    def test_ledgers(self, world: LedgerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "LEDGERS_MAX", 2)
        world.enter(0, name="a")
        world.enter(0, name="b")
        with pytest.raises(LimitExceeded, match="there are 2 ledgers already"):
            world.enter(0, name="c")
        world.enter(1, name="b")
        world.commit(ops.DeleteLedger("a"))
        world.enter(0, name="c")

    def test_pins(self, world: LedgerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ops, "PINS_MAX", 1)
        world.commit(ops.PinOffsets("a", {}))
        with pytest.raises(LimitExceeded, match="at most 1 pins"):
            world.commit(ops.PinOffsets("b", {}))
        assert not world.commit(ops.PinOffsets("a", {}))[0].new

    def test_one_pin(self, world: LedgerWorld) -> None:
        most = {f"j{number}": number for number in range(ops.PIN_JOURNALS_MAX)}
        assert world.commit(ops.PinOffsets("p", most))[0].offsets == most
        with pytest.raises(LimitExceeded, match="at most 10000 journals, not of 10001"):
            world.commit(ops.PinOffsets("q", {**most, "one": 1}))
        long = {f"j{number}".ljust(200, "x"): 0 for number in range(6_000)}
        with pytest.raises(LimitExceeded, match=f"is over the limit of {ops.PIN_BYTES_MAX}"):
            world.commit(ops.PinOffsets("q", long))
        assert world.pin_names() == ["p"]

    def test_the_longest_names(self, world: LedgerWorld) -> None:
        name = "é" * (ops.NAME_BYTES_MAX // 2)
        long = "x" * ops.QUERY_BYTES_MAX
        world.enter(0, name=name, query=long, run=long)
        world.commit(ops.PinOffsets(name, {"j": ops.OFFSET_MAX}))
        world.reopen()
        assert (world.names(), world.pin_names()) == ([name], [name])


LONE_SURROGATE = "\ud800"
HOSTILE: dict[str, Operation] = {
    "no name": ops.EnterLedger("", "q", 0),
    "a name that is too long": ops.EnterLedger("x" * (ops.NAME_BYTES_MAX + 1), "q", 0),
    "a name that is too long in bytes": ops.EnterLedger("é" * (ops.NAME_BYTES_MAX // 2 + 1), "q", 0),
    "a line break": ops.EnterLedger("a\nb", "q", 0),
    "a zero byte": ops.EnterLedger("a\0b", "q", 0),
    "an escape": ops.EnterLedger("a\x1b[2J", "q", 0),
    "a control character of Latin-1": ops.EnterLedger("a\x9bb", "q", 0),
    "a line separator": ops.EnterLedger("a\u2028b", "q", 0),
    "half a character": ops.EnterLedger(LONE_SURROGATE, "q", 0),
    "a space in front": ops.EnterLedger(" a", "q", 0),
    "a name of bytes": ops.EnterLedger(b"l", "q", 0),  # type: ignore[arg-type]
    "a long query": ops.EnterLedger("l", "x" * (ops.QUERY_BYTES_MAX + 1), 0),
    "a query with a line break": ops.EnterLedger("l", "q\r", 0),
    "no query": ops.EnterLedger("l", None, 0),  # type: ignore[arg-type]
    "a long run": ops.EnterLedger("l", "q", 0, "x" * (ops.RUN_BYTES_MAX + 1)),
    "half a run": ops.EnterLedger("l", "q", 0, LONE_SURROGATE),
    "a batch below 0": ops.EnterLedger("l", "q", -1),
    "a batch beyond all": ops.EnterLedger("l", "q", ops.BATCH_MAX + 1),
    "a batch of text": ops.EnterLedger("l", "q", "1"),  # type: ignore[arg-type]
    "a batch that is true": ops.EnterLedger("l", "q", True),
    "half a batch": ops.EnterLedger("l", "q", 0.5),  # type: ignore[arg-type]
    "reset nothing": ops.ResetLedger(""),
    "reset a number": ops.ResetLedger(7),  # type: ignore[arg-type]
    "delete half a character": ops.DeleteLedger(LONE_SURROGATE),
    "describe a number": ops.DescribeLedgers(name=7),  # type: ignore[arg-type]
    "list by a number": ops.DescribeLedgers(7),  # type: ignore[arg-type]
    "list after nothing": ops.DescribePins("", None),  # type: ignore[arg-type]
    "list no names": ops.DescribeLedgers(limit=0),
    "list too many names": ops.DescribePins(limit=ops.PAGE_MAX + 1),
    "list half a name": ops.DescribePins(limit=0.5),  # type: ignore[arg-type]
    "pin nothing": ops.PinOffsets("", {}),
    "pin a list": ops.PinOffsets("p", []),  # type: ignore[arg-type]
    "pin no journal": ops.PinOffsets("p", {"": 0}),
    "pin what is no journal's name": ops.PinOffsets("p", {"a b": 0}),
    "pin a number": ops.PinOffsets("p", {7: 0}),  # type: ignore[dict-item]
    "pin an offset below 0": ops.PinOffsets("p", {"j": -1}),
    "pin an offset beyond all": ops.PinOffsets("p", {"j": ops.OFFSET_MAX + 1}),
    "pin no offset": ops.PinOffsets("p", {"j": None}),  # type: ignore[dict-item]
    "unpin a line break": ops.Unpin("\n"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_cannot_be_is_invalid_and_changes_nothing(world: LedgerWorld, what: str) -> None:
    world.enter(0)
    world.commit(ops.PinOffsets("p0", {"j": 1}))
    before = world.stored()
    with pytest.raises(Invalid):
        world.commit(HOSTILE[what])
    world.concurrent = True
    refused, kept = world.group(world.request(HOSTILE[what]), world.request(journals.Append("j", [b"x"])))
    with pytest.raises(Invalid):
        refused.outcome()
    kept.outcome()
    assert world.stored() == before


@pytest.mark.parametrize("name", ["a b", "s3://bucket/path", "x@y=z", "a.b:c-d", "世界", "\U0001f600", "a" * 500])
def test_names_may_be_what_people_write(world: LedgerWorld, name: str) -> None:
    world.enter(0, name=name)
    world.reopen()
    assert world.names() == [name]


# -- against a plain model ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plain:
    """A ledger as one would write it down on paper."""

    query: str | None = None
    batches: list[int] = dataclasses.field(default_factory=list)
    runs: list[str] = dataclasses.field(default_factory=list)
    resets: int = 0

    def enter(self, query: str, batch: int, run: str) -> type[DetentError] | None:
        current = self.runs[-1] if self.runs else ""
        if run and run != current and run in self.runs[-1 - REPLACED_MAX : -1]:
            return Fenced
        if self.query not in {None, query}:
            return Fenced
        if self.batches and batch <= max(self.batches):
            return AlreadyEntered
        self.query = query
        self.batches.append(batch)
        if run and run != current:
            self.runs.append(run)
        return None

    def reset(self) -> None:
        if self.runs and self.runs[-1]:
            self.runs.append("")  # nobody's: the last one is replaced
        self.query, self.batches = None, []
        self.resets += 1


STEP = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(["", "q"]), st.integers(0, 12), st.sampled_from(["", "a", "b", "c"])),
    st.sampled_from([("reset",), ("delete",), ("reopen",), ("fail before",), ("fail after",)]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["l", "m"]), STEP), max_size=40))
def test_against_a_plain_model(steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    world, plain = LedgerWorld(), dict[str, Plain]()
    for name, (verb, *arguments) in steps:
        if verb == "enter":
            query, batch, run = arguments
            expected = plain.setdefault(name, Plain()).enter(query, batch, run)
            outcome: type[DetentError] | None = None
            try:
                world.commit(ops.EnterLedger(name, query, batch, run), journals.Append(name, [b"%d" % batch]))
            except DetentError as error:
                outcome = type(error)
            assert outcome == expected
        elif verb == "reopen":
            world.reopen()
        elif verb in {"fail before", "fail after"}:
            _fail(world, verb)
        elif name in plain:
            world.commit(ops.ResetLedger(name) if verb == "reset" else ops.DeleteLedger(name))
            plain[name].reset()
            if verb == "delete":
                del plain[name]
        _compare(world, plain)


def _fail(world: LedgerWorld, verb: str) -> None:
    """A commit that fails: the engine starts over from what is durable."""
    if verb == "fail before":
        world.writer.fail_before = 1
        with pytest.raises(Unavailable):
            world.commit(ops.EnterLedger("never", "q", 0))
    else:
        world.writer.fail_after = 1
        world.commit(ops.PinOffsets("p", {}), ops.Unpin("p"))


def _compare(world: LedgerWorld, plain: dict[str, Plain]) -> None:
    found: ops.LedgerDescriptions = world.commit(ops.DescribeLedgers())[0]
    assert {row.name for row in found.ledgers} == set(plain)
    for row in found.ledgers:
        paper = plain[row.name]
        runs = [run for run in paper.runs if run]
        current = paper.runs[-1] if paper.runs else ""
        replaced = runs if not current else runs[:-1]
        assert (row.query, row.run) == (paper.query or "", current)
        assert (row.batch, row.entries) == (max(paper.batches, default=-1), len(paper.batches))
        assert (row.generation, row.replaced) == (paper.resets, replaced[-REPLACED_MAX:])
    stored, _ = world.stored()
    assert {name: (row.batch, row.run) for name, row in stored.items()} == {
        row.name: (row.batch, row.run) for row in found.ledgers
    }


def test_the_wire_holds_operations_to_the_same_limits() -> None:
    """What the machine refuses of a batch or an offset, a decoder refuses before it is applied."""
    for operation in (ops.EnterLedger("l", "q", -1), ops.PinOffsets("p", {"j": -1})):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(operation), type=type(operation))
