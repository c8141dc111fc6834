"""Who is killed, and when."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Final, NamedTuple

from detent.demo.crew import Crew
from detent.demo.meter import DemoCounts
from detent.demo.plan import CLERK, DRIVER, OWNER, PRODUCER_ROLES, WORKER

DRIVERS_MAX: Final = 2
"""Starting Spark again takes most of a run's time; past this the owner is killed instead."""


class KillTarget(NamedTuple):
    """A process that is to be killed, once more orders have come to these stages than when it started."""

    role: str
    stages: tuple[str, ...] = ("placed",)


SPARK = KillTarget(DRIVER, ("split", "stored"))
OWNER_UNDER_SPARK = KillTarget(OWNER, ("split",))
"""The owner, while Spark writes."""

ROUND: Final = (
    KillTarget(OWNER),
    SPARK,
    KillTarget(PRODUCER_ROLES[0]),
    OWNER_UNDER_SPARK,
    KillTarget(WORKER),
    KillTarget(CLERK),
    KillTarget(OWNER),
    SPARK,
    KillTarget(PRODUCER_ROLES[1]),
    OWNER_UNDER_SPARK,
    KillTarget(PRODUCER_ROLES[2]),
    OWNER_UNDER_SPARK,
)


def targets(kills: int) -> list[KillTarget]:
    """Who is to be killed, in about this order."""
    found: list[KillTarget] = []
    for target in islice(cycle(ROUND), kills):
        is_enough = target == SPARK and found.count(SPARK) == DRIVERS_MAX
        found.append(OWNER_UNDER_SPARK if is_enough else target)
    return found


class Killer:
    """Chooses the next one to be killed, at an even pace over the time in which orders are placed."""

    def __init__(self, kills: int, paced_s: float) -> None:
        self._left = targets(kills)
        self._gap_s = paced_s / (kills + 1)
        self._next_at = self._gap_s

    @property
    def is_done(self) -> bool:
        """Whether no process is to be killed any more."""
        return not self._left

    def choose(self, at: float, crew: Crew, counts: DemoCounts) -> str | None:
        """Who is to be killed now, `at` seconds from the start; the first one for whom it is a good moment."""
        if at < self._next_at:
            return None
        for target in self._left:
            victim = OWNER_UNDER_SPARK if crew[target.role].is_done else target
            if is_good_moment(victim, crew[victim.role].before, counts):
                self._left.remove(target)
                self._next_at = at + self._gap_s
                return victim.role
        return None


def is_good_moment(target: KillTarget, before: DemoCounts, counts: DemoCounts) -> bool:
    """Whether a process has come to something since it started, when the counts were those `before`; or everything has
    arrived, and it cannot come to anything."""
    return counts.is_level or all(getattr(counts, stage) > getattr(before, stage) for stage in target.stages)
