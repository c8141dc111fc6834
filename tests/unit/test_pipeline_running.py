"""The runner, with queries that do what the test says: restarts, draining, stopping, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

import detent
from detent.errors import Fenced, NotFound, Unavailable
from detent.runtime.report import State
from detent.spark.pipeline import Pipeline, queue
from detent.spark.pipeline_prepare import prepare
from detent.spark.pipeline_runner import PipelineRunner
from detent.spark.pipeline_stream import Stream
from detent.spark.stream_state import Event, Summary
from detent.spark.stream_task import BACK_OFF, ONCE_TRIES
from detent.store import Store


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stopping(threading.Event):
    """An event whose waiting takes no time; `until` ends the run."""

    def __init__(self, clock: Clock, until: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._until = until

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0
        if self._until():
            self.set()
        return self.is_set()


@dataclass
class FakeQuery:
    """A query: what it reports, one list a look, and how it ends then."""

    reports: list[list[dict[str, Any]]] = field(default_factory=list)
    ends_with: BaseException | None = None
    runs_on: bool = False
    stopped: float | None = None

    @property
    def is_active(self) -> bool:
        return self.stopped is None and (self.runs_on or len(self.reports) > 1)

    def progress(self) -> Iterator[dict[str, Any]]:
        yield from self.reports.pop(0) if self.reports else []

    def error(self) -> BaseException | None:
        return None if self.stopped is not None else self.ends_with

    def stop(self, patience_s: float) -> None:
        self.stopped = patience_s


class Recorder:
    """A view that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None: ...

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def show(self, states: Any) -> None: ...

    def kinds(self) -> list[str]:
        return [f"{event.stream} {event.kind}".strip() for event in self.events]


def batch(number: int, start: dict[str, int] | None, end: dict[str, Any], rows: int = 0) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": end, "numInputRows": rows}
    return {"batchId": number, "batchDuration": 40, "durationMs": {"addBatch": 30}, "sources": [source]}


def nothing_new(number: int, at: dict[str, Any]) -> dict[str, Any]:
    return {"batchId": number, "durationMs": {"latestOffset": 1}, "sources": [{"startOffset": at, "endOffset": at}]}


class World:
    """A runner over a store in memory."""

    def __init__(self, store: Store, pipeline: Pipeline) -> None:
        self.clock = Clock()
        self.view = Recorder()
        self.until: Callable[[], bool] = lambda: False
        self.started: list[tuple[str, float]] = []
        self.ends: dict[str, int] = {}
        self.script: dict[str, Callable[[], FakeQuery]] = {}
        stopping = Stopping(self.clock, lambda: self.until())
        self.runner = PipelineRunner(store, pipeline.streams, self._start, self.view, stopping, self.clock)  # type: ignore[arg-type]

    def _start(self, stream: Stream, ends: Mapping[str, int]) -> FakeQuery:
        self.started.append((stream.name, self.clock.now))
        self.ends = dict(ends)
        return self.script[stream.name]()

    def state(self, name: str) -> Any:
        return next(state for state in self.runner.states if state.name == name)


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        yield opened


def chain(*names: str) -> Pipeline:
    pipeline = Pipeline("p")
    for read, write in pairwise(names):
        pipeline.stream(read=read, write=write, name=write)(lambda frame: frame)
    return pipeline


# -- supervising ----------------------------------------------------------------------------------------------------


def test_a_stream_that_fails_is_started_again_later_each_time(store: Store) -> None:
    world = World(store, chain("a", "b"))
    world.script["b"] = lambda: FakeQuery(ends_with=RuntimeError("no memory"))
    world.until = lambda: len(world.started) == 9
    world.runner.supervise()
    starts = [at for _, at in world.started]
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 3 < 30 < pauses[-1] <= BACK_OFF.max_s + 1
    failed = next(event for event in world.view.events if event.kind == "failed")
    assert failed.fields["error"] == "RuntimeError: no memory"
    assert world.state("b").failures == 8


def test_a_batch_that_succeeds_ends_the_series(store: Store) -> None:
    world = World(store, chain("a", "b"))
    queries = iter(
        [FakeQuery(ends_with=OSError()), FakeQuery([[batch(0, None, {"a": 3}, 3)]], OSError()), FakeQuery(runs_on=True)]
    )
    world.script["b"] = lambda: next(queries)
    world.until = lambda: len(world.started) == 3
    world.runner.supervise()
    first, second, third = (at for _, at in world.started)
    assert third - second == pytest.approx(second - first, abs=0.5), "the second failure is a first one again"
    assert world.state("b").messages == 3


