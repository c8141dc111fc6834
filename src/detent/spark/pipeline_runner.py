"""Running a pipeline: every stream a query of Spark, started again when it fails, stopped when that is asked for."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detent.errors import DetentError, Invalid
from detent.extras import install_command
from detent.runtime.report import Report
from detent.runtime.signals import stop_on_signals
from detent.runtime.supervisor import Supervised, Supervisor
from detent.spark.pipeline import Pipeline, chosen
from detent.spark.pipeline_prepare import prepare, settle
from detent.spark.pipeline_stream import Stream
from detent.spark.sessions import is_here, silence
from detent.spark.store_place import StorePlace, checkpoint_folder, is_local, place_of, reachable, set_manager
from detent.spark.stream_failure import END_S, Advisor, JavaWatch, StreamFailure, is_connection
from detent.spark.stream_state import (
    STOPPED,
    Event,
    Goals,
    PipelineView,
    Silent,
    StreamState,
    Summary,
)
from detent.spark.stream_task import LOOK_S, StreamContext, StreamTask, raise_if_any
from detent.store import Store
from detent.stream.told import ToldReports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from detent.spark.stream_query import RunningQuery

MEASURE_S: Final = 1.0
"""How often it is counted what waits; with a server that is a request for each stream."""

STOP_S: Final = 60.0
"""How long a batch may take to end when the pipeline is stopped, before it is interrupted and left to the next run."""


def run(
    pipeline: Pipeline,
    *,
    store: str | None = None,
    server: str | None = None,
    checkpoints: str | Path | None = None,
    once: bool = False,
    only: list[str] | None = None,
    view: PipelineView | None = None,
    signals: bool = False,
    stop: threading.Event | None = None,
    migrate: Collection[str] = (),
    conf: Mapping[str, object] | None = None,
    **session: Any,
) -> Summary:
    """Run a pipeline in this process: until SIGTERM or SIGINT (with `signals`), until `stop` is set, or with `once`
    until all that there was when it began has been read.

    `store`, `server`, `checkpoints` and `conf` go over what the pipeline says; `only` names the streams to run,
    `migrate` those that do on purpose what a stream has done which the pipeline does not have any more. Everything
    else, such as `cores`, `memory`, `master` and `quick`, is for :func:`detent.spark.session`, if none runs yet. A
    session that was there before is left running. What is wrong with the pipeline is raised before anything runs; a
    stream that fails later is in the summary.
    """
    streams = chosen(pipeline, only)
    chosen(pipeline, list(migrate) or None)  # refuses names that no stream has
    place = place_of(pipeline, store, server)
    folder = checkpoint_folder(pipeline, checkpoints, place.url)
    options = {"app": f"detent {pipeline.name}", "checkpoint_root": folder, **session}
    settings = {**pipeline.conf, **(conf or {})}
    with view or Silent() as shown, _session(place.owner_url, settings, options, shown) as spark:
        from detent.spark.sessions import store_of

        opened, url = store_of(spark, place.owner_url), place.url
        shown.tell(Event("opened", text=f"{url}, {_role(opened)}; checkpoints in {folder}",
                         fields={"store": url, "owner": opened.is_owner, "checkpoints": folder}))  # fmt: skip
        reached = reachable(opened, place, streams, is_local=is_here(spark))
        set_manager(spark, folder)
        for note in prepare(opened, streams):
            shown.tell(Event("note", text=note))
        for note in settle(opened, pipeline.streams, streams, migrate):
            shown.tell(Event("note", text=note))
        watch, advisor = JavaWatch.of_spark(), Advisor(opened, place.owner_url, folder)
        starter = _starter(spark, reached, folder, once)
        runner = PipelineRunner(opened, streams, starter, shown, stop or threading.Event(), pipeline=pipeline.name)
        runner.explain, runner.check_java = advisor.explained, watch.check
        with stop_on_signals(runner.stopping) if signals else nullcontext(), _told_of(watch):
            runner.drain() if once else runner.supervise()
        runner.acknowledge(sync=is_local(folder))
        return Summary(runner.states)


class PipelineRunner:
    """Keeps the streams of a pipeline running, all in the thread of the caller."""

    def __init__(
        self,
        store: Store,
        streams: list[Stream],
        start: Callable[[Stream, Mapping[str, int]], RunningQuery],
        view: PipelineView,
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        pipeline: str = "",
    ) -> None:
        self.stopping = stopping
        self.explain: Callable[[Stream, BaseException, StreamFailure], StreamFailure] = _as_it_is
        self.check_java: Callable[[], None] = lambda: None
        self.states = [StreamState(stream, clock) for stream in streams]
        for state in self.states:
            state.count_quarantined(store)
        self._store = store
        self._start = start
        self._view = view
        self._clock = clock
        self._supervisor = Supervisor(in_turns=True, clock=clock)
        self._tasks = self._supervisor.tasks
        self._goals: Goals | None = None
        self._stop_by: float | None = None
        self._measured = -math.inf
        self._unmeasured: set[str] = set()
        self._told = ToldReports(store, f"pipeline/{pipeline}", clock=clock) if pipeline else None

    # -- for ever -----------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Run all streams until it is time to stop, or none is left."""
        with self._supervised(once=False):
            self._supervisor.start()
            while not self.stopping.is_set() and any(one.is_alive for one in self._tasks):
                for one in self._tasks:
                    self._turn(one)
                    if self.stopping.is_set():
                        break
                self._show()
                self.stopping.wait(LOOK_S)

    # -- once ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let each stream read what there is now, upstream first, and what streams before it write meanwhile. What
        cannot be read now, such as a queue that is paused, is left."""
        self._goals = goals = Goals(self._store, self.states)
        with self._supervised(once=True):
            left, moved = list(self._tasks), True
            while left and moved and not self.stopping.is_set():
                before = sum(state_of(one).batches for one in left)
                for one in left:
                    batches = state_of(one).batches
                    self._drain(one)
                    if state_of(one).batches > batches:
                        goals.moved(state_of(one).stream)
                moved = sum(state_of(one).batches for one in left) > before
                left = [one for one in self._tasks if not state_of(one).is_over and goals.left(state_of(one))]

    def _drain(self, one: Supervised) -> None:
        one.start_turns()
        while one.is_alive and not self.stopping.is_set():
            self._turn(one)
            if one.is_alive:
                self._show()
                self.stopping.wait(LOOK_S / 4)

    # -- one stream ---------------------------------------------------------------------------------------------

    def _turn(self, one: Supervised) -> None:
        one.turn()
        task = task_of(one)
        if task.fatal is not None:
            raise task.fatal

    def _patience_s(self) -> float:
        """How long a query may take to stop: all of them together so long, when the pipeline stops."""
        return 0.0 if self._stop_by is None else max(0.0, self._stop_by - self._clock())

    def _show(self) -> None:
        self._measure()
        self._view.show(self.states)
        if self._told is not None:
            self._told.tell([state.report() for state in self.states])

    def _measure(self) -> None:
        """Count what waits, now and then. A store that does not answer is the streams' trouble, and shown there."""
        if self._clock() - self._measured < MEASURE_S:
            return
        self._measured = self._clock()
        for state in self.states:
            try:
                state.measure(self._store)
                self._unmeasured.discard(state.name)
            except DetentError as error:
                state.lag = None
                if state.name not in self._unmeasured:  # once, not every second
                    self._unmeasured.add(state.name)
                    self._view.tell(Event("note", state.name, f"how much waits cannot be told: {error}"))

    # -- the end ------------------------------------------------------------------------------------------------

    @contextmanager
    def _supervised(self, *, once: bool) -> Iterator[None]:
        """A task for each stream; in the end all are stopped, upstream first."""
        goals = self._goals
        context = StreamContext(
            self._store,
            lambda stream: self._start(stream, {} if goals is None else goals.ends(stream)),
            self._view.tell,
            self._patience_s,
            self.explain,
            self.check_java,
        )
        for state in self.states:
            self._supervisor.add(StreamTask(state, context, once=once))
        try:
            yield
        finally:
            self._stop_all()
        for one in self._tasks:
            raise_if_any(task_of(one).fatal)

    def _stop_all(self) -> None:
        self._stop_by = self._clock() + STOP_S
        if any(task_of(one).has_query for one in self._tasks):
            self._view.tell(Event("stopping", text="when the batches that run now have ended"))
        for one in self._tasks:
            one.stop()
            if not state_of(one).is_over:
                state_of(one).phase = STOPPED
        self._measured = -math.inf
        self._measure()
        for state in self.states:
            self._view.tell(Event("stopped", state.name, state.error, state.as_json()))
        self._view.show(self.states)
        if self._told is not None:
            self._told.close()

    def reports(self) -> list[Report]:
        """How each stream is doing."""
        return self._supervisor.reports()

    def acknowledge(self, *, sync: bool) -> None:
        """Tell the queues what was committed last. Otherwise they would hear of it when the next run plans its first
        batch, and count it as being worked on until then."""
        if sync and any(state.assignments for state in self.states):
            os.sync()  # Spark does not sync its log, and a queue must not know more than the log after a power cut
        for state in self.states:
            for queue, (generation, number) in state.assignments.items():
                try:
                    self._store.queue(queue).reader(state.stream.full_name, generation=generation).ack(number)
                except DetentError as error:  # the next run says the same, and does not start over it
                    self._view.tell(Event("note", state.name, f"{queue} was not told what is done: {error}"))


