"""Sends what waits in an outbox. Many may do so at once; each has the lanes that it has claimed.

A batch is: claim a lane with its first messages and commit that, send them without holding any lock, then say in one
transaction what became of them and claim the next ones. A crash between sending and saying so has them sent again, with
their ids, so that receivers see them once.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from detent import crash, spans
from detent.bus.calling import Calling, UserCaller
from detent.bus.outbox import Claim, OutboxStorage
from detent.bus.transport import Transport
from detent.bus.unit_of_work import Begun, Unit, UnitOfWork
from detent.errors import DetentError, Fenced, Invalid, LimitExceeded, Unavailable
from detent.queue.message import reason_of
from detent.runtime.backoff import Backoff
from detent.runtime.supervisor import Supervised
from detent.runtime.task import Next, Restart, Task
from detent.sql.dialects import is_passing

BATCH: Final = 200
"""Messages of one claim. They are sent in one go, and their lease has to last for that."""

POLL_S: Final = 1.0
"""How often an outbox is looked at without a wake: other processes save into it, too."""

GATHER_S: Final = 0.02
"""How long to wait after a batch of a few messages, which says that handlers are saving more right now: each batch is
a transaction in the database that they use. A message that comes alone is sent at once, and so is a full batch."""

GATHER_SHARE: Final = 10
"""Of the lease, no more than a tenth is waited: it has to last until it is said what was sent."""

BACK_OFF: Final = Backoff(0.2, 60.0)
"""How long a lane waits whose messages cannot be sent, and an outbox that cannot be read."""

SETTLE: Final = Backoff(0.005, 0.2, jitter=1)
"""How long to wait before it is said again what became of a batch."""

ERRORS_FOR_GOOD: Final = (Invalid, LimitExceeded)
"""Errors of a message that will not pass: it is set aside, and the next ones go."""

STOP_S: Final = 5.0
"""How long a stop waits for the batch that is under way."""

logger = logging.getLogger("detent.bus.outbox")


@dataclass(slots=True)
class _BatchResult:
    """What became of the messages of a claim."""

    claim: Claim
    sent: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    passing: str | None = None
    """Why the next ones could not be sent, if they could not."""


class Forwarder(Task):
    """Forwards the messages of an outbox, in a thread."""

    kind = "forwarder"
    calls_users = True  # units of work may be the user's own
    restart = Restart(BACK_OFF)

    def __init__(
        self,
        name: str,
        outbox: OutboxStorage,
        unit_of_work: UnitOfWork,
        transport: Transport,
        calling: Calling,
        *,
        lease_s: float,
        poll_s: float | None = None,
    ) -> None:
        super().__init__(f"detent-outbox-{name}")
        self._app = name
        self._outbox = outbox
        self._unit_of_work = unit_of_work
        self._transport = transport
        self._calling = calling
        self._lease_s = lease_s
        self._poll_s = POLL_S if poll_s is None else poll_s
        self._stopping = threading.Event()
        self._deadline: float | None = None
        self._supervised = Supervised(self)
        self.forwarded = 0

    def start(self) -> None:
        """Begin to forward, with what an earlier process left."""
        self._supervised.start()

    def stop(self, patience_s: float) -> None:
        """Send what is there once more, for so long at most, and end."""
        self._deadline = time.monotonic() + patience_s
        self._supervised.stop(patience_s + STOP_S)

    @property
    def _is_over(self) -> bool:
        """Whether what is still there is left to others."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def step(self) -> Next:
        """Send what waits. `wake` says that something was committed; the outbox is looked at now and then, not by all
        processes at the same moment."""
        self.forward_all(gathers=True)
        return self._poll_s * random.uniform(0.8, 1.2)

    def leave(self) -> None:
        """The last time."""
        try:
            self.forward_all()
        except Exception as error:  # noqa: BLE001 - the next process sends it
            self._log(error)

    def interrupt(self) -> None:
        """Wait for nothing more."""
        self._stopping.set()

    def failed(self, error: Exception, pause_s: float) -> None:
        del pause_s
        self._log(error)

    def _log(self, error: Exception) -> None:
        trace = None if isinstance(error, DetentError) else error
        logger.warning("the outbox of %r waits: %s", self._app, reason_of(error), exc_info=trace)

    def forward_all(self, *, gathers: bool = False) -> int:
        """Send everything that waits and no other forwarder has; how many messages that were. With `gathers`, what
        comes in meanwhile is waited for a moment."""
        count, done = 0, None
        while True:
            claim = self._advance(done)
            if claim is None:
                return count
            done = self._send(claim)
            count += len(done.sent)
            self.forwarded += len(done.sent)
            crash.point("bus.after_forward")
            if gathers and 1 < len(done.sent) < BATCH:
                self._stopping.wait(min(GATHER_S, self._lease_s / GATHER_SHARE))

    def _advance(self, done: _BatchResult | None) -> Claim | None:
        """`_next`, tried again when others came in the way of saying what became of a batch: it was sent, and would be
        sent again, after the lease."""
        deadline = time.monotonic() + self._lease_s / 2
        for failures in itertools.count(1):
            try:
                return self._calling.run(self._next, done)
            except Exception as error:
                passes = isinstance(error, Unavailable) or is_passing(error)
                if done is None or not passes or time.monotonic() > deadline:
                    raise
            self._stopping.wait(SETTLE.pause_s(failures))
        raise AssertionError("unreachable")

    # -- in the database ----------------------------------------------------------------------------------------

    async def _next(self, caller: UserCaller, done: _BatchResult | None) -> Claim | None:
        """Say what became of a batch, and claim the next one, in one transaction. A lane that another forwarder has
        taken over is left to it."""
        limits = (BATCH, self._lease_s, self._transport.ahead_s)
        claim: Claim | None = None
        async with Begun(caller, self._unit_of_work) as unit:
            if done is not None:
                crash.point("bus.before_mark_sent")
                claim = await self._settle(caller, unit, done, limits)
            if claim is None and not self._is_over:
                claim = await caller.unit(self._outbox.claim, unit, *limits)
        crash.point("bus.after_mark_sent" if done is not None else "bus.after_claim")
        return claim

    async def _settle(
        self, caller: UserCaller, unit: Unit, done: _BatchResult, limits: tuple[int, float, float]
    ) -> Claim | None:
        """Say what became of a batch, and go on in the lane if more waits there."""
        claim = done.claim
        try:
            if done.sent:
                await caller.unit(self._outbox.sent, unit, claim, done.sent)
            if done.failed:
                await caller.unit(self._outbox.failed, unit, claim, done.failed)
            if done.passing is not None:
                failures = 0 if done.sent else claim.failures
                delay_s = BACK_OFF.pause_s(failures + 1)
                await caller.unit(self._outbox.back_off, unit, claim, delay_s, done.passing)
                return None
            if self._is_over:
                await caller.unit(self._outbox.release, unit, claim)
                return None
            renewed: Claim | None = await caller.unit(self._outbox.renew, unit, claim, *limits)
            return renewed
        except Fenced as error:
            logger.warning("the lane %s of %r was taken over meanwhile: %s", claim.lane, self._app, error)
            return None

    # -- on the transport ---------------------------------------------------------------------------------------

    def _send(self, claim: Claim) -> _BatchResult:
        """Send the messages of a claim, outside of any transaction."""
        done = _BatchResult(claim)
        crash.point("bus.before_forward")
        envelopes = [pending.envelope for pending in claim.pending]
        carriers = (envelope.headers for envelope in envelopes)
        try:
            with spans.sending("forward", claim.lane, len(envelopes), carriers=carriers):
                errors = self._transport.send(envelopes)
        except DetentError as failure:
            self._report(claim, failure)
            done.passing = reason_of(failure)
            return done
        for index, pending in enumerate(claim.pending):
            error = errors.get(index)
            if error is None:
                done.sent.append(pending.position)
            elif isinstance(error, ERRORS_FOR_GOOD):
                logger.error(
                    "the message %s to %s cannot be sent, and is set aside: %s", pending.envelope.id, claim.lane, error
                )
                done.failed.append((pending.position, reason_of(error)))
            elif done.passing is None:
                self._report(claim, error)
                done.passing = reason_of(error)
        return done

    def _report(self, claim: Claim, error: DetentError) -> None:
        logger.warning("messages of %r to %s wait, trying again: %s", self._app, claim.lane, error)
