"""Deliveries to a real server that does what comes under one key once, and that breaks off after it has done it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from detent.errors import Invalid, OutcomeUnknown, Unavailable
from detent.journal import Message
from detent.processor import sink_http
from detent.processor.sink_http import HttpSink
from detent.processor.step import Step
from detent.runtime.backoff import Backoff
from processes import Io, Processes, eventually


def message(body: bytes) -> Message:
    return Message(body=body, producer=b"p", clock=1)


def step_of(number: int) -> Step:
    return Step("shop", "pay", "s1", number, 0, ())


class Payments(ThreadingHTTPServer):
    """Each new key is an effect. `breaks` says how many answers are never sent, `refusals` come before anything is
    done."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.effects: list[bytes] = []
        self.keys: set[str] = set()
        self.requests = 0
        self.cookies: list[str | None] = []
        self.breaks = 0
        self.refusals: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/charges"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Payments

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.requests += 1
            refusal = self.server.refusals.pop(0) if self.server.refusals else None
            if refusal is None and self.headers["Idempotency-Key"] not in self.server.keys:
                self.server.keys.add(self.headers["Idempotency-Key"])
                self.server.effects.append(body)
            breaks = self.server.breaks > 0 and refusal is None
            self.server.breaks -= breaks
        if breaks:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(refusal or 201)
        self.send_header("Content-Length", "2")
        self.send_header("Retry-After", "0")
        self.send_header("Set-Cookie", f"seen{self.server.requests}=1")
        self.end_headers()
        self.server.cookies.append(self.headers["Cookie"])
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def payments() -> Iterator[Payments]:
    with Payments() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as found:
        yield found


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_http, "PAUSE", Backoff(0.01, 0.01))


def test_an_answer_that_never_comes(payments: Payments, client: httpx.Client) -> None:
    payments.breaks = 3
    sink = HttpSink(payments.url, client=client)
    for number in range(3):
        sink(message(b"%d" % number), step_of(number))
    assert payments.effects == [b"0", b"1", b"2"]
    assert payments.requests == 6, "no answer broke off"


def test_what_the_server_sets_is_not_sent_back(payments: Payments) -> None:
    """It would be more with each delivery, until the server takes no more."""
    with HttpSink(payments.url) as sink:
        for number in range(5):
            sink(message(b"%d" % number), step_of(number))
    assert payments.cookies == [None] * 5


def test_the_outcome_is_unknown_and_the_next_try_finds_it_done(payments: Payments, client: httpx.Client) -> None:
    payments.breaks = 2
    sink = HttpSink(payments.url, client=client, retries=1)
    with pytest.raises(OutcomeUnknown):
        sink(message(b"a"), step_of(0))
    sink(message(b"a"), step_of(0))
    assert payments.effects == [b"a"]


def test_refusals_that_pass(payments: Payments, client: httpx.Client) -> None:
    payments.refusals = [503, 409, 429]
    HttpSink(payments.url, client=client)(message(b"a"), step_of(0))
    assert (payments.effects, payments.requests) == ([b"a"], 4)


def test_many_threads_share_one(payments: Payments) -> None:
    payments.breaks = 10
    with (
        httpx.Client(trust_env=False) as client,
        HttpSink(payments.url, client=client, retries=20) as sink,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda number: sink(message(b"%02d" % number), step_of(number)), range(40)))
    assert sorted(payments.effects) == [b"%02d" % number for number in range(40)]


def test_nobody_listens(client: httpx.Client) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as bound:
        port = bound.getsockname()[1]
    with pytest.raises(Unavailable, match="ConnectError") as raised:
        HttpSink(f"http://127.0.0.1:{port}", client=client, retries=1)(message(b"a"), step_of(0))
    assert not isinstance(raised.value, OutcomeUnknown)


def test_a_request_that_cannot_be_sent(payments: Payments, client: httpx.Client) -> None:
    with pytest.raises(Invalid, match="no such request"):
        HttpSink(payments.url, client=client, key_header="not a name")(message(b"a"), step_of(0))
    assert payments.requests == 0


def pays(io: Io, url: str, when: str) -> None:
    """Deliver number 0 and be killed, or stand still, before its answer is looked at."""
    with httpx.Client(trust_env=False) as client:
        sink = HttpSink(url, client=client)
        judged = sink._judged

        def interrupted(response: httpx.Response) -> None:
            os.kill(os.getpid(), signal.SIGKILL if when == "killed" else signal.SIGSTOP)
            judged(response)

        sink._judged = interrupted  # type: ignore[assignment,method-assign]
        sink(message(b"a"), step_of(0))
        io.say("done")


@pytest.mark.parametrize("when", ["killed", "stopped"])
def test_another_process_does_it_again(
    payments: Payments, client: httpx.Client, processes: Processes, when: str
) -> None:
    child = processes.start(pays, url=payments.url, when=when)
    if when == "killed":
        assert child.was_killed()
    else:
        eventually(child.stands_still, what="its standing still")
    HttpSink(payments.url, client=client)(message(b"a"), step_of(0))
    if when == "stopped":
        child.resume()
        child.expect("done")
    assert payments.effects == [b"a"]


def test_a_client_of_its_own_is_closed(payments: Payments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HttpSink(payments.url) as sink:
        sink(message(b"a"), step_of(0))
        (own,) = sink._clients.values()
    assert own.is_closed
    with pytest.raises(Unavailable, match="closed"):
        sink(message(b"b"), step_of(1))
    assert payments.effects == [b"a"]
