"""``python -m detent.demo ROLE FOLDER``: one process of the demo. They are started and killed by `running`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path

import detent
from detent.demo.plan import CLERK, DRIVER, OWNER, PLACING, WORKER, DemoPlan
from detent.runtime.process import on_parents_end


def own(plan: DemoPlan) -> None:
    """Be the owner of the store: hold it open, and answer the other processes."""
    with detent.open(plan.url):
        threading.Event().wait()


def play(role: str, plan: DemoPlan) -> None:
    """Be one of the processes. Each imports only what it needs, to be at work soon."""
    if role == OWNER:
        own(plan)
    elif role == DRIVER:
        from detent.demo.shop import sell

        sell(plan)
    elif role == WORKER:
        from detent.demo.rush import work

        work(plan)
    elif role == CLERK:
        from detent.demo.rush import publish

        publish(plan)
    else:
        from detent.demo.orders import place

        place(plan, PLACING.index(role))


class WithoutPandas(MetaPathFinder):
    """Arrow imports pandas, if it is installed, with the first array that it makes: two thirds of the time that a
    process takes to start. Only Spark has a use for it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Say that there is none."""
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out, to start faster", name=name)


if __name__ == "__main__":
    if sys.argv[1] != DRIVER:
        sys.meta_path.insert(0, WithoutPandas())
    on_parents_end(lambda: os.killpg(0, signal.SIGKILL))  # it holds the other end of our stdin
    play(sys.argv[1], DemoPlan.load(Path(sys.argv[2])))