@pytest.mark.parametrize(
    "error",
    [
        Fenced("another driver"),
        RuntimeError(
            "Traceback:\n  File\ndetent.errors.Fenced: another driver\n SQLSTATE: 38000\n=== Streaming Query ==="
        ),
    ],
)
def test_a_stream_that_was_replaced_is_given_up_and_the_others_run_on(store: Store, error: Exception) -> None:
    world = World(store, chain("a", "b", "c"))
    world.script = {"b": lambda: FakeQuery(ends_with=error), "c": lambda: FakeQuery(runs_on=True)}
    world.until = lambda: world.clock.now > 1200
    world.runner.supervise()
    assert [name for name, _ in world.started] == ["b", "c"]
    assert (world.state("b").phase, world.state("b").error) == ("failed", "Fenced: another driver")
    assert world.state("c").phase == "stopped"
    assert [state.name for state in Summary(world.runner.states).failed] == ["b"]


def test_when_all_are_given_up_the_run_ends(store: Store) -> None:
    world = World(store, chain("a", "b"))

    def wrong() -> FakeQuery:
        raise ZeroDivisionError("in the user's function")

    world.script["b"] = wrong
    world.runner.supervise()
    assert world.state("b").error == "ZeroDivisionError: in the user's function"
    assert world.view.kinds() == ["b gave_up", "b stopped"]


def test_a_store_that_is_away_for_a_moment_does_not_end_a_stream(store: Store) -> None:
    world = World(store, chain("a", "b"))

    def start() -> FakeQuery:
        if len(world.started) == 1:
            raise Unavailable("the owner is starting")
        return FakeQuery(runs_on=True)

    world.script["b"] = start
    world.until = lambda: len(world.started) == 2
    world.runner.supervise()
    assert world.view.kinds() == ["b failed", "b started", "stopping", "b stopped"]


def test_stopping_waits_for_batches_and_reports_the_last_ones(store: Store) -> None:
    world = World(store, chain("a", "b"))
    query = FakeQuery([[], [], [], [batch(0, {"a": 0}, {"a": 5})]], runs_on=True)
    world.script["b"] = lambda: query
    world.until = lambda: len(query.reports) == 1
    world.runner.supervise()
    assert query.stopped is not None
    assert query.stopped > 1, "there is time for a batch to end"
    progress = next(event for event in world.view.events if event.kind == "progress")
    assert progress.fields == {
        "batch": 0, "messages": 5, "batch_ms": 40, "offsets": {"a": 5}, "quarantined": 0,
        "store": "memory:", "sources": [{"name": "journal a", "offset": 5}], "sinks": ["journal b"],
    }  # fmt: skip


def test_how_much_waits_is_counted(store: Store) -> None:
    store.journal("a").append_many([b"1", b"2", b"3"])
    world = World(store, chain("a", "b"))
    world.script["b"] = lambda: FakeQuery([[nothing_new(0, {"a": 1})]], runs_on=True)
    world.until = lambda: world.state("b").lag is not None
    world.runner.supervise()
    assert world.state("b").lag == 2


class Py4JNetworkError(Exception):
    """Called like py4j's: all that is seen of a Java that is gone."""


class Gone(FakeQuery):
    """A query whose Java is gone."""

    @property
    def is_active(self) -> bool:
        raise Py4JNetworkError("no answer")

    def stop(self, patience_s: float) -> None:
        raise Py4JNetworkError("no answer")


@pytest.mark.parametrize("ended", [True, False])
def test_end_of_java_ends_the_run_and_is_not_told_of_each_stream(store: Store, ended: bool) -> None:
    world = World(store, chain("a", "b", "c"))
    world.script = {"b": lambda: FakeQuery(runs_on=True), "c": Gone}

    def check() -> None:
        if ended:
            raise Unavailable("Java was ended by the signal SIGKILL")

    world.runner.check_java = check
    with pytest.raises(Unavailable if ended else Py4JNetworkError):
        world.runner.supervise()
    assert world.view.kinds() == ["b started", "c started", "stopping", "b stopped", "c stopped"]


def test_start_that_lost_its_connection_is_tried_again_while_java_runs(store: Store) -> None:
    world = World(store, chain("a", "b"))

    def start() -> FakeQuery:
        if len(world.started) == 1:
            raise Py4JNetworkError("no answer")
        return FakeQuery(runs_on=True)

    world.script["b"] = start
    world.until = lambda: len(world.started) == 2
    world.runner.supervise()
    assert world.view.kinds() == ["b failed", "b started", "stopping", "b stopped"]


def test_query_that_was_stopped_by_other_hands_is_started_again(store: Store) -> None:
    world = World(store, chain("a", "b"))
    world.script["b"] = FakeQuery
    world.until = lambda: len(world.started) == 3
    world.runner.supervise()
    first, second, third = (at for _, at in world.started)
    assert 0 < second - first < 1
    assert 0 < third - second < 1
    assert world.state("b").failures == 0


