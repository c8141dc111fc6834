"""Durations as people write them: text such as "250ms", "30s", "5m", "2h", "7d", a number of seconds, a `timedelta`.

One parser reads them wherever one is taken: in Python, on the command line, over HTTP and in files of settings.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from detent.errors import Invalid

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)?")
DURATION_MS_MAX: Final = 1 << 52

_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)

Duration = timedelta | str | float
"""A number, and text that is only a number, is of seconds."""


def milliseconds(value: Duration) -> int:
    """A duration in milliseconds; `Invalid` shows how to write one."""
    if isinstance(value, timedelta):
        exact = value.total_seconds() * 1000
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        exact = float(match[1]) * _UNITS_MS[match[2] or "s"]  # hundreds of digits are infinity
    elif isinstance(value, int | float) and not isinstance(value, bool):
        exact = _limited(value) * 1000
    else:
        raise Invalid(
            f"{value!r} is no duration: write '250ms', '30s', '5m', '2h' or '7d', or a number of seconds, or pass a "
            "timedelta"
        )
    if not 0 <= exact <= DURATION_MS_MAX:
        raise Invalid(f"the duration {value!r} is negative or too long")
    return round(exact)


def _limited(seconds: float) -> float:
    """A number of seconds that can be multiplied: integers have no limit, floats have one. What is not a duration is
    negative, NaN too."""
    return max(-1.0, min(seconds, DURATION_MS_MAX))


def span_text(seconds: float) -> str:
    """A duration in a message for people, with all its units.

    >>> span_text(1_209_630), span_text(0)
    ('14d 30s', '0s')
    """
    if math.isinf(seconds):
        return "ever"
    left = round(seconds * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def no_shorter_text(seconds: float) -> str:
    """A duration of at least so many seconds, as settings take it: in whole days where it is longer than one."""
    return f"{math.ceil(seconds / 86_400)}d" if seconds > 86_400 else f"{math.ceil(seconds)}s"


def at_1970_ms(ms: int) -> datetime:
    """The time so many milliseconds after the beginning of 1970; what `since_1970_ms` takes apart."""
    return _1970 + timedelta(milliseconds=ms)


def since_1970_ms(time: datetime) -> int:
    """A time in milliseconds; `Invalid` for one that does not say where on Earth it is."""
    if time.tzinfo is None:
        raise Invalid("give the time with its zone, for example datetime.now(UTC)")
    return round(time.timestamp() * 1000)
