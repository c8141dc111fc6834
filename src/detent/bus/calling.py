"""One pipeline for plain functions and for coroutines.

What handles a message is written once, as coroutines. Where nothing of it really waits on an event loop, a thread runs
it to its end in one go, without a loop; otherwise it runs on the loop, and plain functions go to threads from there.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from detent.errors import Invalid, Unavailable
from detent.runtime import thread
from detent.runtime.ground import drive

LOOK_S: Final = 1.0
"""How often a thread that waits for an event loop looks whether there still is one."""

Result = TypeVar("Result")


def is_coroutine_function(function: Any) -> bool:
    """Whether calling this answers something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class LoopEnded(Unavailable):
    """The event loop is gone that coroutines of an app run on."""


def is_running_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether this thread is the one that runs the loop."""
    try:
        return loop is not None and asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class UserCaller:
    """Calls what belongs to a unit of work, and what users wrote, in the way of one of the two worlds."""

    async def unit(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a method of a unit, a tracker or an outbox."""
        raise NotImplementedError

    async def user(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Call a function that may take long, plain or ``async def``."""
        raise NotImplementedError

    async def blocking(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a plain function that waits, such as a transport's."""
        raise NotImplementedError

    async def to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What must not stop half-way, such as a commit, though the coroutine it is a part of is cancelled."""
        raise NotImplementedError


class ThreadCaller(UserCaller):
    """Everything is plain, and runs in the thread that has the message."""

    async def unit(self, function: Callable[..., Any], *values: Any) -> Any:
        return function(*values)

    async def user(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        return function(*values, **named)

    async def blocking(self, function: Callable[..., Any], *values: Any) -> Any:
        return function(*values)

    async def to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await work


class AnyThread:
    """Plain functions run in whatever thread is free."""

    async def call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """What a function answers; called on the loop."""
        return await asyncio.to_thread(function, *values, **named)


class HomeThread(AnyThread):
    """The thread that has a message, and runs the plain functions of its coroutine, one after another: connections of
    some databases may be used in one thread only, and Django keeps one for each."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def call(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        run = functools.partial(contextvars.copy_context().run, function, *values, **named)
        self._tasks.put(lambda: _run_for(loop, answer, run))
        return await answer

    def serve(self, ending: Future[Result], loop: asyncio.AbstractEventLoop) -> Result:
        """Run what is asked for until the coroutine has ended; what that answers."""
        ending.add_done_callback(lambda _: self._tasks.put(None))
        while not ending.done():
            try:
                task = self._tasks.get(timeout=LOOK_S)
            except Empty:
                if not loop.is_running() and not ending.done():
                    raise LoopEnded("the event loop of the app has ended: stop the app before its loop") from None
                continue
            if task is not None:
                task()
        return ending.result()


def _run_for(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], run: Callable[[], Any]) -> None:
    """Run a function, and give what it answers or raises to the coroutine that awaits it."""
    found: Any = None
    error: BaseException | None = None
    try:
        found = run()
    except StopIteration as raised:  # which no future takes, and no coroutine may raise
        error = RuntimeError(f"StopIteration was raised: {raised!r}")
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001 - it is raised where it is awaited
        error = raised

    def settle() -> None:
        if answer.done():  # cancelled meanwhile
            return
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed, and nothing is awaited
        loop.call_soon_threadsafe(settle)


class LoopCaller(UserCaller):
    """Coroutines are awaited on the loop; what is plain, and may block, runs in a thread."""

    def __init__(self, thread: AnyThread, *, unit_is_async: bool) -> None:
        self._thread = thread
        self._unit_is_async = unit_is_async

    async def unit(self, function: Callable[..., Any], *values: Any) -> Any:
        if not self._unit_is_async:
            return await self._thread.call(function, *values)
        found = function(*values)
        return await found if inspect.isawaitable(found) else found

    async def user(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        if is_coroutine_function(function):
            return await function(*values, **named)
        return await self._thread.call(function, *values, **named)

    async def blocking(self, function: Callable[..., Any], *values: Any) -> Any:
        return await self._thread.call(function, *values)

    async def to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() from None  # type: ignore[misc]
            raise


class Calling:
    """Runs coroutines that take a `UserCaller`: in this thread, or on a loop of another one."""

    def __init__(self, *, unit_is_async: bool) -> None:
        self.unit_is_async = unit_is_async
        self.loop: asyncio.AbstractEventLoop | None = None
        self._in_thread = ThreadCaller()

    def run(
        self, work: Callable[..., Coroutine[Any, Any, Result]], *values: Any, on_loop: bool | None = None
    ) -> Result:
        """What ``work(caller, *values)`` answers. It runs on the loop if it has to."""
        if not (self.unit_is_async if on_loop is None else on_loop):
            return drive(work(self._in_thread, *values))
        loop = self.loop
        if loop is None or loop.is_closed():
            raise LoopEnded("there is no event loop for what is async here: start the app first")
        if is_running_here(loop):
            raise Invalid(
                "this waits for the event loop that it is called on: await it in a thread, as in "
                "await asyncio.to_thread(bus.stop)"
            )
        home = HomeThread()
        caller = LoopCaller(home, unit_is_async=self.unit_is_async)
        return home.serve(asyncio.run_coroutine_threadsafe(work(caller, *values), loop), loop)


async def run_here(work: Callable[..., Coroutine[Any, Any, Result]], *values: Any, unit_is_async: bool) -> Result:
    """The same for a caller on an event loop. A plain unit of work has a thread of its own meanwhile."""
    if unit_is_async:
        return await work(LoopCaller(AnyThread(), unit_is_async=True), *values)
    home, loop = HomeThread(), asyncio.get_running_loop()
    ending: Future[None] = Future()
    # A thread of its own: those of the loop's pool may all be waiting for what this call is to do.
    thread.start("detent-inbox", lambda: home.serve(ending, loop))
    try:
        return await work(LoopCaller(home, unit_is_async=False), *values)
    finally:
        ending.set_result(None)
