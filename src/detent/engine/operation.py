"""What a transaction is made of, what a layer above brings to have its operations applied, and the transaction on its
way: the request that carries it, and the ticket that waits for its answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol

import msgspec

from detent.errors import DetentError, Invalid, LimitExceeded, Unavailable
from detent.kv import Batch, View

OPERATIONS_MAX: Final = 10_000
"""Operations in one transaction, and messages in one publish to queues. A transaction is applied whole while all others
wait: so many small operations take a core about half a second. It is one limit for both, because messages that differ
in their times are an operation each: what one call may hold, a transaction must hold."""

OPERATION_WEIGHT = 128
"""Bytes charged for an operation besides its content, so that empty ones are not free."""


class Operation(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """One step or check of a transaction. Each kind is a subclass; its name is its tag on the wire.

    `grows` says that it brings new messages: then it is refused while the disk is full, and others are not.
    """

    grows: ClassVar[bool] = False

    def weight(self) -> int:
        """About how many bytes it carries; back-pressure and group sizes are counted in these."""
        return OPERATION_WEIGHT


class Result(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What one operation answers."""


class Done(Result, frozen=True, tag=True, array_like=True):
    """The answer of operations that have nothing else to say."""


class ApplyContext:
    """What `apply` may know besides the operation: the time of the group, and how to take back what it did.

    `last` says that no operation of the transaction follows. One that makes all its checks before its first change
    need not say how to take it back then. One that found nothing to do, or only looked, adds one to `idle`: a
    transaction of nothing else is answered without a commit, and asked again it looks again.
    """

    __slots__ = ("idle", "last", "now_ms", "undo")

    def __init__(self, now_ms: int, *, last: bool = False) -> None:
        self.now_ms = now_ms
        self.last = last
        self.idle = 0
        self.undo: list[Callable[[], None]] = []

    def rollback(self) -> None:
        """Take the transaction's changes back, last first."""
        while self.undo:
            self.undo.pop()()


class Machine(Protocol):
    """The state machine of one layer.

    `operations` are what a client may send, `local` what only the owner's process may; each has its handler, which
    applies it or raises a `DetentError`. There are handlers for more: those are the machine's own housekeeping.

    A handler changes memory only and adds to ``context.undo`` whatever takes its change back; it never reads a clock
    and never writes. `flush` puts the changes of a whole group into one batch, and `committed` tells of them; a machine
    that the group has not touched is asked neither. After a failed commit `load` starts over.
    """

    operations: tuple[type[Operation], ...]
    local: tuple[type[Operation], ...]
    handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]]
    prepared: tuple[type[Operation], ...]
    results: tuple[type[Result], ...]

    def prepare(self, operation: Any) -> None:
        """Check what needs slow I/O, in the caller's thread and before the transaction is queued.

        Called for the `prepared` kinds only. What it finds must stay true until the handler runs, or be checked there.
        """
        ...

    def load(self, view: View) -> None:
        """Forget what is in memory; remember what the view shows."""
        ...

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """What was loaded was written under a clock that was ahead by so much, and it is `now_ms`: have every wait that
        is not over yet end that much earlier, and write that with the next flush."""
        ...

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write what the group changed."""
        ...

    def committed(self) -> None:
        """The group is durable: wake those who wait for it."""
        ...

    def due(self, now_ms: int) -> Iterable[Operation]:
        """Housekeeping that is due: retention, deadlines, pruning; in bounded steps."""
        ...

    def next_due_ms(self, now_ms: int) -> int | None:
        """When `due` should be asked again, if that is before the next tick."""
        ...

    def closing(self) -> Iterable[Operation]:
        """The last housekeeping before the store is closed."""
        ...


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
