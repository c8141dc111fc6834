"""`Ingest`: a pipeline from a queue of announcements into a table, run until it is told to stop or all is done."""

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
from detent.ingest.committer import Committer, committer_of
from detent.ingest.config import IngestConfig, Transform
from detent.ingest.coordinator import QueueCoordinator
from detent.ingest.job import Job, SparkEnded, find_transform, has_ended
from detent.ingest.objects import Objects
from detent.ingest.progress import Counters, Progress, log
from detent.ingest.shared_state import QueueSharedState
from detent.ingest.staging import sweep_staging
from detent.runtime.backoff import Backoff, Failures
from detent.runtime.signals import stop_on_signals
from detent.spark.foreground import silence
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
    :class:`Progress` now and then.
    """

    def __init__(
        self,
        config: IngestConfig,
        *,
        queue: MessageQueue | None = None,
        spark: SparkSession | None = None,
        session: Mapping[str, Any] | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        self._config = config
        self._given_queue = queue
        self._given_spark = spark
        self._session_options = dict(session or {})
        self._watch = watch or (lambda _progress: None)
        self._stopping = threading.Event()

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
            return _Run(self._config, worker, engine, retention_s, limits, self._watch).run()

    def _session(self, closing: ExitStack) -> SparkSession | None:
        """A session of our own; None if whoever told us to stop told the programs, too, that were about to start it."""
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
        committer: Committer,
        spark: SparkSession,
        transform: Transform | None,
        closing: ExitStack,
    ) -> QueueCoordinator:
        config, shared = self._config, committer.state
        objects = Objects(config.identity, config.s3_options, config.allow)
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


class _Run:
    """One run: the threads, and when they end."""

    def __init__(
        self,
        config: IngestConfig,
        worker: QueueCoordinator,
        engine: Engine,
        retention_s: float | None,
        until: _Until,
        watch: Callable[[Progress], None],
    ) -> None:
        self._config = config
        self._worker = worker
        self._engine = engine
        self._retention_s = retention_s
        self._stopping = until.stopping
        self._once = until.once
        self._watch = watch
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._quiet_polls = 0
        self._has_received = False
        """The queue answered once: what is not there at the start is wrong, and what goes away later may come back."""
        self._others: dict[str, int] = {}
        self._has_all = False
        """The queue had less to give than it was asked for: a batch need not wait for more."""
        self._began: float | None = None
        """When the first batch did: what was waited before says nothing about how fast rows come."""
        self._due = {"adopt": 0.0, "prune": 0.0, "sweep": 0.0}
        self._backfill_prefix, self._backfill_match = until.backfill, until.match
        self._listing = None if until.backfill is None else self._list()

    def _is_due(self, what: str, every_s: float) -> bool:
        """Whether something is to be done again."""
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + every_s
        return True

    def run(self) -> Counters:
        threads = [
            threading.Thread(target=self._guarded, args=(part,), name=f"ingest-{part.__name__}", daemon=True)
            for part in (self._receive, self._keep)
        ]
        for thread in threads:
            thread.start()
        is_death = False
        try:
            self._persistently(self._batch, lambda: self._stopping.is_set() or self._is_done())
        except SparkEnded as error:
            if not self._stopping.is_set():
                self._failure, is_death = self._failure or error, True
            else:  # whoever told us to stop killed Java, or has a Java that is not of our making
                log.warning("stopped before the batch was committed; it will be done the next time")
        except BaseException as error:  # noqa: BLE001  raised again when the threads have ended
            self._failure = self._failure or error
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            self._let_go(is_death=is_death)
        if self._failure is not None:
            raise self._failure
        self._watch(self._progress())
        return self._worker.counters

    def _let_go(self, *, is_death: bool) -> None:
        try:
            self._worker.stop(is_death=is_death)
        except DetentError as error:  # they will be taken when the grace time is over
            log.warning("what was not begun could not be given back: %s", error)

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # noqa: BLE001  raised again by the thread that waits for this one
            self._failure = self._failure or error
            self._ended.set()

    def _persistently(self, step: Callable[[], bool], is_over: Callable[[], bool]) -> None:
        """Take steps until it is over; wait where there was nothing to do, and longer where something is not there."""
        failures = Failures(BACK_OFF)
        while not self._ended.is_set():
            try:
                if is_over():
                    return
                did = step()
                failures.worked()
            except (Unavailable, Busy) as error:
                wait_s = failures.failed()
                if failures.in_a_row > PASSING_MAX:
                    raise
                log.warning("%s; trying again in %g s (%d of %d)", error, wait_s, failures.in_a_row, PASSING_MAX)
                self._ended.wait(wait_s)
                continue
            if not did:
                self._ended.wait(IDLE_S)

    # -- batches -----------------------------------------------------------------------------------------------------

    def _batch(self) -> bool:
        worker = self._worker
        files = worker.next_batch(is_draining=self._once and self._has_all)
        if files:
            self._began = self._began or time.monotonic()
            worker.run_batch(files)
        elif self._is_due("sweep", SWEEP_LOOK_S) and worker.shared.take_turn("swept_at", SWEEP_EVERY_MS):
            age_s = self._config.orphan_age_s
            worker.counters.swept += worker.committer.sweep(age_s, self._config.window_s)
            sweep_staging(self._config.staging_folder, age_s)
        self._watch(self._progress())
        return bool(files)

    def _is_done(self) -> bool:
        """Whether nothing is left to do, for a run that is to end then."""
        if not self._once or self._quiet_polls < QUIET_POLLS or self._listing is not None:
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

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        self._persistently(self._receive_some, lambda: False)

    def _receive_some(self) -> bool:
        worker = self._worker
        if self._stopping.is_set() or not worker.has_room():
            return False
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
        self._has_all = came < worker.receive_limit and self._listing is None
        self._quiet_polls = 0 if came else self._quiet_polls + 1
        return True

    def _list(self) -> Iterator[Announced]:
        assert self._backfill_prefix is not None
        return self._worker.objects.list(self._backfill_prefix, self._backfill_match)

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

    # -- keeping -----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        tick_s = min(1.0, self._worker.schedule.margin_s / 2, self._config.grace_s / 12)
        failures = 0
        while not self._ended.wait(tick_s):
            try:
                self._worker.keep()
                failures = 0
            except (Unavailable, Busy) as error:
                failures += 1
                if failures == 1:
                    log.warning("what is held could not be extended: %s", error)

    def _progress(self) -> Progress:
        files = self._worker.local.files()
        ready = sum(file.stage == "ready" for file in files)
        oldest = min((file.since for file in files), default=None)
        now = time.monotonic()
        lag_s = 0.0 if oldest is None else now - oldest
        seconds = 0.0 if self._began is None else now - self._began
        return Progress(self._worker.counters, ready, len(files) - ready, lag_s, seconds)
