"""What is measured in a process of its own: `python -m bench.queue.child TASK ARGUMENTS`, with a JSON answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.journal.child import ROOT, mark

FEW = 10


def command(task: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "bench.queue.child", task, *map(str, arguments)]


def ask(task: str, *arguments: object, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run a task and wait for its answer."""
    done = subprocess.run(
        [*prefix, *command(task, *arguments)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def kill_itself(task: str, *arguments: object) -> None:
    """Run a task that ends its own process with SIGKILL."""
    done = subprocess.run(command(task, *arguments), cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL, f"the process ended with {done.returncode}"


def reopen(url: str) -> dict[str, float]:
    """Open a store, claim one message, then a few more; the time and the memory that took."""
    import detent
    from bench.queue import data

    before = _memory()
    started = time.perf_counter()
    with detent.open(url) as store:
        opened = time.perf_counter()
        queue = store.queue(data.NAME)
        first = queue.claim(1)
        claimed = time.perf_counter()
        data.check(first, 1)
        more = queue.claim(FEW)
        data.check(more, FEW)
        memory = _memory()
        queue.ack([*first, *more])
        queue.publish_many([message.body for message in (*first, *more)])  # as many as before
    return {
        "open_s": opened - started,
        "claim_s": claimed - opened,
        "total_s": claimed - started,
        "anonymous_base": before["RssAnon"],
        "anonymous": memory["RssAnon"],
        "resident_peak": memory["VmHWM"],
    }


def _memory() -> dict[str, float]:
    """MB by the kernel's account: RssAnon is ours, VmHWM is the peak of all, mapped file pages included."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 / 1e6 for line in lines if line[0] in {"RssAnon:", "VmHWM:"}}


def work_and_die(url: str, count: int) -> None:
    """Publish, claim and acknowledge one by one, then end without a chance to tidy up, a few messages in flight."""
    import detent
    from bench.queue import data

    store = detent.open(url)
    work = data.Ours(store)
    for _ in range(count):
        work.publish_one()
        work.consume_one()
    data.check(work.queue.claim(FEW), FEW)
    os.kill(os.getpid(), signal.SIGKILL)


def _between_marks(work: Any, count: int, consuming: bool) -> dict[str, int]:
    """One kind of operation, so many times, between two marks that a tracer can see."""
    for _ in range(count if consuming else 1):
        work.publish_one()
    operation = work.consume_one if consuming else work.publish_one
    mark("begin")
    for _ in range(count):
        operation()
    mark("end")
    return {"messages": count}


def ours(url: str, count: int, consuming: bool) -> dict[str, int]:
    import detent
    from bench.queue import data

    with detent.open(url) as store:
        return _between_marks(data.Ours(store), count, consuming)


def in_sqlite(url: str, count: int, consuming: bool) -> dict[str, int]:
    from bench.queue import sqlite

    directory = Path(url.removeprefix("file:"))
    directory.mkdir()
    with sqlite.opened(directory) as work:
        return _between_marks(work, count, consuming)


TASKS: dict[str, Callable[..., object]] = {
    "reopen": reopen,
    "work_and_die": lambda url, count: work_and_die(url, int(count)),
    "publishes": lambda url, count: ours(url, int(count), False),
    "consumes": lambda url, count: ours(url, int(count), True),
    "sqlite_publishes": lambda url, count: in_sqlite(url, int(count), False),
    "sqlite_consumes": lambda url, count: in_sqlite(url, int(count), True),
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])), flush=True)
