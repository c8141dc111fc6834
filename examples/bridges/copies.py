"""Orders that come from a topic of Kafka, are summed up by a consumer, and go out to another topic, each exactly once.

With a broker on 127.0.0.1:9092 (or DETENT_KAFKA_BROKERS) and two topics, `orders` and `totals`:

    detent run examples/bridges/copies.py
    detent ls file:./data

Kill it with `kill -9` at any time, and run it again: each order is in one total once. The three tasks commit by
themselves: the bridge a record with its offset, the consumer state with what it publishes, the other bridge a message
with its offset, in a transaction of Kafka. Read `totals` with isolation.level=read_committed.
"""

from __future__ import annotations

import json
import os
from typing import Any

import detent
from detent.consumer import Consumer, Publish
from detent.kafka import FromTopic, ToTopic

STORE = os.environ.get("DETENT_URL", "file:./data")
BROKERS = os.environ.get("DETENT_KAFKA_BROKERS", "127.0.0.1:9092")

orders = FromTopic("orders", topic="orders", journal="orders", store=STORE, brokers=BROKERS)
sums = Consumer("sums", store=STORE, read="orders")
totals = ToTopic("totals", journal="totals", topic="totals", store=STORE, brokers=BROKERS)


@sums.consume
def add(message: detent.Message, state: Any, publish: Publish) -> None:
    """Add an order to its customer's total, and tell the new one."""
    order = message.json()
    customer = order["customer"]
    state[customer] = state.get(customer, 0) + order["amount"]
    publish("totals", json.dumps({"customer": customer, "total": state[customer]}).encode(), key=customer.encode())
