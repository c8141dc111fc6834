"""**Supervised**: one task, taken through its life. **Supervisor**: several of them, started and stopped in order.

with Supervisor(on_event) as supervisor:
    supervisor.add(Forwarding(...))
    supervisor.add(Taking(...))     # started last, stopped first
    supervisor.run()                # until SIGTERM, or until a task has failed for good
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, Final, Self

from detent.errors import Fenced
from detent.runtime import thread
from detent.runtime.backoff import Failures
from detent.runtime.ground import PROGRAM_ENDS, Ground, InThread, InTurns, OnLoop, drive
from detent.runtime.report import Report, Reporter, State
from detent.runtime.signals import stop_on_signals
from detent.runtime.task import ANEW, DONE, Ending, Next, Task

LOOK_S: Final = 0.2
"""How often a supervisor that runs looks whether it is to stop."""

KILL_S: Final = 5.0
"""How long a task that was killed is waited for."""

FENCED: Final = "fenced"
"""The status of a task that another process has replaced, until it has looked at its lease."""

OnEvent = Callable[[str, str, str], None]
"""Is told what becomes of a task: (its status, its name, why)."""

logger = logging.getLogger("detent.runtime")


class Supervised:
    """A task under supervision: started, rested after a failure, started over, stopped. For any thread."""

    def __init__(
        self, task: Task, on_event: OnEvent | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.task = task
        task.wake = self.wake
        task.worked = self.worked
        self.name = task.name
        self.status: str = State.STOPPED
        """A `State`, or `FENCED`."""
        self.error: Exception | None = None
        """Why its last life failed; None since it works again."""
        self.failure: Exception | None = None
        """What ended it for good."""
        self.restarts = 0
        self._on_event = on_event
        self._clock = clock
        self._failures = Failures(task.restart.backoff, steady_s=task.restart.steady_s, clock=clock)
        self._reporter = Reporter(task.kind, task.name)
        self._stopping = self._renews = False
        self._steering = threading.RLock()
        self._ground: Ground = InTurns()
        self._thread: thread.Thread | None = None
        self._turns: Coroutine[Any, Any, None] | None = None
        self._due: float | None = None

    # -- where it runs ------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin, in a thread of its own, unless it has begun. One that is still ending is waited for."""
        with self._steering:
            if self._stopping or not self.is_alive:
                self.join()
                lives = self._begin(InThread())
                self._thread = thread.Thread(self.name, lambda: drive(lives))
                self._thread.start()
        return self

    def work(self) -> None:
        """Work in the caller's thread, until told to stop. Raises what ended it for good."""
        drive(self._begin(InThread(PROGRAM_ENDS)))
        if self.failure is not None:
            raise self.failure

    async def run(self) -> None:
        """The same on the caller's event loop, where the functions of the task may be coroutines that wait."""
        await self._begin(OnLoop())
        if self.failure is not None:
            raise self.failure

    def start_turns(self) -> Self:
        """Begin, in turns: it works whenever `turn` is called, and never by itself."""
        self._turns, self._due = self._begin(InTurns()), self._clock()
        return self

    def turn(self) -> float | None:
        """Work up to the next wait, if something is due; how long nothing will be. None if it has ended."""
        if self._turns is None:
            return None
        assert isinstance(self._ground, InTurns)
        now = self._clock()
        if self._ground.is_woken or (self._due is not None and self._due <= now):
            try:
                pause_s = self._turns.send(None)
            except StopIteration:
                self._turns = None
                return None
            except BaseException:  # Ctrl-C in a step: it is over
                self._turns = None
                raise
            now = self._clock()  # the step may have taken long, and a pause is from its end
            self._due = None if pause_s is None else now + pause_s
        return LOOK_S if self._due is None else max(0.0, self._due - now)

    # -- from outside -------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether it is at work, or waits to be."""
        return self._turns is not None or (self._thread is not None and self._thread.is_alive)

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping

    def wake(self) -> None:
        """What the task waits for may have come. A rest after a failure goes on."""
        self._ground.wake()

    def worked(self) -> None:
        """The task has worked: the next failure is the first one again."""
        self._failures.worked()
        self.error = None

    def restart(self) -> None:
        """End this life after the step under way and begin the next one, at once if it rests after a failure."""
        with self._steering:
            if not self.is_alive:
                self.start()
                return
            self._failures.worked()
            self.error, self.status = None, State.STARTING
            self.renew()

    def renew(self) -> None:
        """The same for one that works: failures still count."""
        self._renews = True
        self._interrupt()

    def stop_soon(self) -> None:
        """End after the step under way. Returns at once."""
        self._stopping = True
        self._interrupt()

    def stop(self, patience_s: float | None = None) -> bool:
        """End after the step under way, and wait for that. What takes longer is killed if it can be. Whether it ended
        by itself, in time."""
        self.stop_soon()
        if self.join(patience_s):
            return True
        self.task.kill()
        self.join(KILL_S if type(self.task).kill is not Task.kill else 0.0)
        return False

    def join(self, patience_s: float | None = None) -> bool:
        """Wait for its end, for so long at most; whether it has ended. A task cannot wait for itself."""
        if self._thread is not None:
            return not self._thread.is_current and self._thread.join(patience_s)
        deadline = None if patience_s is None else self._clock() + patience_s
        while (pause_s := self.turn()) is not None:
            if deadline is not None and self._clock() >= deadline:
                return False
            time.sleep(min(pause_s, LOOK_S))
        return True

    def report(self) -> Report:
        """How it is doing."""
        return self.task.report(self._reporter.report())

    # -- its life -----------------------------------------------------------------------------------------------

    def _begin(self, ground: Ground) -> Coroutine[Any, Any, None]:
        self._ground = ground
        self._stopping = self._renews = False
        self.error = self.failure = None
        self._failures.worked()
        self._say(State.STARTING)
        return self._lives()

    async def _lives(self) -> None:
        try:
            while not self._stopping and await self._life():
                pass
        finally:
            try:
                await self._ground.call(self.task.leave)
            except Exception:
                logger.exception("%s could not leave in good order", self.name)
            if self.failure is None:
                self._say(State.STOPPED)

    async def _life(self) -> bool:
        """One life, and the rest after it; whether another one follows."""
        self._renews = False
        self._failures.began()
        try:
            return await self._open_and_step() is not DONE
        except self._ground.ends:
            raise
        except Exception as error:  # noqa: BLE001 - it is kept, shown and tried again
            return await self._failed(error)
        except BaseException as error:  # noqa: BLE001 - or the thread would end without a word
            failure = RuntimeError(f"it raised {error!r}, which ends programs and not messages")
            failure.__cause__ = error
            is_end = isinstance(error, KeyboardInterrupt | SystemExit) and not self.task.calls_users
            return await self._failed(failure, is_end=is_end)

    async def _open_and_step(self) -> Ending:
        self._ground.clear()
        try:
            waits = await self._ground.call(self.task.open)
            if waits is None:
                self._say(State.RUNNING)
                if self.task.restart.steady_s is not None:
                    self.error = None
                return await self._steps()
            self._say(waits.status, waits.why)
        finally:
            await self._ground.call(self.task.close)
        if not self._stopping:
            await self._ground.wait(waits.look_s)
        return ANEW

    async def _steps(self) -> Ending:
        while not self._stopping and not self._renews:
            self._ground.clear()
            if self._stopping or self._renews:  # said just before the bell was cleared
                break
            answer: Next = await self._ground.call(self.task.step)
            if self.task.restart.steady_s is None:
                self.worked()
            if isinstance(answer, Ending):
                return answer
            await self._ground.wait(answer)
        return ANEW

    async def _failed(self, error: Exception, *, is_end: bool = False) -> bool:
        """A life has failed; whether another one follows, after a rest."""
        if isinstance(error, Fenced) and self.task.was_replaced(error):
            self._say(FENCED, str(error))
            return True
        pause_s = self._failures.failed()
        tries_max = self.task.restart.tries_max
        self.error = error
        is_last = tries_max is not None and self._failures.in_a_row > tries_max
        if is_end or is_last or self.task.is_hopeless(error):
            self.failure = error
            self.task.gave_up(error)
        else:
            self.restarts += 1
            self._reporter.restarted()
            self.task.failed(error, pause_s)
        self._reporter.failed(self.task.describe(error))
        self._say(State.FAILED, self.task.describe(error))
        if self.failure is None:
            await self._rest(pause_s)
        return self.failure is None

    async def _rest(self, pause_s: float) -> None:
        until = self._clock() + pause_s
        while not self._stopping and not self._renews and self._clock() < until:
            self._ground.clear()
            if not self._stopping and not self._renews:
                await self._ground.wait(until - self._clock())

    def _interrupt(self) -> None:
        self._ground.wake()
        self.task.interrupt()

    def _say(self, status: str, why: str = "") -> None:
        """A listener that fails is not a reason to end."""
        if status == self.status and status != State.FAILED:
            return
        self.status = status
        if status != State.FAILED:
            self._reporter.say(State.STANDBY if status == FENCED else State(status))
        if self._on_event is None:
            return
        try:
            self._on_event(str(status), self.name, why)
        except Exception:
            logger.exception("on_event failed, when it was told that %s is %s", self.name, status)


