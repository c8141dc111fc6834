"""A consumer that stalls, comes back as a zombie, and changes nothing: the delivery number as a fencing token.

    python examples/fencing.py

Two consumers share a queue. The first one claims a payment and stalls past its lease; the second one gets the same
message with a higher delivery number, does the work and acknowledges it. Then the first one wakes up and goes on as if
nothing had happened. Its writes carry its own, lower number:

* the SQL row remembers the highest number that wrote it, and the update of a lower one matches no row;
* the object's name ends with the number, and a reader takes the highest: the zombie's object is never looked at;
* its acknowledgement is refused with `StaleReceipt`.

Numbers grow over all deliveries of a store, so the guard holds whichever messages and queues meet at one row.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import detent

LEASE = "300ms"


def book(database: sqlite3.Connection, account: str, amount: int, token: int) -> bool:
    """Add to an account, unless a later holder of the work has written there. The check and the change are one
    statement, so nothing can come in between."""
    with database:
        changed = database.execute(
            "UPDATE accounts SET balance = balance + ?, fence = ? WHERE name = ? AND fence < ?",
            (amount, token, account, token),
        )
    return changed.rowcount == 1


def write_receipt(folder: Path, payment: int, text: str, token: int) -> None:
    """Write an object whose name carries the token. Names of different holders differ, so none overwrites another.
    (On an object store this is one PUT; here it is a file that appears whole.)"""
    name = folder / f"payment-{payment}" / f"{token:020d}.json"
    name.parent.mkdir(parents=True, exist_ok=True)
    new = name.with_suffix(".new")
    new.write_text(text)
    new.rename(name)


def read_receipt(folder: Path, payment: int) -> str:
    """The object of the latest holder."""
    return max((folder / f"payment-{payment}").glob("*.json")).read_text()


def handle(message: detent.Delivery, who: str, database: sqlite3.Connection, folder: Path) -> bool:
    """What both consumers do with a payment. True if the row was changed."""
    payment = message.json()
    booked = book(database, payment["account"], payment["amount"], message.fencing_token)
    write_receipt(folder, message.id, json.dumps({"by": who, **payment}), message.fencing_token)
    return booked


def main() -> int:
    with tempfile.TemporaryDirectory() as place, detent.open(f"file:{place}/store") as store:
        folder = Path(place) / "receipts"
        database = sqlite3.connect(f"{place}/bank.db")
        database.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INT, fence INT)")
        database.execute("INSERT INTO accounts VALUES ('ada', 0, 0)")
        payments = store.queue("payments")
        payments.create(backoff="0s")
        payments.publish(b'{"account": "ada", "amount": 10}')

        (stalled,) = payments.claim(lease=LEASE, consumer="first")
        print(f"first:  delivery {stalled.fencing_token} claimed, and now it stalls ...")
        time.sleep(0.5)
        (current,) = payments.claim(wait="5s", consumer="second")
        done = handle(current, "second", database, folder)
        current.ack()
        print(f"second: delivery {current.fencing_token} claimed; row changed: {done}; acknowledged")

        zombie = handle(stalled, "first", database, folder)
        print(f"first:  ... awake again; row changed: {zombie}")
        try:
            stalled.ack()
            refused = False
        except detent.StaleReceipt as error:
            refused = True
            print(f"first:  refused: {error}")

        (balance,) = database.execute("SELECT balance FROM accounts WHERE name = 'ada'").fetchone()
        receipt = json.loads(read_receipt(folder, current.id))
        database.close()
        print(f"balance {balance} (10 is right), receipt by {receipt['by']} (second is right)")
        right = done and not zombie and refused and balance == 10 and receipt["by"] == "second"
        return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
