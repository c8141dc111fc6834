"""Joins orders with the customers who made them. Who comes first does not matter: orders wait for their customer.

    python examples/consumers/enrichment_join.py       # fills two journals of file:./data, joins, shows who waits

    detent journal append file:./data shop/customers --key cyd --body '{"id": "cyd", "name": "Cyd", "city": "Caen"}'
    detent run examples/consumers/enrichment_join.py:app --once
    detent journal read file:./data shop/enriched

Two journals go into one shard, so that an order and its customer meet in one state. That is kept in memory and in a
file of the folder shop-state, and recorded in the journal shop-join/recovery/0, from which any machine recovers it.
With `shards=4, partition="key"` the work is divided by customer: both journals have the customer's id as the key. And
with `detent run ... --standbys 1` a second process follows the first, and takes over at once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import detent
from detent.consumer import Consumer, Publish
from detent.state import RecordedState

CUSTOMERS, ORDERS, ENRICHED = "shop/customers", "shop/orders", "shop/enriched"
WAITING_MAX = 1_000
"""Orders of one customer that wait: they are one value of the state, which has a limit of its own."""

app = Consumer(
    "shop-join", store="file:./data", read=[CUSTOMERS, ORDERS], state=RecordedState("shop-state"), lease="1s"
)


@app.consume
def join(message: detent.Message, state: Any, publish: Publish) -> None:
    """Remember customers, enrich orders."""
    record = message.json()
    if message.journal == CUSTOMERS:
        state[f"customer/{record['id']}"] = record
        for order in state.pop(f"waiting/{record['id']}", []):
            enrich(order, record, publish)
        return
    customer = state.get(f"customer/{record['customer']}")
    if customer is not None:
        enrich(record, customer, publish)
        return
    waiting = state.setdefault(f"waiting/{record['customer']}", [])
    if len(waiting) < WAITING_MAX:
        waiting.append(record)  # changed in place, which is noticed
    else:
        publish(f"{ENRICHED}/given-up", message.body, key=message.key)


def enrich(order: dict[str, Any], customer: dict[str, Any], publish: Publish) -> None:
    """An order, with what is known of its customer."""
    known = {name: value for name, value in customer.items() if name != "id"}
    publish(ENRICHED, json.dumps({**order, **known}).encode(), key=order["customer"].encode())


def make_input(store: detent.Store) -> None:
    """Two customers, and orders of three, unless there are some already."""
    for journal in (CUSTOMERS, ORDERS):
        store.journal(journal).create(exist_ok=True)
    if store.journal(ORDERS).next_offset():
        return
    with store.transaction() as t:
        for number in range(30):
            order = {"order": number, "customer": ["ada", "bob", "cyd"][number % 3], "cents": 100 * number}
            t.append(ORDERS, json.dumps(order).encode(), key=order["customer"].encode())
        for customer in ({"id": "ada", "name": "Ada", "city": "Arles"}, {"id": "bob", "name": "Bob", "city": "Bonn"}):
            t.append(CUSTOMERS, json.dumps(customer).encode(), key=customer["id"].encode())


def main(url: str) -> int:
    """Fill the journals, join, show."""
    with detent.open(url) as store:
        make_input(store)
        app.run(store=store, once=True)
        orders = {message.json()["order"]: message.json()["customer"] for message in store.journal(ORDERS).read()}
        enriched = [message.json()["order"] for message in store.journal(ENRICHED).read()]
        waiting = sorted({customer for order, customer in orders.items() if order not in enriched})
        print(f"{len(enriched)} of {len(orders)} orders are enriched, each once: {len(enriched) == len(set(enriched))}")
        print("the others wait for " + ", ".join(waiting) if waiting else "no order waits")
        return 0 if len(enriched) == len(set(enriched)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "file:./data"))
