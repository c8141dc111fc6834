"""A world whose owner has two clocks, each moved by the test: a wall clock that jumps, and a steady one.

>>> world = ClockWorld()
>>> world.jump(HOUR)
>>> world.run(30)        # both clocks go on for 30 s, and the owner looks at them each second (or `look_ms`)
"""

from __future__ import annotations

from detent.engine import OwnerTime
from queueworld import Queues
from shardworld import ShardWorld
from world import START_MS

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class ClockWorld(Queues, ShardWorld):
    """One store with journals, queues and consumers, in memory."""

    def __init__(self, look_ms: int = SECOND) -> None:
        self._look_ms = look_ms
        self.steady_ms = 7_000_000
        self.wall_ms = START_MS
        super().__init__()

    def time(self) -> OwnerTime:
        return OwnerTime(lambda: self.wall_ms, lambda: self.steady_ms)

    def jump(self, ms: int) -> None:
        """The wall clock is set: ahead, or back."""
        self.wall_ms += ms

    def run(self, seconds: float) -> None:
        """Time passes, and the owner does what is due; a client that comes then has a session."""
        end_ms = self.steady_ms + round(seconds * 1_000)
        while self.steady_ms < end_ms:
            self.stand(min(self._look_ms, end_ms - self.steady_ms))
            self.engine.tick()
        self.ticks()
        self.session = self.engine.new_session()

    def stand(self, ms: int) -> None:
        """Time passes, and there is no owner to see it; or the machine is asleep."""
        self.steady_ms += ms
        self.wall_ms += ms

    def ticks(self) -> int:
        for count in range(1_000):
            due_ms = self.engine.next_due_ms()
            if due_ms is None or due_ms > self.engine.now_ms():
                return count
            self.engine.tick()
        raise AssertionError("there is always something to do")

    def reopen(self, wall_ms: int | None = None) -> None:
        """The owner dies, and another one begins; on a machine with that wall clock."""
        if wall_ms is not None:
            self.wall_ms = wall_ms
        super().reopen()
