"""Ways in which processors of other kinds have lost or doubled messages, each with a test that would find it here.

C1 to C11 are known defects of such a library; then everything at once: a process that dies at every step there is,
and then at every other one. A process that dies is an exception here, which nobody catches, and stores are in memory.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Conflict, NotFound, Store
from detent.engine import Operation
from detent.journal import operations as journal_ops
from detent.processor import Graph, LiveGraph, Step, inputs, moving, provenance_of
from detent.processor import task as life
from detent.processor.outcome import STEP_BYTES_MAX
from detent.processor.runner import new_series
from detent.remote import LocalOwner
from detent.runtime.backoff import Backoff
from detent.shard import operations as ops
from graphprogram import GRAPHS
from graphworld import SENT, Died, Simulation, check_by_origin, check_trail, check_values
from processes import PATIENCE_S, eventually

IS_LONG = bool(os.environ.get("DETENT_SOAK"))

BOTH = pytest.mark.parametrize("far", [False, True], ids=["one", "far"])
"""In one store, and across two."""

Make = Callable[..., Simulation]


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Make]:
    """Graphs of `graphprogram`, each with stores of its own."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def make(graph: str, far: bool = False, **options: Any) -> Simulation:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            return Simulation(folder, stack, graph, far=far, **options)

        yield make


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        yield opened


# -- C1 to C11 ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_c1_after_an_error_that_was_cut_short_outputs_go_to_the_output(simulate: Make, point: str, far: bool) -> None:
    """The retry of an error must not turn what comes after it into errors, or into nothing."""
    world = simulate("sorting", far)
    world.fill()
    world.dies(point, 3)
    world.run()
    world.check_all()
    record = world.records()["sort"]
    assert (record.totals.outputs, record.totals.errors, record.totals.nils) == (2, 2, 2)


@BOTH
def test_c2_the_first_message_of_a_journal_has_one_key(simulate: Make, far: bool) -> None:
    """Where nothing was there to point at, a key that is computed from positions changes with the first message."""
    world = simulate("sorting", far)
    world.run()
    world.send("in", 0)
    world.die_at("sort")
    world.dies()
    world.dies("after_commit")
    world.run()
    assert len(world.trail()) == 2
    assert len(set(world.trail())) == 1
    world.send("in", 1, 2, 3, 4, 5)
    world.run()
    world.check_all()


@BOTH
def test_c3_a_choice_is_made_once(simulate: Make, far: bool) -> None:
    """Otherwise the retry takes another message under the same key: one effect is lost, another doubled."""
    world = simulate("choosing", far)
    world.send("low", 0)
    world.die_at("merge")
    world.dies()
    world.send("high", 10, 11, 12)
    world.dies("before_commit")
    world.send("low", 1, 2)
    world.run()
    world.check_all()
    assert world.values("merged@b" if far else "merged")[0] == ["low", 0]
    assert world.trail()[0] == world.trail()[1] == world.trail()[2]


@BOTH
def test_c4_a_key_that_is_computed_anew_changes_with_the_inputs(simulate: Make, far: bool) -> None:
    """An input is added in the middle of a step, which ends then, and its process right after: it has one output. These
    are other inputs, under another key; which they keep."""
    world = simulate("joining", far)
    world.fill()
    world.send("top", 20, 21, 22)
    world.die_at("pair")
    world.dies()
    with pytest.raises(Conflict, match="migrate"):
        world.run(options={"inputs": ["left", "right", "top"]})
    world.options["inputs"] = ["left", "right", "top"]
    world.die_at("pair")
    world.dies(migrate=["pair"])
    world.dies("after_commit", migrate=["pair"])
    world.run(migrate=["pair"])
    check_values(world.values("pairs@b" if far else "pairs"), [[0, 10, 20], [1, 11, 21], [2, 12, 22]], "pairs")
    check_trail(world.trail())
    assert [inputs for _, inputs in world.trail()][:3] == ["left#0,right#0", *["left#0,right#0,top#0"] * 2]


