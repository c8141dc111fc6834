"""Processors are killed at every step, in one store and across several; whoever starts next finishes their work.

The cases have numbers, K1 to K25, by what the process was about to do, or had just done. After each of them every
input is in one of outputs, errors and nothing; nothing is there twice; each set of inputs had one key, whenever it was
tried; and starting the graph twice more changes nothing. K23, that keys differ, needs no process: it is among the
unit tests, as is a processor that dies at each step that there is, and not only at those that are named here.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import detent
from detent import crash
from detent.errors import Corrupt
from detent.kv.commitrecord import HEAD, PAGE, SECTOR, decode_record
from detent.processor.records import ProcessorRecord as Record
from filestore import log_name, lose_power
from graphworld import SENT, World, check_by_origin, check_trail, check_values, checkpoints
from processes import Child, Processes, eventually

IS_LONG = bool(os.environ.get("DETENT_SOAK"))


def started(folder: Path, processes: Processes, graph: str, far: bool, **options: Any) -> World:
    """A graph with all its messages sent, and nothing done yet."""
    world = World(folder, processes, graph, far=far, **options)
    world.fill()
    return world


class Case(NamedTuple):
    name: str
    graph: str
    point: str
    stores: str = "both"
    """In one store, across several ("far"), or either."""


CASES = [
    Case("K1", "sorting", "after_fence:1"),
    Case("K1", "sorting", "before_record:1"),
    Case("K1", "choosing", "before_record:1", "one"),
    Case("K2", "sorting", "after_mark:1", "far"),
    Case("K2", "sorting", "after_record:1"),
    Case("K2", "joining", "after_record:1", "one"),
    Case("K3", "choosing", "before_choice:1"),
    Case("K3", "totalling", "before_choice:1", "one"),
    Case("K4", "totalling", "after_choice:1", "one"),
    Case("K5", "sorting", "after_read:2", "one"),
    Case("K5", "sorting", "after_function:1"),
    Case("K5", "joining", "after_function:2", "one"),
    Case("K5", "polling", "after_function:2", "one"),
    Case("K6", "joining", "before_commit:2"),
    Case("K6", "totalling", "before_commit:1", "one"),
    Case("K6", "polling", "before_commit:2", "far"),
    Case("K7", "sorting", "after_commit:1"),
    Case("K7", "joining", "after_commit:1", "far"),
    Case("K7", "totalling", "after_output:1", "far"),
    Case("K7", "polling", "after_commit:1"),
    Case("K8", "sorting", "before_commit:3"),
    Case("K8", "sorting", "before_output:2", "far"),
    Case("K9", "sorting", "after_commit:3"),
    Case("K9", "sorting", "after_output:2", "far"),
    Case("K10", "sorting", "before_commit:2"),
    Case("K10", "sinking", "before_commit:1"),
    Case("K11", "sorting", "after_commit:2", "one"),
    Case("K11", "sinking", "after_commit:1"),
    *[Case("K15", "forking", point) for point in ("before_commit:2", "after_commit:2")],
    *[Case("K15", "forking", f"{when}_output:{n}", "far") for when in ("before", "after") for n in (2, 3)],
]
POINTS = {point for point in crash.POINTS if point.startswith("processor.") and point.count(".") == 1}
"""Those of the processors themselves: sinks have some of their own."""

PASSING = {"processor.before_pass", "processor.after_pass"}
"""Where an at-most-once processor dies: see K19."""

if IS_LONG:
    CASES += [
        Case("long", graph, f"{point.removeprefix('processor.')}:{n}")
        for graph in SENT
        for point in sorted(POINTS - PASSING)
        for n in (1, 2, 3)
    ]


def cases() -> list[Any]:
    both = {"one": [False], "far": [True], "both": [False, True]}
    return [
        pytest.param(case, far, id=f"{case.name}-{case.graph}-{case.point}-{'far' if far else 'one'}")
        for case in CASES
        for far in both[case.stores]
    ]


def test_every_point_is_visited() -> None:
    named = {f"processor.{case.point.partition(':')[0]}" for case in CASES}
    assert named | PASSING == POINTS


@pytest.mark.parametrize(("case", "far"), cases())
def test_killed(tmp_path: Path, processes: Processes, case: Case, far: bool) -> None:
    world = started(tmp_path, processes, case.graph, far)
    child = world.start(crash=f"processor.{case.point}")
    assert child.was_killed() or case.name == "long", child.errors()
    world.finish()
    world.check_all()


# -- choices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("point", ["after_choice:1", "in the function", "before_commit:1"])
def test_k4_and_k17_the_same_input_is_taken_again(tmp_path: Path, processes: Processes, point: str, far: bool) -> None:
    """One input had a message when it was chosen; by the time of the retry the other one, which comes first, has some,
    too."""
    world = World(tmp_path, processes, "choosing", far=far)
    world.send("low", 0)
    if point == "in the function":
        world.die_at("merge")
        world.killed()
    else:
        world.killed(f"processor.{point}")
    assert world.records()["merge"].snapshot.chosen == [("low", 1)]
    world.send("high", *SENT["choosing"]["high"])
    world.send("low", 1, 2)
    world.finish()
    world.check_all()
    assert world.values("merged@b" if far else "merged")[0] == ["low", 0]


def test_k4_a_choice_of_a_batch_is_taken_again_whole(tmp_path: Path, processes: Processes) -> None:
    """A function that takes its batch whole gets the same batch under the same key, although there are more by now."""
    world = World(tmp_path, processes, "totalling", far=False)
    world.send("in", 0, 1)
    world.die_at("total")
    world.killed()
    world.send("in", 2, 3, 4, 5)
    world.finish()
    world.check_all(totals=[[0, 1], [2, 3, 4, 5]])


# -- the function, the output, the error --------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_k5_killed_in_the_function(tmp_path: Path, processes: Processes, at: int, far: bool) -> None:
    """With an output, with nothing and with an error to come: the retry has the same key."""
    world = started(tmp_path, processes, "sorting", far)
    world.die_at("sort", f"in#{at}")
    world.killed()
    world.finish()
    world.check_all()
    assert len(world.trail()) == 7
    assert world.trail()[at] == world.trail()[at + 1]


@pytest.mark.parametrize(
    ("far", "point"), [(False, "before_commit:1"), (True, "before_commit:1"), (True, "before_output:1")]
)
def test_k6_another_writer_takes_the_place_of_the_output(
    tmp_path: Path, processes: Processes, far: bool, point: str
) -> None:
    world = started(tmp_path, processes, "sorting", far)
    world.killed(f"processor.{point}")
    world.send("out@b" if far else "out", 1000)
    world.finish()
    world.check_all(out=[1000, 0, 3])


@pytest.mark.parametrize(
    ("far", "point"), [(False, "before_commit:1"), (True, "after_commit:1"), (True, "after_output:1")]
)
def test_k8_a_batch_of_all_kinds(tmp_path: Path, processes: Processes, far: bool, point: str) -> None:
    """Outputs, errors and nothing in one step: all of it, or nothing."""
    world = started(tmp_path, processes, "sorting", far, batch=4)
    world.killed(f"processor.{point}")
    world.finish()
    world.check_all()


@pytest.mark.parametrize("point", ["before_commit:1", "after_commit:1"])
def test_k10_k11_messages_that_a_filter_holds_back(tmp_path: Path, processes: Processes, point: str) -> None:
    """What is filtered is done, too: it gave nothing, and is never seen again."""
    world = World(tmp_path, processes, "sinking", far=False, types="wanted")
    world.send("in", 100)
    world.send("in", 0, type="wanted")
    world.send("in", 101, 102)
    world.send("in", 1, type="wanted")
    world.killed(f"processor.{point}")
    world.finish()
    world.check({}, filters=True)
    world.check_effects([0, 1])
    totals = world.records()["take"].totals
    assert (totals.outputs, totals.errors, totals.nils) == (0, 0, 5)


# -- recovery -----------------------------------------------------------------------------------------------------

OWING = {"far": True, "extra": True}
RECOVERING = ("after_fence:1", "after_mark:1", "before_output:1", "after_output:1", "before_record:1", "after_record:1")


@pytest.mark.parametrize("point", RECOVERING)
@pytest.mark.parametrize("first", ["after_commit:1", "before_output:2"])
def test_k12_killed_in_recovery(tmp_path: Path, processes: Processes, first: str, point: str) -> None:
    """It owes an output, or an error, and was declared with one more output since: so recovery gives what is owed, and
    writes a new record. It is killed at each step of that; and then again, one step later."""
    world = started(tmp_path, processes, "sorting", True)
    world.killed(f"processor.{first}")
    world.options.update(OWING)
    world.killed(f"processor.{point}")
    if IS_LONG:
        for again in RECOVERING:
            world.start(crash=f"processor.{again}").wait()
    world.finish()
    world.check_all()
    assert world.records()["sort"].epoch == 2


def test_k12_killed_again_and_again(tmp_path: Path, processes: Processes) -> None:
    """At another step each time, before anybody has finished."""
    world = started(tmp_path, processes, "forking", True)
    for point in (
        "after_record:1",
        "before_output:1",
        "after_mark:2",
        "after_output:1",
        "after_commit:1",
        "after_mark:1",
    ):
        world.killed(f"processor.{point}")
    world.finish()
    world.check_all()


# -- joins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("how", ["K13 killed", "K14 stopped"])
def test_k13_k14_a_join_with_one_side_empty(tmp_path: Path, processes: Processes, how: str, far: bool) -> None:
    """It waits for the other side, and has taken neither."""
    world = World(tmp_path, processes, "joining", far=far)
    world.send("left", 0, 1)
    child = world.start(serve=True)
    _wait_for(child, "started")
    if how == "K13 killed":
        child.kill()
    else:
        child.finish()
    assert world.trail() == []
    assert world.records()["pair"].snapshot.positions == {"left": 0, "right": 0}
    world.send("right", 10)
    world.finish()
    assert world.records()["pair"].snapshot.positions == {"left": 1, "right": 1}
    world.send("right", 11, 12)
    world.send("left", 2)
    world.finish()
    world.check_all()


def _wait_for(child: Child, *events: str) -> dict[str, Any]:
    while (found := child.next_event()) is not None:
        if found["event"] in events:
            return found
    raise AssertionError(f"it ended without {events}\n{child.errors()}")


# -- the first message --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
def test_k16_the_first_message_of_a_journal(tmp_path: Path, processes: Processes, far: bool) -> None:
    """The processor starts before its input exists. The first message ever kills it in the function, and the retry
    after the commit: both had the same key, and there is one output."""
    world = World(tmp_path, processes, "sorting", far=far)
    world.finish()
    world.send("in", 0)
    world.die_at("sort")
    world.killed()
    world.killed("processor.after_commit:1")
    world.finish()
    world.send("in", 1, 2, 3, 4, 5)
    world.finish()
    world.check_all()
    assert len({key for key, inputs in world.trail() if inputs == "in#0"}) == 1


# -- declared otherwise -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("how", ["added", "removed"])
def test_k18_an_input_is_added_or_removed_in_the_middle_of_a_step(
    tmp_path: Path, processes: Processes, how: str, far: bool
) -> None:
    """Refused, unless it is asked for. Then the step that was begun ends with the inputs as they are now, under a key
    of theirs, and is not done again after the next crash."""
    two, three = ["left", "right"], ["left", "right", "top"]
    before, after = (two, three) if how == "added" else (three, two)
    world = World(tmp_path, processes, "joining", far=far, inputs=before)
    for number, journal in enumerate(three):
        world.send(journal, number * 10, number * 10 + 1)
    world.die_at("pair")
    world.killed()
    untouched = world.look()
    said = world.refused("Conflict", options={"inputs": after})
    assert "migrate=['pair']" in said
    assert world.look() == untouched
    world.options["inputs"] = after
    world.killed("processor.before_commit:1", migrate=["pair"])
    world.killed("processor.after_commit:1", migrate=["pair"])
    world.finish(migrate=["pair"])
    wanted = [[number * 10 + at for number in range(len(after))] for at in (0, 1)]
    check_values(world.values("pairs@b" if far else "pairs"), wanted, "pairs")
    check_trail(world.trail())
    assert [inputs.count(",") + 1 for _, inputs in world.trail()] == [len(before), *[len(after)] * 3]
    world.check_rests()


@pytest.mark.parametrize("far", [False, True])
def test_k18_an_input_of_a_choice(tmp_path: Path, processes: Processes, far: bool) -> None:
    """One that others were added to is retried all the same. One that is not there any more would leave its key to
    another message: that is refused."""
    world = World(tmp_path, processes, "choosing", far=far, inputs=["low", "high"])
    world.send("low", 0, 1)
    world.die_at("merge")
    world.killed()
    world.send("high", 10)
    world.send("top", 20)
    said = world.refused("Conflict", options={"inputs": ["high", "top"]}, migrate=["merge"])
    assert "low" in said
    world.options["inputs"] = ["top", "high", "low"]
    world.killed("processor.after_commit:1", migrate=["merge"])
    world.finish()
    seen = world.look()
    check_by_origin(seen.values("merged@b" if far else "merged"), {"low": [0, 1], "high": [10], "top": [20]})
    world.check_keys(seen)
    world.check_rests(seen)


@pytest.mark.parametrize(
    ("point", "far"),
    [("in the function", False), ("after_commit:1", False), ("before_commit:1", True), ("before_output:1", True)],
)
def test_k19_at_most_once_for_a_while(tmp_path: Path, processes: Processes, point: str, far: bool) -> None:
    """What was open when it was switched is done, and what was done meanwhile does not come again."""
    world = World(tmp_path, processes, "sorting", far=far)
    world.send("in", 0, 1, 2)
    if point == "in the function":
        world.die_at("sort")
        world.killed()
    else:
        world.killed(f"processor.{point}")
    world.finish(options={"delivery": "at-most-once"})
    world.send("in", 3)
    world.finish(options={"delivery": "at-most-once"})
    world.send("in", 4, 5)
    world.finish()
    world.check_all()


@pytest.mark.parametrize(
    ("point", "far"),
    [("before_pass:1", False), ("after_pass:1", True), ("before_commit:1", False), ("after_commit:1", False),
     ("after_commit:1", True)],
)  # fmt: skip
def test_k19_at_most_once_drops_at_most_what_it_was_doing(
    tmp_path: Path, processes: Processes, point: str, far: bool
) -> None:
    world = started(tmp_path, processes, "sorting", far, delivery="at-most-once")
    world.killed(f"processor.{point}")
    world.finish()
    was_done = point in {"before_pass:1", "after_commit:1"}
    at = "@b" if far else ""
    check_values(world.values(f"out{at}"), [0, 3] if was_done else [3], "out")
    check_values(world.values(f"failed{at}"), [[2], [5]], "failed")
    check_trail(world.trail())
    world.check_rests()


# -- several processors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [False, True])
def test_k20_two_processors_of_one_journal(tmp_path: Path, processes: Processes, far: bool) -> None:
    """In two processes; both die before their commit, or before they give to the other store what they owe."""
    world = started(tmp_path, processes, "sharing", far)
    owners = [processes.store(f"file:{tmp_path / name}") for name in ("a", *(["b"] if far else []))]
    for point in ("before_commit:1", "before_output:1" if far else "after_commit:1"):
        children = [world.start(crash=f"processor.{point}", only=[one]) for one in ("from-one", "from-two")]
        assert all(child.was_killed() for child in children)
    for owner in owners:
        owner.finish()
    world.finish()
    world.check_all()


# -- damage and loss ----------------------------------------------------------------------------------------------


def copy(source: Path, target: Path) -> None:
    """A copy of a store's files, as they are at this moment."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("owner.sock"))


