"""A server's turns: it stands by while another one owns the store, owns it, and stands by again or ends.

A server of a store on one machine has one turn, from its start to its stop. Several servers of a store on an object
store take turns, as its lease says; the port of each answers all the time, with the owner's application or with where
the owner is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from detent.errors import DetentError, Fenced, Invalid
from detent.remote import LocalOwner, Role, StoreClaim
from detent.runtime.backoff import Backoff, Failures
from detent.server.app import ServerApplication
from detent.server.operators import PROBES, PUBLIC
from detent.server.protocol import Door
from detent.server.serving import (
    Front,
    HttpServer,
    Serving,
    address_of,
    answering,
    application,
    connections_max,
    console_application,
    hosts_of,
    is_loopback,
    listen,
    server_config,
)
from detent.server.standby import StandbyPart, Waiting

LINGER_S: Final = 1.0
"""How long a server that was replaced still says where the store's owner is, before it ends."""

TURN: Final = Backoff(0.2, 5.0, jitter=0.5)
"""How long a standby rests that could not own the store when it tried."""

Ready = Callable[[str, bool], None]
"""Is told where the server answers, and whether it stands by."""

logger = logging.getLogger("detent.server")


def run(serving: Serving, ready: Ready | None = None) -> Fenced | None:
    """Serve until SIGTERM or SIGINT, on uvloop where it is present. What ended it otherwise: another process owns the
    store now."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(serving, ready))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(serving: Serving, ready: Ready | None = None) -> Fenced | None:
    """Serve until SIGTERM or SIGINT; `ready` gets the address once requests are answered there, and whether this server
    stands by. Answers what ended it, if that was another owner."""
    with _signals() as stop:
        return await _take_turns(serving, stop, ready)


def run_console(serving: Serving, role: Role, ready: Callable[[str], None]) -> None:
    """Serve a console until SIGTERM or SIGINT; `ready` gets the link that opens it."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_console(serving, role, ready))


async def _serve_console(serving: Serving, role: Role, ready: Callable[[str], None]) -> None:
    if not is_loopback(serving.host):
        raise Invalid(f"a console listens on this machine only, not on {serving.host}: use `detent serve` with keys")
    with contextlib.closing(listen(serving.host, serving.port)) as listener, _signals() as stop:
        async with (
            console_application(serving, role) as (app, parts, link),
            answering(app, parts, serving, [listener]) as running,
        ):
            ready(address_of(serving, listener) + link)
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()


@asynccontextmanager
async def listening(serving: Serving) -> AsyncIterator[tuple[str, asyncio.Task[Fenced | None]]]:
    """A server until the end of the block: its address, where requests are answered now, and the task that ends if it
    cannot go on."""
    stop = asyncio.Event()
    is_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(address: str, _: bool) -> None:
        if not is_up.done():
            is_up.set_result(address)

    running = asyncio.create_task(_take_turns(serving, stop, ready))
    try:
        either: set[asyncio.Future[Any]] = {running, is_up}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not is_up.done():
            running.result()  # why it could not begin
        yield await is_up, running
    finally:
        stop.set()
        await running


async def _take_turns(serving: Serving, stop: asyncio.Event, ready: Ready | None) -> Fenced | None:
    serving.check()
    with contextlib.ExitStack() as sockets:
        ports = [serving.port] if serving.sqs_port is None else [serving.port, serving.sqs_port]
        listeners = [sockets.enter_context(contextlib.closing(listen(serving.host, port))) for port in ports]
        address = address_of(serving, listeners[0])
        turns = Turns(serving, listeners, stop, lambda stands_by: ready and ready(address, stands_by))
        return await turns.run(address)


