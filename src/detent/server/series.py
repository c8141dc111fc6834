"""What queues held and did over time: a bounded memory of it, for curves.

Every few seconds one survey asks the owner for the totals of all queues and for the busiest of them; nothing is added
to a commit. All of it is in memory: the counters themselves are in the store, so a restart loses the curves and no
count, and shows as a gap. For weeks there is Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from detent.errors import DetentError
from detent.queue.surveying import QueueSurvey, SurveyQueues

if TYPE_CHECKING:
    from types import TracebackType

    from detent.store import AsyncStore

LOOK_S: Final = 5.0
"""How often the queues are surveyed."""

LOOK_SHARE: Final = 100
REST_MAX_S: Final = 10.0
"""A survey that takes long, because there are many queues, is followed by a rest of so many times its length, up to so
many seconds: later points would leave gaps."""

QUEUES_MAX: Final = 500
"""Queues with curves of their own, those with most messages published first: their description takes the owner some
milliseconds. Each has `SHORT` and `LONG` points of `len(FIELDS)` values of 4 bytes: 4 MB in all."""

FIELDS: Final = ("published", "done", "available", "in_flight", "failed", "commit")
"""What is remembered: two rates a second, three counts, and (of the store alone) milliseconds of a commit."""

LATE: Final = 3
"""A point that comes after so many steps leaves a gap before it."""


class Span(NamedTuple):
    """A length of time, and the step between its points."""

    name: str
    step_s: float
    points: int


SPANS: Final = {"15m": Span("15m", 5.0, 180), "24h": Span("24h", 300.0, 288)}


class Ring:
    """The newest points of one span."""

    __slots__ = ("_began_s", "_count", "_sums", "_values", "span")

    def __init__(self, span: Span, now_s: float) -> None:
        self.span = span
        self._values = [array("f", [math.nan]) * span.points for _ in FIELDS]
        self._sums = [0.0] * len(FIELDS)
        self._count = 0
        self._began_s = now_s

    def add(self, now_s: float, point: tuple[float, ...]) -> None:
        """Take a point; those of one step become their mean. Steps without a point stay empty."""
        steps = int((now_s - self._began_s) / self.span.step_s)
        if steps > 0:
            self._close(min(steps, self.span.points))
            self._began_s += steps * self.span.step_s
        for at, value in enumerate(point):
            self._sums[at] += value
        self._count += 1

    def _close(self, steps: int) -> None:
        for at, values in enumerate(self._values):
            mean = self._sums[at] / self._count if self._count else math.nan
            del values[:steps]
            # A survey a little late is no gap: the point before stands for it.
            values.extend([mean] * steps if steps < LATE else [mean] + [math.nan] * (steps - 1))
        self._sums, self._count = [0.0] * len(FIELDS), 0

    def values(self) -> dict[str, list[float | None]]:
        """The points, oldest first; None where there is none."""
        return {
            name: [None if math.isnan(value) else round(value, 3) for value in values]
            for name, values in zip(FIELDS, self._values, strict=True)
        }


class _Curves:
    """The rings of the store, or of one queue, and its counters at the last survey."""

    __slots__ = ("counters", "rings")

    def __init__(self, now_s: float) -> None:
        self.rings = {name: Ring(span, now_s) for name, span in SPANS.items()}
        self.counters: tuple[float, int, int] | None = None

    def add(self, now_s: float, counts: tuple[int, int, int], routed: int, acked: int, commit_ms: float) -> None:
        """What one survey saw. Rates need the survey before it; counters that went back begin anew."""
        before, self.counters = self.counters, (now_s, routed, acked)
        if before is None or routed < before[1] or acked < before[2] or now_s <= before[0]:
            return
        length = now_s - before[0]
        point = ((routed - before[1]) / length, (acked - before[2]) / length, *map(float, counts), commit_ms)
        for ring in self.rings.values():
            ring.add(now_s, point)


class Series:
    """The curves of a store. `commits` says how many commits there were, and the seconds that they took, in all.

    >>> async with Series(store) as series:
    ...     series.of("orders", "15m")
    """

    def __init__(
        self,
        store: AsyncStore,
        commits: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._commits = commits
        self._clock = clock
        self._all = _Curves(clock())
        self._queues: OrderedDict[str, tuple[int, _Curves]] = OrderedDict()
        self._committed: tuple[float, float] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.look()
            except DetentError as error:  # the curves get a gap, and the pages say what is wrong
                logging.getLogger("detent.server").debug("no survey", extra={"reason": str(error)[:200]})
            await asyncio.sleep(max(LOOK_S, min(REST_MAX_S, LOOK_SHARE * (time.monotonic() - began))))

    async def look(self) -> None:
        """One survey."""
        found: QueueSurvey = (await self._store.commit([SurveyQueues(order="routed", limit=QUEUES_MAX)]))[0]
        now_s, totals = self._clock(), found.totals
        counts = (totals.available, totals.in_flight, totals.failed)
        self._all.add(now_s, counts, totals.routed, totals.acked, self._commit_ms())
        for queue in found.queues:
            number, curves = self._queues.get(queue.name, (-1, None))
            if curves is None or number != queue.number:
                curves = _Curves(now_s)
                self._queues[queue.name] = queue.number, curves
            self._queues.move_to_end(queue.name)
            curves.add(now_s, (queue.available, queue.in_flight, queue.failed), queue.routed, queue.acked, math.nan)
        while len(self._queues) > QUEUES_MAX:
            self._queues.popitem(last=False)

    def _commit_ms(self) -> float:
        """The mean length of the commits since the last survey."""
        if self._commits is None:
            return math.nan
        before, self._committed = self._committed, self._commits()
        count = self._committed[0] - before[0] if before else 0
        return 1000 * (self._committed[1] - before[1]) / count if before and count else math.nan

    def of(self, queue: str, span: str) -> dict[str, list[float | None]] | None:
        """The curves of a queue, or of all of them; None if there are none of this queue."""
        curves: Any = self._all if not queue else self._queues.get(queue, (0, None))[1]
        return None if curves is None else curves.rings[span].values()
