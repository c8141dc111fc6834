"""A shard as a process has it: one life after another, each in a thread; or a standby that follows it."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from detent.consumer.progress import Progress
from detent.consumer.shard import MESSAGES_MAX, Assignment, Shard
from detent.errors import DetentError, LimitExceeded
from detent.runtime.backoff import Backoff, Failures
from detent.state.base import ShardState, Standby

RETRY: Final = Backoff(0.25, 30.0)
"""How long a shard that failed rests before it starts over: at first, and at most."""

STEADY_S: Final = 60.0
"""A shard that worked for so long before it failed begins again with a short rest."""

JOIN_S: Final = 0.1
"""How often a shard is told to stop while it is waited for: it may just be starting."""

logger = logging.getLogger("detent.consumer")

Opening = Callable[[], ShardState]


class Held:
    """A shard that this process holds: how far it is, its present life, and when it may start again."""

    def __init__(self, index: int, generation: int) -> None:
        self.index = index
        self.progress = Progress()
        self.journals: tuple[str, ...] = ()
        self.error: BaseException | None = None
        self.leaving = False
        """Whether it is to be given back when its life has ended."""
        self.shard: Shard | None = None
        self._before: Shard | None = None
        self._generation = generation
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        self._failures = Failures(RETRY, steady_s=STEADY_S)
        self._messages_max = MESSAGES_MAX

    @property
    def is_alive(self) -> bool:
        """Whether it is at work."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_due(self) -> bool:
        """Whether it is to start, for the first time or over."""
        return not self.is_alive and not self.leaving and time.monotonic() >= self._retry_at

    @property
    def generation(self) -> int:
        """The newest reset that it knows of."""
        return max(self._generation, 0 if self.shard is None else self.shard.generation)

    @property
    def was_fenced(self) -> bool:
        """Whether it ended because another process has its state."""
        return self.shard is not None and self.shard.was_fenced

    def start(self, given: Assignment, opening: Opening, *, once: bool = False) -> None:
        """A new life, in a thread of its own."""
        self.journals = given.journals
        self.error = None
        self._before, self.shard = self.shard or self._before, None
        self._failures.began()
        self._thread = threading.Thread(
            target=self._live, args=(given, opening, once), name=f"detent-shard-{self.index}", daemon=True
        )
        self._thread.start()

    def _live(self, given: Assignment, opening: Opening, once: bool) -> None:
        try:
            self.shard = Shard(given, opening(), self.progress, self._messages_max, self._before)
            if self.leaving:
                self.shard.stop()
            self.shard.run(once=once)
        except BaseException as error:  # noqa: BLE001 - the worker looks at it
            self.error = error

    def stop(self) -> None:
        """Let it finish its transaction and end. For any thread."""
        if self.shard is not None:
            self.shard.stop()

    def leave(self) -> None:
        """The same, for good."""
        self.leaving = True
        self.stop()

    def join(self) -> None:
        """Wait for its end."""
        while self._thread is not None and self._thread.is_alive():
            self.stop()
            self._thread.join(JOIN_S)

    def failed(self, error: BaseException) -> str:
        """Its life ended so. It starts over after a rest; answers what to tell of it."""
        pause_s = self._failures.failed()
        if self._failures.in_a_row == 1:
            self._messages_max = MESSAGES_MAX
        if isinstance(error, LimitExceeded) and self.shard is not None and self.shard.last_messages > 1:
            self._messages_max = self.shard.last_messages // 2  # a smaller transaction may fit
        self._retry_at = time.monotonic() + pause_s
        text = why(error)
        self.progress.say("failed", text)
        return text


class Following:
    """A standby in this process, at work in a thread."""

    def __init__(self, standby: Standby, index: int) -> None:
        self._standby = standby
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"detent-standby-{index}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._standby.follow(lambda: self._stopped)
            except Exception as error:
                logger.warning("following a shard failed, and is tried again: %s", error, exc_info=error)
                time.sleep(RETRY.first_s)

    def take_over(self) -> ShardState:
        """Stop following; the state as far as it was followed."""
        self.stop()
        return self._standby.take_over()

    def stop(self) -> None:
        """Stop following."""
        self._stopped = True
        self._thread.join()


def why(error: BaseException) -> str:
    """What went wrong, and for an error of the application's in which line of it."""
    ours = str(Path(__file__).parent.parent)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames and not isinstance(error, DetentError) else ""
    return f"{place}{type(error).__name__}: {error}"
