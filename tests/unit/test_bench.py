"""The benchmark harness computes and judges right. No test here looks at how long anything takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from bench import harness, report, suites
from bench.bus import engine, throughput
from bench.harness import Plan, Row, Size, Skipped, Suite
from bench.place import Place
from bench.processor import kinds, latency, ways
from bench.processor import throughput as hops
from bench.queue import data, sqlite
from bench.queue.means import Means
from bench.syncs import Syncs, count_strace, family, synchronous_descriptors

import detent
from detent.processor import Out

REQUIRED = {"what", "ours", "other", "ratio", "bar", "ok"}


@pytest.fixture(autouse=True)
def _nothing_is_tidied_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All disks of the machine would be synced, and all that other tests of this process have left would be counted,
    before each round."""
    monkeypatch.setattr(harness.os, "sync", lambda: None)
    monkeypatch.setattr(harness.gc, "collect", lambda: 0)


def answers(*values: float, log: list[str] | None = None, name: str = "") -> Callable[[], float]:
    """A side that answers these numbers, one a round."""
    numbers = iter(values)

    def side() -> float:
        if log is not None:
            log.append(name)
        return next(numbers)

    return side


def rows_of(plan: Plan, rounds: int) -> list[dict[str, object]]:
    return harness.judge(plan, harness.collect(plan, rounds))


def plan_of(bar: harness.Bar, ours: tuple[float, ...], other: tuple[float, ...]) -> Plan:
    sides = {"ours": answers(*ours), "other": answers(*other)}
    return Plan(sides, [Row("a thing", "us", "ours", bar, "other", "a note")], warm_up=False)


def test_median_range_and_ratio() -> None:
    (row,) = rows_of(plan_of(harness.ratio_at_most(2, "at most 2 x"), (30, 10, 1000, 20, 40), (10, 20, 30, 15, 5)), 5)
    assert row == {
        "what": "a thing",
        "ours": 30,
        "other": 15,
        "ratio": 2,
        "bar": "at most 2 x",
        "ok": True,
        "unit": "us",
        "ours_range": [10, 1000],
        "other_range": [5, 30],
        "rounds": 5,
        "note": "a note",
    }


@pytest.mark.parametrize(
    ("bar", "ours", "other", "ok"),
    [
        (harness.ratio_at_most(2, ""), 21, 10, False),
        (harness.ratio_at_most(2, ""), 20, 10, True),
        (harness.ratio_at_least(0.5, ""), 4, 10, False),
        (harness.ratio_at_least(0.5, ""), 5, 10, True),
        (harness.ratio_at_least(0.5, ""), 5, 0, False),
        (harness.ours_at_most(60, ""), 61, 1, False),
        (harness.ours_at_least(60, ""), 61, 1, True),
        (harness.ours_within(990, 1010, ""), 1011, 1, False),
        (harness.ours_within(990, 1010, ""), 990, 1, True),
        (harness.ours_at_least(60, "") & harness.ratio_at_least(2, ""), 61, 60, False),
        (harness.ours_at_least(60, "") & harness.ratio_at_least(2, ""), 61, 30, True),
        (harness.INFORMATIVE, 1, 1000, True),
    ],
)
def test_bars(bar: harness.Bar, ours: float, other: float, ok: bool) -> None:
    (row,) = rows_of(plan_of(bar, (ours,), (other,)), 1)
    assert row["ok"] is ok


def test_bars_that_are_joined_say_both() -> None:
    both = harness.ours_at_least(1, "at least 1") & harness.ratio_at_least(2, "2 x raw")
    assert both.text == "at least 1 and 2 x raw"


def test_a_row_without_another_side_has_no_ratio() -> None:
    plan = Plan({"ours": answers(3)}, [Row("alone", "s", "ours", harness.ours_at_most(5, "under 5 s"))], warm_up=False)
    (row,) = rows_of(plan, 1)
    assert (row["other"], row["ratio"], row["other_range"], row["ok"]) == (None, None, None, True)


def test_rounds_are_interleaved_and_the_warm_up_is_forgotten() -> None:
    log: list[str] = []
    sides = {"a": answers(99, 1, 3, log=log, name="a"), "b": answers(99, 2, 2, log=log, name="b")}
    samples = harness.collect(Plan(sides, []), 2)
    assert log == ["a", "b"] * 3
    assert samples["a"].samples == (1, 3)
    assert samples["a"].median == 2


def test_slices_are_taken_in_turn() -> None:
    log: list[str] = []
    opened: list[str] = []

    def side(name: str, *values: float) -> harness.Opened:
        @contextmanager
        def enter() -> Iterator[Callable[[], float]]:
            opened.append(name)
            yield answers(*values, log=log, name=name)
            opened.remove(name)

        return enter

    numbers = harness.in_turn({"a": side("a", 99, 1, 50, 2), "b": side("b", 99, 7, 8, 9)}, 3)()
    assert numbers == {"a": 2, "b": 8}
    assert log == ["a", "b"] * 4
    assert opened == []