class Turns:
    """One server's turns: it stands by, owns the store, and stands by again; or owns it until it stops."""

    def __init__(
        self,
        serving: Serving,
        listeners: Sequence[socket.socket],
        stop: asyncio.Event,
        ready: Callable[[bool], object],
    ) -> None:
        self._serving = serving
        self._stop = stop
        self._ready = ready
        self._claim = StoreClaim(serving.url, serving.lease_length_s, serves=True) if serving.claims else None
        self._part = StandbyPart(serving.url)
        self._standby = ServerApplication(
            [self._part], keys=serving.keys, public=PUBLIC, probes=PROBES, hosts=hosts_of(serving)
        )
        self._front = Front(self._standby)
        self._is_up = asyncio.Event()
        self._server = HttpServer(server_config(self._front, serving), Door(connections_max()), self._is_up.set)
        self._listeners = list(listeners)
        self._running: asyncio.Task[None] | None = None
        self._replaced = asyncio.Event()
        self._force = serving.force

    async def run(self, address: str) -> Fenced | None:
        """All turns. What ended the last one, if that was another owner."""
        advertised = self._serving.advertised or address
        try:
            if not self._serving.standby:
                return await self._own(advertised)
            await self._listen()
            self._ready(True)
            await self._alternate(advertised)
            return None
        finally:
            await self._end()

    async def _alternate(self, advertised: str) -> None:
        assert self._claim is not None
        waiting = Waiting(self._claim, self._part)
        failures = Failures(TURN)
        await self._until_stop(waiting.warm_up())
        while not self._stop.is_set():
            if not self._force:
                await self._until_stop(waiting.turn())
            if self._stop.is_set():
                return
            try:
                await self._own(advertised)
                failures.worked()
            except DetentError as error:
                pause_s = failures.failed()
                logger.warning("the store could not be owned, standing by again: %s", error)
                await self._until_stop(asyncio.sleep(pause_s))

    async def _own(self, advertised: str) -> Fenced | None:
        """Own the store until this server stops, or another one owns it."""
        force, self._force = self._force, False
        self._replaced.clear()
        loop = asyncio.get_running_loop()
        async with application(self._serving, self._claim, force=force) as served:
            owner = served.owner
            owner.on_replaced = lambda _: _call_soon(loop, self._replaced.set)
            if owner.engine.fencing is not None:
                self._replaced.set()
            if owner.lease is not None:
                await asyncio.to_thread(owner.lease.announce, [advertised])
            self._front.app = served.app
            await self._listen()
            self._ready(False)
            await self._until_stop(self._replaced.wait())
            if self._stop.is_set() and owner.lease is not None:
                await asyncio.to_thread(owner.lease.stopping)
            for part in served.parts:
                await part.close()
            if not self._replaced.is_set():
                await self._end()
                return None
            return await self._after(owner)

    async def _after(self, owner: LocalOwner) -> Fenced | None:
        """Another process owns the store: say so, for a moment if this server ends with that."""
        refused = owner.refusal()
        error = owner.engine.fencing
        why = str(error or "another process owns the store")
        logger.error("this server does not own the store any more: %s", why)
        if self._serving.standby:
            self._part.leader = "" if refused is None else refused.leader
        else:
            self._part.end(why, "" if refused is None else refused.leader)
        self._front.app = self._standby
        if not self._serving.standby:
            await self._until_stop(asyncio.sleep(LINGER_S))
        return error

    async def _listen(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._server.serve(sockets=self._listeners))
            is_up = asyncio.create_task(self._is_up.wait())
            await asyncio.wait({self._running, is_up}, return_when=asyncio.FIRST_COMPLETED)
            is_up.cancel()
            if self._running.done():
                self._running.result()  # why it could not begin

    async def _end(self) -> None:
        """Answer what is under way, and no more."""
        if self._running is not None:
            self._server.should_exit = True
            await self._running

    async def _until_stop(self, work: Coroutine[Any, Any, Any]) -> None:
        """Until that is done, or the server is to stop, or has failed."""
        tasks = {asyncio.create_task(work), asyncio.create_task(self._stop.wait())}
        others = set() if self._running is None else {self._running}
        try:
            done, _ = await asyncio.wait(tasks | others, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done & others:
                self._stop.set()
        finally:
            for task in tasks:
                task.cancel()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call it on the loop, from any thread; a loop that has ended needs it no more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """What SIGTERM and SIGINT set, to stop the server; a second one ends the process as it would any other."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told(number: signal.Signals) -> None:
        logger.info("stopping", extra={"signal": number.name})
        loop.remove_signal_handler(number)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, told, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
