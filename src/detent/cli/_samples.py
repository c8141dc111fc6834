"""What moves in a store, for `detent top`: queues, journals and tasks at one moment, and how fast, from two moments.

Rates are made here of counters that the store keeps anyway, so nothing is kept for them anywhere. A counter that fell
is another queue or journal of that name: it has no rate until the next sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from detent.cli._output import age_text
from detent.cli.kinds import APP, INGEST, KINDS, WORKER
from detent.errors import NotFound
from detent.sizes import size_text

if TYPE_CHECKING:
    from detent.runtime.report import Report
    from detent.store import Store

QUEUES_MAX: Final = 500
"""Queues of one sample; of more, the first ones by the order that the owner can tell them by."""

JOURNALS_MAX: Final = 100
"""Journals of one sample, the first ones by name: of each, a record is read, over the network where the store is
there."""

SortKey = Literal["rate", "depth", "age", "failed", "name"]
SORT_KEYS: Final[tuple[SortKey, ...]] = ("rate", "depth", "age", "failed", "name")

_ORDERS: Final = {"rate": "routed", "depth": "backlog", "age": "backlog", "failed": "failed", "name": "name"}
"""How the owner picks queues where there are more than a sample has. It keeps no rates: those that had most messages so
far are the likeliest."""


@dataclass(frozen=True, slots=True)
class TopRow:
    """A queue, a journal or a task at one moment."""

    section: Literal["queue", "journal", "task"]
    name: str
    state: str
    counters: Mapping[str, int]
    """What only grows: of these come the rates."""

    depth: int | None = None
    """How much waits or lies there; None where it is not known."""

    in_flight: int = 0
    failed: int = 0
    age_ms: int | None = None
    """How long the oldest waits, or how long ago it last changed."""

    size: int = 0
    error: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Per second, since the sample before."""

    @property
    def rate(self) -> float:
        """What it is sorted by."""
        return sum(self.rates.values())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            self.section: self.name,
            "state": self.state,
            "counters": dict(self.counters),
            "rates": {name: round(rate, 3) for name, rate in self.rates.items()},
            "depth": self.depth,
            **({"in_flight": self.in_flight, "failed": self.failed} if self.section == "queue" else {}),
            **({"bytes": self.size} if self.section == "journal" else {}),
            **({"error": self.error or None} if self.section == "task" else {"age_ms": self.age_ms}),
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """A store at one moment."""

    at_s: float
    rows: Sequence[TopRow]
    queues: int
    """Queues in the store, of which the sample may have some."""

    available: int
    """Messages that wait in all of them."""

    seconds: float = 0.0
    """How long ago the sample before was; 0 if this is the first one."""

    def of(self, section: str) -> list[TopRow]:
        """The rows of a kind."""
        return [row for row in self.rows if row.section == section]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        sections = {f"{name}s": [row.as_json() for row in self.of(name)] for name in ("queue", "journal", "task")}
        return {
            "seconds": round(self.seconds, 3),
            "queues_in_all": self.queues,
            "available": self.available,
            **sections,
        }


