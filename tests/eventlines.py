"""Commands that print an object a line, each event read as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import zygote
from processes import PATIENCE_S, eventually


class Events:
    """A command that runs until it is told to stop, or ends by itself."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.errors = (folder / "errors").open("w+b")
        self.process = zygote.Forked(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def of(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a kind that have come."""
        wanted = {"event": kind, **fields}
        return [event for event in self.events if wanted.items() <= event.items()]

    def until(self, kind: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """So many events of a kind, once they have come."""
        eventually(lambda: len(self.of(kind, **fields)) >= count or not self._reading.is_alive(), what=kind)
        found = self.of(kind, **fields)
        assert len(found) >= count, (self.events, self.said())
        return found

    def said(self) -> str:
        """What it wrote for people."""
        self.errors.seek(0)
        return self.errors.read().decode()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        return int(code)

    def stop(self) -> None:
        """It ends well when it is told to."""
        self.process.terminate()
        assert self.wait() == 0, self.said()

    def end(self) -> None:
        """Kill it and what it has started, if they are there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reading.join(PATIENCE_S)
        self.process.stdout.close()
        self.errors.close()
