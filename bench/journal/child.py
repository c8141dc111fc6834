"""What is measured in a process of its own: `python -m bench.journal.child TASK ARGUMENTS`, with a JSON answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def command(task: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "bench.journal.child", task, *map(str, arguments)]


def ask(task: str, *arguments: object, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run a task and wait for its answer."""
    done = subprocess.run(
        [*prefix, *command(task, *arguments)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def reopen(url: str) -> dict[str, float]:
    """Open a store, look at its journal, append once; the time and the memory of each step."""
    started = time.perf_counter()
    import detent
    from bench.journal.data import NAME, body

    imported = time.perf_counter()
    memory = {"base": _memory()}
    with detent.open(url) as store:
        opened = time.perf_counter()
        memory["open"] = _memory()
        messages = store.journal(NAME).info().messages
        known = time.perf_counter()
        memory["info"] = _memory()
        store.journal(NAME).append(body(100))
        appended = time.perf_counter()
        memory["append"] = _memory()
    return {
        "import_s": imported - started,
        "open_s": opened - imported,
        "info_s": known - opened,
        "append_s": appended - known,
        "total_s": appended - imported,
        "messages": messages,
        "anonymous_base": memory["base"]["RssAnon"],
        "anonymous_peak": max(each["RssAnon"] for each in memory.values()),
        "resident_base": memory["base"]["VmHWM"],
        "resident_peak": memory["append"]["VmHWM"],
    }


def _memory() -> dict[str, float]:
    """MB by the kernel's account: RssAnon is ours, VmHWM is the peak of all, mapped file pages included."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 / 1e6 for line in lines if line[0] in {"RssAnon:", "VmHWM:"}}


def appends(url: str, callers: int, each: int) -> dict[str, int]:
    """Single appends between two marks that a tracer can see, by one caller or by many."""
    import asyncio

    import detent
    from bench.journal.data import NAME, body
    from bench.journal.inflight import append_in_flight

    content = body(1024)

    async def many() -> int:
        async with await detent.open_async(url) as store:
            journal = store.journal(NAME)
            await append_in_flight(journal, content, callers, 1)
            mark("begin")
            await append_in_flight(journal, content, callers, each)
            mark("end")
            return (await journal.info()).messages

    if callers > 1:
        return {"messages": asyncio.run(many())}
    with detent.open(url) as store:
        journal = store.journal(NAME)
        journal.append(content)
        mark("begin")
        for _ in range(each):
            journal.append(content)
        mark("end")
        return {"messages": journal.info().messages}


def raw_appends(path: str, count: int) -> dict[str, int]:
    """Raw append + fdatasync between the same marks."""
    from bench.journal.data import body
    from bench.journal.raw import repeat, synced_log

    content = body(1024)
    with synced_log(Path(path)) as append:
        mark("begin")
        repeat(append, [content], count)
        mark("end")
    return {"messages": count}


def mark(name: str) -> None:
    """A system call that does nothing and that a tracer shows."""
    try:
        os.truncate(f"/nowhere/detent-bench-{name}", 0)
    except OSError:
        return


def tail(url: str, role: Any, count: int) -> dict[str, list[float]]:
    """Receive messages whose bodies say when they were sent; how many milliseconds each took."""
    import detent
    from bench.journal.data import NAME

    delays = []
    with detent.open(url, role=role) as store:
        journal = store.journal(NAME)
        start = journal.next_offset()
        print("ready", flush=True)
        for message in journal.tail(start):
            delays.append((time.monotonic_ns() - int(message.body)) / 1e6)
            if len(delays) == count:
                return {"delays": delays}
    raise AssertionError("a tail without a timeout ended")


def pipe(count: int) -> dict[str, list[float]]:
    """The same for lines that come through a pipe."""
    print("ready", flush=True)
    delays = []
    for _ in range(count):
        sent = int(sys.stdin.readline())
        delays.append((time.monotonic_ns() - sent) / 1e6)
    return {"delays": delays}


TASKS: dict[str, Callable[..., object]] = {
    "reopen": reopen,
    "appends": lambda url, callers, each: appends(url, int(callers), int(each)),
    "raw_appends": lambda path, count: raw_appends(path, int(count)),
    "tail": lambda url, role, count: tail(url, role, int(count)),
    "pipe": lambda count: pipe(int(count)),
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](*sys.argv[2:])), flush=True)
