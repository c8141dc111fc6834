"""Spark's log loses its newest entries, whichever and however: each message is in each sink once, or the stream says
that it is not.

Spark is a model here, as far as it reads and writes its checkpoint; the ledger, the plans, the marks and the digests
are real. `test_spark_log.py` among the integration tests does the same with a real Spark, for a few cases.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from detent.errors import AlreadyEntered, OtherInput
from detent.journal import operations as journals
from detent.ledger import operations as ops
from detent.spark.batch_identity import input_of
from detent.spark.once_batch import is_entered
from detent.spark.planned import digest, moved_of
from detent.tables.marks import BatchKey, is_done
from ledgerworld import LedgerWorld

FED = 3
STEPS = ("planned", "logged", "kept", "delta", "sql", "entered", "committed")
KEPT, DELETED, EMPTIED = range(3)


class KilledError(Exception):
    """The driver is gone."""


class BrokenError(Exception):
    """Spark does not start on this checkpoint, and says so."""


class Mark:
    """A sink outside of the store: rows and mark in one commit."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.last: int | None = None
        self.made_from: bytes | None = None

    def write(self, rows: range, key: BatchKey) -> None:
        if not is_done(key, self.last, self.made_from, key.input, "the sink"):
            self.rows += rows
            self.last, self.made_from = key.batch, key.input


class Spark:
    """A query from one journal into four sinks, its checkpoint in a dictionary. A source that sends its plans knows
    the store's answer after its own newest step: that step comes to the store when Spark has logged the batch."""

    def __init__(self, *, plans: bool, sends: bool = False) -> None:
        self.world = LedgerWorld()
        self.plans = plans
        self.sends = sends
        self.newest: int | None = None
        self.rows_max: int | None = None
        self.reached = 0
        self.files: dict[str, str] = {}
        self.end = 0
        self.run_number = 0
        self.delta, self.sql = Mark(), Mark()

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def newest_of(self, folder: str) -> int:
        return max((int(name.split("/")[1]) for name in self.files if name.startswith(f"{folder}/")), default=-1)

    def offset(self, batch: int) -> int:
        if batch < 0:
            return 0
        if not self.files.get(f"offsets/{batch}"):
            raise BrokenError(f"offsets/{batch}")
        offset: int = json.loads(self.files[f"offsets/{batch}"].split("\n")[2])["in"]
        return offset

    def run(self, kill_at: str = "") -> None:
        """One start of the driver, until nothing is left to read."""
        self.run_number += 1
        self.newest = None
        last, done = self.newest_of("offsets"), self.newest_of("commits")
        if done >= 0 and not self.files[f"commits/{done}"]:
            raise BrokenError(f"commits/{done}")
        if last >= 0:
            before, reached = self.offset(last - 1), self.offset(last)
            if done != last:
                self.reached = reached
                self.batch(last, before, reached, kill_at)
        while True:
            last += 1
            start = self.offset(last - 1)
            end = self.reached = self.plan(start)
            if end == start:
                return
            self.step("planned", kill_at)
            self.files[f"offsets/{last}"] = f"v1\n{self.run_number}\n" + json.dumps({"in": end})
            self.step("logged", kill_at)
            self.batch(last, start, end, kill_at)

    def plan(self, start: int) -> int:
        end = self.end if self.rows_max is None else min(self.end, start + self.rows_max)
        if not self.plans or start == end:
            return end
        return end if self.sends and self.newest == start else self.keep(start, end)

    def keep(self, start: int, end: int) -> int:
        offsets, ends = {"in": start}, {"in": end}
        step = ops.PlanOffsets("p", digest(offsets), digest(ends), bytes(16), moved_of(offsets, ends))
        planned: ops.Planned = self.world.commit(step)[0]
        known = planned.moved["in"]
        if planned.new or self.newest != known:
            self.newest = known if planned.new else None
        return known

    def batch(self, number: int, start: int, end: int, kill_at: str) -> None:
        if self.plans:
            self.keep(start, end)
            self.step("kept", kill_at)
        key = BatchKey("l", "q", number, f"run{self.run_number}", input_of(self, number))
        if not is_entered(self.store(), key):  # type: ignore[arg-type]
            rows = range(start, end)
            for name, sink in (("delta", self.delta), ("sql", self.sql)):
                sink.write(rows, key)
                self.step(name, kill_at)
            enter = ops.EnterLedger(key.name, key.query, key.batch, key.run, key.input)
            self.world.commit(journals.Append("out", [b"%d" % row for row in rows]), enter)
            self.step("entered", kill_at)
        if f"commits/{number}" in self.files:
            raise BrokenError(f"commits/{number} was there before")
        self.files[f"commits/{number}"] = "v1\n{}"
        self.step("committed", kill_at)

    def store(self) -> Any:
        return SimpleNamespace(describe_ledger=self.world.row)

    def step(self, name: str, kill_at: str) -> None:
        """A kill comes in the newest batch."""
        if name == kill_at and self.reached == self.end:
            raise KilledError(name)

    def feed(self) -> None:
        self.end += FED

    def sinks(self) -> Iterator[list[int]]:
        yield self.delta.rows
        yield self.sql.rows
        yield [int(body) for body in self.world.bodies("out")]


