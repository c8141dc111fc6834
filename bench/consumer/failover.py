"""How long a process that is killed is missed: from `kill -9` until a message that another one derived can be read.

`detent consume` runs the consumer, as users run it. Messages come all the time, and each derived one says which process
made it. The supervisor sees that a process is gone and frees its shard at once, so that no lease has to run out.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import detent
from bench.consumer import app, job
from bench.consumer.copies import copy_of
from bench.consumer.suite import SUITE
from bench.harness import INFORMATIVE, Bar, Plan, Row, Size, ours_at_most
from bench.place import Place

KEYS, QUICK_KEYS = 50_000, 10_000
"""What the state holds before, so that a process which takes over has something to read."""

SEND_S = 0.005
"""Between two messages."""

FLOW_S = 1.0
"""How long messages flow before the process is killed."""

PATIENCE_S = 60.0
STATUS_S = 0.05
TAIL = "100ms"
"""How long the follower of the output waits before it looks whether all is over."""


@dataclass(frozen=True)
class Case:
    """A kind of state, the processes that there are, and what they have to reach."""

    kind: str
    workers: int
    standbys: int
    what: str
    bar: Bar = INFORMATIVE


CASES = {
    "standby": Case("recorded", 2, 1, "recorded file, a hot standby", ours_at_most(1, "under 1 s with a standby")),
    "restart": Case("recorded", 1, 0, "recorded file, no other process: one starts and plays the log"),
    "engine": Case("engine", 2, 0, "engine, a second process that has nothing to do"),
    "sqlite": Case("sqlite", 2, 0, "SQL (SQLite), a second process that has nothing to do"),
}
QUICK = ("standby",)
"""For a look: the one that has a bar. Most of the time goes into starting processes."""


# -- the consumer -------------------------------------------------------------------------------------------------


class Consuming:
    """`detent consume`, and what it has said: each event with the moment at which it was read."""

    def __init__(self, folder: Path, case: Case) -> None:
        command = [sys.executable, "-m", "detent.cli", "consume", app.TARGET, "--store", url(folder), "--json"]
        command += ["--workers", str(case.workers), "--standbys", str(case.standbys)]
        self._errors = (folder / "errors").open("w+b")
        self.process = subprocess.Popen(
            command,
            cwd=app.ROOT,
            env={**os.environ, **app.settings(case.kind, where(case.kind, folder))},
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._came: queue.SimpleQueue[tuple[float, dict[str, Any]]] = queue.SimpleQueue()
        self._seen: list[tuple[float, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._came.put((time.monotonic(), json.loads(line)))

    def wait_for(self, kind: str, after: float = 0.0, **fields: object) -> tuple[float, dict[str, Any]]:
        """The first such event since a moment, if need be when it comes."""
        deadline = time.monotonic() + PATIENCE_S
        for at, event in self._seen:
            if at >= after and _is(event, kind, fields):
                return at, event
        while True:
            try:
                at, event = self._came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"detent consume did not say {kind!r}: {self.said()}") from None
            self._seen.append((at, event))
            if at >= after and _is(event, kind, fields):
                return at, event

    def said(self) -> str:
        """The last events, and what was printed."""
        while not self._came.empty():
            self._seen.append(self._came.get())
        self._errors.seek(0)
        return f"{[event for _, event in self._seen][-5:]} {self._errors.read()[-500:].decode(errors='replace')}"

    def end(self) -> None:
        """Let it finish, as a service manager does."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


def _is(event: Mapping[str, Any], kind: str, fields: Mapping[str, object]) -> bool:
    return event.get("event") == kind and all(event.get(name) == value for name, value in fields.items())


@contextmanager
def consuming(folder: Path, case: Case) -> Iterator[Consuming]:
    started = Consuming(folder, case)
    try:
        yield started
    finally:
        started.end()


# -- messages -----------------------------------------------------------------------------------------------------


