"""Rush orders: through a queue with dedup keys, to a worker whose effect and acknowledgement are one transaction.

The clerk keeps no notes at all. Each time it starts, it publishes everything again from the first order on, and the
dedup keys make that harmless. The worker claims orders; in one transaction it appends them to the journal and
acknowledges them. Killed before, its lease ends and the next worker gets them; killed after, they are done.
"""

from __future__ import annotations

import time
from typing import Final

import detent
from detent.demo.orders import PATIENCE, PAUSE_S, order
from detent.demo.plan import CLERK, ORDERS, PLACING, RUSH, DemoPlan

BLOCK: Final = 50
LEASE: Final = "3s"
"""How long an order is lost with a worker that was killed: short, because the demo is watched."""

NUMBER: Final = PLACING.index(CLERK)
"""The clerk's number among those who place orders."""


def publish(plan: DemoPlan) -> None:
    """Be the clerk."""
    count, next_one = plan.counts[NUMBER], 0
    with detent.open(plan.url, role="client", timeout=PATIENCE) as store:
        rush = store.queue(RUSH)
        while next_one < count:
            end = min(next_one + BLOCK, plan.due(count, time.time()))
            if end <= next_one:
                time.sleep(PAUSE_S)
                continue
            rush.publish_many([
                detent.Outgoing(order(NUMBER, number), dedup_key=f"rush-{number}") for number in range(next_one, end)
            ])  # fmt: skip
            next_one = end


def work(plan: DemoPlan) -> None:
    """Be the worker, for ever."""
    with detent.open(plan.url, role="client", timeout=PATIENCE) as store:
        rush = store.queue(RUSH)
        while True:
            messages = rush.claim(BLOCK, wait="1s")
            if not messages:
                continue
            transaction = store.transaction()
            transaction.append_many(ORDERS, [message.body for message in messages])
            transaction.ack(*messages)
            try:
                transaction.commit()
            except detent.StaleReceipt as error:
                print(f"too late, and nothing was changed: {error}", flush=True)
