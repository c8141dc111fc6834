"""Schedules: messages that a store publishes by itself, at the times of a cron expression or at an interval.

A tick's messages and the schedule's next time are one commit, so that each tick is published once.

    handle.py       what a store can say and do of schedules, for plain callers and asyncio
    info.py         what these answer
    operations.py   the operations themselves, and what each answers
    timing.py       when a schedule ticks, pure: cron in a time zone, intervals
    catching_up.py  what is due by now, and how a schedule goes on from there, pure
    machine.py      the state machine in the owner
    firing.py       publishes what is due, in transactions of the owner
    verify.py       the schedules' part of `store verify`
"""

from detent.schedule.firing import Firing
from detent.schedule.handle import AsyncSchedules, Schedules
from detent.schedule.info import ScheduleInfo
from detent.schedule.machine import ScheduleMachine
from detent.schedule.operations import ID_HEADER, SCHEDULE_HEADER, TICK_HEADER

__all__ = [
    "ID_HEADER",
    "SCHEDULE_HEADER",
    "TICK_HEADER",
    "AsyncSchedules",
    "Firing",
    "ScheduleInfo",
    "ScheduleMachine",
    "Schedules",
]
