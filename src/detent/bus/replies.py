"""Requests that wait for their replies."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any, Final

from detent.bus import envelope as wire
from detent.bus.transport import Transport
from detent.errors import LimitExceeded, OutcomeUnknown, Unavailable
from detent.runtime.backoff import Backoff
from detent.runtime.supervisor import Supervised
from detent.runtime.task import AGAIN, Next, Restart, Task

WAIT_S: Final = 1.0
BACK_OFF_S: Final = 1.0
STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

REQUESTS_MAX: Final = 10_000
"""Requests of one app that wait at the same time."""

logger = logging.getLogger("detent.bus")

Reply = tuple[dict[str, str], bytes]


class Replies(Task):
    """Gives each reply to the request that waits for it. One thread listens, from the first request on."""

    kind = "replies"
    restart = Restart(Backoff(BACK_OFF_S, BACK_OFF_S))

    def __init__(self, name: str, transport: Transport) -> None:
        super().__init__(f"detent-replies-{name}")
        self._app = name
        self._transport = transport
        self._waiting: dict[str, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._is_told = self._is_open = False
        self._supervised = Supervised(self)

    def expect(self, request_id: str) -> Future[Reply]:
        """What the reply to a request will be put into. Called before the request is sent."""
        with self._lock:
            if self._is_told:
                raise Unavailable(f"{self._app!r} is stopping: ask when it has started again")
            if not self._is_open:
                self._transport.open_replies()
                self._is_open = True
                self._supervised.start()
            if len(self._waiting) >= REQUESTS_MAX:
                raise LimitExceeded(f"{REQUESTS_MAX} requests wait for replies already: ask fewer at the same time")
            future: Future[Any] = Future()
            self._waiting[request_id] = future
            return future

    def forget(self, request_id: str) -> None:
        """No reply to it is waited for any more."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def stop(self) -> None:
        """Listen no more. Those that wait are told that the outcome is not known."""
        with self._lock:
            self._is_told = True
            waiting, self._waiting = self._waiting, {}
        for request_id, future in waiting.items():
            if future.set_running_or_notify_cancel():
                future.set_exception(OutcomeUnknown(f"the app stopped before a reply to {request_id} came"))
        self._supervised.stop(STOP_S)

    def step(self) -> Next:
        """Take what has come."""
        for headers, body in self._transport.next_replies(WAIT_S):
            with self._lock:
                future = self._waiting.pop(headers.get(wire.IN_REPLY_TO, ""), None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result((headers, body))
        return AGAIN

    def failed(self, error: Exception, pause_s: float) -> None:
        """Requests run into their timeouts, or the replies come later."""
        del pause_s
        logger.warning("%r cannot read its replies, trying again: %s", self._app, error)
