"""Events that are kept in another store: the process that moves them is killed again and again, and none is lost or
there twice.

    python examples/graphs/archive.py kept --kills 5      # in the folder kept; without one, in one that is gone then

and, in that folder:

    detent graph show archive.py
    detent show archive.py
    detent graph trace archive.py kept@archive 0
    detent journal read file:./archive kept

Two stores cannot commit together. So a step commits its outputs and its progress in the graph's own store, with what
the other store is owed; then it gives that to the other store, together with a mark that says how far it has got. Who
comes after a crash compares the two, and gives what is missing.

`main` starts ``detent run`` as a process of its own and sends events meanwhile. Every now and then it kills that
process with SIGKILL, wherever it is, and starts another. At the end it lets the graph finish, and counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import detent
from detent.processor import Appender, Graph

KILLS = 5
EVENTS = 400
"""Between two kills."""

graph = Graph("archive", store="file:./data", stores={"archive": "file:./archive"})
graph.source("events")


@graph.stream(input="events", output="numbered")
def number(event: dict[str, Any]) -> dict[str, Any]:
    """A step before the one that this is about, in the graph's own store."""
    return {**event, "squared": event["number"] ** 2}


@graph.stream(input="numbered", output="kept@archive", batch=10)
def keep(event: dict[str, Any]) -> dict[str, Any]:
    """From one store to another, up to ten messages a step."""
    return event


# -- killing it -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    """``detent run`` with this file, in another process, from when it is at work; it is dead at the end."""
    command = [sys.executable, "-m", "detent.cli", "graph", "run", os.path.abspath(__file__), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        if not process.stdout.readline():  # what it says first is that a processor runs
            raise SystemExit("the graph did not start")
        try:
            yield process
        finally:
            process.kill()


def send(first: int, count: int) -> None:
    """Send events, a few at a time. By the numbers nothing is sent twice, so a sender that is not sure sends
    it again: the owner of the store may be the process that is being killed."""
    while True:
        try:
            with detent.open(str(graph.store)) as store:
                sender = Appender(store, "events", "sender")
                for at in range(first, first + count, 10):
                    bodies = [json.dumps({"number": at + more}).encode() for more in range(10)]
                    sender.append_many(bodies, first_number=at)
            return
        except detent.Unavailable as error:
            print(f"once more: {error}", file=sys.stderr)


def main(kills: int) -> int:
    """Send and kill, finish, and count."""
    for life in range(kills):
        with running() as process:
            # Somewhere in its work, or ours: the store is owned by one of the two.
            end = threading.Timer(random.uniform(0.02, 0.3), process.kill)
            end.start()
            send(life * EVENTS, EVENTS)
            end.join()
    print(f"killed {kills} times")
    graph.run(once=True)
    with detent.open(graph.stores["archive"]) as store:
        kept = [message.json()["number"] for message in store.journal("kept").read()]
    sent = kills * EVENTS
    duplicated = sum(count - 1 for count in Counter(kept).values())
    lost = len(set(range(sent)) - set(kept))
    print(f"{sent} events sent, {len(kept)} kept, {lost} lost, {duplicated} duplicated")
    is_right = not lost and not duplicated and kept == sorted(kept)
    print("each once, in order" if is_right else "this is wrong")
    return 0 if is_right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a graph again and again, and count what it has moved.")
    parser.add_argument("folder", nargs="?", help="where the stores are; left out: a folder that is gone afterwards")
    parser.add_argument("--kills", type=int, default=KILLS)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        stack.enter_context(contextlib.chdir(folder))  # both stores are in the current folder
        sys.exit(main(given.kills))
