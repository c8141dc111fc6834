"""Many queues at a glance: some of them, sorted by what they hold, and what all of them hold together.

The owner sorts and cuts by the counts in its memory, and describes only the queues that are asked for, so that a list
of ten thousand queues costs a page of them. Nothing here changes anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from detent.engine import ApplyContext, Operation, Result
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.bucket import READY
from detent.queue.listing import describe_states
from detent.queue.memory import QueueMemory
from detent.queue.operations import Number
from detent.queue.state import QueueState

SURVEYED_MAX: Final = 1_000
"""Queues on one page. Others wait while it is made: some milliseconds."""

PATTERNS_MAX: Final = 100
"""As many as a key has grants."""

EVERY: Final = "*"

Sort = Literal["name", "available", "delayed", "in_flight", "failed", "oldest", "routed", "acked"]
"""What queues can be sorted by: their name, the largest count first, or the one first whose messages wait longest."""

Having = Literal["", "available", "delayed", "in_flight", "failed", "paused"]
"""Which queues are wanted: all, those that hold messages of a state, or those that are paused."""


class SurveyQueues(Operation, frozen=True, tag=True, array_like=True):
    """Queues whose names begin with a text, contain another one and match one of some patterns; in an order, after a
    place in it. The place is the one that the page before ended with. Changes nothing."""

    patterns: list[str] = msgspec.field(default_factory=lambda: [EVERY])
    prefix: str = ""
    contains: str = ""
    having: Having = ""
    sort: Sort = "name"
    after: tuple[int, str] | None = None
    limit: Number = 100


class QueueTotals(msgspec.Struct, frozen=True, array_like=True):
    """What the queues that match hold and have counted, together."""

    queues: int = 0
    available: int = 0
    delayed: int = 0
    blocked: int = 0
    in_flight: int = 0
    failed: int = 0
    routed: int = 0
    acked: int = 0
    failures: int = 0
    expired: int = 0
    purged: int = 0
    dead_lettered: int = 0
    paused: int = 0


class QueuesSurveyed(Result, frozen=True, tag=True, array_like=True):
    """A page of queues in the order that was asked for, the totals of all queues that match, and how many of them are
    `having` what was asked for. `after` is the place to go on from, if there is more. `unmatched` are stored messages
    in no queue."""

    queues: list[ops.QueueDescription]
    totals: QueueTotals
    having: int
    after: tuple[int, str] | None
    unmatched: int
    now_ms: int


def survey(memory: QueueMemory, op: SurveyQueues, context: ApplyContext) -> Result:
    """Sort and cut by what is in memory, then describe the page."""
    context.idle += 1
    if op.limit > SURVEYED_MAX or len(op.patterns) > PATTERNS_MAX:
        raise Invalid(f"a page has up to {SURVEYED_MAX} queues, and is asked for with up to {PATTERNS_MAX} patterns")
    states = list(_matching(memory, op))
    wanted = [state for state in states if not op.having or _HAVING[op.having](state)]
    rank = _RANKS[op.sort]
    places = [(rank(state), state.name) for state in wanted]
    left = places if op.after is None else [place for place in places if place > op.after]
    page = heapq.nsmallest(op.limit, left)
    found = describe_states(memory, [memory.queues[name] for _, name in page])
    return QueuesSurveyed(
        found,
        _totals(states),
        len(wanted),
        page[-1] if page and len(left) > len(page) else None,
        memory.own.ready.get(0, 0),
        memory.now_ms,
    )


def _matching(memory: QueueMemory, op: SurveyQueues) -> Iterator[QueueState]:
    """The queues that may be seen and are looked for. In a pattern only ``*`` and ``?`` mean something."""
    contains = op.contains.casefold()
    patterns = [] if EVERY in op.patterns else [pattern.replace("[", "[[]") for pattern in op.patterns]
    everything = EVERY in op.patterns
    for name, state in memory.queues.items():
        if not name.startswith(op.prefix) or contains not in name.casefold():
            continue
        if everything or any(fnmatchcase(name, pattern) for pattern in patterns):
            yield state


def _alike(state: QueueState) -> int:
    del state
    return 0


def _available(state: QueueState) -> int:
    return sum(state.ready.values())


def _waits_since(state: QueueState) -> int:
    """When the queue's oldest available message became visible, as far as its first bucket with one tells; what comes
    after everything if there is none."""
    for number in sorted(state.buckets) if state.ready else ():
        bucket = state.buckets[number]
        row = bucket.states.find(READY)
        if row >= 0:
            return bucket.visible[row]
    return (1 << 63) - 1


_HAVING: Final[dict[str, Callable[[QueueState], bool]]] = {
    "available": lambda state: bool(state.ready),
    "delayed": lambda state: bool(state.hidden),
    "in_flight": lambda state: bool(state.flights),
    "failed": lambda state: bool(state.failed),
    "paused": lambda state: state.config.paused,
}

_RANKS: Final[dict[str, Callable[[QueueState], int]]] = {
    "name": _alike,
    "available": lambda state: -_available(state),
    "delayed": lambda state: -state.hidden,
    "in_flight": lambda state: -len(state.flights),
    "failed": lambda state: -len(state.failed),
    "oldest": _waits_since,
    "routed": lambda state: -state.routed,
    "acked": lambda state: -state.acked,
}
"""What is sorted by, smallest first; names decide between equals."""


def _totals(states: list[QueueState]) -> QueueTotals:
    return QueueTotals(
        queues=len(states),
        available=sum(map(_available, states)),
        delayed=sum(state.hidden for state in states),
        blocked=sum(state.blocked for state in states),
        in_flight=sum(len(state.flights) for state in states),
        failed=sum(len(state.failed) for state in states),
        routed=sum(state.routed for state in states),
        acked=sum(state.acked for state in states),
        failures=sum(state.failures for state in states),
        expired=sum(state.expired for state in states),
        purged=sum(state.purged for state in states),
        dead_lettered=sum(state.dead_lettered for state in states),
        paused=sum(state.config.paused for state in states),
    )
