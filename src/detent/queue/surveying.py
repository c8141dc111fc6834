"""A survey of all queues: what they hold and have counted together, and the ones that stand out.

A store may have ten thousand queues, and describing each reads and builds far more than adding its counts. So the owner
adds the counts of all, picks those that are asked for, and describes these alone: a list of ten thousand queues costs
one page of them. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from heapq import nsmallest
from typing import Final, Literal

import msgspec

from detent.engine import ApplyContext, Operation, Result
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.bucket import READY
from detent.queue.listing import described
from detent.queue.memory import QueueMemory
from detent.queue.operations import Number
from detent.queue.state import QueueState

SURVEY_MAX: Final = 1_000
"""Queues that one survey describes: the owner does it while every caller waits, 17 ms for so many."""

ALWAYS, NEVER = "always", "never"
"""Values of the label that a survey goes by: such a queue comes before all others, or is not picked."""

PATTERNS_MAX: Final = 100
"""As many as a key has grants."""

EVERY: Final = "*"

SurveyOrder = Literal["name", "backlog", "available", "delayed", "in_flight", "failed", "oldest", "routed", "acked"]
"""What queues are picked by: their name, the highest count, or the message that has waited for the longest time."""

Having = Literal["", "available", "delayed", "in_flight", "failed", "paused"]
"""Which queues are wanted: all, those that hold messages of a state, or those that are paused."""

Place = tuple[int, str]
"""Where a queue stands in an order."""


class SurveyQueues(Operation, frozen=True, tag=True, array_like=True):
    """What all queues hold together, or those whose names begin with `prefix`; and the first `limit` of them by
    `order`, the highest count first and equal ones by name. With a `label`, queues that have it with the value
    ``always`` come first, and those that have it with ``never`` are counted and not picked. Changes nothing.

    `patterns` and `contains` say, as `prefix` does, which names are meant at all; None are all patterns. Of the queues
    that are meant those are picked that are `having` something, after a place: the one with which the survey before
    ended."""

    prefix: str = ""
    order: SurveyOrder = "name"
    limit: Number = SURVEY_MAX
    label: str = ""
    patterns: list[str] | None = None
    contains: str = ""
    having: Having = ""
    after: Place | None = None


class QueueTotals(msgspec.Struct, frozen=True, array_like=True):
    """What some queues hold now, and what they have counted since they were created. Deleted ones do not count."""

    queues: int = 0
    paused: int = 0
    behind: int = 0
    available: int = 0
    delayed: int = 0
    blocked: int = 0
    in_flight: int = 0
    failed: int = 0
    done: int = 0
    routed: int = 0
    acked: int = 0
    failures: int = 0
    expired: int = 0
    purged: int = 0
    dead_lettered: int = 0


class QueueSurvey(Result, frozen=True, tag=True, array_like=True):
    """The totals, the queues that were picked, and the stored messages that no queue has taken. `having` says how many
    there are to pick from in all, and `after` where the next survey begins, if there is more."""

    totals: QueueTotals
    queues: list[ops.QueueDescription]
    unmatched: int
    having: int = 0
    after: Place | None = None


def _waits_since(queue: QueueState) -> int:
    """When the queue's oldest available message became visible, as far as its first bucket with one tells; what comes
    after everything if there is none."""
    for number in sorted(queue.buckets) if queue.ready else ():
        bucket = queue.buckets[number]
        row = bucket.states.find(READY)
        if row >= 0:
            return bucket.visible[row]
    return (1 << 63) - 1


_ORDERS: Final[dict[str, Callable[[QueueState], int]]] = {
    "name": lambda _queue: 0,
    "backlog": lambda queue: -(sum(queue.ready.values()) + queue.hidden + queue.blocked + len(queue.flights)),
    "available": lambda queue: -sum(queue.ready.values()),
    "delayed": lambda queue: -queue.hidden,
    "in_flight": lambda queue: -len(queue.flights),
    "failed": lambda queue: -len(queue.failed),
    "oldest": _waits_since,
    "routed": lambda queue: -queue.routed,
    "acked": lambda queue: -queue.acked,
}
_HAVING: Final[dict[str, Callable[[QueueState], bool]]] = {
    "available": lambda queue: bool(queue.ready),
    "delayed": lambda queue: bool(queue.hidden),
    "in_flight": lambda queue: bool(queue.flights),
    "failed": lambda queue: bool(queue.failed),
    "paused": lambda queue: queue.config.paused,
}


def survey(memory: QueueMemory, op: SurveyQueues, context: ApplyContext) -> Result:
    """Add up all queues, pick some, and describe these."""
    context.idle += 1
    if op.limit > SURVEY_MAX:
        raise Invalid(f"a survey describes at most {SURVEY_MAX} queues, not {op.limit}")
    if len(op.patterns or ()) > PATTERNS_MAX or (op.label and op.after is not None):
        raise Invalid(f"a survey has at most {PATTERNS_MAX} patterns, and goes on after a place only without a label")
    queues = list(_meant(memory, op))
    having = [queue for queue in queues if _HAVING[op.having](queue)] if op.having else queues
    by = _ORDERS[op.order]
    left = having if op.after is None else [queue for queue in having if (by(queue), queue.name) > op.after]
    picked = _picked(left, op)
    with memory.reader.view() as view:
        found = [described(memory, queue, view) for queue in picked]
    after = (by(picked[-1]), picked[-1].name) if picked and len(left) > len(picked) else None
    return QueueSurvey(_totals(memory, queues), found, memory.own.ready.get(0, 0), len(having), after)


def _meant(memory: QueueMemory, op: SurveyQueues) -> Iterator[QueueState]:
    """The queues whose names are meant. In a pattern only ``*`` and ``?`` mean something."""
    contains = op.contains.casefold()
    every = op.patterns is None or EVERY in op.patterns
    patterns = [] if every else [pattern.replace("[", "[[]") for pattern in op.patterns or ()]
    for name, queue in memory.queues.items():
        if not name.startswith(op.prefix) or contains not in name.casefold():
            continue
        if every or any(fnmatchcase(name, pattern) for pattern in patterns):
            yield queue


def _picked(queues: list[QueueState], op: SurveyQueues) -> list[QueueState]:
    by = _ORDERS[op.order]
    if not op.label:
        return nsmallest(op.limit, queues, key=lambda queue: (by(queue), queue.name))

    def place(queue: QueueState) -> tuple[bool, int, str]:
        return (op.label, ALWAYS) not in queue.config.labels, by(queue), queue.name

    shown = (queue for queue in queues if (op.label, NEVER) not in queue.config.labels)
    return nsmallest(op.limit, shown, key=place)


def _totals(memory: QueueMemory, queues: Iterable[QueueState]) -> QueueTotals:
    rows = [
        (
            1, queue.config.paused, queue.number in memory.behind, sum(queue.ready.values()), queue.hidden,
            queue.blocked, len(queue.flights), len(queue.failed), queue.done_kept, queue.routed, queue.acked,
            queue.failures, queue.expired, queue.purged, queue.dead_lettered,
        )
        for queue in queues
    ]  # fmt: skip
    return QueueTotals(*map(sum, zip(*rows, strict=True))) if rows else QueueTotals()
