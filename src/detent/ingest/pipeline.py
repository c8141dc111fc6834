"""`Ingest`: a pipeline from a queue of announcements into a table, run until it is told to stop or all is done.

Three tasks are at work: batches run in the caller's thread, as Spark sessions belong to threads; messages are received,
and what was received is kept, in a thread each.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from detent.durations import milliseconds
from detent.errors import Busy, DetentError, NotFound, Unavailable
from detent.ingest import forgetting, metastore, ownership
from detent.ingest.announcements import Announced
from detent.ingest.committer import TableCommitter
from detent.ingest.committers import committer_of
from detent.ingest.config import IngestConfig, Transform
from detent.ingest.coordinator import QueueCoordinator
from detent.ingest.job import Job, SparkEnded, find_transform, has_ended
from detent.ingest.objects import FileObjects
from detent.ingest.progress import Counters, IngestProgress, log
from detent.ingest.shared_state import QueueSharedState
from detent.ingest.staging import sweep_staging
from detent.runtime.backoff import Backoff
from detent.runtime.report import Report, State
from detent.runtime.signals import stop_on_signals
from detent.runtime.supervisor import LOOK_S, Supervised, Supervisor
from detent.runtime.target import refuse_while_loading
from detent.runtime.task import AGAIN, DONE, Next, Restart, Task
from detent.spark.sessions import silence
from detent.transports.checked import CheckedQueue
from detent.transports.contract import MessageQueue
from detent.transports.urls import open_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy import Engine

POLL_S: Final = 1.0
"""How long the receiver waits for a message before it looks whether it is to stop."""

IDLE_S: Final = 0.02
BACK_OFF: Final = Backoff(1.0, 30.0)
PASSING_MAX: Final = 20
"""How often in a row a part may find something unavailable before the pipeline gives up."""

QUIET_POLLS: Final = 2
"""Empty answers of the queue after which it counts as drained: one alone may come of a queue on many machines."""

ADOPT_EVERY_S: Final = 5.0
ADOPT_MAX: Final = 1_000
BACKFILL_FILES: Final = 1_000
SWEEP_EVERY_MS: Final = 3_600_000
SWEEP_LOOK_S: Final = 60.0


class Ingest:
    """One pipeline of an ingest. Any number of them, in any number of processes, share its queue, state and table.

    >>> config = IngestConfig(name="orders", queue="sqs:new-orders", table="./orders", committer="delta")
    >>> counters = Ingest(config).run(once=True)

    `queue` is a queue of your own instead of the one that the configuration names, `spark` a session that runs already
    (`session` are options of :func:`detent.spark.session` for one that is started here), and `watch` is called with the
    :class:`IngestProgress` now and then.
    """

    def __init__(
        self,
        config: IngestConfig,
        *,
        queue: MessageQueue | None = None,
        spark: SparkSession | None = None,
        session: Mapping[str, Any] | None = None,
        watch: Callable[[IngestProgress], None] | None = None,
    ) -> None:
        self._config = config
        self._given_queue = queue
        self._given_spark = spark
        self._session_options = dict(session or {})
        self._watch = watch or (lambda _progress: None)
        self._stopping = threading.Event()
        self._run: _PipelineRun | None = None

    def stop(self) -> None:
        """Let the batch that runs be committed, and end. Can be called from anywhere."""
        self._stopping.set()

    def run(
        self, *, once: bool = False, backfill: str | None = None, match: str | None = None, signals: bool = False
    ) -> Counters:
        """Ingest until :meth:`stop`, or with `once` until nothing is left; what was done.

        `backfill` names a folder, or a prefix such as ``s3://bucket/orders/``, whose files are ingested as well, as far
        as they were not, with `match` only those whose names match a pattern such as ``*.json``. With `signals`,
        SIGTERM and Ctrl-C call `stop`.
        """
        refuse_while_loading("Ingest.run()")
        with ExitStack() as closing:
            self._config.check_place()
            load_transform = find_transform(self._config)
            engine = metastore.connect(self._config.state_url)
            closing.callback(engine.dispose)
            epoch = ownership.register(engine, self._config)
            queue = _checked(self._given_queue) or open_queue(self._config.queue_url)
            if self._given_queue is None:
                closing.callback(queue.close)
            retention_s = _retention_s(queue)
            forgetting.check_window(self._config, queue, retention_s)
            grace_ms = round(self._config.grace_s * 1000)
            shared = QueueSharedState(engine, self._config.name, uuid.uuid4().hex, grace_ms, epoch)
            committer = committer_of(self._config, shared)
            committer.require_owned()  # before Spark starts, which takes long
            if signals:
                closing.enter_context(stop_on_signals(self._stopping))
            spark = self._given_spark or self._session(closing)
            if spark is None:
                return Counters()
            if signals:
                closing.enter_context(stop_on_signals(self._stopping))  # again: Spark has its own idea of Ctrl-C
            worker = self._worker(queue, committer, spark, load_transform(spark), closing)
            limits = _Until(self._stopping, once, backfill, match)
            self._run = _PipelineRun(self._config, worker, engine, retention_s, limits, self._watch)
            return self._run.run()

    def report(self) -> Report:
        """How it is doing. For any thread."""
        return Report("ingest", self._config.name, State.STARTING) if self._run is None else self._run.report()

    def _session(self, closing: ExitStack) -> SparkSession | None:
        """A session of our own; None if the programs that were about to start it were told to stop, too."""
        from pyspark.errors import PySparkRuntimeError

        from detent.spark import session

        options = {"app": f"detent ingest {self._config.name}", "conf": dict(self._config.spark)}
        try:
            spark = session(**{**options, **self._session_options})
        except PySparkRuntimeError:
            if self._stopping.is_set():
                return None
            raise
        closing.callback(lambda: None if has_ended(spark) else spark.stop())
        if not self._session_options.get("verbose"):
            silence(spark)
        return spark

    def _worker(
        self,
        queue: MessageQueue,
        committer: TableCommitter,
        spark: SparkSession,
        transform: Transform | None,
        closing: ExitStack,
    ) -> QueueCoordinator:
        config, shared = self._config, committer.state
        objects = FileObjects(config.identity, config.s3_options, config.allow)
        closing.callback(objects.close)
        job = Job(spark, config, shared.engine, objects, committer, transform)
        closing.callback(job.close)
        return QueueCoordinator(config, queue, shared, committer, objects, job)


def _checked(queue: MessageQueue | None) -> MessageQueue | None:
    """A queue of the user's, whose answers are checked from now on."""
    return queue if queue is None or isinstance(queue, CheckedQueue) else CheckedQueue(queue)


