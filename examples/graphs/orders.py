"""Orders of a shop: checked, priced and weighed at the same time, packed, divided, and billed in a database.

    python examples/graphs/orders.py shop        # fills a store in the folder shop, runs once, says what came out
    python examples/graphs/orders.py             # the same in a folder that is gone afterwards

and then, in that folder:

    detent graph show orders.py
    detent graph send orders.py '{"number": 100, "cents": 250, "count": 3}' --type order
    detent run orders.py --once
    detent show orders.py
    detent graph trace orders.py parcels 0
    detent journal read file:./data failed

`check` lets only messages of the type "order" pass, and refuses those that make no sense: these go to the journal
`failed`, with the error and the message that it was about. What passes is read by two, `price` and `weigh`, which go on
side by side; `pack` joins what they say, one message of each at a time. That is right because both answer each message
with exactly one: who drops some does so before the paths part. `divide` writes to one of two journals. `bill` has its
effect in a database, in one transaction with the delivery key, so that no order is ever billed twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import sqlalchemy

from detent.processor import Appender, Graph, SqlSink

ORDERS = 40
HEAVY_GRAMS = 1_000

graph = Graph("orders", store="file:./data", errors="failed")
graph.source("orders")

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///shop.db")
books = SqlSink(DATABASE)
invoices = sqlalchemy.Table(
    "invoices",
    sqlalchemy.MetaData(),
    sqlalchemy.Column("number", sqlalchemy.Integer),  # no key: an order that is billed twice is there twice
    sqlalchemy.Column("cents", sqlalchemy.Integer),
)


@graph.stream(input="orders", output="checked", types="order")
def check(order: dict[str, Any]) -> dict[str, Any]:
    """Orders that can be filled. What is raised here is written to the journal of errors."""
    if order["count"] < 1:
        raise ValueError(f"order {order['number']} is for {order['count']} pieces")
    return order


@graph.stream(input="checked", output="priced")
def price(order: dict[str, Any]) -> dict[str, Any]:
    """What an order costs."""
    return {"number": order["number"], "cents": order["cents"] * order["count"]}


@graph.stream(input="checked", output="weighed")
def weigh(order: dict[str, Any]) -> dict[str, Any]:
    """What it weighs."""
    return {"number": order["number"], "grams": 150 * order["count"]}


@graph.stream(join=["priced", "weighed"], output="parcels")
def pack(priced: dict[str, Any], weighed: dict[str, Any]) -> dict[str, Any]:
    """Both together."""
    assert priced["number"] == weighed["number"], "both answer every order, so they are of the same one"
    return {**priced, **weighed}


@graph.stream(input="parcels", outputs=["letters", "freight"])
def divide(parcel: dict[str, Any]) -> dict[str, Any]:
    """By weight: an output that is not named gets nothing."""
    return {"freight" if parcel["grams"] > HEAVY_GRAMS else "letters": parcel}


@graph.sink(input="parcels", retries=3)
@books.sink
def bill(connection: sqlalchemy.Connection, parcel: dict[str, Any]) -> None:
    """A row for each parcel, which is committed together with the key of its delivery."""
    invoices.create(connection, checkfirst=True)
    connection.execute(sqlalchemy.insert(invoices).values(number=parcel["number"], cents=parcel["cents"]))


# -- trying it --------------------------------------------------------------------------------------------------------


def orders() -> Iterator[tuple[dict[str, Any], str]]:
    """Orders, some of which make no sense, and messages of another type."""
    for number in range(ORDERS):
        count = 0 if number % 10 == 7 else 1 + number % 9
        yield {"number": number, "cents": 100 + number, "count": count}, "ping" if number % 8 == 3 else "order"


def main() -> int:
    """Send orders, run the graph until nothing is left, and check what came out."""
    with graph.open() as live:
        till = Appender(live.store, "orders", "till")  # its numbers: a second run sends nothing twice
        for number, (order, kind) in enumerate(orders()):
            till.append(json.dumps(order).encode(), headers={"type": kind}, number=number)
        live.start()
        live.settle()
        found = {name: [message.json() for message in live.read(name)] for name in JOURNALS}
        hop = live.trace("parcels", 0)
    with contextlib.closing(books):
        engine = sqlalchemy.create_engine(DATABASE)
        with engine.connect() as connection:
            billed = sorted(row.number for row in connection.execute(sqlalchemy.select(invoices)))
        engine.dispose()
    print(", ".join(f"{len(messages)} {name}" for name, messages in found.items()))
    print(f"the first that failed: {found['failed'][0]['message']}")
    print(f"the first parcel took {hop.total_ms} ms, from {' and '.join(one.journal for one in hop.inputs)}")
    packed = sorted(parcel["number"] for parcel in found["parcels"])
    divided = sorted(parcel["number"] for name in ("letters", "freight") for parcel in found[name])
    is_right = packed == divided == billed == sorted(set(billed))
    print(f"{len(billed)} invoices: {'each parcel has one' if is_right else 'this is wrong'}")
    return 0 if is_right else 1


JOURNALS = ("orders", "checked", "parcels", "letters", "freight", "failed")


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        folder = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        stack.enter_context(contextlib.chdir(folder))  # the store and the database are in the current folder
        sys.exit(main())