def test_interrupt_of_the_program_is_raised_when_the_other_streams_have_stopped(store: Store) -> None:
    world = World(store, chain("a", "b", "c"))
    query = FakeQuery(runs_on=True)

    def start() -> FakeQuery:
        raise KeyboardInterrupt

    world.script = {"b": lambda: query, "c": start}
    with pytest.raises(KeyboardInterrupt):
        world.runner.supervise()
    assert query.stopped is not None
    assert world.view.kinds() == ["b started", "stopping", "b stopped", "c stopped"]


def test_stream_reports_as_every_task_does(store: Store) -> None:
    world = World(store, chain("a", "b"))
    queries = iter([FakeQuery(ends_with=OSError("disk")), FakeQuery([[batch(7, {"a": 0}, {"a": 5})]], runs_on=True)])
    world.script["b"] = lambda: next(queries)
    world.until = lambda: world.state("b").batches == 1
    world.runner.supervise()
    (report,) = world.runner.reports()
    assert (report.title, report.state, report.restarts) == ("stream/b", State.STOPPED, 1)
    assert report.progress == {"batches": 1, "messages": 5}
    assert (report.error, report.about["batch"]) == ("", "7")


# -- once -----------------------------------------------------------------------------------------------------------


def reading(store: Store, name: str, source: str, write: Callable[[int], None]) -> Callable[[], FakeQuery]:
    """A query that reads what a journal holds, and writes."""
    at = [0, -1]

    def start() -> FakeQuery:
        end = store.journal(source).next_offset()
        before, at[0] = at[0], end
        if end == before:
            return FakeQuery([[nothing_new(at[1] + 1, {source: end})]])
        at[1] += 1
        write(end - before)
        return FakeQuery([[batch(at[1], {source: before}, {source: end})]])

    return start


def test_draining_goes_downstream(store: Store) -> None:
    store.journal("a").append_many([b"x"] * 4)
    world = World(store, chain("a", "b", "c"))
    world.script["b"] = reading(store, "b", "a", lambda n: store.journal("b").append_many([b"y"] * n) and None)
    world.script["c"] = reading(store, "c", "b", lambda n: None)
    world.runner.drain()
    assert [name for name, _ in world.started] == ["b", "c"], "one pass was enough, and nothing was asked twice"
    assert [(state.messages, state.lag, state.phase) for state in world.runner.states] == [(4, 0, "stopped")] * 2


def test_draining_ends_under_a_producer_that_goes_on(store: Store) -> None:
    store.journal("a").append(b"x")
    world = World(store, chain("a", "b", "c"))

    def write(count: int) -> None:
        store.journal("a").append(b"more")  # the producer
        store.journal("b").append_many([b"y"] * count)

    world.script["b"] = reading(store, "b", "a", write)
    world.script["c"] = reading(store, "c", "b", lambda n: None)
    world.runner.drain()
    assert [name for name, _ in world.started] == ["b", "c"]
    assert (world.state("b").messages, world.state("b").lag, world.state("c").messages) == (1, 1, 1)


def test_a_stream_stops_at_where_its_inputs_were(store: Store) -> None:
    store.journal("a").append_many([b"x"] * 3)
    world = World(store, chain("a", "b"))
    world.script["b"] = reading(store, "b", "a", lambda n: None)
    world.runner.drain()
    assert world.ends == {"a": 3}


def test_a_circle_is_drained_until_its_messages_end_though_a_producer_goes_on(store: Store) -> None:
    """Each message goes round three times; what comes in from outside is bounded by where the stream stops."""
    pipeline = Pipeline("p")
    pipeline.stream(read=["in", "back"], write="out", name="out")(lambda frame: frame)
    pipeline.stream(read="out", write="back", name="back")(lambda frame: frame)
    store.journal("in").append(b"x")
    world = World(store, pipeline)
    at, rounds = {"in": 0, "back": 0, "out": 0}, [0, 0]

    def out() -> FakeQuery:
        store.journal("in").append(b"more")  # the producer
        ends = {"in": world.ends["in"], "back": store.journal("back").next_offset() if rounds[1] else 0}
        count = sum(ends[name] - at[name] for name in ends)
        start, at_now = {name: at[name] for name in ends}, ends
        at.update(at_now)
        if not count:
            return FakeQuery([[nothing_new(rounds[0], ends)]])
        store.journal("out").append_many([b"y"] * count)
        rounds[0] += 1
        return FakeQuery([[batch(rounds[0] - 1, start, ends)]])

    def back() -> FakeQuery:
        start, end = at["out"], store.journal("out").next_offset()
        at["out"] = end
        if start == end:
            return FakeQuery([[nothing_new(rounds[1], {"out": end})]])
        rounds[1] += 1
        if rounds[1] < 3:
            store.journal("back").append_many([b"z"] * (end - start))
        return FakeQuery([[batch(rounds[1] - 1, {"out": start}, {"out": end})]])

    world.script = {"out": out, "back": back}
    world.runner.drain()
    assert rounds == [3, 3]