def _retention_s(queue: MessageQueue) -> float | None:
    """How long the queue keeps a message; None as well if it is not there and the first receive makes it."""
    try:
        return queue.retention_s()
    except NotFound:
        if not getattr(queue, "receive_creates", False):
            raise
        return None


class _Until(NamedTuple):
    """What ends a run, and what is to be done before."""

    stopping: threading.Event
    once: bool
    backfill: str | None
    match: str | None


class _PipelinePart(Task):
    """A part of a pipeline. What is not there now may come back; any other error ends the pipeline."""

    kind = "ingest"

    def __init__(self, name: str, config: IngestConfig, worker: QueueCoordinator) -> None:
        super().__init__(name)
        self.restart = Restart(BACK_OFF, tries_max=PASSING_MAX)
        self._config = config
        self._worker = worker
        self._due: dict[str, float] = {}

    def is_hopeless(self, error: Exception) -> bool:
        return not isinstance(error, Unavailable | Busy)

    def failed(self, error: Exception, pause_s: float) -> None:
        log.warning("%s; trying again in %g s", error, pause_s)

    def gave_up(self, error: Exception) -> None:
        """The caller of `run` gets it, unless it was told to stop."""

    def _is_due(self, what: str, every_s: float) -> bool:
        """Whether something is to be done again."""
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True