class Flow:
    """Messages that are sent all the time, and those that come out."""

    def __init__(self, store: detent.Store, first: int) -> None:
        self._store = store
        self.next = first
        self._is_over = False
        self._is_left = False
        self._output = store.journal(job.OUTPUT)
        self.came: dict[int, float] = {}
        """By process, when its first message could be read."""
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        journal = self._store.journal(job.INPUT)
        while not self._is_over:
            journal.append(job.body(self.next), key=job.key(self.next, KEYS))
            self.next += 1
            time.sleep(SEND_S)

    def _receive(self) -> None:
        start = self._output.next_offset()
        while not (self._is_left or (self._is_over and start == self.next)):
            for message in self._output.tail(start, timeout=TAIL):
                self.came.setdefault(job.derived(message)[1], time.monotonic())
                start = message.offset + 1

    def wait_for_another(self, than: int, said: Callable[[], str]) -> float:
        """When a message could be read that another process made. `said` tells what went on, if none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for process, at in list(self.came.items()):
                if process != than:
                    return at
            time.sleep(SEND_S)
        raise RuntimeError(f"nothing comes out but what {than or 'no process'} made: {said()}")

    def stop(self) -> None:
        """Send no more, and follow no more."""
        self._is_over = self._is_left = True
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def end(self) -> None:
        """Send no more, and wait until everything has come out."""
        self._is_over = True
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a message has not come out"


@contextmanager
def flowing(store: detent.Store, first: int) -> Iterator[Flow]:
    flow = Flow(store, first)
    try:
        yield flow
    except BaseException:
        flow.stop()  # what failed is the news, and not that messages are under way
        raise
    flow.end()


# -- one failover -------------------------------------------------------------------------------------------------


def url(folder: Path) -> str:
    return f"file:{folder / 'store'}"


def where(kind: str, folder: Path) -> str:
    """The place of the state. PostgreSQL is not among the cases: a server cannot be copied with its folder."""
    return job.place_of(kind, folder, "")


def prepare(kind: str, folder: Path, keys: int) -> None:
    """A store whose consumer has counted under so many keys. The recorded state has its log, and no file: the one that
    starts is on a machine that has not been here."""
    with detent.open(url(folder)) as store:
        numbers = range(keys)
        store.journal(job.INPUT).append_many([(job.body(number), b"key-%06d" % number) for number in numbers])
        job.prepare(kind, where(kind, folder))
        job.consumer(kind, where(kind, folder)).run(store=store, once=True)
    if kind == "recorded":
        shutil.rmtree(where(kind, folder))


def fail_over(folder: Path, case: Case, keys: int) -> dict[str, float]:
    """Kill the process that works, under load; seconds until each step."""
    with consuming(folder, case) as consumer:
        member = consumer.wait_for("taken", shard=0)[1]["worker"]
        process = consumer.wait_for("started", worker=member)[1]["pid"]
        if case.standbys:
            consumer.wait_for("following", shard=0)
        with detent.open(url(folder), role="client") as store:
            wait_for_members(store, case.workers)
            with flowing(store, keys) as flow:
                flow.wait_for_another(0, consumer.said)
                time.sleep(FLOW_S)
                assert set(flow.came) == {process}, "one process has the shard"
                killed = time.monotonic()
                os.kill(process, signal.SIGKILL)
                seen = consumer.wait_for("died", killed)[0]
                taken = consumer.wait_for("taken", killed, shard=0)[0]
                came = flow.wait_for_another(process, consumer.said)
            job.check(store, range(flow.next))
    return {"s": came - killed, "seen": seen - killed, "taken": taken - killed}


def wait_for_members(store: detent.Store, count: int) -> None:
    """Until all processes are up: the supervisor names them before they have started."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if sum(one.info.startswith("pid ") for one in store.consumer(job.NAME).info().members) >= count:
            return
        time.sleep(STATUS_S)
    raise RuntimeError(f"there are no {count} processes: {store.consumer(job.NAME).info().members}")


@SUITE.measurement("failover")
@contextmanager
def failover(place: Place, size: Size) -> Iterator[Plan]:
    keys = size.of(KEYS, QUICK_KEYS)
    cases = {name: case for name, case in CASES.items() if name in QUICK or not size.quick}
    kinds = sorted({case.kind for case in cases.values()})
    prepared = {
        kind: place.shared(f"counted-{kind}", lambda path, kind=kind: prepare(kind, path, keys)) for kind in kinds
    }
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in cases}

    def side(name: str, case: Case) -> Callable[[], float]:
        def measured() -> float:
            with copy_of(prepared[case.kind], place) as folder:
                found = fail_over(folder, case, keys)
            steps[name].append(found)
            return found["s"]

        return measured

    def notes() -> Mapping[str, str]:
        return {_text(case): _steps(steps[name]) for name, case in cases.items()}

    yield Plan(
        {name: side(name, case) for name, case in cases.items()},
        [Row(_text(case), "s", name, case.bar, None, f"{keys:,} keys in the state") for name, case in cases.items()],
        warm_up=False,
        notes=notes,
    )


def _text(case: Case) -> str:
    return f"kill -9 until the next process's first message: {case.what}"


def _steps(found: list[dict[str, float]]) -> str:
    seen, taken = (statistics.median(one[step] for one in found) for step in ("seen", "taken"))
    return f"medians: seen to be dead and freed after {seen:.2f} s, taken after {taken:.2f} s"
