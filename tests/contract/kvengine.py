"""Stores of each kv engine for the contract tests, and the small steps these are written in."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from detent import kv
from detent.kv import Batch, Reader, Writer
from detent.kv.memory import forget

VISIBLE_SECONDS = 20.0
"""How long a reader may take to see a commit: an engine on an object store polls."""


class Engine:
    """Stores of one engine, each under a URL of its own; what a test opens is closed after it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.survives_process = name != "memory"
        self.pace = 1 if name == "s3" else 10
        self._directory = directory
        self._open = contextlib.ExitStack()
        self.url = self.fresh_url()

    def fresh_url(self) -> str:
        """The URL of a store that does not exist."""
        if self.name == "memory":
            name = f"contract-{uuid.uuid4().hex}"
            self._open.callback(forget, name)
            return f"memory:{name}"
        if self.name == "file":
            return f"file:{self._directory / uuid.uuid4().hex}"
        import s3server

        return str(s3server.s3_store_url())

    def writer(self, url: str | None = None) -> Writer:
        writer = kv.open_writer(url or self.url)
        self._open.callback(writer.close)
        return writer

    def reader(self, url: str | None = None) -> Reader:
        reader = kv.open_reader(url or self.url)
        self._open.callback(reader.close)
        return reader

    def process(self, code: str) -> subprocess.Popen[str]:
        """Another process with `kv`, `url`, `batch` and `say` at hand; it ends, at the latest, with the test."""
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS + code, self.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._open.callback(_end, process)
        return process

    def close(self) -> None:
        self._open.close()


PROCESS = """
import sys
from detent import kv
url = sys.argv[1]
def say(*words): print(*words, flush=True)
def batch(**pairs):
    made = kv.Batch()
    for key, value in pairs.items(): made.put(key.encode(), value.encode())
    return made
"""


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def put(writer: Writer, *pairs: tuple[bytes, bytes | None]) -> None:
    """Commit some pairs; a value of None deletes."""
    batch = Batch()
    for key, value in pairs:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    writer.commit(batch)


def get(reader: Reader, key: bytes) -> bytes | None:
    with reader.view() as view:
        return view.get(key)


def everything(reader: Reader) -> dict[bytes, bytes]:
    with reader.view() as view:
        return dict(view.scan(b""))


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not check():
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.01)


def eventually_is(reader: Reader, key: bytes, value: bytes) -> None:
    eventually(lambda: get(reader, key) == value)
