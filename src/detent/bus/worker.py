"""Takes messages from a transport and hands each to a thread, keeps their leases, and stops when it is told to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from detent.bus.envelope import Incoming
from detent.bus.transport import Transport
from detent.errors import DetentError, Invalid
from detent.runtime.backoff import Backoff, Failures
from detent.runtime.thread import Crew

CONCURRENCY_MAX: Final = 1_000

RECEIVE_WAIT_S: Final = 1.0
"""How long a worker waits for messages before it looks whether it is to stop."""

GATHER_S: Final = 0.002
"""How long a worker whose threads are nearly all busy waits for more of them: taking messages is a transaction of the
transport, whether it takes one or ten. One that idles takes what comes at once."""

BACK_OFF: Final = Backoff(0.5, 10.0)
"""How long a worker waits after the transport has failed: longer each time, so that the log stays readable."""

STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

logger = logging.getLogger("detent.bus")


def checked_concurrency(concurrency: int) -> int:
    """How many messages are handled at once; `Invalid` if it is no such number."""
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"an app handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
    return concurrency


class Worker:
    """The threads of an app that handles messages. No more are taken than can be handled at once: of a message that
    waits here somebody else could be the handler."""

    def __init__(self, name: str, transport: Transport, handle: Callable[[Incoming], object], concurrency: int) -> None:
        self._name = name
        self._transport = transport
        self._handle = handle
        self._concurrency = checked_concurrency(concurrency)
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._slots = threading.Semaphore(concurrency)
        self._held: set[Incoming] = set()
        self._lock = threading.Lock()
        self._crew = Crew(f"detent-bus-{name}", concurrency)
        self._taker = threading.Thread(target=self._take, name=f"detent-bus-{name}-take", daemon=True)
        self._keeper = threading.Thread(target=self._keep_leases, name=f"detent-bus-{name}-keep", daemon=True)

    def start(self) -> None:
        """Begin to take messages."""
        self._taker.start()
        self._keeper.start()

    def stop_taking(self) -> None:
        """Take no more messages; returns at once."""
        self._stopping.set()

    def stop(self, grace_s: float) -> bool:
        """Take no more messages, and wait for those that are being handled; those that take longer are left to their
        leases. Whether all have ended."""
        self._stopping.set()
        if self._taker.ident is None:  # it never began
            return True
        deadline = time.monotonic() + grace_s
        self._taker.join(grace_s + STOP_S)  # a transport may be in the middle of an answer
        all_ended = self._crew.dismiss(max(0.0, deadline - time.monotonic()))
        if not all_ended:
            logger.warning("%d handlers of %r did not end within %s s", len(self._held), self._name, grace_s)
        self._over.set()
        if self._keeper.ident is not None:
            self._keeper.join(STOP_S)
        return all_ended

    # -- taking -------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        failures = Failures(BACK_OFF)
        while not self._stopping.is_set():
            if not self._slots.acquire(timeout=RECEIVE_WAIT_S):
                continue
            free = self._gather()
            found: list[Incoming] = []
            try:
                if not self._stopping.is_set():
                    found = self._transport.receive(free, RECEIVE_WAIT_S)
                failures.worked()
            except Exception as error:  # noqa: BLE001 - an app that stops taking messages helps nobody
                self._could_not_take(error, failures.failed())
            if self._stopping.is_set():
                self._give_back(found)
                found = []
            for incoming in found:
                self._begin(incoming)
            for _ in range(free - len(found)):
                self._slots.release()

    def _give_back(self, unseen: list[Incoming]) -> None:
        """No handler has begun with these, and none will."""
        if unseen:
            self._transport.give_back(unseen)

    def _gather(self) -> int:
        """How many messages can be taken, with the slot that is taken already."""
        free = 1
        while free < self._concurrency and self._slots.acquire(blocking=False):
            free += 1
        deadline = time.monotonic() + GATHER_S
        while free < self._concurrency // 2 and self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            free += 1
        return free

    def _could_not_take(self, error: Exception, wait_s: float) -> None:
        logger.warning(
            "%r could not take messages, trying again in %s s: %s",
            self._name,
            wait_s,
            error,
            exc_info=None if isinstance(error, DetentError) else error,
        )
        self._stopping.wait(wait_s)

    def _begin(self, incoming: Incoming) -> None:
        with self._lock:
            self._held.add(incoming)
        try:
            self._crew.submit(partial(self._run, incoming))
        except BaseException:  # no thread could be made
            with self._lock:
                self._held.discard(incoming)
            self._slots.release()
            logger.exception("%r has no thread for a message, and gives it back", self._name)
            self._give_back([incoming])

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
