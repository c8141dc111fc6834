"""The processes of a run: started, watched, killed, and started again at once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from detent.demo.meter import NOTHING, DemoCounts
from detent.demo.plan import PLACING, ROLES, DemoPlan
from detent.errors import Unavailable
from detent.runtime.process import Child

CRASHES_MAX: Final = 3
"""How often a process may end that was not killed. Then something is wrong that starting it again does not mend."""

LOG_SHOWN: Final = 1_500


class Player:
    """One process, with all that it starts in a group of its own, and its successors."""

    def __init__(self, role: str, plan: DemoPlan, environment: dict[str, str]) -> None:
        self.role = role
        self.crashes = 0
        self.is_done = False
        self.before = NOTHING
        self._command = [sys.executable, "-m", "detent.demo", role, plan.folder]
        self._environment = environment
        self._log: IO[bytes] = (plan.logs / f"{role.replace(' ', '-')}.log").open("ab")
        self._child: Child | None = None

    def start(self, counts: DemoCounts) -> None:
        """Start it, or a successor. `counts` is what there is when it starts."""
        self.before = counts
        self._child = Child(self._command, output=self._log, environment=self._environment, in_group=True)

    def end(self) -> None:
        """``kill -9`` for the process and all that it started, if it runs: none of them can clean up."""
        if self._child is None:
            return
        self._child.kill()
        self.is_done = self._child.join() == 0 and self.role in PLACING
        self._child = None

    def has_crashed(self) -> bool:
        """Whether it ended by itself, and not because it was done; whatever it started is ended too."""
        if self._child is None or self._child.status is None:
            return False
        self.end()
        self.crashes += not self.is_done
        return not self.is_done

    def last_words(self) -> str:
        """The end of its log."""
        return Path(self._log.name).read_text(errors="replace")[-LOG_SHOWN:].strip()

    def close(self) -> None:
        """End it for good."""
        self.end()
        self._log.close()


class Crew:
    """All processes. They end with the block at the latest."""

    def __init__(self, plan: DemoPlan) -> None:
        self._scratch = tempfile.mkdtemp(prefix="detent-demo-")
        environment = _environment(self._scratch)
        self.processes = {role: Player(role, plan, environment) for role in ROLES}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __getitem__(self, role: str) -> Player:
        return self.processes[role]

    @property
    def all_is_placed(self) -> bool:
        """Whether every order was placed, and acknowledged to the process that placed it."""
        return all(self.processes[role].is_done for role in PLACING)

    def start(self) -> None:
        """Start them all."""
        for process in self.processes.values():
            process.start(NOTHING)

    def look_after(self, counts: DemoCounts) -> list[str]:
        """Start those again that have ended by themselves and are not done; who that was."""
        found = []
        for process in self.processes.values():
            if not process.has_crashed():
                continue
            if process.crashes > CRASHES_MAX:
                raise Unavailable(f"the {process.role} of the demo ends again and again: {process.last_words()}")
            process.start(counts)
            found.append(process.role)
        return found

    def kill(self, role: str, counts: DemoCounts) -> None:
        """Kill one of them, and start it again."""
        process = self.processes[role]
        process.end()
        if not process.is_done:  # it might have ended a moment before
            process.start(counts)


def _environment(scratch: str) -> dict[str, str]:
    """Killed processes leave their temporary files behind: let those be where they can be removed."""
    java = f"""{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={scratch}" """.strip()
    return {**os.environ, "TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch, "JDK_JAVA_OPTIONS": java}
