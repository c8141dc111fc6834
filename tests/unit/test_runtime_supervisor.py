"""A supervisor takes tasks through their lives: open, step, fail, rest, begin anew, stop in order."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from detent.errors import Fenced, Invalid, Unavailable
from detent.runtime.backoff import Backoff
from detent.runtime.process import Child, ChildTask, Died
from detent.runtime.report import State
from detent.runtime.supervisor import Supervised, Supervisor
from detent.runtime.task import AGAIN, ANEW, DONE, Next, Restart, Task, Waits

PATIENCE_S = 30.0
SOON = Restart(Backoff(0.001, 0.001))


class Scripted(Task):
    """Does what it is told, one step after another, and writes down what happens to it. After the last step it waits
    to be woken."""

    restart = SOON

    def __init__(self, *steps: Next | BaseException, opens: list[Waits | None] | None = None, name: str = "it") -> None:
        super().__init__(name)
        self.steps = list(steps)
        self.opens = opens or []
        self.did: list[str] = []
        self.idle = threading.Event()
        self.hopeless: type[Exception] | tuple[()] = ()

    def open(self) -> Waits | None:
        self.did.append("open")
        return self.opens.pop(0) if self.opens else None

    def step(self) -> Next:
        self.did.append("step")
        if not self.steps:
            self.idle.set()
            return PATIENCE_S
        said = self.steps.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said

    def close(self) -> None:
        self.did.append("close")

    def leave(self) -> None:
        self.did.append("leave")

    def is_hopeless(self, error: Exception) -> bool:
        return isinstance(error, self.hopeless)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def ran(task: Task, **options: Any) -> Supervised:
    """The task, after it has ended by itself."""
    supervised = Supervised(task, **options).start()
    assert supervised.join(PATIENCE_S)
    return supervised


def test_task_opens_steps_closes_and_leaves() -> None:
    task = Scripted(AGAIN, 0.001, DONE)
    assert ran(task).status == State.STOPPED
    assert task.did == ["open", "step", "step", "step", "close", "leave"]


def test_new_life_begins_at_once_without_a_failure() -> None:
    task = Scripted(ANEW, DONE)
    assert ran(task).restarts == 0
    assert task.did == ["open", "step", "close", "open", "step", "close", "leave"]


def test_failed_task_rests_and_begins_anew() -> None:
    events: list[tuple[str, str, str]] = []
    task = Scripted(Unavailable("away"), DONE)
    one = ran(task, on_event=lambda *event: events.append(event))
    assert task.did == ["open", "step", "close", "open", "step", "close", "leave"]
    assert [what for what, _, _ in events] == ["starting", "running", "failed", "running", "stopped"]
    assert events[2][1:] == ("it", "Unavailable: away")
    assert (one.restarts, one.error, one.failure) == (1, None, None)


def test_open_that_fails_is_closed() -> None:
    class Refused(Scripted):
        def open(self) -> Waits | None:
            super().open()
            if self.did.count("open") == 1:
                raise Unavailable("not yet")
            return None

    task = Refused(DONE)
    ran(task)
    assert task.did == ["open", "close", "open", "step", "close", "leave"]


def test_report_says_what_went_wrong_last() -> None:
    one = ran(Scripted(Unavailable("away"), DONE))
    said = one.report()
    assert (said.name, said.state, said.error, said.restarts) == ("it", State.STOPPED, "Unavailable: away", 1)


def test_failures_count_anew_after_a_step_that_worked() -> None:
    task = Scripted(Unavailable("1"), Unavailable("2"), AGAIN, Unavailable("1"), Unavailable("2"), DONE)
    task.restart = Restart(SOON.backoff, tries_max=2)
    assert ran(task).failure is None


def test_task_is_given_up_after_too_many_failures_in_a_row() -> None:
    task = Scripted(Unavailable("1"), Unavailable("2"), Unavailable("3"), DONE)
    task.restart = Restart(SOON.backoff, tries_max=2)
    one = ran(task)
    assert (str(one.failure), one.status, one.restarts) == ("3", State.FAILED, 2)
    assert task.did[-2:] == ["close", "leave"]


def test_steady_life_makes_the_next_failure_the_first() -> None:
    """Where a life is one long step, steps that worked say nothing, and time does."""
    now = [0.0]

    class Long(Scripted):
        restart = Restart(Backoff(1.0, 60.0), steady_s=10.0)
        pauses: list[float] = []  # noqa: RUF012

        def step(self) -> Next:
            now[0] += float(self.steps[0])  # type: ignore[arg-type]
            self.steps.pop(0)
            raise Unavailable("dead")

        def failed(self, error: Exception, pause_s: float) -> None:
            self.pauses.append(pause_s)

    task = Long(1.0, 1.0, 1.0, 20.0, 1.0)
    one = Supervised(task, clock=lambda: now[0]).start_turns()
    for _ in range(5):
        one.turn()
        now[0] += 100
    assert task.pauses == [1.0, 2.0, 4.0, 1.0, 2.0]
    one.stop_soon()
    assert one.join(PATIENCE_S)


def test_hopeless_error_ends_the_task() -> None:
    task = Scripted(Invalid("wrong"), DONE)
    task.hopeless = Invalid
    one = ran(task)
    assert (type(one.failure), one.status) == (Invalid, State.FAILED)


def test_exception_that_ends_programs_is_a_failure() -> None:
    task = Scripted(SystemExit(3), DONE)
    task.calls_users = True
    one = ran(task)
    assert one.restarts == 1
    assert one.status == State.STOPPED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_exception_that_ends_programs_ends_a_task_without_functions_of_users(error: BaseException) -> None:
    one = ran(Scripted(error, DONE))
    assert (one.restarts, one.status) == (0, State.FAILED)
    assert one.failure is not None
    assert one.failure.__cause__ is error


def test_replaced_task_looks_at_its_lease_at_once() -> None:
    events: list[str] = []
    task = Scripted(Fenced("another"), DONE, opens=[None, Waits("standby", "another process runs it", 0.001)])
    task.was_replaced = lambda error: True  # type: ignore[method-assign]
    task.restart = Restart(Backoff(PATIENCE_S, PATIENCE_S))
    one = ran(task, on_event=lambda what, _name, _why: events.append(what))
    assert events == ["starting", "running", "fenced", "standby", "running", "stopped"]
    assert one.restarts == 0


def test_fence_of_something_else_is_a_failure() -> None:
    task = Scripted(Fenced("what it writes to"), DONE)
    task.was_replaced = lambda error: False  # type: ignore[method-assign]
    assert ran(task).restarts == 1


def test_fence_is_a_failure_of_a_task_without_a_lease() -> None:
    """It would begin anew without a rest, again and again."""
    assert ran(Scripted(Fenced("another"), DONE)).restarts == 1
    task = Scripted(Fenced("another"), DONE)
    task.hopeless = Fenced
    assert isinstance(ran(task).failure, Fenced)


def test_task_that_waits_is_opened_again_until_it_may_run() -> None:
    task = Scripted(DONE, opens=[Waits("standby", "", 0.001), Waits("paused", "", 0.001)])
    ran(task)
    assert task.did == ["open", "close"] * 2 + ["open", "step", "close", "leave"]


def test_wake_ends_the_wait_between_two_steps() -> None:
    task = Scripted(PATIENCE_S, DONE)
    one = Supervised(task).start()
    wait_until(lambda: "step" in task.did)
    one.wake()
    assert one.join(PATIENCE_S)


def test_wake_ends_standby() -> None:
    task = Scripted(DONE, opens=[Waits("standby", "", PATIENCE_S)])
    one = Supervised(task).start()
    wait_until(lambda: one.status == State.STANDBY)
    one.wake()
    assert one.join(PATIENCE_S)


def test_wake_does_not_end_the_rest_after_a_failure() -> None:
    """A handler that commits wakes the forwarder each time; a database that is away must not be asked each time."""
    task = Scripted(Unavailable("away"), DONE)
    task.restart = Restart(Backoff(0.3, 0.3))
    one = Supervised(task)
    began = time.monotonic()
    one.start()
    wait_until(lambda: one.status == State.FAILED)
    while one.is_alive:
        one.wake()
        time.sleep(0.001)
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("first", [PATIENCE_S, Unavailable("away")])
def test_restart_and_stop_end_every_wait(first: Any) -> None:
    task = Scripted(first)
    task.restart = Restart(Backoff(PATIENCE_S, PATIENCE_S))
    one = Supervised(task).start()
    wait_until(lambda: "step" in task.did)
    one.restart()
    assert task.idle.wait(PATIENCE_S)
    assert task.did[:4] == ["open", "step", "close", "open"]
    assert one.stop(PATIENCE_S)
    assert task.did[-2:] == ["close", "leave"]


def test_stop_is_heard_wherever_the_task_is() -> None:
    """Many tries, each stopped at another moment: none waits out the minute that its step asked for."""
    for _ in range(300):
        one = Supervised(Scripted()).start()
        assert one.stop(PATIENCE_S / 2)


def test_stopped_task_can_start_again() -> None:
    task = Scripted()
    one = Supervised(task).start()
    assert one.stop(PATIENCE_S)
    one.start()
    assert one.is_alive
    assert one.stop(PATIENCE_S)


def test_interrupt_ends_a_step_that_waits_by_itself() -> None:
    class Waiting(Task):
        def __init__(self) -> None:
            super().__init__("waiting")
            self.over = threading.Event()

        def step(self) -> Next:
            assert self.over.wait(PATIENCE_S)
            return AGAIN

        def interrupt(self) -> None:
            self.over.set()

    assert Supervised(Waiting()).start().stop(PATIENCE_S)


def test_stop_says_which_task_is_late() -> None:
    class Hanging(Task):
        def __init__(self) -> None:
            super().__init__("hanging")
            self.over, self.begun = threading.Event(), threading.Event()

        def step(self) -> Next:
            self.begun.set()
            self.over.wait(PATIENCE_S)
            return AGAIN

    supervisor = Supervisor()
    one = supervisor.add(task := Hanging())
    supervisor.start()
    assert task.begun.wait(PATIENCE_S)
    assert supervisor.stop(0.01) == [one]
    task.over.set()
    assert one.join(PATIENCE_S)


def test_task_cannot_wait_for_itself() -> None:
    class Own(Scripted):
        def step(self) -> Next:
            self.joined = one.join(PATIENCE_S)
            return DONE

    task = Own()
    one = Supervised(task)
    one.start()
    wait_until(lambda: not one.is_alive)
    assert task.joined is False


def test_listener_that_fails_does_not_end_the_task() -> None:
    def refuse(*event: str) -> None:
        raise ValueError(event)

    assert ran(Scripted(DONE), on_event=refuse).status == State.STOPPED


# -- on an event loop, and in turns -----------------------------------------------------------------------------------


class Coroutines(Task):
    """The same on a loop, where each function is a coroutine."""

    restart = SOON

    def __init__(self, *steps: Next | BaseException) -> None:
        super().__init__("async")
        self.script = Scripted(*steps)

    async def open(self) -> Waits | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.script.open()

    async def step(self) -> Next:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.script.step()

    async def close(self) -> None:  # type: ignore[override]
        self.script.close()

    async def leave(self) -> None:  # type: ignore[override]
        self.script.leave()


def test_task_on_a_loop_has_the_same_life() -> None:
    task = Coroutines(AGAIN, Unavailable("away"), DONE)
    asyncio.run(Supervised(task).run())
    assert task.script.did == ["open", "step", "step", "close", "open", "step", "close", "leave"]


def test_task_on_a_loop_is_stopped_from_any_thread() -> None:
    async def scenario() -> None:
        task = Coroutines()
        one = Supervised(task)
        running = asyncio.create_task(one.run())
        while not task.script.idle.is_set():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(one.stop_soon)
        await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(scenario())


def test_cancelled_task_on_a_loop_closes_and_leaves() -> None:
    async def scenario() -> None:
        running = asyncio.create_task(Supervised(task).run())
        while not task.script.idle.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    task = Coroutines()
    asyncio.run(scenario())
    assert task.script.did[-2:] == ["close", "leave"]


def test_tasks_take_turns_in_one_thread() -> None:
    threads: list[int] = []

    class Here(Scripted):
        def step(self) -> Next:
            threads.append(threading.get_ident())
            return super().step()

    supervisor = Supervisor(in_turns=True)
    tasks = [Here(AGAIN, AGAIN, Unavailable("away"), DONE, name=name) for name in "ab"]
    for task in tasks:
        supervisor.add(task)
    supervisor.run(threading.Event())
    assert set(threads) == {threading.get_ident()}
    assert [task.did.count("step") for task in tasks] == [4, 4]


# -- several ----------------------------------------------------------------------------------------------------------


def test_last_task_is_stopped_first() -> None:
    order: list[str] = []

    class Leaving(Scripted):
        def leave(self) -> None:
            order.append(self.name)

    supervisor = Supervisor()
    for name in ("first", "second", "third"):
        supervisor.add(Leaving(name=name))
    supervisor.start()
    assert supervisor.stop(PATIENCE_S) == []
    assert order == ["third", "second", "first"]


def test_hopeless_task_ends_all_and_is_raised() -> None:
    supervisor = Supervisor()
    wrong, fine = Scripted(Invalid("wrong"), name="wrong"), Scripted(name="fine")
    wrong.hopeless = Invalid
    supervisor.add(fine)
    supervisor.add(wrong)
    with pytest.raises(Invalid, match="wrong"):
        supervisor.run(threading.Event())
    assert fine.did[-1] == "leave"


def test_supervisor_runs_until_told() -> None:
    supervisor, stopping, looks = Supervisor(), threading.Event(), []

    def look() -> None:
        looks.append(1)
        stopping.set()

    one = supervisor.add(Scripted())
    supervisor.run(stopping, look=look)
    assert (one.status, len(looks)) == (State.STOPPED, 1)
    assert [said.state for said in supervisor.reports()] == [State.STOPPED]


# -- child processes --------------------------------------------------------------------------------------------------


class Children(ChildTask):
    """Processes that run a line of Python."""

    restart = SOON

    def __init__(self, *codes: str) -> None:
        self.ends: list[int] = []
        self.codes = list(codes)
        super().__init__("child", self._next, lambda child, status: self.ends.append(status))

    def _next(self) -> Child:
        return Child([sys.executable, "-c", self.codes.pop(0)])


WAITS = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(60)"


def test_child_that_dies_is_started_again() -> None:
    task = Children("raise SystemExit(3)", WAITS)
    one = Supervised(task).start()
    wait_until(lambda: one.restarts == 1 and task.child is not None)
    assert isinstance(one.error, Died) or one.error is None
    assert task.ends == [3]
    assert one.stop(PATIENCE_S)
    assert task.ends == [3, -15]


def test_child_that_takes_too_long_is_killed() -> None:
    came = threading.Event()

    class Heard(Children):
        def _next(self) -> Child:
            return Child([sys.executable, "-c", STUBBORN.replace("print()", "print(1, flush=True)")],
                         heard=lambda _: came.set())  # fmt: skip

    task = Heard()
    one = Supervised(task).start()
    assert came.wait(PATIENCE_S)
    assert not one.stop(0.05)
    assert (task.ends, one.is_alive) == ([-9], False)


def test_child_ends_although_it_was_told_while_it_began() -> None:
    for _ in range(5):
        task = Children(WAITS)
        assert Supervised(task).start().stop(PATIENCE_S)
        assert task.ends in ([], [-15])


NOTES = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print(1, flush=True))
print(0, flush=True)
time.sleep(60)
"""


