"""What the owner of a store remembers of its queues: which of them a message goes to, which consumers wait, and what
the group in progress adds.

Every operation on queues takes this memory: :mod:`detent.queue.machine` puts them together.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from detent.codec import published
from detent.codec.log import SequenceAllocator
from detent.codec.queue import NOT_KEPT, Config, QueueCursor
from detent.codec.statelog import Run
from detent.engine import ApplyContext
from detent.errors import LimitExceeded, NotFound
from detent.kv import Reader, View
from detent.queue import operations as ops
from detent.queue.fair import FairState
from detent.queue.filters import Filter, addressed_queue
from detent.queue.grouped import GroupedState
from detent.queue.holdings import LIVE, Holdings, Undo
from detent.queue.settings import PRIORITY_HEADER, group_of, priority_of
from detent.queue.state import FORGET_DONE, QueueState
from detent.queue.timers import TimerWheel

WAITERS_MAX: Final = 10_000

logger = logging.getLogger("detent.queue")


class Claimable(Protocol):
    """A queue that can say how much there is to claim."""

    @property
    def claimable(self) -> int: ...


def _not_looked_at(_: int) -> None:
    """Without a housekeeper."""


class QueueWatch:
    """Waiters by queue, first come, first woken. A waiter is called once, from the committing thread, and must return
    at once; as many are woken as there are messages to claim."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, deque[Callable[[], None]]] = {}
        self.timer: Callable[[int], None] = _not_looked_at

    def add(self, queue: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once there is something to claim. Returns how to stop waiting.

        Try to claim after this: something may have come just before.
        """
        with self._lock:
            if sum(map(len, self._waiters.values())) >= WAITERS_MAX:
                raise LimitExceeded(f"{WAITERS_MAX} consumers wait already")
            self._waiters.setdefault(queue, deque()).append(wake)

        def remove() -> None:
            with self._lock:
                waiters = self._waiters.get(queue)
                if waiters is not None:
                    if wake in waiters:
                        waiters.remove(wake)
                    if not waiters:
                        del self._waiters[queue]

        return remove

    def announce(self, queues: Mapping[str, Claimable], next_ms: int | None) -> None:
        """Wake those whose queue has something to claim, or is gone; for the others, have the next timer looked at."""
        if not self._waiters:
            return
        if next_ms is not None:
            self.timer(next_ms)
        ready: list[Callable[[], None]] = []
        with self._lock:
            for name, waiters in list(self._waiters.items()):
                state = queues.get(name)
                count = len(waiters) if state is None else min(len(waiters), state.claimable)
                ready += [waiters.popleft() for _ in range(count)]
                if not waiters:
                    del self._waiters[name]
        for wake in ready:
            try:
                wake()
            except Exception:
                logger.exception("a waiting consumer could not be woken")

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._waiters.values()))


Target = tuple[QueueState, int, bytes | None]
"""A queue, and the priority and the group that a message has there."""


class Router:
    """Queues with the default filter are found by the name that a message's `queue` header gives; only the filters of
    the others are asked."""

    def __init__(self) -> None:
        self._addressed: dict[str, list[QueueState]] = {}
        self._filtered: list[QueueState] = []
        self._names: dict[int, str | None] = {}  # by number, under which name a queue is addressed
        self.group_headers: dict[int, str] = {}  # by number, of the queues that have groups
        self._priority_headers: dict[int, str] = {}  # by number
        self.priority_headers = Counter({PRIORITY_HEADER: 1})  # in how many queues; the usual one always counts

    def add(self, state: QueueState) -> None:
        """A queue takes part in publishes from now on, with the filter that it has now."""
        self.remove(state)
        if state.config.group_header:
            self.group_headers[state.number] = state.config.group_header
        self._priority_headers[state.number] = state.config.priority_header
        self.priority_headers[state.config.priority_header] += 1
        name = self._names[state.number] = addressed_queue(state.config.filter)
        if name is None:
            self._filtered.append(state)
        else:
            self._addressed.setdefault(name, []).append(state)

    def remove(self, state: QueueState) -> None:
        """A queue takes part no longer."""
        if state.number not in self._names:
            return
        name = self._names.pop(state.number)
        self.group_headers.pop(state.number, None)
        header = self._priority_headers.pop(state.number)
        self.priority_headers[header] -= 1
        if not self.priority_headers[header]:
            del self.priority_headers[header]
        if name is None:
            self._filtered.remove(state)
            return
        self._addressed[name].remove(state)
        if not self._addressed[name]:
            del self._addressed[name]

    def targets(self, headers: dict[str, str]) -> Sequence[Target]:
        """Where a message with these headers goes."""
        name = headers.get("queue")
        found = [] if name is None else self._addressed.get(name, [])
        if self._filtered:
            found = [*found, *(state for state in self._filtered if filter_of(state).matches(headers))]
        return [(state, priority_of(state.config, headers), group_of(state.config, headers)) for state in found]


def filter_of(state: QueueState) -> Filter:
    """A queue's filter, compiled when it is first asked."""
    if state.filter is None or state.filter.text != state.config.filter:
        state.filter = Filter(state.config.filter)
    return state.filter


STORES_OWN: Final = 0
"""The number of the queue that holds what the store itself keeps; no consumer claims from it."""

UNMATCHED, UNREAD = 0, 1
"""The priorities there: messages that matched no queue, and messages that are done wherever they were and that a queue
has yet to read of."""

FIRST_QUEUE: Final = 1

LEASES_PER_GROUP: Final = 1_000
"""Messages whose leases end in one group. The claim that brings a group to this is its last one, so there can be more
by what one claim gave out. Each message that becomes a dead letter costs up to 50 microseconds, and every caller of the
store waits for that."""

DEDUP: Final = ("dedup",)
"""The timer after which dedup keys are forgotten."""


class Work:
    """What is to be done, and what the timers for it are set to."""

    def __init__(self) -> None:
        self.done_due: set[int] = set()
        self.dedup_due = False
        self._done_ms: dict[int, int] = {}
        self._dedup_ms = published.FOREVER

    def arm_done(self, wheel: TimerWheel, state: QueueState, from_ms: int) -> None:
        """Look at a queue's done messages when the first of them is to be forgotten."""
        retention_s = state.config.done_retention_s
        if retention_s in {0, NOT_KEPT}:
            return
        at_ms = from_ms + retention_s * 1000 + 1
        if at_ms < self._done_ms.get(state.number, published.FOREVER):
            self._done_ms[state.number] = at_ms
            wheel.add(at_ms, (FORGET_DONE, state.number))

    def arm_dedup(self, wheel: TimerWheel, expires_ms: int) -> None:
        """Look at the dedup keys when the first of them has been held for its time."""
        at_ms = expires_ms + 1
        if at_ms < self._dedup_ms:
            self._dedup_ms = at_ms
            wheel.add(at_ms, DEDUP)

    def fired(self, name: Any) -> None:
        """A timer of this went off."""
        if name == DEDUP:
            self._dedup_ms = published.FOREVER
            self.dedup_due = True
        else:
            self._done_ms.pop(name[1], None)
            self.done_due.add(name[1])


class QueueMemory:
    """What the owner remembers of all queues of one store."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.watch = QueueWatch()
        self.forget()

    def forget(self) -> None:
        """An empty memory."""
        self.wheel = TimerWheel()
        self.holdings = Holdings()
        self.holdings.keep = self._keep_unread
        self.router = Router()
        self.queues: dict[str, QueueState] = {}
        self.by_number: dict[int, QueueState] = {}
        self.behind: dict[int, QueueState] = {}  # queues that have part of the log before them
        self.deleted: dict[int, QueueState] = {}  # deleted queues that still have records
        self.own = self.new_state("", Config("true", 0, 0, STORES_OWN, 0), LIVE)
        self.by_number[STORES_OWN] = self.own
        self.allocator = SequenceAllocator()
        self.next_queue = FIRST_QUEUE
        self.next_delivery = 1
        self.log_end = 0
        self.published_ms: int | None = None  # when something was published last, as far as this owner knows
        self.dedup_window_ms = ops.DEDUP_WINDOW_MS
        # What the group in progress adds.
        self.writes: dict[bytes, bytes | None] = {}
        self.steps: list[bytes] = []
        self.published: list[int] = []  # the first messages of the records that the group publishes
        # The state log since the last checkpoint.
        self.first_record = self.next_record = 0
        self.log_bytes = 0
        self.checkpoint_ms = 0
        self.checkpoint_wanted = False
        self.now_ms = 0
        self.context: ApplyContext | None = None  # the transaction that has looked at the clock
        self.fired = False  # whether timers went off of which no waiter was told
        self.allow_leases()
        self.look_ms: int | None = 0  # when there is housekeeping to do; any thread may read this
        self.housekeeper = Work()

    def new_state(self, name: str, config: Config, next_message: int) -> QueueState:
        """A queue with nothing in it."""
        cursor = QueueCursor(next_message, 0, config.generation, 0, 0, 0, 0, 0, 0, 0)
        if config.group_header:
            kind = FairState if config.group_fair else GroupedState
            return kind(name, config, cursor, self.wheel, self.holdings, lambda: self.now_ms)
        return QueueState(name, config, cursor, self.wheel, self.holdings)

    def queue(self, name: str) -> QueueState:
        """A queue that exists."""
        state = self.queues.get(name)
        if state is None:
            ops.check_name(name)
            raise NotFound(f"there is no queue {name!r}; create it first")
        return state

    def allow_leases(self) -> None:
        """A group begins, in which some leases may end."""
        self.may_end = LEASES_PER_GROUP

    def committed(self) -> None:
        """Wake those who wait for messages that can now be claimed, and the housekeeper, if there is work for it."""
        if self.look_ms is not None and self.look_ms <= self.now_ms:
            self.watch.timer(self.look_ms)
        self.fired = False
        self.allow_leases()
        if self.watch:
            self.watch.announce(self.queues, self.look_ms)

    def users_queue(self, number: int) -> QueueState | None:
        """A queue by its number, unless it is deleted, or the store's own."""
        state = self.by_number.get(number)
        return None if state is None or state.deleted or state is self.own else state

    def log_step(self, step: bytes, undo: Undo | None) -> None:
        """Note a step for the state log."""
        self.steps.append(step)
        if undo is not None:
            undo.append(partial(_drop_last, self.steps))

    def write(self, key: bytes, value: bytes | None, undo: Undo | None) -> None:
        """Put or delete a record with the group."""
        if undo is not None:
            undo.append(partial(self._unwrite, key, self.writes.get(key, _MISSING)))
        self.writes[key] = value

    def _unwrite(self, key: bytes, old: Any) -> None:
        if old is _MISSING:
            del self.writes[key]
        else:
            self.writes[key] = old

    def stored(self, key: bytes, view: View) -> bytes | None:
        """A record as the group in progress has left it."""
        return self.writes[key] if key in self.writes else view.get(key)

    def _keep_unread(self, run: Run, undo: Undo | None) -> None:
        """A message is done wherever it was, and some queue has yet to read of it."""
        self.own.route(run, UNREAD, self.now_ms, undo)

    def note_behind(self) -> None:
        """The queues that are behind have changed, or have read on: let go of what they have all read of."""
        unread = min((state.next_message for state in self.behind.values()), default=LIVE)
        self.holdings.unread_from = unread
        if not self.own.ready.get(UNREAD) and not self.own.hidden:
            return
        places = self.own.places_of_priority(UNREAD, unread)
        if places:
            self.own.remove(places, "purged")

    def passed(self) -> int:
        """The message up to which every queue has read the log."""
        return min(self.holdings.unread_from, self.log_end)


_MISSING: Final = object()


def _drop_last(items: list[Any]) -> None:
    items.pop()
