"""The job of every side, ours and the peers': for an order one row is written, and one message is sent on."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

ORDERS, BILLING = "orders", "billing"
"""The app and its queue, and the queue that it sends to."""

CONCURRENCY = 8
CONNECTIONS = CONCURRENCY + 4
"""A connection for each handler, and for those who forward and tidy up."""

BUSY_S = 60
"""How long SQLite waits for its one lock: none is to fail because eight want it."""

LOOK_S = 0.005
PATIENCE_S = 60.0

DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

_INSERT = text("INSERT INTO entries (number, customer, amount) VALUES (:number, :customer, :amount)")


@dataclass(frozen=True)
class PlaceOrder:
    number: int
    customer: str
    amount: float


@dataclass(frozen=True)
class OrderPlaced:
    number: int
    customer: str


def order(number: int) -> PlaceOrder:
    return PlaceOrder(number, f"customer-{number % 97}", number * 1.25)


def enter(session: Session, number: int, customer: str, amount: float) -> None:
    """The row of an order."""
    session.execute(_INSERT, {"number": number, "customer": customer, "amount": amount})


# -- databases --------------------------------------------------------------------------------------------------------


def url_of(database: str, folder: Path, postgres: str) -> str:
    """The URL of a database of that kind; `postgres` is the one of a server of this run's own."""
    return postgres if database == "postgres" else f"sqlite:///{folder / 'books.db'}"


def new_engine(url: str) -> sqlalchemy.Engine:
    """As an application would have it: SQLite with WAL, and a commit that waits for the disk."""
    engine = sqlalchemy.create_engine(url, pool_size=CONNECTIONS)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _connected)
    return engine


def _connected(connection: sqlalchemy.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", f"busy_timeout = {BUSY_S * 1000}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


@contextmanager
def books(url: str) -> Iterator[sessionmaker[Session]]:
    """Sessions of a database whose tables are empty, those of trackers and outboxes too."""
    engine = new_engine(url)
    try:
        with engine.begin() as connection:
            for table in sqlalchemy.inspect(connection).get_table_names():
                if table == "entries" or table.startswith("detent_"):
                    connection.execute(text(f"DROP TABLE {table}"))
            connection.execute(text("CREATE TABLE entries (number bigint, customer text, amount double precision)"))
        yield sessionmaker(engine)
    finally:
        engine.dispose()


def check(sessions: sessionmaker[Session], orders: int) -> None:
    """Each order has its row."""
    with sessions() as session:
        found = session.execute(text("SELECT count(*), count(DISTINCT number) FROM entries")).one()
    assert tuple(found) == (orders, orders), f"{found[0]} rows of {found[1]} orders instead of {orders}"


# -- waiting ----------------------------------------------------------------------------------------------------------


def until(done: Callable[[], bool], started: float) -> float:
    """Seconds since `started` until something is so. Looking is a little work too, so it is done now and then."""
    deadline = started + PATIENCE_S
    while not done():
        assert time.perf_counter() < deadline, "the messages were not handled in time"
        time.sleep(LOOK_S)
    return time.perf_counter() - started


def end_with(work: Callable[[], float], sessions: sessionmaker[Session], orders: int) -> None:
    """The end of a peer's program: wait, print the seconds, and be gone. To stop its worker would take seconds more."""
    status = 1
    try:
        taken = work()
        check(sessions, orders)
        print(taken, flush=True)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
