"""What is no longer needed goes: marks beyond the tracker's retention, messages that were sent long ago."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any, Final

from detent.bus.calling import Caller, Calling
from detent.bus.idempotency import MessageTracker
from detent.bus.outbox import OutboxStorage
from detent.bus.unit_of_work import Begun, UnitOfWork
from detent.queue.message import reason_of

SWEEP_S: Final = 60.0
STOP_S: Final = 5.0
"""How long a stop waits for the step that is under way."""

STEP: Final = 1_000
"""Rows of one transaction: it is over before anybody has to wait for its locks."""

logger = logging.getLogger("detent.bus")


class Housekeeping:
    """Removes in small steps, in a thread, once a minute."""

    def __init__(
        self,
        name: str,
        tracker: MessageTracker | None,
        outbox: OutboxStorage | None,
        unit_of_work: UnitOfWork | None,
        calling: Calling,
        *,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._outbox = outbox
        self._unit_of_work = unit_of_work
        self._calling = calling
        self._sweep_s = sweep_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"detent-sweep-{name}", daemon=True)

    def start(self) -> None:
        """Begin; the first time comes soon, since a process that is often started anew would never come to it."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the step that is under way."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        wait_s = self._sweep_s * random.uniform(0.02, 0.1)
        while not self._stopping.wait(wait_s):
            try:
                self.sweep()
            except Exception as error:  # noqa: BLE001 - it can wait until the next time
                logger.warning("%r could not remove what is old: %s", self._name, reason_of(error))
            wait_s = self._sweep_s * random.uniform(0.8, 1.2)

    def sweep(self) -> int:
        """Remove all that is old; how much that was."""
        count = 0
        for forget in self._forgetting():
            while not self._stopping.is_set():
                removed = self._calling.run(self._step, forget)
                count += removed
                if removed < STEP:
                    break
        return count

    def _forgetting(self) -> list[Callable[[Any], Any]]:
        tracker, outbox = self._tracker, self._outbox
        found: list[Callable[[Any], Any]] = []
        if tracker is not None:
            found.append(lambda unit: tracker.forget(self._name, unit, STEP))
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
