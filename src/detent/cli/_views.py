"""What views of programs that run have in common: JSON for other programs, lines in a log, a live screen."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import IO, Any, Self

STATUS_S = 3.0
"""How often a program is told how it stands."""


class _Plain:
    """A view that needs no beginning and no end."""

    _gone: BrokenPipeError | None = None

    def say(self, what: Any) -> None:
        """Print it."""
        raise NotImplementedError

    def say_elsewhere(self, what: Any) -> None:
        """The same in a thread that has other work to do. If the reader is gone, `check_read` says so."""
        try:
            self.say(what)
        except BrokenPipeError as error:
            self._gone = error

    def check_read(self) -> None:
        """Raise what went wrong elsewhere: the reader is gone."""
        if self._gone is not None:
            raise self._gone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return


class JsonLines(_Plain):
    """An object a line, in ASCII: texts of others may have halves of characters in them."""

    def __init__(self, out: IO[str] | None = None, *, first_status_s: float = STATUS_S) -> None:
        self._out = out or sys.stdout
        self._lock = threading.Lock()
        self._status_at = time.monotonic() + first_status_s

    def say(self, document: dict[str, Any]) -> None:
        """Print one object, at once: the reader of the pipe waits for it."""
        with self._lock:
            print(json.dumps(document), file=self._out, flush=True)

    def is_status_due(self) -> bool:
        """Whether it is time to say how it stands; then not again for a while."""
        now = time.monotonic()
        if now < self._status_at:
            return False
        self._status_at = now + STATUS_S
        return True


class Lines(_Plain):
    """A line for each thing that happens, in a log or a pipe."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stderr

    def say(self, line: str) -> None:
        """Print it, in one write: several threads have something to say."""
        self._out.write(f"{line}\n")
        self._out.flush()


class LiveScreen:
    """A part of the terminal that is drawn anew when something has changed."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lock = threading.Lock()
        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)