def fed_three_times(kill_at: str, *, plans: bool, sends: bool = False) -> Spark:
    """Three batches, of which the last one may have been cut short. A source that sends its plans has all three in one
    life."""
    spark = Spark(plans=plans, sends=sends)
    if sends:
        spark.feed()
        spark.feed()
        spark.rows_max = FED
    for kill in (kill_at,) if sends else ("", "", kill_at):
        spark.feed()
        try:
            spark.run(kill)
        except KilledError:
            assert kill
    spark.rows_max = None
    return spark


def ends_well(spark: Spark) -> bool:
    """One more message comes, and the driver is started again: whether it says that all is well. Then it is."""
    spark.feed()
    try:
        spark.run()
    except (OtherInput, BrokenError):
        for rows in spark.sinks():
            assert len(rows) == len(set(rows))
        return False
    for rows in spark.sinks():
        assert rows == list(range(spark.end))
    return True


@pytest.mark.parametrize(("plans", "sends"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("kill_at", ["", *STEPS])
def test_no_subset_of_lost_entries_loses_a_message_without_a_word(kill_at: str, plans: bool, sends: bool) -> None:
    went_on = 0
    for states in itertools.product((KEPT, DELETED, EMPTIED), repeat=4):
        spark = fed_three_times(kill_at, plans=plans, sends=sends)
        newest = spark.newest_of("offsets")
        names = [f"{folder}/{batch}" for folder in ("offsets", "commits") for batch in (newest - 1, newest)]
        for name, state in zip(names, states, strict=True):
            if state == DELETED:
                spark.files.pop(name, None)
            elif state == EMPTIED and name in spark.files:
                spark.files[name] = ""
        went_on += ends_well(spark)
    assert went_on


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("kill_at", ["", *STEPS])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_stream_whose_source_plans_goes_on_without_its_newest_entries(
    kill_at: str, batches: int, sends: bool
) -> None:
    spark = fed_three_times(kill_at, plans=True, sends=sends)
    newest = spark.newest_of("offsets")
    for batch in range(newest - batches + 1, newest + 1):
        spark.files.pop(f"offsets/{batch}")
        spark.files.pop(f"commits/{batch}", None)
    assert ends_well(spark)


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("kill_at", ["", *STEPS])
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_stream_whose_source_plans_goes_on_from_an_older_copy(kill_at: str, batches: int, sends: bool) -> None:
    spark = fed_three_times(kill_at, plans=True, sends=sends)
    spark.files = {name: text for name, text in spark.files.items() if int(name.split("/")[1]) < batches}
    assert ends_well(spark)


@pytest.mark.parametrize("kill_at", ["kept", "delta", "sql", "entered", "committed"])
def test_batch_that_was_logged_without_its_plan_is_planned_when_it_runs(kill_at: str) -> None:
    """A kill comes between Spark's entry and the store's step, and another one later, with the loss of the entry."""
    spark = fed_three_times("logged", plans=True, sends=True)
    with pytest.raises(KilledError):
        spark.run(kill_at)
    newest = spark.newest_of("offsets")
    spark.files.pop(f"offsets/{newest}")
    spark.files.pop(f"commits/{newest}", None)
    assert ends_well(spark)


@pytest.mark.parametrize("kill_at", ["", "delta", "sql", "entered", "committed"])
def test_a_source_that_plans_anew_is_refused(kill_at: str) -> None:
    spark = fed_three_times(kill_at, plans=False)
    newest = spark.newest_of("offsets")
    spark.files.pop(f"offsets/{newest}")
    spark.files.pop(f"commits/{newest}", None)
    assert not ends_well(spark)
    with pytest.raises(OtherInput, match="offsets"):  # also when it is started again: Spark has logged it now
        spark.run()


def test_a_driver_that_is_asleep_is_not_told_of_another_input() -> None:
    """Another driver has written the next batch already: the ledger knows, the sink does not."""
    spark = fed_three_times("", plans=True)
    key = BatchKey("l", "q", 1, "", input_of(spark, 1))
    with pytest.raises(OtherInput, match="has batch 2"):
        spark.delta.write(range(3), key)
    assert is_entered(spark.store(), key)
    with pytest.raises(AlreadyEntered):
        spark.world.commit(ops.EnterLedger(key.name, key.query, key.batch, key.run, key.input))
