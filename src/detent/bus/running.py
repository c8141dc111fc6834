"""An app that runs: its transport, its threads and its event loop, from the start to the stop."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import Any, Final

from detent.bus import checks
from detent.bus.calling import Caller, is_running_here
from detent.bus.declared import App, Outcome
from detent.bus.forwarder import Forwarder
from detent.bus.housekeeping import Sweep
from detent.bus.middleware import Middleware
from detent.bus.replies import Replies
from detent.bus.sending import current
from detent.bus.unit_of_work import patiently
from detent.bus.worker import Intake
from detent.errors import Invalid, Unavailable
from detent.runtime.loop import loop_in_thread

STOP_S: Final = 5.0
"""How long the parts of an app may take to end, when its handlers have."""

logger = logging.getLogger("detent.bus")


class Running:
    """What an app has while it is open (it can send), ready (it can handle) and started (it does so by itself)."""

    def __init__(self, bus: App) -> None:
        self._bus = bus
        self._lock = threading.RLock()  # for starting and stopping, which take long
        self._opening = threading.Lock()
        self._is_open = self._is_ready = self._is_started = self._is_checked = False
        self._stack = ExitStack()
        self._intake: Intake | None = None
        self._forwarder: Forwarder | None = None
        self.replies = Replies(bus.name, bus.transport)

    def refuse_if_started(self, why: str) -> None:
        """Some things are decided before."""
        if self._is_started:
            raise Invalid(f"{self._bus.name!r} has started: {why}")

    def refuse_if_open(self, why: str) -> None:
        """What carries messages is decided before the first one is sent."""
        if self._is_open:
            raise Invalid(f"{self._bus.name!r} is open: {why}")

    def declared(self) -> None:
        """A handler is declared: what was checked and subscribed to is not all any more."""
        self.refuse_if_started("declare handlers before that")
        self._is_checked = False

    # -- beginning ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready to send. Also while the app stops: handlers and hooks that run meanwhile find it open."""
        if self._is_open:
            return
        with self._opening:
            if not self._is_open:
                self._bus.transport.open(self._bus.name)
                self.replies = Replies(self._bus.name, self._bus.transport)
                self._is_open = True

    def prepare(self) -> None:
        """Get ready to handle. What fails half-way is undone."""
        with self._lock:
            try:
                if not self._is_ready:
                    self._get_ready()
                elif not self._is_checked:
                    checks.check(self._bus)
                    self._subscribe()
                self._is_checked = True
            except BaseException:
                self._let_go()
                raise

    def start(self) -> None:
        """Begin."""
        with self._lock:
            self.refuse_if_started("stop it before it is started again")
            self.prepare()
            try:
                self._start_threads()
            except BaseException:
                self._let_go()
                raise
            self._is_started = True

    def _get_ready(self) -> None:
        """Check the app, and make what it needs."""
        bus = self._bus
        checks.check(bus)
        checks.enter(bus)
        self._stack.callback(checks.leave, bus)
        if bus.is_async and (bus.calling.loop is None or bus.calling.loop.is_closed()):
            bus.calling.loop = self._stack.enter_context(loop_in_thread())
        self.open()
        bus.calling.run(self._make_tables)
        for hook in bus.middlewares:
            bus.calling.run(_call, hook.on_start, bus, on_loop=bus.is_async)
        if not bus.send_only:
            bus.transport.open_input()
            checks.check_memory(bus)
        self._subscribe()
        self._is_ready = True

    def _subscribe(self) -> None:
        bus = self._bus
        if bus.subscribes and not bus.send_only:
            bus.transport.subscribe(bus.topics)

    async def _make_tables(self, caller: Caller) -> None:
        bus = self._bus
        if bus.idempotency is not None:
            place = f"queue {bus.transport.input_name}"
            await self._in_unit(caller, bus.idempotency.tracker.prepare, bus.name, place)
        if bus.outbox is not None:
            await self._in_unit(caller, bus.outbox.prepare)

    async def _in_unit(self, caller: Caller, work: Any, *values: Any) -> None:
        if self._bus.unit_of_work is None:
            await caller.unit(work, *values, None)
            return
        await patiently(caller, self._bus.unit_of_work, lambda unit: work(*values, unit))

    def _start_threads(self) -> None:
        bus = self._bus
        tracker = None if bus.idempotency is None else bus.idempotency.tracker
        if tracker is not None or bus.outbox is not None:
            sweep = Sweep(bus.name, tracker, bus.outbox, bus.unit_of_work, bus.calling)
            sweep.start()
            self._stack.callback(sweep.stop)
        if bus.outbox is not None:
            self._forwarder = self._new_forwarder()
            self._forwarder.start()
        if not bus.send_only:
            self._intake = Intake(bus.name, bus.transport, bus.handle, bus.concurrency)
            self._intake.start()

    def _new_forwarder(self) -> Forwarder:
        bus = self._bus
        assert bus.outbox is not None
        assert bus.unit_of_work is not None
        lease_s = bus.outbox_lease_s
        return Forwarder(bus.name, bus.outbox, bus.unit_of_work, bus.transport, bus.calling, lease_s=lease_s)

    def wake(self) -> None:
        """Something is to be forwarded."""
        forwarder = self._forwarder
        if forwarder is not None:
            forwarder.wake()

    # -- ending -------------------------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Take no more messages; returns at once."""
        intake = self._intake
        if intake is not None:
            intake.stop_taking()

    def stop(self, grace_s: float) -> None:
        """End, in the order in which nothing is lost that could still be sent."""
        self._refuse_from_within()
        deadline = time.monotonic() + grace_s
        with self._lock:
            try:
                if self._intake is not None:
                    self._intake.stop(grace_s)
                    self._intake = None
                if self._forwarder is not None:
                    self._forwarder.stop(max(STOP_S, deadline - time.monotonic()))
                    self._forwarder = None
                for hook in self._bus.middlewares if self._is_ready else ():
                    self._tell_stopped(hook)
            finally:
                self._let_go()

    def _refuse_from_within(self) -> None:
        """Who waits for handlers must not be one, nor keep them from ending."""
        joined = current.get()
        if is_running_here(self._bus.calling.loop) or (joined is not None and joined.bus is self._bus):
            raise Invalid(
                f"{self._bus.name!r} cannot stop from its own handler or event loop, which it would wait for: call "
                "stop_taking(), or await asyncio.to_thread(bus.stop)"
            )

    def _tell_stopped(self, hook: Middleware) -> None:
        try:
            self._bus.calling.run(_call, hook.on_stop, self._bus, on_loop=self._bus.is_async)
        except Exception:
            logger.exception("%r could not tell a middleware that it stops", self._bus.name)

    def _let_go(self) -> None:
        intake, forwarder, self._intake, self._forwarder = self._intake, self._forwarder, None, None
        self._is_ready = self._is_started = False
        try:
            if intake is not None:
                intake.stop(0)
            if forwarder is not None:
                forwarder.stop(STOP_S)
            self.replies.stop()
            self._stack.close()
        finally:
            self._bus.calling.loop = None
            with self._opening:
                if self._is_open:
                    self._is_open = False
                    self._bus.transport.close()

    # -- by hand ------------------------------------------------------------------------------------------------

    def drain(self, deadline: float) -> list[Outcome]:
        """Handle and forward in this thread, until nothing is left that could be had now. Messages are taken one at a
        time: the leases of others are not extended meanwhile."""
        self.refuse_if_started("it handles messages by itself")
        self.prepare()
        bus = self._bus
        forwarder = self._new_forwarder() if bus.outbox is not None else None
        outcomes: list[Outcome] = []
        while True:
            found = [] if bus.send_only else bus.transport.receive(1, 0)
            outcomes += [bus.handle(incoming) for incoming in found]
            forwarded = forwarder.forward_all() if forwarder is not None and not found else 0
            if not found and not forwarded:
                return outcomes
            if time.monotonic() > deadline:
                raise Unavailable(f"{bus.name!r} was not done in time: {len(outcomes)} deliveries, and more wait")


async def _call(caller: Caller, function: Any, *values: Any) -> None:
    await caller.user(function, *values)
