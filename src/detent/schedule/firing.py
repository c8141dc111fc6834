"""Publishes what schedules have due: the owner's part that acts.

The messages of a tick and the schedule's next time are one transaction. So a tick is published once, whatever dies
when: before the commit it is due still, for this owner or the next one; after it the schedule has moved on. An owner
that was replaced is refused at its commit, like any other writer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from detent import crash
from detent.codec.schedule import QUEUE, ScheduleDefinition
from detent.engine import Operation
from detent.errors import Conflict, DetentError, Fenced, Unavailable
from detent.journal.operations import Append
from detent.queue.operations import Publish
from detent.schedule import operations as ops
from detent.schedule.catching_up import STEP_BYTES, Due, plan

SCHEDULES_AT_ONCE: Final = 200
"""Schedules that are looked at in one go; housekeeping comes in between, and callers with it."""

PROBLEM_CHARS_MAX: Final = 500
"""What is kept of the reason why messages could not be published."""

logger = logging.getLogger("detent.schedule")


class OwnEngine(Protocol):
    """What applies the transactions of the owner's process."""

    def now_ms(self) -> int: ...

    def act(self, operations: list[Operation]) -> list[Any]: ...


class _Ready(NamedTuple):
    """A schedule that is due, and the operations of its transaction."""

    found: ops.ScheduleDescription
    operations: list[Operation]
    weight: int


class Firing:
    """Publishes what is due, in one thread of the owner."""

    def __init__(self, engine: OwnEngine) -> None:
        self._engine = engine

    def run(self) -> None:
        """Publish what is due now, as far as it is done in one go. What is refused is noted, and tried again later;
        what concerns the whole store is raised."""
        (due,) = self._engine.act([ops.FindDue(SCHEDULES_AT_ONCE)])
        now_ms = self._engine.now_ms()
        together: list[_Ready] = []
        weight = 0
        for found in due.schedules:
            ready = self._planned(found, now_ms)
            if ready is None:
                continue
            if found.problem:  # it would have the others refused with it
                self._publish([ready])
                continue
            if together and weight + ready.weight > STEP_BYTES:
                self._publish(together)
                together, weight = [], 0
            together.append(ready)
            weight += ready.weight
        if together:
            self._publish(together)

    def _planned(self, found: ops.ScheduleDescription, now_ms: int) -> _Ready | None:
        try:
            due = plan(found.definition, found.state, now_ms)
        except Exception as error:
            if not isinstance(error, DetentError):  # of one schedule, which is not to hold up the others
                logger.exception("the ticks of the schedule %r cannot be worked out", found.name)
            self._note(found, error)
            return None
        move = ops.MoveSchedule(found.name, found.definition.edition, found.state.step, due.state)
        operations: list[Operation] = [move, *_messages(found.name, found.definition, due)]
        return _Ready(found, operations, sum(operation.weight() for operation in operations))

    def _publish(self, ready: Sequence[_Ready]) -> None:
        """One transaction; if it is refused, halves of it, so that one schedule does not hold up the others."""
        crash.point("schedule.before_commit")
        try:
            self._engine.act([operation for one in ready for operation in one.operations])
        except (Fenced, Unavailable):  # it is not about these schedules: housekeeping ends, or tries again
            raise
        except DetentError as error:
            if len(ready) > 1:
                middle = len(ready) // 2
                self._publish(ready[:middle])
                self._publish(ready[middle:])
            elif not isinstance(error, Conflict):  # changed meanwhile: it is looked at again
                self._note(ready[0].found, error)
            return
        crash.point("schedule.after_commit")

    def _note(self, found: ops.ScheduleDescription, error: Exception) -> None:
        if not found.problem:
            logger.warning("the schedule %r cannot publish, and tries again: %s", found.name, error)
        problem = f"{type(error).__name__}: {error}"[:PROBLEM_CHARS_MAX]
        self._engine.act([ops.NoteTrouble(found.name, found.definition.edition, problem)])


def _messages(name: str, definition: ScheduleDefinition, due: Due) -> list[Operation]:
    """What publishes the messages that are due; none if ticks are only passed over."""
    times = [*((time_ms, True) for time_ms in due.asked), *((time_ms, False) for time_ms in due.ticks)]
    if not times:
        return []
    ids = [ops.id_of(name, time_ms, by_hand=by_hand) for time_ms, by_hand in times]
    bodies = [_body(name, definition, time_ms) for time_ms, _ in times]
    headers: list[Any] = [
        {**definition.headers, ops.SCHEDULE_HEADER: name, ops.TICK_HEADER: ops.tick_text(time_ms), ops.ID_HEADER: id}
        for (time_ms, _), id in zip(times, ids, strict=True)
    ]
    if definition.target == QUEUE:
        addressed = [{**one, "queue": definition.place} for one in headers]
        delay_ms, kept_s = definition.delay_ms, definition.retention_s
        return [Publish(bodies, addressed, False, None, None, delay_ms, kept_s, list(ids), definition.place)]
    keys: list[Any] | None = None if definition.key is None else [definition.key] * len(times)
    return [Append(definition.place, bodies, keys, headers)]


def _body(name: str, definition: ScheduleDefinition, time_ms: int) -> bytes:
    """The body that the schedule has, or which tick it is, in JSON."""
    if definition.body is not None:
        return definition.body
    return msgspec.json.encode({"schedule": name, "tick": ops.tick_text(time_ms)})
