"""The life of a task, in five steps.

1. **start**  A supervisor gives the task its ground: a thread, an event loop, or turns in the caller's thread.
2. **open**   The task takes what it needs: a lease, a fence, a connection. If it may not run yet, because another
              process has the lease or the store says that it shall rest, it answers `Waits` and is opened again later.
3. **step**   Again and again. Each step answers when the next one is due: at once (`AGAIN`), or in so many seconds
              unless the task is woken before. `ANEW` ends this life and begins the next one, `DONE` is the end.
4. **fail**   An error ends this life: the task is closed, rests as its `restart` says, and is opened again. One that
              has a lease, and was replaced (`Fenced`), looks at it at once; a hopeless error is the end, and so is
              an exception that ends programs.
5. **stop**   The step under way ends, the task is closed, and leaves: it gives back for good what it has had.

A kind of worker is a subclass of `Task` that says what its five steps are. `Supervised` (`supervisor.py`) is the one
loop that takes tasks through them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, Union

from detent.errors import DetentError, Fenced
from detent.runtime.backoff import Backoff
from detent.runtime.report import Report

logger = logging.getLogger("detent.runtime")


class Ending(enum.Enum):
    """What a step says that ends a life without an error."""

    ANEW = "anew"
    DONE = "done"


AGAIN: Final = 0.0
"""The next step is due at once."""

ANEW: Final = Ending.ANEW
"""The next life begins at once: something changed that is read when a life begins."""

DONE: Final = Ending.DONE
"""Nothing is left to do, ever."""

Next = float | Ending
"""What a step says of the next one: in how many seconds it is due, unless the task is woken before; or an end."""


class Waits(NamedTuple):
    """Not yet: the task waits until it may run."""

    status: str
    """"standby" or "paused"."""

    why: str
    look_s: float
    """When to open it again, unless it is woken before."""


RESTART: Final = Backoff(0.25, 30.0)
"""How long a task rests whose kind does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Restart:
    """How a task that failed begins again."""

    backoff: Backoff = RESTART
    steady_s: float | None = None
    """A life of at least this length before the failure makes the failure the first one again. None: one step that
    worked does. Tasks whose whole life is one long step need a time."""

    tries_max: int | None = None
    """More failures in a row than this end it. None: it is never given up."""


Given = TypeVar("Given")
Maybe = Union[Given, Awaitable[Given]]  # noqa: UP007 - mypy takes no type variable before a bar
"""A task's functions are plain. Of a task that runs on an event loop they may be coroutines."""


class Task:
    """Something that works until it is told to stop. Subclasses override what they need; `step` they must."""

    kind: str = "task"
    """What it is, in one word, for reports."""

    restart: Restart = Restart()

    calls_users: bool = False
    """Whether its steps call functions of the user's: one that raises `SystemExit` or `KeyboardInterrupt` has failed
    then, as with any other error. Of a task that calls none, such an exception is the end: it is not tried again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wake: Callable[[], None] = lambda: None
        """What it waits for between two steps may have come. For any thread; its supervisor says how."""
        self.worked: Callable[[], None] = lambda: None
        """It has worked, which its steps do not show: with `steady_s`, the next failure is the first one again."""

    def open(self) -> Maybe[Waits | None]:
        """Take what a life needs, or say that it has to wait."""

    def step(self) -> Maybe[Next]:
        """Do a piece of the work, and say when the next one is due."""
        raise NotImplementedError

    def close(self) -> Maybe[None]:
        """Let go of what `open` took. Called after every `open`, also one that waits or that failed half-way."""

    def leave(self) -> Maybe[None]:
        """For good, after the last life: give back what others may have now, or do a last piece of work."""

    def interrupt(self) -> None:
        """It shall stop, or begin anew: end a step that waits by itself. For any thread. It may come before that step
        has begun, which then has to end as soon."""

    def kill(self) -> None:
        """It did not stop in time: end it by force, if that can be done."""

    def report(self, so_far: Report) -> Report:
        """How it is doing: the state is known, progress and lag are the task's to say."""
        return so_far

    # -- failures -----------------------------------------------------------------------------------------------

    def was_replaced(self, error: Fenced) -> bool:
        """Whether another process has this task's place, and not that of something which it writes to. Then `open`
        looks at the lease at once, so a task without one never says so: it would begin anew without a rest."""
        del error
        return False

    def is_hopeless(self, error: Exception) -> bool:
        """Whether another try would fail the same way."""
        del error
        return False

    def describe(self, error: Exception) -> str:
        """What went wrong, for reports."""
        return f"{type(error).__name__}: {error}"

    def gave_up(self, error: Exception) -> None:
        """Log that it failed for good."""
        logger.error("%s failed, and is not tried again: %s", self.name, self.describe(error))

    def failed(self, error: Exception, pause_s: float) -> None:
        """Log that a life ended so, and that the next one begins after a pause."""
        trace = None if isinstance(error, DetentError) else error
        text = "%s failed, and starts over in %.1f s: %s"
        logger.warning(text, self.name, pause_s, self.describe(error), exc_info=trace)
