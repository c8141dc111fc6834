"""Workers: claim messages, hand each to a handler, keep its lease while the handler runs, and say what became of it.

A handler that returns has acknowledged its message, one that raises has failed it, unless it did either itself (for
instance in a transaction, together with what it changed). On SIGTERM or SIGINT a worker claims no more, finishes what
is running, and returns; what is not finished within `grace` is left to its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from detent.durations import Duration, milliseconds
from detent.engine import steady_s
from detent.errors import DetentError, Invalid, LimitExceeded, StaleReceipt, Unavailable
from detent.queue import operations as ops
from detent.queue.message import AsyncDelivery, Delivery, _Delivered, extend_operation, reason_of
from detent.queue.unclaiming import undoing_deliveries

if TYPE_CHECKING:
    from detent.queue.handle import AsyncQueue, Queue

CONCURRENCY_MAX: Final = 1_000
CLAIM_WAIT: Final = "1s"
CLAIM_WAIT_S: Final = 1.0
"""How long a worker waits for messages before it looks whether it is to stop."""

RETRY_S: Final = 1.0
"""How long a worker waits after the store could not be reached."""

EXTEND_SHARE: Final = 3
"""A lease is extended when a third of it is over: two more tries fit into the rest."""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("detent.worker")


@dataclass(frozen=True, slots=True)
class _Options:
    concurrency: int
    lease: Duration | None
    grace_s: float
    consumer: str | None


def _options(concurrency: int, lease: Duration | None, grace: Duration, consumer: str | None) -> _Options:
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"a worker handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
    if lease is not None:
        milliseconds(lease)  # refused here, not at the first claim
    return _Options(concurrency, lease, milliseconds(grace) / 1000, consumer)


def _check_handler(handler: Any, *, coroutine: bool) -> None:
    """A coroutine function that a thread calls does nothing, and its message would count as handled."""
    if not callable(handler):
        raise Invalid(f"a handler is a function that takes a message, not {handler!r}")
    is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    if is_coroutine and not coroutine:
        raise Invalid("this handler is a coroutine function: give it to an AsyncWorker")
    if coroutine and not is_coroutine:
        raise Invalid("the handler of an AsyncWorker is a coroutine function (async def); a Worker takes plain ones")


class _Leases:
    """The messages that are being handled, and when each lease is to be extended next. How long a lease lasts is the
    owner's word; it is counted here, from before it was asked for, by a clock that is not set."""

    def __init__(self) -> None:
        self._running: dict[Any, tuple[Any, float, float]] = {}
        self._lock = threading.Lock()

    def add(self, message: _Delivered, asked_s: float) -> None:
        """A handler begins with a message that was asked for at that time."""
        length_s = _length_s(message)
        at_s = asked_s + length_s / EXTEND_SHARE
        with self._lock:
            self._running[message.receipt] = (message, at_s, length_s)

    def remove(self, message: _Delivered) -> None:
        """Its handler is done with it."""
        with self._lock:
            self._running.pop(message.receipt, None)

    def due(self) -> list[Any]:
        """Messages whose lease is to be extended now."""
        now = steady_s()
        with self._lock:
            return [message for message, at, _ in self._running.values() if at <= now and not message.settled]

    def next_s(self) -> float:
        """How long until a lease is to be extended."""
        now = steady_s()
        with self._lock:
            left = [max(0.0, at - now) for message, at, _ in self._running.values() if not message.settled]
        return min(left, default=CLAIM_WAIT_S)

    def extended(self, message: _Delivered, result: ops.LeaseExtended, asked_s: float) -> None:
        """The lease lasts from when that was asked for its whole length again."""
        message._extended(result)
        if message.receipt in self._running:
            self.add(message, asked_s)

    def later(self, message: _Delivered) -> None:
        """The store could not be reached; try again soon."""
        with self._lock:
            known = self._running.get(message.receipt)
            if known is not None:
                self._running[message.receipt] = (message, steady_s() + min(RETRY_S, known[2] / 6), known[2])

    def lost(self, message: _Delivered) -> None:
        """Somebody else has the message, or will; its handler can see that."""
        message.lost = True
        self.remove(message)
        logger.warning("the lease on message %d of %r is lost while its handler runs", message.id, message.queue)


