"""What has failed in one queue: messages that ran out of attempts, and the attempts that came to nothing; and which of
its messages are dead letters of other queues."""

from __future__ import annotations

from functools import partial
from typing import Final

from detent.codec.published import FOREVER
from detent.codec.queue import AttemptRecord, Failed
from detent.queue.holdings import Undo
from detent.queue.timers import TimerWheel

EXPIRE_FAILED: Final = "expire failed"
"""What a timer of failed messages is for."""


class FailedList:
    """The failed messages of one queue, and the history of those that are tried again."""

    number: int
    size: int
    wheel: TimerWheel

    def __init__(self) -> None:
        self.failed: dict[int, Failed] = {}
        self.failed_buckets: dict[int, set[int]] = {}
        self.failed_due: dict[int, int] = {}  # the timers of failed buckets
        # What the next checkpoint writes.
        self.dirty_failed: set[int] = set()
        self.new_attempts: dict[int, list[AttemptRecord]] = {}
        self.old_attempts: set[int] = set()
        # Dead letters that came here, and how often each was claimed before; those that have left since.
        self.origins: dict[int, int] = {}
        self.old_origins: set[int] = set()

    def failed_bucket(self, message: int) -> int:
        """The record that holds a failed message."""
        return message // int(self.size)

    def add_failed(self, failed: Failed) -> None:
        """Remember a failed message, which is held."""
        number = self.failed_bucket(failed.message)
        self.failed[failed.message] = failed
        self.failed_buckets.setdefault(number, set()).add(failed.message)
        self.dirty_failed.add(number)
        at_ms = failed.deadline_ms + 1
        if at_ms < self.failed_due.get(number, FOREVER):
            self.failed_due[number] = at_ms
            self.wheel.add(at_ms, (EXPIRE_FAILED, self.number, number))

    def _unfail(self, message: int) -> None:
        self._remove_failed(message)

    def _remove_failed(self, message: int) -> Failed:
        number = self.failed_bucket(message)
        self.failed_buckets[number].remove(message)
        if not self.failed_buckets[number]:
            del self.failed_buckets[number]
            due = self.failed_due.pop(number, None)
            if due is not None:
                self.wheel.cancel(due, (EXPIRE_FAILED, self.number, number))
        self.dirty_failed.add(number)
        return self.failed.pop(message)

    def failed_to_expire(self, number: int, now_ms: int) -> list[int]:
        """The messages of a failed bucket whose retention has ended; its timer is set for the others."""
        messages = self.failed_buckets.get(number, set())
        due = sorted(message for message in messages if self.failed[message].deadline_ms < now_ms)
        left = min((at for m in messages if (at := self.failed[m].deadline_ms + 1) > now_ms), default=FOREVER)
        self.failed_due.pop(number, None)
        if left < FOREVER:
            self.failed_due[number] = left
            self.wheel.add(left, (EXPIRE_FAILED, self.number, number))
        return due

    # -- attempts ----------------------------------------------------------------------------------------------------

    def _note_attempt(self, message: int, attempt: AttemptRecord, undo: Undo | None) -> None:
        self.new_attempts.setdefault(message, []).append(attempt)
        if undo is not None:
            undo.append(partial(self._unnote_attempt, message))

    def _unnote_attempt(self, message: int) -> None:
        attempts = self.new_attempts[message]
        attempts.pop()
        if not attempts:
            del self.new_attempts[message]

    def _forget_attempts(self, message: int, undo: Undo | None) -> None:
        new = self.new_attempts.pop(message, None)
        added = message not in self.old_attempts
        self.old_attempts.add(message)
        if undo is not None:
            undo.append(partial(self._unforget_attempts, message, new, added))

    def _unforget_attempts(self, message: int, new: list[AttemptRecord] | None, added: bool) -> None:
        if new is not None:
            self.new_attempts[message] = new
        if added:
            self.old_attempts.discard(message)

    # -- dead letters ------------------------------------------------------------------------------------------------

    def note_origin(self, message: int, earlier: int, undo: Undo | None) -> None:
        """A dead letter came here, and its record was written."""
        was_old = message in self.old_origins
        self.origins[message] = earlier
        self.old_origins.discard(message)
        if undo is not None:
            undo.append(partial(self._unnote_origin, message, was_old))

    def _unnote_origin(self, message: int, was_old: bool) -> None:
        del self.origins[message]
        if was_old:
            self.old_origins.add(message)

    def forget_origin(self, message: int, undo: Undo | None) -> None:
        """A message leaves the queue; if it was a dead letter, its record goes with the next checkpoint."""
        earlier = self.origins.pop(message, None)
        if earlier is None:
            return
        self.old_origins.add(message)
        if undo is not None:
            undo.append(partial(self._unforget_origin, message, earlier))

    def _unforget_origin(self, message: int, earlier: int) -> None:
        self.origins[message] = earlier
        self.old_origins.discard(message)
