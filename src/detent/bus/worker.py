"""The intake of an app: takes messages from a transport, has each handled in a thread, and keeps their leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from detent.bus.envelope import Incoming
from detent.bus.transport import Transport
from detent.errors import DetentError, Invalid
from detent.runtime.backoff import Backoff
from detent.runtime.ground import drive
from detent.runtime.handling import Handling, Hands
from detent.runtime.lease import EXTEND_SHARE, Lease
from detent.runtime.task import Restart

CONCURRENCY_MAX: Final = 1_000

RECEIVE_WAIT_S: Final = 1.0
"""How long an intake waits for messages before it looks whether it is to stop."""

GATHER_S: Final = 0.002
"""How long an intake whose threads are nearly all busy waits for more of them: taking messages is a transaction of the
transport, whether it takes one or ten."""

BACK_OFF: Final = Backoff(0.5, 10.0)
"""How long an intake waits after the transport has failed: longer each time, so that the log stays readable."""

STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

logger = logging.getLogger("detent.bus")


def checked_concurrency(concurrency: int) -> int:
    """How many messages are handled at once; `Invalid` if it is not such a number."""
    if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise Invalid(f"an app handles 1 to {CONCURRENCY_MAX} messages at once, not {concurrency!r}")
    return concurrency


class Intake(Handling[Incoming]):
    """What takes the messages of an app, and the threads that handle them."""

    kind = "intake"
    restart = Restart(BACK_OFF)

    def __init__(self, name: str, transport: Transport, handle: Callable[[Incoming], object], concurrency: int) -> None:
        thread_name = f"detent-bus-{name}"
        super().__init__(thread_name, Hands(thread_name, checked_concurrency(concurrency), gather_s=GATHER_S))
        self._app = name
        self._transport = transport
        self._handle = handle

    def start(self) -> None:
        """Begin to take messages."""
        self.keeper.start()
        self.taking.start()

    def stop(self, grace_s: float) -> bool:
        """Take no more messages, and wait for those that are being handled; those that take longer are left to their
        leases. Whether all have ended."""
        deadline = time.monotonic() + grace_s
        self.stop_taking()
        self.taking.join(grace_s + STOP_S)  # a transport may be in the middle of an answer
        all_ended = drive(self.finish(max(0.0, deadline - time.monotonic())))
        self.keeper.stop(STOP_S)
        return all_ended

    # -- on the transport ---------------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Incoming]:
        return self._transport.receive(limit, RECEIVE_WAIT_S)

    def handle(self, thing: Incoming) -> object:
        return self._handle(thing)

    def give_back(self, unseen: list[Incoming]) -> None:
        self._transport.give_back(unseen)

    def lease_s(self, thing: Incoming) -> float:
        """As the transport says, for all of them."""
        del thing
        return self._transport.extend_every_s * EXTEND_SHARE

    def extend(self, due: Sequence[Lease[Incoming]]) -> None:
        asked_s = self._clock()
        try:
            self._transport.extend([lease.thing for lease in due])
            for lease in due:
                self.leases.renewed(lease, asked_s=asked_s)
        finally:
            for lease in due:
                if lease.thing.lost:
                    self.leases.lost(lease)
                    text = "%r lost the lease of %s while it is handled"
                    logger.warning(text, self._app, lease.thing.transport_id)

    def failed(self, error: Exception, pause_s: float) -> None:
        trace = None if isinstance(error, DetentError) else error
        text = "%r could not take messages, trying again in %s s: %s"
        logger.warning(text, self._app, pause_s, error, exc_info=trace)
