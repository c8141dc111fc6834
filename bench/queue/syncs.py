"""How many times 1,000 publishes, and 1,000 claims with their acknowledgements, make the disk sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import syncs as counters
from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.place import Place
from bench.queue import child, data
from bench.queue.suite import SUITE

MESSAGES = 1_000
THREADS = 8


@SUITE.measurement("syncs")
@contextmanager
def syncs(place: Place, size: Size) -> Iterator[Plan]:
    with place.fresh() as tools:
        counter = counters.find(tools)

        def side(task: str, name: str) -> Callable[[], dict[str, float]]:
            def counted() -> dict[str, float]:
                with place.fresh() as directory:

                    def run(prefix: list[str]) -> None:
                        child.ask(task, data.url(directory / name), MESSAGES, prefix=prefix)

                    return counter(directory, run).per(MESSAGES, 1_000)

            return counted

        note = f"counted by {counter.how}: fsync + fdatasync + msync calls and O_DSYNC writes; other: the SQLite queue"

        def row(what: str, number: str, other: str) -> Row:
            return Row(f"syncs per 1,000 {what}", "syncs", f"{number}.all", INFORMATIVE, f"{other}.all", note)

        yield Plan(
            {
                "publish": side("publishes", "store"),
                "consume": side("consumes", "store"),
                "sqlite-publish": side("sqlite_publishes", "sqlite"),
                "sqlite-consume": side("sqlite_consumes", "sqlite"),
            },
            [
                row("publishes of one message, one caller", "publish", "sqlite-publish"),
                row("times claim + ack of one message, one caller", "consume", "sqlite-consume"),
            ],
            warm_up=False,
        )
