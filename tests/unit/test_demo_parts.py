"""The parts of the demo that need no Spark: the plan, who is killed when, how far it is, and its folder."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import detent
from detent.cli import run as cli
from detent.cli.demo import NEEDED, check_extra
from detent.demo.check import Verdict
from detent.demo.crew import CRASHES_MAX, Crew
from detent.demo.killer import DRIVERS_MAX, OWNER_UNDER_SPARK, SPARK, Killer, KillTarget, is_good_moment, targets
from detent.demo.meter import NOTHING, DemoCounts, Sample, TableRows
from detent.demo.orders import place
from detent.demo.plan import DRIVER, ORDERS, OWNER, PLACING, RUSH, WORKER, DemoPlan
from detent.demo.running import MARK, empty, new_folder, prepare
from detent.demo.rush import publish
from detent.demo.story import COUNTING, PLACED, RELEASED, killed, meaning, opening, progress
from detent.demo.view import DemoLines, DemoScreen, told
from detent.extras import install_command
from processes import eventually

LONG_AGO = 0.0
"""A plan that started then is behind: everything is due."""


def plan_in(folder: Path, messages: int = 1_000) -> DemoPlan:
    return DemoPlan(str(folder), messages, seconds=60.0, kills=0, started=LONG_AGO)


def crew_of(**done: bool) -> Any:
    """Processes that all began with nothing."""
    roles = (OWNER, DRIVER, WORKER, *PLACING)
    return {role: SimpleNamespace(is_done=done.get(role.replace(" ", "_"), False), before=NOTHING) for role in roles}


@pytest.mark.parametrize("messages", [100, 101, 102, 3_000, 200_000])
def test_all_orders_have_somebody_to_place_them(tmp_path: Path, messages: int) -> None:
    plan = plan_in(tmp_path, messages)
    assert sum(plan.counts) == messages
    assert len(plan.counts) == len(PLACING)
    assert min(plan.counts) > 0
    plan.keep()
    assert DemoPlan.load(tmp_path) == plan


def test_orders_come_at_a_pace_and_the_last_ones_when_they_are_released(tmp_path: Path) -> None:
    plan = DemoPlan(str(tmp_path), 1_000, seconds=60.0, kills=0, started=1_000.0)
    assert [plan.due(200, 1_000.0 + at) for at in (-1.0, 0.0, 18.0, 36.0, 99.0)] == [0, 0, 100, 180, 180]
    plan.release()
    assert plan.due(200, 1_099.0) == 200


def test_the_driver_is_killed_twice_at_most_and_the_owner_instead() -> None:
    assert targets(0) == []
    assert [target.role for target in targets(2)] == [OWNER, DRIVER]
    for kills in (12, 100):
        found = targets(kills)
        assert (len(found), found.count(SPARK)) == (kills, DRIVERS_MAX)
    assert {target.role for target in targets(12)} == {OWNER, DRIVER, WORKER, *PLACING}


def test_the_killer_keeps_its_pace_and_waits_for_a_good_moment() -> None:
    killer = Killer(2, paced_s=30.0)
    busy, working = DemoCounts(10, 0, 0, 0), DemoCounts(20, 10, 10, 10)
    assert killer.choose(9.9, crew_of(), busy) is None
    assert killer.choose(10.0, crew_of(), busy) == OWNER
    assert killer.choose(19.9, crew_of(), working) is None
    assert killer.choose(21.0, crew_of(), busy) is None  # Spark has written nothing yet
    assert not killer.is_done
    assert killer.choose(25.0, crew_of(), working) == DRIVER
    assert killer.is_done
    assert killer.choose(99.0, crew_of(), working) is None


def test_the_owner_is_killed_for_somebody_who_is_done() -> None:
    killer = Killer(3, paced_s=0.0)
    working = DemoCounts(20, 10, 10, 10)
    found = [killer.choose(float(at), crew_of(producer_1=True), working) for at in range(3)]
    assert found == [OWNER, DRIVER, OWNER]


@pytest.mark.parametrize(
    ("target", "counts", "is_good"),
    [
        (KillTarget(OWNER), NOTHING, False),
        (KillTarget(OWNER), DemoCounts(1, 0, 0, 0), True),
        (OWNER_UNDER_SPARK, DemoCounts(2, 0, 0, 0), False),
        (OWNER_UNDER_SPARK, DemoCounts(2, 1, 1, 0), True),
        (SPARK, DemoCounts(1, 1, 1, 0), False),
        (SPARK, DemoCounts(2, 1, 1, 1), True),
        (SPARK, DemoCounts(1, 1, 0, 0), True),  # it was rejected: there is nothing left to write
        (KillTarget(WORKER), DemoCounts(1, 0, 0, 0), True),
    ],
)
def test_a_process_comes_to_something_before_it_is_killed(
    target: KillTarget, counts: DemoCounts, is_good: bool
) -> None:
    assert is_good_moment(target, NOTHING, counts) is is_good


def test_the_rows_of_a_table_are_counted_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    rows = TableRows(tmp_path)
    assert rows.count() == 0
    log.mkdir()
    (log / f"{0:020}.json").write_text('{"protocol": {}}\n{"metaData": {}}\n')
    adds = [{"add": {"stats": json.dumps({"numRecords": count})}} for count in (3, 4)]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, [{"txn": {}}, *adds])))
    assert rows.count() == rows.count() == 7
    (log / f"{2:020}.json").write_text(json.dumps(adds[0]))
    assert rows.count() == 10


# -- what is said ----------------------------------------------------------------------------------------------------


def test_log_has_a_line_for_each_change_and_few_while_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view, samples = DemoLines(plan_in(tmp_path)), []
    for tenth in range(6_000):
        samples.append(Sample(tenth / 10, DemoCounts(min(tenth, 100), 0, 0, 0)))
        view.show(samples, kills=0)
    lines = capsys.readouterr().err.splitlines()
    assert "10.0 s  100 of 1,000 placed, 0 checked, 0 stored" in lines[0]
    assert sum("placed" in line for line in lines) == 20
    assert sum("nothing has changed" in line for line in lines) == 19


def test_first_kill_of_a_kind_says_why_it_is_hard() -> None:
    for role in (OWNER, DRIVER, WORKER, *PLACING):
        text = killed(role, 3, 12, is_first=True)
        assert text.startswith("kill 3 of 12: kill -9 for ")
        assert role in text.splitlines()[0]
        assert killed(role, 3, 12, is_first=False) == text.splitlines()[0] != text


def test_what_is_said_fits_a_terminal(tmp_path: Path) -> None:
    plan = DemoPlan(str(tmp_path), 10_000_000, seconds=60.0, kills=100, started=LONG_AGO)
    texts = [opening(plan), RELEASED, PLACED, COUNTING, progress(plan, DemoCounts(*[10_000_000] * 4))]
    texts += [killed(role, 100, 100, is_first=True) for role in (OWNER, DRIVER, WORKER, *PLACING)]
    for text in texts:
        assert max(map(len, told(1_234.5, text).splitlines())) <= 80
    live = DemoScreen(plan)
    live.show([Sample(999.0, DemoCounts(*[10_000_000] * 4))], 100)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(live._rendered())
    file: Any = console.file
    assert "…" not in file.getvalue()
    assert {"journals", "paid,", "rejected", "Delta", "10,000,000", "second"} <= set(file.getvalue().split())


@pytest.mark.parametrize(
    ("lost", "duplicated", "words"),
    [
        (0, 0, ["each order is in every place where it belongs", "no order is anywhere twice"]),
        (3, 0, ["orders are missing somewhere", "no order is anywhere twice"]),
        (0, 2, ["each order is in every place", "orders are somewhere more than once"]),
    ],
)
def test_numbers_are_said_with_what_they_mean(lost: int, duplicated: int, words: list[str]) -> None:
    roles = [OWNER, OWNER, *PLACING]
    lines = "\n".join(meaning(Verdict((), lost, duplicated), roles)).splitlines()
    assert [line.split()[:2] for line in lines if line[0] != " "] == [
        ["lost", str(lost)], ["duplicated", str(duplicated)], ["kills", "6"]
    ]  # fmt: skip
    text = " ".join(" ".join(lines).split())
    assert all(one in text for one in [*words, "owner 2, producer 3, clerk 1"])
    assert max(map(len, lines)) <= 80


def test_run_without_kills_claims_none() -> None:
    text = " ".join(meaning(Verdict((), 0, 0), []))
    assert "no process was killed" in text
    assert "after kills" not in text


def test_run_that_gave_up_calls_nothing_lost() -> None:
    lines = list(meaning(Verdict((), 180, 0), [], is_finished=False))
    assert lines[0].startswith("missing     180 ")
    assert not any(line.startswith("lost") for line in lines)


# -- the processes --------------------------------------------------------------------------------------------------


def program(folder: Path, line: str) -> str:
    """A program that takes any arguments, to be started in place of Python."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o700)
    return str(path)


