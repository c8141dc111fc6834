"""What is known of a running stream: how far it is, how fast, how far behind, and what went wrong."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from detent.runtime.report import Report, State, Trouble
from detent.spark.pipeline_stream import JournalEnd, QueueEnd, Stream
from detent.spark.ranges import without_life
from detent.store import Store

RATE_S: Final = 10.0
"""The rate is that of so many seconds: long enough for slow batches, short enough to see a change."""

STARTING, RUNNING, IDLE, WAITING, FAILED, STOPPED = "starting", "running", "idle", "waiting", "failed", "stopped"
"""The phases: idle is a stream that has read what there was, waiting is for the next try after a failure; failed and
stopped are final."""


_STATES: Final = {
    STARTING: State.STARTING, RUNNING: State.RUNNING, IDLE: State.RUNNING, WAITING: State.FAILED,
    FAILED: State.FAILED, STOPPED: State.STOPPED,
}  # fmt: skip
"""What a phase is among the states of tasks."""


class ReadUpTo(NamedTuple):
    """How far a queue was read: the reader's generation, and the number of the last assignment."""

    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class DoneBatch:
    """A batch that a stream has committed."""

    number: int
    messages: int
    milliseconds: int


@dataclass
class StreamState:
    """One stream. Everything in it is about this run, except the offsets."""

    stream: Stream
    clock: Callable[[], float]
    phase: str = STARTING
    batch: int | None = None
    batches: int = 0
    messages: int = 0
    batch_ms: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    assignments: dict[str, ReadUpTo] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    is_read: bool = False
    lag: int | None = None
    quarantined: int = 0
    failures: int = 0
    error: str = ""
    _quarantine_at: int | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.stream.name

    @property
    def is_over(self) -> bool:
        """Whether nothing more is tried."""
        return self.phase in (FAILED, STOPPED)

    @property
    def rate(self) -> float:
        """Messages a second, lately."""
        now = self.clock()
        while self._recent and self._recent[0][0] < now - RATE_S:
            self._recent.popleft()
        return sum(count for _, count in self._recent) / RATE_S

    def absorb(self, progress: dict[str, Any]) -> DoneBatch | None:
        """Take what Spark reports of a batch, or of a look that found nothing; the batch, if it is one."""
        sources = progress.get("sources", [])
        messages = sum(self._advance(source) for source in sources)
        self.is_read = self.is_read or bool(sources)
        if "addBatch" not in progress.get("durationMs", {}):
            return None
        self.batch = progress["batchId"]
        self.batches += 1
        self.messages += messages
        self.batch_ms = progress.get("batchDuration", 0)
        self._recent.append((self.clock(), messages))
        self.error = ""
        return DoneBatch(progress["batchId"], messages, self.batch_ms)

    def _advance(self, source: dict[str, Any]) -> int:
        """How many messages lie between the offsets of a source."""
        start, end = _offset(source.get("startOffset")), _offset(source.get("endOffset"))
        if "assignment" in end:
            self.assignments[end["queue"]] = ReadUpTo(end["generation"], end["assignment"])
            rows = self._rows(source)
            self.taken[end["queue"]] = self.taken.get(end["queue"], 0) + rows
            return rows
        self.offsets.update(end)
        self.ends.update(_offset(source.get("latestOffset")))
        if not start:  # Spark does not know where its first batch began
            return self._rows(source)
        return sum(offset - start.get(name, 0) for name, offset in end.items())

    def _rows(self, source: dict[str, Any]) -> int:
        """The rows that Spark has read. To tell the good from the bad it reads everything twice."""
        rows: int = source.get("numInputRows", 0)
        return rows // 2 if self.stream.quarantine else rows

    def measure(self, store: Store) -> None:
        """Find out how many messages wait. It cannot be told before Spark has said where the stream is."""
        self.count_quarantined(store)
        if not self.is_read:
            return
        journals = [source for source in self.stream.sources if isinstance(source, JournalEnd)]
        lag = sum(self._behind(store, name) for name in names_of(store, journals))
        lag += sum(waiting_in(store, source.name) for source in self.stream.sources if isinstance(source, QueueEnd))
        self.lag = lag

    def count_quarantined(self, store: Store) -> None:
        """Count what has gone to the quarantine since the first time that this was asked."""
        quarantine = self.stream.quarantine
        if quarantine is None:
            return
        there = store.reader.number(quarantine.name) is not None
        end = store.reader.extent(quarantine.name)[1] if there else 0
        if self._quarantine_at is None:
            self._quarantine_at = end
        self.quarantined = end - self._quarantine_at

    def _behind(self, store: Store, name: str) -> int:
        if store.reader.number(name) is None:
            return 0
        first, end = store.reader.extent(name)
        return max(0, end - max(first, self.offsets.get(name, 0)))

    def as_progress(self, store: str) -> dict[str, Any]:
        """Where a batch left the stream: what it reads and writes by name, and how much of each source waits."""
        return {
            "store": store,
            "sources": [{"name": name, **about} for name, about in self._sources().items()],
            "sinks": [target.label for target in self.stream.targets],
            "offsets": dict(self.offsets),
            "quarantined": self.quarantined,
            **({"lag": self.lag} if self.lag is not None else {}),
        }

    def _sources(self) -> dict[str, dict[str, Any]]:
        """Each journal and queue that was read, with its place and, where Spark has said it, its lag."""
        found: dict[str, dict[str, Any]] = {}
        for name, offset in self.offsets.items():
            end = self.ends.get(name)
            found[f"journal {name}"] = {"offset": offset, **({} if end is None else {"lag": max(0, end - offset)})}
        for name, at in self.assignments.items():
            found[f"queue {name}"] = {"assignment": at.number}
        return found

    def report(self) -> Report:
        """What every task says of itself."""
        return Report(
            "stream",
            self.name,
            _STATES[self.phase],
            {"messages": self.messages, "batches": self.batches},
            self.lag,
            Trouble(self.error) if self.error else None,
            self.failures,
            about={
                "state": self.phase,
                "in/s": f"{self.rate:,.0f}",
                "batch": "-" if self.batch is None else str(self.batch),
                "took": duration_of(self.batch_ms) if self.batch is not None else "-",
                "read up to": self._places(),
                "quarantined": f"{self.quarantined:,}" if self.quarantined else "-",
                "failures": str(self.failures) if self.failures else "-",
            },
        )

    def _places(self) -> str:
        found = [f"{name} {offset:,}" for name, offset in self.offsets.items()]
        found += [f"queue {name} #{at.number}" for name, at in self.assignments.items()]
        return ", ".join(found) or "-"

    def as_json(self) -> dict[str, Any]:
        """The state for programs."""
        return {
            "stream": self.name,
            "phase": self.phase,
            "batch": self.batch,
            "batches": self.batches,
            "messages": self.messages,
            "rate": round(self.rate, 1),
            "batch_ms": self.batch_ms,
            "offsets": self.offsets,
            "assignments": {name: at.number for name, at in self.assignments.items()},
            "lag": self.lag,
            "quarantined": self.quarantined,
            "failures": self.failures,
            "error": self.error,
        }


