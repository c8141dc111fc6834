"""Reading through a server: calls that change nothing, and so are made again until one is answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from detent import forks
from detent.errors import Unavailable
from detent.forks import refuse_in_child
from detent.remote.answers import Disconnected, Overloaded
from detent.remote.client import RemoteOwner, timeout_of
from detent.remote.connection import Connection

T = TypeVar("T")


class OwnerLine:
    """The way to the owner for those who read through it."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._generation = forks.generation

    def run(self, call: Callable[[RemoteOwner, httpx.Timeout], T]) -> T:
        """What a call answers, which is given the time it may take, at the first try that is answered."""
        patience = self.patience()
        while True:
            owner = patience.owner()
            try:
                return call(owner, patience.timeout)
            except Disconnected as error:
                patience.spend(owner, error)

    def patience(self) -> RetryPatience:
        """A time for one call, with all its tries."""
        refuse_in_child(self._generation)  # a child has its parent's connections, and would mix up the answers
        return RetryPatience(self._connection, self._timeout_s)


class RetryPatience:
    """How long one call is tried."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self.restore()

    def restore(self) -> None:
        """Something came: the time begins anew."""
        self._deadline = time.monotonic() + self._timeout_s
        self._tries = 0

    def owner(self) -> RemoteOwner:
        """The owner, found again if need be."""
        owner = self._connection.reach(self._deadline)
        assert isinstance(owner, RemoteOwner)
        return owner

    @property
    def timeout(self) -> httpx.Timeout:
        """What is left of the time, for one try."""
        return timeout_of(self._connection.attempt_s(self._deadline - time.monotonic(), self._tries))

    def spend(self, owner: RemoteOwner, error: Disconnected) -> None:
        """A try came to nothing. `Unavailable` when the time is over."""
        left = self._deadline - time.monotonic()
        self._tries += not error.sure
        if left <= 0:
            raise Unavailable(f"{error}; see whether the server at {self._connection.url} is well") from error
        if isinstance(error, Overloaded):
            time.sleep(min(error.retry_s, left))
        else:
            self._connection.lost(owner, error)
