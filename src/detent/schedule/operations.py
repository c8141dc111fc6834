"""The operations on schedules that a transaction can hold, and what they answer."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from detent import names
from detent.codec.schedule import ALL, LAST, MISSED, QUEUE, TARGETS, ScheduleDefinition, ScheduleState
from detent.durations import at_1970_ms
from detent.engine import Operation, Result
from detent.engine.operation import OPERATION_WEIGHT
from detent.errors import Invalid, LimitExceeded
from detent.journal.operations import Append, check_append
from detent.queue.operations import DELAY_MS_MAX, RETENTION_S, RETENTION_S_MAX, Publish, check_publish
from detent.schedule.timing import LATEST_MS, CronTiming, IntervalTiming, cron_timing

SCHEDULES_MAX: Final = 10_000
"""They are kept in memory, and their owner looks at all of them for those that are due."""

SCHEDULES_BYTES_MAX: Final = 64 << 20
"""All schedules together are kept in memory."""

BODY_BYTES_MAX: Final = 64 << 10
"""A body is kept in memory with its schedule, and what is more belongs into a file that the message names."""

NAME_MAX: Final = 150
"""The name is a part of each message's id, which has at most 200 bytes (see detent.bus.messages)."""

CRON_BYTES_MAX: Final = 256
ZONE_BYTES_MAX: Final = 64
"""The longest name of a zone has 32 bytes."""

EVERY_MS_MIN: Final = 1_000
"""Each tick is a commit: what is to happen more often than once a second belongs into a loop."""

EVERY_MS_MAX: Final = 10 * 366 * 86_400_000

MISSED_MAX: Final = 100
"""How many missed ticks are made up for, unless the schedule says another number."""

MISSED_MOST: Final = 10_000
"""The most that it may say: they are published one after another, while other schedules wait."""

ASKED_MAX: Final = 100
"""Messages that were asked for by hand and are not published yet, because the queue is gone or the disk is full."""

PAGE_MAX: Final = 1_000
PAGE_BYTES: Final = 4 << 20
"""A page of schedules ends when it has about so many bytes, or so many schedules."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that has dates."""

SCHEDULE_HEADER: Final = "detent-schedule"
TICK_HEADER: Final = "detent-tick"
ID_HEADER: Final = "detent-id"
"""The headers of each message: the schedule's name; the tick's time; and what identifies the message wherever it comes
twice. Handlers of the bus mark a message as handled by this id."""

OWN_HEADERS: Final = (SCHEDULE_HEADER, TICK_HEADER, ID_HEADER)
BY_HAND: Final = "/by-hand"
"""What the id of a message ends with that was asked for by hand."""

Time = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]


class PutSchedule(Operation, frozen=True, tag=True, array_like=True):
    """Make a schedule, or change it to this; one that says this already stays as it is.

    `only` narrows that: "create" is `Exists` if there is one, "change" is `NotFound` if there is none. `edition` is the
    one that was read, and another one is `Conflict`; 0 takes any. `paused` None leaves it as it is.
    """

    grows = True
    name: str
    target: Literal["queue", "journal"]
    place: str
    cron: str = ""
    tz: str = ""
    every_ms: int = 0
    start_ms: Time = 0
    body: bytes | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    key: bytes | None = None
    delay_ms: int = 0
    retention_s: int = RETENTION_S
    missed: Literal["none", "last", "all"] = LAST
    missed_max: int = MISSED_MAX
    paused: bool | None = None
    only: Literal["", "create", "change"] = ""
    edition: int = 0

    def weight(self) -> int:
        return OPERATION_WEIGHT + len(self.body or b"") + len(self.key or b"") + self.header_bytes()

    def header_bytes(self) -> int:
        """About how many bytes the headers have."""
        return sum(len(name) + len(value) for name, value in self.headers.items())


class PauseSchedule(Operation, frozen=True, tag=True, array_like=True):
    """Let a schedule rest, or go on with the first tick after now."""

    name: str
    paused: bool = True


class AskSchedule(Operation, frozen=True, tag=True, array_like=True):
    """Publish a schedule's message now, besides its ticks, whether it rests or not. Answers `ScheduleAsked`."""

    name: str


class DeleteSchedule(Operation, frozen=True, tag=True, array_like=True):
    """Forget a schedule. What it has published stays."""

    name: str


class DescribeSchedules(Operation, frozen=True, tag=True, array_like=True):
    """Schedules whose names begin with `prefix` and come after `after`, by name; or the one with a `name`. Changes
    nothing."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE_MAX
    name: str = ""


class FindDue(Operation, frozen=True, tag=True, array_like=True):
    """Schedules with something to publish by now. Only the owner's process asks. Answers `DueSchedules`."""

    limit: int


class MoveSchedule(Operation, frozen=True, tag=True, array_like=True):
    """A schedule goes on to `state`, in the transaction that publishes what is due; `Conflict` if it is not where the
    owner saw it. Only the owner's process sends it."""

    name: str
    edition: int
    step: int
    state: ScheduleState


class NoteTrouble(Operation, frozen=True, tag=True, array_like=True):
    """A schedule's messages could not be published, and are tried again later. The owner remembers it, and writes
    nothing. Only the owner's process sends it."""

    name: str
    edition: int
    problem: str


class ScheduleAsked(Result, frozen=True, tag=True, array_like=True):
    """The id that the message will have."""

    id: str


class SchedulePut(Result, frozen=True, tag=True, array_like=True):
    """Whether the schedule is new, and whether anything is other than before."""

    new: bool
    changed: bool


