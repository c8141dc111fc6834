"""What appends cost while a backup of their store is taken by another process."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, in_turn
from bench.journal import data
from bench.journal.suite import SUITE
from bench.place import Place

BODY_BYTES = 1024
STEP_S = 2.0
"""How long appends without a backup are watched: about as long as one takes."""


def latencies(append: Callable[[bytes], object], is_over: Callable[[], bool]) -> dict[str, float]:
    """Append one message after another: the median in us, and the slowest in ms."""
    body, found = data.body(BODY_BYTES), []
    while not is_over():
        began = time.perf_counter()
        append(body)
        found.append(time.perf_counter() - began)
    return {"median": statistics.median(found) * 1e6, "slowest": max(found) * 1e3}


@SUITE.measurement("backup")
@contextmanager
def backup(place: Place, size: Size) -> Iterator[Plan]:
    messages = size.of(1_000_000, 200_000)
    with place.fresh() as directory:
        data.fill(directory / "store", messages, data.BATCH_ROWS)
        with detent.open(data.url(directory / "store")) as store:
            yield plan_of(store.journal(data.NAME).append, directory, messages, size)


def plan_of(append: Callable[[bytes], object], directory: Path, messages: int, size: Size) -> Plan:
    """An owner that appends, alone and beside one backup after another."""
    folders = itertools.count(1)

    def alone() -> dict[str, float]:
        end = time.monotonic() + STEP_S
        return latencies(append, lambda: time.monotonic() > end)

    def beside() -> dict[str, float]:
        with copying(directory, next(folders)) as process:
            return latencies(append, lambda: process.poll() is not None)

    against = f"a full backup of {messages:,} messages beside an owner that appends 1 KiB"
    return Plan(
        {"turns": in_turn({"alone": lambda: nullcontext(alone), "beside": lambda: nullcontext(beside)}, size.of(3, 2))},
        [
            Row(
                f"{against}: an append",
                "us",
                "turns.beside.median",
                INFORMATIVE,
                "turns.alone.median",
                "other: the same without a backup",
            ),
            Row(
                f"{against}: the slowest append",
                "ms",
                "turns.beside.slowest",
                INFORMATIVE,
                "turns.alone.slowest",
                "other: the same without a backup",
            ),
        ],
        warm_up=False,
    )


@contextmanager
def copying(directory: Path, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """`detent store backup` to a new folder, in a process of its own."""
    command = [sys.executable, "-m", "detent.cli", "store", "backup", data.url(directory / "store")]
    process = subprocess.Popen([*command, f"file:{directory / f'backup{count}'}"], stdout=subprocess.DEVNULL)
    try:
        yield process
        assert process.returncode == 0, f"the backup ended with {process.returncode}"
    finally:
        process.kill()
        process.wait()
