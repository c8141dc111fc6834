"""A picture of a run: how many orders a second came to each stage, and who was killed when."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from detent.demo.meter import Sample
from detent.demo.running import DemoOutcome, Kill
from detent.demo.view import STAGES

BIN_S: Final = 1.0
"""Rates are those of a second: Spark's batches come in steps."""

SIZE_INCHES: Final = (11, 7)
_COLOURS: Final = {"owner": "tab:red", "driver": "black"}
_OTHERS: Final = "tab:gray"
_STAGE_COLOURS: Final = {"placed": "tab:blue", "split": "tab:orange", "stored": "tab:green"}


def draw(outcome: DemoOutcome, path: Path) -> None:
    """Draw a run into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    from matplotlib import pyplot

    figure, (rates, counts) = pyplot.subplots(2, 1, sharex=True, figsize=SIZE_INCHES, layout="constrained")
    for stage, name in STAGES.items():
        times, values = rates_of(outcome.samples, stage)
        rates.step(times, values, where="post", label=name, color=_STAGE_COLOURS[stage])
        counts.plot(
            [sample.at for sample in outcome.samples],
            [getattr(sample.counts, stage) for sample in outcome.samples],
            color=_STAGE_COLOURS[stage],
            label=name,
        )
    for axes in (rates, counts):
        _mark(axes, outcome.kills)
        axes.grid(alpha=0.3)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    rates.set_ylabel("orders a second")
    counts.set_ylabel("orders")
    counts.set_xlabel("seconds")
    figure.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=len(STAGES))
    rates.set_title(title_of(outcome))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def title_of(outcome: DemoOutcome) -> str:
    """What the run came to, in a line."""
    verdict = outcome.verdict
    return (
        f"{outcome.plan.messages:,} orders, {len(outcome.kills)} kills in {outcome.seconds:.0f} s: "
        f"{'lost' if outcome.is_finished else 'not finished, missing'} {verdict.lost}, duplicated {verdict.duplicated}"
    )


def rates_of(samples: list[Sample], stage: str) -> tuple[Any, Any]:
    """The beginnings of the bins, and how many orders a second came to a stage in each."""
    at = np.array([sample.at for sample in samples])
    values = np.array([getattr(sample.counts, stage) for sample in samples], dtype=float)
    edges = np.arange(0.0, at[-1] + BIN_S, BIN_S)
    return edges[:-1], np.diff(np.interp(edges, at, values)) / BIN_S


def _mark(axes: Any, kills: list[Kill]) -> None:
    """A line for each kill, with the name of who was killed at its top."""
    for kill in kills:
        colour = _COLOURS.get(kill.role, _OTHERS)
        axes.axvline(kill.at, color=colour, linestyle="--", linewidth=0.9, alpha=0.8)
        axes.annotate(
            kill.role,
            (kill.at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, -3),
            textcoords="offset points",
            rotation=90,
            verticalalignment="top",
            fontsize=7,
            color=colour,
        )
