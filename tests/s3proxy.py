"""An S3 server that misbehaves: a proxy before the shared one, with faults that a test plants.

with faulty_s3() as s3:                    # the environment names the proxy until the block ends
    with detent.open(s3.store_url()) as store:
        s3.plant(Fault("PUT", "/wal/", 409, times=1))
        store.journal("j").append(b"x")    # refused once, and tried again
s3.requests                                # what came, as (method, path)
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

import s3server

ERRORS = {403: "AccessDenied", 409: "ConditionalRequestConflict", 412: "PreconditionFailed", 503: "SlowDown"}
HELD_LOOK_S = 0.05
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass
class Fault:
    """What happens to the next `times` requests of this method whose path has `part` in it. They are answered with
    `status` (0: the connection breaks) and not carried out; with `unheard` they are carried out all the same."""

    method: str
    part: str
    status: int
    times: int = 1
    unheard: bool = False
    delay_s: float = 0.0
    conditional: bool = False
    """Only requests that must not replace anything."""


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that are killed while they ask."""

    request_queue_size = 128
    """As S3: with the default of five, clients that all come back at once wait seconds for the kernel to try again."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class FaultyS3:
    """The proxy, and what it has seen."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.delay_s = 0.0
        """How long every request takes, at least."""
        self.is_cut = False
        """Whether every request breaks off without an answer, and is not carried out."""
        self.is_held = False
        """Whether no request is answered, as when a network drops what is sent; they are not carried out either."""
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def store_url(self) -> str:
        """A new store's URL."""
        return f"s3://{s3server.BUCKET}/{uuid.uuid4().hex}"

    def plant(self, *faults: Fault) -> None:
        """Let these happen."""
        with self._lock:
            self._faults += faults

    def mend(self) -> None:
        """Let nothing more happen."""
        with self._lock:
            self._faults.clear()
        self.is_cut = self.is_held = False

    def count(self, method: str = "", part: str = "") -> int:
        """How many requests came."""
        return sum(part in path and method in {"", came} for came, path in self.requests)

    def close(self) -> None:
        """End it."""
        self.is_held, self.is_cut = False, True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next_fault(self, method: str, path: str, headers: Any) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self._faults:
                is_meant = fault.method == method and fault.part in path
                if is_meant and fault.times > 0 and (not fault.conditional or "If-None-Match" in headers):
                    fault.times -= 1
                    return fault
        return None

    def _carried_out(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None: ...

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault = proxy._next_fault(self.command, self.path, self.headers)
                while proxy.is_held and not proxy.is_cut:
                    time.sleep(HELD_LOOK_S)
                    if not proxy.is_held:
                        self.close_connection = True
                        return
                if proxy.is_cut:
                    self.close_connection = True
                    return
                time.sleep(max(proxy.delay_s, fault.delay_s if fault else 0.0))
                answer: tuple[int, Any, bytes] | None = None
                if fault is None or fault.unheard or fault.status == 200:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                    answer = proxy._carried_out(self.command, self.path, headers, body)
                if fault is not None and fault.status != 200:
                    if not fault.status:
                        self.close_connection = True
                        return
                    code = ERRORS.get(fault.status, "InternalError")
                    text = f"<Error><Code>{code}</Code><Message>planted</Message></Error>".encode()
                    answer = (fault.status, [("content-type", "application/xml"), ("content-length", len(text))], text)
                assert answer is not None
                self._answer(*answer)

            def _answer(self, status: int, headers: Any, body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in HOP_BY_HOP | {"content-length"}:
                        self.send_header(name, str(value))
                length = len(body) if self.command != "HEAD" else dict(_lowered(headers)).get("content-length", 0)
                self.send_header("content-length", str(length))
                with contextlib.suppress(ConnectionError):  # a client that does not wait for the rest
                    self.end_headers()
                    self.wfile.write(b"" if self.command == "HEAD" else body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _do

        return Handler


def _lowered(headers: Any) -> Iterator[tuple[str, str]]:
    return ((name.lower(), value) for name, value in headers)


@contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    """A proxy, which the environment of this process names until the block ends."""
    proxy = FaultyS3(s3server.shared_server().endpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        try:
            yield proxy
        finally:
            proxy.close()
