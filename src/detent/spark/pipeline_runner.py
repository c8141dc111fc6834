"""Running a pipeline: every stream a query of Spark, started again when it fails, stopped when that is asked for."""

from __future__ import annotations

import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detent.errors import DetentError, Invalid
from detent.extras import install_command
from detent.runtime.backoff import Backoff
from detent.runtime.signals import stop_on_signals
from detent.spark.pipeline import Pipeline, chosen
from detent.spark.pipeline_prepare import checkpoint_folder, is_local, prepare, settle, store_url
from detent.spark.pipeline_stream import Stream
from detent.spark.sessions import silence
from detent.spark.stream_failure import END_S, Advisor, Failure, JavaWatch, failure_of, is_connection
from detent.spark.stream_state import (
    FAILED,
    IDLE,
    RUNNING,
    STARTING,
    STOPPED,
    WAITING,
    Event,
    Goals,
    Silent,
    StreamState,
    Summary,
    View,
)
from detent.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from detent.spark.stream_query import RunningQuery

LOOK_S: Final = 0.2
"""How often the streams are looked at: as often as a person can follow."""

MEASURE_S: Final = 1.0
"""How often it is counted what waits; with a server that is a request for each stream."""

BACK_OFF: Final = Backoff(1.0, 60.0)
"""How long a stream that failed waits for its next try: twice as long each time, until a batch succeeds."""

ONCE_TRIES: Final = 3
"""How often a stream is tried that should only read what there is: somebody waits for the end."""

STOP_S: Final = 60.0
"""How long a batch may take to end when the pipeline is stopped, before it is interrupted and left to the next run."""


def run(
    pipeline: Pipeline,
    *,
    store: str | None = None,
    checkpoints: str | Path | None = None,
    once: bool = False,
    only: list[str] | None = None,
    view: View | None = None,
    signals: bool = False,
    stop: threading.Event | None = None,
    migrate: Collection[str] = (),
    conf: Mapping[str, object] | None = None,
    **session: Any,
) -> Summary:
    """Run a pipeline in this process: until SIGTERM or SIGINT (with `signals`), until `stop` is set, or with `once`
    until all that there was when it began has been read.

    `store`, `checkpoints` and `conf` go over what the pipeline says; `only` names the streams to run, `migrate` those
    that do on purpose what a stream has done which the pipeline does not have any more. Everything else,
    such as `cores`, `memory` and `quick`, is for :func:`detent.spark.session`, if none runs yet. A session that was
    there before is left running. What is wrong with the pipeline is raised before anything runs; a stream that fails
    later is in the summary.
    """
    streams = chosen(pipeline, only)
    chosen(pipeline, list(migrate) or None)  # refuses names that no stream has
    url = store_url(pipeline, store)
    folder = checkpoint_folder(pipeline, checkpoints, url)
    options = {"app": f"detent {pipeline.name}", "checkpoint_root": folder, **session}
    settings = {**pipeline.conf, **(conf or {})}
    with view or Silent() as shown, _session(url, settings, options, shown) as spark:
        from detent.spark.sessions import store_of

        opened = store_of(spark, url)
        shown.tell(Event("opened", text=f"{url}, {_role(opened)}; checkpoints in {folder}",
                         fields={"store": url, "owner": opened.is_owner, "checkpoints": folder}))  # fmt: skip
        for note in prepare(opened, streams):
            shown.tell(Event("note", text=note))
        for note in settle(opened, pipeline.streams, streams, migrate):
            shown.tell(Event("note", text=note))
        watch, advisor = JavaWatch.of_spark(), Advisor(opened, url, folder)
        runner = Runner(opened, streams, _starter(spark, url, folder, once), shown, stop or threading.Event())
        runner.explain, runner.check_java = advisor.explained, watch.check
        with stop_on_signals(runner.stopping) if signals else nullcontext(), _told_of(watch):
            runner.drain() if once else runner.supervise()
        runner.acknowledge(sync=is_local(folder))
        return Summary(runner.states)