class ScheduleDescription(msgspec.Struct, frozen=True, array_like=True):
    """One schedule, as its owner sees it."""

    name: str
    definition: ScheduleDefinition
    state: ScheduleState
    problem: str


class ScheduleDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Some schedules by name, and whether there are more after them."""

    schedules: list[ScheduleDescription]
    more: bool


class DueSchedules(Result, frozen=True, tag=True, array_like=True):
    """Schedules that are due; those with trouble last time are to be tried alone."""

    schedules: list[ScheduleDescription]


def check_name(name: str) -> None:
    """`Invalid` unless this can be the name of a schedule."""
    names.check_name(name, "schedule")
    if len(name) > NAME_MAX:
        raise Invalid(f"the name of a schedule has at most {NAME_MAX} characters, not {len(name)}")


def check_put(op: PutSchedule) -> None:
    """Refuse what cannot be a schedule, or what its queue or journal would never take."""
    check_name(op.name)
    if op.target not in TARGETS or op.missed not in MISSED:
        raise Invalid(f"{op.target!r} and {op.missed!r}: the first is one of {TARGETS}, the second of {MISSED}")
    names.check_name(op.place, op.target)
    _check_timing(op)
    if type(op.missed_max) is not int or not 1 <= op.missed_max <= MISSED_MOST:
        raise Invalid(f"missed_max is 1 to {MISSED_MOST}, not {op.missed_max!r}")
    if op.missed != ALL and op.missed_max != MISSED_MAX:
        raise Invalid("missed_max goes with missed='all': otherwise there is at most one")
    if op.body is not None and len(op.body) > BODY_BYTES_MAX:
        raise LimitExceeded(
            f"the body of a schedule has at most {BODY_BYTES_MAX} bytes, not {len(op.body)}: put it into a file that "
            "the body names"
        )
    for header in (*OWN_HEADERS, QUEUE):
        if header in op.headers:
            raise Invalid(f"the header {header!r} is written by the schedule itself")
    _check_message(op)


def _check_timing(op: PutSchedule) -> None:
    if bool(op.cron) == bool(op.every_ms):
        raise Invalid("a schedule goes by a cron expression or by an interval: say either cron or every")
    if op.cron:
        if op.start_ms:
            raise Invalid("start goes with every: a cron expression says itself when it begins")
        if not names.is_text(op.cron, CRON_BYTES_MAX) or not names.is_text(op.tz, ZONE_BYTES_MAX):
            raise Invalid(f"an expression has up to {CRON_BYTES_MAX} bytes of text, a zone up to {ZONE_BYTES_MAX}")
        cron_timing(op.cron, op.tz)
    elif op.tz:
        raise Invalid("a time zone goes with cron: an interval is as long everywhere")
    elif type(op.every_ms) is not int or not EVERY_MS_MIN <= op.every_ms <= EVERY_MS_MAX:
        raise Invalid(f"an interval is {EVERY_MS_MIN // 1000} s to ten years, not {op.every_ms} ms")
    elif type(op.start_ms) is not int or not 0 <= op.start_ms <= LATEST_MS:
        raise Invalid("an interval starts after 1970 and before the year 9940")


def _check_message(op: PutSchedule) -> None:
    """As the queue or the journal checks it, with the headers that are added. What depends on their settings shows at
    the first tick."""
    if type(op.delay_ms) is not int or not 0 <= op.delay_ms <= DELAY_MS_MAX:
        raise Invalid(f"a delay is 0 to {DELAY_MS_MAX} ms, not {op.delay_ms!r}")
    if type(op.retention_s) is not int or not 0 <= op.retention_s <= RETENTION_S_MAX:
        raise Invalid(f"a retention is 0 to {RETENTION_S_MAX} s, not {op.retention_s!r}")
    sample = {
        **op.headers,
        SCHEDULE_HEADER: op.name,
        TICK_HEADER: "0" * 24,
        ID_HEADER: f"{op.name}@{'0' * 24}{BY_HAND}",
    }
    if op.target == QUEUE:
        if op.key is not None:
            raise Invalid("a key goes with a journal; messages of a queue have none")
        check_publish(Publish([op.body or b""], [{**sample, "queue": op.place}], to=op.place))
    elif op.delay_ms or op.retention_s != RETENTION_S:
        raise Invalid("delay and retention go with a queue; a journal keeps its messages as its own settings say")
    else:
        check_append(Append(op.place, [op.body or b""], None if op.key is None else [op.key], [sample]))


def timing_of(definition: ScheduleDefinition, next_ms: int) -> CronTiming | IntervalTiming:
    """When a schedule ticks. An interval goes on from its next tick."""
    if definition.cron:
        return cron_timing(definition.cron, definition.tz)
    return IntervalTiming(definition.every_ms, next_ms)


def check_page(op: DescribeSchedules) -> None:
    """`Invalid` unless this says which names to list."""
    if not isinstance(op.prefix, str) or not isinstance(op.after, str):
        raise Invalid("names are listed by a prefix, and after a name, which are text")
    if type(op.limit) is not int or not 1 <= op.limit <= PAGE_MAX:
        raise Invalid(f"a list has 1 to {PAGE_MAX} names, not {op.limit!r}")


def id_of(name: str, time_ms: int, *, by_hand: bool = False) -> str:
    """What identifies the message of a tick, or one that was asked for: the same however often it is made."""
    return f"{name}@{tick_text(time_ms)}{BY_HAND if by_hand else ''}"


def tick_text(time_ms: int) -> str:
    """The time of a tick in UTC, as headers have it."""
    return at_1970_ms(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
