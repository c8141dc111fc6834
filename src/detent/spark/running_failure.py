"""Why a stream failed: in one line, and whether trying again can help."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from detent.errors import BY_NAME, Busy, DetentError, SessionExpired, Unavailable

REASON_MAX: Final = 1_000
"""Spark's messages bring plans and traces along; the first lines are what people read."""

_OURS: Final = re.compile(r"^detent\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^: (?:[a-z_]\w*\.)*([A-Z]\w*): (.+)$", re.MULTILINE)
_END: Final = "\n=== Streaming Query ==="
_STATE: Final = re.compile(r"\s+SQLSTATE: \w+")

PASSING: Final[tuple[type[DetentError], ...]] = (Unavailable, Busy, SessionExpired)
"""What goes away by itself. A session that expired is replaced at the next start; the ledger knows what was done."""

_SETTLED: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
"""What Spark says of a query that is wrong in itself."""


class Failure(NamedTuple):
    """Why a stream failed. `is_ours` are Detent's own errors, which say what to do."""

    reason: str
    is_final: bool
    is_ours: bool = False


def failure_of(error: BaseException, *, starting: bool) -> Failure:
    """What an error means. One that came while the query was being made will come again; one that came while it ran
    may be a machine's, unless it is one of Detent's own that says otherwise."""
    if isinstance(error, DetentError):
        return Failure(f"{type(error).__name__}: {error}", not isinstance(error, PASSING), True)
    text = str(error).split(_END, 1)[0]
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = BY_NAME.get(name, DetentError)
        return Failure(_line(f"{name}: {message}"), not issubclass(kind, PASSING), True)
    is_final = type(error).__name__ in _SETTLED or (starting and not type(error).__name__.startswith("Py4J"))
    python = _PYTHON.findall(text)
    if python:
        name, message = python[-1]
        return Failure(_line(f"{name}: {message}"), is_final)
    java = _JAVA.search(text)
    if java is not None:
        return Failure(_line(f"{java[1]}: {java[2]}"), is_final)
    return Failure(_line(f"{type(error).__name__}: {text.strip().splitlines()[0] if text.strip() else ''}"), is_final)


def is_connection(error: BaseException) -> bool:
    """Whether the connection to Java broke, which is all that is seen of its end."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__name__ in {"Py4JNetworkError", "Py4JError"}


def _line(text: str) -> str:
    """One line of bounded length."""
    text = _STATE.sub("", " ".join(text.split())).rstrip(" ;")
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"
