"""The client's side of exactly once: each transaction has a name, and is sent under it until it is answered."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Name(NamedTuple):
    """A transaction's name, and how far this client's answers have arrived."""

    session: bytes
    sequence: int
    answered: int


class ClientSession:
    """Numbers the transactions of one client, and knows which of them wait for an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: bytes | None = None
        self._next = 0
        self._outstanding: dict[int, None] = {}

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

    def begin(self) -> Name:
        """A name for the next transaction."""
        with self._lock:
            assert self._session is not None
            sequence = self._next
            self._next += 1
            self._outstanding[sequence] = None
            # Numbers are handed out in order, so the first that waits is the lowest.
            return Name(self._session, sequence, next(iter(self._outstanding)))

    def end(self, name: Name) -> None:
        """The transaction was answered, or given up."""
        with self._lock:
            if name.session == self._session:
                self._outstanding.pop(name.sequence, None)

    def expire(self, session: bytes) -> None:
        """The owner has forgotten this session."""
        with self._lock:
            if self._session == session:
                self._session = None
