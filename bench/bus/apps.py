"""Our apps that do the job: with tracker and outbox, with a unit of work alone, and bare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

import detent
from bench.bus.job import BILLING, CONCURRENCY, ORDERS, OrderPlaced, PlaceOrder, enter, order
from detent.bus import Bus, Context, IdempotencyConfig, QueueTransport, SqlAlchemyUnitOfWork, SqlOutbox, SqlTracker

Made = Callable[[detent.Store, sessionmaker[Session]], Bus]


def bare(store: detent.Store, sessions: sessionmaker[Session]) -> Bus:
    """What one would write without: the handler has a session of its own, and commits it. What it sends is sent when it
    has returned."""
    bus = Bus(ORDERS, QueueTransport(store), concurrency=CONCURRENCY)

    @bus.handler
    def place(placed: PlaceOrder, context: Context) -> None:
        with sessions() as session:
            enter(session, placed.number, placed.customer, placed.amount)
            session.commit()
        context.send(OrderPlaced(placed.number, placed.customer), to=BILLING)

    return bus


def unit(store: detent.Store, sessions: sessionmaker[Session]) -> Bus:
    """A transaction for each message, and nothing else."""
    bus = Bus(ORDERS, QueueTransport(store), unit_of_work=SqlAlchemyUnitOfWork(sessions), concurrency=CONCURRENCY)
    return handling(bus)


def once(store: detent.Store, sessions: sessionmaker[Session]) -> Bus:
    """Tracker and outbox: each order takes effect once."""
    bus = Bus(
        ORDERS,
        QueueTransport(store),
        unit_of_work=SqlAlchemyUnitOfWork(sessions),
        idempotency=IdempotencyConfig(SqlTracker()),
        outbox=SqlOutbox(),
        concurrency=CONCURRENCY,
    )
    return handling(bus)


def handling(bus: Bus) -> Bus:
    """The handler of apps that have a session for each message."""

    @bus.handler
    def place(placed: PlaceOrder, session: Session, context: Context) -> None:
        enter(session, placed.number, placed.customer, placed.amount)
        context.send(OrderPlaced(placed.number, placed.customer), to=BILLING)

    return bus


def fill(folder: Path, orders: int) -> None:
    """A store with so many orders in the app's queue, each with its id, and an empty queue that is sent to."""
    with detent.open(f"file:{folder}") as store:
        for name in (ORDERS, BILLING):
            store.queue(name).create(max_attempts=0)
        shop = Bus("shop", QueueTransport(store), send_only=True)
        for number in range(orders):
            shop.send(order(number), to=ORDERS)
        shop.stop()


def is_done(store: detent.Store, orders: int) -> bool:
    """Whether everything has arrived where it was sent to, and everything is acknowledged."""
    if store.queue(BILLING).info().available < orders:
        return False
    left = store.queue(ORDERS).info()
    return not left.available and not left.in_flight


@contextmanager
def ready(bus: Bus) -> Iterator[Bus]:
    """An app that is ready, and is stopped at the end, whatever has started meanwhile."""
    try:
        bus.prepare()
        yield bus
    finally:
        bus.stop()