class Noting(Children):
    """Children that tell when they are ready, and of each time that they are asked to end."""

    def __init__(self, wait: bool = False) -> None:
        self.heard: list[int] = []
        self._wait = wait
        super().__init__(NOTES)

    def _next(self) -> Child:
        return Child([sys.executable, "-c", self.codes.pop(0)], heard=self.heard.append)

    def open(self) -> None:
        super().open()
        while self._wait and not self.heard:
            time.sleep(0.001)
        if self._wait:
            self.opened()

    def opened(self) -> None:
        """It is ready, and its step has not begun."""


def test_child_is_asked_once_to_end() -> None:
    """For most programs a second signal says not to wait for what they are at."""
    task = Noting()
    one = Supervised(task).start()
    wait_until(lambda: task.heard == [0])
    one.stop_soon()
    wait_until(lambda: task.heard == [0, 1])
    assert not one.stop(0.2)
    assert (task.heard, task.ends) == ([0, 1], [-9])


def test_child_that_was_told_while_it_began_is_asked_once_and_killed() -> None:
    class Told(Noting):
        def opened(self) -> None:
            one.stop_soon()

    task = Told(wait=True)
    one = Supervised(task)
    one.start()
    wait_until(lambda: task.heard == [0, 1])
    assert not one.stop(0.2)
    assert (task.heard, task.ends, one.is_alive) == ([0, 1], [-9], False)


