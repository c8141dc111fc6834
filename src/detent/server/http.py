"""Requests and answers as the server's parts see them, over ASGI.

Each part (the API, the SQS endpoint, the operators' pages) is a function from a `Request` to a `Response`; nothing but
this module and the application around it touches ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from detent.errors import Invalid, LimitExceeded, Unavailable
from detent.remote.bodies import read_body

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_BYTES_MAX: Final = 160 << 20
"""What any request may carry; most routes allow far less."""

JSON_BYTES_MAX: Final = 16 << 20
"""What a JSON body may have: it is held in memory several times while it is taken apart."""

BODY_WAIT_S: Final = 60.0
"""How long a client may take to send one request."""

SEND_WAIT_S: Final = 60.0
"""How long a client may leave a part of an answer unread before it counts as gone."""

SEND_BYTES: Final = 256 << 10
"""A larger answer leaves in parts of this size, each when the client has read those before: what a connection holds in
its buffers is then bounded by this, and not by the answer."""

PATH_BYTES_MAX: Final = 4 << 10
QUERY_BYTES_MAX: Final = 16 << 10
QUERY_FIELDS_MAX: Final = 100
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 64 << 10

JSON: Final = "application/json"

STOPPING: Final = "detent.stopping"
"""The field of a scope that says that the server stops, and waits for no body."""

DECIDING: Final = (
    "authorization", "content-encoding", "content-length", "content-type", "host", "idempotency-key", "origin",
    "sec-fetch-site", "x-amz-date", "x-amz-target",
)  # fmt: skip
"""Headers that may be there once."""

BODILESS: Final = frozenset({204, 304})
"""Answers that have no body by definition, so nothing may be said about one."""


class WrongEncoding(Invalid):
    """The body of a request is coded in a way that nothing here takes off."""


class HttpRequest:
    """One request. The body is read when it is asked for, so that a caller who is not allowed in sends it in vain."""

    __slots__ = (
        "_body",
        "caller",
        "destination",
        "headers",
        "method",
        "operation",
        "path",
        "raw_path",
        "raw_query",
        "receive",
        "recheck",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.raw_query: bytes = scope["query_string"]
        # Of a header that comes twice the last one counts; those that decide anything are refused when they do.
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        # What it turned out to be about, for tracing: a verb such as publish, and the queue or journal.
        self.operation = ""
        self.destination = ""
        self.caller = ""  # the sender's name, once it is known
        self.receive = receive
        # Who asks now, for answers that take their time: a key may be revoked meanwhile.
        self.recheck: Callable[[], Awaitable[Any]] | None = None
        self._body: bytes | None = None

    def check(self) -> None:
        """Refuse what no well-behaved client sends, before anything is read of it."""
        headers = self.scope["headers"]
        if len(self.raw_path) > PATH_BYTES_MAX or len(self.raw_query) > QUERY_BYTES_MAX:
            raise LimitExceeded("the address of this request is too long")
        if len(headers) > HEADERS_MAX or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES_MAX:
            raise LimitExceeded("this request has too many headers, or too long ones")
        coding = self.headers.get("content-encoding", "")
        if coding.strip().lower() not in {"", "identity"}:
            raise WrongEncoding(f"a body is sent as it is, not as {coding[:50]!r}: send no Content-Encoding")
        if len(headers) == len(self.headers):
            return
        for name in DECIDING:
            if sum(found == name.encode() for found, _ in headers) > 1:
                raise Invalid(f"the header {name} is there twice")

    @property
    def client(self) -> str:
        """Where it came from, for the log."""
        client = self.scope.get("client")
        return f"{client[0]}:{client[1]}" if client else "?"

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def query(self) -> dict[str, str]:
        """The fields of the query; `Invalid` if one comes twice."""
        try:
            pairs = parse_qsl(
                self.raw_query.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"
            )
        except ValueError as error:
            raise Invalid(f"this is not a query: {error}") from error
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise Invalid("a field of the query is there twice")
        return fields

    async def body(self, limit: int = BODY_BYTES_MAX) -> bytes:
        """The body, if it has at most `limit` bytes and comes in time."""
        if self._body is None:
            declared = self.headers.get("content-length", "")
            if declared.isdigit() and int(declared) > limit:
                raise LimitExceeded(f"this request may have at most {limit} bytes, not {declared}")
            self._body = await read_body(self._next, limit, BODY_WAIT_S)
        return self._body

    def replay(self) -> Receive:
        """What comes of this request, for a handler that reads the body itself: from its beginning, also if it was read
        already."""
        if self._body is None:
            return self._next
        read = [self._body]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": read.pop()} if read else await self.receive()

        return receive

    async def _next(self) -> dict[str, Any]:
        """The next part of the body; `Unavailable` if there is more to come than the server will wait for."""
        message = await self.receive()
        if STOPPING in self.scope and message.get("more_body"):
            raise Unavailable("the server is shutting down, and this request was not sent whole: send it again")
        return message

    async def disconnected(self) -> None:
        """Return once the client has gone away, whatever it sends before. For an answer that takes its time: the body,
        if it is wanted, is read before this is called."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class Response:
    """What is answered: bytes, or a stream of them. `undo` takes back what the answer gives away, if the client cannot
    have got it."""

    __slots__ = ("body", "headers", "started", "status", "type", "undo")

    def __init__(
        self,
        body: bytes | AsyncIterator[bytes] = b"",
        *,
        status: int = 200,
        type: str = JSON,
        headers: Mapping[str, str] | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self.body = body
        self.undo = undo
        self.status = status
        self.type = type
        self.headers = headers or {}
        self.started = False  # whether the client may have seen the status: it cannot be changed any more

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Response:
        """An answer in JSON."""
        return cls(msgspec.json.encode(value), status=status)

    async def send(self, send: Send) -> None:
        """Put it on its way. What a client leaves unread stays incomplete, and its connection is closed."""
        body = self.body
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.status not in BODILESS:
            headers.append((b"content-type", self.type.encode("latin-1")))
            if isinstance(body, bytes):
                headers.append((b"content-length", str(len(body)).encode()))
        self.started = True
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(body, bytes) and len(body) <= SEND_BYTES:
            await send({"type": "http.response.body", "body": body})
            return
        async for part in _cut(body) if isinstance(body, bytes) else body:
            try:
                async with asyncio.timeout(SEND_WAIT_S):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except TimeoutError:
                return
        await send({"type": "http.response.body", "body": b""})


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), SEND_BYTES):
        yield body[start : start + SEND_BYTES]


Handler = Callable[[HttpRequest], Awaitable[Response]]
"""A part of the server."""
