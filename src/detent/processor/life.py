"""A processor under supervision: it waits for its lease, runs, and starts over when it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from detent.errors import Conflict, DetentError, Fenced, Invalid
from detent.processor.declaration import Processor
from detent.processor.outcome import text_of
from detent.processor.records import Record
from detent.processor.runner import Runner
from detent.runtime.backoff import Backoff, Failures
from detent.shard import operations as ops
from detent.stream.membership import Membership
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

RETRY: Final = Backoff(0.1, 30.0)
"""How long a processor that failed rests before it starts over: at first, and at most."""

STEADY_S: Final = 30.0
"""One that ran for so long before it failed begins again with a short rest."""

STANDBY_S: Final = 0.5
"""How often a processor that another process runs looks whether it is free."""

logger = logging.getLogger("detent.processor")

Event = Callable[[str, str, str], None]
"""Is told what happens to a processor: (what, which, more)."""


def told(error: BaseException) -> str:
    """What went wrong, with what is known of where."""
    return f"{type(error).__name__}: {text_of(error, notes=True)}"


class Life:
    """One processor of a graph that runs in this process, in a thread of its own."""

    def __init__(
        self,
        processor: Processor,
        consumer: str,
        make: Callable[[], Runner],
        store: Store,
        *,
        member: str,
        lease_ms: int,
        on_event: Event,
    ) -> None:
        self.processor = processor
        self.name = processor.name
        self.consumer = consumer
        self._make = make
        self._store = store
        self._membership = Membership(store, consumer, lease_ms, member)
        self._on_event = on_event
        self._wake = threading.Event()
        self._stopping = False
        self._is_paused = False
        self._failures = Failures(RETRY, steady_s=STEADY_S)
        self._fence = 0
        self._number: int | None = None
        """Which record of that name it is. One that was deleted meanwhile is not begun anew by whoever had it."""
        self._thread: threading.Thread | None = None
        self.runner: Runner | None = None
        self.record: Record | None = None
        """The last one that was durable when it ended."""
        self.generation: int | None = None
        """The newest reset of which the store told, as long as this process has the lease."""
        self.status = "stopped"
        self.error: BaseException | None = None
        self.restarts = 0

    # -- from outside -------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether it is at work, or waits to be."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, unless it has begun. One that is still ending is waited for."""
        if self.is_alive and not self._stopping:
            return
        self.join(None)
        self._stopping = False
        self.error = None
        self._failures.worked()
        self.status = "starting"
        self._thread = threading.Thread(target=self._run, name=f"detent-processor-{self.name}", daemon=True)
        self._thread.start()

    @property
    def was_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stopping

    def restart(self) -> None:
        """End after the step under way and begin again; at once if it rests after a failure."""
        if not self.is_alive:
            self.start()
            return
        self._failures.worked()
        self.error, self.status = None, "starting"
        self._wake_up()

    def _give_way(self, found: ops.ConsumerDescription) -> None:
        """Begin again if the store has a higher fence than this one works with, or a newer reset, or says that it shall
        rest. One that waits for messages would not hear of it otherwise."""
        runner, state = self.runner, found.states[0]
        if runner is None or runner.record is None:
            return
        if found.paused or runner.fence < state.fence or runner.record.generation < state.generation:
            runner.stop()

    def report(self) -> None:
        """Renew the lease, as long as this process has it, and tell the store how the processor is doing."""
        generation = self.generation
        if generation is None:
            return
        said = "" if self.error is None else told(self.error)[: ops.ERROR_CHARACTERS_MAX]
        try:
            self._give_way(self._membership.beat(ops.ReportShard(self.consumer, 0, generation, self.status, said)))
        except Exception as error:  # noqa: BLE001 - the leases of the other processors are to be renewed all the same
            logger.warning("%s goes on as long as it can: the store says %s", self.name, error)

    def stop(self) -> None:
        """End after the step under way, and give the lease back. Does not wait."""
        self._stopping = True
        self._wake_up()

    def _wake_up(self) -> None:
        runner = self.runner
        if runner is not None:
            runner.stop()
        self._wake.set()

    def join(self, deadline: float | None) -> bool:
        """Wait for its end. False if it has not come by then."""
        if self._thread is threading.current_thread():
            return False  # a function of the graph's cannot wait for itself
        while self._thread is not None and self._thread.is_alive():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._stopping:
                self._wake_up()  # it may just have been starting
            self._thread.join(0.1 if left is None else min(left, 0.1))
        return True

    # -- in its thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                if not self._stopping:
                    self._live_once()
        finally:
            self.generation = None  # it has nothing to report any more: somebody else may run it
            self._give_back()
            self.status = "stopped"

    def _live_once(self) -> None:
        """Take the lease and run until something ends it."""
        self._failures.began()
        try:
            if not self._take_lease():
                self._say("standby", "another process runs it")
                self._wake.wait(STANDBY_S)
            elif self._is_paused:
                self._say("paused", "the store says that it shall rest")
                self._wake.wait(STANDBY_S)
            else:
                self._work()
        except Fenced as error:
            if self._was_replaced():  # taken over, or reset: the lease says which
                self._say("fenced", str(error))
            else:  # what its function writes to was: the same would happen at once again
                self._failed(error)
        except Exception as error:  # noqa: BLE001 - it is kept, shown and tried again
            self._failed(error)
        except BaseException as error:  # noqa: BLE001 - or the thread would end without a word
            failure = RuntimeError(f"its function raised {error!r}, which ends programs and not messages")
            failure.__cause__ = error
            self._failed(failure)

    def _was_replaced(self) -> bool:
        """Whether somebody has raised this processor's fence since it began."""
        try:
            found = FencedRecord(self._store, self.consumer).find()
        except DetentError:  # it fails the same way when it begins again
            return False
        return found.fence != self._fence

    def _failed(self, error: Exception) -> None:
        """Say so, and rest."""
        pause_s = self._failures.failed()
        self.restarts += 1
        self.error = error
        self._say("failed", told(error))
        text = "the processor %s failed, and starts over in %.1f s"
        logger.warning(text, self.name, pause_s, exc_info=error)
        self._wake.wait(pause_s)

    def _work(self) -> None:
        runner = self._make()
        try:
            runner.open(self._number)
            self._number = runner.number
            self.record = runner.record
            self.runner = runner
            if self._stopping:
                return
            self._say("running", "")
            self.error = None
            runner.run()
        finally:
            self.record, self._fence = runner.record, runner.fence
            self.runner = None
            runner.close()

    def _say(self, status: str, more: str) -> None:
        if status != self.status or more:
            known, self.status = self.status, status
            if status != known or status == "failed":
                self._tell(status, more)

    def _tell(self, status: str, more: str) -> None:
        """Whoever wants to hear of it may fail to, and is no reason to end."""
        try:
            self._on_event(status, self.name, more)
        except Exception:
            logger.exception("on_event failed, when it was told that %s is %s", self.name, status)

    # -- the lease ----------------------------------------------------------------------------------------------

    def _take_lease(self, *, again: bool = True) -> bool:
        """Whether this process has the lease now."""
        try:
            taken = self._membership.take_only(self.processor.own_inputs)
        except Conflict:
            self.generation = None
        else:
            self.generation, self._is_paused = taken.states[0].generation, taken.paused
            return True
        found = FencedRecord(self._store, self.consumer).describe()
        if found is None:
            return False
        state = found.states[0]
        if self._number is None:
            self._number = state.number
        if self._membership.free_dead(state.holder):
            return again and self._take_lease(again=False)
        if found.shards != 1:
            raise Invalid(f"{self.consumer!r} is a consumer of another kind in this store: rename the graph")
        return False

    def _give_back(self) -> None:
        try:
            self._membership.give_back()
        except Exception as error:  # noqa: BLE001 - it ends by itself
            logger.warning("the lease of %s could not be given back, and ends by itself: %s", self.name, error)
