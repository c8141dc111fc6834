"""Runs measurements: every round runs each side once, one after another, so that a noisy machine is noisy for all.

A measurement names its *sides* (functions that do some work and answer numbers) and the *rows* of the result table,
each of which sets the numbers of one side against those of another. What counts is the median over the rounds.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.place import Place

Numbers = float | Mapping[str, float]
"""What a side answers: one number, or several by name. Row "side.name" reads the named one."""

Side = Callable[[], Numbers]


Opened = Callable[[], AbstractContextManager[Callable[[], Numbers]]]
"""How `in_turn` gets at a side: a context manager that yields one slice of its work."""


class Skipped(Exception):
    """This machine cannot take the measurement; the message says why."""


@dataclass(frozen=True)
class Size:
    """How much work a run does. `of(full, quick)` picks a count: `scale` is a part of the full one."""

    rounds: int = 5
    quick: bool = False
    scale: float = 1.0

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else max(quick, round(full * self.scale))


@dataclass(frozen=True)
class Summary:
    """One side over all rounds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def range(self) -> tuple[float, float]:
        return min(self.samples), max(self.samples)


@dataclass(frozen=True)
class Bar:
    """What a row must reach, as text and as a test of (median of ours, ratio)."""

    text: str
    reached: Callable[[float, float | None], bool]

    def __and__(self, other: Bar) -> Bar:
        return Bar(
            f"{self.text} and {other.text}",
            lambda ours, ratio: self.reached(ours, ratio) and other.reached(ours, ratio),
        )


def ratio_at_most(limit: float, text: str) -> Bar:
    return Bar(text, lambda _, ratio: ratio is not None and ratio <= limit)


def ratio_at_least(limit: float, text: str) -> Bar:
    return Bar(text, lambda _, ratio: ratio is not None and ratio >= limit)


def ours_at_most(limit: float, text: str) -> Bar:
    return Bar(text, lambda ours, _: ours <= limit)


def ours_at_least(limit: float, text: str) -> Bar:
    return Bar(text, lambda ours, _: ours >= limit)


def ours_within(low: float, high: float, text: str) -> Bar:
    return Bar(text, lambda ours, _: low <= ours <= high)


INFORMATIVE = Bar("none (for information)", lambda _ours, _ratio: True)


@dataclass(frozen=True)
class Row:
    """One row of the result: `ours` against `other`, each the name of a side or "side.number"."""

    what: str
    unit: str
    ours: str
    bar: Bar
    other: str | None = None
    note: str = ""


@dataclass
class Plan:
    """What a measurement does once it is set up."""

    sides: dict[str, Side]
    rows: list[Row]
    warm_up: bool = True
    """Run every side once before the rounds, and forget the numbers."""
    notes: Callable[[], Mapping[str, str]] | None = None
    """Called after the rounds: more to say, by the row's `what`."""


@dataclass(frozen=True)
class Measurement:
    """A named measurement. `prepare` sets it up, and cleans up behind it."""

    name: str
    prepare: Callable[[Place, Size], AbstractContextManager[Plan]]


@dataclass(frozen=True)
class Suite:
    """Measurements that are run together and whose results are one file."""

    name: str
    measurements: list[Measurement] = field(default_factory=list)

    def measurement(
        self, name: str
    ) -> Callable[
        [Callable[[Place, Size], AbstractContextManager[Plan]]], Callable[[Place, Size], AbstractContextManager[Plan]]
    ]:
        """Register a context manager that yields a plan."""

        def register(
            prepare: Callable[[Place, Size], AbstractContextManager[Plan]],
        ) -> Callable[[Place, Size], AbstractContextManager[Plan]]:
            self.measurements.append(Measurement(name, prepare))
            return prepare

        return register


def run(
    suite: Suite,
    place: Place,
    size: Size,
    *,
    only: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Take the measurements of a suite; their rows, as the result file holds them."""
    chosen = [m for m in suite.measurements if not only or m.name in only]
    results: list[dict[str, Any]] = []
    for number, measurement in enumerate(chosen, 1):
        title = f"[{number}/{len(chosen)}] {measurement.name}"
        progress(f"{title}: preparing")
        try:
            with measurement.prepare(place, size) as plan:
                samples = collect(plan, size.rounds, lambda step, title=title: progress(f"{title}: {step}"))
                results += judge(plan, samples)
        except Skipped as reason:
            results.append(skipped(measurement.name, str(reason)))
    return results


def in_turn(sides: Mapping[str, Opened], slices: int) -> Side:
    """A round in thin slices: all sides are open at once and do a little in turn; each gives its median slice.

    What disturbs the machine for a moment then disturbs every side, and not just the one whose turn it was.
    """

    def round_of_slices() -> dict[str, float]:
        samples: dict[str, list[float]] = {}
        with ExitStack() as stack:
            steps = {name: stack.enter_context(opened()) for name, opened in sides.items()}
            for step in steps.values():
                step()
            for _ in range(slices):
                for name, step in steps.items():
                    for key, value in _named(name, step()):
                        samples.setdefault(key, []).append(value)
        return {key: statistics.median(values) for key, values in samples.items()}

    return round_of_slices


def collect(plan: Plan, rounds: int, progress: Callable[[str], None] = lambda _: None) -> dict[str, Summary]:
    """The numbers of every side, over interleaved rounds."""
    samples: dict[str, list[float]] = {}
    os.sync()
    for name, side in plan.sides.items() if plan.warm_up else ():
        progress(f"warm-up, {name}")
        side()
    for round_number in range(1, rounds + 1):
        for name, side in plan.sides.items():
            progress(f"round {round_number} of {rounds}, {name}")
            gc.collect()
            for key, value in _named(name, side()):
                samples.setdefault(key, []).append(value)
    return {key: Summary(tuple(values)) for key, values in samples.items()}


def _named(side: str, numbers: Numbers) -> Iterator[tuple[str, float]]:
    if isinstance(numbers, Mapping):
        for name, value in numbers.items():
            yield f"{side}.{name}", float(value)
    else:
        yield side, float(numbers)


def judge(plan: Plan, samples: Mapping[str, Summary]) -> list[dict[str, Any]]:
    """The plan's rows with their numbers and verdicts."""
    notes = plan.notes() if plan.notes is not None else {}
    return [_judge(row, samples, notes.get(row.what, "")) for row in plan.rows]


def _judge(row: Row, samples: Mapping[str, Summary], more: str) -> dict[str, Any]:
    ours = samples[row.ours]
    other = samples[row.other] if row.other is not None else None
    ratio = None if other is None or not other.median else ours.median / other.median
    result: dict[str, Any] = {
        "what": row.what,
        "ours": rounded(ours.median),
        "other": None if other is None else rounded(other.median),
        "ratio": None if ratio is None else rounded(ratio),
        "bar": row.bar.text,
        "ok": bool(row.bar.reached(ours.median, ratio)),
        "unit": row.unit,
        "ours_range": [rounded(value) for value in ours.range],
        "other_range": None if other is None else [rounded(value) for value in other.range],
        "rounds": len(ours.samples),
    }
    note = "; ".join(text for text in (row.note, more) if text)
    return {**result, "note": note} if note else result


def skipped(name: str, reason: str) -> dict[str, Any]:
    """The row of a measurement that could not be taken. It is not ok: it was not seen to pass."""
    return {
        "what": name,
        "ours": None,
        "other": None,
        "ratio": None,
        "bar": "not measured",
        "ok": False,
        "note": reason,
    }


def rounded(value: float) -> float:
    """Four significant digits: the machine has no more to say."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
