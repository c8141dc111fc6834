"""Workers: claim messages, hand each to a handler, keep its lease while the handler runs, and say what became of it.

A handler that returns has acknowledged its message, one that raises has failed it, unless it did either itself (for
instance in a transaction, together with what it changed). On SIGTERM or SIGINT a worker claims no more, finishes what
is running, and returns; what is not finished within `grace` is left to its lease.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from detent import spans
from detent.durations import Duration, milliseconds
from detent.engine import steady_s
from detent.errors import DetentError, Invalid, LimitExceeded, StaleReceipt, Unavailable
from detent.queue.message import AsyncDelivery, Delivery, _Delivered, extend_operation, reason_of
from detent.queue.unclaiming import undoing_deliveries
from detent.runtime.backoff import Backoff
from detent.runtime.ground import drive
from detent.runtime.handling import Handling, Hands, LoopHands, answered
from detent.runtime.lease import Lease
from detent.runtime.signals import call_on_signals, call_on_signals_of_loop
from detent.runtime.target import refuse_while_loading
from detent.runtime.task import Restart

if TYPE_CHECKING:
    from detent.queue.handle import AsyncQueue, Queue

CONCURRENCY_MAX: Final = 1_000
CLAIM_WAIT: Final = "1s"
"""How long a worker waits for messages before it looks whether it is to stop."""

RETRY_S: Final = 1.0
"""How long a worker waits after the store could not be reached."""

logger = logging.getLogger("detent.worker")


@dataclass(frozen=True, slots=True)
class _WorkerOptions:
    concurrency: int
    lease: Duration | None
    grace_s: float
    consumer: str | None


def _options(concurrency: int, lease: Duration | None, grace: Duration, consumer: str | None) -> _WorkerOptions:
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"a worker handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
    if lease is not None:
        milliseconds(lease)  # refused here, not at the first claim
    return _WorkerOptions(concurrency, lease, milliseconds(grace) / 1000, consumer)


def _check_handler(handler: Any, *, coroutine: bool) -> None:
    """A coroutine function that a thread calls does nothing, and its message would count as handled."""
    if not callable(handler):
        raise Invalid(f"a handler is a function that takes a message, not {handler!r}")
    is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    if is_coroutine and not coroutine:
        raise Invalid("this handler is a coroutine function: give it to an AsyncWorker")
    if coroutine and not is_coroutine:
        raise Invalid("the handler of an AsyncWorker is a coroutine function (async def); a Worker takes plain ones")


class _WorkerTask(Handling[Any]):
    """The messages of one worker; of both kinds, since what a queue of asyncio answers is awaited."""

    restart = Restart(Backoff(RETRY_S, RETRY_S))

    def __init__(self, queue: Any, handler: Callable[[Any], Any], options: _WorkerOptions, hands: Hands) -> None:
        super().__init__("detent-worker", hands, clock=steady_s)
        self._queue = queue
        self._handler = handler
        self._options = options
        self._awaits = isinstance(hands, LoopHands)
        self.handled = self.failures = 0

    async def take(self, limit: int) -> Sequence[_Delivered]:
        options = self._options
        found: Sequence[_Delivered]
        found = await answered(self._queue.claim(limit, lease=options.lease, consumer=options.consumer))
        if not found:
            await answered(self._queue.wait(CLAIM_WAIT))  # and look whether to stop before the next claim
        return found

    def is_hopeless(self, error: Exception) -> bool:
        return not isinstance(error, Unavailable | LimitExceeded)

    def gave_up(self, error: Exception) -> None:
        """The caller of `run` gets it."""

    def failed(self, error: Exception, pause_s: float) -> None:
        logger.warning("no message could be claimed, trying again in %.0f s: %s", pause_s, error)

    def give_back(self, unseen: list[_Delivered]) -> None:
        self._queue._store.undo(undoing_deliveries(unseen))

    def key_of(self, thing: _Delivered) -> Hashable:
        return thing.receipt

    def lease_s(self, thing: _Delivered) -> float:
        """The owner says how long. An older owner says only when it ends, by its own clock."""
        if thing.lease_length_ms:
            return thing.lease_length_ms / 1000
        return max(0.001, thing.lease_ms / 1000 - time.time())

    async def handle(self, thing: Any) -> None:
        with thing._processing() as span:
            await self._handle(thing, span)

    async def _handle(self, message: Any, span: Any) -> None:
        try:
            try:
                handling = self._handler(message)
                if self._awaits:
                    await handling
            except self._hands.ends:
                raise  # they end the task, or the program, and the message is left to its lease
            except BaseException as error:  # in a thread of its own none of them ends more than the handler
                self.failures += 1
                spans.failed(span, error)
                logger.warning("message %d of %r failed", message.id, message.queue, exc_info=True)
                if not message.settled:
                    await answered(message.fail(reason_of(error)))
                return
            self.handled += 1
            if not message.settled:
                await answered(message.ack())
        except StaleReceipt as error:
            logger.warning("what became of a message could not be said any more: %s", error)
        except DetentError:
            logger.exception("message %d is left to its lease", message.id)

    async def extend(self, due: Sequence[Lease[_Delivered]]) -> None:
        for lease in due:
            if lease.thing.settled:  # its handler goes on, and needs no lease for that
                self.leases.renewed(lease)
            else:
                await self._extend(lease)

    async def _extend(self, lease: Lease[_Delivered]) -> None:
        message = lease.thing
        try:
            operation, asked_s = extend_operation(message.receipt, self._options.lease), steady_s()
            message._extended((await answered(self._queue._store.commit([operation])))[0])
            self.leases.renewed(lease, self.lease_s(message), asked_s)
        except StaleReceipt:
            if not message.settled:
                message.lost = True
                self.leases.lost(lease)
                logger.warning(
                    "the lease on message %d of %r is lost while its handler runs", message.id, message.queue
                )
        except DetentError as error:
            logger.warning("a lease could not be extended, trying again: %s", error)


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue of a store that is not open yet: `detent.open_async(url).queue(name)`."""

    name: str
    url: str
    open: Callable[[], AbstractAsyncContextManager[Any]]


