"""Counts the syncs of a process from outside: by strace, or by a small library that is loaded before the C library.

Counted are fsync, fdatasync and msync(MS_SYNC) calls, and writes through descriptors that were opened with O_DSYNC or
O_SYNC, which return only when the bytes are on the disk. Both counters look at what lies between two marks (failing
truncate calls) that the process makes. `Attached` does for processes that run already, and cannot be asked for marks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from bench.harness import Skipped

Task = Callable[[list[str]], None]
"""Runs a process to its end, with this prefix before its command."""

TRACED = "fsync,fdatasync,msync,sync_file_range,openat,close,write,writev,pwrite64,pwritev,pwritev2,truncate"
ATTACH_S = 30.0


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


def count_strace(lines: Iterable[str], known: Iterable[int] | None = None) -> Syncs:
    """What a log of `strace -f` says. Descriptors are followed from their opening on, so give it the whole log.

    With the O_DSYNC descriptors that are `known` from before the log begins, everything in it counts, without marks.
    """
    synchronous: set[int] = set(known or ())
    opening: set[str] = set()
    counts: Counter[str] = Counter()
    counting = known is not None
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


class Attached:
    """Counts with strace, while its block runs, what a running process and its descendants do."""

    def __init__(self, process: int, log: Path) -> None:
        self._process = process
        self._log = log
        self._known: set[int] = set()
        self._strace: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        processes = list(family(self._process))
        try:
            self._known = set().union(*map(synchronous_descriptors, processes))
        except PermissionError as error:
            raise Skipped(f"strace may not attach here: {error}") from error
        if self._known and len(processes) > 1:  # a number means another file in each process
            raise Skipped("descriptors with O_DSYNC can be followed in a server of one process only")
        command = ["strace", "-f", "-qq", "-s", "0", "-o", str(self._log), "-e", f"trace={TRACED}"]
        command += [f"--attach={process}" for process in processes]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            self._wait(processes)
        except BaseException:
            self._end()
            raise
        return self

    def _wait(self, processes: list[int]) -> None:
        """Until every thread is traced: what one does before is not in the log."""
        deadline = time.monotonic() + ATTACH_S
        while not all(map(_traced, processes)):
            if self._strace.poll() is not None:
                raise Skipped(f"strace may not attach here: {self._strace.stderr.read().strip()[-300:]}")
            if time.monotonic() > deadline:
                raise Skipped(f"strace did not attach within {ATTACH_S:.0f} s")
            time.sleep(0.01)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = self._strace.poll() is not None
        self._end()
        if ended and kind is None:
            raise Skipped("strace ended before what it was to count")

    def _end(self) -> None:
        """Detach, which also writes the rest of the log."""
        self._strace.send_signal(signal.SIGINT)
        try:
            self._strace.communicate(timeout=ATTACH_S)
        except subprocess.TimeoutExpired:
            self._strace.kill()
            self._strace.communicate()

    def syncs(self) -> Syncs:
        """What the last block has counted."""
        with self._log.open(errors="replace") as lines:
            return count_strace(lines, self._known)


def family(process: int) -> Iterator[int]:
    """A process and its descendants."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in children.read_text().split():
                yield from family(int(child))


def synchronous_descriptors(process: int) -> set[int]:
    """The descriptors of a process through which a write returns only when the bytes are on the disk."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for name in os.listdir(f"/proc/{process}/fdinfo"):
            with suppress(FileNotFoundError):  # it has been closed
                flags = re.search(
                    r"^flags:\s+([0-7]+)", Path(f"/proc/{process}/fdinfo/{name}").read_text(), re.MULTILINE
                )
                if flags is not None and int(flags[1], 8) & os.O_DSYNC:  # O_SYNC has this bit, too
                    found.add(int(name))
    return found


def _traced(process: int) -> bool:
    """Whether a tracer has all its threads; also when it has ended."""
    for status in Path(f"/proc/{process}/task").glob("*/status"):
        with suppress(OSError):
            if "\nTracerPid:\t0\n" in status.read_text():
                return False
    return True


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
