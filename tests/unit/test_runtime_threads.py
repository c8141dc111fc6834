"""Threads of the runtime: started, named, waited for, and heard of when an error ends them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import pytest

from detent.runtime import thread
from detent.runtime.thread import DaemonPool, Thread

PATIENCE_S = 30.0


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Errors that ended threads, which pytest would take for failures of the test."""
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: seen.append(arguments.exc_value))
    return seen


def test_thread_is_a_daemon_with_its_name() -> None:
    found: list[threading.Thread] = []
    assert thread.start("detent-one", lambda: found.append(threading.current_thread())).join(PATIENCE_S)
    assert [(one.name, one.daemon) for one in found] == [("detent-one", True)]


def test_join_says_whether_the_thread_has_ended_in_time() -> None:
    ending = threading.Event()
    running = thread.start("detent-one", ending.wait)
    assert running.is_alive
    assert not running.join(0.01)
    ending.set()
    assert running.join(PATIENCE_S)
    assert not running.is_alive


def test_thread_that_never_began_has_ended() -> None:
    never = Thread("detent-one", lambda: None)
    assert (never.has_begun, never.is_alive, never.join()) == (False, False, True)


def test_thread_knows_that_it_asks_itself() -> None:
    answers: list[bool] = []
    one = Thread("detent-one", lambda: answers.append(one.is_current))
    assert one.start().join(PATIENCE_S)
    assert (answers, one.is_current) == ([True], False)


def test_error_that_ends_a_thread_is_kept_and_logged(unheard: list[object], caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no")

    with caplog.at_level(logging.CRITICAL, "detent.runtime"):
        one = thread.start("detent-one", fail)
        assert one.join(PATIENCE_S)
    assert isinstance(one.error, ValueError)
    assert unheard == [one.error]
    assert "the thread detent-one ended with an error: ValueError('no')" in caplog.messages


def test_crew_makes_a_thread_only_when_all_are_busy() -> None:
    crew = DaemonPool("detent-crew", 2)
    ends = [threading.Event(), threading.Event()]
    names: list[str] = []
    began = threading.Semaphore(0)

    def task(end: threading.Event) -> None:
        names.append(threading.current_thread().name)
        began.release()
        end.wait(PATIENCE_S)

    crew.submit(lambda: task(ends[0]))
    assert began.acquire(timeout=PATIENCE_S)
    crew.submit(lambda: task(ends[1]))
    assert began.acquire(timeout=PATIENCE_S)
    assert names == ["detent-crew-0", "detent-crew-1"]
    assert not crew.dismiss(0.0)
    for end in ends:
        end.set()
    assert crew.dismiss(PATIENCE_S)


def test_crew_that_was_dismissed_has_new_threads() -> None:
    crew = DaemonPool("detent-crew", 1)
    done = threading.Semaphore(0)
    for _ in range(2):
        crew.submit(done.release)
        assert done.acquire(timeout=PATIENCE_S)
        assert crew.dismiss(PATIENCE_S)


def test_interrupted_wait_for_a_thread_does_not_take_it_for_ended() -> None:
    may_end = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    running = thread.start("running", may_end.wait)
    try:
        interrupting = thread.start("interrupting", lambda: (time.sleep(0.1), os.kill(os.getpid(), signal.SIGUSR1)))
        with pytest.raises(KeyboardInterrupt):
            running.join(30)
        assert running.is_alive
        assert not running.join(0.01)
        interrupting.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        may_end.set()
    assert running.join(30)
    assert not running.is_alive
