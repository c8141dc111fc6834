"""Spark's Python daemon, whose workers do not look through all their modules after each task.

Between two tasks a worker collects garbage. A full collection visits every object there is, tens of thousands of them
from imported modules that will never be garbage: it takes longer than a small task. Here what is alive after a task
that imported something is set aside, once, and later collections pass over it.

The launcher (`launch.py`) starts this in place of ``pyspark.daemon``, with the same arguments.
"""

from __future__ import annotations

import gc
import socket
import sys

from pyspark import daemon

_work = daemon.worker
_modules_set_aside = 0


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Do one task, as Spark's own worker does."""
    try:
        code = _work(sock, authenticated)
    except BrokenPipeError:
        return 1  # Spark has hung up, as it does when a query is stopped: there is no next task
    set_aside()
    return code


def set_aside() -> None:
    """Let collections pass over everything alive now, if modules were imported since the last time."""
    global _modules_set_aside
    if len(sys.modules) != _modules_set_aside:
        _modules_set_aside = len(sys.modules)
        gc.collect()  # what is garbage already must not be kept for good
        gc.freeze()


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
