"""A server for tests: an `Application` over a store of its own, served by uvicorn on a free port of 127.0.0.1.

    with serve("memory:", lambda store: [Api(store)]) as server:
        server.client.get("/v1/queues")         # an httpx client with the server's address
        server.run(server.store.queues())       # the same store, through the server's event loop

The server and its event loop run in a thread, which ends with the block; so does the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import uvicorn

import detent
from detent import AsyncStore
from detent.errors import DetentError
from detent.remote import LocalOwner
from detent.server.access import Caller
from detent.server.app import Part, ServerApplication
from detent.server.http import HttpRequest, Response
from detent.server.keys import KeyRing

HOST = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 60.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class HttpServer:
    """A running server."""

    port: int
    client: httpx.Client
    store: AsyncStore
    parts: list[Part]
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self.port}"

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Have the server's event loop do something."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(REQUEST_SECONDS)

    @property
    def owner(self) -> LocalOwner:
        """The owner of the store, whose watches know who waits."""
        owner = self.store._store._connection.current
        assert isinstance(owner, LocalOwner)
        return owner

    def waiters(self) -> int:
        """How many wait for a queue or a journal."""
        return len(self.owner.queues.watch) + len(self.owner.journals.watch)

    def tasks(self) -> int:
        """How many tasks the server's event loop has."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return self.run(count())


class Posing:
    """A part whose caller is the one that the test wants."""

    def __init__(self, part: Part, caller: Caller) -> None:
        self._part = part
        self.name = part.name
        self.caller = caller

    def owns(self, request: HttpRequest) -> bool:
        return self._part.owns(request)

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        del caller
        return await self._part.answer(request, self.caller)

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        return self._part.refuse(request, error)

    async def close(self) -> None:
        await self._part.close()


class _Thread(threading.Thread):
    """The event loop of one server."""

    def __init__(
        self,
        url: str,
        make_parts: Callable[[AsyncStore], list[Part]],
        listener: socket.socket,
        keys: KeyRing | None,
    ) -> None:
        super().__init__(name="http-server", daemon=True)
        self._url = url
        self._make_parts = make_parts
        self._listener = listener
        self._keys = keys
        self.ready = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self.ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with detent.open_async(self._url) as self.store:
            self.parts = self._make_parts(self.store)
            config = uvicorn.Config(
                ServerApplication(self.parts, keys=self._keys), log_config=None, log_level="warning", access_log=False,
                lifespan="off", http="h11", loop="asyncio", ws="none", timeout_graceful_shutdown=int(STOP_SECONDS),
            )  # fmt: skip
            self.server = uvicorn.Server(config)
            serving = asyncio.create_task(self.server.serve([self._listener]))
            while not self.server.started and not serving.done():
                await asyncio.sleep(0.001)
            self.ready.set()
            await serving

    def stop(self) -> None:
        async def end() -> None:
            for part in self.parts:
                await part.close()
            self.server.should_exit = True

        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            asyncio.run_coroutine_threadsafe(end(), self.loop)
        self.join(STOP_SECONDS)
        assert not self.is_alive(), "the server did not stop"


@contextlib.contextmanager
def serve(
    url: str, make_parts: Callable[[AsyncStore], list[Part]], keys: KeyRing | None = None
) -> Iterator[HttpServer]:
    """Serve a store for the time of a block; to the holders of keys, if there are any."""
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, each answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((HOST, 0))
        listener.listen()
        thread = _Thread(url, make_parts, listener, keys)
        thread.start()
        thread.ready.wait(START_SECONDS)
        if thread.error is not None:
            raise thread.error
        port = listener.getsockname()[1]
        try:
            with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=REQUEST_SECONDS, trust_env=False) as client:
                yield HttpServer(port, client, thread.store, thread.parts, thread.loop)
        finally:
            thread.stop()
        if thread.error is not None:
            raise thread.error
