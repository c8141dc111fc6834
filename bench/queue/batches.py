"""100 messages of 1 KiB at a time, against a queue in SQLite and against LMDB putting the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import detent
from bench.harness import INFORMATIVE, Bar, Plan, Row, Size, in_turn, ratio_at_least
from bench.journal import raw
from bench.journal.timing import per_call_us
from bench.place import Place
from bench.queue import data, sqlite
from bench.queue.means import Means
from bench.queue.suite import SUITE

SLICE = 10
"""Batches of one side before it is the other's turn."""

WHAT = {"publish": f"publish_many({data.BATCH})", "consume": f"claim({data.BATCH}) + ack of all"}


def rate_of(operation: Callable[[], object]) -> float:
    """Messages a second."""
    return data.BATCH / per_call_us(operation, SLICE) * 1e6


@SUITE.measurement("batches")
@contextmanager
def batches(place: Place, size: Size) -> Iterator[Plan]:
    slices, means = size.of(25, 8), Means(rates=True)

    def slice_of(work: data.Ours | sqlite.Sqlite) -> dict[str, float]:
        return {"publish": rate_of(work.publish_batch), "consume": rate_of(work.consume_batch)}

    @contextmanager
    def ours() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
            work = data.Ours(store)
            yield means.of("ours", lambda: slice_of(work))

    @contextmanager
    def other() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as directory, sqlite.opened(directory) as work:
            yield means.of("sqlite", lambda: slice_of(work))

    @contextmanager
    def lmdb() -> Iterator[Callable[[], Mapping[str, float]]]:
        ready = data.batches()
        packed = itertools.cycle([b"".join(next(ready)) for _ in range(data.DISTINCT // data.BATCH)])
        with place.fresh() as directory, raw.lmdb_log(directory) as append:
            yield means.of("lmdb", lambda: {"put": rate_of(lambda: append(next(packed)))})

    @contextmanager
    def log() -> Iterator[Callable[[], Mapping[str, float]]]:
        ready = data.batches()
        packed = itertools.cycle([b"".join(next(ready)) for _ in range(data.DISTINCT // data.BATCH)])
        with place.fresh() as directory, raw.synced_log(directory / "log") as append:
            yield means.of("log", lambda: {"append": rate_of(lambda: append(next(packed)))})

    rows: list[Row] = []
    notes: dict[str, tuple[str, str]] = {}

    def row(number: str, against: str, bar: Bar, other: str, note: str) -> None:
        what = f"{WHAT[number]}, 1 KiB each, against {against}"
        rows.append(Row(what, "msg/s", f"turns.ours.{number}", bar, f"turns.{other}", note))
        notes[what] = f"ours.{number}", other

    about = f"a round is {slices} slices of {SLICE} batches, the sides in turn, and its median slice"
    for number in WHAT:
        bar = ratio_at_least(3, "at least 3 x SQLite")
        row(number, "SQLite", bar, f"sqlite.{number}", f"{about}; what its queue does: bench/queue/sqlite.py")
    for number in WHAT:
        bar = ratio_at_least(0.15, "at least 0.15 x raw LMDB putting the same packed bytes")
        note = f"{about}; other: the {data.BATCH} bodies as one value, one put, one synced commit"
        row(number, "raw LMDB", bar, "lmdb.put", note)
    for number in WHAT:
        row(number, "a plain file", INFORMATIVE, "log.append", "other: the same packed bytes, raw append + fdatasync")
    yield Plan(
        {"turns": in_turn({"ours": ours, "lmdb": lmdb, "sqlite": other, "log": log}, slices)},
        rows,
        notes=lambda: {what: means.note(*pair, "msg/s") for what, pair in notes.items()},
    )
