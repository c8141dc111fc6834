"""How long to pause before the next try: longer after each failure in a row, up to a maximum.

`Backoff` is the rule, a constant beside the code that retries. `Failures` counts for it.

>>> restart = Backoff(0.25, 30.0)
>>> [restart.pause_s(failures) for failures in (1, 2, 3, 100)]
[0.25, 0.5, 1.0, 30.0]
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

STEPS_MAX: Final = 60
"""More steps than this lead to the maximum in any rule, and a float does not overflow before."""

Amount = TypeVar("Amount", int, float)


def growing(first: Amount, most: Amount, failures: int, factor: int | float = 2) -> Amount:
    """What follows so many failures in a row: `first` after the first one, then `factor` times as much each time.
    Whole numbers stay whole, so that a state machine can use it."""
    times: Any = factor ** max(0, min(failures - 1, STEPS_MAX))
    grown: Amount = min(first * times, most)
    return grown


@dataclass(frozen=True, slots=True)
class Backoff:
    """A rule for pauses. `jitter` is the share of a pause that chance decides, for callers that would otherwise come
    again at the same moment: 1 (or True) is a pause between nothing and all of it, 0.5 one of half of it at least."""

    first_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.0
    uniform: Callable[[float, float], float] = random.uniform

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row; 1 is the first."""
        longest = growing(self.first_s, self.max_s, failures, self.factor)
        return self.uniform(longest * (1 - self.jitter), longest) if self.jitter else longest


class Failures:
    """The failures in a row of something that is tried again. One that worked for `steady_s` before it failed begins
    to count anew."""

    def __init__(
        self, backoff: Backoff, *, steady_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backoff = backoff
        self._steady_s = steady_s
        self._clock = clock
        self._began: float | None = None
        self.in_a_row = 0

    def began(self) -> None:
        """A try, or a life, begins now."""
        self._began = self._clock()

    def failed(self) -> float:
        """It failed; how many seconds to pause."""
        if self._steady_s is not None and self._began is not None and self._clock() - self._began >= self._steady_s:
            self.in_a_row = 0
        self.in_a_row += 1
        return self._backoff.pause_s(self.in_a_row)

    def worked(self) -> None:
        """It worked: the next failure is the first one."""
        self.in_a_row = 0
