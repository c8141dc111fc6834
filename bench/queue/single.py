"""One message at a time, 1 KiB: a durable publish, and a claim with its acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, in_turn, ratio_at_most
from bench.journal import raw
from bench.journal.timing import per_call_us
from bench.place import Place
from bench.queue import data, sqlite
from bench.queue.means import Means
from bench.queue.suite import SUITE

SLICE = 50
"""Messages of one side before it is the other's turn."""

PUBLISH = "publish one message, 1 KiB, sync API"
CONSUME = "claim one message and acknowledge it, both together"
BAR = "at most 2.5 x one raw append + fdatasync of the same bytes"


@SUITE.measurement("single")
@contextmanager
def single(place: Place, size: Size) -> Iterator[Plan]:
    slices, means = size.of(40, 15), Means()

    def slice_of(work: data.Ours | sqlite.Sqlite) -> dict[str, float]:
        return {
            "publish": per_call_us(work.publish_one, SLICE),
            "consume": per_call_us(work.consume_one, SLICE),
        }

    @contextmanager
    def ours() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
            work = data.Ours(store)
            yield means.of("ours", lambda: slice_of(work))

    @contextmanager
    def log() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as directory, raw.synced_log(directory / "log") as append:
            bodies = data.singles()
            yield means.of("log", lambda: {"append": per_call_us(lambda: append(next(bodies)), SLICE)})

    @contextmanager
    def other() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as directory, sqlite.opened(directory) as work:
            yield means.of("sqlite", lambda: slice_of(work))

    bar = ratio_at_most(2.5, BAR)
    to_sqlite = "the same against SQLite"
    about = f"a round is {slices} slices of {SLICE} messages, the sides in turn, and its median slice"
    yield Plan(
        {"turns": in_turn({"ours": ours, "log": log, "sqlite": other}, slices)},
        [
            Row(PUBLISH, "us", "turns.ours.publish", bar, "turns.log.append", about),
            Row(
                CONSUME,
                "us",
                "turns.ours.consume",
                bar,
                "turns.log.append",
                f"{about}; ours are two durable transactions, other is one append",
            ),
            Row(f"{to_sqlite}: publish", "us", "turns.ours.publish", INFORMATIVE, "turns.sqlite.publish"),
            Row(f"{to_sqlite}: claim + ack", "us", "turns.ours.consume", INFORMATIVE, "turns.sqlite.consume"),
        ],
        notes=lambda: {
            PUBLISH: means.note("ours.publish", "log.append", "us"),
            CONSUME: means.note("ours.consume", "log.append", "us"),
            f"{to_sqlite}: publish": means.note("ours.publish", "sqlite.publish", "us"),
            f"{to_sqlite}: claim + ack": means.note("ours.consume", "sqlite.consume", "us"),
        },
    )
