"""Exactly once, shown: writers on one store, the owner killed with `kill -9` again and again, and then the count.

    make demo

Three processes append to one embedded store. The first of them owns it; the others find the owner and talk to it.
Every second the owner is killed, and one of the others takes over. Each writer notes what was acknowledged to it. At
the end every acknowledged message must be in the journal once, at the offset it was promised, in its writer's order.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import detent

DATA = Path("demo-data")
WRITERS = 3
KILLS = 4


def write(number: str, notes: str) -> None:
    """A writer: appends numbered messages for ever, and notes each one once it is acknowledged."""
    with detent.open(f"file:{DATA}") as store, Path(notes).open("a", buffering=1) as file:
        count = 0
        while True:
            body = json.dumps({"writer": number, "count": count}).encode()
            with store.transaction() as transaction:
                transaction.append("orders", body, key=number.encode())
                transaction.append("audit", b"order came: " + body)
            file.write(f"{transaction.results[0].offset} {body.decode()}\n")
            count += 1


def start(number: int) -> subprocess.Popen[bytes]:
    notes = DATA / f"notes-{number}"
    return subprocess.Popen([sys.executable, __file__, f"{number}", str(notes)])


def owner_pid() -> int | None:
    try:
        return int(json.loads((DATA / "owner.json").read_text())["pid"])
    except (OSError, ValueError):
        return None


def main() -> int:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    writers = {number: start(number) for number in range(WRITERS)}
    next_number = WRITERS
    try:
        for kill in range(KILLS):
            time.sleep(1.5 if kill == 0 else 1.0)
            pid = owner_pid()
            for number, process in list(writers.items()):
                if process.pid == pid:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    del writers[number]
                    writers[next_number] = start(next_number)
                    print(f"killed the owner (process {pid}, writer {number}); writer {next_number} joins")
                    next_number += 1
        time.sleep(1.0)
    finally:
        for process in writers.values():
            process.kill()
            process.wait()
    return count(next_number)


def count(writers: int) -> int:
    """The verdict. Zero is the only pass."""
    with detent.open(f"file:{DATA}", role="reader") as store:
        orders = [message.body.decode() for message in store.journal("orders").read()]
        audit = [message.body.decode() for message in store.journal("audit").read()]
    lost = misplaced = acknowledged = 0
    for number in range(writers):
        notes = DATA / f"notes-{number}"
        for line in notes.read_text().splitlines() if notes.exists() else []:
            offset, _, body = line.partition(" ")
            acknowledged += 1
            lost += body not in orders[int(offset) : int(offset) + 1] and body not in orders
            misplaced += orders[int(offset)] != body
    duplicated = len(orders) - len(set(orders))
    torn = len(set(orders) ^ {line.removeprefix("order came: ") for line in audit})
    by_writer: dict[str, list[int]] = {}
    for order in map(json.loads, orders):
        by_writer.setdefault(order["writer"], []).append(order["count"])
    reordered = sum(counts != sorted(counts) for counts in by_writer.values())
    print(f"\n{acknowledged} messages acknowledged over {KILLS} kills of the owner, {len(orders)} in the journal")
    print(f"lost {lost}, duplicated {duplicated}, misplaced {misplaced}, torn {torn}, reordered {reordered}")
    print(f"\nLook around:  .venv/bin/detent journal read file:{DATA} orders --limit 3")
    return 1 if lost or duplicated or misplaced or torn or reordered else 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(sys.argv[1], sys.argv[2])
    sys.exit(main())
