"""Balancing the shop's books: what there should be, and what there is.

    python examples/shop/books.py                     # of ./shop-data, when nothing is running

Nothing here trusts the bus: it counts rows, files and messages.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from shop import STORE, Invoice, Mail, Order, postman, sessions
from sqlalchemy import select, text

import detent

APPS = ("invoices", "mail")


@dataclass
class Books:
    """What was found."""

    orders: int = 0
    invoices: int = 0
    mails: int = 0
    mails_kept: int = 0
    """Mails that the mail server has."""
    mails_asked: int = 0
    """How often it was asked for one."""
    cents: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """What does not add up, in words. Nothing should be here."""


def balance(expected: dict[str, int] | None = None) -> Books:
    """Count everything. `expected` are the orders that customers were promised, with their cents."""
    books = Books()
    with sessions() as session:
        orders = {order.id: order.cents for order in session.scalars(select(Order))}
        invoices = list(session.scalars(select(Invoice)))
        mails = list(session.scalars(select(Mail)))
        waiting = session.execute(text("SELECT count(*) FROM detent_outbox")).scalar_one()
        marks = dict(map(tuple, session.execute(text("SELECT consumer, count(*) FROM detent_handled GROUP BY 1"))))
    books.orders, books.invoices, books.mails = len(orders), len(invoices), len(mails)
    books.cents = {
        "orders": sum(orders.values()),
        "invoices": sum(invoice.cents for invoice in invoices),
        "mails": sum(one.cents for one in mails),
    }
    say = books.wrong.append
    if expected is not None and orders != expected:
        say(f"{len(expected)} orders were promised, and {len(orders)} are in the books, or others")
    _once(say, "order", orders, "invoice", [invoice.order for invoice in invoices])
    _once(say, "invoice", [invoice.number for invoice in invoices], "mail", [one.invoice for one in mails])
    if len(set(books.cents.values())) > 1:
        say(f"the sums differ: {books.cents}")
    _check_mails(books, {one.key for one in mails})
    if waiting:
        say(f"{waiting} messages are left in the outbox")
    for app in APPS:
        if marks.get(app, 0) != len(orders):
            say(f"{app} has marked {marks.get(app, 0)} messages as handled, of {len(orders)}")
    _check_queues(books)
    return books


def _once(say: Callable[[str], None], what: str, wanted: Iterable[object], kind: str, found: Iterable[object]) -> None:
    """Each of `wanted` is found once, and nothing else is."""
    counts, known = Counter(found), set(wanted)
    for missing in sorted(map(str, known - set(counts))):
        say(f"the {what} {missing} has no {kind}")
    for one, count in counts.items():
        if one not in known:
            say(f"there is a {kind} for the {what} {one}, which does not exist")
        elif count > 1:
            say(f"the {what} {one} has {count} {kind}s")


def _check_mails(books: Books, keys: set[str]) -> None:
    kept = {unquote(path.stem) for path in postman.folder.glob("*.txt")}
    asked = postman.asked.read_text().splitlines() if postman.asked.exists() else []
    books.mails_kept, books.mails_asked = len(kept), len(asked)
    if kept != keys:
        books.wrong.append(f"the mail server has {len(kept)} mails, and the books have {len(keys)}, or others")
    if kept - set(asked):
        books.wrong.append("the mail server has mails that were not asked for")


def _check_queues(books: Books) -> None:
    with detent.open(STORE) as store:
        for app in APPS:
            info = store.queue(app).info()
            if info.available or info.in_flight:
                books.wrong.append(f"{info.available + info.in_flight} messages are left in the queue of {app}")
            for failed in store.queue(app).failed():
                books.wrong.append(f"{app} has given up a message: {failed.reason}")


if __name__ == "__main__":
    found = balance()
    print(f"{found.orders} orders, {found.invoices} invoices, {found.mails} mails")
    print("\n".join(found.wrong) or "the books balance")
    sys.exit(1 if found.wrong else 0)
