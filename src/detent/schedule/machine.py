"""The schedules' state machine: what is published when, and how far that is.

All schedules are read at the start and stay in memory. What is due, the owner publishes in transactions of its own
(:mod:`detent.schedule.firing`): here a schedule moves on, in the transaction that has the messages, if it still is
where the owner saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from detent.codec import schedule as records
from detent.codec.schedule import NO_TIME, QUEUE, ScheduleDefinition, ScheduleState
from detent.engine import MALFORMED, ApplyContext, Done, Operation, Result
from detent.errors import Conflict, DetentError, Exists, Invalid, LimitExceeded, NotFound
from detent.kv import Batch, View
from detent.ledger.shelf import Shelf
from detent.runtime.backoff import growing
from detent.schedule import operations as ops
from detent.schedule.catching_up import NEVER_MS, due_ms, first_after, is_due, set_back

NEW_STATE = ScheduleState(0, NO_TIME, NO_TIME, NO_TIME, 0, 0, NO_TIME)


RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 60_000
"""When messages that could not be published are tried again: at first, and at last."""


class Trouble(NamedTuple):
    """Why a schedule's messages could not be published, how often in a row, and when that is tried again."""

    problem: str
    failures: int
    retry_ms: int


class KnowsQueues(Protocol):
    """Finds queues, as the group in progress has left them."""

    def queue(self, name: str) -> Any:
        """A queue; `NotFound` if there is none."""
        ...


