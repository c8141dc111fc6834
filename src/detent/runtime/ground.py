"""Where a task runs: in a thread, on an event loop, or in turns with others in the caller's thread.

What runs is written once, as a coroutine that calls and waits through its ground. In a thread nothing of it really
waits for an event loop, so `drive` takes it to its end in one go; in turns it comes back at each wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from detent.errors import Invalid

Result = TypeVar("Result")


PROGRAM_ENDS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends a program, or a task of an event loop, and not only what it was at."""


def is_awaited(given: object) -> bool:
    """Whether a function has answered what is to be awaited. (`inspect.isawaitable` takes five times as long.)"""
    return hasattr(given, "__await__")


class Ground:
    """How a task's functions are called, and how it waits. `wake` is for any thread."""

    ends: tuple[type[BaseException], ...] = ()
    """Exceptions that end the coroutine itself here, whatever the task is at."""

    async def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """What a function answers. A coroutine is awaited; only on a loop it may wait for more than its ground."""
        found = function(*values)
        return await found if is_awaited(found) else found

    def clear(self) -> None:
        """Look at the world after this, and wait only then: what wakes in between is heard."""
        raise NotImplementedError

    def wake(self) -> None:
        """End the wait under way, or the next one."""
        raise NotImplementedError

    async def wait(self, seconds: float | None) -> None:
        """Return after so long, or when woken; with None, only when woken."""
        raise NotImplementedError


class InThread(Ground):
    """A thread, of its own or the caller's."""

    def __init__(self, ends: tuple[type[BaseException], ...] = ()) -> None:
        self.ends = ends
        # Not an event: its lock could be held by the thread that a signal interrupts, whose handler wakes this.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def clear(self) -> None:
        with suppress(Empty):
            while True:
                self._bell.get_nowait()

    def wake(self) -> None:
        if self._bell.empty():
            self._bell.put(None)

    async def wait(self, seconds: float | None) -> None:
        if seconds is None or seconds > 0:
            with suppress(Empty):
                self._bell.get(timeout=seconds)


class OnLoop(Ground):
    """The event loop that this is made on."""

    ends = PROGRAM_ENDS

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()

    def clear(self) -> None:
        self._bell.clear()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nothing waits there any more
            self._loop.call_soon_threadsafe(self._bell.set)

    async def wait(self, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` may swallow a cancellation
                await self._bell.wait()


class InTurns(Ground):
    """The caller's thread, shared with other tasks: each wait hands it back, also one of no length."""

    ends = PROGRAM_ENDS

    def __init__(self) -> None:
        self.is_woken = False

    def clear(self) -> None:
        self.is_woken = False

    def wake(self) -> None:
        self.is_woken = True

    async def wait(self, seconds: float | None) -> None:
        await _Turn(seconds)


class _Turn:
    """What a coroutine awaits that hands its thread back."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def __await__(self) -> Generator[float | None, None, None]:
        yield self._seconds


def drive(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine answers that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: Result = end.value
        return answer
    coroutine.close()
    raise Invalid("a coroutine waits for an event loop where there is none: run it on one, or make it async")
