"""One stream under supervision: a task whose life is a query of Spark."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from detent.errors import Unavailable
from detent.runtime.backoff import Backoff
from detent.runtime.report import Report
from detent.runtime.task import ANEW, DONE, Next, Restart, Task
from detent.spark.pipeline_stream import Stream
from detent.spark.stream_failure import StreamFailure, failure_of, is_connection
from detent.spark.stream_state import FAILED, IDLE, RUNNING, STARTING, WAITING, Event, StreamState
from detent.store import Store

if TYPE_CHECKING:
    from detent.spark.stream_query import RunningQuery

LOOK_S: Final = 0.2
"""How often the streams are looked at: as often as a person can follow."""

BACK_OFF: Final = Backoff(1.0, 60.0)
"""How long a stream that failed waits for its next try: twice as long each time, until a batch succeeds."""

ONCE_TRIES: Final = 3
"""How often a stream is tried that should only read what there is: the caller waits for the end."""


@dataclass
class StreamContext:
    """What the streams of a pipeline share: how to start a query of one, the store, and where events go."""

    store: Store
    start: Callable[[Stream], RunningQuery]
    tell: Callable[[Event], None]
    patience_s: Callable[[], float]
    explain: Callable[[Stream, BaseException, StreamFailure], StreamFailure]
    check_java: Callable[[], None]


class StreamFailedError(Exception):
    """A life of a stream has ended so."""

    def __init__(self, failure: StreamFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class StreamTask(Task):
    """One stream: a life is a query of Spark, a step is a look at it. `once` ends it when all has been read."""

    kind = "stream"

    def __init__(self, state: StreamState, context: StreamContext, *, once: bool) -> None:
        super().__init__(state.name)
        self.restart = Restart(BACK_OFF, steady_s=math.inf, tries_max=ONCE_TRIES - 1 if once else None)
        self.state = state
        self.fatal: Exception | None = None
        """The connection to Java broke: the end of the whole run."""
        self._context = context
        self._once = once
        self._look_s = LOOK_S / 4 if once else LOOK_S
        self._query: RunningQuery | None = None
        self._is_new = False
        self._quarantined = 0

    @property
    def has_query(self) -> bool:
        """Whether its query runs."""
        return self._query is not None

    def open(self) -> None:
        self.state.phase = STARTING
        with self._explained(starting=True):
            self._query = self._context.start(self.state.stream)
        self.state.phase, self._is_new = RUNNING, True
        self._context.tell(Event("started", self.name))

    def step(self) -> Next:
        if self._query is None:
            return ANEW
        if self._is_new:  # it has nothing to say yet
            self._is_new = False
            return self._look_s
        with self._explained():
            is_active = self._query.is_active  # first: what it reports afterwards is all that it did
            self._absorb(self._query)
            if not is_active:
                query, self._query = self._query, None
                raise_if_any(query.error())
                self.state.phase = IDLE
        return DONE if self._once and not is_active else self._look_s

    def close(self) -> None:
        """A query that runs is to stop. A batch has time to end then, but not after a failure."""
        query, self._query = self._query, None
        if query is None:
            return
        with self._explained():
            query.stop(self._context.patience_s())
            self._absorb(query)
            raise_if_any(query.error())

    def report(self, so_far: Report) -> Report:
        del so_far
        return self.state.report()

    # -- what a query has done ------------------------------------------------------------------------------------

    def _absorb(self, query: RunningQuery) -> None:
        for progress in query.progress():
            batch = self.state.absorb(progress)
            if batch is None:
                continue
            self.worked()
            fields = {"batch": batch.number, "messages": batch.messages, "batch_ms": batch.milliseconds}
            where = self.state.as_progress(self._context.store.url)
            self._context.tell(Event("progress", self.name, fields={**fields, **where}))
            self._tell_of_quarantine()

    def _tell_of_quarantine(self) -> None:
        store, quarantine = self._context.store, self.state.stream.quarantine
        self.state.count_quarantined(store)
        more, self._quarantined = self.state.quarantined - self._quarantined, self.state.quarantined
        if more and quarantine is not None:
            command = shlex.join(("detent", "quarantine", "show", store.url, quarantine.name))
            text = f"{more:,} messages do not match the schema, and are kept: `{command}`"
            self._context.tell(Event("quarantined", self.name, text, {"messages": more, "journal": quarantine.name}))

    # -- failures -----------------------------------------------------------------------------------------------

    @contextmanager
    def _explained(self, *, starting: bool = False) -> Iterator[None]:
        """Errors say in our words what became of the stream."""
        try:
            yield
        except Exception as error:
            if is_connection(error):
                self._look_at_java(error, starting=starting)
            failure = self._context.explain(self.state.stream, error, failure_of(error, starting=starting))
            self.state.failures += 1
            raise StreamFailedError(failure) from error

    def _look_at_java(self, error: Exception, *, starting: bool) -> None:
        """Without Java no stream goes on. A start may fail for less: it is tried again if Java still runs."""
        try:
            self._context.check_java()
        except Unavailable as ended:
            self.fatal = ended
        else:
            self.fatal = None if starting else error
        if self.fatal is not None:
            raise StreamFailedError(StreamFailure(str(self.fatal), True)) from error

    def is_hopeless(self, error: Exception) -> bool:
        return isinstance(error, StreamFailedError) and error.failure.is_final

    def describe(self, error: Exception) -> str:
        return error.failure.reason if isinstance(error, StreamFailedError) else super().describe(error)

    def failed(self, error: Exception, pause_s: float) -> None:
        reason = self.describe(error)
        self.state.phase, self.state.error = WAITING, reason
        self._context.tell(Event("failed", self.name, f"{reason}; trying again in {pause_s:.0f} s",
                               {"error": reason, "retry_s": pause_s}))  # fmt: skip

    def gave_up(self, error: Exception) -> None:
        reason = self.describe(error)
        self.state.phase, self.state.error = FAILED, reason
        if self.fatal is None:
            text = f"{reason}; this stream is not tried again"
            self._context.tell(Event("gave_up", self.name, text, {"error": reason}))


def raise_if_any(error: BaseException | None) -> None:
    if error is not None:
        raise error
