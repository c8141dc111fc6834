"""Messages a second where no database is: what the handler writes, what it sends and the acknowledgement are one commit
of the store. Against the same three one after another, by the same app without a unit of work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import detent
from bench.bus import apps, job
from bench.bus.suite import SUITE
from bench.consumer.copies import copy_of
from bench.harness import Plan, Row, Size, ratio_at_least
from bench.place import Place
from detent.bus import Bus, Context, EngineUnitOfWork, QueueTransport

ENTRIES = "entries"


def bare(store: detent.Store) -> Bus:
    bus = Bus(job.ORDERS, QueueTransport(store), concurrency=job.CONCURRENCY)
    journal = store.journal(ENTRIES)

    @bus.handler
    def place(placed: job.PlaceOrder, context: Context) -> None:
        journal.append(_entry(placed))
        context.send(job.OrderPlaced(placed.number, placed.customer), to=job.BILLING)

    return bus


def once(store: detent.Store) -> Bus:
    bus = Bus(job.ORDERS, QueueTransport(store), unit_of_work=EngineUnitOfWork(), concurrency=job.CONCURRENCY)

    @bus.handler
    def place(placed: job.PlaceOrder, transaction: detent.Transaction, context: Context) -> None:
        transaction.append(ENTRIES, _entry(placed))
        context.send(job.OrderPlaced(placed.number, placed.customer), to=job.BILLING)

    return bus


APPS = {"bare": bare, "once": once}


def _entry(placed: job.PlaceOrder) -> bytes:
    return f"{placed.number} {placed.customer} {placed.amount}".encode()


def handled(place: Place, make: Callable[[detent.Store], Bus], orders: int) -> float:
    """Messages a second through an app."""
    filled = place.shared(f"orders-{orders}", lambda path: apps.fill(path, orders))
    with ExitStack() as stack:
        folder = stack.enter_context(copy_of(filled, place))
        store = stack.enter_context(detent.open(f"file:{folder}"))
        bus = stack.enter_context(apps.ready(make(store)))
        started = time.perf_counter()
        bus.start()
        taken = job.until(lambda: apps.is_done(store, orders), started)
        bus.stop()
        assert store.journal(ENTRIES).next_offset() == orders
    return orders / taken


@SUITE.measurement("engine")
@contextmanager
def engine(place: Place, size: Size) -> Iterator[Plan]:
    orders = size.of(1_000, 200)
    bar = ratio_at_least(1, "at least as fast as three commits one after another")
    note = "no SQL: the row is a journal's message; other: append, send and acknowledge, each by itself"
    sides = {name: lambda make=make: handled(place, make, orders) for name, make in APPS.items()}
    yield Plan(
        sides, [Row("handlers on the engine: one commit, against the same bare", "msg/s", "once", bar, "bare", note)]
    )
