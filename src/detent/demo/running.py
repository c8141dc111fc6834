"""A run of the demo: all processes at work, one after the other killed, and at the end the count."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import detent
from detent.demo.check import Verdict
from detent.demo.crew import Crew
from detent.demo.killer import Killer
from detent.demo.meter import DemoCounts, Meter, Sample
from detent.demo.plan import ORDERS, PAID, REJECTED, RUSH, DemoPlan
from detent.demo.rush import LEASE
from detent.demo.story import COUNTING, PLACED, RELEASED, crashed, gave_up, killed, kind_of, opening
from detent.errors import Exists, Unavailable

LOOK_S: Final = 0.1
"""How often the run is looked at."""

SETTLE_S: Final = 1.0
"""How long all processes go on when all is there: an order that comes twice comes late."""

STALL_S: Final = 120.0
"""Nothing has moved for so long: what is missing will not come. A busy machine takes half a minute to start Spark."""

MARK: Final = ".detent-demo"
"""Marks a folder as ours: only such a one is emptied. A demo that runs in it holds a lock on the mark."""


class Kill(NamedTuple):
    """A process was killed."""

    at: float
    role: str


@dataclass(frozen=True)
class DemoOutcome:
    """What a run came to."""

    plan: DemoPlan
    samples: list[Sample]
    kills: list[Kill]
    seconds: float
    verdict: Verdict
    is_finished: bool = True
    """Whether all orders had arrived. A run that gave up cannot tell late ones from lost ones."""

    @property
    def rate(self) -> float:
        """Orders a second, over the whole run."""
        return self.plan.messages / self.seconds


class DemoView(Protocol):
    """Shows a run while it goes on."""

    def tell(self, at: float, text: str) -> None:
        """Something happened."""

    def show(self, samples: list[Sample], kills: int) -> None:
        """How it is now. Called several times a second."""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for a run, held until its end. One that holds anything but an earlier run is left alone."""
    if folder.exists() and not folder.is_dir():
        raise Exists(f"{folder} is a file: give a folder that is empty, or new, with --folder")
    mark = folder / MARK
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise Exists(f"{folder} holds something else than a demo: give a folder that is empty, or new, with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"a demo runs in {folder} already: wait for it, or give another --folder") from None
        empty(folder)
        yield folder.absolute()


def empty(folder: Path, *, but: tuple[str, ...] = ()) -> None:
    """Remove what a run left, but for the files that are named."""
    for path in folder.iterdir():
        if path.name == MARK or path.name in but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def run(plan: DemoPlan, view: DemoView) -> DemoOutcome:
    """Run a plan in its folder, which is empty, and check what came of it."""
    view.tell(0.0, opening(plan))
    prepare(plan)
    with Crew(plan) as crew, Meter(plan) as meter:
        crew.start()
        running = _DemoRun(plan, crew, meter, view)
        running.run()
        time.sleep(SETTLE_S)
    view.tell(running.at, COUNTING)
    return DemoOutcome(plan, running.samples, running.kills, running.at, _checked(plan), running.is_finished)


def prepare(plan: DemoPlan) -> None:
    """Make the store, with its journals and its queue."""
    plan.logs.mkdir()
    plan.table.parent.mkdir()
    plan.keep()
    with detent.open(plan.url) as store:
        for name in (ORDERS, PAID, REJECTED):
            store.journal(name).create()
        store.queue(RUSH).create(lease=LEASE, backoff="0s", max_attempts=0)


class _DemoRun:
    def __init__(self, plan: DemoPlan, crew: Crew, meter: Meter, view: DemoView) -> None:
        self._plan = plan
        self._crew = crew
        self._meter = meter
        self._view = view
        self._killer = Killer(plan.kills, plan.paced_s)
        self._began = self._moved = time.monotonic()
        self.samples: list[Sample] = [Sample(0.0, meter.read())]
        self.kills: list[Kill] = []
        self.at = 0.0
        self._is_placed = False
        self._is_released = False
        self.is_finished = False

    def run(self) -> None:
        """Until every order has arrived, or nothing comes any more."""
        while True:
            counts = self._look()
            if counts.placed >= self._plan.messages and counts.is_level and self._crew.all_is_placed:
                self.is_finished = True
                return
            if self._crew.all_is_placed and not self._is_placed:
                self._is_placed = True
                self._view.tell(self.at, PLACED)
            if time.monotonic() - self._moved > STALL_S:
                self._view.tell(self.at, gave_up(STALL_S, self._plan))
                return
            for role in self._crew.look_after(counts):
                self._moved = time.monotonic()  # it has as long as the first one to start
                self._view.tell(self.at, crashed(role, self._plan))
            self._kill(counts)
            time.sleep(LOOK_S)

    def _look(self) -> DemoCounts:
        counts, now = self._meter.read(), time.monotonic()
        self.at = now - self._began
        if counts != self.samples[-1].counts:
            self._moved = now
        self.samples.append(Sample(self.at, counts))
        self._view.show(self.samples, len(self.kills))
        return counts

    def _kill(self, counts: DemoCounts) -> None:
        role = self._killer.choose(self.at, self._crew, counts)
        if role is not None:
            is_first = kind_of(role) not in {kind_of(kill.role) for kill in self.kills}
            self._crew.kill(role, counts)
            self._moved = time.monotonic()
            self.kills.append(Kill(self.at, role))
            self._view.tell(self.at, killed(role, len(self.kills), self._plan.kills, is_first=is_first))
        if self._killer.is_done and not self._is_released:
            self._is_released = True
            self._plan.release()
            if self.kills:
                self._view.tell(self.at, RELEASED)


def _checked(plan: DemoPlan) -> Verdict:
    """Let a process of its own count."""
    command = [sys.executable, "-m", "detent.demo.check", plan.url, str(plan.table), *map(str, plan.counts)]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Unavailable(f"the check of the demo in {plan.folder} failed: {answer.stderr.strip()[-1_500:]}")
    return Verdict.from_json(answer.stdout)
