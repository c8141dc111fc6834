"""Messages that come twice take effect once: a tracker knows which message a consumer has handled.

The mark is made in the transaction in which the handlers write, before they run. A second delivery meets it there,
waits for the first one's commit if that is under way, and is a duplicate only if it was committed.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from detent.bus.unit_of_work import Unit
from detent.errors import Invalid, Unavailable

IDEMPOTENCY_CHECK_KEY: Final = "detent-message-is-repeated"
"""The header of a message that was handled before; one that comes for the first time does not have it. The same is
`context.repeated`, as a bool. Senders cannot set it."""

MissingIds = Literal["refuse", "transport"] | Callable[[Mapping[str, str], bytes], str]


class MessageTracker(Protocol):
    """Remembers which messages a consumer has handled. All methods may be ``async def``."""

    @property
    def is_transactional(self) -> bool:
        """Whether marks are a part of the unit's own transaction. If not, they are made after it was committed, and a
        crash in between has the message handled twice."""

    @property
    def place(self) -> str | None:
        """Which database the marks are in; None for the unit's own."""

    @property
    def retention_s(self) -> float | None:
        """How long a mark is kept, in seconds; ``math.inf`` for as long as the tracker lives, None if it does not say.
        It has to be as long as the transport can deliver a message again. A tracker without it does not say."""

    def prepare(self, consumer: str, place: str | None, unit: Unit | None) -> Awaitable[None] | None:
        """Make tables, and note that a consumer reads at a place, such as ``queue billing``. `Invalid` if a consumer of
        that name reads elsewhere: of two apps with one name each would skip what the other has handled. With no place
        that is not asked. Called when the app starts, by several processes at once."""

    def track(self, consumer: str, message_id: str, unit: Unit | None) -> bool | Awaitable[bool]:
        """Mark a message as handled by a consumer: True if it was not. Waits for one that is about to. Only a mark
        that is there answers False; whatever goes wrong is raised."""

    def committed(self, consumer: str, message_id: str) -> Awaitable[None] | None:
        """What was done with a message that `track` answered True for is committed."""

    def rolled_back(self, consumer: str, message_id: str) -> Awaitable[None] | None:
        """It is not, and the message will come again."""

    def forget(self, consumer: str, unit: Unit | None, limit: int) -> int | Awaitable[int]:
        """Remove up to `limit` marks that are older than the tracker's retention; how many there were."""


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    """What to do with messages that come twice.

    With `should_stop_invocation` a repeated message is acknowledged and nothing of it runs: right together with an
    outbox. Without an outbox, say False: handlers are called with `context.repeated`, skip what they write, and send
    their messages again, which keep their ids; a first attempt may have died between its commit and the sending.

    `missing_ids` says what becomes of a message without an id: "refuse" puts it onto the failed list, "transport" takes
    the transport's own name for it, which sees redeliveries but not a producer that sends twice, and a function makes
    one from the headers and the body. `separate` says that you know that the tracker is not in the database of the unit
    of work: then a crash between the two commits has a message handled twice.
    """

    tracker: MessageTracker
    should_stop_invocation: bool = True
    missing_ids: MissingIds = "refuse"
    separate: bool = False

    def __post_init__(self) -> None:
        if self.missing_ids not in ("refuse", "transport") and not callable(self.missing_ids):
            raise Invalid(f"missing_ids is 'refuse', 'transport' or a function, not {self.missing_ids!r}")


MARKS_MAX: Final = 1_000_000
PATIENCE_S: Final = 30.0
"""How long a duplicate waits for the one that came first."""


class InMemoryTracker:
    """A tracker for tests: it forgets everything with the process, and shares no transaction. Otherwise it
    behaves as the one in SQL does: the second delivery waits for the first one, and takes over if that fails."""

    def __init__(self, *, marks_max: int = MARKS_MAX, patience_s: float = PATIENCE_S) -> None:
        self._marks: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._changed = threading.Condition()
        self._marks_max = marks_max
        self._patience_s = patience_s

    is_transactional: Final = False
    place: Final = "the memory of this process"
    retention_s: Final = math.inf

    def prepare(self, consumer: str, place: str | None, unit: Unit | None) -> None:
        """There is nothing to make; that no two apps of a process have one name is checked anyway."""

    def track(self, consumer: str, message_id: str, unit: Unit | None) -> bool:
        """True for the first; for others once that one has committed, False."""
        del unit
        key = (consumer, message_id)
        with self._changed:
            if not self._changed.wait_for(lambda: self._marks.get(key) is not False, self._patience_s):
                raise Unavailable(f"the message {message_id} is being handled by {consumer} all the time")
            if key in self._marks:
                return False
            self._marks[key] = False
            return True

    def committed(self, consumer: str, message_id: str) -> None:
        """The mark stays, until there are too many."""
        with self._changed:
            self._marks[consumer, message_id] = True
            self._marks.move_to_end((consumer, message_id))
            while len(self._marks) > self._marks_max and next(iter(self._marks.values())):
                self._marks.popitem(last=False)
            self._changed.notify_all()

    def rolled_back(self, consumer: str, message_id: str) -> None:
        """The mark goes."""
        with self._changed:
            self._marks.pop((consumer, message_id), None)
            self._changed.notify_all()

    def forget(self, consumer: str, unit: Unit | None, limit: int) -> int:
        """The oldest marks go when there are too many; time has no say."""
        del consumer, unit, limit
        return 0
