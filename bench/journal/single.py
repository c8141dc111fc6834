"""One durable append at a time, 1 KiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, in_turn, ratio_at_most
from bench.journal import data, raw
from bench.journal.suite import SUITE
from bench.journal.timing import per_call_us
from bench.place import Place

BODY_BYTES = 1024
SLICE = 50
"""Appends of one side before it is the other's turn."""


@SUITE.measurement("single")
@contextmanager
def single(place: Place, size: Size) -> Iterator[Plan]:
    body, slices = data.body(BODY_BYTES), size.of(40, 15)

    @contextmanager
    def ours() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
            append = store.journal(data.NAME).append
            yield lambda: per_call_us(lambda: append(body), SLICE)

    @contextmanager
    def log() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, raw.synced_log(directory / "log") as append:
            yield lambda: per_call_us(lambda: append(body), SLICE)

    @contextmanager
    def lmdb() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, raw.lmdb_log(directory) as append:
            yield lambda: per_call_us(lambda: append(body), SLICE)

    yield Plan(
        {"turns": in_turn({"ours": ours, "log": log, "lmdb": lmdb}, slices)},
        [
            Row(
                "one durable append at a time, 1 KiB, sync API",
                "us",
                "turns.ours",
                ratio_at_most(2, "at most 2 x raw append + fdatasync of the same bytes"),
                "turns.log",
                f"a round is {slices} slices of {SLICE} appends, ours and other in turn, and its median slice",
            ),
            Row(
                "the same against raw LMDB",
                "us",
                "turns.ours",
                INFORMATIVE,
                "turns.lmdb",
                "other: one put of the same bytes and a durable commit, LMDB's own settings",
            ),
        ],
    )
