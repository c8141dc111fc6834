"""How often a message is tried, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from detent.bus.unit_of_work import TransactionEnded
from detent.durations import Duration, milliseconds
from detent.errors import Invalid

ATTEMPTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Retries:
    """A message that fails is tried again at once, `immediate` times, and then after each of the `delayed` durations;
    after that it is put onto the failed list with its error. Attempts are counted by the transport, so that they
    survive the process: a message that kills it comes to an end, too.

    Errors of the types in `fail_fast` are not tried again.
    """

    immediate: int = 2
    delayed: Sequence[Duration] = ("10s", "1m", "10m")
    fail_fast: type[BaseException] | tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.immediate, int) or not 0 <= self.immediate <= ATTEMPTS_MAX:
            raise Invalid(f"immediate retries are a number from 0 to {ATTEMPTS_MAX}, not {self.immediate!r}")
        if isinstance(self.delayed, str) or len(self.delayed) > ATTEMPTS_MAX:
            raise Invalid(f"delayed retries are up to {ATTEMPTS_MAX} durations, such as ('10s', '5m')")
        for delay in self.delayed:
            milliseconds(delay)
        kinds = self.fail_fast if isinstance(self.fail_fast, tuple) else (self.fail_fast,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise Invalid(f"fail_fast is a class of exceptions, or a tuple of some, and not {self.fail_fast!r}")
        object.__setattr__(self, "fail_fast", kinds)

    @property
    def attempts_max(self) -> int:
        """How often a message is tried at most."""
        return 1 + self.immediate + len(self.delayed)

    def delay_s(self, attempts: int, error: BaseException) -> float | None:
        """How long to wait after so many attempts; None to give up."""
        final = self.fail_fast if isinstance(self.fail_fast, tuple) else (self.fail_fast,)
        if isinstance(error, (*final, Poison, TransactionEnded)) or attempts >= self.attempts_max:
            return None
        if attempts <= self.immediate:
            return 0.0
        return milliseconds(self.delayed[attempts - self.immediate - 1]) / 1000


class Poison(Exception):
    """A message that will fail however often it is tried: its bytes cannot be read, or it has no id."""

    def __init__(self, reason: str, *values: Any) -> None:
        super().__init__(reason, *values)
        self.reason = reason
