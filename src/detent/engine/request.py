"""A transaction on its way: the request that carries it, and the ticket that waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from detent.engine.operation import OPERATIONS_MAX, Operation, Result
from detent.errors import DetentError, Invalid, LimitExceeded, Unavailable

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bytes that are not what they should be."""

SESSION_BYTES = 16
SEQUENCE_MAX = (1 << 63) - 1


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A transaction and its name: (session, sequence). Sent again under the same name, it is answered, not repeated.

    `answered` says that the answers of all lower sequences have arrived, so that the engine may forget them.
    """

    session: bytes
    sequence: int
    answered: int
    operations: list[Any]

    def check(self) -> None:
        """Refuse what no well-behaved client sends."""
        if len(self.session) != SESSION_BYTES:
            raise Invalid(f"a session has {SESSION_BYTES} bytes, not {len(self.session)}")
        if not 0 <= self.answered <= self.sequence <= SEQUENCE_MAX:
            raise Invalid(f"sequence {self.sequence} and answered {self.answered} do not go together")
        if not self.operations:
            raise Invalid("a transaction has at least one operation")
        if len(self.operations) > OPERATIONS_MAX:
            raise LimitExceeded(f"a transaction has at most {OPERATIONS_MAX} operations, not {len(self.operations)}")


class Ticket:
    """One request in the engine, and where its answer arrives."""

    __slots__ = ("_wake", "_weight", "callback", "error", "promoted", "request", "results", "waiter")

    def __init__(self, request: Request, callback: Callable[[Ticket], None] | None = None, waiter: Any = None) -> None:
        self.request = request
        self.callback = callback
        self.waiter = waiter
        self._weight = -1
        self.results: list[Result] | None = None
        self.error: Exception | None = None
        self.promoted = False
        self._wake: threading.Lock | None = None

    @property
    def weight(self) -> int:
        """About how many bytes the request carries; counted only when somebody has to wait."""
        if self._weight < 0:
            operations = self.request.operations
            self._weight = operations[0].weight() if len(operations) == 1 else sum(o.weight() for o in operations)
        return self._weight

    def prepare_to_wait(self) -> None:
        """A bare lock is the cheapest thing one thread can wait on and another can release."""
        self._wake = threading.Lock()
        self._wake.acquire()

    def wait(self) -> None:
        """Sleep until the ticket is answered, or until its thread is asked to lead the next group."""
        assert self._wake is not None
        self._wake.acquire()

    def wake(self) -> None:
        """Wake the waiting thread."""
        assert self._wake is not None
        self._wake.release()

    def finish(self) -> None:
        """Hand the answer over."""
        if self.callback is not None:
            self.callback(self)
        elif self._wake is not None:
            self._wake.release()

    def outcome(self) -> list[Result]:
        """The results, or the error raised."""
        if self.error is not None:
            raise self.error
        if self.results is None:
            raise Unavailable("the engine stopped before this transaction was applied")
        return self.results


def refusal(error: BaseException) -> DetentError:
    """A copy of an error for one caller: an exception object must not be raised in several threads."""
    if isinstance(error, DetentError):
        return type(error)(*error.args)
    return Unavailable(f"the engine failed: {error}")


Operations = list[Operation]
