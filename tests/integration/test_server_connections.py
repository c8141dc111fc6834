"""Connections that keep a real server waiting, on both event loops: each is let go of, and the server goes on."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvloop

from detent.errors import DetentError
from detent.server import http, protocol, serving
from detent.server.access import Caller
from detent.server.app import ServerApplication, refusal
from detent.server.http import HttpRequest, Response
from detent.server.protocol import Door
from detent.server.serving import Serving, listen

SHORT_S = 1.5
MUCH = b"x" * (50 << 20)

Loop = Callable[[], asyncio.AbstractEventLoop]


class Much:
    """A part that answers far more than fits on a connection, whole or in a stream."""

    name = "much"

    def owns(self, request: HttpRequest) -> bool:
        return True

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        if request.path == "/little":
            return Response(b"little")
        return Response(MUCH)

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        return refusal(error)

    async def close(self) -> None:
        return None


@contextmanager
def server(loop: Loop) -> Iterator[tuple[serving.HttpServer, tuple[str, int]]]:
    listener = listen("127.0.0.1", 0)
    started = threading.Event()
    running = serving.HttpServer(serving.server_config(ServerApplication([Much()]), Serving()), Door(100), started.set)

    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(running.serve(sockets=[listener]))

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    try:
        yield running, listener.getsockname()
    finally:
        running.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def impatient(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[serving.HttpServer, tuple[str, int]]]:
    monkeypatch.setattr(http, "SEND_WAIT_S", SHORT_S)
    monkeypatch.setattr(protocol, "HEAD_WAIT_S", SHORT_S)
    with server(request.param) as found:
        yield found


def wait_for_nobody(running: serving.HttpServer) -> None:
    deadline = time.monotonic() + 30
    while running.server_state.connections or running.server_state.tasks:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_never_reads_is_cut_off(impatient: tuple[serving.HttpServer, tuple[str, int]]) -> None:
    running, address = impatient
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /much HTTP/1.1\r\nhost: localhost\r\n\r\n")
        deadline = time.monotonic() + 30
        while not running.server_state.tasks:
            assert time.monotonic() < deadline
        time.sleep(0.3)
        held = [one.transport.get_write_buffer_size() for one in running.server_state.connections]
        assert max(held) < 4 * http.SEND_BYTES, "most of the answer has not been copied to the connection"
        wait_for_nobody(running)
    assert httpx.get(f"http://127.0.0.1:{address[1]}/little").content == b"little"


def test_who_reads_slowly_gets_it_all(impatient: tuple[serving.HttpServer, tuple[str, int]]) -> None:
    _, address = impatient
    received = 0
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /much HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        began = time.monotonic()
        while data := connection.recv(1 << 20):
            received += len(data)
            while time.monotonic() - began < received / len(MUCH) * 3 * SHORT_S:
                time.sleep(0.01)
    assert received > len(MUCH)


def test_who_says_nothing_or_half_is_cut_off(impatient: tuple[serving.HttpServer, tuple[str, int]]) -> None:
    running, address = impatient
    with socket.create_connection(address) as silent, socket.create_connection(address) as half:
        half.sendall(b"GET /little HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"little"):
            answer += half.recv(1000)
        half.sendall(b"GET /lit")
        for connection in (silent, half):
            connection.settimeout(30)
            while connection.recv(1000):
                pass
    wait_for_nobody(running)