def _length_s(message: _Delivered) -> float:
    """How long a lease lasts. An older owner says only when it ends, by its own clock."""
    if message.lease_length_ms:
        return message.lease_length_ms / 1000
    return max(0.001, message.lease_ms / 1000 - time.time())


class Worker:
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
        self._queue = queue
        self._handler = handler
        self._options = _options(concurrency, lease, grace, consumer)
        self._stop = threading.Event()
        self._over = threading.Event()
        self._began = threading.Event()  # a handler has begun: its lease may be short
        self._leases = _Leases()
        self._slots = threading.Semaphore(concurrency)
        self._unseen: dict[Any, Delivery] = {}  # claimed, and no handler has begun with them
        self.handled = self.failed = 0

    def stop(self) -> None:
        """Claim no more, finish what is running, and return from `run`. For any thread, and for signal handlers. What
        was claimed and no handler has begun with goes back with its attempt."""
        self._stop.set()

    def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT."""
        keeper = threading.Thread(target=self._keep_leases, name="detent-leases", daemon=True)
        with _signals(self.stop):
            keeper.start()
            pool = ThreadPoolExecutor(self._options.concurrency, "detent-worker")
            running: set[Future[None]] = set()
            try:
                while not self._stop.is_set():
                    running = {future for future in running if not future.done()}
                    found, asked_s = self._claim()
                    self._unseen.update((message.receipt, message) for message in found)
                    for message in () if self._stop.is_set() else found:
                        self._leases.add(message, asked_s)
                        self._began.set()
                        running.add(pool.submit(self._handle, message))
            finally:
                self._stop.set()
                self._queue._store.undo(undoing_deliveries(_all_of(self._unseen)))
                _, late = wait_for_futures(running, self._options.grace_s)
                if late:
                    logger.warning("%d handlers did not end within %s s", len(late), self._options.grace_s)
                self._over.set()
                self._began.set()
                pool.shutdown(wait=not late, cancel_futures=True)
                keeper.join()

    def _claim(self) -> tuple[list[Delivery], float]:
        """As many messages as there are free threads, and when they were asked for."""
        if not self._slots.acquire(timeout=CLAIM_WAIT_S):
            return [], 0.0
        free = 1
        while free < self._options.concurrency and self._slots.acquire(blocking=False):
            free += 1
        found: list[Delivery] = []
        asked_s = steady_s()
        try:
            if not self._stop.is_set():
                found = self._queue.claim(free, lease=self._options.lease, consumer=self._options.consumer)
                if not found:
                    self._queue.wait(CLAIM_WAIT)  # and look whether to stop before the next claim
        except (Unavailable, LimitExceeded) as error:
            logger.warning("no message could be claimed, trying again: %s", error)
            self._stop.wait(RETRY_S)
        finally:
            for _ in range(free - len(found)):
                self._slots.release()
        return found, asked_s

    def _handle(self, message: Delivery) -> None:
        try:
            if self._unseen.pop(message.receipt, None) is None:
                return  # it was given back
            try:
                self._handler(message)
            except BaseException as error:  # in a thread of the pool none of them ends more than the handler
                self.failed += 1
                logger.warning("message %d of %r failed", message.id, message.queue, exc_info=True)
                if not message.settled:
                    message.fail(reason_of(error))
                return
            self.handled += 1
            if not message.settled:
                message.ack()
        except StaleReceipt as error:
            logger.warning("what became of a message could not be said any more: %s", error)
        except DetentError:
            logger.exception("message %d is left to its lease", message.id)
        finally:
            self._leases.remove(message)
            self._slots.release()

    def _keep_leases(self) -> None:
        """Extend the leases of what is being handled; also after `stop`, as long as that is waited for."""
        while not self._over.is_set():
            for message in self._leases.due():
                self._extend(message)
            self._began.wait(min(self._leases.next_s(), CLAIM_WAIT_S))
            self._began.clear()

    def _extend(self, message: Delivery) -> None:
        try:
            operation, asked_s = extend_operation(message.receipt, self._options.lease), steady_s()
            self._leases.extended(message, self._queue._store.commit([operation])[0], asked_s)
        except StaleReceipt:
            if not message.settled:
                self._leases.lost(message)
        except DetentError as error:
            logger.warning("a lease could not be extended, trying again: %s", error)
            self._leases.later(message)


def _all_of(unseen: dict[Any, Any]) -> Iterator[Any]:
    """Take all messages out; a handler that would begin meanwhile finds that it has none."""
    while unseen:
        with contextlib.suppress(KeyError):  # a handler has just begun
            yield unseen.popitem()[1]


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop the worker, where a handler can be set: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class AsyncWorker:
    """Handles the messages of a queue in tasks; the handler is a coroutine function."""

    def __init__(
        self,
        queue: AsyncQueue,
        handler: Callable[[AsyncDelivery], Awaitable[Any]],
        *,
        concurrency: int = 1,
        lease: Duration | None = None,
        grace: Duration = "30s",
        consumer: str | None = None,
    ) -> None:
        _check_handler(handler, coroutine=True)
        self._queue = queue
        self._handler = handler
        self._options = _options(concurrency, lease, grace, consumer)
        self._stop = asyncio.Event()
        self._began = asyncio.Event()
        self._leases = _Leases()
        self._running: set[asyncio.Task[None]] = set()
        self._unseen: dict[Any, AsyncDelivery] = {}  # claimed, and no handler has begun with them
        self.handled = self.failed = 0

    def stop(self) -> None:
        """Claim no more, finish what is running, and return from `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        handled = []
        for number in SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                loop.add_signal_handler(number, self.stop)
                handled.append(number)
        keeper = asyncio.create_task(self._keep_leases())
        try:
            while not self._stop.is_set():
                await self._claim()
        finally:
            self._stop.set()
            self._queue._store.undo(undoing_deliveries(_all_of(self._unseen)))
            if self._running:
                _, late = await asyncio.wait(self._running, timeout=self._options.grace_s)
                for task in late:
                    task.cancel()
                if late:
                    logger.warning("%d handlers did not end within %s s", len(late), self._options.grace_s)
                    await asyncio.wait(late, timeout=1)
            keeper.cancel()
            for number in handled:
                loop.remove_signal_handler(number)

    async def _claim(self) -> None:
        free = self._options.concurrency - len(self._running)
        if not free:
            await asyncio.wait(self._running, timeout=CLAIM_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            return
        asked_s = steady_s()
        try:
            found = await self._queue.claim(free, lease=self._options.lease, consumer=self._options.consumer)
            if not found:
                await self._queue.wait(CLAIM_WAIT)  # and look whether to stop before the next claim
        except (Unavailable, LimitExceeded) as error:
            logger.warning("no message could be claimed, trying again: %s", error)
            await asyncio.sleep(RETRY_S)
            return
        self._unseen.update((message.receipt, message) for message in found)
        for message in () if self._stop.is_set() else found:
            self._leases.add(message, asked_s)
            self._began.set()
            task = asyncio.create_task(self._handle(message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, message: AsyncDelivery) -> None:
        try:
            if self._unseen.pop(message.receipt, None) is None:
                return  # it was given back
            try:
                await self._handler(message)
            except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
                raise  # they end the task, or the program, and the message is left to its lease
            except BaseException as error:
                self.failed += 1
                logger.warning("message %d of %r failed", message.id, message.queue, exc_info=True)
                if not message.settled:
                    await message.fail(reason_of(error))
                return
            self.handled += 1
            if not message.settled:
                await message.ack()
        except StaleReceipt as error:
            logger.warning("what became of a message could not be said any more: %s", error)
        except DetentError:
            logger.exception("message %d is left to its lease", message.id)
        finally:
            self._leases.remove(message)

    async def _keep_leases(self) -> None:
        while True:
            for message in self._leases.due():
                await self._extend(message)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._began.wait(), min(self._leases.next_s(), CLAIM_WAIT_S))
            self._began.clear()

    async def _extend(self, message: AsyncDelivery) -> None:
        try:
            operation, asked_s = extend_operation(message.receipt, self._options.lease), steady_s()
            self._leases.extended(message, (await self._queue._store.commit([operation]))[0], asked_s)
        except StaleReceipt:
            if not message.settled:
                self._leases.lost(message)
        except DetentError as error:
            logger.warning("a lease could not be extended, trying again: %s", error)
            self._leases.later(message)
