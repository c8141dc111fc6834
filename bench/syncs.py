"""Counts the syncs of a process from outside: by strace, or by a small library that is loaded before the C library.

Counted are fsync, fdatasync and msync(MS_SYNC) calls, and writes through descriptors that were opened with O_DSYNC or
O_SYNC, which return only when the bytes are on the disk. Both counters look at what lies between two marks (failing
truncate calls) that the process makes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.harness import Skipped

Task = Callable[[list[str]], None]
"""Runs a process to its end, with this prefix before its command."""

TRACED = "fsync,fdatasync,msync,sync_file_range,openat,close,write,writev,pwrite64,pwritev,pwritev2,truncate"


@dataclass(frozen=True)
class Syncs:
    """What was counted between the marks."""

    calls: int
    dsync_writes: int

    def per(self, count: int, unit: int) -> dict[str, float]:
        """Scaled to so many operations of the `count` that were made."""
        scale = unit / count
        return {
            "calls": self.calls * scale,
            "dsync_writes": self.dsync_writes * scale,
            "all": (self.calls + self.dsync_writes) * scale,
        }


class SyncCounter(Protocol):
    """Runs a task and counts its syncs, with files of its own in a directory."""

    how: str

    def __call__(self, directory: Path, task: Task) -> Syncs: ...


def find(directory: Path) -> SyncCounter:
    """The counter that works here; `Skipped` when there is none."""
    for build in (Strace, Preload):
        try:
            return build(directory)
        except Skipped as error:
            reason = error
    raise Skipped(f"syncs could not be counted: no strace, and {reason}")


class Strace:
    """Counts with strace."""

    how = "strace"

    def __init__(self, directory: Path) -> None:
        if shutil.which("strace") is None:
            raise Skipped("strace is not installed")
        probe = ["strace", "-f", "-qq", "-o", str(directory / "probe"), "-e", "trace=fsync", "true"]
        if subprocess.run(probe, check=False, capture_output=True).returncode:
            raise Skipped("strace may not trace here")

    def __call__(self, directory: Path, task: Task) -> Syncs:
        log = directory / "strace"
        task(["strace", "-f", "-qq", "--seccomp-bpf", "-s", "64", "-o", str(log), "-e", f"trace={TRACED}"])
        with log.open(errors="replace") as lines:
            return count_strace(lines)


_CALL = re.compile(r"^\d+\s+(?P<name>\w+)\((?P<rest>.*)$")
_RESUMED = re.compile(r"^(?P<pid>\d+)\s+<\.\.\. (?P<name>\w+) resumed>.*= (?P<value>-?\d+)")
_OPENED = re.compile(r"= (\d+)\s*$")


def count_strace(lines: Iterable[str]) -> Syncs:
    """What a log of `strace -f` says. Descriptors are followed from their opening on, so give it the whole log."""
    synchronous: set[int] = set()
    opening: set[str] = set()
    counts: Counter[str] = Counter()
    counting = False
    for line in lines:
        resumed = _RESUMED.match(line)
        if resumed is not None:
            if resumed["name"] == "openat" and resumed["pid"] in opening:
                opening.discard(resumed["pid"])
                synchronous.add(int(resumed["value"]))
            continue
        call = _CALL.match(line)
        if call is None:
            continue
        name, rest = call["name"], call["rest"]
        if name == "truncate" and "detent-bench-" in rest:
            counting = "detent-bench-begin" in rest
        elif name == "openat":
            opened = _OPENED.search(rest)
            if "O_DSYNC" in rest or "O_SYNC" in rest:
                if opened is not None:
                    synchronous.add(int(opened[1]))
                elif "unfinished" in rest:
                    opening.add(line.split(maxsplit=1)[0])
            elif opened is not None:
                synchronous.discard(int(opened[1]))
        elif name == "close":
            synchronous.discard(_descriptor(rest))
        elif not counting:
            continue
        elif name in {"fsync", "fdatasync", "sync_file_range"} or (name == "msync" and "MS_SYNC" in rest):
            counts["calls"] += 1
        elif "write" in name and _descriptor(rest) in synchronous:
            counts["dsync_writes"] += 1
    return Syncs(counts["calls"], counts["dsync_writes"])


def _descriptor(rest: str) -> int:
    found = re.match(r"\d+", rest)
    return int(found[0]) if found is not None else -1


class Preload:
    """Counts with a library loaded by LD_PRELOAD."""

    how = "a preloaded library"

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Skipped("no C compiler to build a counter")
        self._library = directory / "syncs.so"
        source = Path(__file__).parent / "syncs.c"
        build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        if subprocess.run(build, check=False, capture_output=True).returncode:
            raise Skipped("the counter could not be compiled")

    def __call__(self, directory: Path, task: Task) -> Syncs:
        log = directory / "syncs"
        variables = {"LD_PRELOAD": str(self._library), "BENCH_SYNCS": str(log)}
        task(["env", *(f"{name}={value}" for name, value in variables.items())])
        if not log.exists() or not os.path.getsize(log):
            raise Skipped("the preloaded counter was not called")
        calls, writes = map(int, log.read_text().split())
        return Syncs(calls, writes)