def test_named_numbers() -> None:
    plan = Plan({"turns": harness.in_turn({"big": lambda: nullcontext(lambda: {"x": 4.0, "y": 6.0})}, 1)}, [])
    assert set(harness.collect(plan, 1)) == {"turns.big.x", "turns.big.y"}


def fake_suite() -> Suite:
    suite = Suite("fake")

    @suite.measurement("first")
    @contextmanager
    def first(place: Place, size: Size) -> Iterator[Plan]:
        with place.fresh() as directory:
            assert directory.is_dir()
            yield plan_of(harness.ratio_at_most(2, "at most 2 x"), (1,) * size.rounds, (1,) * size.rounds)

    @suite.measurement("second")
    @contextmanager
    def second(place: Place, size: Size) -> Iterator[Plan]:
        raise Skipped("there is no disk")
        yield

    return suite


def test_a_suite_gives_the_rows_of_the_result_file(tmp_path: Path) -> None:
    steps: list[str] = []
    results = harness.run(fake_suite(), Place(tmp_path), Size(2), progress=steps.append)
    path = tmp_path / "results" / "fake.json"
    report.write(results, path)
    stored = json.loads(path.read_text())
    assert stored == results
    for row in stored:
        assert set(row) >= REQUIRED
        assert isinstance(row["ok"], bool)
        assert isinstance(row["bar"], str)
    assert [row["ok"] for row in stored] == [True, False]
    assert stored[1]["note"] == "there is no disk"
    assert steps[0] == "[1/2] first: preparing"
    assert not [entry for entry in tmp_path.iterdir() if entry.name != "results"]


def test_only_some_measurements(tmp_path: Path) -> None:
    results = harness.run(fake_suite(), Place(tmp_path), Size(1), only=["first"])
    assert [row["what"] for row in results] == ["a thing"]


def test_shared_directories_are_built_once(tmp_path: Path) -> None:
    place, built = Place(tmp_path), []
    paths = {place.shared("big", built.append) for _ in range(2)}
    assert built == list(paths)


def test_the_table_shows_every_row(tmp_path: Path) -> None:
    text = report.table(harness.run(fake_suite(), Place(tmp_path), Size(1)), width=120)
    assert "a thing [1]" in text
    assert "[1] a note" in text
    assert "NO" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.0361, "0.0361"), (1.5, "1.5"), (300.4, "300"), (12_340, "12.3 k"), (5.4e6, "5.4 M")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_every_suite_loads_with_distinct_names() -> None:
    for name in suites.MODULES:
        suite = suites.load(name)
        names = [measurement.name for measurement in suite.measurements]
        assert suite.name == name
        assert names
        assert len(names) == len(set(names))


def test_syncs_in_a_trace() -> None:
    trace = """\
10 openat(AT_FDCWD, "/x/data.mdb", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 5
10 openat(AT_FDCWD, "/x/data.mdb", O_WRONLY|O_DSYNC|O_CLOEXEC) = 6
10 fdatasync(5) = 0
10 truncate("/nowhere/detent-bench-begin", 0) = -1 ENOENT (No such file or directory)
10 pwrite64(5, "..."..., 4096, 8192) = 4096
10 fdatasync(5 <unfinished ...>
11 openat(AT_FDCWD, "/x/other", O_WRONLY|O_DSYNC <unfinished ...>
10 <... fdatasync resumed>) = 0
11 <... openat resumed>) = 7
10 pwrite64(6, "..."..., 120, 32) = 120
11 write(7, "..."..., 120) = 120
11 close(7) = 0
11 openat(AT_FDCWD, "/x/plain", O_WRONLY) = 7
11 write(7, "..."..., 120) = 120
11 msync(0x7f0000000000, 4096, MS_ASYNC) = 0
11 msync(0x7f0000000000, 4096, MS_SYNC) = 0
10 truncate("/nowhere/detent-bench-end", 0) = -1 ENOENT (No such file or directory)
10 fdatasync(5) = 0
"""
    assert count_strace(trace.splitlines(keepends=True)) == Syncs(calls=2, dsync_writes=2)


ATTACHED = """\
10 <... epoll_wait resumed>) = 1
11 pwrite64(6, ""..., 4096, 8192 <unfinished ...>
10 write(8, ""..., 120) = 120
11 <... pwrite64 resumed>) = 4096
12 fdatasync(9) = 0
11 close(6) = 0
11 openat(AT_FDCWD, "/x/plain", O_WRONLY) = 6
11 pwrite64(6, ""..., 4096, 12288) = 4096
11 openat(AT_FDCWD, "/x/log", O_WRONLY|O_DIRECT|O_DSYNC) = 7
11 pwrite64(7, ""..., 4096, 0) = 4096
10 epoll_wait(3,  <detached ...>
"""


