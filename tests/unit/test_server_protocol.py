"""Connections to the server: what they may keep waiting, how much of a head is taken, how many there may be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from detent.server import http, protocol, serving
from detent.server.keys import KeyRing, new_key
from detent.server.protocol import BEYOND_MAX, HEAD_BYTES_MAX, HEAD_WAIT_S, REFUSED_WAIT_S, Door, HttpConnection

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
GET = HEAD + b"\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"


class Wire:
    """A transport whose client reads when it is told to."""

    def __init__(self) -> None:
        self.written = b""
        self.unread = 0
        self.closed = self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


HOUSES: list[House] = []


class House:
    """A server without sockets. Its application answers when the test lets it."""

    def __init__(self, limit: int = 100) -> None:
        HOUSES.append(self)
        self.door = Door(limit)
        self.state = ServerState()
        self.answer = asyncio.Event()
        self.bodies: list[bytes] = []
        self.config = uvicorn.Config(
            self.app, interface="asgi3", log_config=None, access_log=False, lifespan="off", ws="none"
        )

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append(await http.HttpRequest(scope, receive).body())
        await self.answer.wait()
        await http.Response(b"fine").send(send)

    def connect(self) -> tuple[HttpConnection, Wire]:
        wire = Wire()
        connection = HttpConnection(self.config, self.state, {}, door=self.door)
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    def sweep(self, seconds: float) -> None:
        for _ in range(round(seconds / protocol.SWEEP_S)):
            self.door.sweep(self.state.connections)  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, and end what it has begun."""

    async def whole() -> None:
        begun = len(HOUSES)
        await test
        for house in HOUSES[begun:]:
            for connection in list(house.state.connections):
                connection.connection_lost(None)
            house.answer.set()
        await settle()

    asyncio.run(whole())


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def main() -> None:
        house = House()
        _, wire = house.connect()
        house.sweep(HEAD_WAIT_S)
        assert not wire.closed
        house.sweep(protocol.SWEEP_S)
        assert wire.closed

    run(main())


def test_a_head_that_comes_slowly_is_not_waited_for() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(HEAD)
        for _ in range(round(HEAD_WAIT_S / protocol.SWEEP_S)):
            connection.data_received(b"x: y\r\n")
            house.sweep(protocol.SWEEP_S)
        assert not wire.closed
        house.sweep(protocol.SWEEP_S)
        assert wire.closed

    run(main())


def test_whoever_waits_for_an_answer_or_rests_is_left_alone() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(GET)
        await settle()
        house.sweep(10 * HEAD_WAIT_S)
        assert not wire.closed
        house.answer.set()
        await settle()
        assert b"fine" in wire.written
        house.sweep(10 * HEAD_WAIT_S)
        assert not wire.closed, "uvicorn's own timer is for these"
        connection.data_received(b"\r\n")
        house.sweep(HEAD_WAIT_S + protocol.SWEEP_S)
        assert wire.closed, "an empty line is no request, and not rest"

    run(main())


def test_each_head_has_the_whole_time() -> None:
    async def main() -> None:
        house = House()
        house.answer.set()
        connection, wire = house.connect()
        for _ in range(5):
            connection.data_received(HEAD)
            house.sweep(HEAD_WAIT_S)
            connection.data_received(b"\r\n")
            await settle()
        assert not wire.closed
        assert wire.written.count(b"fine") == 5

    run(main())


@pytest.mark.parametrize("part", [1000, 50_000, 1 << 20])
def test_a_head_is_not_taken_beyond_its_limit(part: int) -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(HEAD + b"x: ")
        sent = 0
        while not wire.closed and sent < 10 * HEAD_BYTES_MAX:
            connection.data_received(b"y" * part)
            sent += part
        assert wire.closed
        assert sent <= HEAD_BYTES_MAX + part
        assert wire.written.startswith(b"HTTP/1.1 431 ")
        assert b"LimitExceeded" in wire.written

    run(main())


def test_a_head_that_the_application_would_take_comes_through() -> None:
    async def main() -> None:
        house = House()
        house.answer.set()
        connection, wire = house.connect()
        head = HEAD + b"x: " + b"y" * (http.HEADER_BYTES_MAX - 100) + b"\r\n\r\n"
        for start in range(0, len(head), 999):
            connection.data_received(head[start : start + 999])
        await settle()
        assert b"fine" in wire.written

    run(main())


def test_a_large_body_is_no_head() -> None:
    async def main() -> None:
        house = House()
        house.answer.set()
        connection, wire = house.connect()
        size = 20 * HEAD_BYTES_MAX
        connection.data_received(POST + b"content-length: %d\r\n\r\n" % size)
        for _ in range(20):
            connection.data_received(b"z" * HEAD_BYTES_MAX)
            await settle()
        assert not wire.closed
        assert b"fine" in wire.written
        assert len(house.bodies[0]) == size

    run(main())


