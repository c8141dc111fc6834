"""What the servers of tests have in common: a free port, a log to wait for, an end, and one of them a test process.
For those of Java also their jars, which Maven fetches once."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

HOST = "127.0.0.1"
STOP_SECONDS = 20.0
FETCH_SECONDS = 280.0

Server = TypeVar("Server")


def free_port() -> int:
    """A port of the loopback address that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def await_answer(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path, seconds: float) -> None:
    """Wait until a server answers; its log, if it ends instead."""
    deadline = time.monotonic() + seconds
    while not answers():
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server, by force if it takes too long."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def shared(start: Callable[[], contextlib.AbstractContextManager[Server]]) -> Callable[[], Server]:
    """Turn what starts a server into what starts it at the first call, and stops it when the test process exits."""

    @cache
    def one() -> Server:
        running = contextlib.ExitStack()
        server = running.enter_context(start())
        atexit.register(running.close)
        return server

    return one


class Jars:
    """A server's jars: they come from Maven Central once, into a folder of the user's cache."""

    def __init__(self, name: str, version: str, dependencies: str) -> None:
        """`dependencies` are those of Maven's file, without what is round them."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self._folder = Path(cache) / "detent-tests" / f"{name}-{version}"
        self._name = name
        self._dependencies = dependencies

    @property
    def _is_complete(self) -> bool:
        return (self._folder / "complete").exists()

    def missing(self) -> str | None:
        """Why the server cannot run here; None if it can."""
        if shutil.which("java") is None:
            return f"{self._name} needs Java, which is not on the path"
        if not self._is_complete and shutil.which("mvn") is None:
            return (
                f"the jars of {self._name} are not in {self._folder}, and Maven, which fetches them, is not on the path"
            )
        return None

    def folder(self) -> Path:
        """Where they are. They are fetched into a folder beside it, which takes its name when it is full."""
        if self._is_complete:
            return self._folder
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder.parent) as scratch:
            made = Path(scratch) / "jars"
            (Path(scratch) / "pom.xml").write_text(
                "<project><modelVersion>4.0.0</modelVersion><groupId>detent</groupId>"
                f"<artifactId>{self._name}</artifactId><version>1</version>"
                f"<dependencies>{self._dependencies}</dependencies></project>"
            )
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={made}"]
            fetched = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
            )
            if fetched.returncode:
                pytest.skip(f"the jars of {self._name} could not be fetched: {fetched.stdout[-300:]}")
            (made / "complete").touch()
            with contextlib.suppress(OSError):  # another test process was quicker
                made.rename(self._folder)
        return self._folder
