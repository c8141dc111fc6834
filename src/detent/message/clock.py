"""A producer's clock: strictly monotonic, close to wall time, one value for each message.

A clock value is an unsigned 64-bit integer. Its upper 60 bits count steps of 100 ns since 1582-10-15 UTC, as in
RFC 4122; its lower 4 bits are a counter that distinguishes values within one step. Readers only compare values.
"""

from __future__ import annotations

import threading
from typing import Final

from detent.errors import Invalid, LimitExceeded

CLOCK_MAX: Final = (1 << 64) - 1
COUNTER_BITS: Final = 4
STEP_NS: Final = 100
"""One timestamp step, in nanoseconds."""

UNIX_EPOCH_STEPS: Final = 0x01B21DD213814000
"""Steps between the start of the Gregorian calendar and 1970-01-01."""

TICK: Final = 10 << COUNTER_BITS
"""One tick is a microsecond: systems downstream keep no finer times, and every id must stay distinct there."""

_NS_PER_SECOND: Final = 1_000_000_000


def clock_of(seconds: int, nanos: int = 0) -> int:
    """The clock value of a Unix time. Digits below 100 ns are cut off and the counter is zero.

    >>> hex(clock_of(0))
    '0x1b21dd2138140000'
    """
    return clock_of_ns(seconds * _NS_PER_SECOND + nanos)


def clock_of_ns(unix_ns: int) -> int:
    """The clock value of a Unix time in nanoseconds."""
    value = (unix_ns // STEP_NS + UNIX_EPOCH_STEPS) << COUNTER_BITS
    if not 0 <= value <= CLOCK_MAX:
        raise Invalid(f"unix time {unix_ns} ns is outside what a 60-bit timestamp can say")
    return value


def as_unix_ns(clock: int) -> int:
    """The Unix time of a clock value in nanoseconds; the counter is dropped."""
    if not 0 <= clock <= CLOCK_MAX:
        raise Invalid(f"clock {clock} does not fit 64 bits")
    return ((clock >> COUNTER_BITS) - UNIX_EPOCH_STEPS) * STEP_NS


class Clock:
    """Hands out clock values that only grow, whatever wall time does. Safe to share between threads.

    Call `update` with the current time once in a while (once a transaction is enough) and `tick` for each message:

    >>> clock = Clock()
    >>> clock.tick(), clock.tick()
    (160, 320)
    """

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int = 0) -> None:
        if not 0 <= value <= CLOCK_MAX:
            raise Invalid(f"clock {value} does not fit 64 bits")
        self._value = value
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        """The value that was handed out last, or the time of the last update when that is later."""
        return self._value

    def update(self, now_ns: int) -> int:
        """Move forward to a Unix time in nanoseconds. A time in the past changes nothing. Returns the value."""
        candidate = clock_of_ns(now_ns)
        with self._lock:
            self._value = max(self._value, candidate)
            return self._value

    def raise_to(self, value: int) -> bool:
        """Move forward to a clock value. False, and nothing changes, where the clock has passed it already."""
        with self._lock:
            if value <= self._value:
                return False
            self._value = value
            return True

    def tick(self) -> int:
        """The next value: one microsecond after the last."""
        return self.reserve(1)

    def reserve(self, count: int) -> int:
        """Take `count` ticks at once. Returns the first; the others follow at a distance of TICK each."""
        if count < 1:
            raise Invalid(f"reserve at least one tick, not {count}")
        with self._lock:
            last = self._value + count * TICK
            if last > CLOCK_MAX:
                raise LimitExceeded("the clock has reached the end of its 64 bits")
            first = self._value + TICK
            self._value = last
            return first