def duration_of(milliseconds: int) -> str:
    """How long a batch took, for people.

    >>> duration_of(87), duration_of(2_340)
    ('87 ms', '2.3 s')
    """
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _offset(given: Any) -> dict[str, Any]:
    """An offset as Spark reports it: an object, its text, or nothing."""
    found = json.loads(given) if isinstance(given, str) else given
    return without_life(found) if isinstance(found, dict) else {}


def waiting_in(store: Store, queue: str) -> int:
    """How many messages of a queue can be read now, or when others before them are done."""
    found = store.queue(queue).info()
    return found.available + found.blocked - found.blocked_delayed


def names_of(store: Store, journals: list[JournalEnd]) -> set[str]:
    """The journals that are read by name or by a pattern."""
    found = {journal.name for journal in journals if not journal.is_pattern}
    patterns = [journal for journal in journals if journal.is_pattern]
    if patterns:
        found.update(name for name in store.journals() if any(one.reads(JournalEnd(name)) for one in patterns))
    return found


# -- what a runner tells, and views show ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to a stream, or to the whole run (then `stream` is empty)."""

    kind: str
    stream: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class PipelineView(Protocol):
    """Shows what happens. A runner enters it at its start and leaves it at its end."""

    def __enter__(self) -> PipelineView: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, event: Event) -> None:
        """Something happened."""

    def show(self, states: Sequence[StreamState]) -> None:
        """How the streams are now. Called several times a second."""


