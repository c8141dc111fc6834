"""`detent serve`: what is served, where, and to whom; the store behind a port.

One process and one event loop: the engine commits one group after another whatever comes, so more processes would not
commit faster, and a `file:` store has one owner anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import re
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, cast

import uvicorn

from detent.errors import Invalid, Unavailable
from detent.kv import parse_url
from detent.remote import LocalOwner, Role, StoreClaim
from detent.remote.dispatch import caller_on
from detent.remote.storelease import LEASE_S, LEASE_S_MAX, LEASE_S_MIN, STANDBY_LEASE_S
from detent.server.api import Api
from detent.server.app import Part, ServerApplication
from detent.server.console import ConsolePart
from detent.server.console.entrance import Entrance
from detent.server.http import Receive, Scope, Send
from detent.server.keys import KeyRing
from detent.server.metrics import Metrics
from detent.server.metrics_state import QUEUES_SHOWN
from detent.server.native import NativePart
from detent.server.operators import PROBES, PUBLIC, Committing, Operators
from detent.server.protocol import HEAD_WAIT_S, SWEEP_S, Door, HttpConnection
from detent.server.series import Series
from detent.server.sqs import SqsPart
from detent.server.tracing import find_tracing
from detent.store import TIMEOUT, AsyncStore, open_async, open_to_serve

HOST: Final = "127.0.0.1"
PORT: Final = 7410
"""Free, as far as the lists of well-known ports go."""

GRACE_S: Final = 10.0
"""How long requests under way may take when the server stops."""

KEEP_ALIVE_S: Final = 75.0
"""Longer than the 60 seconds after which most proxies let go of an idle connection: let them be the first."""

BACKLOG: Final = 2048
CONCURRENCY_MAX: Final = 10_000
"""Connections and requests at once; more are answered 503 at the door."""

RESERVED_FILES: Final = 300
"""Descriptors that no connection takes: for the store's own files, for those that requests read, for an object store's
client, and for the connections that are told that there are too many."""

TICK_S: Final = 0.1
"""How often uvicorn's server calls `on_tick`."""

HOSTS_REMEMBERED: Final = 100

STANDBY_OPEN: Final = "10s"
"""How long a standby may take to open the store before it gives the lease back: another server may be able to."""

