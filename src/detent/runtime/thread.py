"""The one place that starts threads, and pools of them.

A thread is a daemon: a program ends without it. It has a name, its log says what ended it, and it is waited for with
a deadline. A pool's threads are not daemons: the interpreter waits for the tasks that they have begun.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Self

logger = logging.getLogger("detent.runtime")


class Thread:
    """A thread that runs `work` once it is started."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = threading.Event()
        self._process = 0
        self.error: BaseException | None = None
        """What ended it, if that was an error."""

    def start(self) -> Self:
        """Begin."""
        self._process = os.getpid()
        self._thread.start()
        return self

    @property
    def name(self) -> str:
        """Its name, as debuggers and logs show it."""
        return self._thread.name

    @property
    def has_begun(self) -> bool:
        """Whether it was ever started."""
        return self._thread.ident is not None

    @property
    def is_alive(self) -> bool:
        """Whether it runs. Python up to 3.12 counts a thread as ended once a Ctrl-C has interrupted a wait for its end:
        so it says itself when it has. In a forked child it does not run."""
        return self.has_begun and not self._ended.is_set() and self._process == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks, which cannot wait for itself."""
        return self._thread is threading.current_thread()

    def join(self, patience_s: float | None = None) -> bool:
        """Wait until it has ended, for so long at most; whether it has. One that never began has ended."""
        if not self.is_alive or self._ended.wait(None if patience_s is None else max(0.0, patience_s)):
            if self.has_begun:
                self._thread.join()  # it has nothing left to do
            return True
        return False

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
            logger.critical("the thread %s ended with an error: %r", self.name, error)
            raise  # with a trace, by `threading.excepthook`
        finally:
            self._ended.set()


def start(name: str, work: Callable[[], object]) -> Thread:
    """A thread that has begun."""
    return Thread(name, work).start()


class DaemonPool:
    """Daemon threads that run what they are given, made when they are needed, `size` at most. A message costs one put
    and one get: there are no futures."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._leaving: list[Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, task: Callable[[], None]) -> None:
        """Run this. The caller never has more than `size` tasks under way. A task catches its own errors."""
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
            work = partial(_work_off, self._tasks, self._idle)
            self._threads.append(start(f"{self._name}-{len(self._threads)}", work))
        self._tasks.put(task)

    def dismiss(self, patience_s: float) -> bool:
        """Let them go when they are done; whether all were, in time. What is submitted later gets new ones."""
        for _ in self._threads:
            self._tasks.put(None)
        self._leaving += self._threads
        self._threads, self._tasks, self._idle = [], SimpleQueue(), threading.Semaphore(0)
        deadline = time.monotonic() + patience_s
        self._leaving = [thread for thread in self._leaving if not thread.join(deadline - time.monotonic())]
        return not self._leaving


def _work_off(tasks: SimpleQueue[Callable[[], None] | None], idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        task()
        idle.release()


def pool(name: str, size: int | None = None) -> ThreadPoolExecutor:
    """Threads that answer futures."""
    return ThreadPoolExecutor(size, thread_name_prefix=name)
