"""Work for a server: so many calls over so many connections, each connection one call after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

Call = Callable[[], Awaitable[object]]


async def rate_of(calls: Sequence[Call], total: int) -> float:
    """Calls a second, when each of these is made again as soon as it is answered."""
    left = total

    async def repeat(call: Call) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    began = time.perf_counter()
    await asyncio.gather(*map(repeat, calls))
    return total / (time.perf_counter() - began)
