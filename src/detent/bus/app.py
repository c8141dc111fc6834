"""`Bus`: an app that sends and handles typed messages, each of which takes effect once; and its life.

An app is *open* (it can send), *ready* (what it needs is checked and made) and *started* (it handles messages and
forwards by itself). It ends in the order in which nothing is lost that could still be sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from detent.bus import checks
from detent.bus.calling import LoopEnded, UserCaller, is_running_here
from detent.bus.declared import App, Hooks, Outcome, check_parts
from detent.bus.forwarder import Forwarder
from detent.bus.housekeeping import Sweep
from detent.bus.messages import Incoming, name_of
from detent.bus.replies import Replies
from detent.bus.sending import TIMEOUT, current
from detent.bus.transaction import BusTransaction
from detent.bus.transport import Transport
from detent.bus.transport_urls import open_transport
from detent.bus.unit_of_work import patiently
from detent.bus.worker import DeliveryPipeline, Intake
from detent.durations import Duration, milliseconds
from detent.errors import Invalid, Unavailable
from detent.runtime.loop import loop_in_thread
from detent.runtime.signals import call_on_signals_of_loop, stop_on_signals
from detent.runtime.supervisor import Supervised
from detent.runtime.target import refuse_while_loading

LOOK_S: Final = 0.2

STOP_S: Final = 5.0
"""How long the parts of an app may take to end, when its handlers have."""

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a program that did not wait for its handlers."""

logger = logging.getLogger("detent.bus")


class Middleware(Hooks["Bus"]):
    """Override what you need. Every hook but `before_send` may be ``async def``; what it raises before the commit fails
    the message, and what it raises afterwards is logged, because the message is done."""


