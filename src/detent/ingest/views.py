"""How a pipeline shows what it does: a line on a terminal, lines in a log, JSON for programs, metrics."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from detent.scraped import new_registry, serve_metrics
from detent.sizes import size_text

if TYPE_CHECKING:
    from detent.ingest.progress import Counters, Progress

LINE_EVERY_S: Final = 10.0
JSON_EVERY_S: Final = 1.0


class View(Protocol):
    """Where progress is shown."""

    def show(self, progress: Progress) -> None: ...

    def end(self, counters: Counters) -> None: ...


@contextmanager
def view_of(name: str, *, as_json: bool, is_watched: bool) -> Iterator[View]:
    """The view that suits the reader."""
    if as_json:
        yield JsonView()
    elif is_watched:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
            yield LiveLine(name, live)
    else:
        yield LogLines(name)


class JsonView:
    """An object a line: what changed, at most once a second, and a summary."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._at = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        counters = progress.counters.as_json()
        if counters == self._last or now - self._at < JSON_EVERY_S:
            return
        self._last, self._at = counters, now
        waits = {"ready": progress.ready, "in_progress": progress.in_progress, "lag_s": round(progress.lag_s, 3)}
        self._print({"event": "progress", **waits, **counters})

    def end(self, counters: Counters) -> None:
        self._print({"event": "summary", **counters.as_json()})

    @staticmethod
    def _print(document: dict[str, Any]) -> None:
        print(json.dumps(document), flush=True)


class LogLines:
    """A line whenever something was committed, at most every ten seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches = 0
        self._at = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.counters.batches == self._batches or now - self._at < LINE_EVERY_S:
            return
        self._batches, self._at = progress.counters.batches, now
        print(f"{self._name}: {line_of(progress)}", file=sys.stderr, flush=True)

    def end(self, counters: Counters) -> None:
        """Nothing more."""


class LiveLine:
    """One line that changes."""

    def __init__(self, name: str, live: Any) -> None:
        self._name = name
        self._live = live

    def show(self, progress: Progress) -> None:
        from rich.text import Text

        self._live.update(Text(f"{self._name}: {line_of(progress)}"))

    def end(self, counters: Counters) -> None:
        """Nothing more."""


def line_of(progress: Progress) -> str:
    """Files, rows, bytes, lag and quarantine, for people."""
    counters = progress.counters
    rate = counters.rows / progress.seconds if progress.seconds else 0.0
    parts = [
        f"{counters.files:,} files",
        f"{counters.rows:,} rows ({rate:,.0f}/s)",
        size_text(counters.bytes),
        f"{progress.ready + progress.in_progress:,} waiting",
        f"lag {progress.lag_s:.0f} s",
    ]
    if counters.quarantined:
        parts.append(f"{counters.quarantined} in quarantine")
    if counters.unreadable:
        parts.append(f"unreadable: {_left(counters)}")
    return ", ".join(parts)


def summary_of(counters: Counters) -> dict[str, str]:
    """What was done in a run, for people: counters that are not 0."""
    done = {name: str(value) for name, value in counters.as_json().items() if value}
    return {**done, "unreadable": _left(counters)} if counters.unreadable else done


def _left(counters: Counters) -> str:
    return f"{counters.unreadable} left to the queue"


def metrics_view(port: int, name: str, show: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Serve what is shown as metrics too, on the loopback address."""
    registry = new_registry()
    from prometheus_client import Gauge

    gauges: dict[str, Any] = {}
    serve_metrics(port, registry)

    def told(progress: Progress) -> None:
        waits = {"ready": progress.ready, "in_progress": progress.in_progress, "lag_seconds": progress.lag_s}
        for key, value in {**progress.counters.as_json(), **waits}.items():
            if key not in gauges:
                gauges[key] = Gauge(f"detent_ingest_{key}", f"{key} of the pipeline", ["ingest"], registry=registry)
            gauges[key].labels(name).set(value)
        show(progress)

    return told
