"""100 single appends in flight, asynchronous API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import detent
from bench.harness import Plan, Row, Size, in_turn, ratio_at_least
from bench.journal import data, raw
from bench.journal.suite import SUITE
from bench.journal.timing import rate
from bench.place import Place

BODY_BYTES = 1024
CALLERS = 100
EACH = 20
"""Appends of each caller in one slice."""

RAW_SLICE = 200


async def append_in_flight(journal: detent.AsyncJournal, body: bytes, callers: int, each: int) -> None:
    """Many callers, each of which awaits one append after another."""

    async def caller() -> None:
        for _ in range(each):
            await journal.append(body)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def _open(url: str) -> detent.AsyncStore:
    return await detent.open_async(url)


@SUITE.measurement("in-flight")
@contextmanager
def in_flight(place: Place, size: Size) -> Iterator[Plan]:
    body, slices = data.body(BODY_BYTES), size.of(15, 5)

    @contextmanager
    def ours() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, asyncio.Runner() as runner:
            store = runner.run(_open(data.url(directory / "store")))
            journal = store.journal(data.NAME)
            try:
                yield lambda: rate(lambda: runner.run(append_in_flight(journal, body, CALLERS, EACH)), CALLERS * EACH)
            finally:
                runner.run(store.close())

    @contextmanager
    def log() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, raw.synced_log(directory / "log") as append:
            yield lambda: rate(lambda: raw.repeat(append, [body], RAW_SLICE), RAW_SLICE)

    yield Plan(
        {"turns": in_turn({"ours": ours, "log": log}, slices)},
        [
            Row(
                f"{CALLERS} single appends in flight, 1 KiB, async API",
                "appends/s",
                "turns.ours",
                ratio_at_least(5, "at least 5 x the raw one-at-a-time rate"),
                "turns.log",
                f"{CALLERS} tasks, each awaiting {EACH} appends in turn, {slices} times a round; other: raw append + "
                "fdatasync; the syncs of ours are counted below",
            ),
        ],
    )
