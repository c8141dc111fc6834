"""How long one message takes through a handler, with tracker and outbox, to the next app's handler. Both apps and the
store are in one process, and nothing else is to be done meanwhile.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import detent
from bench.bus import apps, job
from bench.bus.engine import once as engine_once
from bench.bus.suite import SUITE
from bench.bus.throughput import database_url
from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.place import Place
from detent.bus import Bus, QueueTransport

PAUSE_S = 0.005
"""Between a message's arrival and the next one: everybody waits again by then."""

UNMEASURED = 10
PATIENCE_S = 30.0


def delays(place: Place, make: Callable[[detent.Store, str], Bus], url: str | None, count: int) -> float:
    """From before a message is sent until the second handler has what the first one sent; median, in milliseconds."""
    arrived = threading.Semaphore(0)
    times: list[float] = []
    with ExitStack() as stack:
        folder = stack.enter_context(place.fresh())
        store = stack.enter_context(detent.open(f"file:{folder / 'store'}"))
        for name in (job.ORDERS, job.BILLING):
            store.queue(name).create(max_attempts=0)
        billing = Bus(job.BILLING, QueueTransport(store))

        @billing.handler
        def bill(placed: job.OrderPlaced) -> None:
            times.append(time.perf_counter())
            arrived.release()

        stack.enter_context(billing)
        stack.enter_context(make(store, url or f"sqlite:///{folder / 'books.db'}"))
        shop = stack.enter_context(Bus("shop", QueueTransport(store), send_only=True))
        found = []
        for number in range(UNMEASURED + count):
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            shop.send(job.order(number), to=job.ORDERS)
            assert arrived.acquire(timeout=PATIENCE_S), f"nothing came of message {number}"
            found.append((times[-1] - started) * 1000)
    return statistics.median(found[UNMEASURED:])


@SUITE.measurement("latency")
@contextmanager
def latency(place: Place, size: Size) -> Iterator[Plan]:
    count = size.of(100, 20)
    with ExitStack() as stack:
        server = stack.enter_context(database_url(place))
        opened = ExitStack()  # of the side that runs
        made = {"bare": apps.bare, "once": apps.once}

        def of_kind(make: apps.Made) -> Callable[[detent.Store, str], Bus]:
            return lambda store, url: make(store, opened.enter_context(job.books(url)))

        def side(make: Callable[[detent.Store, str], Bus], url: str | None) -> float:
            with opened:
                return delays(place, make, url, count)

        sides = {
            f"{name}-{database}": lambda make=make, url=url: side(of_kind(make), url)
            for database, url in (("sqlite", None), ("postgres", server))
            for name, make in made.items()
        }
        sides["engine"] = lambda: side(lambda store, _: engine_once(store), None)
        yield Plan(sides, _rows(), warm_up=False)


def _rows() -> list[Row]:
    note = (
        "from before the send until the next app's handler begins, median; other: the same without tracker and outbox"
    )
    rows = [
        Row(
            f"latency of one message, {name}: tracker + outbox", "ms", f"once-{kind}", INFORMATIVE, f"bare-{kind}", note
        )
        for kind, name in job.DATABASES.items()
    ]
    text = "latency of one message, engine"
    return [*rows, Row(text, "ms", "engine", INFORMATIVE, "bare-sqlite", "other: a bare handler on SQLite")]