def task_of(one: Supervised) -> StreamTask:
    """The stream's task under supervision."""
    assert isinstance(one.task, StreamTask)
    return one.task


def state_of(one: Supervised) -> StreamState:
    """What is known of its stream."""
    return task_of(one).state


def _as_it_is(stream: Stream, error: BaseException, failure: StreamFailure) -> StreamFailure:
    del stream, error
    return failure


def _role(store: Store) -> str:
    return "owned by this process" if store.is_owner else "through its owner"


def _starter(
    spark: SparkSession, place: StorePlace, folder: str, once: bool
) -> Callable[[Stream, Mapping[str, int]], RunningQuery]:
    from detent.spark.stream_query import start_query

    def start(stream: Stream, ends: Mapping[str, int]) -> RunningQuery:
        return start_query(spark, place, f"{folder}/{stream.full_name}", stream, once=once, ends=ends)

    return start


@contextmanager
def _told_of(watch: JavaWatch) -> Iterator[None]:
    """Errors of the connection to a Java that has ended say that it has."""
    try:
        yield
    except Exception as error:
        if is_connection(error):
            watch.check()
        raise


@contextmanager
def _session(
    url: str, conf: Mapping[str, object], options: Mapping[str, Any], view: PipelineView
) -> Iterator[SparkSession]:
    """A session with the store open: one of our own, which ends with the run, or the one that is there."""
    try:
        from pyspark import SparkContext
    except ModuleNotFoundError as error:
        raise Invalid(f"pipelines need Spark: {install_command('spark')}") from error
    from detent.spark.sessions import session

    is_ours = SparkContext._active_spark_context is None
    if is_ours:
        view.tell(Event("starting", text="Spark, which takes some seconds"))
    spark = session(store=url, conf=conf, **(options if is_ours else {}))
    try:
        if is_ours and not options.get("verbose"):
            silence(spark)
        yield spark
    finally:
        if is_ours:
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stop a session, of which nothing is left when its Java has ended."""
    watch = JavaWatch.of_spark()
    try:
        spark.stop()
    except Exception as error:
        if not is_connection(error) or not watch.ended(END_S):
            raise