class _WorkerBase:
    """What both kinds of worker are from outside."""

    _messages: _WorkerTask

    @property
    def queue(self) -> Any:
        """The queue whose messages it handles."""
        return self._messages._queue

    def stop(self) -> None:
        """Claim no more, finish what is running, and return from `run`. For any thread, and for signal handlers. What
        was claimed and no handler has begun with goes back with its attempt."""
        self._messages.stop_taking()

    @property
    def handled(self) -> int:
        """Messages whose handler has returned."""
        return self._messages.handled

    @property
    def failed(self) -> int:
        """Messages whose handler has raised."""
        return self._messages.failures


class Worker(_WorkerBase):
    """Handles the messages of a queue in threads.

    >>> Worker(store.queue("orders"), handle, concurrency=8).run()
    """

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[Delivery], Any],
        *,
        concurrency: int = 1,
        lease: Duration | None = None,
        grace: Duration = "30s",
        consumer: str | None = None,
    ) -> None:
        _check_handler(handler, coroutine=False)
        self._options = _options(concurrency, lease, grace, consumer)
        self._messages = _WorkerTask(queue, handler, self._options, Hands("detent-worker", concurrency))

    def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT."""
        refuse_while_loading("Worker.run()")
        with call_on_signals(self.stop):
            self._messages.keeper.start()
            try:
                self._messages.taking.work()
            finally:
                drive(self._messages.finish(self._options.grace_s))
                self._messages.keeper.stop()


class AsyncWorker(_WorkerBase):
    """Handles the messages of a queue in tasks; the handler is a coroutine function. One in a file that `detent run`
    runs has a queue of a store that is opened when it runs:

    >>> worker = AsyncWorker(detent.open_async("file:./data").queue("orders"), handle)
    """

    def __init__(
        self,
        queue: AsyncQueue | DeclaredQueue,
        handler: Callable[[AsyncDelivery], Awaitable[Any]],
        *,
        concurrency: int = 1,
        lease: Duration | None = None,
        grace: Duration = "30s",
        consumer: str | None = None,
    ) -> None:
        _check_handler(handler, coroutine=True)
        self._options = _options(concurrency, lease, grace, consumer)
        self._declared = queue if isinstance(queue, DeclaredQueue) else None
        self._messages = _WorkerTask(queue, handler, self._options, LoopHands(concurrency))

    @property
    def queue(self) -> Any:
        """The queue whose messages it handles."""
        return self._declared or super().queue

    async def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT."""
        refuse_while_loading("AsyncWorker.run()")
        if self._declared is None:
            await self._run()
            return
        async with self._declared.open() as store:
            self._messages._queue = store.queue(self._declared.name)
            await self._run()

    async def _run(self) -> None:
        with call_on_signals_of_loop(self.stop):
            keeping = asyncio.create_task(self._messages.keeper.run())
            try:
                await self._messages.taking.run()
            finally:
                await self._messages.finish(self._options.grace_s)
                keeping.cancel()