class Supervisor:
    """Several tasks: started in the order in which they are added, stopped in the opposite one. The end of one that is
    hopeless is the end of all. With `in_turns` all work in the thread of `run`."""

    def __init__(
        self,
        on_event: OnEvent | None = None,
        *,
        in_turns: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tasks: list[Supervised] = []
        self._on_event = on_event
        self._in_turns = in_turns
        self._clock = clock

    def add(self, task: Task) -> Supervised:
        """Look after this one, too, once it is started."""
        self.tasks.append(Supervised(task, self._on_event, clock=self._clock))
        return self.tasks[-1]

    @property
    def failure(self) -> Exception | None:
        """What ended a task for good."""
        return next((one.failure for one in self.tasks if one.failure is not None), None)

    def reports(self) -> list[Report]:
        """How each of them is doing."""
        return [one.report() for one in self.tasks]

    def start(self) -> None:
        """Begin with all that have not begun."""
        for one in self.tasks:
            if not one.is_alive:
                one.start_turns() if self._in_turns else one.start()

    def run(
        self,
        stopping: threading.Event | None = None,
        *,
        patience_s: float | None = None,
        look: Callable[[], None] | None = None,
    ) -> list[Supervised]:
        """Work until `stopping` is set (without it: SIGTERM, Ctrl-C), all are done, or one has failed for good, which
        is raised; then stop. `look` is called now and then. Answers the tasks that did not end in time."""
        stopped = stopping or threading.Event()
        late: list[Supervised] = []
        with nullcontext() if stopping is not None else stop_on_signals(stopped):
            try:
                self.start()
                while not stopped.is_set() and self.failure is None and any(one.is_alive for one in self.tasks):
                    stopped.wait(self._turn() if self._in_turns else LOOK_S)
                    if look is not None:
                        look()
            finally:
                late = self.stop(patience_s)
        if self.failure is not None:
            raise self.failure
        return late

    def _turn(self) -> float:
        pauses = [pause_s for one in self.tasks if (pause_s := one.turn()) is not None]
        return min([LOOK_S, *pauses])

    def stop_soon(self) -> None:
        """All end after the step under way, at the same time. Returns at once."""
        for one in reversed(self.tasks):
            one.stop_soon()

    def stop(self, patience_s: float | None = None) -> list[Supervised]:
        """Stop the last one first and wait for its end before the next one is told, unless `stop_soon` told them. All
        together may take so long; which did not end in time."""
        deadline = None if patience_s is None else self._clock() + patience_s
        late = []
        for one in reversed(self.tasks):
            if not one.stop(None if deadline is None else max(0.0, deadline - self._clock())):
                late.append(one)
        return late
