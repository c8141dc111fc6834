"""How far a shard has come, for callers that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from detent.durations import Duration, milliseconds
from detent.errors import Unavailable

if TYPE_CHECKING:
    pass

PUBLISHED_MAX: Final = 1_000
"""Journals of which it is known how far they were written; those that were written last."""


class ProgressSeen(NamedTuple):
    """What can be told of a shard at one moment. Without a number it is not yet known how far it is."""

    version: int
    generation: int
    number: int
    status: str
    error: str
    processed: dict[str, int]
    published: dict[str, int]
    numbers: dict[str, int]


class Progress:
    """What a shard has done completely: committed and acknowledged.

    `processed` is, for each journal that it reads, the offset after the last message whose effects are all visible.
    `published` is, for each journal that it has written to since it started, an offset before which all of them lie.
    `messages` is how many messages took effect since it started. `numbers` are those of the journals that it reads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.processed: dict[str, int] = {}
        self.published: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.messages = 0
        self.version = 0
        self.status = "starting"
        self.error = ""
        self._identity = (0, 0)

    def advance(
        self,
        processed: Mapping[str, int],
        published: Mapping[str, int],
        messages: int = 0,
        *,
        numbers: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """A transaction is done."""
        with self._changed:
            self.numbers.update(numbers)
            for known, new in ((self.processed, processed), (self.published, published)):
                for journal, offset in new.items():
                    known[journal] = max(known.pop(journal, 0), offset)
            while len(self.published) > PUBLISHED_MAX:
                del self.published[next(iter(self.published))]
            self.messages += messages
            if messages:
                self.error = ""
            self.version += 1
            self._changed.notify_all()

    def restart(self) -> None:
        """A new life of the shard begins. It may have been reset: how far it was says nothing any more."""
        with self._changed:
            self.processed = {}
            self.numbers = {}
            self._identity = (0, 0)
            self.version += 1
        self.say("restoring")

    def identify(self, generation: int, number: int) -> None:
        """What is known from now on is of this generation of the shard with this number."""
        with self._changed:
            self._identity = (generation, number)

    def say(self, status: str, error: str | None = None) -> None:
        """What the shard is at. What went wrong last is kept until a message took effect again."""
        with self._changed:
            error = self.error if error is None else error
            if (status, error) != (self.status, self.error):
                self.status, self.error = status, error
                self.version += 1
                self._changed.notify_all()

    def snapshot(self) -> ProgressSeen:
        """All of it, at one moment."""
        with self._changed:
            return ProgressSeen(
                self.version,
                *self._identity,
                self.status,
                self.error,
                dict(self.processed),
                dict(self.published),
                dict(self.numbers),
            )

    def wait(self, read_through: Mapping[str, int], timeout: Duration | None = None) -> dict[str, int]:
        """Return once each named journal is processed up to an offset (journals that the shard does not read are passed
        over); what was published by then. `Unavailable` after the time."""
        deadline = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        with self._changed:
            while not self._has(read_through):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Unavailable(f"the shard has processed {self.processed}, and not yet {dict(read_through)}")
                self._changed.wait(left)
            return dict(self.published)

    def _has(self, read_through: Mapping[str, int]) -> bool:
        return all(self.processed[name] >= offset for name, offset in read_through.items() if name in self.processed)
