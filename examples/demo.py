"""Exactly once, shown: producers, a queue, workers, the owner killed with `kill -9` again and again, then the count.

    make demo

Two processes publish orders, two others work them off: each worker claims some, and in one transaction acknowledges
them and appends their effect to a journal. All four share one embedded store; the first one owns it, the others find
the owner and talk to it. Every second the owner is killed, and one of the others takes over. A producer that was killed
starts again and publishes its last order once more, because it cannot know; the order's dedup key makes that
harmless. At the end every order that was published must have taken effect once.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import detent

DATA = Path("demo-data")
ROLES = ("producer", "producer", "worker", "worker")
KILLS = 4


def produce(number: str) -> None:
    """Publish numbered orders for ever. The note is written before the call: after a crash that order comes again."""
    notes = DATA / f"notes-{number}"
    begun = notes.read_text().split() if notes.exists() else []
    with detent.open(f"file:{DATA}") as store, notes.open("a", buffering=1) as file:
        orders = store.queue("orders")
        orders.create(exist_ok=True, lease="2s", backoff="0s", max_attempts=0)
        for order in count(max(0, len(begun) - 1)):
            key = f"{number}/{order}"
            if order >= len(begun):
                file.write(f"{key}\n")
            urgent = {"priority": "1"} if order % 10 == 0 else {}
            orders.publish(json.dumps({"order": key}).encode(), headers=urgent, dedup_key=key)


def work() -> None:
    """Take orders and make them take effect: the effect and the acknowledgement are one transaction."""
    with detent.open(f"file:{DATA}") as store:
        orders = store.queue("orders")
        orders.create(exist_ok=True, lease="2s", backoff="0s", max_attempts=0)
        while True:
            messages = orders.claim(20, wait="1s")
            if messages:
                settle(store, messages)


def settle(store: detent.Store, messages: list[detent.Delivery]) -> None:
    try:
        with store.transaction() as transaction:
            transaction.append_many("effects", [message.payload for message in messages])
            transaction.ack(*messages)
    except detent.StaleReceipt as error:
        print(f"too late, and nothing was changed: {error}")


def start(number: int, role: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, role, f"{number}"])


def owner_pid() -> int | None:
    try:
        return int(json.loads((DATA / "owner.json").read_text())["pid"])
    except (OSError, ValueError):
        return None


def main() -> int:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    processes = {number: start(number, role) for number, role in enumerate(ROLES)}
    try:
        while not all(read_notes(number) for number, role in enumerate(ROLES) if role == "producer"):
            time.sleep(0.1)
        for _ in range(KILLS):
            time.sleep(1.0)
            pid = owner_pid()
            for number, process in processes.items():
                if process.pid == pid:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    processes[number] = start(number, ROLES[number])
                    print(f"killed the owner (process {pid}, {ROLES[number]} {number}); it starts again")
                    break
        time.sleep(1.0)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return verdict()


def verdict() -> int:
    """Work off what is left, then count. Zero is the only pass."""
    begun = [key for number, _ in enumerate(ROLES) for key in read_notes(number)]
    last = {read_notes(number)[-1] for number, role in enumerate(ROLES) if role == "producer"}  # perhaps never sent
    with detent.open(f"file:{DATA}") as store:
        orders = store.queue("orders")
        while messages := orders.claim(1000, wait="3s"):  # past the leases of those who were killed
            settle(store, messages)
        info = orders.info()
        effects = Counter(message.json()["order"] for message in store.journal("effects").read())
    lost = sum(key not in effects and key not in last for key in begun)
    twice = sum(effects.values()) - len(effects)
    unknown = sum(key not in set(begun) for key in effects)
    left = info.available + info.delayed + info.in_flight + info.failed
    unsent = sum(key not in effects for key in last)
    print(f"\n{len(begun)} orders over {KILLS} kills of the owner, {len(effects)} took effect", end="")
    print(f"; {unsent} had been noted and not yet published when the end came" if unsent else "")
    print(f"lost {lost}, twice {twice}, unknown {unknown}, left in the queue {left}")
    print(f"\nLook around:  .venv/bin/detent queue info file:{DATA} orders")
    print(f"              .venv/bin/detent journal read file:{DATA} effects --limit 3")
    return 1 if lost or twice or unknown or left or not effects else 0


def read_notes(number: int) -> list[str]:
    notes = DATA / f"notes-{number}"
    return notes.read_text().split() if notes.exists() else []


if __name__ == "__main__":
    if len(sys.argv) == 3:
        if sys.argv[1] == "producer":
            produce(sys.argv[2])
        else:
            work()
    sys.exit(main())
