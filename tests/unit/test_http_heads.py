"""Requests as bytes on a connection: what is read as a header, where a body ends, what a GET may do."""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
import uvicorn
from uvicorn.server import ServerState

import detent
from detent.remote import wire
from detent.server.api import ROUTES, Api
from detent.server.app import ServerApplication
from detent.server.keys import KeyRing, new_key
from detent.server.native import NativePart
from detent.server.protocol import Door, HttpConnection
from detent.server.serving import own_hosts
from detent.server.sqs.part import SqsPart
from detent.store import AsyncStore

KEY = new_key("a program", ["admin:*:*"], now=datetime.now(UTC))
TOKEN = f"authorization: Bearer {KEY.id}.{KEY.secret}\r\n".encode()
POST = b"POST /v1/journals/j/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
BODY = b'{"body": "x"}'
CHUNKS = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
SIZED = b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Wire:
    """A transport that keeps what is written to it, until it is closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        self.written += b"" if self.closed else data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Said(NamedTuple):
    """What came back on a connection, and what is in the store then."""

    answers: bytes
    closed: bool
    messages: int
    queues: list[str]

    @property
    def statuses(self) -> list[int]:
        return [int(line.split()[1]) for line in self.answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def said(*parts: bytes, keys: bool = False) -> Said:
    """Send bytes to a server with a journal and a queue in it."""

    async def main() -> Said:
        async with detent.open_async("memory:") as store:
            await store.journal("j").append(b"first")
            await store.queue("q").create()
            return await _talk(store, parts, keys)

    return asyncio.run(main())


async def _talk(store: AsyncStore, parts: tuple[bytes, ...], keys: bool) -> Said:
    ring = KeyRing([KEY]) if keys else None
    app = ServerApplication([NativePart(store), Api(store), SqsPart(store)], keys=ring, hosts=own_hosts("127.0.0.1"))
    config = uvicorn.Config(app, interface="asgi3", log_config=None, access_log=False, lifespan="off", ws="none")
    wire_, state = Wire(), ServerState()
    connection = HttpConnection(config, state, {}, door=Door(10))
    connection.connection_made(wire_)  # type: ignore[arg-type]
    for part in parts:
        if not wire_.closed:
            connection.data_received(part)
        for _ in range(3):
            await asyncio.sleep(0)
    connection_lost = asyncio.get_running_loop().call_later(0.5, connection.connection_lost, None)
    while state.tasks:
        await asyncio.wait(list(state.tasks))
    connection_lost.cancel()
    messages = (await store.journal("j").info()).next_offset - 1
    return Said(wire_.written, wire_.closed, messages, [queue.name for queue in await store.queues()])


# -- headers --------------------------------------------------------------------------------------------------------


def test_a_token_in_a_trailer_is_no_authorization() -> None:
    assert said(POST + TOKEN + CHUNKED + b"\r\n" + CHUNKS + b"\r\n", keys=True).messages == 1
    for parts in (
        [POST + CHUNKED + b"\r\n" + CHUNKS + TOKEN + b"\r\n"],
        [POST + CHUNKED + b"trailer: authorization\r\n\r\n", CHUNKS + TOKEN + b"\r\n"],
    ):
        found = said(*parts, keys=True)
        assert (found.statuses, found.messages) == ([401], 0)


def test_a_trailer_replaces_no_header() -> None:
    for trailer in (b"host: evil\r\n", b"content-type: text/plain\r\n", b"origin: http://evil\r\n", b"x: y\r\n"):
        found = said(POST + CHUNKED + b"\r\n" + CHUNKS + trailer + b"\r\n")
        assert (found.statuses, found.messages) == ([200], 1), trailer


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 3\r\n" + SIZED,
        SIZED.replace(b"\r\n\r\n", b"\r\n" + CHUNKED + b"\r\n", 1),
        CHUNKED + SIZED,
        b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS + b"\r\n",
        b"transfer-encoding: gzip\r\n" + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
        CHUNKED + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
        b"transfer-encoding: identity\r\n\r\n" + BODY,
        b"connection: upgrade\r\nupgrade: h2c\r\n" + SIZED,
        b"x: a\r\n authorization: b\r\n" + SIZED,
        b"x : a\r\n" + SIZED,
        b"x: a\0b\r\n" + SIZED,
        b"host: elsewhere\r\n" + SIZED,
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    found = said(POST + head)
    assert found.statuses[:1] == [400]
    assert found.messages == 0


def test_an_address_with_a_host_names_the_one_of_the_header() -> None:
    get = b"GET http://%b/v1/journals/j HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert said(get % b"localhost").statuses == [200]
    for other in (b"evil", b"localhost:1", b"me@localhost"):
        assert said(get % other).statuses == [400]


def test_what_follows_an_error_on_a_connection_is_not_read() -> None:
    second = POST + SIZED
    for first in (
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"POST /v1/journals/j/messages HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        POST + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(second),
        POST + CHUNKED + b"\r\n-1\r\n",
        POST + b"connection: close\r\n" + SIZED.replace(BODY, b"{" * len(BODY)),
    ):
        for parts in ([first + second], [first, second]):
            found = said(*parts)
            assert found.closed, first
            assert found.messages == 0, first


# -- bodies ---------------------------------------------------------------------------------------------------------

TYPES = {
    "json": ("/v1/journals/j/messages", b"content-type: application/json\r\n", BODY),
    "native": ("/v1/transactions", b"content-type: %b\r\n" % wire.TRANSACTION_TYPE.encode(), b"\x90"),
    "a session": ("/v1/sessions", b"", b""),
    "sqs": ("/", b"x-amz-target: AmazonSQS.ListQueues\r\ncontent-type: application/x-amz-json-1.0\r\n", b"{}"),
    "sqs, a form": ("/", b"content-type: application/x-www-form-urlencoded\r\n", b"Action=ListQueues"),
    "nothing": ("/v1/none", b"", b"x"),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_body_that_is_coded_is_refused_as_that(kind: str) -> None:
    path, head, body = TYPES[kind]
    for coding in (b"gzip", b"deflate", b"br", b"gzip, identity"):
        sent = gzip.compress(body)
        head_ = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: %b\r\n" % (path.encode(), coding)
        found = said(head_ + head + b"content-length: %d\r\n\r\n" % len(sent) + sent)
        assert found.statuses == [415], coding
        assert (b"<Code>UnsupportedMediaType</Code>" in found.answers) == (kind == "sqs, a form")
    head_ = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: Identity\r\n" % path.encode()
    assert said(head_ + head + b"content-length: %d\r\n\r\n" % len(body) + body).statuses != [415]


# -- what a GET may do ----------------------------------------------------------------------------------------------

_QUEUE_URL = b"QueueUrl=http%3A%2F%2Flocalhost%2F000000000000%2Fq"
WRITES = {
    "create": b"/?Action=CreateQueue&QueueName=made",
    "delete": b"/?Action=DeleteQueue&" + _QUEUE_URL,
    "delete by its path": b"/000000000000/q?Action=DeleteQueue",
    "send": b"/000000000000/q?Action=SendMessage&MessageBody=x",
    "purge": b"/000000000000/q?Action=PurgeQueue",
    "receive": b"/000000000000/q?Action=ReceiveMessage",
    "tag": b"/000000000000/q?Action=TagQueue&Tag.1.Key=a&Tag.1.Value=b",
}


def get(method: bytes, address: bytes, head: bytes = b"") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % (method, address, head)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("action", WRITES)
def test_no_get_changes_anything_through_sqs(action: str, method: bytes) -> None:
    found = said(get(method, WRITES[action]))
    assert found.statuses == [405]
    assert found.queues == ["q"]
    if method == b"GET":
        assert b"<Code>MethodNotAllowed</Code>" in found.answers


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"])
def test_the_json_protocol_of_sqs_takes_post_alone(method: bytes) -> None:
    head = b"x-amz-target: AmazonSQS.CreateQueue\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: 21\r\n"
    found = said(get(method, b"/", head) + b'{"QueueName": "made"}')
    assert (found.statuses, found.queues) == ([405], ["q"])


def test_a_get_can_ask_for_what_changes_nothing() -> None:
    found = said(get(b"GET", b"/?Action=ListQueues"))
    assert found.statuses == [200]
    assert b"/000000000000/q</QueueUrl>" in found.answers
    assert said(get(b"GET", b"/000000000000/q?Action=GetQueueAttributes&AttributeName=All")).statuses == [200]


CHANGING = {
    route.path.replace("{queue}", "q").replace("{journal}", "j").encode() for route in ROUTES if route.method != "GET"
}


@pytest.mark.parametrize("path", sorted(CHANGING))
def test_no_get_changes_anything_through_the_api(path: bytes) -> None:
    for address in (path, path.replace(b"/v1", b"/%76%31"), path + b"?method=POST&_method=DELETE"):
        found = said(get(b"GET", address, b"x-http-method-override: DELETE\r\n"))
        assert (found.messages, found.queues) == (0, ["q"])


HERE = b"host: localhost\r\n"


@pytest.mark.parametrize("head", [b"host: evil", HERE + b"origin: http://evil", HERE + b"sec-fetch-site: same-site"])
def test_a_page_of_another_origin_is_answered_nothing(head: bytes) -> None:
    for method in (b"GET", b"OPTIONS", b"HEAD"):
        found = said(b"%b /v1/journals/j HTTP/1.1\r\n%b\r\n\r\n" % (method, head))
        assert found.statuses == [403]
        assert b"access-control" not in found.answers.lower()