class _ReceivingFiles(_PipelinePart):
    """Receives messages, and asks for files that no message announces: of a backfill, and left behind by others."""

    def __init__(
        self, config: IngestConfig, worker: QueueCoordinator, engine: Engine, retention_s: float | None, until: _Until
    ) -> None:
        super().__init__("ingest-receive", config, worker)
        self._engine = engine
        self._retention_s = retention_s
        self._until = until
        self._quiet_polls = 0
        self._has_received = False
        """The queue answered once: what is not there at the start is wrong, and what goes away later may come back."""
        self._listing = None if until.backfill is None else self._list()
        self.has_all = False
        """The queue had less to give than it was asked for: a batch need not wait for more."""

    @property
    def is_drained(self) -> bool:
        """Whether there is nothing more to receive, as far as one can see."""
        return self._quiet_polls >= QUIET_POLLS and self._listing is None

    def step(self) -> Next:
        worker = self._worker
        if self._until.stopping.is_set() or not worker.has_room():
            return IDLE_S
        self._prune()
        if self._listing is not None:
            self._backfill(self._listing)
        if self._is_due("adopt", min(ADOPT_EVERY_S, self._config.grace_s)):
            worker.adopt(ADOPT_MAX)
        try:
            came = worker.poll(0.0 if self._listing is not None else POLL_S)
        except Unavailable as error:
            if self._has_received:
                raise
            raise DetentError(f"there is nothing to receive from: {error}") from error
        self._has_received = True
        self.has_all = came < worker.receive_limit and self._listing is None
        self._quiet_polls = 0 if came else self._quiet_polls + 1
        return AGAIN

    def _list(self) -> Iterator[Announced]:
        assert self._until.backfill is not None
        return self._worker.objects.list(self._until.backfill, self._until.match)

    def _backfill(self, listing: Iterator[Announced]) -> None:
        try:
            files = list(islice(listing, BACKFILL_FILES))
        except Unavailable:
            self._listing = self._list()  # from the start: what is known costs a question
            raise
        if not files:
            self._listing = None
            return
        self._listing = chain(files, listing)  # until they were asked for
        self._worker.announce(files, lambda: forgetting.forgotten_to(self._engine, self._config.name))
        self._listing = listing

    def _prune(self) -> None:
        interval_ms = milliseconds(self._config.prune_interval)
        if self._is_due("prune", interval_ms / 1000) and self._worker.shared.take_turn("pruned_at", interval_ms):
            self._worker.counters.pruned += forgetting.prune(self._engine, self._config, self._retention_s)


class _KeepingFiles(_PipelinePart):
    """Keeps what was received from other pipelines, and says that this one is alive."""

    def __init__(self, config: IngestConfig, worker: QueueCoordinator) -> None:
        super().__init__("ingest-keep", config, worker)
        self._tick_s = min(1.0, worker.schedule.margin_s / 2, config.grace_s / 12)
        self._is_late = False

    def step(self) -> Next:
        try:
            self._worker.keep()
        except (Unavailable, Busy) as error:
            if not self._is_late:
                log.warning("what is held could not be extended: %s", error)
            self._is_late = True
        else:
            self._is_late = False
        return self._tick_s


