"""What sinks have in common: what they write of a message, functions of the user's, and that they are closed."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from detent import forks
from detent.errors import Invalid, Unavailable
from detent.finite import encode_json
from detent.journal import Message
from detent.processor.step import Step

Opened = TypeVar("Opened")

Delivered = Message | list[Message]
"""What a graph gives to a sink: a message, or with ``whole=True`` the messages of a batch."""

_STEP: Final = "step"

SINK: Final = "detent_sink"
"""The attribute of a function that says which sink it writes to."""


class DeliverySink:
    """Something outside Detent that deliveries go to. For any number of threads."""

    def __init__(self) -> None:
        self._is_closed = False
        self._locks: dict[int, threading.Lock] = {}

    @property
    def _lock(self) -> threading.Lock:
        """One for each generation of the process: what a thread of the parent held at a fork stays held."""
        return self._locks.setdefault(forks.generation, threading.Lock())

    def newest(self, owner: str) -> tuple[str, int] | None:  # noqa: ARG002
        """The series and the number of a delivery of this processor's that the sink knows to be there, the newest of
        this process; None if it knows of none, or if it does not keep deliveries in a way that could be asked for."""
        return None

    def remembers(self, owner: str, series: str, number: int) -> bool:  # noqa: ARG002
        """Whether a delivery is there that `newest` named once. If not, what keeps the deliveries was lost."""
        return True

    def close(self) -> None:
        """Let go of what is open. Calling it twice is fine."""
        self._is_closed = True

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _of_this_process(self, kept: dict[int, Opened], make: Callable[[], Opened]) -> Opened:
        """What is open, by the generation of the process: connections do not survive a fork."""
        with self._lock:
            self._require_open()
            if forks.generation not in kept:
                kept[forks.generation] = make()
            return kept[forks.generation]

    def _require_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"this {type(self).__name__} was closed: make another one")


def sink_of(function: Any) -> DeliverySink | None:
    """The sink behind a processor's function, if it is one of ours."""
    found = getattr(function, SINK, function)
    return found if isinstance(found, DeliverySink) else None


class Chosen:
    """A function of the user's that says what to write, or where: of the message, and of the step if it has a parameter
    of that name."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise Invalid(f"{what} is a plain function that takes the message, not {function!r}")
        self._function = function
        try:
            self._wants_step = _STEP in inspect.signature(function).parameters
        except (TypeError, ValueError):  # some builtins do not say
            self._wants_step = False

    def __call__(self, value: Any, step: Step) -> Any:
        return self._function(value, step=step) if self._wants_step else self._function(value)


def chosen(function: Callable[..., Any] | None, what: str) -> Chosen | None:
    """The function that the user gave as `what`, if any."""
    return None if function is None else Chosen(function, what)


def bytes_of(value: Any, parameter: str) -> bytes:
    """What is written of a value: the body of a message, bytes and text as they are, anything else as JSON. `parameter`
    is what lets the user decide otherwise."""
    if isinstance(value, Message):
        return value.body
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    if any(isinstance(part, Message) for part in parts):
        raise Invalid(f"several messages are not bytes by themselves: say what is to be written, with {parameter}=...")
    try:
        return encode_json(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"{type(value).__name__} does not become JSON ({error}): say what is to be written, with {parameter}=..."
        ) from error
