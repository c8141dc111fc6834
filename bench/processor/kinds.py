"""Other kinds of processors against a plain stream: what their further commits cost, and what threads gain.

A function that takes a batch whole, and an any-of, make durable what they take before they call the function; an
output in another store is owed first and given then; at most once, inputs count as done first, and outputs follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness import INFORMATIVE, Plan, Row, Side, Size
from bench.place import Place
from bench.processor import latency, throughput, ways
from bench.processor.suite import SUITE
from bench.processor.ways import Way

BATCH = 100
PARALLEL = 8

KINDS = {
    "across": "output in another store",
    "whole": "batch taken whole",
    "any": "any-of two inputs",
    "dropping": "at most once",
}


def ways_of(place: Place) -> dict[str, Way]:
    """A plain stream, and the others by name."""
    return {
        "plain": ways.graph(),
        "across": ways.across(place),
        "whole": ways.graph(function=ways.same_whole, whole=True),
        "any": ways.any_of,
        "dropping": ways.graph(delivery="at-most-once"),
    }


@SUITE.measurement("kinds-latency")
@contextmanager
def kinds_latency(place: Place, size: Size) -> Iterator[Plan]:
    """One message at a time through each kind."""
    count = size.of(200, 50)
    side: Side = lambda: latency.one_round(place, "file", ways_of(place), count)  # noqa: E731
    note = "file:, from the moment when the append to the input returns until a tail has the output"
    rows = [
        Row(
            f"one hop, {what}, {text}, against a plain stream", "ms", f"one.{kind}.hop.{what}", INFORMATIVE, other, note
        )
        for kind, text in KINDS.items()
        for what, other in (("median", "one.plain.hop.median"), ("p99", "one.plain.hop.p99"))
    ]
    yield Plan({"one": side}, rows, warm_up=False)


@SUITE.measurement("kinds-throughput")
@contextmanager
def kinds_throughput(place: Place, size: Size) -> Iterator[Plan]:
    """Many messages through each kind."""
    count = size.of(20_000, 10_000)

    def side(way: Way) -> Side:
        return lambda: throughput.carried(place, "file", way, BATCH, count)

    for way in ways_of(place).values():
        throughput.carried(place, "file", way, throughput.FIRST, throughput.FIRST)
    note = f"file:, batches of {BATCH}, appended while the processor works"
    rows = [
        Row(f"one hop, {text}, against a plain stream", "msg/s", kind, INFORMATIVE, "plain", note)
        for kind, text in KINDS.items()
    ]
    yield Plan({kind: side(way) for kind, way in ways_of(place).items()}, rows, warm_up=False)


@SUITE.measurement("parallel")
@contextmanager
def parallel(place: Place, size: Size) -> Iterator[Plan]:
    """A function that waits, called for many keys at once."""
    count = size.of(2_000, 400)

    def side(threads: int) -> Side:
        way = ways.graph(function=ways.same_later, parallel=threads)
        return lambda: throughput.carried(place, "file", way, BATCH, count)

    what = f"one hop, a function that sleeps {ways.NAP_S * 1000:.0f} ms, parallel={PARALLEL} against 1"
    note = f"file:, batches of {BATCH}, messages without keys"
    yield Plan(
        {"many": side(PARALLEL), "one": side(1)},
        [Row(what, "msg/s", "many", INFORMATIVE, "one", note)],
        warm_up=False,
    )
