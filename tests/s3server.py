"""A loopback S3 server for tests: moto in its own process, so that a stopped or killed client cannot stop it too.

    with s3_server() as server:
        server.environment            # what a child process needs to reach it
        url = server.store_url()      # a fresh prefix of one bucket each time

The server is started once per test process by `s3_store_url()`, which also puts the environment into `os.environ`,
and ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from servers import HOST, shared, stop

BUCKET = "detent-tests"
REQUESTS = "/-/requests"
"""A page of the server's own, which no bucket can have: the requests that came."""

START_SECONDS = 60.0
"""Importing moto and its service models takes seconds on a cold disk."""


@dataclass(frozen=True)
class S3Server:
    """A running server: where it is, and the process to signal."""

    endpoint: str
    environment: dict[str, str]
    pid: int

    def store_url(self) -> str:
        """A store URL nobody used before."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def requests(self, since: int = 0) -> list[tuple[str, str]]:
        """What came, as (method, path), without the first `since`; this question is not among it."""
        with urllib.request.urlopen(f"{self.endpoint}{REQUESTS}?{since}", timeout=START_SECONDS) as answer:
            return [(method, path) for method, path in json.load(answer)]


def environment_for(endpoint: str) -> dict[str, str]:
    """The variables every S3 client here reads. The keys are the ones moto accepts: any."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def s3_server(host: str = HOST, wrapper: Sequence[str] = ()) -> Iterator[S3Server]:
    """Start a server on a free port, with the bucket made; stop it by its process id at the end. `wrapper` is what
    starts it somewhere else, such as ``ip netns exec NAME``."""
    process = subprocess.Popen(
        [*wrapper, sys.executable, os.path.abspath(__file__), host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://{host}:{_port_of(process)}"
        with urllib.request.urlopen(
            urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=START_SECONDS
        ):
            pass
        yield S3Server(endpoint, environment_for(endpoint), process.pid)
    finally:
        stop(process)


def _port_of(process: subprocess.Popen[bytes]) -> int:
    """The port the server prints once it listens."""
    assert process.stdout is not None
    alarm = threading.Timer(START_SECONDS, process.kill)
    alarm.start()
    try:
        line = process.stdout.readline()
    finally:
        alarm.cancel()
        alarm.join()
    if not line.strip().isdigit():
        raise RuntimeError(f"the S3 server did not start: {line!r}")
    return int(line)


_one_server = shared(s3_server)


def shared_server() -> S3Server:
    """The one server of this test process, started at the first call and stopped when the process exits. Each call puts
    what is needed to reach it into the environment: a test that has changed these variables takes them away again."""
    server = _one_server()
    os.environ.update(server.environment)
    return server


def s3_store_url() -> str:
    """A fresh store URL on the shared server; the environment is set so that it opens right away."""
    return shared_server().store_url()


def _one_conditional_put_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Moto looks for the object and stores it in two steps; S3 promises one. The lock makes the promise true."""
    lock = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with lock:
                return list(app(environ, start_response))
        return app(environ, start_response)

    return guarded


def _writing_down(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A proxy in front would double what each request costs; the server itself counts for nothing."""
    came: list[tuple[str, str]] = []

    def written_down(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path == REQUESTS:
            body = json.dumps(came[int(query or 0) :]).encode()
            start_response("200 OK", [("content-type", "application/json"), ("content-length", str(len(body)))])
            return [body]
        came.append((environ["REQUEST_METHOD"], f"{path}?{query}" if query else path))
        return app(environ, start_response)

    return written_down


def _serve() -> None:
    from moto.core import errors
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # keep-alive: a connection a request would dominate

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Not at all: it would go nowhere."""

    dispatcher: Any = DomainDispatcherApplication(create_backend_app)
    # Moto looks at its 180 folders at each request, and makes a table of all errors for each that it answers with: two
    # thirds of its time.
    dispatcher.get_backend_for_host = functools.cache(dispatcher.get_backend_for_host)
    errors.ErrorLookupFactory = functools.cache(errors.ErrorLookupFactory)  # type: ignore[assignment, misc]
    app = _one_conditional_put_at_a_time(dispatcher)
    server = make_server(sys.argv[1], 0, _writing_down(app), threaded=True, request_handler=Handler)
    print(server.port, flush=True)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    server.serve_forever()


def _exit_with_parent() -> None:
    """Standard input ends when the test process dies, however it dies."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
