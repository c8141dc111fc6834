"""Takes messages from a transport and hands each to a thread, keeps their leases, and stops when it is told to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Final

from detent.bus.envelope import Incoming
from detent.bus.transport import Transport
from detent.errors import DetentError, Invalid

CONCURRENCY_MAX: Final = 1_000

RECEIVE_WAIT_S: Final = 1.0
"""How long a worker waits for messages before it looks whether it is to stop."""

BACK_OFF_S: Final = 0.5
BACK_OFF_S_MAX: Final = 10.0
"""How long a worker waits after the transport has failed: longer each time, so that the log stays readable."""

logger = logging.getLogger("detent.bus")


class Worker:
    """The threads of an app that handles messages. No more are taken than can be handled at once: of a message that
    waits here somebody else could be the handler."""

    def __init__(self, name: str, transport: Transport, handle: Callable[[Incoming], object], concurrency: int) -> None:
        if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise Invalid(f"an app handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
        self._name = name
        self._transport = transport
        self._handle = handle
        self._concurrency = concurrency
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._slots = threading.Semaphore(concurrency)
        self._held: set[Incoming] = set()
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin to take messages."""
        self._pool = ThreadPoolExecutor(self._concurrency, f"detent-bus-{self._name}")
        for work in (self._take, self._keep_leases):
            thread = threading.Thread(target=work, name=f"detent-bus-{self._name}{work.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop_taking(self) -> None:
        """Take no more messages; returns at once."""
        self._stopping.set()

    def stop(self, grace_s: float) -> bool:
        """Take no more messages, and wait for those that are being handled; those that take longer are left to their
        leases. Whether all have ended."""
        self._stopping.set()
        if self._pool is None:
            return True
        taker, keeper = self._threads
        taker.join()
        with self._lock:
            running = set(self._running)
        _, late = wait_for_futures(running, grace_s)
        if late:
            logger.warning("%d handlers of %r did not end within %s s", len(late), self._name, grace_s)
        self._over.set()
        keeper.join()
        self._pool.shutdown(wait=not late, cancel_futures=True)
        return not late

    # -- taking -------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            if not self._slots.acquire(timeout=RECEIVE_WAIT_S):
                continue
            free = 1
            while free < self._concurrency and self._slots.acquire(blocking=False):
                free += 1
            found: list[Incoming] = []
            try:
                if not self._stopping.is_set():
                    found = self._transport.receive(free, RECEIVE_WAIT_S)
                failures = 0
            except Exception as error:  # noqa: BLE001 - an app that stops taking messages helps nobody
                failures += 1
                self._could_not_take(error, failures)
            for incoming in found:
                self._begin(incoming)
            for _ in range(free - len(found)):
                self._slots.release()

    def _could_not_take(self, error: Exception, failures: int) -> None:
        wait_s = min(BACK_OFF_S * 2 ** min(failures - 1, 10), BACK_OFF_S_MAX)
        logger.warning(
            "%r could not take messages, trying again in %s s: %s",
            self._name,
            wait_s,
            error,
            exc_info=None if isinstance(error, DetentError) else error,
        )
        self._stopping.wait(wait_s)

    def _begin(self, incoming: Incoming) -> None:
        assert self._pool is not None
        with self._lock:
            self._held.add(incoming)
            future = self._pool.submit(self._run, incoming)
            self._running.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[None]) -> None:
        with self._lock:
            self._running.discard(future)

    def _run(self, incoming: Incoming) -> None:
        try:
            self._handle(incoming)
        except BaseException:  # a handler that ends its thread, or was cancelled: the lease will end
            logger.exception("%r left a message to its lease", self._name)
        finally:
            with self._lock:
                self._held.discard(incoming)
            self._slots.release()

    # -- leases -------------------------------------------------------------------------------------------------

    def _keep_leases(self) -> None:
        """Extend the leases of what is being handled; also while that is waited for at the end."""
        while not self._over.wait(self._transport.extend_every_s):
            with self._lock:
                held = [incoming for incoming in self._held if not incoming.lost]
            if not held:
                continue
            try:
                self._transport.extend(held)
            except Exception as error:  # noqa: BLE001 - the next try comes before the lease ends
                logger.warning("%r could not extend its leases, trying again: %s", self._name, error)
            for incoming in held:
                if incoming.lost:
                    logger.warning("%r lost the lease of %s while it is handled", self._name, incoming.transport_id)