class _BatchingFiles(_PipelinePart):
    """Brings what was received into the table, a batch after the other, and sweeps when there is none."""

    def __init__(
        self,
        config: IngestConfig,
        worker: QueueCoordinator,
        receiving: _ReceivingFiles,
        until: _Until,
        watch: Callable[[IngestProgress], None],
    ) -> None:
        super().__init__(config.name, config, worker)
        self._receiving = receiving
        self._until = until
        self._watch = watch
        self._others: dict[str, int] = {}
        self._began: float | None = None
        """When the first batch did: what was waited before says nothing about how fast rows come."""

    def step(self) -> Next:
        if self._until.stopping.is_set() or self._is_done():
            return DONE
        worker = self._worker
        files = worker.next_batch(is_draining=self._until.once and self._receiving.has_all)
        if files:
            self._began = self._began or time.monotonic()
            worker.run_batch(files)
        elif self._is_due("resolve", min(ADOPT_EVERY_S, self._config.grace_s)):
            worker.committer.resolve(grace_s=self._config.grace_s)
        elif self._is_due("sweep", SWEEP_LOOK_S) and worker.shared.take_turn("swept_at", SWEEP_EVERY_MS):
            age_s = self._config.orphan_age_s
            worker.counters.swept += worker.committer.sweep(age_s, self._config.window_s)
            sweep_staging(self._config.staging_folder, age_s)
        self._watch(self.progress())
        return AGAIN if files else IDLE_S

    def _is_done(self) -> bool:
        """Whether nothing is left to do, for a run that is to end then."""
        if not self._until.once or not self._receiving.is_drained:
            return False
        return not len(self._worker.local) and not self._worker.shared.unfinished() and not self._must_wait()

    def _must_wait(self) -> bool:
        """Whether other pipelines have files, and may be dead. One that says that it is alive will do its files; those
        of one that does not are ours when the grace time is over."""
        now = self._worker.shared.others()
        if not self._others and now:
            log.warning("other pipelines have files; waiting up to %g s to see that they live", self._config.grace_s)
        self._others = {token: self._others.get(token, at) for token, at in now.items()}
        return any(at <= self._others[token] for token, at in now.items())

    def progress(self) -> IngestProgress:
        """How far the pipeline is."""
        files = self._worker.local.files()
        ready = sum(file.stage == "ready" for file in files)
        oldest = min((file.since for file in files), default=None)
        now = time.monotonic()
        lag_s = 0.0 if oldest is None else now - oldest
        seconds = 0.0 if self._began is None else now - self._began
        return IngestProgress(self._worker.counters, ready, len(files) - ready, lag_s, seconds)

    def report(self, so_far: Report) -> Report:
        return self.progress().told(so_far)


class _PipelineRun:
    """One run: the tasks of a pipeline, and when they end."""

    def __init__(
        self,
        config: IngestConfig,
        worker: QueueCoordinator,
        engine: Engine,
        retention_s: float | None,
        until: _Until,
        watch: Callable[[IngestProgress], None],
    ) -> None:
        self._worker = worker
        self._stopping = until.stopping
        self._watch = watch
        receiving = _ReceivingFiles(config, worker, engine, retention_s, until)
        self._batching = _BatchingFiles(config, worker, receiving, until, watch)
        self._batches = Supervised(self._batching)
        self._others = Supervisor()
        self._others.add(_KeepingFiles(config, worker))
        self._others.add(receiving)

    def report(self) -> Report:
        """How the pipeline is doing."""
        return self._batches.report()

    def run(self) -> Counters:
        """Work until all is done, or the pipeline is told to stop."""
        self._batches.start_turns()
        try:
            self._others.start()
            while self._others.failure is None and (pause_s := self._batches.turn()) is not None:
                time.sleep(min(pause_s, LOOK_S))
        finally:
            self._batches.stop()
            self._others.stop()
            self._let_go()
        self._check_failure()
        self._watch(self._batching.progress())
        return self._worker.counters

    def _check_failure(self) -> None:
        """Raise what ended a task."""
        failure = self._batches.failure
        if isinstance(failure, SparkEnded) and self._stopping.is_set():
            # What told us to stop ended Java, too, or Java was not started by us.
            log.warning("stopped before the batch was committed; it will be done the next time")
            failure = None
        failure = failure or self._others.failure
        if failure is not None:
            ends_programs = failure.__cause__ is not None and not isinstance(failure.__cause__, Exception)
            raise failure.__cause__ if ends_programs and failure.__cause__ else failure

    def _let_go(self) -> None:
        is_death = isinstance(self._batches.failure, SparkEnded) and not self._stopping.is_set()
        try:
            self._worker.stop(is_death=is_death)
        except DetentError as error:  # they will be taken when the grace time is over
            log.warning("what was not begun could not be given back: %s", error)
