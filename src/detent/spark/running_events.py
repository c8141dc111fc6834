"""What a runner tells: events, which views show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from detent.spark.running_state import StreamState


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to a stream, or to the whole run (then `stream` is empty)."""

    kind: str
    stream: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class View(Protocol):
    """Shows what happens. A runner enters it at its start and leaves it at its end."""

    def __enter__(self) -> View: ...

    def __exit__(self, *error: object) -> None: ...

    def tell(self, event: Event) -> None:
        """Something happened."""

    def show(self, states: Sequence[StreamState]) -> None:
        """How the streams are now. Called several times a second."""


class Silent:
    """Shows nothing: for programs that look at the summary."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Nothing."""

    def show(self, states: Sequence[StreamState]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    states: list[StreamState]

    @property
    def failed(self) -> list[StreamState]:
        """The streams that were given up."""
        return [state for state in self.states if state.phase == "failed"]

    def as_json(self) -> dict[str, Any]:
        """The summary for programs."""
        return {"ok": not self.failed, "streams": [state.as_json() for state in self.states]}
