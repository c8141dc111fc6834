"""Counts the modules of Detent that one call enters, from the caller down to the disk and back. `bench.house` runs it.

Each call is made several times before it is traced, so that only what every such call passes is counted. It uses public
names alone, so that it runs in trees of different age.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import detent

WARM = 20
ROUNDS = 3
QUIET_S = 0.3
"""What runs in the background has come to rest after so long."""

_package = str(Path(detent.__file__).parent) + "/"
_entered: set[str] = set()
_is_on = False


def _note(frame: Any, event: str, _argument: object) -> None:
    if _is_on and event == "call" and frame.f_code.co_filename.startswith(_package):
        _entered.add(frame.f_code.co_filename.removeprefix(_package))


def traced(call: Callable[[], object]) -> list[str]:
    """The modules that every one of some warm calls enters."""
    global _is_on
    for _ in range(WARM):
        call()
    rounds = []
    for _ in range(ROUNDS):
        time.sleep(QUIET_S)
        _entered.clear()
        _is_on = True
        call()
        _is_on = False
        rounds.append(frozenset(_entered))
    return sorted(frozenset.intersection(*rounds))


def of_a_step(folder: str) -> list[str]:
    """A message that a processor takes from one journal and answers in another."""
    from detent.processor import Graph

    graph = Graph("shop", store=f"file:{folder}/graph")
    graph.source("orders")

    def total(order: dict[str, Any]) -> dict[str, Any]:
        return order

    graph.stream(input="orders", output="totals")(total)
    with detent.open(f"file:{folder}/graph") as store, graph.open(store) as live:
        orders, sent = store.journal("orders"), 0
        orders.create()
        live.start()

        def step() -> None:
            nonlocal sent
            orders.append(b'{"id": 1}')
            sent += 1
            store.journal("totals").wait(sent - 1, timeout="10s")

        return traced(step)


@dataclass(frozen=True)
class Ordered:
    """What the traced handler takes."""

    id: int


@dataclass(frozen=True)
class Paid:
    """What it sends."""

    id: int


def of_a_handled_message(folder: str) -> list[str]:
    """A message that a handler takes, with a row of its own, a mark and a message in the outbox, which is sent."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    from detent.bus import Bus, IdempotencyConfig, SqlAlchemyUnitOfWork, SqlOutbox, SqlTracker

    sessions = sessionmaker(create_engine(f"sqlite:///{folder}/bus.db"))
    bus = Bus(
        "billing",
        f"file:{folder}/bus",
        unit_of_work=SqlAlchemyUnitOfWork(sessions),
        idempotency=IdempotencyConfig(SqlTracker()),
        outbox=SqlOutbox(),
    )
    done = threading.Event()

    @bus.handler
    def ordered(message: Ordered) -> None:
        bus.send_local(Paid(message.id))

    @bus.handler
    def paid(message: Paid) -> None:
        done.set()

    bus.start()
    try:

        def send() -> None:
            done.clear()
            bus.send_local(Ordered(1))
            if not done.wait(10):
                raise TimeoutError("a message was not handled in time")
            time.sleep(QUIET_S / 3)

        return traced(send)
    finally:
        bus.stop()


def main() -> int:
    """Trace each call, and print how many modules it enters."""
    threading.setprofile(_note)
    sys.setprofile(_note)
    with tempfile.TemporaryDirectory() as folder:
        with detent.open(f"file:{folder}/store") as store:
            journal, queue = store.journal("orders"), store.queue("orders")
            queue.create()
            found = {"append": traced(lambda: journal.append(b"x")), "publish": traced(lambda: queue.publish(b"x"))}
        found["processor step"] = of_a_step(folder)
        found["handled message"] = of_a_handled_message(folder)
    if "--where" in sys.argv:
        for what, modules in found.items():
            print(what, *modules, sep="\n    ")
    print(json.dumps({f"modules that one {what} enters": len(modules) for what, modules in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