TROUBLE_S: Final = 5.0
"""How long commits fail before the console says so on every page."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^:\[\]]{1,255})(:\d{1,5})?")


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
    metrics_queues: int = QUEUES_SHOWN
    """How many queues a page of metrics has."""

    sqs_port: int | None = None
    """A second port, for SQS clients that are set up for one of their own. Both answer the same."""

    standby: bool = False
    """Whether to wait for the store while another server owns it, and to go back to that when it is replaced."""
    lease_s: float | None = None
    advertised: str | None = None
    """Where clients and the other servers find this one, if that is not where it listens."""

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
        self.tls()
        if self.claims:
            if not LEASE_S_MIN <= self.lease_length_s <= LEASE_S_MAX:
                raise Invalid(f"a lease lasts {LEASE_S_MIN:g} s to {LEASE_S_MAX:g} s, not {self.lease_length_s:g} s")
        elif self.standby:
            raise Invalid(
                f"a server stands by for a store on an object store, and {self.url} is none: only one machine has it"
            )

    @property
    def claims(self) -> bool:
        """Whether servers on several machines can own the store, one after another."""
        return parse_url(self.url).is_object_store

    @property
    def lease_length_s(self) -> float:
        """How long the lease is that this server holds."""
        return self.lease_s or (STANDBY_LEASE_S if self.standby else LEASE_S)

    def tls(self) -> ssl.SSLContext | None:
        """What encrypts the connections, if anything does; `Invalid` says what is wrong with the files."""
        if self.certificate is None or self.private_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.private_key, password=_refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise Invalid(f"{self.private_key} is not the key of {self.certificate}: name its own") from error
            raise Invalid(
                f"{self.certificate} and {self.private_key} are not a certificate and private key in PEM form, which "
                f"begin with -----BEGIN CERTIFICATE----- and -----BEGIN PRIVATE KEY-----: {error.reason or error}"
            ) from error
        except OSError as error:
            raise Invalid(f"{self.certificate} or {self.private_key} cannot be read: {error.strerror}") from error
        return context

    @property
    def scheme(self) -> str:
        """How clients begin its address."""
        return "http" if self.certificate is None else "https"


def _refuse_password() -> str:
    """Instead of asking for one on the terminal, where no person may be."""
    raise Invalid("the private key is encrypted: take its password off with `openssl pkey -in KEY -out NEW`")


def own_hosts(host: str) -> Callable[[str], bool]:
    """Whether a header `Host` names this machine, or what the server was told to listen on, with whatever port. A page
    whose own name was made to lead to this machine still sends that name."""

    @functools.lru_cache(maxsize=HOSTS_REMEMBERED)
    def is_own(given: str) -> bool:
        found = _HOST.fullmatch(given.lower())
        return found is not None and (found[1].strip("[]") == host.lower().strip("[]") or is_loopback(found[1]))

    return is_own


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
        raise Invalid(f"{host} is not an address to listen on: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"port {port} of {host} cannot be used: {error}; choose another one with --port") from error
    return listener


class Served(NamedTuple):
    """The store, as this process serves it."""

    app: ServerApplication
    parts: list[Part]
    """All that answers requests, in the order in which they are asked whether one is their own."""

    owner: LocalOwner


@asynccontextmanager
async def application(
    serving: Serving, claim: StoreClaim | None = None, *, force: bool = False
) -> AsyncIterator[Served]:
    """The store, opened by this process as its owner, and the application over it with its parts."""
    patience = STANDBY_OPEN if serving.standby else TIMEOUT
    async with open_to_serve(serving.url, claim, timeout=patience, force=force) as store:
        owner = store._store._connection.current
        if not isinstance(owner, LocalOwner):
            raise Unavailable(
                f"another process owns {serving.url}{_where(store)}: stop it, then serve; clients of this server reach "
                "the store through it, so no other process has to open it. On an object store --standby waits for it, "
                "and --force takes it"
            )
        if store.objects.local:
            owner.engine.lead_on(caller_on(asyncio.get_running_loop()))
        metrics = Metrics(owner.engine.time)
        owner.engine.observer = metrics
        series = Series(store, metrics.commits)
        api = Api(store, stale=metrics.stale_receipt, series=series)
        entrance = Entrance(keys=serving.keys, hosts=hosts_of(serving), secure=serving.certificate is not None)
        parts: list[Part] = [
            Operators(store, metrics, owner.engine, serving.metrics_queues),
            ConsolePart(store, api, entrance, place=serving.url, trouble=functools.partial(_trouble, owner.engine)),
            api,
            NativePart(store),
            SqsPart(store, still=lambda caller: serving.keys is None or serving.keys.still_knows(caller)),
        ]
        app = ServerApplication(
            parts,
            keys=serving.keys,
            public=PUBLIC,
            probes=PROBES,
            hosts=hosts_of(serving),
            counting=metrics,
            tracing=find_tracing(),
            refusing=owner.refusal,
        )
        try:
            async with series:
                yield Served(app, parts, owner)
        finally:
            owner.engine.lead_on(None)  # what is left to commit must not wait for a loop that ends


def _trouble(engine: Committing) -> str:
    """Why the store takes no commits, once that has lasted for a moment."""
    found = engine.trouble()
    return found.reason if found is not None and (found.is_final or found.seconds > TROUBLE_S) else ""


@asynccontextmanager
async def console_application(serving: Serving, role: Role) -> AsyncIterator[tuple[ServerApplication, list[Part], str]]:
    """The console alone, over a store that another process owns, and the path of the link that opens it."""
    async with open_async(serving.url, role=role) as store, Series(store) as series:
        await store.unmatched()  # an owner that does not answer is said before anything else
        hosts = own_hosts(serving.host)
        entrance = Entrance(hosts=hosts, by_link=True)
        part = ConsolePart(store, Api(store, series=series), entrance, place=serving.url)
        link = f"{entrance.path}/enter/{entrance.new_code()}"
        yield ServerApplication([part], hosts=hosts), [part], link


def _where(store: AsyncStore) -> str:
    found = store._store.owner_url
    return "" if found is None else f" and answers at {found}"


def hosts_of(serving: Serving) -> Callable[[str], bool] | None:
    return own_hosts(serving.host) if serving.keys is None and is_loopback(serving.host) else None


@asynccontextmanager
async def answering(
    app: ServerApplication, parts: list[Part], serving: Serving, listeners: list[socket.socket]
) -> AsyncIterator[asyncio.Task[None]]:
    """Answer requests until the end of the block, and then those that are under way."""
    started = asyncio.Event()
    server = HttpServer(server_config(app, serving), Door(connections_max()), started.set)
    running = asyncio.create_task(server.serve(sockets=listeners))
    starting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({running, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            yield running
    finally:
        starting.cancel()
        for part in parts:
            await part.close()
        server.should_exit = True
        await running


def connections_max() -> int:
    """How many connections there may be, after this process has been allowed as many descriptors as it may have:
    without one left over the store cannot open its own files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONCURRENCY_MAX + RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return CONCURRENCY_MAX
    return max(1, min(CONCURRENCY_MAX, max(soft - RESERVED_FILES, soft // 4)))


def address_of(serving: Serving, listener: socket.socket) -> str:
    """Where clients find the server. One that listens at all addresses goes by the machine's name."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"} and serving.claims:
        host = socket.gethostname()
    return f"{serving.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


class Front:
    """The application behind the port: that of the owner, or that of a standby."""

    def __init__(self, app: ServerApplication) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request to the one of the moment, which answers it also if that changes meanwhile."""
        await self.app(scope, receive, send)


class HttpServer(uvicorn.Server):
    """Uvicorn's server, with connections of our own, and without its hand on the signals: its runner closes the
    store after it."""

    def __init__(self, config: uvicorn.Config, door: Door, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._door = door
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        loop, context = asyncio.get_running_loop(), self.config.ssl
        connect = functools.partial(HttpConnection, self.config, self.server_state, {}, door=self._door)
        handshake_s = None if context is None else HEAD_WAIT_S
        self.servers = [
            await loop.create_server(
                connect, sock=listener, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
            )
            for listener in sockets or []
        ]
        self.started = True
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections now and then; True ends the server."""
        if counter % round(SWEEP_S / TICK_S) == 0:
            self._door.sweep(cast(set[HttpConnection], self.server_state.connections))
        return await super().on_tick(counter)


def server_config(app: Front | ServerApplication, serving: Serving) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,  # a client cannot claim another client's address
        timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=int(GRACE_S),
    )
    config.load()
    config.ssl = serving.tls()
    return config
