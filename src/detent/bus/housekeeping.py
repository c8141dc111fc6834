"""Removes what is not needed any more: marks beyond the tracker's retention, messages that were sent long ago."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, Final

from detent.bus.calling import Calling
from detent.bus.idempotency import MessageTracker
from detent.bus.outbox import OutboxStorage
from detent.bus.unit_of_work import UnitOfWork, in_unit
from detent.queue.message import reason_of
from detent.runtime.backoff import Backoff
from detent.runtime.task import Next, Restart, Task

SWEEP_S: Final = 60.0
STEP: Final = 1_000
"""Rows of one transaction: it is over before a handler has to wait for its locks."""

logger = logging.getLogger("detent.bus")


class Sweep(Task):
    """Removes what an app does not need any more, in small steps, in a thread, once a minute."""

    kind = "sweep"
    calls_users = True  # units of work may be the user's own
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

    def step(self) -> Next:
        """Sweep, and come again in a minute, not with all processes at once. The first time comes soon, since a process
        that is often started anew would never come to it."""
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
                removed: int = self._calling.run(in_unit, self._unit_of_work, forget)
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