def test_syncs_in_a_trace_that_begins_in_the_middle() -> None:
    lines = ATTACHED.splitlines(keepends=True)
    assert count_strace(lines, {6}) == Syncs(calls=1, dsync_writes=2)
    assert count_strace(lines, ()) == Syncs(calls=1, dsync_writes=1)
    assert count_strace(lines) == Syncs(calls=0, dsync_writes=0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_descriptors_that_a_trace_cannot_have_seen(tmp_path: Path) -> None:
    opened = [os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | flag) for flag in (0, os.O_DSYNC, os.O_SYNC)]
    try:
        assert synchronous_descriptors(os.getpid()) & set(opened) == set(opened[1:])
    finally:
        for descriptor in opened:
            os.close(descriptor)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_process_and_its_descendants() -> None:
    with subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"here\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == b"here\n"
        assert len(set(family(shell.pid))) == 2
        shell.communicate(timeout=10)


def test_syncs_are_scaled() -> None:
    assert Syncs(10, 10).per(500, 1_000) == {"calls": 20, "dsync_writes": 20, "all": 40}


def test_means_of_times_and_of_rates() -> None:
    for rates, mean in ((False, 50), (True, 32)):
        means, side = Means(rates=rates), answers(20, 80)
        step = means.of("ours", lambda side=side: {"x": side()})
        assert [step(), step()] == [{"x": 20}, {"x": 80}]
        assert means["ours.x"] == pytest.approx(mean)


def test_the_sqlite_queue_is_a_queue(tmp_path: Path) -> None:
    """What ours is compared with has to keep the same promises: order, leases, and receipts that go stale."""
    with sqlite.opened(tmp_path) as work:
        queue = work._queue
        queue.publish([b"a", b"b"], {"tier": "gold"})
        queue.publish([b"urgent"], {}, priority=-1)
        first = queue.claim(2, "me")
        assert [(message.body, message.attempts) for message in first] == [(b"urgent", 1), (b"a", 1)]
        assert first[1].headers == {"tier": "gold"}
        (last,) = queue.claim(5, "me")
        assert last.body == b"b"
        assert last.delivery > first[0].delivery
        with pytest.raises(ValueError, match="stale"):
            queue.ack([last, first[0]._replace(delivery=last.delivery)])
        queue.ack([last, *first])
        with pytest.raises(ValueError, match="stale"):
            queue.ack([last])
        assert queue.claim(5, "me") == []


def test_both_queues_of_the_suite_do_the_same_work(tmp_path: Path) -> None:
    with detent.open(data.url(tmp_path / "store")) as store, sqlite.opened(tmp_path) as other:
        for work in (data.Ours(store), other):
            work.publish_one()
            work.publish_batch()
            work.consume_one()
            work.consume_batch()
            with pytest.raises(AssertionError, match="0 messages instead of 1"):
                work.consume_one()


@pytest.mark.parametrize("app", throughput.OURS)
def test_the_apps_of_the_suite_do_the_same_job(tmp_path: Path, app: str) -> None:
    """Each ends only when all rows and all messages are there, once."""
    assert throughput.handled(Place(tmp_path), throughput.OURS[app], "sqlite", "", orders=3) > 0


@pytest.mark.parametrize("app", engine.APPS)
def test_the_apps_without_a_database_do_the_same_job(tmp_path: Path, app: str) -> None:
    assert engine.handled(Place(tmp_path), engine.APPS[app], orders=3) > 0


@pytest.mark.parametrize("way", [*hops.WAYS, *kinds.ways_of(Place(Path()))])
@pytest.mark.parametrize("batch", [1, 10])
def test_the_ways_of_the_processor_suite_carry_each_message_once(tmp_path: Path, way: str, batch: int) -> None:
    place = Place(tmp_path)
    found = {**hops.WAYS, **kinds.ways_of(place)}[way]
    assert hops.carried(place, "memory", found, batch, count=30) > 0


def test_a_way_that_repeats_messages_is_found_out(tmp_path: Path) -> None:
    def twice(value: bytes) -> list[Out]:
        return [Out(value), Out(value)]

    with pytest.raises(AssertionError, match="once, in order"):
        hops.carried(Place(tmp_path), "memory", ways.graph(function=twice), batch=10, count=30)


def test_a_hop_and_the_whole_way_are_timed(tmp_path: Path) -> None:
    chosen = {"raw": ways.raw, "graph": ways.graph()}
    found = latency.one_round(Place(tmp_path), "memory", chosen, count=3)
    assert found["graph.whole.median"] > found["graph.hop.median"]
    assert set(found) == {
        f"{way}.{what}.{row}" for way in chosen for what in ("hop", "whole") for row in ("median", "p99")
    }