def test_draining_reads_as_many_messages_of_a_queue_as_there_were(store: Store) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read=queue("q"), write="b", name="b")(lambda frame: frame)
    mails = store.queue("q")
    mails.create()
    mails.publish_many([b"1", b"2", b"3"])
    world = World(store, pipeline)
    number = [0]

    def one_by_one() -> FakeQuery:  # as the messages of a group come
        mails.publish(b"more")
        (message,) = mails.claim()
        message.ack()
        number[0] += 1
        end = {"queue": "q", "generation": 1, "assignment": number[0]}
        return FakeQuery([[batch(number[0] - 1, None, end, rows=1)]])

    world.script["b"] = one_by_one
    world.runner.drain()
    assert (len(world.started), world.state("b").messages) == (3, 3)


def test_what_cannot_be_read_is_left(store: Store) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read=queue("q"), write="b", name="b")(lambda frame: frame)
    store.queue("q").create()
    store.queue("q").publish(b"x")
    store.queue("q").pause()
    world = World(store, pipeline)
    at = {"queue": "q", "generation": 1, "assignment": 0}
    world.script["b"] = lambda: FakeQuery([[nothing_new(0, at)]])
    world.runner.drain()
    assert len(world.started) == 1


def test_draining_gives_up_after_a_few_tries(store: Store) -> None:
    world = World(store, chain("a", "b", "c"))
    world.script["b"] = lambda: FakeQuery(ends_with=OSError("disk"))
    world.script["c"] = reading(store, "c", "b", lambda n: None)
    world.runner.drain()
    assert [name for name, _ in world.started] == ["b"] * ONCE_TRIES + ["c"]
    assert world.state("b").phase == "failed"
    assert "OSError: disk" in world.state("b").error


# -- quarantine -----------------------------------------------------------------------------------------------------


def test_what_goes_to_the_quarantine_is_told_and_counted(store: Store) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read="a", write="b", name="b", json="id BIGINT")(lambda frame: frame)
    store.journal("a").append_many([b"1", b"half", b"half"])
    store.journal("p/b.quarantine").append(b"of an earlier run")
    world = World(store, pipeline)

    def write(count: int) -> None:
        store.journal("p/b.quarantine").append_many([b"half"] * (count - 1))

    world.script["b"] = reading(store, "b", "a", write)
    world.runner.drain()
    (told,) = (event for event in world.view.events if event.kind == "quarantined")
    assert (
        told.text == "2 messages do not match the schema, and are kept: `detent quarantine show memory: p/b.quarantine`"
    )
    assert told.fields == {"messages": 2, "journal": "p/b.quarantine"}
    assert world.state("b").as_json()["quarantined"] == 2
    assert "2" in world.state("b").report().about["quarantined"]


# -- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_told_at_the_end_what_is_done(store: Store) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read=queue("q"), write="b", name="b")(lambda frame: frame)
    mails = store.queue("q")
    mails.create()
    mails.publish_many([b"1", b"2", b"3"])
    reader = mails.reader("p/b")
    generation = reader.open().generation
    assert reader.assign(0, 2).number == 1
    world = World(store, pipeline)
    end = {"queue": "q", "generation": generation, "assignment": 1}
    world.script["b"] = lambda: FakeQuery([[batch(0, None, end, rows=2)]], runs_on=True)
    world.until = lambda: world.state("b").batches == 1
    world.runner.supervise()
    assert world.state("b").messages == 2
    assert (mails.info().in_flight, mails.info().done) == (2, 0)
    world.runner.acknowledge(sync=False)
    assert (mails.info().in_flight, mails.info().done, mails.info().available) == (0, 2, 1)
    world.runner.acknowledge(sync=True)
    assert "note" not in world.view.kinds(), "once more changes nothing"
    reader.release()
    world.runner.acknowledge(sync=False)
    assert "q was not told" in world.view.events[-1].text


# -- before ---------------------------------------------------------------------------------------------------------


def test_journals_are_created_and_said_if_nobody_writes_them(store: Store) -> None:
    pipeline = chain("a", "b", "c")
    (note,) = prepare(store, pipeline.streams)
    assert "the journal a was not there" in note
    assert store.journals() == ["a", "b", "c"]
    assert list(prepare(store, pipeline.streams)) == []


def test_queues_have_to_be_there(store: Store) -> None:
    pipeline = Pipeline("p")
    pipeline.stream(read="a", write=queue("q"), name="b")(lambda frame: frame)
    with pytest.raises(NotFound, match="detent queue create"):
        list(prepare(store, pipeline.streams))
    assert store.journals() == [], "nothing was changed"
