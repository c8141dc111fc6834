"""A processor as a task: it waits for its lease, runs, and starts over when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from detent.errors import Conflict, DetentError, Fenced, Invalid
from detent.processor.declaration import Processor
from detent.processor.outcome import text_of
from detent.processor.records import ProcessorRecord
from detent.processor.runner import Runner
from detent.runtime.backoff import Backoff
from detent.runtime.report import Report, State
from detent.runtime.supervisor import OnEvent, Supervised
from detent.runtime.task import ANEW, Next, Restart, Task, Waits
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


def told(error: BaseException) -> str:
    """What went wrong, with what is known of where."""
    return f"{type(error).__name__}: {text_of(error, notes=True)}"


class ProcessorTask(Task):
    """One processor of a graph in this process. A life of it is a `Runner`."""

    kind = "processor"
    calls_users = True

    def __init__(
        self,
        processor: Processor,
        consumer: str,
        make: Callable[[], Runner],
        store: Store,
        *,
        member: str,
        lease_ms: int,
    ) -> None:
        super().__init__(f"detent-processor-{processor.name}")
        self.restart = Restart(RETRY, steady_s=STEADY_S)
        self.processor = processor
        self.consumer = consumer
        self._make = make
        self.stored = FencedRecord(store, consumer)
        """What the graph's own store has of it, for questions: no fence is raised."""
        self._membership = Membership(store, consumer, lease_ms, member)
        self._is_paused = False
        self._fence = 0
        self._number: int | None = None
        """Which record of that name it is: a process that had one that was deleted meanwhile does not begin it anew."""
        self._begun: Runner | None = None
        self.runner: Runner | None = None
        """The one at work, once it has recovered."""
        self.record: ProcessorRecord | None = None
        """The last one that was durable when it ended."""
        self.generation: int | None = None
        """The newest reset of which the store told, as long as this process has the lease."""

    # -- its life -----------------------------------------------------------------------------------------------

    def open(self) -> Waits | None:
        """Take the lease, then the fences, and recover."""
        if not self._take_lease():
            return Waits(State.STANDBY, "another process runs it", STANDBY_S)
        if self._is_paused:
            return Waits(State.PAUSED, "the store says that it shall rest", STANDBY_S)
        runner = self._begun = self._make()
        runner.open(self._number)
        self._number, self.record, self.runner = runner.number, runner.record, runner
        return None

    def step(self) -> Next:
        """Run until told to end."""
        assert self.runner is not None, "it was opened"
        self.runner.run()
        return ANEW

    def close(self) -> None:
        """Let go of everything but the lease."""
        runner, self._begun = self._begun, None
        if runner is not None:
            self.record, self._fence = runner.record, runner.fence
            self.runner = None
            runner.close()

    def leave(self) -> None:
        """Give the lease back."""
        self.generation = None  # it has nothing to report any more: another process may run it
        try:
            self._membership.give_back()
        except Exception as error:  # noqa: BLE001 - it ends by itself
            text = "the lease of %s could not be given back, and ends by itself: %s"
            logger.warning(text, self.processor.name, error)

    def interrupt(self) -> None:
        """End after the step under way."""
        if (runner := self.runner) is not None:
            runner.stop()

    def was_replaced(self, error: Fenced) -> bool:
        """Whether another process has raised this processor's own fence: it was taken over, or reset. Otherwise what
        its function writes to was, and the same would happen again at once."""
        del error
        try:
            return self.stored.find().fence != self._fence
        except DetentError:  # it fails the same way when it begins again
            return False

    def describe(self, error: Exception) -> str:
        """What went wrong."""
        return told(error)

    def failed(self, error: Exception, pause_s: float) -> None:
        """Say so in the log, with where it went wrong."""
        text = "the processor %s failed, and starts over in %.1f s"
        logger.warning(text, self.processor.name, pause_s, exc_info=error)

    def report(self, so_far: Report) -> Report:
        """What became of its input sets."""
        record = self.record if (runner := self.runner) is None else runner.record
        if record is None:
            return so_far
        totals = record.totals
        done = {"steps": totals.steps, "outputs": totals.outputs, "errors": totals.errors, "nils": totals.nils}
        return replace(so_far, name=self.processor.name, progress=done)

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
        found = self.stored.describe()
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

    def beat(self, status: str, error: BaseException | None) -> None:
        """Renew the lease, as long as this process has it, and tell the store how the processor is doing."""
        generation = self.generation
        if generation is None:
            return
        said = "" if error is None else told(error)[: ops.ERROR_CHARACTERS_MAX]
        try:
            self._give_way(self._membership.beat(ops.ReportShard(self.consumer, 0, generation, status, said)))
        except Exception as failure:  # noqa: BLE001 - the leases of the other processors are to be renewed all the same
            logger.warning("%s goes on as long as it can: the store says %s", self.processor.name, failure)

    def _give_way(self, found: ops.ConsumerDescription) -> None:
        """Begin again if the store has a higher fence than this one works with, or a newer reset, or says that it shall
        rest. One that waits for messages would not hear of it otherwise."""
        runner, state = self.runner, found.states[0]
        if runner is None or runner.record is None:
            return
        if found.paused or runner.fence < state.fence or runner.record.generation < state.generation:
            runner.stop()


class SupervisedProcessor(Supervised):
    """A processor under supervision."""

    task: ProcessorTask

    def __init__(self, task: ProcessorTask, on_event: OnEvent) -> None:
        def tell(status: str, name: str, why: str) -> None:
            del name
            if status not in {State.STARTING, State.STOPPED}:  # this process was told to, and knows
                on_event(str(status), task.processor.name, why)

        super().__init__(task, tell)

    @property
    def processor(self) -> Processor:
        """What it runs."""
        return self.task.processor
