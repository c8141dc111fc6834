"""A wall clock that jumps, under a store of this process: leases and delays last as long as they are to last."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from detent import Store
from detent.cli.doctor import doctor
from detent.engine import OwnerTime
from detent.ingest.staging import sweep_staging
from detent.queue import Delivery, Worker
from detent.server.metrics import Metrics
from detent.server.metrics_state import StoreState

HOUR_NS = 3600 * 10**9
PATIENCE_S = 30.0


class Wall:
    """`time.time_ns`, with a part that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_ns = 0
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self.ahead_ns)


def claimed_again(store: Store) -> bool:
    """Whether a message comes back within the patience of the test."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if store.queue("q").claim(lease="10m"):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("first_ns", [HOUR_NS, -HOUR_NS], ids=["ahead", "back"])
def test_leases_end_after_a_jump_and_back(monkeypatch: pytest.MonkeyPatch, first_ns: int) -> None:
    wall = Wall(monkeypatch)
    with Store("memory:") as store:
        store.queue("q").create()
        store.queue("q").publish(b"one")
        assert store.queue("q").claim(lease="300ms")
        wall.ahead_ns = first_ns
        store.queue("q").publish(b"two", delay="10m")  # the owner looks at its clock
        wall.ahead_ns = 0
        assert claimed_again(store)


def test_leases_do_not_end_with_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    with Store("memory:") as store:
        store.queue("q").create(backoff="0s")
        store.queue("q").publish(b"one")
        (message,) = store.queue("q").claim(lease="10m")
        wall.ahead_ns = HOUR_NS
        assert not store.queue("q").claim()
        message.ack()


def owner_time(ahead_s: int) -> OwnerTime:
    """The time of an owner on a machine whose wall clock is another one."""
    return OwnerTime(lambda: time.time_ns() // 1_000_000 + ahead_s * 1_000)


def test_worker_extends_by_the_length_of_its_lease() -> None:
    """The worker's clock is not the owner's, as on another machine: by it, the lease lasts an hour."""
    extended = threading.Event()
    lengths: list[int] = []

    def handle(message: Delivery) -> None:
        first_ms, deadline = message.lease_ms, time.monotonic() + PATIENCE_S
        while message.lease_ms == first_ms and time.monotonic() < deadline:
            time.sleep(0.005)
        if message.lease_ms > first_ms:
            lengths.append(message.lease_length_ms)
        extended.set()

    with Store("memory:", now_ms=owner_time(3600)) as store:
        store.queue("q").create()
        store.queue("q").publish(b"one")
        worker = Worker(store.queue("q"), handle, lease="2s")
        running = threading.Thread(target=worker.run)
        running.start()
        assert extended.wait(2 * PATIENCE_S)
        worker.stop()
        running.join()
        assert worker.handled == 1
    assert lengths == [2_000]


AHEAD = """
import os, sys, time
real = time.time_ns
time.time_ns = lambda: real() + 3600 * 10**9
import detent
store = detent.open(sys.argv[1])
store.queue("q").create()
store.queue("q").publish(b"one")
assert store.queue("q").claim(lease="300ms")
os._exit(7)
"""
"""An owner on a machine whose wall clock is an hour ahead; it dies with a message in its hands."""


def test_lease_given_by_an_owner_that_was_ahead_ends(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/store"
    assert subprocess.run([sys.executable, "-c", AHEAD, url], check=False).returncode == 7
    said = CliRunner().invoke(doctor, [url]).output
    assert "s ahead of this machine's clock" in said
    with Store(url) as store:
        assert claimed_again(store)


def test_jumps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    with Store("memory:") as store:
        metrics = Metrics(store._connection.current.engine.time)  # type: ignore[union-attr]
        wall.ahead_ns = HOUR_NS
        page = metrics.page(StoreState()).decode()
        assert "detent_clock_jumps_total 1.0" in page
        difference = next(line for line in page.splitlines() if line.startswith("detent_clock_difference_seconds"))
        assert float(difference.split()[1]) == pytest.approx(HOUR_NS / 1e9, abs=60)


def test_sweeps_do_not_take_what_is_new_for_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is being written is not deleted because the wall clock jumps ahead by days."""
    batch = tmp_path / "staged" / f"{'a' * 32}-1"
    batch.mkdir(parents=True)
    wall = Wall(monkeypatch)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + wall.ahead_ns / 1e9)
    with Store(f"file:{tmp_path}/store") as store:
        written = store.journal("j").write_fragment(pa.table({"body": [b"one"]}))
        wall.ahead_ns = 72 * HOUR_NS
        assert store.sweep() == 0
        store.journal("j").adopt([written])
        sweep_staging(batch.parent, 3600.0)
        assert batch.is_dir()