def last_record(store: Path) -> tuple[Path, int, int]:
    """The newest commit log of a store; where its last record begins and ends."""
    paths = sorted(store.glob("commits-*.log"), key=lambda path: log_name(path).epoch)
    data, at, found = paths[-1].read_bytes(), PAGE, (0, 0)
    while (record := decode_record(log_name(paths[-1]), data[at:])) is not None:
        found = at, at + record.size
        at += -(-record.size // PAGE) * PAGE
    return paths[-1], *found


def damages(start: int, end: int) -> list[tuple[str, int]]:
    """Cuts and flips: at every byte of the record's head and at some others, or at every byte if there is time."""
    places = (
        range(start, end) if IS_LONG else [*range(start, start + HEAD.size, 13), *range(start + HEAD.size, end, 197)]
    )
    return [("cut", at) for at in places] + [("flipped", at) for at in [*places[::3], end - 1]]


def test_k21_the_last_commit_is_not_whole(tmp_path: Path, processes: Processes) -> None:
    """Power fails while the commit of a step is written: only some of its sectors are. Then it never was, and the step
    is made again, under its key."""
    world = started(tmp_path / "whole", processes, "sorting", False)
    world.killed("processor.after_commit:3")
    log, start, end = last_record(world.folder / "a")
    assert HEAD.size < end - start
    for number, at in enumerate(range(start, end, SECTOR)):
        torn = World(tmp_path / str(number), processes, "sorting", far=False)
        copy(world.folder, torn.folder)
        with (torn.folder / "a" / log.name).open("r+b") as file:
            file.seek(at)
            file.write(bytes(end - at))
        lose_power(torn.folder / "a")
        torn.run()
        torn.check_all()
        assert [inputs for _, inputs in torn.trail()].count("in#2") == 2, at
        shutil.rmtree(torn.folder)


def test_k21_the_last_commit_is_damaged(tmp_path: Path, processes: Processes) -> None:
    """The machine did not lose its power, and the record that was acknowledged is cut off or has a wrong byte."""
    world = started(tmp_path / "whole", processes, "sorting", False)
    world.killed("processor.after_commit:3")
    log, start, end = last_record(world.folder / "a")
    for number, (how, at) in enumerate(damages(start, end)):
        damaged = World(tmp_path / str(number), processes, "sorting", far=False)
        copy(world.folder, damaged.folder)
        with (damaged.folder / "a" / log.name).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes(end - at) if how == "cut" else bytes([byte[0] ^ 0x10]))
        if (damaged.folder / "a" / log.name).read_bytes() != log.read_bytes():
            with pytest.raises(Corrupt, match="damaged"):
                detent.open(f"file:{damaged.folder / 'a'}")
        shutil.rmtree(damaged.folder)


