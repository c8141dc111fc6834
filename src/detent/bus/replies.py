"""Requests that wait for their replies."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any, Final

from detent.bus import envelope as wire
from detent.bus.transport import Transport
from detent.errors import LimitExceeded, OutcomeUnknown, Unavailable

WAIT_S: Final = 1.0
BACK_OFF_S: Final = 1.0
STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

REQUESTS_MAX: Final = 10_000
"""Requests of one app that wait at the same time."""

logger = logging.getLogger("detent.bus")

Reply = tuple[dict[str, str], bytes]


class Replies:
    """Gives each reply to whoever waits for it. One thread listens, from the first request on."""

    def __init__(self, name: str, transport: Transport) -> None:
        self._name = name
        self._transport = transport
        self._waiting: dict[str, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, request_id: str) -> Future[Reply]:
        """What the reply to a request will be put into. Called before the request is sent."""
        with self._lock:
            if self._stopping.is_set():
                raise Unavailable(f"{self._name!r} is stopping: ask when it has started again")
            if self._thread is None:
                self._transport.open_replies()
                self._thread = threading.Thread(target=self._listen, name=f"detent-replies-{self._name}", daemon=True)
                self._thread.start()
            if len(self._waiting) >= REQUESTS_MAX:
                raise LimitExceeded(f"{REQUESTS_MAX} requests wait for replies already: ask fewer at the same time")
            future: Future[Any] = Future()
            self._waiting[request_id] = future
            return future

    def forget(self, request_id: str) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def stop(self) -> None:
        """Listen no more. Whoever waits is told that nobody knows."""
        with self._lock:
            self._stopping.set()
            waiting, self._waiting = self._waiting, {}
        for request_id, future in waiting.items():
            if future.set_running_or_notify_cancel():
                future.set_exception(OutcomeUnknown(f"the app stopped before a reply to {request_id} came"))
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._transport.next_replies(WAIT_S)
            except Exception as error:  # noqa: BLE001 - requests run into their timeouts, or the replies come later
                logger.warning("%r cannot read its replies, trying again: %s", self._name, error)
                self._stopping.wait(BACK_OFF_S)
                continue
            for headers, body in found:
                with self._lock:
                    future = self._waiting.pop(headers.get(wire.IN_REPLY_TO, ""), None)
                if future is not None and future.set_running_or_notify_cancel():
                    future.set_result((headers, body))
