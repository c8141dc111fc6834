"""The owner of a store: the engine over its writer, housekeeping, and on `file:` a socket for other processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from detent import crash
from detent.engine import Engine, Machine, OwnerTime, Request, Result, Ticket
from detent.errors import DetentError, Fenced, NotOwner, Unavailable
from detent.journal import JournalMachine, JournalReader
from detent.journal.fragments import sweep
from detent.journal.producers import Given, Producers
from detent.kv import Writer, open_writer
from detent.kv.ownership import OwnerLock, remove_socket_folder, socket_path, temporary_socket
from detent.ledger import LedgerMachine
from detent.queue import QueueMachine
from detent.queue.unclaiming import undoing
from detent.remote.address import SOCKET
from detent.remote.app import OwnerApp
from detent.remote.asgi import Scope
from detent.remote.handing import not_read, was_read
from detent.remote.storelease import HeldLease
from detent.runtime.backoff import Backoff
from detent.runtime.supervisor import Supervised
from detent.runtime.task import Next, Restart, Task
from detent.runtime.thread import start
from detent.schedule import Firing, ScheduleMachine
from detent.shard import ShardMachine

TICK_S: Final = 1.0
STEP_S: Final = 0.001
"""The least time between two steps of housekeeping, so that callers come in between."""

SWEEP_EVERY_S: Final = 3600.0
SERVER_START_S: Final = 10.0
SOCKET_BACKLOG: Final = 512

SERVER_TICK_S: Final = 1.0
"""How often the server renews the date that it puts into its answers."""

SERVER_CLOSE_S: Final = 2.0
"""How long requests under way may take when the owner closes."""

SERVER_CLOSE_STEP_S: Final = 0.001
ACCEPT_TURNS: Final = 8
"""Turns of the loop after which a caller that the kernel has let in is among the connections."""

logger = logging.getLogger("detent.owner")


class LocalOwner:
    """This process owns the store."""

    def __init__(
        self,
        url: str,
        *,
        directory: Path | None = None,
        lock: OwnerLock | None = None,
        now_ms: OwnerTime | Callable[[], int] | None = None,
        patience_s: float | None = None,
        lease: HeldLease | None = None,
    ) -> None:
        self._lock = lock
        self.lease = lease
        """On an object store: what this process holds while it owns the store."""
        self.on_replaced: Callable[[Fenced], None] = lambda _: None
        """Called once another process has been found to own the store. For a server, which then ends."""
        self._server: SocketServer | None = None
        self._apps: list[OwnerApp] = []
        writer: Writer = open_writer(url, patience_s=patience_s)
        try:
            self.reader = writer
            self.journals = JournalMachine(writer)
            self.queues = QueueMachine(writer)
            self.schedules = ScheduleMachine(self.queues)
            records: list[Machine] = [LedgerMachine(), ShardMachine(writer), self.schedules]
            self.engine = Engine(writer, [self.journals, self.queues, *records], now_ms=now_ms)
            crash.point("owner.after_load")
            if directory is not None and lock is not None:
                self._server = SocketServer(self.new_app(), socket_path(directory))
                crash.point("owner.after_socket")
                lock.announce(self.engine.epoch, str(self._server.path))
            self.engine.on_fenced = self._replaced
            if lease is not None:
                self._hold(lease)
        except BaseException:
            if self._server is not None:
                self._server.stop()
            writer.close()
            raise
        self._housekeeper = Housekeeper(self)
        self.queues.watch.timer = self.schedules.timer = self._housekeeper.look_at

    def _hold(self, lease: HeldLease) -> None:
        """Answer under a lease: on a socket, unless a server says itself where."""
        lease.on_lost = self._lost
        if lease.loss is not None:
            raise Fenced(str(lease.loss))
        if not lease.claim.serves:
            self._server = SocketServer(self.new_app(), temporary_socket())
            lease.announce([f"{SOCKET}{self._server.path}"])

    def _lost(self, error: Fenced) -> None:
        self.engine.fence(error)

    def _replaced(self, error: Fenced) -> Fenced:
        if self.lease is not None:
            error = self.lease.lose(error)
        self.on_replaced(error)
        return error

    def refusal(self) -> NotOwner | None:
        """Why this process may not answer others now, if it may not."""
        return None if self.lease is None else self.lease.refusal()

    @property
    def socket(self) -> Path | None:
        """Where other processes of this machine reach it."""
        return None if self._server is None else self._server.path

    def new_app(self) -> OwnerApp:
        """The wire protocol over this owner's engine, for one event loop."""
        app = OwnerApp(self.engine, self.journals, self.queues, self.reader, self.refusal)
        self._apps.append(app)
        return app

    @property
    def epoch(self) -> int:
        """The store's epoch under this owner."""
        return self.engine.epoch

    def new_session(self) -> bytes:
        """A session for a client of this process."""
        return self.engine.new_session()

    def new_producer(self) -> Given:
        """A producer for a publisher of this process."""
        return Producers(self.engine, self.reader).give()

    def commit(self, request: Request, timeout_s: float) -> list[Result]:
        """Apply a transaction. The engine has its own bounds for waiting; `timeout_s` is for owners far away."""
        del timeout_s
        return self.engine.commit(request)

    def undo_claims(self, results: Sequence[Any]) -> None:
        """The claims among these results could not be handed over: undo them in the next commit. For any thread."""
        self.engine.post(undoing(results))

    def undo_lost(self, ticket: Ticket) -> None:
        """The same for a ticket whose caller has gone."""
        self.undo_claims(ticket.results or ())

    def wait(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """Wait until the journal's next offset is above `offset`. False after the time."""
        grown = threading.Lock()
        grown.acquire()
        stop = self.journals.watch.add(journal, offset, grown.release)
        try:
            reader = JournalReader(self.reader)
            if reader.next_offset(journal) > offset:
                return True
            grown.acquire(timeout=timeout_ms / 1000)
            return reader.next_offset(journal) > offset
        finally:
            stop()

    def wait_claimable(self, queue: str, timeout_ms: int) -> bool:
        """Wait until a queue has something to claim. False after the time."""
        came = threading.Lock()
        came.acquire()
        stop = self.queues.wait(queue, came.release)
        try:
            if not self.queues.claimable(queue):
                came.acquire(timeout=timeout_ms / 1000)
            return self.queues.claimable(queue)
        finally:
            stop()

    def sweep(self, grace_ms: int | None = None) -> int:
        """Delete fragments that no journal adopted. Returns how many."""
        return sweep(self.engine, self.reader, grace_ms)

    def close(self) -> None:
        """Stop serving, finish what is under way, give the lock back."""
        self._housekeeper.stop()
        self._fire_last()
        for app in self._apps:
            app.end_waits()
        if self._server is not None:
            self._server.stop()
        self.engine.close()
        if self.lease is not None:
            self.lease.release()
        if self._lock is not None:
            self._lock.release()

    def _fire_last(self) -> None:
        """Publish what a caller has asked for by hand just now: there may be no other owner for long."""
        try:
            if self.schedules.is_due(self.engine.now_ms()):
                Firing(self.engine).run()
        except DetentError as error:  # it stays due, for the next owner
            logger.info("the store closes with schedules that are due: %s", error)


class Housekeeper(Task):
    """Calls the engine about once a second, and when a timer is due that a caller waits for; has schedules publish when
    they are due; and calls the sweeper about once an hour."""

    kind = "housekeeper"

    def __init__(self, owner: LocalOwner) -> None:
        super().__init__("detent-housekeeper")
        self.restart = Restart(Backoff(TICK_S, TICK_S))
        self._owner = owner
        self._firing = Firing(owner.engine)
        self._next_ms = 0
        self._next_tick = time.monotonic() + TICK_S
        self._next_sweep = time.monotonic() + SWEEP_EVERY_S
        self._pid = os.getpid()
        self._supervised = Supervised(self).start()

    def step(self) -> Next:
        """What is due, after the first pause; and how long until something is."""
        if self._next_ms:
            self._keep_house()
        engine = self._owner.engine
        pause_s, due_ms = self._next_tick - time.monotonic(), engine.next_due_ms()
        if due_ms is not None:
            pause_s = min(pause_s, (due_ms - engine.now_ms()) / 1000)
        pause_s = max(pause_s, STEP_S)
        self._next_ms = engine.now_ms() + int(pause_s * 1000)
        return pause_s

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            self._owner.engine.keep_house()
        else:
            self._next_tick = now + TICK_S
            self._owner.engine.tick()
            if now >= self._next_sweep:
                self._next_sweep = now + SWEEP_EVERY_S
                self._owner.sweep()
        if self._owner.schedules.is_due(self._owner.engine.now_ms()):
            self._firing.run()

    def is_hopeless(self, error: Exception) -> bool:
        """Another process owns the store."""
        return isinstance(error, Fenced)

    def gave_up(self, error: Exception) -> None:
        logger.warning("housekeeping ends: %s", error)
        if isinstance(error, Fenced):
            self._owner.engine.fence(error)

    def failed(self, error: Exception, pause_s: float) -> None:
        del pause_s
        if isinstance(error, Unavailable):
            logger.warning("housekeeping will be tried again: %s", error)
        else:
            logger.error("housekeeping failed and will be tried again", exc_info=error)

    def look_at(self, due_ms: int) -> None:
        """A caller waits for a timer that is due then. For any thread."""
        if due_ms < self._next_ms:
            self.wake()

    def stop(self) -> None:
        """End the thread, unless it is another process's, of which this one is a fork."""
        if self._pid == os.getpid():
            self._supervised.stop()


class _SocketConnection(H11Protocol):
    """A connection on a Unix socket. The kernel resets it when the client closes it, or dies, with something unread:
    then the client has not got its last answer."""

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self.cycle is not None:
            was_read(cast(Scope, self.cycle.scope))
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended."""
        if self.cycle is not None and isinstance(error, ConnectionResetError | BrokenPipeError):
            not_read(cast(Scope, self.cycle.scope))
        super().connection_lost(error)


class SocketServer:
    """Serves an ASGI application on a Unix socket, in a thread of its own."""

    def __init__(self, app: Any, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)  # left by an owner that was killed; we hold the lock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(SOCKET_BACKLOG)
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, lifespan="off", http=_SocketConnection,
            loop="asyncio", ws="none", timeout_keep_alive=600,
        )  # fmt: skip
        self._server = _SocketUvicorn(config)
        self._thread = start("detent-socket", self._run)
        _servers.add(self)
        deadline = time.monotonic() + SERVER_START_S
        while not self._server.started:
            if not self._thread.is_alive or time.monotonic() > deadline:
                raise Unavailable(f"the owner's socket {path} could not be served")
            time.sleep(0.001)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def close_in_child(self) -> None:
        """In a forked child: let go of the sockets. Held open, they would keep clients waiting after the parent's death
        for answers that never come."""
        connections = [getattr(one, "transport", None) for one in self._server.server_state.connections]
        sockets = [one.get_extra_info("socket") for one in connections if one is not None]
        for held in [self._socket, *sockets]:
            if held is not None and held.fileno() >= 0:
                with contextlib.suppress(OSError):
                    os.close(held.fileno())

    def stop(self) -> None:
        """Stop listening and end the thread."""
        self._server.end()
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)
        remove_socket_folder(self.path)


class _SocketUvicorn(uvicorn.Server):
    """Uvicorn's server looks ten times a second whether it shall end, and as often whether it may. This one is told."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        await super().startup(sockets)

    def end(self) -> None:
        """Answer what is under way and no more. For any thread, once the server has started."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), SERVER_TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            self._loop.remove_reader(listener)
        # asyncio forgets a caller, and leaves it hanging, that it has let in and not yet served when its server closes.
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for one in (*self.servers, *(sockets or ())):
            one.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        deadline = self._loop.time() + SERVER_CLOSE_S
        while (state.connections or state.tasks) and self._loop.time() < deadline:
            await asyncio.sleep(SERVER_CLOSE_STEP_S)


_servers: weakref.WeakSet[SocketServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server.close_in_child()


os.register_at_fork(after_in_child=_after_fork)
