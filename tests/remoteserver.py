"""A real server for tests: uvicorn over a `file:` store, in a thread of this process or in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

import detent
from detent import Store
from detent.errors import Denied, DetentError
from detent.remote.owner import _SocketUvicorn
from detent.server.access import Caller, Grant
from detent.server.app import Part, ServerApplication, problem
from detent.server.http import HttpRequest, Response
from detent.server.native import NativePart
from detent.store import AsyncStore
from processes import PATIENCE_S, Io

TOKENS = {
    "all": (Grant("admin", "*", "*"),),
    "orders": (Grant("publish", "queue", "orders"), Grant("consume", "queue", "orders")),
    "journals": (Grant("publish", "journal", "*"), Grant("consume", "journal", "j")),
}
"""The tokens that a guarded server knows, and what each allows."""


class Guarded:
    """A part behind bearer tokens."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.name = part.name

    def owns(self, request: HttpRequest) -> bool:
        return self._part.owns(request)

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        for token, grants in TOKENS.items():
            if hmac.compare_digest(token, given):
                return await self._part.answer(request, Caller(token, grants))
        return problem(401, "Denied", "who are you?")

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        assert not isinstance(error, Denied) or "may not" in str(error)
        return self._part.refuse(request, error)

    async def close(self) -> None:
        await self._part.close()


class HttpServer:
    """A server in a thread."""

    def __init__(self, url: str, *, guarded: bool = False, middle: Any = None, **options: Any) -> None:
        self._arguments = url, guarded, middle, options
        self._socket = listening(0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if 'ssl_certfile' in options else 'http'}://127.0.0.1:{self.port}"
        self.store: Store | None = None
        self._server: _SocketUvicorn | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the server did not start"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        url, guarded, middle, options = self._arguments
        async with detent.open_async(url) as store:
            self.store = store._store
            self._server = make_server(store, guarded=guarded, middle=middle, **options)
            self._ready.set()
            await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        with contextlib.suppress(AttributeError):  # it has not started yet, and will not
            self._server.end()
        self._thread.join()
        self._socket.close()


def make_server(store: AsyncStore, *, guarded: bool = False, middle: Any = None, **options: Any) -> _SocketUvicorn:
    part: Part = NativePart(store)
    app: Any = ServerApplication([Guarded(part) if guarded else part])
    config = uvicorn.Config(
        middle(app) if middle else app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        **options,
    )
    return _SocketUvicorn(config)


@contextlib.contextmanager
def serving(url: str, **options: Any) -> Iterator[HttpServer]:
    """A server for the length of a block."""
    server = HttpServer(url, **options)
    try:
        yield server
    finally:
        server.stop()


def listening(port: int) -> socket.socket:
    """A socket on the loopback address. It says that it is TCP: asyncio turns Nagle's algorithm off for no other, and
    each answer would wait 40 ms for an acknowledgement."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def server_process(io: Io, url: str, port: int) -> None:
    """A server in a process of its own; see :mod:`processes`."""

    async def serve() -> None:
        listener = listening(port)
        async with detent.open_async(url) as store:
            server = make_server(store)
            io.say("serving")
            await server.serve(sockets=[listener])

    asyncio.run(serve())
