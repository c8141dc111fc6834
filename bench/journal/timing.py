"""Timing a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable


def per_call_us(call: Callable[[], object], count: int) -> float:
    """Microseconds of one call, over `count` calls."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count * 1e6


def rate(work: Callable[[], object], count: int) -> float:
    """How many a second, when `work` does `count` of them."""
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)
