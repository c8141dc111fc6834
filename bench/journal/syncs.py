"""How many times 1,000 single appends make the disk sync, counted outside of our code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench import syncs as counters
from bench.harness import Plan, Row, Size, ours_at_most, ours_within
from bench.journal import child, data
from bench.journal.suite import SUITE
from bench.place import Place

CALLERS = 100
APPENDS = 1_000


@SUITE.measurement("syncs")
@contextmanager
def syncs(place: Place, size: Size) -> Iterator[Plan]:
    with place.fresh() as tools:
        counter = counters.find(tools)

        def appends(callers: int) -> Callable[[], dict[str, float]]:
            def side() -> dict[str, float]:
                with place.fresh() as directory:
                    task = ("appends", data.url(directory / "store"), callers, APPENDS // callers)
                    return counter(directory, partial(_run, task)).per(APPENDS, 1_000)

            return side

        def raw() -> dict[str, float]:
            with place.fresh() as directory:
                task = ("raw_appends", directory / "log", APPENDS)
                return counter(directory, partial(_run, task)).per(APPENDS, 1_000)

        how = f"counted by {counter.how}"
        yield Plan(
            {"one": appends(1), "raw": raw, "many": appends(CALLERS)},
            [
                Row(
                    "syncs per 1,000 single appends, one caller",
                    "syncs",
                    "one.all",
                    ours_within(990, 1_050, "about 1,000: each commit is synced"),
                    "raw.all",
                    f"{how}: fsync + fdatasync + msync calls and O_DSYNC writes; other: raw append + fdatasync",
                ),
                Row(
                    f"syncs per 1,000 single appends, {CALLERS} callers in flight, async API",
                    "syncs",
                    "many.all",
                    ours_at_most(59.99, "fewer than 60"),
                    "raw.all",
                    f"{how} in the same way",
                ),
            ],
            warm_up=False,
        )


def _run(task: tuple[object, ...], prefix: list[str]) -> None:
    child.ask(str(task[0]), *task[1:], prefix=prefix)