def test_k22_the_other_store_loses_what_it_confirmed(tmp_path: Path, processes: Processes) -> None:
    """Its disk promised more than it kept. Nobody goes on as if nothing were: it is said, nothing changes, and a reset
    to where the loss begins heals it."""
    world = World(tmp_path, processes, "sorting", far=True)
    world.send("in", 0, 1, 2)
    world.finish()
    copy(tmp_path / "b", tmp_path / "older")
    world.send("in", 3, 4, 5)
    world.finish()
    shutil.rmtree(tmp_path / "b")
    shutil.move(tmp_path / "older", tmp_path / "b")
    before = world.look()
    said = world.refused("Corrupt")
    assert "'b' confirmed the outputs of sorting/sort up to 6, and has them up to 3" in said
    assert world.look() == before
    with ExitStack() as stack:
        world.open(stack).reset("sort", 3)
    world.finish()
    check_values(world.values("out@b"), [0, 3], "out")
    check_values(world.values("failed@b"), [[2], [5]], "failed")
    world.check_rests()


def test_k22_the_other_store_loses_what_was_not_confirmed(tmp_path: Path, processes: Processes) -> None:
    """What was given last is in the record until the next step: it is given again."""
    world = started(tmp_path, processes, "sorting", True)
    world.killed("processor.before_output:2")
    copy(tmp_path / "b", tmp_path / "older")
    world.killed("processor.after_output:1")
    shutil.rmtree(tmp_path / "b")
    shutil.move(tmp_path / "older", tmp_path / "b")
    world.finish()
    world.check_all()