def test_a_trailer_is_not_taken_beyond_the_limit_either() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(POST + b"transfer-encoding: chunked\r\n\r\n1\r\nz\r\n0\r\nx: ")
        for _ in range(3):
            await settle()
            if not wire.closed:
                connection.data_received(b"y" * (HEAD_BYTES_MAX // 2 + 1))
        assert wire.closed
        assert wire.written == b"", "an answer is under way: no other may get into it"

    run(main())


def test_an_answer_that_is_not_read_is_given_up() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(GET)
        wire.unread = 1_000_000
        connection.pause_writing()
        house.sweep(http.SEND_WAIT_S + protocol.SWEEP_S)
        assert not wire.aborted
        house.sweep(protocol.SWEEP_S)
        assert wire.aborted

    run(main())


def test_an_answer_that_is_hardly_read_is_given_up_too() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(GET)
        wire.unread = 1_000_000
        connection.pause_writing()
        wire.closed = True  # it was the last answer: only what is left of it keeps the connection
        for _ in range(round(http.SEND_WAIT_S / protocol.SWEEP_S) + 2):
            wire.unread -= 100
            house.sweep(protocol.SWEEP_S)
        assert wire.aborted

    run(main())


def test_an_answer_that_is_read_slowly_is_sent_to_its_end() -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(GET)
        wire.unread = 40 * protocol.SEND_BYTES_MIN
        connection.pause_writing()
        while wire.unread:
            house.sweep(http.SEND_WAIT_S / 2)
            wire.unread -= protocol.SEND_BYTES_MIN // 2
        connection.resume_writing()
        wire.unread = 100
        house.sweep(http.SEND_WAIT_S)
        assert not wire.aborted

    run(main())


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_stream_whose_buffer_is_never_empty_goes_on_while_it_is_read(is_paused: bool) -> None:
    async def main() -> None:
        house = House()
        connection, wire = house.connect()
        connection.data_received(GET)
        for second in range(500):
            if is_paused and second % 50 == 0:
                connection.resume_writing()  # and there is more already
                connection.pause_writing()
            wire.unread = 200_000 if is_paused else 50_000 + second % 2
            house.sweep(protocol.SWEEP_S)
        assert not wire.aborted

    run(main())


def test_over_the_limit_newcomers_are_told_so_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        house = House(limit=8)
        house.answer.set()
        known = [house.connect() for _ in range(8)]
        told = [house.connect() for _ in range(2)]
        cut = [house.connect() for _ in range(3)]
        for connection, _ in known + told:
            connection.data_received(GET)
        await settle()
        for _, wire in known:
            assert b"200 OK" in wire.written
            assert not wire.closed
        for _, wire in told:
            head, _, body = wire.written.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in head
            assert b"application/problem+json" in head
            assert b"Unavailable" in body
            assert wire.closed
        assert all(wire.aborted and not wire.written for _, wire in cut)
        house.sweep(60)
        (record,) = caplog.records
        assert vars(record)["refused"] == 5, "one line for all"

    with caplog.at_level(logging.WARNING, "detent.server"):
        run(main())


def test_who_is_over_the_limit_and_says_nothing_makes_room_soon() -> None:
    async def main() -> None:
        house = House(limit=4)
        known = [house.connect() for _ in range(4)]
        _, silent = house.connect()
        house.sweep(REFUSED_WAIT_S + protocol.SWEEP_S)
        assert silent.closed
        assert not any(wire.closed for _, wire in known)

    run(main())


def test_a_body_that_is_half_sent_when_the_server_stops_is_answered() -> None:
    async def main() -> None:
        seen: list[Exception] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            try:
                await http.HttpRequest(scope, receive).body()
            except http.Unavailable as error:
                seen.append(error)
            await http.Response(b"stopped", status=503).send(send)

        house = House()
        house.config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
        connection, wire = house.connect()
        connection.data_received(POST + b"content-length: 100\r\n\r\nhalf")
        await settle()
        assert wire.written == b""
        connection.shutdown()
        await settle()
        assert wire.written.startswith(b"HTTP/1.1 503 ")
        assert wire.closed
        assert len(seen) == 1

    run(main())


@pytest.mark.parametrize(
    ("soft", "hard", "expected", "raised"),
    [
        (1024, 1_000_000, serving.CONCURRENCY_MAX, serving.CONCURRENCY_MAX + serving.RESERVED_FILES),
        (1024, 4096, 4096 - serving.RESERVED_FILES, 4096),
        (1024, 1024, 1024 - serving.RESERVED_FILES, None),
        (80, 80, 20, None),
        (1_000_000, 1_000_000, serving.CONCURRENCY_MAX, None),
        (1024, resource.RLIM_INFINITY, serving.CONCURRENCY_MAX, serving.CONCURRENCY_MAX + serving.RESERVED_FILES),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, serving.CONCURRENCY_MAX, None),
    ],
)
def test_connections_leave_descriptors_for_the_store(
    soft: int, hard: int, expected: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair[0]))
    assert serving.connections_max() == expected
    assert limits == ([] if raised is None else [raised])
    assert serving.RESERVED_FILES > 2 * BEYOND_MAX


@pytest.mark.parametrize("fails", [False, True])
def test_the_loop_commits_for_as_long_as_the_application_is_there(fails: bool, tmp_path: Path) -> None:
    async def main() -> None:
        given: list[Any] = []
        with contextlib.suppress(RuntimeError):
            async with serving.application(serving.Serving(f"file:{tmp_path / 'data'}")) as (_, parts, _):
                native: Any = next(part for part in parts if part.name == "native")
                lead = native._app._engine._lead
                given.append(lead._call_soon)
                if fails:
                    raise RuntimeError
        given.append(lead._call_soon)
        assert given[0] is not None
        assert given[1] is None

    asyncio.run(main())


@pytest.mark.parametrize(("host", "checked"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_names_are_checked_where_nobody_but_this_machine_is_meant(host: str, checked: bool) -> None:
    async def main() -> None:
        async with serving.application(serving.Serving(host=host, open_to_all=True)) as (app, _, _):
            assert (app._hosts is not None) == checked
        ring = KeyRing([new_key("a", ["publish:queue:a"], now=datetime.now(UTC))])
        async with serving.application(serving.Serving(host=host, keys=ring)) as (app, _, _):
            assert app._hosts is None

    asyncio.run(main())


def test_a_limit_that_cannot_be_raised_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert serving.connections_max() == 1024 - serving.RESERVED_FILES
