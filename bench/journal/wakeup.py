"""How long after an append a waiting tail has the message, in this process and in another."""

from __future__ import annotations

import json
import queue
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, ours_at_most
from bench.journal import child, data
from bench.journal.raw import synced_log
from bench.journal.suite import SUITE
from bench.place import Place

PAUSE_S = 0.015
"""Between messages, so that the tail waits again before the next one."""


def same_process(directory: Path, count: int) -> float:
    delays: list[float] = []
    with detent.open(data.url(directory)) as store:
        journal = store.journal(data.NAME)
        journal.append(b"0")
        start = journal.next_offset()

        def receive() -> None:
            for message in journal.tail(start):
                delays.append((time.monotonic_ns() - int(message.body)) / 1e6)
                if len(delays) == count:
                    return

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        _send(count, journal.append)
        thread.join()
    return statistics.median(delays)


def other_process(directory: Path, role: str, count: int) -> float:
    with detent.open(data.url(directory)) as store:
        journal = store.journal(data.NAME)
        journal.append(b"0")
        with _started("tail", data.url(directory), role, count) as process:
            _send(count, journal.append)
            return statistics.median(_answer(process)["delays"])


def raw_same_process(directory: Path, count: int) -> float:
    """Raw append + fdatasync, then a queue to a waiting thread."""
    delays: list[float] = []
    handed: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        for _ in range(count):
            sent = int(handed.get())
            delays.append((time.monotonic_ns() - sent) / 1e6)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    with synced_log(directory / "log") as append:

        def send(body: bytes) -> None:
            append(body)
            handed.put(body)

        _send(count, send)
    thread.join()
    return statistics.median(delays)


def raw_other_process(directory: Path, count: int) -> float:
    """Raw append + fdatasync, then a pipe to a waiting process."""
    with _started("pipe", count) as process, synced_log(directory / "log") as append:
        assert process.stdin is not None
        stdin = process.stdin

        def send(body: bytes) -> None:
            append(body)
            stdin.write(body.decode() + "\n")
            stdin.flush()

        _send(count, send)
        return statistics.median(_answer(process)["delays"])


def _send(count: int, append: Callable[[bytes], object]) -> None:
    """Messages that carry the time just before their append."""
    for _ in range(count):
        time.sleep(PAUSE_S)
        append(b"%d" % time.monotonic_ns())


@contextmanager
def _started(task: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A child that has said that it is ready."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(child.command(task, *arguments), cwd=child.ROOT, stdin=pipe, stdout=pipe, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@SUITE.measurement("wake-up")
@contextmanager
def wake_up(place: Place, size: Size) -> Iterator[Plan]:
    count = size.of(100, 30)

    def side(run: Callable[..., float], *arguments: object) -> Callable[[], float]:
        def measured() -> float:
            with place.fresh() as directory:
                return run(directory, *arguments, count)

        return measured

    since = "from before the append, so with its sync"
    yield Plan(
        {
            "same": side(same_process),
            "raw-same": side(raw_same_process),
            "other": side(other_process, "client"),
            "raw-other": side(raw_other_process),
            "reader": side(other_process, "reader"),
        },
        [
            Row(
                "a new message wakes a tail in the same process, median",
                "ms",
                "same",
                ours_at_most(5, "at most 5 ms"),
                "raw-same",
                f"{since}; other: raw append + fdatasync, then a queue to a thread",
            ),
            Row(
                "a new message wakes a tail in another process, median",
                "ms",
                "other",
                ours_at_most(20, "at most 20 ms"),
                "raw-other",
                f"through the owner's socket, {since}; other: raw append + fdatasync, then a pipe",
            ),
            Row(
                "the same for a reader that asks no owner",
                "ms",
                "reader",
                INFORMATIVE,
                "raw-other",
                f"it looks at the file again and again, {since}",
            ),
        ],
        warm_up=False,
    )
