"""**Report**: what a task says of itself, in one shape for views, JSON, metrics and the console.

A task is anything that works until it is told to stop: a consumer, a graph, an app, a pipeline, an ingest, a worker.
One that is divided has a report of each part under its own: shards, processors, streams.

>>> from detent.runtime.report import Reporter, State
>>> said = Reporter("worker", "mails")
>>> said.say(State.RUNNING)
>>> said.count(handled=3)
>>> said.report().progress
{'handled': 3}
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """What a task is at."""

    STARTING = "starting"
    """It gets ready, or reads back how far it was."""

    RUNNING = "running"
    STANDBY = "standby"
    """Another process does the work; this one follows, ready to take over."""

    PAUSED = "paused"
    FAILED = "failed"
    """The last try failed. It rests before the next one, or was given up."""

    STOPPING = "stopping"
    """It was told to stop, and ends what is under way."""

    STOPPED = "stopped"
    UNKNOWN = "unknown"
    """It runs elsewhere, or not at all: nothing that can be asked knows."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong last, and when, in seconds since 1970; None where that is not kept."""

    text: str
    at: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"text": self.text, "at_ms": None if self.at is None else _ms(self.at)}


@dataclass(frozen=True, slots=True)
class Report:
    """A task, or a part of one, at one moment."""

    kind: str
    """What it is, in one word: "consumer", "processor", "worker"."""

    name: str
    state: State
    progress: Mapping[str, int] = field(default_factory=dict)
    """What it has done, as counts by name: {"handled": 7, "retried": 1}."""

    lag: int | None = None
    """How much waits for it; None where that cannot be told."""

    trouble: Trouble | None = None
    restarts: int = 0
    """How often it began anew after a failure."""

    since: float | None = None
    """When it came into its state, in seconds since 1970."""

    about: Mapping[str, str] = field(default_factory=dict)
    """What only its kind has, as texts by name: {"holder": "m-17", "journals": "orders"}."""

    parts: tuple[Report, ...] = ()

    @property
    def title(self) -> str:
        """How commands name it: ``consumer/words``."""
        return f"{self.kind}/{self.name}"

    @property
    def error(self) -> str:
        """What went wrong last; empty if nothing did."""
        return "" if self.trouble is None else self.trouble.text

    def as_json(self) -> dict[str, Any]:
        """The report for programs; times in milliseconds since 1970."""
        return {
            "kind": self.kind,
            "name": self.name,
            "state": str(self.state),
            "progress": dict(self.progress),
            "lag": self.lag,
            "error": None if self.trouble is None else self.trouble.as_json(),
            "restarts": self.restarts,
            "since_ms": None if self.since is None else _ms(self.since),
            "about": dict(self.about),
            "parts": [part.as_json() for part in self.parts],
        }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def state_of(states: Iterable[State]) -> State:
    """The state of a task whose parts have these: what needs attention first."""
    found = set(states)
    order = (State.FAILED, State.RUNNING, State.STARTING, State.STOPPING, State.STANDBY, State.PAUSED)
    return next((state for state in order if state in found), State.STOPPED)


class Reporter:
    """Keeps the report of one task. For any thread."""

    def __init__(self, kind: str, name: str, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._report = Report(kind, name, State.STARTING, since=clock())

    def report(self) -> Report:
        """The task as it is now."""
        with self._lock:
            return self._report

    def say(self, state: State, **about: str) -> None:
        """It is at this now."""
        with self._lock:
            since = self._report.since if state is self._report.state else self._clock()
            self._report = replace(self._report, state=state, since=since, about={**self._report.about, **about})

    def count(self, **more: int) -> None:
        """It has done so much more."""
        with self._lock:
            progress = dict(self._report.progress)
            for name, number in more.items():
                progress[name] = progress.get(name, 0) + number
            self._report = replace(self._report, progress=progress)

    def lags(self, lag: int | None) -> None:
        """So much waits for it."""
        with self._lock:
            self._report = replace(self._report, lag=lag)

    def failed(self, error: BaseException | str) -> None:
        """A try failed. What went wrong stays in the report after it is mended: when is said with it."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        with self._lock:
            now = self._clock()
            self._report = replace(self._report, state=State.FAILED, since=now, trouble=Trouble(text, now))

    def restarted(self) -> None:
        """It begins anew, after a failure."""
        with self._lock:
            restarts = self._report.restarts + 1
            self._report = replace(self._report, state=State.STARTING, since=self._clock(), restarts=restarts)
