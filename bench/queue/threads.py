"""8 threads that claim and acknowledge one message after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import detent
from bench.harness import INFORMATIVE, Opened, Plan, Row, Size, in_turn
from bench.journal.timing import rate
from bench.place import Place
from bench.queue import data
from bench.queue.suite import SUITE

THREADS = 8
MESSAGES = 800
"""Consumed in one slice, by however many threads."""


def consume(work: data.Ours, threads: int) -> None:
    def consumer() -> None:
        for _ in range(MESSAGES // threads):
            work.consume_one()

    running = [threading.Thread(target=consumer) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def slice_of(work: data.Ours, threads: int) -> float:
    for _ in range(MESSAGES // data.BATCH):
        work.publish_batch()
    taken = rate(lambda: consume(work, threads), MESSAGES)
    assert not work.queue.claim(1), "a consumer has not done its share"
    return taken


@SUITE.measurement("threads")
@contextmanager
def threads(place: Place, size: Size) -> Iterator[Plan]:
    slices = size.of(6, 3)

    def side(count: int) -> Opened:
        @contextmanager
        def opened() -> Iterator[Callable[[], float]]:
            with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
                yield partial(slice_of, data.Ours(store), count)

        return opened

    yield Plan(
        {"turns": in_turn({"many": side(THREADS), "one": side(1)}, slices)},
        [
            Row(
                f"{THREADS} threads claim and acknowledge one by one, 1 KiB",
                "msg/s",
                "turns.many",
                INFORMATIVE,
                "turns.one",
                "other: one thread; the messages were published 100 at a time",
            ),
        ],
    )
