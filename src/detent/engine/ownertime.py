"""The owner's time: what leases, delays and retention are measured with, and what the records of a store are dated by.

It begins at the wall clock, or where the last owner left off if that is later, and goes on by the steady clock, which
cannot be set. So a wall clock that jumps moves no lease and no delay. It follows the wall clock slowly, as NTP does;
what differs by more than an hour for ten minutes is put right at once. docs/decisions/0027 has the reasons.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_ENGINE, Prefix
from detent.codec.values import ByteReader, ByteWriter

TIME: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x05)

TIME_STEP_MS: Final = 1_000
"""How far the recorded time may lag behind that of the newest record."""

JUMP_MS: Final = 5_000
"""A wall clock that moves by more than this against the steady one has jumped; one that differs by less is followed at
once."""

SLEW: Final = 1 / 200
"""How fast a small difference goes away: a lease of 30 s is at most 150 ms longer or shorter."""

STANDING_MS: Final = 60_000
"""A greater difference that lasts for so long is the right time, not a slip."""

SLEW_STANDING: Final = 1 / 12
"""How fast that goes away, about as fast as chrony would: an hour in twelve, and a lease of 30 s is at most 2.5 s
longer or shorter."""

STEP_MS: Final = 3_600_000
STEP_AFTER_MS: Final = 600_000
"""A difference that would take longer than half a day to go away is put right in one step, after so long. A machine
that starts without the right time has it from NTP by then."""

READ_MS: Final = 100
READ_TRIES: Final = 4
"""Two clocks that are not read within this time of one another seem to have moved: they are read again."""

logger = logging.getLogger("detent.clock")

Clock = Callable[[], int]


def wall_ms() -> int:
    """Milliseconds since 1970, by a clock that can be set."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds since some time, by a clock that cannot be set; while the machine sleeps it goes on, where the system has
    such a clock."""
    return steady_ns() / 1e9


if hasattr(time, "CLOCK_BOOTTIME"):

    def steady_ns() -> int:
        """`steady_s` in nanoseconds."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - not Linux

    def steady_ns() -> int:
        """`steady_s` in nanoseconds."""
        return time.monotonic_ns()


def steady_ms() -> int:
    """`steady_s` in milliseconds."""
    return steady_ns() // 1_000_000


class RecordedTime(NamedTuple):
    """What a store records: its time, what the wall clock said then, and since when (by the wall clock) the two have
    been apart; 0 if they are not."""

    time_ms: int
    wall_ms: int
    apart_ms: int

    @classmethod
    def decode(cls, value: bytes) -> RecordedTime:
        reader = ByteReader(value, "the store's time")
        recorded = cls(reader.u64(), reader.u64(), reader.u64())
        reader.finish()
        return recorded

    def encode(self) -> bytes:
        return ByteWriter().u64(self.time_ms).u64(self.wall_ms).u64(self.apart_ms).finish()


NOTHING: Final = RecordedTime(0, 0, 0)
"""What a new store has recorded."""


