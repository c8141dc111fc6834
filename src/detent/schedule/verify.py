"""The schedules' part of `store verify`: what a schedule says and how far it is, each by itself and both together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from detent.codec import schedule as records
from detent.codec.ledger import name_of
from detent.codec.schedule import ScheduleDefinition, ScheduleState
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, DetentError
from detent.kv import View
from detent.schedule import operations as ops

KNOWN: Final = (records.DEFINITION, records.STATE)
"""All that this release writes of schedules."""


def check_schedules(view: View, tally: Tally) -> Iterator[Finding]:
    """Both records decode, are what an owner would have written, and neither is without the other."""
    names: dict[str, bytes] = {}
    for key, value in tally.scan(view, *records.DEFINITION.range()):
        tally.counts.schedules += 1
        try:
            name = name_of(records.DEFINITION, key)
            names[name] = key
            _check_definition(name, ScheduleDefinition.decode(value))
        except DetentError as error:
            yield Finding(record_at(key), f"a malformed schedule: {error}")
    states: set[str] = set()
    for key, value in tally.scan(view, *records.STATE.range()):
        try:
            name = name_of(records.STATE, key)
            states.add(name)
            _check_state(ScheduleState.decode(value))
        except DetentError as error:
            yield Finding(record_at(key), f"a malformed state of a schedule: {error}")
            continue
        if name not in names:
            yield Finding(record_at(key), f"the state of a schedule {name!r} that there is not")
    for name in names.keys() - states:
        yield Finding(record_at(names[name]), f"the schedule {name!r} has no state")


def _check_definition(name: str, found: ScheduleDefinition) -> None:
    ops.check_put(put_of(name, found))
    _check_times(found.created_ms, found.updated_ms)


def put_of(name: str, found: ScheduleDefinition) -> ops.PutSchedule:
    """The operation that makes a schedule what it is."""
    return ops.PutSchedule(
        name, found.target, found.place, found.cron, found.tz, found.every_ms, found.start_ms, found.body,  # type: ignore[arg-type]
        found.headers, found.key, found.delay_ms, found.retention_s, found.missed, found.missed_max,  # type: ignore[arg-type]
    )  # fmt: skip


def _check_state(found: ScheduleState) -> None:
    _check_times(found.next_ms, found.last_ms, found.published_ms, found.last_asked_ms, *found.asked)
    _check_times(*(time_ms for run in found.runs for time_ms in run))
    if len(found.asked) > ops.ASKED_MAX:
        raise Corrupt(f"{len(found.asked)} messages that were asked for by hand")


def _check_times(*times_ms: int) -> None:
    """Later times have no date, and the record could not be shown."""
    for time_ms in times_ms:
        if not 0 <= time_ms <= ops.TIME_MS_MAX:
            raise Corrupt(f"{time_ms} is not a time in milliseconds since 1970")