def test_pause_between_turns_counts_from_the_end_of_a_step() -> None:
    now = 0.0

    class Slow(Task):
        def step(self) -> Next:
            nonlocal now
            now += 5.0
            return 1.0

    one = Supervised(Slow("slow"), clock=lambda: now).start_turns()
    assert (one.turn(), one.turn(), now) == (1.0, 1.0, 5.0)


def test_interrupt_of_the_program_in_a_turn_ends_the_task_and_is_raised() -> None:
    task = Scripted(KeyboardInterrupt())
    supervised = Supervised(task).start_turns()
    with pytest.raises(KeyboardInterrupt):
        supervised.turn()
    assert task.did == ["open", "step", "close", "leave"]
    assert not supervised.is_alive
    assert supervised.stop()


def test_task_of_long_lives_says_itself_that_it_has_worked() -> None:
    class Long(Scripted):
        restart = Restart(Backoff(1.0, 60.0), steady_s=float("inf"))
        works = False

        def step(self) -> Next:
            if self.works:
                self.worked()
            return super().step()

    now = [0.0]
    task = Long(*(OSError() for _ in range(6)))
    supervised = Supervised(task, clock=lambda: now[0]).start_turns()
    pauses = []
    for number in range(6):
        task.works = number == 3
        pauses.append(supervised.turn())
        now[0] += 100
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0, 4.0]
