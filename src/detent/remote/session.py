"""The client's side of exactly once: each transaction has a name, and is sent under it until it is answered."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from detent.engine import Request


class ClientSession:
    """Numbers the transactions of one client, and knows which of them wait for an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: bytes | None = None
        self._next = 0
        # Weak: a caller that was interrupted before it could say that it gave up must not hold the floor down.
        self._outstanding: dict[int, weakref.ref[Request]] = {}

    @property
    def is_open(self) -> bool:
        """Whether an owner has given this client a session."""
        return self._session is not None

    def open(self, session: bytes) -> None:
        """Use a new session, unless another thread was faster."""
        with self._lock:
            if self._session is None:
                self._session = session
                self._next = 0
                self._outstanding = {}

    def begin(self, operations: list[Any]) -> Request | None:
        """Name the next transaction; None when the session has just expired."""
        with self._lock:
            if self._session is None:
                return None
            sequence = self._next
            self._next = sequence + 1
            # Numbers are handed out in order, so the first that a caller still waits for is the lowest.
            answered = sequence
            while self._outstanding:
                first = next(iter(self._outstanding))
                if self._outstanding[first]() is not None:
                    answered = first
                    break
                del self._outstanding[first]
            request = Request(self._session, sequence, answered, operations)
            self._outstanding[sequence] = weakref.ref(request)
            return request

    def end(self, request: Request) -> None:
        """The transaction was answered, or given up."""
        with self._lock:
            if request.session == self._session:
                self._outstanding.pop(request.sequence, None)

    def expire(self, session: bytes) -> None:
        """The owner has forgotten this session."""
        with self._lock:
            if self._session == session:
                self._session = None
