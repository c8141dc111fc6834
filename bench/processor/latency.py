"""How long one message takes through one hop, when there is nothing else to do.

All ways are open at once, in one store, and each sends a message in turn, so that whatever disturbs the machine
disturbs all of them. The next one is sent when the one before has come out and everybody waits again.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice

from bench.harness import INFORMATIVE, Plan, Row, Side, Size, ratio_at_most
from bench.place import Place
from bench.processor import ways
from bench.processor.suite import SUITE
from bench.processor.ways import Ends, Way

PAUSE_S = 0.002
"""Between a message that has come out and the next one: everybody waits again by then."""

UNMEASURED = 20
"""Messages of each way before the ones that count: the first ones find files and indexes to be made."""

TWICE = ratio_at_most(2, "a hop takes at most 2 x a raw append and tail")

HOP = (
    "from the moment when the append to the input returns until a tail has the output; other: from the call of append "
    "on a journal until a tail of it has the message"
)
WHOLE = (
    "from the call of append to the input until a tail has the output; other: the same where a thread tails the input "
    "and appends to the output, without progress"
)


class Sender:
    """Sends one message at a time, and waits until it has come out."""

    def __init__(self, ends: Ends, count: int) -> None:
        self._ends = ends
        self._count = count
        self._sent = 0
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        self.hop: list[float] = []
        self.whole: list[float] = []

    def _receive(self) -> None:
        for message in islice(self._ends.output.tail(0), self._count):
            came = time.perf_counter_ns()
            assert message.body == ways.body(message.offset), f"{message.body!r} at offset {message.offset}"
            self._came.put(came)

    def send(self) -> None:
        """Milliseconds from the call of append, and from its return."""
        journal = self._ends.inputs[self._sent % len(self._ends.inputs)]
        body = ways.body(self._sent)
        called = time.perf_counter_ns()
        journal.append(body)
        returned = time.perf_counter_ns()
        came = self._came.get(timeout=ways.PATIENCE_S)
        self._sent += 1
        self.hop.append((came - returned) / 1e6)
        self.whole.append((came - called) / 1e6)

    def found(self) -> dict[str, float]:
        """Medians and 99th percentiles, without the first messages."""
        self._thread.join()
        numbers = {}
        for what, times in (("hop", self.hop), ("whole", self.whole)):
            measured = sorted(times[UNMEASURED:])
            numbers[f"{what}.median"] = statistics.median(measured)
            numbers[f"{what}.p99"] = measured[-(-99 * len(measured) // 100) - 1]
        return numbers


def one_round(place: Place, kind: str, chosen: Mapping[str, Way], count: int) -> dict[str, float]:
    """Messages along all ways, in turn; the numbers of each, by its name."""
    with ExitStack() as stack:
        store = stack.enter_context(ways.new_store(place, kind))
        senders = {
            name: Sender(stack.enter_context(way(store, name, 1, UNMEASURED + count)), UNMEASURED + count)
            for name, way in chosen.items()
        }
        for _ in range(UNMEASURED + count):
            for sender in senders.values():
                time.sleep(PAUSE_S)
                sender.send()
        return {f"{name}.{what}": number for name, sender in senders.items() for what, number in sender.found().items()}


def plan(place: Place, size: Size, kind: str) -> AbstractContextManager[Plan]:
    """A hop of a graph, the same by hand, and a journal alone, in one kind of store."""
    chosen = {"raw": ways.raw, "graph": ways.graph(), "hand": ways.by_hand(1)}
    count = size.of(400, 100)

    @contextmanager
    def prepared() -> Iterator[Plan]:
        side: Side = lambda: one_round(place, kind, chosen, count)  # noqa: E731
        yield Plan({"one": side}, _rows(kind), warm_up=False)

    return prepared()


def _rows(kind: str) -> list[Row]:
    rows = []
    for what in ("median", "p99"):
        bar = TWICE if what == "median" else INFORMATIVE
        text = f"one hop, {kind}:, {what}, against a raw append and tail"
        rows.append(Row(text, "ms", f"one.graph.hop.{what}", bar, f"one.raw.whole.{what}", HOP))
    for what in ("median", "p99"):
        text = f"append and one hop, {kind}:, {what}, against the same by hand"
        rows.append(Row(text, "ms", f"one.graph.whole.{what}", INFORMATIVE, f"one.hand.whole.{what}", WHOLE))
    return rows


@SUITE.measurement("latency-file")
def on_disk(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Each append is synced, and so is the commit of each step."""
    return plan(place, size, "file")


@SUITE.measurement("latency-memory")
def in_memory(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """What is left when no disk is waited for."""
    return plan(place, size, "memory")
