"""Threads, pools and child processes are started in `runtime/` and nowhere else: there they are named, daemons where
they must be, logged when an error ends them, and waited for."""

from __future__ import annotations

import ast
from pathlib import Path

import detent

ROOT = Path(detent.__file__).parent

STARTS = {
    "threading": {"Thread", "Timer"},
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor"},
    "subprocess": {"Popen"},
    "multiprocessing": {"Process", "Pool"},
}

LEFT = ("consumer/", "stream/bell.py")
"""Rooms that still start threads or processes by themselves. None is added."""


def starts_in(source: str) -> list[int]:
    """The lines that call what starts a thread, a pool or a process."""
    tree = ast.parse(source)
    named = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in STARTS
        for alias in node.names
        if alias.name in STARTS[node.module]
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if (isinstance(called, ast.Name) and called.id in named) or (
            isinstance(called, ast.Attribute) and called.attr in STARTS.get(ast.unparse(called.value), set())
        ):
            found.append(node.lineno)
    return found


def test_only_runtime_starts_threads_and_processes() -> None:
    names = (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.py")))
    elsewhere = (name for name in names if not name.startswith(("runtime/", *LEFT)))
    assert [f"{name}:{line}" for name in elsewhere for line in starts_in((ROOT / name).read_text())] == []


def test_every_way_of_starting_is_seen() -> None:
    source = """
import subprocess, threading
from concurrent.futures import ThreadPoolExecutor as Threads
from detent.runtime.thread import Thread
threading.Thread(target=print)
Threads(4)
subprocess.Popen([])
Thread("fine", print)
"""
    assert starts_in(source) == [5, 6, 7]