@BOTH
@pytest.mark.parametrize("point", ["after_read", "after_function", "before_commit", "after_commit"])
def test_c5_what_was_done_at_most_once_is_not_done_again(simulate: Make, point: str, far: bool) -> None:
    """A snapshot from before the switch must not be what is gone back to after it."""
    world = simulate("sorting", far)
    world.send("in", 0, 1, 2)
    world.dies(point)
    world.run(options={"delivery": "at-most-once"})
    world.send("in", 3, 4)
    world.run(options={"delivery": "at-most-once"})
    world.send("in", 5)
    world.run()
    world.check_all()


def test_c6_and_k23_keys_of_a_million_deliveries_differ() -> None:
    """32 bits would do for 9,300 deliveries, and one in a hundred of those who have as many would lose an effect. These
    have the time and 80 random bits for each processor, and a number that counts."""
    names = [new_series() for _ in range(1_000)]
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    keys = {Step("g", "p", name, number, 0, ()).key for name in names for number in range(1_000)}
    assert len(keys) == 1_000_000
    assert max(map(len, keys)) <= 60
    last = Step("g", "p", names[0], (1 << 62) - 1, 0, ())
    assert len(last.key) <= 60


def test_c6_processors_and_resets_have_keys_of_their_own(simulate: Make, store: Store) -> None:
    world = simulate("sharing")
    world.fill()
    world.run()
    assert len({record.snapshot.series for record in world.records().values()}) == 2
    graph = _doubling()
    with graph.open(store) as live:
        live.send(1)
        live.start()
        live.settle()
        live.reset("double")
        live.settle()
    keys = [provenance_of(message).key for message in store.journal("out").read()]  # type: ignore[union-attr]
    assert len(set(keys)) == 2


