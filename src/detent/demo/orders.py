"""Orders, and the producers that place them: progress commits with the effect.

A producer appends some orders and sets its own register to the number of the next one, in one transaction that also
checks that the register is what it was. Killed at any point, it reads the register when it is back and goes on there:
what was not committed is placed then, what was is not placed again. If the old one's last transaction arrives after
the new one has looked, the check of one of them fails, and nothing of that one is there.
"""

from __future__ import annotations

import json
import time
from typing import Final

import detent
from detent.demo.plan import ORDERS, DemoPlan

BLOCK: Final = 250
"""Orders in a transaction: one sync for all of them."""

PAUSE_S: Final = 0.05
PATIENCE: Final = "60s"
"""How long a call waits for an owner. The next one is there within a second, on a machine that has nothing else to
do."""

NUMBERS: Final = 1_000_000_000
"""Order n of producer p has the id ``p * NUMBERS + n``."""

ITEMS: Final = ("chronometer", "escapement", "mainspring", "balance wheel", "hairspring", "pallet fork", "crown wheel")


def order(producer: int, number: int) -> bytes:
    """An order, a pure function of its id. About one in twenty has no amount to pay, and will be rejected."""
    id = producer * NUMBERS + number
    return json.dumps({
        "id": id,
        "customer": f"customer-{id * 31 % 5000:04}",
        "amount": id * 7919 % 20011 - 1000,
        "item": ITEMS[id % len(ITEMS)],
    }).encode()  # fmt: skip


def place(plan: DemoPlan, producer: int) -> None:
    """Be a producer: place what is left of its orders, at the pace of the plan."""
    count, register = plan.counts[producer], f"next-{producer}"
    with detent.open(plan.url, role="client", timeout=PATIENCE) as store:
        orders = store.journal(ORDERS)
        while (done := int(orders.registers().get(register, 0))) < count:
            due = min(done + BLOCK, plan.due(count, time.time()))
            if due == done:
                time.sleep(PAUSE_S)
                continue
            transaction = store.transaction()
            transaction.check_registers(ORDERS, {register: str(done) if done else None})
            transaction.set_registers(ORDERS, {register: str(due)})
            transaction.append_many(ORDERS, [order(producer, number) for number in range(done, due)])
            try:
                transaction.commit()
            except detent.Conflict:
                print(f"another process placed the orders from {done} on; looking again", flush=True)