class Sampler:
    """Looks at a store again and again."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._before: dict[tuple[str, str], TopRow] = {}
        self._before_s: float | None = None

    def sample(self, prefix: str = "", key: SortKey = "rate") -> Sample:
        """The store now, of each kind those whose names begin so, in order; with rates since the last time."""
        from detent.queue.surveying import SurveyQueues

        now_s = self._clock()
        order: Any = _ORDERS[key]
        (survey,) = self._store.commit([SurveyQueues(prefix, order, QUEUES_MAX)])
        rows = [*map(_queue_row, survey.queues), *self._journals(prefix), *self._tasks(prefix)]
        seconds = 0.0 if self._before_s is None else max(now_s - self._before_s, 1e-9)
        rated = [self._rated(row, seconds) for row in rows]
        self._before, self._before_s = {(row.section, row.name): row for row in rows}, now_s
        return Sample(now_s, sorted(rated, key=_place(key)), survey.totals.queues, survey.totals.available, seconds)

    def _journals(self, prefix: str) -> list[TopRow]:
        found = []
        for name in self._store.journals(prefix)[:JOURNALS_MAX]:
            with suppress(NotFound):  # it was deleted meanwhile
                info = self._store.reader.info(name)
                idle_ms = max(0, round(time.time() * 1000) - info.updated_ms)
                size = info.block_bytes + info.fragment_bytes
                counters = {"in": info.next_offset}
                found.append(TopRow("journal", name, "", counters, info.messages, age_ms=idle_ms, size=size))
        return found

    def _tasks(self, prefix: str) -> list[TopRow]:
        """Consumers, graphs, pipelines and bridges. Apps and workers show as their queues."""
        kinds = [kind for kind in KINDS if kind not in (APP, WORKER, INGEST)]
        found = []
        for known in (one for kind in kinds for one in kind.stored(self._store) if one.name.startswith(prefix)):
            with suppress(NotFound):
                found.append(_task_row(known.report()))
        return found

    def _rated(self, row: TopRow, seconds: float) -> TopRow:
        before = self._before.get((row.section, row.name))
        if before is None or not seconds:
            return row
        grown = {name: count - before.counters.get(name, count) for name, count in row.counters.items()}
        if any(more < 0 for more in grown.values()):
            return row
        rates = {name: more / seconds for name, more in grown.items()}
        return TopRow(
            row.section, row.name, row.state, row.counters, row.depth, row.in_flight, row.failed, row.age_ms, row.size,
            row.error, rates,
        )  # fmt: skip


def _queue_row(one: Any) -> TopRow:
    state = "paused" if one.settings.paused else "catching up" if one.behind else "running"
    age_ms = max(0, round(time.time() * 1000) - one.oldest_ms) if one.oldest_ms else None
    waiting = one.available + one.delayed + one.blocked
    return TopRow(
        "queue", one.name, state, {"in": one.routed, "out": one.acked}, waiting, one.in_flight, one.failed, age_ms
    )


def _task_row(report: Report) -> TopRow:
    done = {"done": sum(report.progress.values())} if report.progress else {}
    return TopRow("task", report.title, str(report.state), done, report.lag, error=report.error)


def _place(key: SortKey) -> Callable[[TopRow], Any]:
    """Where a row stands among those of its kind: the highest first, and by name."""

    def place(row: TopRow) -> Any:
        number: float = {
            "rate": row.rate, "depth": row.depth or 0, "age": row.age_ms or 0, "failed": row.failed + bool(row.error),
            "name": 0,
        }[key]  # fmt: skip
        return -number, row.name

    return place


# -- as text --------------------------------------------------------------------------------------------------------

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("queue", "state", "in/s", "out/s", "waiting", "in flight", "failed", "age"),
    "journal": ("journal", "in/s", "messages", "size", "idle"),
    "task": ("task", "state", "done/s", "lag", "error"),
}

SPARE: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("in flight", "state", "failed", "age"),
    "journal": ("size", "idle"),
    "task": ("error", "done/s"),
}
"""Columns that are left out where they do not fit, the first one first."""

WORDS: Final = frozenset({"queue", "journal", "task", "state", "error"})
"""Columns that are no numbers."""


def cells_of(row: TopRow) -> list[str]:
    """What a table says of it, in the order of its columns."""
    if row.section == "queue":
        numbers = [f"{row.depth or 0:,}", f"{row.in_flight:,}", f"{row.failed:,}"]
        return [row.name, row.state, _rate(row, "in"), _rate(row, "out"), *numbers, _age(row)]
    if row.section == "journal":
        return [row.name, _rate(row, "in"), f"{row.depth or 0:,}", size_text(row.size), _age(row)]
    return [row.name, row.state, _rate(row, "done"), "-" if row.depth is None else f"{row.depth:,}", row.error or "-"]


def _rate(row: TopRow, name: str) -> str:
    rate = row.rates.get(name)
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 or not rate else f"{rate:.1f}"


def _age(row: TopRow) -> str:
    return "-" if row.age_ms is None else age_text(row.age_ms // 1000 * 1000)
