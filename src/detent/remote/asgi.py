"""One request to an owner and the answer to it, whether they travel on its socket or through a server's port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from detent.errors import Invalid
from detent.remote import wire
from detent.remote.bodies import body_parts, read_body
from detent.remote.rights import Kind, Right, RightsHolder

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON: Final = "application/json"

REQUESTS: Final = "detent.requests"
"""Where a request's scope has the transactions that came in it, for a tracer of what was asked."""

QUERY_FIELDS_MAX: Final = 20
NUMBER_DIGITS_MAX: Final = 20
"""No number that means anything here has more."""

SEND_WAIT_S: Final = 60.0
"""How long a client may leave a part of a streamed answer unread before it counts as gone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: bytes, or a stream of them. `undo` takes back what the answer gives away, if the client cannot
    have got it."""

    body: bytes | AsyncIterator[bytes] = b""
    type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    undo: Callable[[], None] | None = None

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """An answer in JSON."""
        return cls(msgspec.json.encode(value), status=status)

    async def send(self, send: Send) -> None:
        """Put it on its way."""
        headers = [(b"content-type", self.type.encode("latin-1"))]
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if isinstance(self.body, bytes):
            headers.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(self.body, bytes):
            await send({"type": "http.response.body", "body": self.body})
            return
        async for part in self.body:
            await asyncio.wait_for(send({"type": "http.response.body", "body": part, "more_body": True}), SEND_WAIT_S)
        await send({"type": "http.response.body", "body": b""})


class OwnerCall:
    """One request. `caller` sent it; None may do everything, because only the store's user can open the
    owner's socket."""

    __slots__ = ("caller", "method", "path", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive, caller: RightsHolder | None) -> None:
        self.scope = scope
        self.receive = receive
        self.caller = caller
        self.method: str = scope["method"]
        self.path: str = scope["path"]

    def require(self, right: Right, kind: Kind, name: str) -> None:
        """`Denied` unless the caller has the right on a queue or journal."""
        if self.caller is not None:
            self.caller.require(right, kind, name)

    def require_everywhere(self, right: Right) -> None:
        """`Denied` unless the caller has the right on the whole store."""
        if self.caller is not None:
            self.caller.require_everywhere(right)

    def query(self) -> dict[str, str]:
        """The fields of the query; `Invalid` if one comes twice."""
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                max_num_fields=QUERY_FIELDS_MAX,
                errors="strict",
            )
        except ValueError as error:
            raise Invalid(f"this is no query: {error}") from error
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise Invalid("a field of the query is there twice")
        return fields

    async def body(self, limit: int) -> bytes:
        """The whole body, if it has at most `limit` bytes and comes in time."""
        return await read_body(self.receive, limit, wire.BODY_WAIT_S)

    def parts(self, limit: int) -> AsyncIterator[bytes]:
        """The body as it comes, up to `limit` bytes."""
        return body_parts(self.receive, limit)


def text_of(fields: Mapping[str, str], name: str) -> str:
    """A field of a query."""
    try:
        return fields[name]
    except KeyError as error:
        raise Invalid(f"the query lacks {name}") from error


def number_of(fields: Mapping[str, str], name: str) -> int:
    """A field of a query that is a number."""
    text = text_of(fields, name)
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise Invalid(f"{name} is a number, not {text[:50]!r}")
    return int(text)


async def in_threads(call: OwnerCall, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A stream whose parts are made in threads, one after another, until they end or the client has gone: a server
    does not say by itself that the client reads no more."""
    gone = asyncio.create_task(disconnected(call.receive))
    try:
        while not gone.done():
            part = await asyncio.to_thread(next, parts, None)
            if part is None:
                return
            yield part
    finally:
        gone.cancel()
        await asyncio.to_thread(_close, parts)


def _close(parts: Any) -> None:
    with contextlib.suppress(ValueError):  # a thread is still at work in it, and ends with the part that it makes
        parts.close()


async def wait_for_event(call: OwnerCall, woken: asyncio.Event, timeout_s: float) -> bool:
    """Wait until an event is set, for as long as the client does. False if it was not."""
    ends = [asyncio.create_task(woken.wait()), asyncio.create_task(disconnected(call.receive))]
    try:
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
    return woken.is_set()


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
