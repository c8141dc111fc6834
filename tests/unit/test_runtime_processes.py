"""Child processes of the runtime: heard, ended with their parent, and let go of."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from detent.runtime.process import Child, how_it_ended

PATIENCE_S = 30.0

CHILD = """
import sys, threading
from detent.runtime.process import ParentLine
line, over = ParentLine(), threading.Event()
line.on_end(over.set)
print("of the program", flush=True)
line.tell(["hello", sys.stdin.read()])
over.wait()
raise SystemExit(7)
"""


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()
        child.join(PATIENCE_S)


def run(code: str, children: list[Child], **options: Any) -> Child:
    children.append(Child([sys.executable, "-c", code], **options).start())
    return children[-1]


def test_parent_hears_notices_apart_from_what_the_program_prints(children: list[Child]) -> None:
    heard: list[Any] = []
    said: list[str] = []
    came = threading.Event()

    def hear(notice: Any) -> None:
        heard.append(notice)
        came.set()

    child = run(CHILD, children, heard=hear, said=said.append)
    assert came.wait(PATIENCE_S)
    child.end()
    assert child.join(PATIENCE_S) == -signal.SIGTERM
    assert (heard, said) == ([["hello", ""]], ["of the program"])


def test_child_ends_when_its_parent_is_killed(children: list[Child]) -> None:
    """The parent in between is killed and runs no code at its end; its child closes the pipe that we hold."""
    parent = f"""
import sys, threading
from detent.runtime.process import Child
child = Child([sys.executable, "-c", {CHILD!r}], heard=lambda notice: print(child.pid, flush=True))
child.start()
threading.Event().wait()
"""
    heard: list[Any] = []
    came = threading.Event()

    def hear(notice: Any) -> None:
        heard.append(notice)
        came.set()

    middle = run(parent, children, heard=hear)
    assert came.wait(PATIENCE_S)
    descriptor = os.pidfd_open(heard[0])
    try:
        middle.kill()
        assert middle.join(PATIENCE_S) == -signal.SIGKILL
        assert _ends(descriptor)
    finally:
        os.close(descriptor)


def _ends(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], PATIENCE_S)[0])


def test_half_a_notice_is_left_out(children: list[Child]) -> None:
    heard: list[Any] = []
    child = run("import os; os.write(1, b'[1]\\n[2')", children, heard=heard.append)
    assert (child.join(PATIENCE_S), heard) == (0, [[1]])


def test_status_is_none_while_the_child_runs(children: list[Child]) -> None:
    child = run("input()", children)
    assert (child.status, child.join(0.01)) == (None, None)
    child.kill()
    assert child.join(PATIENCE_S) == child.status == -signal.SIGKILL


def test_group_is_killed_whole(children: list[Child]) -> None:
    heard: list[Any] = []
    came = threading.Event()

    def hear(notice: Any) -> None:
        heard.append(notice)
        came.set()

    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    child = run(code, children, heard=hear, in_group=True)
    assert came.wait(PATIENCE_S)
    descriptor = os.pidfd_open(heard[0])
    try:
        child.kill()
        assert child.join(PATIENCE_S) == -signal.SIGKILL
        assert _ends(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "it ended with the exit code 0"), (-9, "SIGKILL ended it"), (-200, "the signal 200 ended it")],
)
def test_exit_statuses_have_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words
