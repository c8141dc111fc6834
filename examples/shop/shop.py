"""A shop: orders become invoices, invoices become mails, each once, whatever is killed meanwhile.

    web.py    POST /orders         -> an order, and OrderPlaced is published      one transaction
    invoices  OrderPlaced          -> an invoice, and InvoiceMade is published    one transaction
    mail      InvoiceMade          -> a mail to the mail server, and a row        one transaction, and something outside

Everything is in the folder SHOP_DATA (./shop-data): shop.db has the tables of the business, the marks of handled
messages and the outbox; store/ has the queues; mails/ is the mail server. To run the parts by hand, each in a terminal:

    python examples/shop/shop.py setup
    python examples/shop/shop.py invoices
    python examples/shop/shop.py mail
    python examples/shop/web.py
    curl localhost:8000/orders -H 'content-type: application/json' -d '{"id": "o-1", "cents": 1999}'

or all of it at once, with processes killed at random and the books balanced afterwards:

    python examples/shop/run.py

It needs nothing but the extra ``sql`` and fastapi.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import detent
from detent.bus import (
    Bus,
    Context,
    IdempotencyConfig,
    QueueTransport,
    Retries,
    SqlAlchemyUnitOfWork,
    SqlOutbox,
    SqlTracker,
)

DATA = Path(os.environ.get("SHOP_DATA", "shop-data")).resolve()
STORE = f"file:{DATA / 'store'}"

LEASE = "1s"
"""How long a message waits whose process was killed. An app that is not killed all the time keeps the 30 s that are
there by themselves."""


# -- tables -----------------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    """The tables of the business. An order may have several invoices, as far as the database knows: that it has one is
    not due to a constraint."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Invoice(Base):
    __tablename__ = "invoices"
    number: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[str]
    cents: Mapped[int]


class Mail(Base):
    __tablename__ = "mails"
    number: Mapped[int] = mapped_column(primary_key=True)
    invoice: Mapped[int]
    cents: Mapped[int]
    key: Mapped[str]


engine = sqlalchemy.create_engine(f"sqlite:///{DATA / 'shop.db'}")
sessions = sessionmaker(engine)


@event.listens_for(engine, "connect")
def _connected(connection: Any, _record: Any) -> None:
    """SQLite has one writer. Who comes second waits, rather than to fail at once."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA busy_timeout = 30000")


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OrderPlaced:
    order: str
    cents: int


@dataclass(frozen=True)
class InvoiceMade:
    invoice: int
    order: str
    cents: int


# -- apps -------------------------------------------------------------------------------------------------------------


def new_bus(name: str, **options: Any) -> Bus:
    """An app that writes its rows, its marks and its outgoing messages in one transaction of the shop's database."""
    return Bus(
        name,
        QueueTransport(STORE, lease=LEASE),
        unit_of_work=SqlAlchemyUnitOfWork(sessions),
        idempotency=IdempotencyConfig(SqlTracker()),
        outbox=SqlOutbox(),
        outbox_lease=LEASE,
        retries=Retries(immediate=50),  # a process that is killed is an attempt, too
        concurrency=2,
        **options,
    )


shop = new_bus("shop", send_only=True)
invoices = new_bus("invoices")
mail = new_bus("mail")


@invoices.handler
def make_invoice(placed: OrderPlaced, session: Session, context: Context) -> None:
    """No check whether the order has an invoice, no commit: both are the bus's."""
    invoice = Invoice(order=placed.order, cents=placed.cents)
    session.add(invoice)
    session.flush()  # which gives it its number
    context.publish(InvoiceMade(invoice.number, placed.order, placed.cents))


@mail.handler
def send_mail(made: InvoiceMade, session: Session, context: Context) -> None:
    """The mail server cannot take part in the transaction: it may be asked twice for one mail, under the same key."""
    postman.send(context.effect_key, f"Order {made.order}: please pay {made.cents / 100:.2f}")
    session.add(Mail(invoice=made.invoice, cents=made.cents, key=context.effect_key))


class MailServer:
    """Stands for a service somewhere else that knows by a key what it has done: a file for each mail. `asked` has a
    line for each request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = folder / "asked.log"

    def send(self, key: str, text: str) -> None:
        """Send a mail, unless one with this key was sent."""
        with self.asked.open("a") as log:
            log.write(f"{key}\n")
        path = self.folder / f"{quote(key, safe='')}.txt"
        if not path.exists():
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(text)
            draft.rename(path)  # all of it, or nothing


postman = MailServer(DATA / "mails")


# -- running ----------------------------------------------------------------------------------------------------------


def setup() -> None:
    """Make tables and queues, and subscribe, before the first order comes: what is published before an app has
    subscribed is not delivered. A shop that is deployed does so with its migrations."""
    postman.folder.mkdir(parents=True, exist_ok=True)
    Base.metadata.create_all(engine)
    with detent.open(STORE) as store:
        for bus in (invoices, mail):  # a queue that is there keeps its settings: here it is quick with what was lost
            store.queue(bus.name).create(exist_ok=True, max_attempts=0, backoff="100ms", max_backoff="1s")
            bus.prepare()
            bus.stop()


def main(part: str) -> None:
    """Set up, or run an app until SIGTERM or Ctrl-C."""
    parts = {"setup": setup, "invoices": invoices.run, "mail": mail.run}
    if part not in parts:
        sys.exit(f"there is {', '.join(parts)}, and no {part!r}")
    parts[part]()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
