"""Commit latency: from before the append of a message until a reader downstream has what was derived from it.

The shard has nothing else to do, so that each message is a transaction of its own. All runs in the owner's process; one
row has the consumer in a process of its own, as `detent consume` starts it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import detent
from bench.consumer import app, job
from bench.consumer.suite import SUITE
from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_most
from bench.place import Place
from bench.server.peers import postgres
from detent.consumer.consumer import opened
from detent.journal import Message

PAUSE_S = 0.005
"""Between a derived message and the next one's append: everybody waits again by then."""

KEYS = 100
UNMEASURED = 10
"""Messages before the ones that count: the first ones find tables, connections and journals to be made."""

PATIENCE_S = 30.0
OTHER_STATES = tuple(kind for kind in job.KINDS if kind != "engine")


def delays(store: detent.Store, downstream: str, count: int) -> dict[str, float]:
    """Append one message after another, each when the one before has come out downstream; milliseconds."""
    arrived = threading.Semaphore(0)
    times: list[int] = []

    def receive(messages: Iterator[Message]) -> None:
        for message in messages:
            times.append(time.monotonic_ns() - int(message.body.split()[0]))
            arrived.release()
            if len(times) == UNMEASURED + count:
                return

    journal = store.journal(downstream)
    journal.create(exist_ok=True)
    thread = threading.Thread(target=receive, args=(journal.tail(journal.next_offset()),), daemon=True)
    thread.start()
    source = store.journal(job.INPUT)
    for number in range(UNMEASURED + count):
        time.sleep(PAUSE_S)
        source.append(job.body(time.monotonic_ns()), key=job.key(number, KEYS))
        assert arrived.acquire(timeout=PATIENCE_S), f"nothing came out after message {number}"
    thread.join()
    found = sorted(taken / 1e6 for taken in times[UNMEASURED:])
    return {"median": statistics.median(found), "p99": found[-(-99 * count // 100) - 1]}


@contextmanager
def running(store: detent.Store, kind: str, place: str) -> Iterator[None]:
    """A consumer in a thread of this process."""
    with opened(job.consumer(kind, place), store) as worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()


@contextmanager
def running_elsewhere(url: str, kind: str, place: str) -> Iterator[None]:
    """The same consumer in a process of its own, which talks to this one."""
    command = [sys.executable, "-m", "detent.cli", "consume", app.TARGET, "--store", url, "--workers", "1"]
    process = subprocess.Popen(
        command, cwd=app.ROOT, env={**os.environ, **app.settings(kind, place)}, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def one_round(
    place: Place, kind: str | None, database: str, count: int, *, elsewhere: bool = False
) -> dict[str, float]:
    """A new store; without a kind of state nothing is derived, and the journal itself is followed."""
    with place.fresh() as folder, detent.open(f"file:{folder / 'store'}") as store:
        store.journal(job.INPUT).create()
        work: AbstractContextManager[None] = nullcontext()
        if kind is not None:
            where = job.place_of(kind, folder, database)
            job.prepare(kind, where)
            work = running_elsewhere(_url(folder), kind, where) if elsewhere else running(store, kind, where)
        with work:
            return delays(store, job.INPUT if kind is None else job.OUTPUT, count)


def _url(folder: Path) -> str:
    return f"file:{folder / 'store'}"


@SUITE.measurement("latency")
@contextmanager
def latency(place: Place, size: Size) -> Iterator[Plan]:
    count = size.of(150, 30)

    def side(kind: str | None, *, elsewhere: bool = False) -> Callable[[], dict[str, float]]:
        return lambda: one_round(place, kind, database, count, elsewhere=elsewhere)

    with ExitStack() as stack:
        server = stack.enter_context(postgres(stack.enter_context(place.fresh())))
        database = f"postgresql+psycopg://bench@127.0.0.1:{server.port}/postgres"
        sides = {"raw": side(None), **{kind: side(kind) for kind in job.KINDS}}
        sides["elsewhere"] = side("engine", elsewhere=True)
        yield Plan(sides, _rows(), warm_up=not size.quick)


def _rows() -> list[Row]:
    raw = "from before the append until a tail has the derived message; other: append and tail of the same journal"
    fastest = ratio_at_most(1, "the engine is the fastest state")
    rows = []
    for kind in OTHER_STATES:
        text = f"commit latency: engine, median, against {job.NAMES[kind]}"
        rows.append(Row(text, "ms", "engine.median", fastest, f"{kind}.median"))
    for kind in job.KINDS:
        for what in ("median", "p99"):
            text = f"commit latency: {job.NAMES[kind]}, {what}"
            rows.append(Row(text, "ms", f"{kind}.{what}", INFORMATIVE, f"raw.{what}", raw))
    for what in ("median", "p99"):
        text = f"commit latency: engine, in a process of its own, {what}"
        rows.append(Row(text, "ms", f"elsewhere.{what}", INFORMATIVE, f"raw.{what}", raw))
    return rows
