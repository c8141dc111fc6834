"""A transaction on its way: the request that carries it, and the ticket that waits for its answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from detent.engine.operation import OPERATIONS_MAX, Result
from detent.errors import DetentError, Invalid, LimitExceeded, Unavailable

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bytes that are not what they should be."""

logger = logging.getLogger("detent.engine")

TRANSACTION_BYTES_MAX = 128 << 20
"""One transaction is one batch of the kv engine; this is half of what that holds."""

SESSION_BYTES = 16
SEQUENCE_MAX = (1 << 63) - 1


class Request(msgspec.Struct, frozen=True, array_like=True, weakref=True):
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
        several = len(self.operations) > 1  # one alone has a limit of its own
        if several and sum(operation.weight() for operation in self.operations) > TRANSACTION_BYTES_MAX:
            raise LimitExceeded(f"a transaction has at most {TRANSACTION_BYTES_MAX} bytes")


class Ticket:
    """One request in the engine, and where its answer arrives."""

    __slots__ = (
        "_wake",
        "_weight",
        "callback",
        "decided",
        "error",
        "finished",
        "request",
        "results",
        "thread",
        "waiter",
    )

    def __init__(self, request: Request, callback: Callback | None = None, waiter: Any = None) -> None:
        self.request = request
        self.callback = callback
        self.waiter = waiter
        self._weight = -1
        self.results: list[Result] | None = None
        self.error: Exception | None = None
        self.decided = False
        self.finished = False
        self.thread = threading.get_ident()
        self._wake: threading.Lock | None = None

    @property
    def weight(self) -> int:
        """About how many bytes the request carries; counted only when a caller has to wait."""
        if self._weight < 0:
            operations = self.request.operations
            self._weight = operations[0].weight() if len(operations) == 1 else sum(o.weight() for o in operations)
        return self._weight

    def prepare_to_wait(self) -> None:
        """A bare lock is the cheapest thing one thread can wait on and another can release."""
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def is_queued(self) -> bool:
        """Whether it stands, or has stood, in the queue."""
        return self._wake is not None or self.callback is not None

    def wait(self, timeout_s: float) -> bool:
        """Sleep until the ticket is answered, or until its thread has to lead the next group. False after the time."""
        assert self._wake is not None
        return self._wake.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """Wake the waiting thread; once too often does no harm."""
        if self._wake is not None and self._wake.locked():
            self._wake.release()

    def decide(self, outcome: list[Any] | DetentError) -> None:
        """Take an outcome that another thread has found out."""
        if isinstance(outcome, DetentError):
            self.error = outcome
        else:
            self.results = outcome
        self.decided = True

    def refuse_undecided(self, error: BaseException) -> None:
        """What went wrong in its group is its answer, unless it has one."""
        if not self.decided:
            self.results = None
            self.error = refusal(error)
            self.decided = True

    def outcome(self) -> list[Result]:
        """The results, or the error raised."""
        if self.error is not None:
            raise self.error
        if self.results is None:
            raise Unavailable("the engine stopped before this transaction was applied")
        return self.results


class Observer(Protocol):
    """What counts the doings of an engine."""

    def group(self, group: Sequence[Ticket], seconds: float, sync_seconds: float) -> None:
        """A group was decided and answered; making it durable took `sync_seconds` of the time, 0 if nothing had to be.
        Called from the committing thread, which waits."""
        ...


Callback = Callable[[list[Ticket]], None]
"""Takes the answered tickets of one group that were submitted with it, in order."""


def finish(group: Iterable[Ticket]) -> None:
    """Hand the answers over, each once. A callback that fails is its owner's affair, not the group's."""
    together: dict[Callback, list[Ticket]] = {}
    for ticket in group:
        if not ticket.decided or ticket.finished:
            continue
        if ticket.callback is None:
            ticket.wake()
            ticket.finished = True
        else:
            together.setdefault(ticket.callback, []).append(ticket)
    for callback, tickets in together.items():
        try:
            callback(tickets)
        except Exception:
            logger.exception("the callback of a transaction failed")
        for ticket in tickets:
            ticket.finished = True


def refusal(error: BaseException) -> DetentError:
    """A copy of an error for one caller: an exception object must not be raised in several threads."""
    if isinstance(error, DetentError):
        copy = type(error)(*error.args)
        copy.withheld = error.withheld
        return copy
    return Unavailable(f"the engine failed: {error}")
