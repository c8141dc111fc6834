"""`detent serve`: opens the store, listens, and stops without leaving anybody hanging.

One process and one event loop: the engine commits in one thread whatever comes, so more processes would not commit
faster, and a `file:` store has one owner anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from detent.errors import Invalid, Unavailable
from detent.remote import LocalOwner
from detent.server.api import Api
from detent.server.app import Application, Part
from detent.server.keys import KeyRing
from detent.server.metrics import Metrics
from detent.server.native import NativePart
from detent.server.operators import PUBLIC, Operators
from detent.server.sqs import SqsPart
from detent.server.tracing import find_tracing
from detent.store import open_async

HOST: Final = "127.0.0.1"
PORT: Final = 7410
"""Nobody's, as far as the lists of well-known ports go."""

GRACE_S: Final = 10.0
"""How long requests under way may take when the server stops."""

KEEP_ALIVE_S: Final = 75.0
"""Longer than the 60 seconds after which most proxies let go of an idle connection: let them be the first."""

BACKLOG: Final = 2048
CONCURRENCY_MAX: Final = 10_000
"""Connections and requests at once; more are answered 503 at the door."""

logger = logging.getLogger("detent.server")


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve, where, and to whom."""

    url: str = "memory:"
    host: str = HOST
    port: int = PORT
    keys: KeyRing | None = None
    open_to_all: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    force: bool = False

    def check(self) -> None:
        """Refuse what would let strangers in, and what cannot work."""
        if self.keys is None and not self.open_to_all and not is_loopback(self.host):
            raise Invalid(
                f"{self.host} can be reached from other machines, and there are no keys: make one with `detent token "
                "create` and name its file with --keys, or say --no-auth if everybody who can reach it may do anything"
            )
        if (self.certificate is None) != (self.private_key is None):
            raise Invalid("TLS needs both --tls-cert and --tls-key")
        for path in (self.certificate, self.private_key):
            if path is not None and not path.is_file():
                raise Invalid(f"there is no file {path}")

    @property
    def scheme(self) -> str:
        """How clients begin its address."""
        return "http" if self.certificate is None else "https"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name: who knows where it leads


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free. It says that it is TCP: asyncio turns Nagle's algorithm off
    for no other, and each answer would wait 40 ms for an acknowledgement."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Invalid(f"{host} is no address to listen on: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"port {port} of {host} cannot be used: {error}; choose another one with --port") from error
    return listener


@asynccontextmanager
async def application(serving: Serving) -> AsyncIterator[tuple[Application, list[Part]]]:
    """The store, opened by this process as its owner, and the application over it with its parts: all that answers
    requests, in the order in which they are asked whether one is their own."""
    async with open_async(serving.url, force=serving.force) as store:
        owner = store._store._connection.current
        if not isinstance(owner, LocalOwner):
            raise Unavailable(
                f"another process owns {serving.url}: stop it, then serve; clients of this server reach the store "
                "through it, so nobody else has to open it"
            )
        metrics = Metrics()
        owner.engine.observer = metrics
        parts: list[Part] = [Operators(store, metrics), Api(store), NativePart(store), SqsPart(store)]
        tracing = find_tracing()
        yield Application(parts, keys=serving.keys, public=PUBLIC, counting=metrics, tracing=tracing), parts


def run(serving: Serving, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, on uvloop where it is present."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(serving, ready))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(serving: Serving, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address once the port is open."""
    serving.check()
    listener = listen(serving.host, serving.port)
    with contextlib.closing(listener):
        async with application(serving) as (app, parts):
            server = _server(app, serving)
            stop = asyncio.Event()
            with _signals(stop):
                running = asyncio.create_task(server.serve(sockets=[listener]))
                ended = asyncio.create_task(stop.wait())
                if ready is not None:
                    ready(address_of(serving, listener))
                await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
                for part in parts:
                    await part.close()
                server.should_exit = True
                ended.cancel()
                await running


def address_of(serving: Serving, listener: socket.socket) -> str:
    """Where clients find the server."""
    host, port = listener.getsockname()[:2]
    return f"{serving.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class _Server(uvicorn.Server):
    """Uvicorn's server, without its hand on the signals: whoever runs it closes the store after it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def _server(app: Application, serving: Serving) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,  # nobody is believed to be somebody else
            timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(GRACE_S),
            limit_concurrency=CONCURRENCY_MAX,
            ssl_certfile=serving.certificate,
            ssl_keyfile=serving.private_key,
        )
    )


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop the server; a second one ends the process as it would any other."""
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        logger.info("stopping", extra={"signal": number.name})
        loop.remove_signal_handler(number)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, told, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
