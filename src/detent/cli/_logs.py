"""Logs of long-running commands: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was said beside the message."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonLines(logging.Formatter):
    """One object for each record. Whatever is in it, it stays on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class Lines(logging.Formatter):
    """A line for each record, for people. Line breaks and the like in what clients sent are shown, not printed."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        said = " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in _extras(record).items())
        line = f"{time} {record.levelname.lower():7} {record.getMessage()}{' ' + said if said else ''}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(form: str, level: str) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class Warnings(logging.Handler):
    """Tells of what parts of a program warn of by their logs, such as a store that does not answer, in a line each."""

    def __init__(self, tell: Callable[[str], None], is_told: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._is_told = is_told

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless it was."""
        if not self._is_told(record):
            self._tell(record.getMessage())


@contextmanager
def logs_shown(warnings: logging.Handler | None = None, *, verbose: bool, as_json: bool) -> Iterator[None]:
    """Show all of the log to a user who asks for it, and otherwise what `warnings` make of it. Without those the
    command tells of each failure itself, and the log adds only threads that a defect has ended."""
    if verbose:
        set_up_logs("json" if as_json else "text", "info")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
        yield
        return
    logger, handler = logging.getLogger("detent"), warnings or logging.StreamHandler()
    if warnings is None:
        handler.setLevel(logging.CRITICAL)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
