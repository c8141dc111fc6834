"""What a transaction is made of, and what a layer above brings to have its operations applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Protocol

import msgspec

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


class Context:
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
    and never writes. `flush` puts the changes of a whole group into one batch. After a failed commit `load` starts
    over.
    """

    operations: tuple[type[Operation], ...]
    local: tuple[type[Operation], ...]
    handlers: dict[type[Operation], Callable[[Any, Context], Result]]
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
