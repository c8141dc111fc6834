"""The one place that starts child processes, and the line that a child has to its parent.

A child's standard input is a pipe whose end is the parent's: it closes when the parent ends, however that happens, and
the child with it. On standard output the child writes notices, each a line of JSON.

    parent                                      child
    child = Child(command, heard=tell).start()  line = ParentLine()
    tell(["taken", 3])                          line.tell(["taken", 3])
    child.end(); child.join(30); child.kill()   line.on_end(stopping.set)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, Self

from detent.runtime import thread
from detent.runtime.task import ANEW, Next, Task

LAST_WORDS_S: Final = 1.0
"""How long the parent listens to a child that has ended. A child of that one may hold the pipe open."""


class Child:
    """A process that this one starts. `heard` is told its notices, `said` the lines that it writes to standard error;
    without it, they go where this process writes its own. With `output`, both go to that file and there are no
    notices. With `in_group` all that it starts is killed with it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "detent-child",
        heard: Callable[[Any], None] | None = None,
        said: Callable[[str], None] | None = None,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        in_group: bool = False,
    ) -> None:
        self._name = name
        self._heard = heard
        self._said = said
        self._in_group = in_group
        self._is_asked = False
        self._listeners: list[thread.Thread] = []
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=output if heard is None else subprocess.PIPE,
            stderr=output if said is None else subprocess.PIPE,
            env=environment,
            start_new_session=in_group,
        )

    def start(self) -> Self:
        """Begin to listen to it. The process runs already: what is told of its start is told before its notices."""
        for stream, take in ((self._process.stdout, self._notice), (self._process.stderr, self._said)):
            if stream is not None and take is not None:
                self._listeners.append(thread.start(self._name, _listener(stream, take)))
        return self

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended, as `subprocess` has it; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Ask it to end (SIGTERM), once: many programs do not wait for what is under way when they are asked again."""
        if not self._is_asked:
            self._is_asked = True
            self._process.terminate()

    def kill(self) -> None:
        """End it, as by ``kill -9``."""
        if not self._in_group:
            self._process.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, patience_s: float | None = None) -> int | None:
        """Wait for its end, whether or not its last notices have been told. How it ended; None if it has not, in
        time."""
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def join(self, patience_s: float | None = None) -> int | None:
        """Wait for its end, and let go of it: its last notices have been told then. How it ended; None if it has not,
        in time."""
        status = self.wait(patience_s)
        if status is None:
            return None
        for listener in self._listeners:
            listener.join(LAST_WORDS_S)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        return status

    def _notice(self, line: str) -> None:
        """A line of the child's. The last one of a child that was killed may be half of one."""
        try:
            notice = json.loads(line)
        except ValueError:  # something that it printed before it had its line
            return
        assert self._heard is not None
        self._heard(notice)


def _listener(stream: IO[bytes], take: Callable[[str], None]) -> Callable[[], None]:
    def listen() -> None:
        with stream:
            for line in stream:
                take(line.decode(errors="replace").rstrip("\n"))

    return listen


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"it ended with the exit code {status}"
    try:
        return f"{signal.Signals(-status).name} ended it"
    except ValueError:
        return f"the signal {-status} ended it"


class Died(Exception):
    """A child has ended that was not told to."""

    def __init__(self, status: int) -> None:
        super().__init__(how_it_ended(status))
        self.status = status


class ChildTask(Task):
    """A child process as a task: each life is a process. It is waited for in the task's thread."""

    kind = "process"

    def __init__(self, name: str, begin: Callable[[], Child], ended: Callable[[Child, int], None]) -> None:
        """`begin` makes the process of a life, `ended` is told how it ended, at once and before it is let go of."""
        super().__init__(name)
        self._begin = begin
        self._ended = ended
        self._is_told = False
        self._asked: Child | None = None
        self._asking = threading.Lock()
        self.child: Child | None = None

    def open(self) -> None:
        """Start the process."""
        self._is_told = False
        self.child = self._begin().start()

    def step(self) -> Next:
        """Wait for its end; `Died` if it was not told to end."""
        assert self.child is not None
        status = self.child.wait()
        assert status is not None
        if not self._is_told:
            raise Died(status)
        return ANEW

    def close(self) -> None:
        """End it if it runs, and wait for that."""
        child = self.child
        if child is None:
            return
        self._ask(child)
        status = child.wait()  # `kill` ends one that takes too long
        self.child = None
        assert status is not None
        try:
            self._ended(child, status)
        finally:
            child.join()

    def interrupt(self) -> None:
        """Let it finish what it is at."""
        self._is_told = True
        if (child := self.child) is not None:
            self._ask(child)

    def _ask(self, child: Child) -> None:
        """Once: a second signal would say that it shall not wait for what it is at."""
        with self._asking:
            is_asked, self._asked = self._asked is child, child
        if not is_asked and child.status is None:
            child.end()

    def kill(self) -> None:
        """It took too long."""
        if (child := self.child) is not None:
            child.kill()

    def describe(self, error: Exception) -> str:
        """How it ended."""
        return str(error) if isinstance(error, Died) else super().describe(error)


class ParentLine:
    """A child's line to its parent. What the program of the child reads and prints is apart from it: standard input is
    empty from now on, and what is printed goes to standard error."""

    def __init__(self) -> None:
        self._hear, self._say = os.dup(0), os.dup(1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def tell(self, notice: Any) -> None:
        """One line, whole. The parent may be gone."""
        line = json.dumps(notice).encode() + b"\n"
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._say, line) :]

    def on_end(self, act: Callable[[], None]) -> None:
        """Call this, in a thread, when the parent is gone."""
        on_parents_end(act, self._hear)


def on_parents_end(act: Callable[[], None], descriptor: int = 0) -> None:
    """Call this, in a thread, when the parent that holds the other end of this pipe is gone."""

    def listen() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 64):  # a bare read: the process holds no lock when it ends meanwhile
                pass
        act()

    thread.start("detent-supervised", listen)