class Silent:
    """Shows nothing: for programs that look at the summary."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Nothing."""

    def show(self, states: Sequence[StreamState]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    states: list[StreamState]

    @property
    def failed(self) -> list[StreamState]:
        """The streams that were given up."""
        return [state for state in self.states if state.phase == "failed"]

    def as_json(self) -> dict[str, Any]:
        """The summary for programs."""
        return {"ok": not self.failed, "streams": [state.as_json() for state in self.states]}


# -- how far a run that ends reads ------------------------------------------------------------------------------------
#
# To where its inputs were when it began, and all that the pipeline makes of that: without this a producer that goes on
# would keep the run going on too. What streams of the pipeline write is read to where it ended when its writer had come
# to its own goal; so a circle ends when its messages do.


class Goals:
    """For each journal an offset to be reached, for each queue a number of messages that its reader has had by then."""

    def __init__(self, store: Store, states: list[StreamState]) -> None:
        self._store = store
        self._states = states
        self._written = [target for state in states for target in state.stream.targets]
        self._offsets: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        for state in states:
            for source in state.stream.sources:
                self._raise(source)

    def ends(self, stream: Stream) -> dict[str, int]:
        """Where a stream stops reading its journals, those apart that the pipeline writes."""
        journals = [source for source in stream.sources if isinstance(source, JournalEnd)]
        names = {name for journal in journals for name in self._offsets if journal.reads(JournalEnd(name))}
        return {name: self._offsets[name] for name in sorted(names) if JournalEnd(name) not in self._written}

    def moved(self, stream: Stream) -> None:
        """A stream has written: its readers read that too."""
        for target in stream.targets:
            if isinstance(target, JournalEnd | QueueEnd):
                self._raise(target)

    def left(self, state: StreamState) -> int:
        """How many messages a stream is short of its goals. Before Spark has said where it is, that is unknown: 0."""
        if not state.is_read:
            return 0
        journals = [source for source in state.stream.sources if isinstance(source, JournalEnd)]
        names = [name for name in self._offsets if any(one.reads(JournalEnd(name)) for one in journals)]
        short = sum(self._short(state, name) for name in names)
        for source in state.stream.sources:
            if isinstance(source, QueueEnd):
                still = self._taken[source.name] - state.taken.get(source.name, 0)
                short += max(0, min(still, waiting_in(self._store, source.name)))
        return short

    def _short(self, state: StreamState, name: str) -> int:
        if self._store.reader.number(name) is None:
            return 0
        first, end = self._store.reader.extent(name)
        return max(0, min(end, self._offsets[name]) - max(first, state.offsets.get(name, 0)))

    def _raise(self, end: JournalEnd | QueueEnd) -> None:
        if isinstance(end, QueueEnd):
            taken = max((state.taken.get(end.name, 0) for state in self._states), default=0)
            self._taken[end.name] = taken + waiting_in(self._store, end.name)
            return
        for name in names_of(self._store, [end]):
            if self._store.reader.number(name) is not None:
                self._offsets[name] = self._store.reader.extent(name)[1]