class Bus(App):
    """An app: a name, which is its queue's and its consumer's, and the messages that it handles and sends.

    >>> bus = Bus("billing", "file:./data")
    >>> @bus.handler
    ... def invoice(order: OrderPlaced, context: Context):
    ...     context.publish(InvoiceSent(order.id))
    >>> bus.run()

    `transport` is a `QueueTransport`, an `SqsTransport`, an `ExternalTransport`, or a URL: of a store, or of another
    system such as ``pubsub:?project=shop``. With `unit_of_work` each message has a transaction of your database;
    `idempotency` has repeated messages skipped, by a mark in that transaction; `outbox` keeps what handlers send in it.
    `routes` says to which queue a class of messages is sent, `retries` how often one is tried. `serializer` writes
    messages; those of JSON and MessagePack are read in any case, and so are `serializers`.
    """

    def _assembled(self) -> None:
        self._lock = threading.RLock()  # for starting and stopping, which take long
        self._opening = threading.Lock()
        self._is_open = self._is_ready = self._is_started = self._is_checked = False
        self._stack = ExitStack()
        self._pipeline = DeliveryPipeline(self)
        self._intake: Intake | None = None
        self._forwarder: Forwarder | None = None
        self.replies = Replies(self.name, self.transport)

    def __repr__(self) -> str:
        return f"Bus({self.name!r})"

    # -- before it starts -----------------------------------------------------------------------------------------

    def refuse_if_started(self, why: str = "stop it before it is started again") -> None:
        """`Invalid` if it runs already."""
        if self._is_started:
            raise Invalid(f"{self.name!r} has started: {why}")

    def _declares(self) -> None:
        """A handler is declared: what was checked and subscribed to is not all any more."""
        self.refuse_if_started("declare handlers before that")
        self._is_checked = False

    def use(self, transport: Transport | str) -> None:
        """Have messages carried by this transport instead of the one that it was made with; before it starts."""
        if self._is_open:
            raise Invalid(f"{self.name!r} is open: say what carries its messages before that")
        chosen = open_transport(transport) if isinstance(transport, str) else transport
        check_parts(transport=chosen)
        self.transport = chosen

    # -- sending: see `Sender` ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready to send; nothing if it is. Sending does so by itself, also while the app stops: handlers and hooks
        that run meanwhile find it open."""
        if self._is_open:
            return
        with self._opening:
            if not self._is_open:
                self.transport.open(self.name)
                self.replies = Replies(self.name, self.transport)
                self._is_open = True

    def subscribe(self, *classes: type) -> None:
        """Have messages of these classes delivered to this app, for good. Starting it does so for all that it handles,
        unless it was made with ``subscribe=False``."""
        self.open()
        self.transport.subscribe([self.types.add(cls) for cls in classes])

    def unsubscribe(self, *classes: type) -> None:
        """No longer. Handlers that were taken out of an app stay subscribed until this is said."""
        self.open()
        self.transport.unsubscribe([name_of(cls) for cls in classes])

    def transaction(self, session: Any, *, commit: bool = True) -> BusTransaction:
        """A block in which messages go with the transaction of a session; see :class:`BusTransaction`."""
        return BusTransaction(self, session, commit=commit)

    def wake(self) -> None:
        """Something was committed that is to be forwarded."""
        forwarder = self._forwarder
        if forwarder is not None:
            forwarder.wake()

    # -- handling -----------------------------------------------------------------------------------------------

    def handle(self, incoming: Incoming) -> Outcome:
        """What became of one delivery. The worker calls it, and so do tests."""
        try:
            return self._pipeline.deliver(incoming)
        except LoopEnded:
            self.stop_taking()  # each message that is taken now would be left to its lease
            raise

    # -- beginning ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check that everything goes together, and begin: to handle messages, to forward, to tidy up; in threads."""
        with self._lock:
            self.refuse_if_started()
            self.prepare()
            try:
                self._start_threads()
            except BaseException:
                self._let_go()
                raise
            self._is_started = True

    def prepare(self) -> None:
        """Check that everything goes together, make the queue and the tables, and subscribe, without handling anything:
        what others publish from now on waits here. `start` does so, too. What fails half-way is undone."""
        with self._lock:
            try:
                if not self._is_ready:
                    self._get_ready()
                elif not self._is_checked:
                    checks.check(self)
                    self._subscribe()
                    self._keep_schedules()
                self._is_checked = True
            except BaseException:
                self._let_go()
                raise

    def _get_ready(self) -> None:
        """Check the app, and make what it needs."""
        checks.check(self)
        checks.enter(self)
        self._stack.callback(checks.leave, self)
        if self.is_async and (self.calling.loop is None or self.calling.loop.is_closed()):
            self.calling.loop = self._stack.enter_context(loop_in_thread())
        self.open()
        self.calling.run(self._make_tables)
        for hook in self.middlewares:
            self.calling.run(_call, hook.on_start, self, on_loop=self.is_async)
        if not self.send_only:
            self.transport.open_input()
            checks.check_memory(self)
        self._subscribe()
        self._keep_schedules()
        self._is_ready = True

    def _subscribe(self) -> None:
        if self.subscribes and not self.send_only:
            self.transport.subscribe(self.topics)

    def _keep_schedules(self) -> None:
        """Have the store publish what handlers that run at times are called with."""
        for ticking in () if self.send_only else self.ticking:
            self.transport.keep_schedule(ticking)

    async def _make_tables(self, caller: UserCaller) -> None:
        if self.idempotency is not None:
            place = f"queue {self.transport.input_name}"
            await patiently(caller, self.unit_of_work, self.idempotency.tracker.prepare, self.name, place)
        if self.outbox is not None:
            await patiently(caller, self.unit_of_work, self.outbox.prepare)

    def _start_threads(self) -> None:
        tracker = None if self.idempotency is None else self.idempotency.tracker
        if tracker is not None or self.outbox is not None:
            sweep = Supervised(Sweep(self.name, tracker, self.outbox, self.unit_of_work, self.calling))
            self._stack.callback(sweep.start().stop, STOP_S)
        if self.outbox is not None:
            self._forwarder = self._new_forwarder()
            self._forwarder.start()
        if not self.send_only:
            self._intake = Intake(self.name, self.transport, self.handle, self.concurrency)
            self._intake.start()

    def _new_forwarder(self) -> Forwarder:
        assert self.outbox is not None
        assert self.unit_of_work is not None
        lease_s = self.outbox_lease_s
        return Forwarder(self.name, self.outbox, self.unit_of_work, self.transport, self.calling, lease_s=lease_s)

    # -- ending ---------------------------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Take no more messages; returns at once. `stop` waits for those that are being handled."""
        intake = self._intake
        if intake is not None:
            intake.stop_taking()

    def stop(self, grace: Duration | None = None) -> None:
        """Take no more messages, wait for the handlers that run, forward what they left, and let go of everything."""
        self._refuse_from_within()
        grace_s = self.grace_s if grace is None else milliseconds(grace) / 1000
        deadline = time.monotonic() + grace_s
        with self._lock:
            try:
                if self._intake is not None:
                    self._intake.stop(grace_s)
                    self._intake = None
                if self._forwarder is not None:
                    self._forwarder.stop(max(STOP_S, deadline - time.monotonic()))
                    self._forwarder = None
                for hook in self.middlewares if self._is_ready else ():
                    self._tell_stopped(hook)
            finally:
                self._let_go()

    def _refuse_from_within(self) -> None:
        """What waits for handlers must not be one, nor keep them from ending."""
        joined = current.get()
        if is_running_here(self.calling.loop) or (joined is not None and joined.bus is self):
            raise Invalid(
                f"{self.name!r} cannot stop from its own handler or event loop, which it would wait for: call "
                "stop_taking(), or await asyncio.to_thread(bus.stop)"
            )

    def _tell_stopped(self, hook: Hooks[Bus]) -> None:
        try:
            self.calling.run(_call, hook.on_stop, self, on_loop=self.is_async)
        except Exception:
            logger.exception("%r could not tell a middleware that it stops", self.name)

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
            self.calling.loop = None
            with self._opening:
                if self._is_open:
                    self._is_open = False
                    self.transport.close()

    # -- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, and work until SIGTERM or Ctrl-C. To run several apps: `detent.bus.run(a, b)`."""
        run(self)

    async def run_async(self) -> None:
        """The same with ``async def`` handlers on the caller's event loop. Cancel it to stop."""
        await run_async(self)

    def drain(self, timeout: Duration = TIMEOUT) -> list[Outcome]:
        """Handle in this thread all that waits now, and forward what that sends, until nothing is left; what became of
        each. For tests and for scripts: start nothing, and call this. Messages are taken one at a time: the leases of
        others are not extended meanwhile."""
        deadline = time.monotonic() + milliseconds(timeout) / 1000
        self.refuse_if_started("it handles messages by itself")
        self.prepare()
        forwarder = self._new_forwarder() if self.outbox is not None else None
        outcomes: list[Outcome] = []
        while True:
            found = [] if self.send_only else self.transport.receive(1, 0)
            outcomes += [self.handle(incoming) for incoming in found]
            forwarded = forwarder.forward_all() if forwarder is not None and not found else 0
            if not found and not forwarded:
                return outcomes
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name!r} was not done in time: {len(outcomes)} deliveries, and more wait")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """Coroutines of handlers run on this loop."""
        self.refuse_if_started()
        self.calling.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


async def _call(caller: UserCaller, function: Any, *values: Any) -> None:
    await caller.user(function, *values)


# -- programs ---------------------------------------------------------------------------------------------------------


def run(*buses: Bus) -> None:
    """Run apps until SIGTERM or Ctrl-C, which let the handlers end that are running; a second Ctrl-C does not wait."""
    refuse_while_loading("run()")
    if threading.current_thread() is not threading.main_thread():
        raise Invalid("run() ends by a signal, which only the main thread gets: use start() and stop() in threads")
    stopping = threading.Event()
    with stop_on_signals(stopping, lambda: os._exit(INTERRUPTED)):  # threads would be waited for otherwise
        run_until(stopping, *buses)


def run_until(stopping: threading.Event, *buses: Bus) -> None:
    """Run apps until an event is set. If one cannot start, none does."""
    with ExitStack() as stack:
        for bus in buses:  # all have subscribed before the first one publishes
            stack.callback(bus.stop)
            bus.prepare()
        for bus in buses:
            bus.start()
        while not stopping.wait(LOOK_S):
            pass
        for bus in buses:  # all at once: they may take as long as the slowest one
            bus.stop_taking()


async def run_async(*buses: Bus) -> None:
    """Run apps on the caller's event loop until SIGTERM or Ctrl-C, or until this is cancelled."""
    refuse_while_loading("run_async()")
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    started: list[Bus] = []
    with call_on_signals_of_loop(stopping.set):  # in another thread than the main one: cancel it
        try:
            for bus in buses:  # all have subscribed before the first one publishes
                bus.refuse_if_started()
                bus.calling.loop = loop
                started.append(bus)
                await asyncio.to_thread(bus.prepare)
            for bus in buses:
                await asyncio.to_thread(bus.start)
            await stopping.wait()
        finally:
            for bus in started:
                bus.stop_taking()
            for bus in reversed(started):
                await _uncancelled(asyncio.to_thread(bus.stop))


async def _uncancelled(ending: Any) -> None:
    """Wait for the end even when cancelled: the last handlers still need this loop."""
    task = asyncio.ensure_future(ending)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=LOOK_S)
    await task