def test_k22_the_graphs_own_store_loses_what_was_durable(tmp_path: Path, processes: Processes) -> None:
    """The other store knows more of the processor than its record does. It is said, and nothing is done twice."""
    world = World(tmp_path, processes, "sorting", far=True)
    world.send("in", 0, 1, 2)
    world.finish()
    copy(tmp_path / "a", tmp_path / "older")
    world.send("in", 3, 4, 5)
    world.finish()
    shutil.rmtree(tmp_path / "a")
    shutil.move(tmp_path / "older", tmp_path / "a")
    before = world.look()
    assert "'b' has outputs of sorting/sort up to 6" in world.refused("Corrupt")
    assert world.look() == before
    with ExitStack() as stack:
        world.open(stack).reset("sort", {})
    world.send("in", 6, 7, 8)
    world.finish()
    check_values(world.values("out@b"), [0, 3, 6], "out")
    check_values(world.values("failed@b"), [[2], [5], [8]], "failed")
    world.check_rests()


def test_k22_the_store_of_the_inputs_loses_some(tmp_path: Path, processes: Processes) -> None:
    """What was read is not there any more. It is said, and not taken for a journal that has grown no further."""
    world = World(tmp_path, processes, "sinking", far=True)
    world.send("in@b", 0, 1)
    copy(tmp_path / "b", tmp_path / "older")
    world.send("in@b", 2, 3)
    world.finish()
    shutil.rmtree(tmp_path / "b")
    shutil.move(tmp_path / "older", tmp_path / "b")
    assert "was read to 4, which is not there" in world.refused("NotFound")
    world.check_effects([0, 1, 2, 3])