class OwnerTime:
    """The time of one owner. For any thread."""

    def __init__(self, wall: Clock = wall_ms, steady: Clock = steady_ms) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self.jumps = 0
        """How often the wall clock was seen to jump."""
        self._begin(NOTHING)

    def _begin(self, last: RecordedTime) -> None:
        self._steady_ms, wall = self._read()
        self._offset = wall - self._steady_ms
        self._ms: float = max(wall, last.time_ms)
        self._difference: float = wall - self._ms
        self._apart_since: int | None = None
        self._told = False
        if last.wall_ms <= wall < last.time_ms:  # it was ahead then, and still is: what has passed since is known
            if last.apart_ms:
                self._apart_since = self._steady_ms - (wall - last.apart_ms)
            self._steady_ms -= wall - last.wall_ms
            self._look()

    def start(self, last: RecordedTime) -> bool:
        """A store is opened that was last written then. Time goes on from there if that is later than the wall clock:
        what had ten seconds left has ten seconds left, whichever of the two clocks was wrong. Answers whether this is
        to be recorded, since the wall clock has gone back: the next owner can only tell from then on what has
        passed."""
        with self._lock:
            self._begin(last)
            ahead_s = -self._difference / 1000
            if ahead_s * 1000 > JUMP_MS:
                self.jumps += 1
                logger.warning(
                    "the store was last written at a time %.0f s ahead of this machine's wall clock: its time goes on "
                    "from there, and follows the wall clock if the difference lasts",
                    ahead_s,
                )
            return self._ms + self._difference < last.wall_ms

    def now_ms(self) -> int:
        """The time. It never goes back, but for `step_back`."""
        with self._lock:
            self._look()
            return int(self._ms)

    def recorded(self, now_ms: int) -> RecordedTime:
        """What to record of a group of this time."""
        with self._lock:
            wall = round(self._ms + self._difference)
            apart = 0 if self._apart_since is None else max(1, wall - self._apart_ms())
            return RecordedTime(now_ms, max(0, wall), apart)

    @property
    def difference_ms(self) -> int:
        """By how much the wall clock is ahead of this time; below zero if it is behind."""
        with self._lock:
            self._look()
            return round(self._difference)

    @property
    def wants_step_back(self) -> bool:
        """Whether this time has been far ahead of the wall clock for long."""
        return self._difference < -STEP_MS and self._apart_ms() >= STEP_AFTER_MS

    def step_back(self) -> None:
        """Go on from the wall clock, if it is still what it was. All times to come that memory and store hold are to be
        set back as well."""
        with self._lock:
            self._look()
            if not self.wants_step_back:
                return
            logger.warning(
                "the store's time is set back by %.0f s, to the wall clock; leases and delays keep what they have left",
                -self._difference / 1000,
            )
            self._begin(NOTHING)

    # -- the clocks ---------------------------------------------------------------------------------------------

    def _read(self) -> tuple[int, int]:
        """Both clocks, of one moment: a process that was stopped between them would see a jump that was none."""
        for _ in range(READ_TRIES):
            steady, wall = self._steady(), self._wall()
            if self._steady() - steady <= READ_MS:
                break
        return steady, wall

    def _look(self) -> None:
        steady, wall = self._steady(), self._wall()
        if abs(wall - steady - self._offset) > JUMP_MS:
            steady, wall = self._read()
            self._note_jump(wall - steady)
        self._offset = wall - steady
        elapsed = max(0, steady - self._steady_ms)  # a process that is moved to another machine finds another clock
        self._steady_ms = steady
        self._ms += elapsed
        difference = wall - self._ms
        if self._apart_since is not None or abs(difference) > JUMP_MS:
            self._note_standing(difference)
        correction = self._correction(difference, elapsed) if elapsed else 0.0
        self._ms += correction
        self._difference = difference - correction

    def _note_jump(self, offset: int) -> None:
        moved = offset - self._offset
        if abs(moved) > JUMP_MS:
            self.jumps += 1
            self._apart_since, self._told = None, False  # what it says now has not lasted yet
            logger.warning(
                "the wall clock jumped %s by %.0f s; leases and delays go by a clock that did not, and follow the wall "
                "clock slowly if the difference lasts",
                "ahead" if moved > 0 else "back",
                abs(moved) / 1000,
            )

    def _note_standing(self, difference: float) -> None:
        if abs(difference) <= JUMP_MS:
            self._apart_since, self._told = None, False
        elif self._apart_since is None:
            self._apart_since = self._steady_ms
        elif not self._told and self._apart_ms() >= STANDING_MS:
            self._told = True
            logger.warning(
                "the wall clock has been %.0f s %s the store's time for a minute: the store's time follows it",
                abs(difference) / 1000,
                "ahead of" if difference > 0 else "behind",
            )

    def _apart_ms(self) -> int:
        return 0 if self._apart_since is None else self._steady_ms - self._apart_since

    def _correction(self, difference: float, elapsed: int) -> float:
        if self._apart_since is None:
            most = elapsed * SLEW
        else:
            apart_ms = self._apart_ms()
            if difference > STEP_MS and apart_ms >= STEP_AFTER_MS:
                logger.warning("the store's time is set ahead by %.0f s, to the wall clock", difference / 1000)
                return difference
            most = elapsed * SLEW_STANDING if apart_ms >= STANDING_MS else 0.0
        return max(-most, min(most, difference))


class ToldTime(OwnerTime):
    """The time that a test tells, as it tells it: there is no other clock to hold it against. It never goes back while
    a store is open."""

    def __init__(self, now_ms: Clock) -> None:
        super().__init__(now_ms, now_ms)

    def start(self, last: RecordedTime) -> bool:
        """Begin at the time that is told, whatever was recorded."""
        del last
        with self._lock:
            self._begin(NOTHING)
        return False

    def _look(self) -> None:
        self._ms = max(self._ms, self._wall())
