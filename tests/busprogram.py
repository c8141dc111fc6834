"""Two apps in a process of their own, for tests that kill it: orders become invoices, in a database.

    orders:  PlaceOrder -> a row, and OrderPlaced is published (through the outbox, where there is one)
    billing: OrderPlaced -> a row

Whoever checks the books afterwards finds one row of each app for each order.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

import detent
from detent.bus import (
    Bus,
    Context,
    EngineUnitOfWork,
    IdempotencyConfig,
    QueueTransport,
    Retries,
    SqlAlchemyUnitOfWork,
    SqlOutbox,
    SqlTracker,
    exactly_once,
    forwarder,
    worker,
)
from processes import PATIENCE_S, Io

LEASE = "300ms"
APPS = ("orders", "billing")
MANY = Retries(immediate=5, delayed=("100ms",) * 300)
"""More than a database that is started again takes."""


@dataclass(frozen=True)
class PlaceOrder:
    number: int


@dataclass(frozen=True)
class OrderPlaced:
    number: int


def new_engine(url: str) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=20000"))
    return engine


def make_books(url: str) -> None:
    """The tables of the business."""
    engine = new_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS entries (app text, number int)"))
    engine.dispose()


def entries(url: str) -> list[tuple[str, int]]:
    """What the handlers wrote, with duplicates if there are any."""
    engine = new_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT app, number FROM entries ORDER BY app, number")).all()
    engine.dispose()
    return [(row[0], row[1]) for row in rows]


def send_orders(store_url: str, count: int) -> None:
    """Orders, and queues that hold them before anybody has started."""
    with detent.open(store_url) as store:
        for name in APPS:
            store.queue(name).create(exist_ok=True, max_attempts=0, lease=LEASE, backoff="1ms")
        bus = Bus("shop", QueueTransport(store), send_only=True)
        for number in range(count):
            bus.send(PlaceOrder(number), to="orders", id=f"order-{number}")
        bus.stop()


def _enter(session: Session, name: str, number: int) -> None:
    session.execute(text("INSERT INTO entries (app, number) VALUES (:app, :number)"), {"app": name, "number": number})


def sql_apps(store: detent.Store, url: str, outbox: bool) -> list[Bus]:
    """Both apps, with tracker and, if asked for, outbox in a database."""
    sessions = sessionmaker(new_engine(url))
    made = []
    for name in APPS:
        bus = Bus(
            name,
            QueueTransport(store, lease=LEASE),
            unit_of_work=SqlAlchemyUnitOfWork(sessions),
            idempotency=IdempotencyConfig(SqlTracker(), should_stop_invocation=outbox),
            outbox=SqlOutbox() if outbox else None,
            retries=MANY,
            concurrency=2,
            outbox_lease=LEASE,
        )
        made.append(bus)
    orders, billing = made

    @orders.handler
    def place(order: PlaceOrder, session: Session, context: Context) -> None:
        if not context.repeated:
            _enter(session, "orders", order.number)
        context.publish(OrderPlaced(order.number))

    @billing.handler
    def bill(order: OrderPlaced, session: Session, context: Context) -> None:
        if not context.repeated:
            _enter(session, "billing", order.number)

    return made


def engine_apps(store: detent.Store) -> list[Bus]:
    """Both apps, with what they write in journals of the store."""
    made = []
    for name in APPS:
        bus = Bus(name, QueueTransport(store, lease=LEASE), unit_of_work=EngineUnitOfWork(), retries=MANY)
        made.append(bus)
    orders, billing = made

    @orders.handler
    def place(order: PlaceOrder, transaction: detent.Transaction, context: Context) -> None:
        transaction.append("entries", json.dumps(["orders", order.number]).encode())
        context.publish(OrderPlaced(order.number))

    @billing.handler
    def bill(order: OrderPlaced, transaction: detent.Transaction) -> None:
        transaction.append("entries", json.dumps(["billing", order.number]).encode())

    return made


def works(io: Io, store_url: str, books: str, kind: str, count: int, role: str = "auto") -> None:
    """Run both apps until every order is in the books of both."""
    worker.RECEIVE_WAIT_S, forwarder.POLL_S = 0.05, 0.05  # type: ignore[misc]  # who waits less, is done sooner
    with detent.open(store_url, role=role) as store:  # type: ignore[arg-type]
        apps = engine_apps(store) if kind == "engine" else sql_apps(store, books, kind != "resend")
        for bus in apps:  # both have subscribed before the first one publishes
            bus.prepare()
        for bus in apps:
            bus.start()
        io.say("started")
        deadline = time.monotonic() + PATIENCE_S
        while not is_done(store, books, kind, count) and time.monotonic() < deadline:
            time.sleep(0.01)
        for bus in apps:
            bus.stop()


def is_done(store: detent.Store, books: str, kind: str, count: int) -> bool:
    """Whether nothing is left to do: every queue and the outbox are empty."""
    if any(info.available + info.in_flight for name in APPS for info in [store.queue(name).info()]):
        return False
    if kind == "engine":
        return len(engine_entries(store)) >= 2 * count
    engine = new_engine(books)
    try:
        with engine.connect() as connection:
            written = connection.execute(text("SELECT count(*) FROM entries")).scalar_one()
            waiting = 0
            if kind != "resend":
                waiting = connection.execute(text("SELECT count(*) FROM detent_outbox")).scalar_one()
    except sqlalchemy.exc.OperationalError:  # it was killed, and comes back
        return False
    finally:
        engine.dispose()
    return bool(written >= 2 * count and not waiting)


def engine_entries(store: detent.Store) -> list[tuple[str, int]]:
    """What the handlers wrote to the store."""
    if "entries" not in store.journals():
        return []
    found: list[Any] = [json.loads(message.body) for message in store.journal("entries").read()]
    return sorted((name, number) for name, number in found)


def expected(count: int) -> list[tuple[str, int]]:
    """The books when each order has taken effect once in each app."""
    return sorted((name, number) for name in APPS for number in range(count))


def place_of(folder: Path) -> str:
    """A database of SQLite's."""
    return f"sqlite:///{folder / 'books.db'}"


def inbox(io: Io, books: str, count: int) -> None:
    """A function that takes each message once, over messages that come twice."""
    sessions = sessionmaker(new_engine(books))

    @exactly_once(sessions, consumer="inbox")
    def take(message: dict[str, int], session: Session) -> None:
        _enter(session, "inbox", message["id"])

    for number in [*range(count), *range(count)]:
        take({"id": number})
    io.say("done")