def test_k22_the_other_store_is_another_one(tmp_path: Path, processes: Processes) -> None:
    """An empty one in its place has lost everything; one of another graph has a mark that is not this processor's."""
    world = started(tmp_path, processes, "sorting", True)
    world.finish()
    shutil.move(tmp_path / "b", tmp_path / "elsewhere")
    assert "has them up to 0 now" in world.refused("Corrupt")
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    shutil.move(tmp_path / "elsewhere", tmp_path / "b")
    world.send("in", 0)
    assert "its graph's store is another" in world.refused("Conflict")
    assert world.values("out@b") == [0, 3]


@pytest.mark.parametrize("how", ["trimmed", "forgotten"])
def test_k24_messages_are_gone_before_they_were_read(tmp_path: Path, processes: Processes, how: str) -> None:
    """It says so, and skips nothing by itself; after a reset it goes on with what there is."""
    world = World(tmp_path, processes, "sorting", far=True)
    body = 100_000 if how == "forgotten" else 1  # so that there is something to forget
    with detent.open(f"file:{tmp_path / 'a'}") as store:
        for number in range(6):
            store.journal("in").append(b"%d" % number + b" " * body)
    world.killed("processor.after_output:1")
    with detent.open(f"file:{tmp_path / 'a'}") as store:
        if how == "trimmed":
            store.journal("in").trim(3)
        else:
            store.journal("in").configure(retention_bytes=body * 7 // 2)
        first = eventually(lambda: store.journal("in").info().first_offset, what="messages that are forgotten")
    said = world.refused("NotFound")
    assert f"begins at {first} now, and was read to 1" in said
    with ExitStack() as stack:
        live = world.open(stack)
        live.start()
        status = eventually(lambda: [one for one in live.status() if one.status == "failed"], what="status failed")[0]
        assert status.error.startswith("NotFound")
        assert status.inputs[0].position == 1
        assert live.reset("sort") == {"in": first}
        eventually(lambda: live.status()[0].status == "running" and live.status()[0].lag == 0, what="going on")
        live.settle()
    assert first == 3
    check_values(world.values("out@b"), [0, 3], "out")
    check_values(world.values("failed@b"), [[5]], "failed")
    world.check_rests()


def test_k25_the_error_journal_is_gone(tmp_path: Path, processes: Processes) -> None:
    """An error is owed to another store, which the graph does not name any more: it does not start, and forgets
    nothing. Declared again, the error gets there, once."""
    world = World(tmp_path, processes, "sorting", far=False, errors="failed@b", stores=["b"])
    world.send("in", 0, 1, 2, 3)
    world.killed("processor.before_output:1")
    before = world.look()
    gone: dict[str, Any] = {"errors": None, "stores": []}
    assert "owes messages to 'failed' in the store 'b'" in world.refused("Conflict", options=gone)
    assert world.look() == before
    world.finish()
    world.send("in", 4, 5)
    world.finish()
    world.check({"out": [0, 3], "failed@b": [[2], [5]]})
    world.options.update(gone)  # which is nobody's loss now
    world.send("in", 6)
    world.finish()
    assert world.values("out") == [0, 3, 6]


@pytest.mark.parametrize("far", [False, True])
def test_k25_the_error_journal_has_another_name(tmp_path: Path, processes: Processes, far: bool) -> None:
    """What was decided goes where it was decided to go; what comes later goes to the new one."""
    world = started(tmp_path, processes, "sorting", far)
    at = "@b" if far else ""
    world.killed("processor.after_commit:3")
    world.options["errors"] = f"broken{at}"
    world.finish()
    world.check({f"out{at}": [0, 3], f"failed{at}": [[2]], f"broken{at}": [[5]]})


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["after_marks", "after_record"])
def test_killed_while_it_takes_another_name(tmp_path: Path, processes: Processes, point: str) -> None:
    """What the old name owes to another store goes with the new one; nothing of the old one is left anywhere."""
    world = started(tmp_path, processes, "sorting", True)
    world.killed("processor.after_commit:3")
    world.options.update(name="sieve", formerly="sort")
    world.killed(f"processor.renaming.{point}:1")
    world.finish()
    check_values(world.values("out@b"), [0, 3], "out")
    assert {name.rpartition("/")[2] for name in world.look().kept} == {"sieve", "sieve@b"}


