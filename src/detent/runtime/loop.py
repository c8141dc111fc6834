"""An event loop in a thread of its own, for coroutines of programs that have none."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from typing import Any, Final

from detent.errors import Unavailable
from detent.runtime.thread import Thread, start

ENDED: Final = "this process ends, and has cut off what was under way"

STOP_S: Final = 5.0
"""How long the loop may take to end the step that it is in."""

_ends: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, bool]] = weakref.WeakKeyDictionary()
"""Whether a loop that was made here cancels what is under way because it ends."""

logger = logging.getLogger("detent.loop")


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs until the block ends."""
    loop = asyncio.new_event_loop()
    _ends[loop] = False
    thread = start("detent-loop", loop.run_forever)
    try:
        yield loop
    finally:
        _end(loop, thread)


def _end(loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
    """On the loop's own thread, since the caller's may have one, too."""
    ending = asyncio.run_coroutine_threadsafe(_end_all(), loop)
    with suppress(NotYet):
        ending.result(STOP_S)
    loop.call_soon_threadsafe(loop.stop)
    if not thread.join(STOP_S):  # a coroutine blocks it, and ends with the process
        logger.warning("an event loop did not end within %s s: a coroutine waits without await", STOP_S)
    else:
        loop.close()


async def _end_all() -> None:
    """Cancel what still runs, and let it tidy up for a while."""
    loop = asyncio.get_running_loop()
    _ends[loop] = True
    late = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=STOP_S / 2)
    await loop.shutdown_asyncgens()


def call_on(loop: asyncio.AbstractEventLoop) -> Callable[[Any], Any]:
    """Runs a coroutine on a loop of another thread, and answers what it does. `Unavailable` if the loop ends first: it
    did not fail then, and it is not known what it has done."""

    def call(coroutine: Any) -> Any:
        whole = _contained(coroutine)
        try:
            answer, error = asyncio.run_coroutine_threadsafe(whole, loop).result()
        except CancelledError as cancelled:
            raise Unavailable(ENDED) from cancelled
        except RuntimeError as closed:
            if not loop.is_closed():
                raise
            whole.close()
            coroutine.close()
            raise Unavailable(ENDED) from closed
        if error is not None:
            raise error
        return answer

    return call


async def _contained(coroutine: Any) -> tuple[Any, BaseException | None]:
    """What a coroutine answers, or raised. What ends programs would end the loop, and leave all others on it waiting
    for ever; so it is handed to the caller."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error
    except asyncio.CancelledError as error:
        if task.cancelling() and _ends.get(asyncio.get_running_loop(), True):
            raise
        failure = RuntimeError("the coroutine was cancelled by what it called")
        failure.__cause__ = error
        return None, failure
