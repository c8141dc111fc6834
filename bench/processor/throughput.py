"""Messages a second through three hops, from the first append until a tail has read the last output.

Those who append, the processors and the one who tails all work at the same time, on one interpreter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

from bench.harness import INFORMATIVE, Plan, Row, Side, Size, ratio_at_least
from bench.place import Place
from bench.processor import ways
from bench.processor.suite import SUITE
from bench.processor.ways import Ends, Way
from detent.journal import Journal

BATCHES = (1, 10, 100, 1_000)
COUNTS = {1: 1_000, 10: 5_000, 100: 50_000, 1_000: 150_000}
QUICK_COUNTS = {1: 200, 10: 1_000, 100: 10_000, 1_000: 20_000}
"""Messages by the size of the batches: one or two seconds' work for a graph."""

FIRST = 20
"""Messages that each way carries before anything is measured: the first ones of a process import and compile."""

BARRED = 100
THIRD = ratio_at_least(0.3, "at least 0.3 of appending to the same journals and tailing them by hand")
HOPS = 3
WAYS = {"graph": ways.graph(HOPS), "raw": ways.raw, "hand": ways.by_hand(HOPS)}

APPENDED = "appended in batches of the same size while the processors work; bodies of 100 bytes"
RAW = f"{APPENDED}; other: the same appended to one journal, and tailed"
HAND = f"{APPENDED}; other: three threads that tail a journal and append to the next one in batches, without progress"


class Receiver:
    """A thread that tails a journal until all has come."""

    def __init__(self, journal: Journal, count: int) -> None:
        self._journal = journal
        self._count = count
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        self.bodies: list[bytes] = []
        self.ended = 0.0

    def _receive(self) -> None:
        bodies = [message.body for message in islice(self._journal.tail(0), self._count)]
        self.ended = time.perf_counter()
        self.bodies = bodies

    def wait(self) -> None:
        """Until all has come."""
        self._thread.join(ways.PATIENCE_S)
        assert not self._thread.is_alive(), f"not all {self._count} messages have come out"


def rate(ends: Ends, batch: int, count: int) -> float:
    """Messages a second along a way."""
    bodies = [ways.body(number) for number in range(count)]
    receiver = Receiver(ends.output, count)
    started = time.perf_counter()
    for number, start in enumerate(range(0, count, batch)):
        journal = ends.inputs[number % len(ends.inputs)]
        if batch == 1:
            journal.append(bodies[start])
        else:
            journal.append_many(bodies[start : start + batch])
    receiver.wait()
    came = receiver.bodies if len(ends.inputs) == 1 else sorted(receiver.bodies, key=lambda one: int(one.split()[0]))
    assert came == bodies, "each message comes out once, in order"
    return count / (receiver.ended - started)


def carried(place: Place, kind: str, way: Way, batch: int, count: int) -> float:
    """The same in a store of its own."""
    with ways.new_store(place, kind) as store, way(store, "way", batch, count) as ends:
        return rate(ends, batch, count)


def plan(place: Place, size: Size, kind: str) -> AbstractContextManager[Plan]:
    """All ways and batches, in one kind of store."""
    counts = QUICK_COUNTS if size.quick else COUNTS

    def side(way: Way, batch: int) -> Side:
        return lambda: carried(place, kind, way, batch, counts[batch])

    @contextmanager
    def prepared() -> Iterator[Plan]:
        for way in WAYS.values():
            carried(place, kind, way, FIRST, FIRST)
        sides = {f"{name}-{batch}": side(way, batch) for batch in BATCHES for name, way in WAYS.items()}
        yield Plan(sides, _rows(kind), warm_up=False)

    return prepared()


def _rows(kind: str) -> list[Row]:
    rows = []
    for batch in BATCHES:
        bar = THIRD if (kind, batch) == ("file", BARRED) else INFORMATIVE
        text = f"three hops, {kind}:, batches of {batch:,}"
        rows.append(Row(f"{text}, against the same by hand", "msg/s", f"graph-{batch}", bar, f"hand-{batch}", HAND))
        rows.append(Row(f"{text}, against one journal", "msg/s", f"graph-{batch}", INFORMATIVE, f"raw-{batch}", RAW))
    return rows


@SUITE.measurement("throughput-file")
def on_disk(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Each append is synced, and so is the commit of each step."""
    return plan(place, size, "file")


@SUITE.measurement("throughput-memory")
def in_memory(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """What is left when no disk is waited for."""
    return plan(place, size, "memory")