def test_who_ends_without_being_done_is_started_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path)
    plan.logs.mkdir()
    monkeypatch.setattr(sys, "executable", program(tmp_path, "echo bye"))
    restarts: Counter[str] = Counter()
    with Crew(plan) as crew:
        crew.start()
        with pytest.raises(detent.Unavailable, match="ends again and again: bye"):
            eventually(lambda: restarts.update(crew.look_after(NOTHING)), seconds=60, what="the end of all patience")
        assert max(restarts.values()) == CRASHES_MAX
        assert set(restarts) <= {OWNER, DRIVER, WORKER}  # the others say that they are done


def test_who_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path)
    plan.logs.mkdir()
    monkeypatch.setattr(sys, "executable", program(tmp_path, "exec sleep 300"))
    with Crew(plan) as crew:
        crew.start()
        now = DemoCounts(3, 2, 1, 0)
        for role in (OWNER, PLACING[0]):
            crew.kill(role, now)
            assert crew[role].before == now
            assert not crew[role].is_done
        assert crew.look_after(now) == []
        assert not crew.all_is_placed


# -- the folder -----------------------------------------------------------------------------------------------------


def test_a_folder_is_used_again_and_only_one_of_ours(tmp_path: Path) -> None:
    with new_folder(tmp_path / "new") as folder:
        (folder / "store").mkdir()
        (folder / "store" / "data").touch()
        (folder / "demo.png").touch()
        with pytest.raises(detent.Unavailable, match="runs in"), new_folder(folder):
            pass
        assert (folder / "store" / "data").exists()
        empty(folder, but=("demo.png",))
        assert {path.name for path in folder.iterdir()} == {MARK, "demo.png"}
    with new_folder(folder):
        assert {path.name for path in folder.iterdir()} == {MARK}


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("dear")
    assert cli(["demo", "--folder", str(tmp_path)]) == 1
    assert "something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert cli(["demo", "--folder", str(letter)]) == 1
    assert "is a file" in capsys.readouterr().err
    assert letter.read_text() == "dear"


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "duckdb" else object())
    with pytest.raises(detent.Invalid, match=re.escape(f"the demo needs duckdb: {install_command('demo')}") + "$"):
        check_extra()
    assert "duckdb" in NEEDED


