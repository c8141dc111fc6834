"""What tests of the bus share: messages, an app on a store in memory, and what became of its messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

import detent
from detent.bus import (
    Bus,
    IdempotencyConfig,
    QueueTransport,
    Retries,
    SqlAlchemyUnitOfWork,
    SqlOutbox,
    SqlTracker,
)


@dataclass(frozen=True)
class OrderPlaced:
    number: int
    items: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RushOrder(OrderPlaced):
    """A kind of order: handlers of orders take it, too."""


class Invoiced(msgspec.Struct, frozen=True):
    order: int
    cents: int = 0


class Mailed(BaseModel):
    order: int
    to: str = "a@example.org"


class Broken(Exception):
    """What handlers of tests raise."""


AT_ONCE = Retries(immediate=4, delayed=())


@contextmanager
def app(store: detent.Store | None = None, name: str | None = None, **options: Any) -> Iterator[Bus]:
    """An app on a store in memory, stopped at the end."""
    with detent.open("memory:") as own:
        transport = QueueTransport(store or own)
        bus = Bus(name or f"app-{uuid.uuid4().hex[:8]}", transport, **{"retries": AT_ONCE, **options})
        try:
            yield bus
        finally:
            bus.stop()


def failed_reasons(store: detent.Store, queue: str) -> list[str]:
    """Why messages are on the failed list."""
    return [message.reason for message in store.queue(queue).failed()]


class Books:
    """A database with the business's own table in it, and a unit of work on it."""

    def __init__(self, url: str) -> None:
        self.engine = sqlalchemy.create_engine(url)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=20000"))
        self.sessions = sessionmaker(self.engine)
        self.unit_of_work = SqlAlchemyUnitOfWork(self.sessions)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS entries (app text, number int, note text)"))

    def options(self, **changes: Any) -> dict[str, Any]:
        """What an app is made with that does everything in this database."""
        return {
            "unit_of_work": self.unit_of_work,
            "idempotency": IdempotencyConfig(SqlTracker()),
            "outbox": SqlOutbox(),
            **changes,
        }

    def entries(self) -> list[tuple[str, int]]:
        """What the handlers wrote."""
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT app, number FROM entries ORDER BY app, number"))
            return [(row[0], row[1]) for row in rows]

    def count(self, table: str) -> int:
        """How many rows a table has."""
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    def close(self) -> None:
        self.engine.dispose()


def enter(session: Session, app: str, number: int, note: str = "") -> None:
    """What handlers of tests do: one row of the business's own."""
    session.execute(
        text("INSERT INTO entries (app, number, note) VALUES (:app, :number, :note)"),
        {"app": app, "number": number, "note": note},
    )
