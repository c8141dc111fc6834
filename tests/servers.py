"""What the servers of tests have in common: a free port, a log to wait for, an end, and one of them a test process."""

from __future__ import annotations

import atexit
import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

HOST = "127.0.0.1"
STOP_SECONDS = 20.0

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
