"""How long messages are kept from other pipelines, and when that is extended.

A message is received with a visibility of `visibility` and the commit timeout, counted from when it was asked for, so
that a slow answer makes the deadline early and not late. It is extended by half of `visibility` whenever that is about
to end, until the commit of its last file begins; then once more, by twice the commit timeout. Whatever goes wrong after
that, the publish token refuses, so a deadline that is missed costs work and no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from detent.ingest.local_state import Message

MARGIN_S_MAX: Final = 4.0
"""What a request for an extension may take, a retry included."""


@dataclass(frozen=True)
class VisibilitySchedule:
    """The times that follow from a configuration. `max_s` is the longest that the queue can do."""

    visibility_s: float
    commit_timeout_s: float
    max_s: float

    @property
    def receive_s(self) -> float:
        """Asked for when a message is received."""
        return min(self.max_s, self.visibility_s + self.commit_timeout_s)

    @property
    def extension_s(self) -> float:
        """Asked for each time after that."""
        return min(self.max_s, self.visibility_s / 2)

    @property
    def last_s(self) -> float:
        """Asked for when the commit begins."""
        return min(self.max_s, 2 * self.commit_timeout_s)

    @property
    def margin_s(self) -> float:
        """How long before its deadline a message is extended."""
        return min(MARGIN_S_MAX, self.extension_s / 3)

    def due(self, messages: Iterable[Message], now: float) -> list[Message]:
        """The messages that have to be extended now."""
        limit = now + self.margin_s
        return [
            message
            for message in messages
            if message.deadline <= limit and not message.is_lost and not message.is_last_extended
        ]

    def last(self, messages: Iterable[Message], now: float) -> list[Message]:
        """Those that are extended for the last time, because it makes their deadline later."""
        return [message for message in messages if message.deadline < now + self.last_s and not message.is_lost]