# -- zombies ------------------------------------------------------------------------------------------------------

STANDING = ["before_commit:2", "before_output:1", "after_fence:1", "after_choice:1"] + IS_LONG * [
    "after_mark:1", "before_record:1", "after_record:1", "after_read:2", "after_function:2", "before_choice:1",
    "after_commit:2", "after_output:1",
]  # fmt: skip


CALM = {"after_record:1", "after_commit:2", "after_output:1"}
"""Where it has nothing to commit before it looks up, and may hear of it otherwise."""


@pytest.mark.parametrize("point", STANDING)
def test_a_zombie_changes_nothing(tmp_path: Path, processes: Processes, point: str) -> None:
    """A process stands still in the middle of a step, another one takes over, and does everything; then the first goes
    on, and is told that it was replaced."""
    graph = "choosing" if "choice" in point else "sorting"
    world = started(tmp_path, processes, graph, True)
    if point == "after_fence:1":  # it owes something then, and has read what is old by the time it goes on
        world.killed("processor.before_output:1")
    owners = [processes.store(f"file:{tmp_path / name}") for name in ("a", "b")]
    zombie = world.start(stop=f"processor.{point}", serve=True, role="client")
    eventually(zombie.stands_still, what=point)
    heir = world.start(serve=True, role="client")
    total = 2 if graph == "sorting" else 6
    journal = "out" if graph == "sorting" else "merged"
    with detent.open(f"file:{tmp_path / 'b'}") as far, detent.open(f"file:{tmp_path / 'a'}") as near:
        eventually(lambda: journal in far.journals() and far.journal(journal).next_offset() >= total)
        eventually(lambda: _is_done(near, far))
    zombie.resume()
    _wait_for(zombie, "fenced", *(["standby"] if point in CALM else []))
    zombie.finish()
    heir.finish()
    for owner in owners:
        owner.finish()
    world.check_all()


def _is_done(near: detent.Store, far: detent.Store) -> bool:
    records = [Record.decode(data) for data in checkpoints(near).values()]
    return all(record.snapshot.number == 6 for record in records) and bool(checkpoints(far))