@pytest.mark.parametrize("options", [["--messages", "99"], ["--kills", "-1"], ["--seconds", "0"], ["more"]])
def test_wrong_options_are_refused(options: list[str], tmp_path: Path) -> None:
    assert cli(["demo", "--folder", str(tmp_path / "new"), *options]) == 2
    assert not (tmp_path / "new").exists()


# -- those who place orders -----------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> DemoPlan:
    """A run whose store is there, with everything due."""
    plan = plan_in(tmp_path)
    prepare(plan)
    plan.release()
    return plan


def bodies(store: detent.Store) -> list[int]:
    return [message.json()["id"] for message in store.journal(ORDERS).read()]


def test_a_producer_goes_on_where_the_last_one_was_stopped(started: DemoPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    with detent.open(started.url) as store:
        monkeypatch.setattr("detent.demo.orders.BLOCK", 100)
        commits = 0

        class Killed(BaseException):
            pass

        def commit(transaction: detent.Transaction, original: Any = detent.Transaction.commit) -> list[Any]:
            nonlocal commits
            commits += 1
            original(transaction)
            if commits == 2:  # committed, and nobody was told
                raise Killed
            return transaction.results

        monkeypatch.setattr(detent.Transaction, "commit", commit)
        with pytest.raises(Killed):
            place(started, 0)
        assert bodies(store) == list(range(200))
        place(started, 0)
        assert bodies(store) == list(range(started.counts[0]))
        place(started, 0)
        assert len(bodies(store)) == started.counts[0]


def test_a_producer_whose_predecessor_was_not_dead_yet_looks_again(
    started: DemoPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with detent.open(started.url) as store:
        place(started, 0)
        late = iter([{"next-0": "100"}])  # what it saw before the other one's transactions arrived

        def registers(journal: detent.Journal, original: Any = detent.Journal.registers) -> dict[str, str]:
            return next(late, None) or original(journal)

        monkeypatch.setattr(detent.Journal, "registers", registers)
        place(started, 0)
        assert "looking again" in capsys.readouterr().out
        assert bodies(store) == list(range(started.counts[0]))


def test_a_clerk_that_publishes_all_again_changes_nothing(started: DemoPlan) -> None:
    with detent.open(started.url) as store:
        publish(started)
        publish(started)
        assert store.queue(RUSH).info().available == started.counts[-1]
