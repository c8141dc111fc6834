"""A survey of all queues: what they hold and have counted together, and the ones that stand out.

A store may have ten thousand queues, and describing each reads and builds far more than adding its counts. So the owner
adds the counts of all, picks those that are asked for, and describes these alone. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Final, Literal

import msgspec

from detent.engine import ApplyContext, Operation, Result
from detent.errors import Invalid
from detent.queue import operations as ops
from detent.queue.listing import described
from detent.queue.memory import QueueMemory
from detent.queue.operations import Number
from detent.queue.state import QueueState

SURVEY_MAX: Final = 1_000
"""Queues that one survey describes: the owner does it while every caller waits, 17 ms for so many."""

ALWAYS, NEVER = "always", "never"
"""Values of the label that a survey goes by: such a queue comes before all others, or is not picked."""

SurveyOrder = Literal["name", "backlog", "failed", "in_flight", "routed"]


class SurveyQueues(Operation, frozen=True, tag=True, array_like=True):
    """What all queues hold together, or those whose names begin with `prefix`; and the first `limit` of them by
    `order`, the highest count first and equal ones by name. With a `label`, queues that have it with the value
    ``always`` come first, and those that have it with ``never`` are counted and not picked. Changes nothing."""

    prefix: str = ""
    order: SurveyOrder = "name"
    limit: Number = SURVEY_MAX
    label: str = ""


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


class QueueSurvey(Result, frozen=True, tag=True, array_like=True):
    """The totals, the queues that were picked, and the stored messages that no queue has taken."""

    totals: QueueTotals
    queues: list[ops.QueueDescription]
    unmatched: int


_ORDERS: Final[dict[str, Callable[[QueueState], int]]] = {
    "name": lambda _queue: 0,
    "backlog": lambda queue: -(sum(queue.ready.values()) + queue.hidden + queue.blocked + len(queue.flights)),
    "failed": lambda queue: -len(queue.failed),
    "in_flight": lambda queue: -len(queue.flights),
    "routed": lambda queue: -queue.routed,
}


def survey(memory: QueueMemory, op: SurveyQueues, context: ApplyContext) -> Result:
    """Add up all queues, pick some, and describe these."""
    context.idle += 1
    if op.limit > SURVEY_MAX:
        raise Invalid(f"a survey describes at most {SURVEY_MAX} queues, not {op.limit}")
    queues = [queue for name, queue in memory.queues.items() if name.startswith(op.prefix)]
    with memory.reader.view() as view:
        picked = [described(memory, queue, view) for queue in _picked(queues, op)]
    return QueueSurvey(_totals(memory, queues), picked, memory.own.ready.get(0, 0))


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
            queue.failures, queue.expired, queue.purged,
        )
        for queue in queues
    ]  # fmt: skip
    return QueueTotals(*map(sum, zip(*rows, strict=True))) if rows else QueueTotals()