class ScheduleMachine:
    """All schedules of one store, as their owner sees them."""

    operations: tuple[type[Operation], ...] = (
        ops.PutSchedule,
        ops.PauseSchedule,
        ops.AskSchedule,
        ops.DeleteSchedule,
        ops.DescribeSchedules,
    )
    local: tuple[type[Operation], ...] = (ops.FindDue, ops.MoveSchedule, ops.NoteTrouble)
    prepared: tuple[type[Operation], ...] = (ops.PutSchedule,)
    results: tuple[type[Result], ...] = (ops.SchedulePut, ops.ScheduleAsked, ops.ScheduleDescriptions)

    def __init__(self, queues: KnowsQueues) -> None:
        self._queues = queues
        self._definitions: Shelf[ScheduleDefinition] = Shelf(records.DEFINITION)
        self._states: Shelf[ScheduleState] = Shelf(records.STATE)
        self._bytes = 0
        self._troubles: dict[str, Trouble] = {}
        self._soonest_ms = NEVER_MS
        self.timer: Callable[[int], None] | None = None
        """Told when something is due, as soon as that is durable; for any thread."""
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.PutSchedule: self._put,
            ops.PauseSchedule: self._pause,
            ops.AskSchedule: self._ask,
            ops.DeleteSchedule: self._delete,
            ops.DescribeSchedules: self._describe,
            ops.FindDue: self._find_due,
            ops.MoveSchedule: self._move,
            ops.NoteTrouble: self._note_trouble,
        }

    # -- the machine's interface --------------------------------------------------------------------------------

    def prepare(self, operation: Any) -> None:
        """What this process itself asks for is held to the types that the wire would hold it to."""
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(operation), type=type(operation))
        except (*MALFORMED, TypeError, OverflowError, UnicodeError) as error:
            raise Invalid(f"this is not a schedule: {error}") from error

    def load(self, view: View) -> None:
        """Read all schedules."""
        self._definitions.load(view, ScheduleDefinition.decode)
        self._states.load(view, ScheduleState.decode)
        self._bytes = sum(_size(definition) for _, definition in self._definitions.items("", ""))
        self._troubles = {}
        self._find_soonest()

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """Intervals keep the time that they have left; cron expressions go by the clock again."""
        context = ApplyContext(now_ms)
        for name, definition in self._definitions.items("", ""):
            state = self._states.get(name)
            if state is None:
                continue
            try:
                self._set_state(name, set_back(definition, state, by_ms, now_ms), context)
            except DetentError:  # its zone is not known on this machine: it is in trouble when it is due
                continue
        self._find_soonest()

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write what the group has changed."""
        del now_ms
        self._definitions.flush(batch)
        self._states.flush(batch)

    def committed(self) -> None:
        """What is due next may be other than before."""
        self._find_soonest()
        if self.timer is not None and self._soonest_ms != NEVER_MS:
            self.timer(self._soonest_ms)

    def due(self, now_ms: int) -> Iterable[Operation]:
        """What is due is published in transactions of its own."""
        del now_ms
        return ()

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the first schedule has something to publish."""
        del now_ms
        return None if self._soonest_ms == NEVER_MS else self._soonest_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether a schedule has something to publish by now. For any thread."""
        return self._soonest_ms <= now_ms

    def closing(self) -> Iterable[Operation]:
        """Nothing is left to do: every commit was whole."""
        return ()

    def _find_soonest(self) -> None:
        self._soonest_ms = min((self._due_ms(name, found) for name, found in self._all()), default=NEVER_MS)

    def _all(self) -> Iterable[tuple[str, ScheduleDefinition]]:
        return self._definitions.items("", "")

    def _due_ms(self, name: str, definition: ScheduleDefinition) -> int:
        """When a schedule has something to do; what has failed waits."""
        state = self._states.get(name)
        trouble = self._troubles.get(name)
        at_ms = NEVER_MS if state is None else due_ms(definition, state)
        return at_ms if trouble is None else max(at_ms, trouble.retry_ms)

    # -- changing -----------------------------------------------------------------------------------------------

    def _put(self, op: ops.PutSchedule, context: ApplyContext) -> Result:
        ops.check_put(op)
        known = self._definitions.get(op.name)
        if known is not None and op.only == "create":
            raise Exists(f"there is a schedule {op.name!r} already: change it, or choose another name")
        if known is None and (op.only == "change" or op.edition):
            raise NotFound(f"there is no schedule {op.name!r}")
        if known is not None and op.edition not in {0, known.edition}:
            raise Conflict(f"the schedule {op.name!r} was changed meanwhile: read it again")
        wanted = _definition(op, known, context.now_ms)
        if known is not None and wanted == known._replace(updated_ms=wanted.updated_ms, edition=wanted.edition):
            context.idle += 1
            return ops.SchedulePut(False, False)
        if op.target == QUEUE:
            self._queues.queue(op.place)
        self._make_room(op.name, wanted, known)
        state = _state_for(wanted, known, self._states.get(op.name) or NEW_STATE, context.now_ms)
        self._set_definition(op.name, wanted, context)
        self._set_state(op.name, state, context)
        return ops.SchedulePut(known is None, True)

    def _make_room(self, name: str, wanted: ScheduleDefinition, known: ScheduleDefinition | None) -> None:
        if known is None and len(self._definitions) >= ops.SCHEDULES_MAX:
            raise LimitExceeded(f"there are {ops.SCHEDULES_MAX} schedules already: delete those that are not used")
        growth = _size(wanted) - (0 if known is None else _size(known))
        if growth > 0 and self._bytes + growth > ops.SCHEDULES_BYTES_MAX:
            raise LimitExceeded(
                f"the schedules of a store have at most {ops.SCHEDULES_BYTES_MAX} bytes together, and there is no room "
                f"for {name!r}: put large bodies into files"
            )

    def _pause(self, op: ops.PauseSchedule, context: ApplyContext) -> Result:
        definition, state = self._found(op.name)
        if definition.paused == op.paused:
            context.idle += 1
            return Done()
        changed = definition._replace(paused=op.paused, edition=definition.edition + 1, updated_ms=context.now_ms)
        self._set_definition(op.name, changed, context)
        self._set_state(op.name, _state_for(changed, definition, state, context.now_ms), context)
        return Done()

    def _ask(self, op: ops.AskSchedule, context: ApplyContext) -> Result:
        _, state = self._found(op.name)
        if len(state.asked) >= ops.ASKED_MAX:
            raise LimitExceeded(
                f"{ops.ASKED_MAX} messages of the schedule {op.name!r} were asked for and are not published yet: "
                "`detent schedule show` says why"
            )
        at_ms = max(context.now_ms, state.last_asked_ms + 1)
        after = state._replace(step=state.step + 1, asked=(*state.asked, at_ms), last_asked_ms=at_ms)
        self._set_state(op.name, after, context)
        return ops.ScheduleAsked(ops.id_of(op.name, at_ms, by_hand=True))

    def _delete(self, op: ops.DeleteSchedule, context: ApplyContext) -> Result:
        self._found(op.name)
        self._set_definition(op.name, None, context)
        self._states.set(op.name, None, None, context)
        return Done()

    def _found(self, name: str) -> tuple[ScheduleDefinition, ScheduleState]:
        """A schedule that exists."""
        ops.check_name(name)
        definition, state = self._definitions.get(name), self._states.get(name)
        if definition is None or state is None:
            raise NotFound(f"there is no schedule {name!r}")
        return definition, state

    def _set_definition(self, name: str, definition: ScheduleDefinition | None, context: ApplyContext) -> None:
        known = self._definitions.get(name)
        growth = (0 if definition is None else _size(definition)) - (0 if known is None else _size(known))
        self._definitions.set(name, definition, None if definition is None else definition.encode(), context)
        context.undo.append(lambda: self._grow(-growth))
        self._grow(growth)
        self._forget_trouble(name, context)  # it is tried again at once

    def _grow(self, size: int) -> None:
        self._bytes += size

    def _set_state(self, name: str, state: ScheduleState, context: ApplyContext) -> None:
        self._states.set(name, state, state.encode(), context)

    # -- looking ------------------------------------------------------------------------------------------------

    def _describe(self, op: ops.DescribeSchedules, context: ApplyContext) -> Result:
        context.idle += 1
        if op.name:
            self._found(op.name)
            return ops.ScheduleDescriptions([self._description(op.name)], False)
        ops.check_page(op)
        found: list[ops.ScheduleDescription] = []
        size = 0
        for name, definition in self._definitions.items(op.prefix, op.after):
            if len(found) == op.limit or size > ops.PAGE_BYTES:
                return ops.ScheduleDescriptions(found, True)
            size += _size(definition)
            found.append(self._description(name))
        return ops.ScheduleDescriptions(found, False)

    def _description(self, name: str) -> ops.ScheduleDescription:
        definition, state = self._found(name)
        trouble = self._troubles.get(name)
        return ops.ScheduleDescription(name, definition, state, "" if trouble is None else trouble.problem)

    # -- what is due --------------------------------------------------------------------------------------------

    def _find_due(self, op: ops.FindDue, context: ApplyContext) -> Result:
        context.idle += 1
        found: list[ops.ScheduleDescription] = []
        for name, definition in self._all():
            if len(found) == op.limit:
                break
            state = self._states.get(name)
            if state is None or self._due_ms(name, definition) > context.now_ms:
                continue
            if is_due(definition, state, context.now_ms):
                found.append(self._description(name))
        return ops.DueSchedules(found)

    def _move(self, op: ops.MoveSchedule, context: ApplyContext) -> Result:
        definition, state = self._definitions.get(op.name), self._states.get(op.name)
        if definition is None or state is None or (definition.edition, state.step) != (op.edition, op.step):
            raise Conflict(f"the schedule {op.name!r} is not where it was")
        self._set_state(op.name, op.state, context)
        self._forget_trouble(op.name, context)
        return Done()

    def _forget_trouble(self, name: str, context: ApplyContext) -> None:
        """What a schedule was in trouble for may be gone; it is, unless the rest of the transaction is refused."""
        trouble = self._troubles.pop(name, None)
        if trouble is not None:
            context.undo.append(lambda: self._troubles.__setitem__(name, trouble))

    def _note_trouble(self, op: ops.NoteTrouble, context: ApplyContext) -> Result:
        context.idle += 1
        definition = self._definitions.get(op.name)
        if definition is not None and definition.edition == op.edition:
            known = self._troubles.get(op.name)
            failures = 1 if known is None else known.failures + 1
            retry_ms = context.now_ms + growing(RETRY_MS, RETRY_MS_MAX, failures)
            self._troubles[op.name] = Trouble(op.problem, failures, retry_ms)
            self._find_soonest()
        return Done()


def _size(definition: ScheduleDefinition) -> int:
    """About how many bytes a schedule takes in memory and in an answer."""
    headers = sum(len(name) + len(value) for name, value in definition.headers.items())
    return 1024 + len(definition.body or b"") + len(definition.key or b"") + headers


def _definition(op: ops.PutSchedule, known: ScheduleDefinition | None, now_ms: int) -> ScheduleDefinition:
    """What an operation says, as the next edition of what is known."""
    paused = op.paused if op.paused is not None else known is not None and known.paused
    return ScheduleDefinition(
        created_ms=now_ms if known is None else known.created_ms,
        updated_ms=now_ms,
        edition=1 if known is None else known.edition + 1,
        paused=paused,
        missed=op.missed,
        missed_max=op.missed_max,
        cron=op.cron,
        tz=op.tz,
        every_ms=op.every_ms,
        start_ms=op.start_ms,
        target=op.target,
        place=op.place,
        delay_ms=op.delay_ms,
        retention_s=op.retention_s,
        key=op.key,
        headers=dict(sorted(op.headers.items())),
        body=op.body,
    )


def _state_for(
    wanted: ScheduleDefinition, known: ScheduleDefinition | None, state: ScheduleState, now_ms: int
) -> ScheduleState:
    """How a schedule that was changed goes on. Other times begin anew; one that rested goes on with the first tick
    after now; what else is changed leaves the next tick where it is."""
    after = state._replace(step=state.step + 1)
    if known is None or _times(wanted) != _times(known):
        anew = after._replace(next_ms=NO_TIME, runs=())
        return anew._replace(next_ms=first_after(wanted, anew, now_ms))
    if known.paused and not wanted.paused:
        return after._replace(next_ms=first_after(wanted, after, now_ms))
    return after


def _times(definition: ScheduleDefinition) -> tuple[str, str, int, int]:
    return definition.cron, definition.tz, definition.every_ms, definition.start_ms