@BOTH
def test_c7_outputs_and_progress_are_one_commit(simulate: Make, far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files that are synced one after the other can be apart after a power cut. Here each transaction with outputs
    also has the record, or the mark, so that the disk has both or none."""
    world = simulate("sorting", far)
    world.fill()
    commits: list[list[Operation]] = []
    commit = Store.commit

    def noted(self: Store, some: Any) -> list[Any]:
        commits.append(list(some))
        return commit(self, some)

    monkeypatch.setattr(Store, "commit", noted)
    world.run()
    writing = [some for some in commits if any(isinstance(one, journal_ops.Append) for one in some)]
    assert len(writing) == 4
    for some in writing:
        assert [one.consumer for one in some if isinstance(one, ops.CommitShard)] == ["graph/sorting/sort"]


@BOTH
def test_c8_a_place_that_is_gone_is_an_error(simulate: Make, far: bool) -> None:
    """Who moves to where nothing is any more, and goes on with what there is, has lost something without a word."""
    world = simulate("sorting", far)
    world.fill()
    world.dies("after_output" if far else "after_commit")
    with world.store() as store:
        store.journal("in").trim(3)
    before = world.look()
    with pytest.raises(NotFound, match="begins at 3 now, and was read to 1"):
        world.run()
    assert world.look() == before


def test_c8_another_journal_of_that_name_is_an_error(simulate: Make) -> None:
    world = simulate("sorting")
    world.fill()
    world.dies("after_commit")
    with world.store() as store:
        store.journal("in").delete()
        store.journal("in").append_many([b"10", b"11", b"12"])
    with pytest.raises(NotFound, match="another one of that name"):
        world.run()
    assert world.values("out") == [0]


def test_c9_an_error_journal_that_is_gone_is_no_loss(simulate: Make) -> None:
    """In one store the error is there, with the step. In another one it is owed, and that is said."""
    world = simulate("sorting")
    world.send("in", 0, 1, 2, 3)
    world.dies("after_commit", 3)
    world.options["errors"] = None
    world.run()
    assert (world.values("out"), world.values("failed")) == ([0, 3], [[2]])
    world = simulate("sorting", errors="failed@b", stores=["b"])
    world.send("in", 0, 1, 2, 3)
    world.dies("before_output")
    with pytest.raises(Conflict, match="owes messages to 'failed' in the store 'b'"):
        world.run(options={"errors": None, "stores": []})
    world.run()
    assert (world.values("out"), world.values("failed@b")) == ([0, 3], [[2]])


def _doubling(function: Callable[..., Any] | None = None, **options: Any) -> Graph:
    """A graph of one stream."""
    graph = Graph("g", store="memory:")
    graph.source("in")
    graph.stream(name="double", input="in", output="out", **options)(function or (lambda number: number * 2))
    return graph


def test_c10_a_processor_that_failed_rests_and_starts_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread does not end with the first error: it is restarted, after longer and longer rests, its status says
    so, and the message that could not be done is done first."""
    monkeypatch.setattr(life, "RETRY", Backoff(0.001, 30.0))
    rests: list[float] = []
    calls: list[str] = []

    def double(number: int, step: Step) -> int:
        calls.append(step.key)
        if len(calls) <= 4:
            rests.append(live._lives["double"]._retry_s)
            raise ValueError("not yet")
        return number * 2

    events: list[str] = []
    with _doubling(double).open(store, on_event=lambda what, *_: events.append(what)) as live:
        for number in range(3):
            live.send(number)
        live.start()
        eventually(lambda: len(calls) == 7, what="all of them done")
        live.settle()
        assert live.local_error("double") is None
        assert live.status()[0].outputs == 3
    assert events.count("failed") == 4
    assert rests == sorted(set(rests)), "each rest is longer than the one before"
    assert len(set(calls[:5])) == 1
    assert [message.body for message in store.journal("out").read()] == [b"0", b"2", b"4"]


def test_c10_a_batch_is_one_commit(store: Store) -> None:
    with _doubling(batch=100).open(store) as live:
        store.journal("in").append_many([b"%d" % number for number in range(1_000)])
        live.start()
        live.settle()
        status = live.status()[0]
    assert (status.outputs, status.steps) == (1_000, 10)


def test_c10_keys_run_side_by_side_and_each_in_order(store: Store) -> None:
    """Two functions at once, or this would never end; the outputs are in the order of the inputs."""
    both = threading.Barrier(2)
    seen: dict[bytes, list[int]] = {b"a": [], b"b": []}

    def double(message: detent.Message) -> bytes:
        both.wait(PATIENCE_S)
        assert message.key is not None
        seen[message.key].append(int(message.body))
        return message.body

    with _doubling(double, parallel=2).open(store) as live:
        for number in range(10):
            live.send(number, key="ab"[number % 2])
        live.start()
        live.settle()
    assert seen == {b"a": [0, 2, 4, 6, 8], b"b": [1, 3, 5, 7, 9]}
    assert [int(message.body) for message in store.journal("out").read()] == list(range(10))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Processors that wait look again soon; one entry for each time."""
    made: list[float] = []
    wait = inputs.ProcessorInputs.wait

    def counted(self: inputs.ProcessorInputs, stopping: Callable[[], bool], seconds: float = 0.01) -> None:
        made.append(seconds)
        wait(self, stopping, seconds)

    monkeypatch.setattr(inputs.ProcessorInputs, "wait", counted)
    return made


def test_c11_nobody_waits_who_is_gone(store: Store, waits: list[float]) -> None:
    """After waits that ended with a message, by themselves, and because the graph was stopped."""
    owner = store._connection.current
    assert isinstance(owner, LocalOwner)
    graph = Graph("g", store="memory:")
    for name in ("left", "right"):
        graph.source(name)
    graph.stream(name="pair", join=["left", "right"], output="pairs")(lambda left, right: [left, right])
    graph.stream(name="merge", any_of=["left", "right"], output="merged")(lambda number: number)
    with graph.open(store) as live:
        for number in range(5):
            live.start()
            waits.clear()
            eventually(lambda: len(waits) > 20, what="waits that end by themselves")
            live.send(number, "left")
            live.send(number, "right")
            live.settle()
            assert len(owner.journals.watch) <= 4, "each of two processors waits for two journals at most"
            live.stop()
            assert len(owner.journals.watch) == 0
    assert len(list(store.journal("pairs").read())) == 5


# -- one side after the other, one part after the other -----------------------------------------------------------


def test_a_join_that_waits_for_a_side_has_not_taken_the_other(store: Store, waits: list[float]) -> None:
    """Its sides come one after the other, in the same life: each of one goes with its own of the other."""
    graph = Graph("g", store="memory:")
    for name in ("left", "right"):
        graph.source(name)
    graph.stream(name="pair", join=["left", "right"], output="pairs", batch=3)(lambda left, right: [left, right])
    with graph.open(store) as live:
        live.start()
        for number in range(6):
            sides = ["left", "right"] if number % 2 else ["right", "left"]
            for side in sides:
                live.send(number, side)
                waits.clear()
                eventually(lambda: len(waits) > 1, what="a look at what was sent")
        live.settle()
    assert [message.body for message in store.journal("pairs").read()] == [b"[%d,%d]" % (n, n) for n in range(6)]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_a_step_that_ends_early_goes_on_where_it_ended(store: Store, parallel: int, delivery: str) -> None:
    """A batch whose outputs are too much for one commit is made in several: no message is passed over."""
    body = b"x" * (STEP_BYTES_MAX // 3)
    graph = _doubling(lambda number: b"%d " % number + body, batch=10, parallel=parallel, delivery=delivery)
    with graph.open(store) as live:
        store.journal("in").append_many([b"%d" % number for number in range(10)])
        live.start()
        live.settle()
        status = live.status()[0]
    assert [int(message.body[:2]) for message in store.journal("out").read()] == list(range(10))
    assert (status.outputs, status.lag) == (10, 0)
    assert status.steps > 1


# -- everywhere ---------------------------------------------------------------------------------------------------

KINDS = [(graph, far) for graph in SENT for far in (False, True)]


@pytest.mark.parametrize(("graph", "far"), KINDS)
def test_dies_at_every_step(simulate: Make, graph: str, far: bool) -> None:
    for count in itertools.count(1):
        world = simulate(graph, far)
        world.fill()
        is_dead = world.is_dead(count=count)
        world.run()
        world.check_all()
        if not is_dead:
            return


@pytest.mark.parametrize(("graph", "far"), [("sorting", True), ("choosing", True), ("forking", True)])
def test_dies_again_and_again(simulate: Make, graph: str, far: bool) -> None:
    """At any step, and then at any of those that come then."""
    chance = random.Random(f"{graph} {far}")
    for _ in range(1_000 if IS_LONG else 25):
        world = simulate(graph, far)
        world.fill()
        deaths = [chance.randint(1, 30) for _ in range(chance.randint(2, 5))]
        for count in deaths:
            world.is_dead(count=count)
        world.run()
        try:
            world.check_all()
        except AssertionError as error:
            raise AssertionError(f"after {deaths}: {error}") from error


@BOTH
@pytest.mark.parametrize("batch", [2, 4])
def test_dies_at_every_step_of_batches(simulate: Make, batch: int, far: bool) -> None:
    for graph in ("sorting", "joining"):
        for count in itertools.count(1):
            world = simulate(graph, far, batch=batch)
            world.fill()
            is_dead = world.is_dead(count=count)
            world.run()
            world.check_all()
            if not is_dead:
                break


@BOTH
def test_dies_at_every_step_of_a_change(simulate: Make, far: bool) -> None:
    """While it recovers as something else: with an input more, and with another output."""
    for count in itertools.count(1):
        world = simulate("joining", far)
        world.fill()
        world.send("top", 20, 21, 22)
        world.dies("after_commit", 2)
        world.options["inputs"] = ["left", "right", "top"]
        is_dead = world.is_dead(count=count, migrate=["pair"])
        world.run(migrate=["pair"])
        check_values(world.values("pairs@b" if far else "pairs"), [[0, 10], [1, 11], [2, 12, 20]], "pairs")
        check_trail(world.trail())
        if not is_dead:
            return


# -- declared otherwise, reset, renamed, forgotten ----------------------------------------------------------------


@BOTH
def test_what_was_chosen_keeps_its_key(simulate: Make, far: bool) -> None:
    """The input that a step was begun with is not declared any more. If another message got its key, whoever asks for
    keys would take it for one that is done."""
    world = simulate("choosing", far)
    world.send("low", 0)
    world.die_at("merge")
    world.dies()
    world.send("high", 10)
    world.send("top", 20)
    with pytest.raises(Conflict, match="begun a step with messages of low"):
        world.run(options={"inputs": ["high", "top"]}, migrate=["merge"])
    world.run()
    world.run(options={"inputs": ["high", "top"]}, migrate=["merge"])
    found = world.values("merged@b" if far else "merged")
    check_by_origin(found, {"low": [0], "high": [10], "top": [20]})
    check_trail(world.trail())


def test_a_sink_that_takes_batches_from_now_on_gets_other_keys(simulate: Make) -> None:
    """The first message of a step was done under its key, the others were not. The batch of all of them is not done."""
    world = simulate("sinking")
    world.fill()
    world.dies("after_function")
    world.options["whole"] = True
    with pytest.raises(Conflict, match="in whole batches now"):
        world.run()
    world.run(migrate=["take"])
    assert [effect for _, effect in world.effects()] == ["0", "0,1,2,3"]
    check_trail(world.effects())
    assert len({key.partition("-")[0] for key, _ in world.effects()}) == 2


def test_a_batch_that_was_begun_is_ended_as_a_batch(simulate: Make) -> None:
    """Taken apart, its first message would have the key of all of them."""
    world = simulate("sinking", whole=True)
    world.fill()
    world.dies("after_function")
    with pytest.raises(Conflict, match="has begun a step"):
        world.run(options={"whole": False})
    world.run()
    world.run(options={"whole": False})
    assert [effect for _, effect in world.effects()] == ["0,1,2,3", "0,1,2,3"]


def _live(world: Simulation, **options: Any) -> LiveGraph:
    """The graph of a simulation as users have it."""
    graph = GRAPHS[world.graph](world.folder, **{**world.options, **options})
    return LiveGraph(graph, {name: world.opened[name] for name in ("", *graph.stores)})


@contextmanager
def _running(live: LiveGraph) -> Iterator[LiveGraph]:
    try:
        live.start()
        yield live
    finally:
        live.stop()


ELSEWHERE = {"stores": ["b", "c"]}
"""A graph that names a store to which this processor has written nothing."""


def test_a_processor_is_reset_in_a_graph_of_several_stores(simulate: Make) -> None:
    world = simulate("sorting", True, **ELSEWHERE)
    world.fill()
    world.run()
    live = _live(world)
    assert live.reset("sort", 3) == {"in": 3}
    world.run()
    check_values(world.values("out@b"), [0, 3, 3], "out")
    check_values(world.values("failed@b"), [[2], [5], [5]], "failed")


def test_a_processor_that_fails_is_reset(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts over again and again, and takes the fence while it is being reset: that gets through all the same."""
    monkeypatch.setattr(life, "RETRY", Backoff(0.001, 30.0))
    rebased = moving._rebased
    fences: list[int] = []

    def fence() -> int:
        return int(store.commit([ops.FindShard("graph/g/double", 0)])[0].fence)

    def slowly(*arguments: Any) -> Any:
        if len(fences) < 3:
            fences.append(fence())
            eventually(lambda: fence() > fences[-1], what="another start")
        return rebased(*arguments)

    monkeypatch.setattr(moving, "_rebased", slowly)
    with _doubling(lambda number: 2 // number).open(store) as live:
        live.send(0)
        live.send(1)
        live.start()
        assert live.reset("double", 1) == {"in": 1}
        eventually(lambda: "out" in store.journals(), what="an output")
    assert len(fences) == 3
    assert [message.body for message in store.journal("out").read()] == [b"2"]


def test_a_processor_is_forgotten_in_a_graph_of_several_stores(simulate: Make) -> None:
    """Unless it owes something, which nobody else knows."""
    world = simulate("sorting", True, **ELSEWHERE)
    world.fill()
    world.dies("before_output")
    with pytest.raises(Conflict, match="owes messages to 'out' in the store 'b'"):
        _live(world).forget("sort")
    world.run()
    world.check_all()
    _live(world).forget("sort")
    assert world.look().kept == {}
    with pytest.raises(NotFound, match="nothing to forget"):
        _live(world).forget("sort")


@pytest.mark.parametrize("at", range(5))
def test_who_dies_while_forgetting_can_do_it_again(simulate: Make, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Until it is forgotten it can be run, too: nothing is missing, and nothing is done twice."""
    for again in ("forget", "run"):
        world = simulate("sorting", True)
        world.fill()
        world.dies("after_output", 4)
        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(Store, "commit", dying_after(at))
            _live(world).forget("sort")
        if again == "run" and world.records():
            world.run()
            world.check_all()
        elif again == "forget" and world.records():
            _live(world).forget("sort")
            assert world.look().kept == {}


def dying_after(count: int) -> Callable[..., list[Any]]:
    """`Store.commit`, for a process that dies after so many that change what a processor has."""
    commit, writes = Store.commit, itertools.count()

    def dies(self: Store, some: Any) -> list[Any]:
        answers = commit(self, some)
        changes = any(isinstance(one, ops.CommitShard | ops.DeleteConsumer | ops.OpenShard) for one in some)
        if changes and next(writes) == count:
            raise Died
        return answers

    return dies


@BOTH
@pytest.mark.parametrize("at", range(9))
def test_a_processor_is_renamed_and_dies_at_every_commit(
    simulate: Make, monkeypatch: pytest.MonkeyPatch, at: int, far: bool
) -> None:
    """It owes something, if there is another store: that goes with the new name, and nothing is done twice."""
    world = simulate("sorting", far, **ELSEWHERE)
    world.fill()
    world.dies("after_commit", 3)
    renamed = {"name": "sieve", "formerly": "sort"}
    with monkeypatch.context() as patch, suppress(Died):
        patch.setattr(Store, "commit", dying_after(at))
        moving.take_over(_live(world, **renamed).opened, _live(world, **renamed).graph.processors)
    with _running(_live(world, **renamed)) as live:
        live.settle()
    at_b = "@b" if far else ""
    check_values(world.values(f"out{at_b}"), [0, 3], "out")
    check_values(world.values(f"failed{at_b}"), [[2], [5]], "failed")
    assert len({key.partition("-")[0] for key, _ in world.trail()}) == 1, "keys go with the processor"
    assert set(world.records()) == {"sieve"}
    assert {name.rpartition("/")[2] for name in world.look().kept} <= {"sieve", "sieve@b"}


def test_two_processes_rename_a_processor_at_the_same_moment(simulate: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has read what the old name has; the other is done with it, and works; then the first one goes on."""
    world = simulate("sorting")
    world.send("in", 0, 1, 2)
    world.run()
    world.send("in", 3, 4, 5)
    renamed = {"name": "sieve", "formerly": "sort"}
    commit, others = Store.commit, itertools.count()

    def late(self: Store, some: Any) -> list[Any]:
        answers = commit(self, some)
        if isinstance(some[0], ops.OpenShard) and next(others) == 0:
            with _running(_live(world, **renamed)) as live:
                live.settle()
        return answers

    with monkeypatch.context() as patch, pytest.raises(Conflict, match="at this moment"):
        patch.setattr(Store, "commit", late)
        _live(world, **renamed).start()
    with _running(_live(world, **renamed)) as live:
        live.settle()
    check_values(world.values("out"), [0, 3], "out")
    check_values(world.values("failed"), [[2], [5]], "failed")


def test_two_processors_are_not_taken_for_one(simulate: Make) -> None:
    """Both have run: to forget one of them because the other says that it was called so would lose what it owes."""
    world = simulate("sorting")
    world.fill()
    world.run()
    world.run(options={"name": "sieve"})
    before = world.look()
    with pytest.raises(Conflict, match="have both run"):
        _live(world, name="sieve", formerly="sort").start()
    assert world.look() == before


def test_a_store_can_be_left_out_once_nothing_is_owed_to_it(simulate: Make) -> None:
    """Who ends well notes that all was given: nobody could ask a store that is not named any more."""
    world = simulate("sorting", errors="failed@b", stores=["b"])
    world.send("in", 0, 1, 2)
    world.run()
    assert world.values("failed@b") == [[2]]
    world.send("in", 3)
    world.run(options={"errors": None, "stores": []})
    assert world.values("out") == [0, 3]
