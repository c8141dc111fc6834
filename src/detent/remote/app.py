"""The owner's half of the wire protocol: an ASGI application over one engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from detent.engine import Engine, Request, Ticket
from detent.errors import DetentError, Invalid, LimitExceeded, NotFound
from detent.journal import JournalMachine, JournalReader
from detent.journal.operations import check_name
from detent.queue import QueueMachine
from detent.queue import operations as queue_operations
from detent.remote import wire
from detent.remote.dispatch import Dispatcher

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = "application/json"


class OwnerApp:
    """Serves one engine. Uncaught errors become a 500 and reach the server's log."""

    def __init__(self, engine: Engine, journals: JournalMachine, queues: QueueMachine, reader: JournalReader) -> None:
        self._engine = engine
        self._journals = journals
        self._queues = queues
        self._reader = reader
        self._dispatcher: Dispatcher | None = None
        self._waits: set[Callable[[], None]] = set()
        self._closing = False

    def end_waits(self) -> None:
        """Answer everybody who waits for a journal to grow, and who asks again at once: the owner is closing."""
        self._closing = True
        for wake in list(self._waits):
            wake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            status, kind, body = await self._route(scope, receive)
        except DetentError as error:
            kind = wire.PROBLEM_TYPE
            status, body = wire.encode_problem(error)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, str, bytes]:
        method, path = scope["method"], scope["path"]
        if (method, path) == ("POST", "/v1/transactions"):
            requests = wire.decode_requests(await asyncio.wait_for(_read_body(receive), wire.BODY_WAIT_S))
            outcomes = await asyncio.gather(*map(self._commit, requests))
            return 200, wire.TRANSACTION_TYPE, wire.encode_answers(outcomes)
        if (method, path) == ("POST", "/v1/sessions"):
            return 201, JSON, msgspec.json.encode({"session": self._engine.new_session().hex()})
        if (method, path) == ("GET", "/v1/status"):
            return 200, JSON, msgspec.json.encode({"epoch": self._engine.epoch, "pid": os.getpid()})
        if method == "GET" and path.startswith("/v1/journals/") and path.endswith("/wait"):
            name = unquote(path.removeprefix("/v1/journals/").removesuffix("/wait"))
            return 200, JSON, msgspec.json.encode({"next_offset": await self._wait(name, scope["query_string"])})
        if method == "GET" and path.startswith("/v1/queues/") and path.endswith("/wait"):
            name = unquote(path.removeprefix("/v1/queues/").removesuffix("/wait"))
            return (
                200,
                JSON,
                msgspec.json.encode({"claimable": await self._wait_claimable(name, scope["query_string"])}),
            )
        raise NotFound(f"there is no {method} {path} here")

    async def _commit(self, request: Request | Invalid) -> list[Any] | DetentError:
        """One transaction of perhaps several; what is wrong with it is its own affair."""
        if isinstance(request, Invalid):
            return request
        try:
            if self._engine.is_prepared(request.operations):
                # Checking fragments reads files: not on the loop that everybody else is answered from.
                return await asyncio.to_thread(self._engine.commit, request)
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(asyncio.get_running_loop())
            future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
            self._engine.submit(request, self._dispatcher.deliver, future)
            return (await future).outcome()
        except DetentError as error:
            return error

    async def _wait_claimable(self, name: str, query: bytes) -> bool:
        """Answer once a queue has something to claim, or after the time that was given."""
        queue_operations.check_name(name)
        (timeout_ms,) = _numbers(query, "timeout_ms")
        woken, wake = _alarm()
        stop = self._queues.wait(name, wake)
        self._waits.add(wake)
        try:
            if not self._queues.claimable(name) and not self._closing:
                await asyncio.wait_for(woken.wait(), min(timeout_ms, wire.WAIT_MS_MAX) / 1000)
        except TimeoutError:
            return False
        finally:
            self._waits.discard(wake)
            stop()
        return self._queues.claimable(name)

    async def _wait(self, name: str, query: bytes) -> int:
        """Answer the journal's next offset once it is above `offset`, or after the time that was given."""
        check_name(name)
        offset, timeout_ms = _numbers(query, "offset", "timeout_ms")
        timeout_ms = min(timeout_ms, wire.WAIT_MS_MAX)
        woken, wake = _alarm()
        stop = self._journals.watch.add(name, offset, wake)
        self._waits.add(wake)
        try:
            found = self._reader.next_offset(name)
            if found <= offset and not self._closing:
                try:
                    await asyncio.wait_for(woken.wait(), timeout_ms / 1000)
                except TimeoutError:
                    return found
                found = self._reader.next_offset(name)
        finally:
            self._waits.discard(wake)
            stop()
        return found


def _numbers(query: bytes, *names: str) -> list[int]:
    """The numbers of a query."""
    arguments = parse_qs(query.decode("latin-1"))
    try:
        return [int(arguments[name][0]) for name in names]
    except (KeyError, ValueError) as error:
        raise Invalid(f"wait takes the numbers {' and '.join(names)}") from error


def _alarm() -> tuple[asyncio.Event, Callable[[], None]]:
    """An event of the running loop, and how any thread sets it."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    return woken, wake


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Invalid("the client went away before it had sent its request")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > wire.BODY_BYTES_MAX:
            raise LimitExceeded(f"a request has at most {wire.BODY_BYTES_MAX} bytes")
        if not message.get("more_body"):
            return b"".join(parts)
