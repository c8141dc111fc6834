"""`Bus`: an app that sends and handles typed messages, each of which takes effect once."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from detent.bus.calling import LoopEnded
from detent.bus.declared import App, Outcome, check_parts
from detent.bus.envelope import Incoming
from detent.bus.message_types import name_of
from detent.bus.pipeline import DeliveryPipeline
from detent.bus.replies import Replies
from detent.bus.running import Running
from detent.bus.sending import TIMEOUT
from detent.bus.transaction import BusTransaction
from detent.bus.transport import Transport
from detent.bus.transport_urls import open_transport
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.runtime.signals import call_on_signals_of_loop, stop_on_signals
from detent.runtime.target import refuse_while_loading

LOOK_S: Final = 0.2

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a program that did not wait for its handlers."""


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
        self._pipeline = DeliveryPipeline(self)
        self._running = Running(self)

    def __repr__(self) -> str:
        return f"Bus({self.name!r})"

    def _declares(self) -> None:
        self._running.declared()

    def use(self, transport: Transport | str) -> None:
        """Have messages carried by this transport instead of the one that it was made with; before it starts."""
        self._running.refuse_if_open("say what carries its messages before that")
        chosen = open_transport(transport) if isinstance(transport, str) else transport
        check_parts(transport=chosen)
        self.transport = chosen

    # -- sending: see `Sending` -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready to send; nothing if it is. Sending does so by itself."""
        self._running.open()

    @property
    def replies(self) -> Replies:
        """What gives replies to those who wait."""
        return self._running.replies

    def subscribe(self, *classes: type) -> None:
        """Have messages of these classes delivered to this app, for good. Starting it does so for all that it handles,
        unless it was made with ``subscribe=False``."""
        self._running.open()
        self.transport.subscribe([self.types.add(cls) for cls in classes])

    def unsubscribe(self, *classes: type) -> None:
        """No longer. Handlers that were taken out of an app stay subscribed until this is said."""
        self._running.open()
        self.transport.unsubscribe([name_of(cls) for cls in classes])

    def transaction(self, session: Any, *, commit: bool = True) -> BusTransaction:
        """A block in which messages go with the transaction of a session; see :class:`BusTransaction`."""
        return BusTransaction(self, session, commit=commit)

    # -- handling -----------------------------------------------------------------------------------------------

    def handle(self, incoming: Incoming) -> Outcome:
        """What became of one delivery. The worker calls it, and so do tests."""
        return contextvars.copy_context().run(self._handle, incoming)  # what one leaves there, the next must not see

    def _handle(self, incoming: Incoming) -> Outcome:
        pipeline = self._pipeline
        try:
            step = pipeline.read(incoming)
        except Exception as error:  # noqa: BLE001 - a message that cannot be read has failed
            return self.calling.run(pipeline.failed, incoming, error, on_loop=False)
        on_loop = self._always_on_loop or any(one.is_async for one in step.handlers)
        try:
            return self.calling.run(pipeline.handle, incoming, step, on_loop=on_loop)
        except LoopEnded:
            self.stop_taking()  # each message that is taken now would be left to its lease
            raise

    def wake(self) -> None:
        """Something was committed that is to be forwarded."""
        self._running.wake()

    # -- living -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check that everything goes together, and begin: to handle messages, to forward, to tidy up; in threads."""
        self._running.start()

    def refuse_if_started(self) -> None:
        """`Invalid` if it runs already."""
        self._running.refuse_if_started("stop it before it is started again")

    def prepare(self) -> None:
        """Check that everything goes together, make the queue and the tables, and subscribe, without handling anything:
        what others publish from now on waits here. `start` does so, too."""
        self._running.prepare()

    def stop(self, grace: Duration | None = None) -> None:
        """Take no more messages, wait for the handlers that run, forward what they left, and let go of everything."""
        self._running.stop(self.grace_s if grace is None else milliseconds(grace) / 1000)

    def stop_taking(self) -> None:
        """Take no more messages; returns at once. `stop` waits for those that are being handled."""
        self._running.stop_taking()

    def run(self) -> None:
        """Start, and work until SIGTERM or Ctrl-C. To run several apps: `detent.bus.run(a, b)`."""
        run(self)

    async def run_async(self) -> None:
        """The same with ``async def`` handlers on the caller's event loop. Cancel it to stop."""
        await run_async(self)

    def drain(self, timeout: Duration = TIMEOUT) -> list[Outcome]:
        """Handle in this thread all that waits now, and forward what that sends, until nothing is left; what became of
        each. For tests and for scripts: start nothing, and call this."""
        return self._running.drain(time.monotonic() + milliseconds(timeout) / 1000)

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
