"""A Spark cluster on this machine: a master and workers, each a process, on addresses of the loopback network.

Every worker has an address of its own, because Spark never runs a task a second time on the host where it runs already.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from detent.spark import java
from processes import eventually

START_S = 120.0
"""Several Javas start at once, on a machine that does other things as well."""

_MASTER = re.compile(r"Starting Spark master at (spark://[0-9.]+:\d+)")
_REGISTERED = "Successfully registered with master"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """A master and two workers, which offer one core each. Everything below them ends with them.

    The workers share no folder: each has its own for its work and for what Spark spills. They have the environment of
    the moment when the cluster was started, a program that of its own start.
    """

    def __init__(self, folder: Path) -> None:
        import pyspark

        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self._environment = {
            "JAVA_HOME": str(java.stand_in(java.find())),
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JAVA,
            "SPARK_SUBMIT_OPTS": _QUICK_JAVA,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.workers: list[int] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        self._run("master", self._daemon("master.Master", "127.0.0.1"), "127.0.0.1")
        self.master = eventually(lambda: _MASTER.search(self.log("master")), seconds=START_S, what="the master")[1]
        for number in (1, 2):
            host = f"127.0.0.{number}"
            offer = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"of-worker{number}" / "work")]
            worker = self._run(f"worker{number}", [*self._daemon("worker.Worker", host), *offer, self.master], host)
            self.workers.append(worker.pid)
        logs = ("worker1", "worker2")
        eventually(lambda: all(_REGISTERED in self.log(name) for name in logs), seconds=START_S, what="the workers")

    def _daemon(self, name: str, host: str) -> list[str]:
        program = str(self._home / "bin" / "spark-class")
        return [program, f"org.apache.spark.deploy.{name}", "--host", host, "--port", "0", "--webui-port", "0"]

    def _run(self, name: str, command: list[str], host: str) -> subprocess.Popen[bytes]:
        """A process that leads a session: whatever it starts can be found by that."""
        with (self._folder / f"{name}.log").open("wb") as log:
            own = self._folder / f"of-{name}"
            own.mkdir(exist_ok=True)
            process = subprocess.Popen(
                command,
                cwd=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(own)},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def submit(self, program: Path, *arguments: str, conf: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Run a program by spark-submit, with an executor of one core on each worker."""
        settings = {
            "spark.master": self.master,
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _QUICK_JAVA,
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            **conf,
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(self._home / "bin" / "spark-submit"), *options, str(program), *arguments]
        return self._run("submit", command, "127.0.0.1")

    def kill_worker(self, number: int) -> None:
        """Kill a worker, and its executors with it."""
        worker = self.workers.pop(number - 1)
        executors = [pid for pid, parent, _ in _processes() if parent == worker]
        for pid in [worker, *executors]:
            os.kill(pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        """What the process of that name has printed."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def executors(self) -> list[int]:
        """The executors that run now: children of the workers."""
        return [pid for pid, parent, _ in _processes() if parent in self.workers and _EXECUTOR in _command(pid)]

    def _end(self) -> None:
        """Everything at once. Spark's Python processes leave the group of their parents, but not the session."""
        leaders = {process.pid for process in self._started}
        while found := [pid for pid, _, session in _processes() if session in leaders]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.wait()


def executor_of(pid: int, executors: Iterable[int]) -> int | None:
    """The executor above a Python process of Spark's."""
    known, parents = set(executors), {child: parent for child, parent, _ in _processes()}
    while pid and pid not in known:
        pid = parents.get(pid, 0)
    return pid or None


def _processes() -> Iterator[tuple[int, int, int]]:
    """Each process: its id, its parent and its session. Those that have ended and wait to be noticed are left out."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if state != "Z":
                    yield int(folder.name), int(parent), int(session)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