class Runner:
    """Keeps the streams of a pipeline running."""

    def __init__(
        self,
        store: Store,
        streams: list[Stream],
        start: Callable[[Stream, Mapping[str, int]], RunningQuery],
        view: View,
        stopping: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stopping = stopping
        self.explain: Callable[[Stream, BaseException, Failure], Failure] = _as_it_is
        self.check_java: Callable[[], None] = lambda: None
        self.states = [StreamState(stream, clock) for stream in streams]
        for state in self.states:
            state.count_quarantined(store)
        self._store = store
        self._start = start
        self._view = view
        self._clock = clock
        self._queries: dict[str, RunningQuery] = {}
        self._tries = math.inf
        self._quarantined: dict[str, int] = {}
        self._goals: Goals | None = None
        self._measured = -math.inf
        self._unmeasured: set[str] = set()

    # -- for ever -----------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Run all streams until it is time to stop, or none is left."""
        try:
            while not self.stopping.is_set() and not all(state.is_over for state in self.states):
                for state in self.states:
                    self._look(state)
                    if self.stopping.is_set():
                        break
                self._measure()
                self._view.show(self.states)
                self.stopping.wait(LOOK_S)
        finally:
            self._stop_all()

    def _look(self, state: StreamState) -> None:
        if state.name in self._queries:
            self._report(state)
        elif not state.is_over and self._clock() >= state.retry_at:
            self._begin(state)

    # -- once ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let each stream read what there is now, upstream first, and what streams before it write meanwhile. What
        cannot be read now, such as a queue that is paused, is left."""
        self._tries = ONCE_TRIES
        self._goals = goals = Goals(self._store, self.states)
        try:
            left, moved = list(self.states), True
            while left and moved and not self.stopping.is_set():
                before = sum(state.batches for state in left)
                for state in left:
                    state.phase, batches = STARTING, state.batches
                    self._drain(state)
                    if state.batches > batches:
                        goals.moved(state.stream)
                moved = sum(state.batches for state in left) > before
                left = [state for state in self.states if not state.is_over and goals.left(state)]
        finally:
            self._stop_all()

    def _drain(self, state: StreamState) -> None:
        while not state.is_over and not self.stopping.is_set():
            self._look(state)
            if state.phase == IDLE:
                return
            self._measure()
            self._view.show(self.states)
            self.stopping.wait(LOOK_S / 4)

    # -- one stream ---------------------------------------------------------------------------------------------

    def _begin(self, state: StreamState) -> None:
        state.phase = STARTING
        try:
            ends = {} if self._goals is None else self._goals.ends(state.stream)
            self._queries[state.name] = self._start(state.stream, ends)
        except Exception as error:  # noqa: BLE001  the user's function runs in here
            if is_connection(error):
                self.check_java()
            self._failed(state, error, starting=True)
            return
        state.phase = RUNNING
        self._view.tell(Event("started", state.name))

    def _report(self, state: StreamState) -> None:
        """Take in what a query has done, and whether it has ended."""
        query = self._queries[state.name]
        is_active = query.is_active  # first: what it reports afterwards is all that it did
        for progress in query.progress():
            batch = state.absorb(progress)
            if batch is not None:
                fields = {"batch": batch.number, "messages": batch.messages, "batch_ms": batch.milliseconds}
                self._view.tell(Event("progress", state.name, fields={**fields, **state.as_progress(self._store.url)}))
                self._tell_of_quarantine(state)
        if is_active:
            return
        del self._queries[state.name]
        error = query.error()
        if error is not None:
            self._failed(state, error, starting=False)
        else:
            state.phase = IDLE

    def _tell_of_quarantine(self, state: StreamState) -> None:
        state.count_quarantined(self._store)
        more, quarantine = state.quarantined - self._quarantined.get(state.name, 0), state.stream.quarantine
        self._quarantined[state.name] = state.quarantined
        if more and quarantine is not None:
            command = shlex.join(("detent", "quarantine", "show", self._store.url, quarantine.name))
            text = f"{more:,} messages do not match the schema, and are kept: `{command}`"
            self._view.tell(Event("quarantined", state.name, text, {"messages": more, "journal": quarantine.name}))

    def _failed(self, state: StreamState, error: BaseException, *, starting: bool) -> None:
        failure = self.explain(state.stream, error, failure_of(error, starting=starting))
        state.failures += 1
        state.in_a_row += 1
        if failure.is_final or state.in_a_row >= self._tries:
            self._give_up(state, failure.reason)
            return
        pause = BACK_OFF.pause_s(state.in_a_row)
        state.phase, state.error, state.retry_at = WAITING, failure.reason, self._clock() + pause
        self._view.tell(Event("failed", state.name, f"{failure.reason}; trying again in {pause:.0f} s",
                              {"error": failure.reason, "retry_s": pause}))  # fmt: skip

    def _give_up(self, state: StreamState, reason: str) -> None:
        state.phase, state.error = FAILED, reason
        self._view.tell(Event("gave_up", state.name, f"{reason}; this stream is not tried again", {"error": reason}))

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

    def _stop_all(self) -> None:
        deadline = self._clock() + STOP_S
        if self._queries:
            self._view.tell(Event("stopping", text="when the batches that run now have ended"))
        for state in self.states:
            query = self._queries.get(state.name)
            if query is not None:
                query.stop(max(0.0, deadline - self._clock()))
                self._report(state)
            if not state.is_over:
                state.phase = STOPPED
        self._measured = -math.inf
        self._measure()
        for state in self.states:
            self._view.tell(Event("stopped", state.name, state.error, state.as_json()))
        self._view.show(self.states)

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


def _as_it_is(stream: Stream, error: BaseException, failure: Failure) -> Failure:
    del stream, error
    return failure


def _role(store: Store) -> str:
    return "owned by this process" if store.is_owner else "through its owner"


def _starter(
    spark: SparkSession, url: str, folder: str, once: bool
) -> Callable[[Stream, Mapping[str, int]], RunningQuery]:
    from detent.spark.stream_query import start_query

    def start(stream: Stream, ends: Mapping[str, int]) -> RunningQuery:
        return start_query(spark, url, f"{folder}/{stream.full_name}", stream, once=once, ends=ends)

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
def _session(url: str, conf: Mapping[str, object], options: Mapping[str, Any], view: View) -> Iterator[SparkSession]:
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
