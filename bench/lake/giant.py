"""One object of 5 GB through an ingest: what it takes of the memory of the driver and of the tasks.

The object is nowhere: a server in a process of its own makes each range of it when it is asked for that, and hands all
other requests on to the S3 server of the suite.

    python -m bench.lake.giant http://127.0.0.1:9000      # the server; it prints its port
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import detent
from bench.harness import Plan, Row, Size, ours_at_most
from bench.lake.bucket import bucket
from bench.lake.ingest import notification
from bench.lake.names import ROOT, peak_kib
from bench.lake.sparks import lake_session
from bench.lake.suite import SUITE
from bench.place import Place
from detent.ingest import Ingest, IngestConfig

LINES, QUICK_LINES = 5_000_000, 300_000
LINE_BYTES = 1_000
KEY = "giant/orders.json"
ETAG = "0123456789abcdef0123456789abcdef"
LOOK_S = 0.2
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
SCHEMA = "id BIGINT, day INT, name STRING"


def line(number: int) -> bytes:
    """A line of the object, as long as all others."""
    head = b'{"id":%12d,"day":%d,"name":"' % (number, number % 7)
    return head + b"x" * (LINE_BYTES - len(head) - 3) + b'"}\n'


def part(start: int, end: int) -> bytes:
    """The bytes of the object from one place to another."""
    first = start // LINE_BYTES
    made = b"".join(line(number) for number in range(first, -(-end // LINE_BYTES)))
    return made[start - first * LINE_BYTES : end - first * LINE_BYTES]


class Handler(BaseHTTPRequestHandler):
    """Answers for the object, and asks the server behind it for everything else."""

    protocol_version = "HTTP/1.1"
    upstream: Any = None

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        name = urlsplit(self.path).path.partition(f"/{KEY}.")[2]
        if name and self.command in {"GET", "HEAD"}:
            self._made(int(name) * LINE_BYTES)
        else:
            self._handed_on()

    def _made(self, size: int) -> None:
        asked = self.headers.get("range", "")
        start, end = 0, size
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(size, int(last) + 1 if last else size)
        headers = {"etag": f'"{ETAG}"', "last-modified": "Tue, 17 Nov 2026 00:00:00 GMT", "accept-ranges": "bytes"}
        if asked:
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        self._send(206 if asked else 200, headers, b"" if self.command == "HEAD" else part(start, end), end - start)

    def _handed_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        connection = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            found = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
            content = answer.read()
            length = int(answer.headers.get("content-length", 0)) if self.command == "HEAD" else len(content)
            self._send(answer.status, found, content, length)
        finally:
            connection.close()

    def _send(self, status: int, headers: dict[str, str], body: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(length))
        with contextlib.suppress(ConnectionError):  # a client that does not wait for the rest
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer


@contextmanager
def giant_server() -> Iterator[str]:
    """The server; its URL."""
    command = [sys.executable, "-m", "bench.lake.giant", bucket().endpoint]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class Watched:
    """The most memory that each Python process of Spark's had, looked at while a block runs."""

    def __init__(self) -> None:
        self.peak_kib = 0
        self._ended = threading.Event()

    def __enter__(self) -> Watched:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for process in python_below(os.getpid()):
                with contextlib.suppress(OSError, StopIteration):  # it has ended
                    self.peak_kib = max(self.peak_kib, peak_kib(process))


def python_below(top: int) -> list[Path]:
    """The Python processes that a process has started through Java: Spark's workers."""
    parents, pythons = {}, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if "python" in (folder / "comm").read_text():
                    pythons.append(folder)
    javas = {pid for pid, parent in parents.items() if parent == top}
    return [folder for folder in pythons if _is_below(parents[int(folder.name)], javas, parents)]


def _is_below(pid: int, tops: set[int], parents: dict[int, int]) -> bool:
    while pid and pid not in tops:
        pid = parents.get(pid, 0)
    return bool(pid)


@SUITE.measurement("giant")
@contextmanager
def giant(place: Place, size: Size) -> Iterator[Plan]:
    """An object of 5 GB into partitioned Delta on the bucket. It is done once, whatever the rounds: it is memory that
    is measured."""
    lines = size.of(LINES, QUICK_LINES)
    with place.fresh() as folder, giant_server() as endpoint, lake_session() as spark:

        @functools.cache
        def through() -> dict[str, float]:
            url, before = bucket().store_url(), peak_kib()
            name = url.split("/")[2]
            with detent.open(f"file:{folder / 'store'}") as store, Watched() as tasks:
                store.queue("files").create()
                message = notification(name, f"{KEY}.{lines}", ETAG, lines * LINE_BYTES)
                store.queue("files").publish(message)
                config = IngestConfig(
                    name="giant",
                    queue=f"detent:{store.url}#files",
                    table=f"{url}/table",
                    committer="delta",
                    schema=SCHEMA,
                    partition_by=["day"],
                    folder=str(folder),
                    s3={"endpoint": endpoint, "region": "us-east-1"},
                )
                counters = Ingest(config, spark=spark).run(once=True)
            assert (counters.files, counters.rows) == (1, lines), counters
            return {"driver": (peak_kib() - before) / 1024, "task": tasks.peak_kib / 1024}

        gigabytes = lines * LINE_BYTES / 1e9
        yield Plan(
            {"through": through},
            [
                Row(f"an object of {gigabytes:.1f} GB: the driver's memory grows by", "MiB", "through.driver",
                    ours_at_most(100.0, "<= 100 MiB")),
                Row(f"an object of {gigabytes:.1f} GB: the largest Python process of a task", "MiB", "through.task",
                    ours_at_most(1024.0, "<= 1 GiB")),
            ],
            warm_up=False,
        )  # fmt: skip


def _serve(upstream: str) -> None:
    Handler.upstream = urlsplit(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1])
