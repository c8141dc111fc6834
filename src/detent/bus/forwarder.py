"""Sends what waits in an outbox. Many may do so at once; each has the lanes that it has claimed.

A batch is: claim a lane with its first messages and commit that, send them without holding any lock, then say in one
transaction what became of them and claim the next ones. A crash between sending and saying so has them sent again, with
their ids, so that receivers see them once.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from dataclasses import dataclass, field
from typing import Final

from detent import crash
from detent.bus.calling import Caller, Calling
from detent.bus.outbox import Claim, OutboxStorage
from detent.bus.transport import Transport
from detent.bus.unit_of_work import Begun, Unit, UnitOfWork
from detent.errors import DetentError, Fenced, Invalid, LimitExceeded
from detent.queue.message import reason_of

BATCH: Final = 200
"""Messages of one claim. They are sent in one go, and their lease has to last for that."""

POLL_S: Final = 1.0
"""How often an outbox is looked at that nobody has said anything about: other processes save into it, too."""

BACK_OFF_S: Final = 0.2
BACK_OFF_S_MAX: Final = 60.0
"""How long a lane waits whose messages cannot be sent: twice as long each time."""

ERRORS_FOR_GOOD: Final = (Invalid, LimitExceeded)
"""Errors of a message that will not pass: it is set aside, and the next ones go."""

logger = logging.getLogger("detent.bus.outbox")


@dataclass(slots=True)
class _Result:
    """What became of the messages of a claim."""

    claim: Claim
    sent: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    passing: str | None = None
    """Why the next ones could not be sent, if they could not."""


class Forwarder:
    """Forwards the messages of an outbox, in a thread."""

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
        self._name = name
        self._outbox = outbox
        self._unit_of_work = unit_of_work
        self._transport = transport
        self._calling = calling
        self._lease_s = lease_s
        self._poll_s = POLL_S if poll_s is None else poll_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"detent-outbox-{name}", daemon=True)
        self.forwarded = 0

    def start(self) -> None:
        """Begin to forward, with what an earlier process left."""
        self._thread.start()

    def wake(self) -> None:
        """Something was committed."""
        self._wake.set()

    def stop(self) -> None:
        """Send what is there once more, and end."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while True:
            is_last = self._stopping.is_set()
            self._wake.clear()
            try:
                self.forward_all()
                failures = 0
            except Exception as error:
                failures += 1
                known = isinstance(error, DetentError)
                logger.warning(
                    "the outbox of %r waits: %s", self._name, reason_of(error), exc_info=None if known else error
                )
                if not is_last:
                    self._stopping.wait(min(BACK_OFF_S * 2 ** min(failures, 16), BACK_OFF_S_MAX))
            if is_last:
                return
            # Not all at the same moment: several processes look at the same outbox.
            self._wake.wait(self._poll_s * random.uniform(0.8, 1.2))

    def forward_all(self) -> int:
        """Send everything that waits and is nobody else's; how many messages that were."""
        count, done = 0, None
        while True:
            claim = self._calling.run(self._next, done)
            if claim is None:
                return count
            done = self._send(claim)
            count += len(done.sent)
            self.forwarded += len(done.sent)
            crash.point("bus.after_forward")

    # -- in the database ----------------------------------------------------------------------------------------

    async def _next(self, caller: Caller, done: _Result | None) -> Claim | None:
        """Say what became of a batch, and claim the next one, in one transaction. A lane that somebody has taken over
        is theirs."""
        ahead_s = math.inf if self._transport.delay_max_s is None else self._transport.delay_max_s
        limits = (BATCH, self._lease_s, ahead_s)
        claim: Claim | None = None
        async with Begun(caller, self._unit_of_work) as unit:
            if done is not None:
                crash.point("bus.before_mark_sent")
                claim = await self._settle(caller, unit, done, limits)
            if claim is None:
                claim = await caller.unit(self._outbox.claim, unit, *limits)
        crash.point("bus.after_mark_sent" if done is not None else "bus.after_claim")
        return claim

    async def _settle(
        self, caller: Caller, unit: Unit, done: _Result, limits: tuple[int, float, float]
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
                delay_s = min(BACK_OFF_S * 2 ** min(failures, 30), BACK_OFF_S_MAX)
                await caller.unit(self._outbox.back_off, unit, claim, delay_s, done.passing)
                return None
            if self._stopping.is_set() and not done.sent:
                await caller.unit(self._outbox.release, unit, claim)
                return None
            renewed: Claim | None = await caller.unit(self._outbox.renew, unit, claim, *limits)
            return renewed
        except Fenced as error:
            logger.warning("the lane %s of %r was taken over meanwhile: %s", claim.lane, self._name, error)
            return None

    # -- on the transport ---------------------------------------------------------------------------------------

    def _send(self, claim: Claim) -> _Result:
        """Send the messages of a claim, outside of any transaction."""
        done = _Result(claim)
        crash.point("bus.before_forward")
        try:
            errors = self._transport.send([pending.envelope for pending in claim.pending])
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
        logger.warning("messages of %r to %s wait, trying again: %s", self._name, claim.lane, error)
