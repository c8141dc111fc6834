"""What a processor's function is told of the step that it is in, and what it may give back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detent.journal import Message


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a processor: a function with a parameter named `step` gets it.

    `key` is the delivery key: text of up to 60 characters that is the same whenever these inputs are tried again, and
    that no other inputs ever have. A function with effects outside Detent stores it with them, in one transaction, and
    asks for it first. `number` counts the processor's input sets: it is the part of the key behind the dash. All
    numbers below `floor` are done for good, and never come again under this `series`, which is the part before the
    dash.
    """

    graph: str
    processor: str
    series: str
    number: int
    floor: int
    inputs: Sequence[Message]
    """The messages of this step: one of each input of a join, one of the inputs of an any-of; many in a batch."""
    system: Any = None
    """What the graph was given for all its processors."""
    attempt: int = 1
    """Which try of these inputs this is in this process."""
    identity: str = ""
    """Which processor it is, whatever it is called: what is kept of its deliveries elsewhere is kept under this, and
    found again under another name."""

    @property
    def key(self) -> str:
        """The delivery key."""
        return f"{self.series}-{self.number}"

    @property
    def owner(self) -> str:
        """Under what its deliveries are kept elsewhere."""
        return self.identity or self.name

    @property
    def name(self) -> str:
        """The graph and the processor."""
        return f"{self.graph}/{self.processor}"


@dataclass(frozen=True, slots=True)
class Out:
    """A message to be written, where more is to be said than its value.

    `value` is bytes, or anything that becomes JSON. Without a `key` it gets that of its input. `to` names the output,
    for processors that have several. `type` and `topics` are what other processors filter by.
    """

    value: Any
    key: bytes | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str | None = None
    topics: Sequence[str] = ()
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """What a source's function answers: values to be written, and where to go on, which it gets as `cursor` next time.
    A cursor is anything that becomes JSON."""

    values: Sequence[Any]
    cursor: Any = None
