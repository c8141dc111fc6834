"""What is no longer needed goes: marks beyond the tracker's retention, messages that were sent long ago."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, Final

from detent.bus.calling import Caller, Calling
from detent.bus.idempotency import MessageTracker
from detent.bus.outbox import OutboxStorage
from detent.bus.unit_of_work import Begun, UnitOfWork
from detent.queue.message import reason_of
from detent.runtime.backoff import Backoff
from detent.runtime.supervisor import Supervised
from detent.runtime.task import Next, Restart, Task

SWEEP_S: Final = 60.0
STOP_S: Final = 5.0
"""How long a stop waits for the step that is under way."""

STEP: Final = 1_000
"""Rows of one transaction: it is over before a handler has to wait for its locks."""

logger = logging.getLogger("detent.bus")


class Sweep(Task):
    """Removes what an app does not need any more, in small steps, in a thread, once a minute."""

    kind = "sweep"
    restart = Restart(Backoff(SWEEP_S, SWEEP_S))

    def __init__(
        self,
        name: str,
        tracker: MessageTracker | None,
        outbox: OutboxStorage | None,
        unit_of_work: UnitOfWork | None,
        calling: Calling,
    ) -> None:
        super().__init__(f"detent-sweep-{name}")
        self._app = name
        self._tracker = tracker
        self._outbox = outbox
        self._unit_of_work = unit_of_work
        self._calling = calling
        self._is_told = self._has_waited = False
        self._supervised = Supervised(self)

    def start(self) -> None:
        """Begin; the first time comes soon, since a process that is often started anew would never come to it."""
        self._supervised.start()

    def stop(self) -> None:
        """End, after the step that is under way."""
        self._supervised.stop(STOP_S)

    def step(self) -> Next:
        """Sweep, and come again in a minute, not with all processes at the same moment."""
        if not self._has_waited:
            self._has_waited = True
            return SWEEP_S * random.uniform(0.02, 0.1)
        self.sweep()
        return SWEEP_S * random.uniform(0.8, 1.2)

    def interrupt(self) -> None:
        """End after the transaction under way."""
        self._is_told = True

    def failed(self, error: Exception, pause_s: float) -> None:
        """It can wait until the next time."""
        del pause_s
        logger.warning("%r could not remove what is old: %s", self._app, reason_of(error))

    def sweep(self) -> int:
        """Remove all that is old; how much that was."""
        count = 0
        for forget in self._forgetting():
            while not self._is_told:
                removed = self._calling.run(self._step, forget)
                count += removed
                if removed < STEP:
                    break
        return count

    def _forgetting(self) -> list[Callable[[Any], Any]]:
        tracker, outbox = self._tracker, self._outbox
        found: list[Callable[[Any], Any]] = []
        if tracker is not None:
            found.append(lambda unit: tracker.forget(self._app, unit, STEP))
        if outbox is not None:
            found.append(lambda unit: outbox.forget(unit, STEP))
        return found

    async def _step(self, caller: Caller, forget: Callable[[Any], Any]) -> int:
        removed: int
        if self._unit_of_work is None:
            removed = await caller.unit(forget, None)
            return removed
        async with Begun(caller, self._unit_of_work) as unit:
            removed = await caller.unit(forget, unit)
        return removed
