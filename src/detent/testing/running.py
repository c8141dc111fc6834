"""How the suites call what may be plain or ``async def``: in this thread, or on an event loop in another one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import ExitStack
from typing import Any, Final

from detent.bus.unit_of_work import UnitOfWork
from detent.runtime.loop import loop_in_thread
from detent.runtime.thread import pool

PATIENCE_S: Final = 60.0
"""How long anything may take before a test gives up."""

HEAD_START_S: Final = 0.15
"""How long a call that is to wait for another one is given to begin to wait. Nothing is asserted of it."""


class SuiteCalls:
    """Calls for one test."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._loop = self._stack.enter_context(loop_in_thread())
        self._threads = pool("detent-testing")

    def close(self) -> None:
        """End what was started."""
        self._threads.shutdown()
        self._stack.close()

    def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """What a function answers, waited for."""
        found = function(*values)
        if not inspect.isawaitable(found):
            return found
        return asyncio.run_coroutine_threadsafe(_awaited(found), self._loop).result(PATIENCE_S)

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        """Run something at the same time, which calls what it needs by `call`."""
        return self._threads.submit(work)

    def head_start(self, *futures: Future[Any]) -> None:
        """Let others come as far as they get."""
        wait_for(futures, timeout=HEAD_START_S)

    def in_unit(self, unit_of_work: UnitOfWork | None, work: Callable[[Any], Any], *, commit: bool = True) -> Any:
        """What `work` answers, in a unit of its own."""
        if unit_of_work is None:
            return self.call(work, None)
        unit = self.call(unit_of_work.begin)
        try:
            found = self.call(work, unit)
            self.call(unit.commit if commit else unit.rollback)
        except BaseException:
            self.call(unit.rollback)
            raise
        finally:
            self.call(unit.close)
        return found


async def _awaited(value: Any) -> Any:
    return await value
