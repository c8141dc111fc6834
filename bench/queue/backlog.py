"""Whether a million messages that wait slow a queue down, against 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import detent
from bench.harness import Plan, Row, Size, in_turn, ratio_at_most
from bench.journal.timing import per_call_us
from bench.place import Place
from bench.queue import data
from bench.queue.means import Means
from bench.queue.suite import SUITE

MESSAGES, QUICK_MESSAGES = 1_000_000, 100_000
SMALL = data.BATCH
SINGLES = data.BATCH
BATCHES = 10

OPERATIONS = {
    "publish": "publish one",
    "consume": "claim one + ack",
    "publish-many": f"publish_many({data.BATCH})",
    "consume-many": f"claim({data.BATCH}) + ack of all",
}


def slice_of(work: data.Ours) -> dict[str, float]:
    """The four operations, with as many messages in the queue afterwards as before.

    What is claimed was published 100 at a time, on both sides: those that were published one by one are taken out
    of the way, untimed, before they come to the front of the small queue.
    """
    numbers = {
        "publish": per_call_us(work.publish_one, SINGLES),
        "consume": per_call_us(work.consume_one, SINGLES),
    }
    work.consume_batch()
    work.publish_batch()
    return {
        **numbers,
        "publish-many": per_call_us(work.publish_batch, BATCHES),
        "consume-many": per_call_us(work.consume_batch, BATCHES),
    }


@SUITE.measurement("backlog")
@contextmanager
def backlog(place: Place, size: Size) -> Iterator[Plan]:
    messages, slices, means = size.of(MESSAGES, QUICK_MESSAGES), size.of(20, 6), Means()
    directory = data.big_store(place, messages)

    @contextmanager
    def opened(name: str, path: Path) -> Iterator[Callable[[], Mapping[str, float]]]:
        with detent.open(data.url(path)) as store:
            work = data.Ours(store)
            yield means.of(name, lambda: slice_of(work))

    @contextmanager
    def small() -> Iterator[Callable[[], Mapping[str, float]]]:
        with place.fresh() as fresh:
            data.fill(fresh / "store", SMALL)
            with opened("small", fresh / "store") as step:
                yield step

    bar = ratio_at_most(1.2, "at most 20 % slower")
    whats = {number: f"{messages:,} waiting against {SMALL:,}: {text}" for number, text in OPERATIONS.items()}
    yield Plan(
        {"turns": in_turn({"big": lambda: opened("big", directory), "small": small}, slices)},
        [
            Row(
                what,
                "us",
                f"turns.big.{number}",
                bar,
                f"turns.small.{number}",
                f"a round is {slices} slices of {SINGLES} single messages and {BATCHES} batches, the sides in turn; "
                f"what is claimed was published {data.BATCH} at a time on both sides",
            )
            for number, what in whats.items()
        ],
        notes=lambda: {what: means.note(f"big.{number}", f"small.{number}", "us") for number, what in whats.items()},
        warm_up=False,
    )
