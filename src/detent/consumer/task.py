"""A shard as a process has it: one life after another, each with a new fence; or a standby that follows it."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from detent.consumer.progress import Progress
from detent.consumer.shard import MESSAGES_MAX, Shard, ShardSetup
from detent.errors import DetentError, Fenced, LimitExceeded
from detent.runtime.backoff import Backoff
from detent.runtime.report import State
from detent.runtime.supervisor import FENCED, Supervised
from detent.runtime.task import AGAIN, ANEW, DONE, Next, Restart, Task, Waits
from detent.state.base import ShardState, Standby

RETRY: Final = Backoff(0.25, 30.0)
"""How long a shard that failed rests before it starts over: at first, and at most."""

STEADY_S: Final = 60.0
"""A shard that worked for so long before it failed begins again with a short rest."""

LOOK_S: Final = 0.2
"""How often a shard that shall rest looks whether it may go on."""

logger = logging.getLogger("detent.consumer")


class ShardTask(Task):
    """A shard that this process holds. A life of it is a `Shard`, which is its only step."""

    kind = "shard"
    calls_users = True

    def __init__(
        self,
        index: int,
        generation: int,
        assign: Callable[[int], ShardSetup | None],
        following: SupervisedStandby | None = None,
        *,
        once: bool = False,
    ) -> None:
        """`assign` says what the next life works with; None while it shall rest. `following` is a standby that has
        followed the shard here. With `once` it ends when it has read what there is, or fails."""
        super().__init__(f"detent-shard-{index}")
        self.restart = Restart(RETRY, steady_s=STEADY_S)
        self.index = index
        self.progress = Progress()
        self.leaving = False
        """Whether it is to be given back when its life has ended."""
        self.shard: Shard | None = None
        self._given: ShardSetup | None = None
        self._before: Shard | None = None
        self._assign = assign
        self._following = following
        self._generation = generation
        self._once = once
        self._is_told = False
        self._began_at = 0.0
        self._messages_max = MESSAGES_MAX

    @property
    def generation(self) -> int:
        """The newest reset that it knows of."""
        return max(self._generation, 0 if self.shard is None else self.shard.generation)

    @property
    def journals(self) -> tuple[str, ...] | None:
        """The journals that its life reads; None before the first one."""
        return None if self._given is None else self._given.journals

    def open(self) -> Waits | None:
        """Learn what there is to do."""
        self._is_told = False
        if self.leaving:
            return Waits(State.STANDBY, "it is given back", LOOK_S)
        given = self._assign(self.index)
        if given is None:
            self.progress.say("paused")
            return Waits(State.PAUSED, "the store says that it shall rest", LOOK_S)
        self._given, self._began_at = given, time.monotonic()
        self._before, self.shard = self.shard or self._before, None
        return None

    def step(self) -> Next:
        """One life of the shard, from where a standby is, if one has followed it here."""
        given, following = self._given, self._following
        assert given is not None, "it was opened"
        self._following = None
        state = given.consumer.state.open(given.store, given.name) if following is None else following.take_over()
        shard = self.shard = Shard(given, state, self.progress, self._messages_max, self._before)
        if self._is_told:
            shard.stop()
        shard.run(once=self._once)
        return DONE if self._once else ANEW

    def interrupt(self) -> None:
        """Let it finish its transaction and end."""
        self._is_told = True
        if (shard := self.shard) is not None:
            shard.stop()

    def was_replaced(self, error: Fenced) -> bool:
        """Whether another process has its state, so that it is to be given back. Otherwise what it writes to was."""
        if self._once or self.shard is None or not self.shard.was_fenced:
            return False
        logger.warning("shard %d was taken over: %s", self.index, error)
        self.progress.say("fenced", str(error))
        self.leaving = True
        return True

    def is_hopeless(self, error: Exception) -> bool:
        """A run that reads once what there is ends with the first failure."""
        del error
        return self._once

    def describe(self, error: Exception) -> str:
        """What went wrong, and in which line of the application."""
        return why(error)

    def failed(self, error: Exception, pause_s: float) -> None:
        """It starts over after a rest, with a smaller transaction where one was too large."""
        del pause_s
        if time.monotonic() - self._began_at >= STEADY_S:
            self._messages_max = MESSAGES_MAX
        if isinstance(error, LimitExceeded) and self.shard is not None and self.shard.last_messages > 1:
            self._messages_max = self.shard.last_messages // 2
        self.progress.say("failed", why(error))
        logger.error("shard %d failed and starts over", self.index, exc_info=error)


class SupervisedShard(Supervised):
    """A shard that this process holds, under supervision."""

    task: ShardTask

    def __init__(self, task: ShardTask, on_event: Callable[[str, int, str], None]) -> None:
        def tell(status: str, name: str, text: str) -> None:
            del name
            if status in {State.FAILED, FENCED}:
                on_event(str(status), task.index, text)

        super().__init__(task, tell)

    def leave(self) -> None:
        """Let it finish its transaction and end, for good."""
        self.task.leaving = True
        self.stop_soon()


class StandbyTask(Task):
    """Follows a shard that another process has."""

    kind = "standby"
    restart = Restart(Backoff(RETRY.first_s, RETRY.first_s))

    def __init__(self, standby: Standby, index: int) -> None:
        super().__init__(f"detent-standby-{index}")
        self.standby = standby
        self._is_told = False

    def step(self) -> Next:
        """Follow until told to stop."""
        self.standby.follow(lambda: self._is_told)
        return AGAIN

    def interrupt(self) -> None:
        """Stop following."""
        self._is_told = True

    def was_replaced(self, error: Fenced) -> bool:
        """It has no place that another process could take."""
        del error
        return False


class SupervisedStandby(Supervised):
    """A standby in this process, at work."""

    task: StandbyTask

    def take_over(self) -> ShardState:
        """Stop following; the state as far as it was followed."""
        self.stop()
        return self.task.standby.take_over()


def why(error: BaseException) -> str:
    """What went wrong, and for an error of the application's in which line of it."""
    ours = str(Path(__file__).parent.parent)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames and not isinstance(error, DetentError) else ""
    return f"{place}{type(error).__name__}: {error}"
