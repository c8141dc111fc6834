"""Which messages some queue still needs, and which records can go since none does.

A message is held once by each queue that has it available, in flight or failed, and once by the store itself if it
matched no queue. When the last hold ends and every queue's cursor has passed the message, its body goes with the
next checkpoint, in the same commit as the state in which no queue holds it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import sub
from typing import Final, NamedTuple

import numpy as np

from detent.codec import log
from detent.codec.keys import var_u64
from detent.codec.published import LOG_KEY
from detent.codec.statelog import Run

Undo = list[Callable[[], None]]

FEW: Final = 4
"""Up to so many messages are released one by one."""

CHUNK: Final = 4096
"""Messages whose holds are counted side by side."""

SEGMENT_MESSAGES: Final = 65_536
"""A segment of the metadata log ends after so many messages; it goes as a whole, when none of them is held."""


LIVE: Final = (1 << 64) - 1
"""The cursor of a queue that stands at the end of the log, wherever that is."""


def _not_kept(run: Run, _undo: Undo | None) -> None:
    raise AssertionError(f"message {run.first} would be lost")


_NONE: Final = array("H", bytes(2 * CHUNK))
_ONE: Final = array("H", (1,)) * CHUNK


class LogSegment(NamedTuple):
    """A part of the metadata log."""

    number: int
    start: int


class Holdings:
    """How many hold each message; the records and log segments that this concerns."""

    def __init__(self) -> None:
        self._chunks: dict[int, array[int]] = {}
        self._dead: set[int] = set()  # where segments start that may be held by no queue
        self._released: set[int] = set()  # chunks in which something was released since the last checkpoint
        self.freed: dict[int, int] = {}  # records with a message that no queue holds any more: first message -> count
        self.segments: list[LogSegment] = []
        self._starts: list[int] = []
        self._heads: list[bytes] = []  # what the keys of a segment's entries begin with
        self.live: list[int] = []  # messages held, by segment
        self.unread_from = LIVE  # the first message that some queue has yet to read of
        self.keep: Callable[[Run, Undo | None], None] = _not_kept

    # -- holds --------------------------------------------------------------------------------------------------

    def count(self, message: int) -> int:
        """How many hold a message."""
        chunk = self._chunks.get(message // CHUNK)
        return 0 if chunk is None else chunk[message % CHUNK]

    def hold(self, first: int, count: int, holders: int, undo: Undo | None) -> None:
        """`holders` more hold each of these messages."""
        if not holders:
            return
        new = self._add(first, count, holders)
        if new:
            self.live[self._segment(first)] += new
        if undo is not None:
            undo.append(partial(self._unhold, first, count, holders, new))

    def _unhold(self, first: int, count: int, holders: int, new: int) -> None:
        self._add(first, count, -holders)
        self._released.add(first // CHUNK)
        if new:
            self._let_go(self._segment(first), new)

    def _add(self, first: int, count: int, change: int) -> int:
        """Change the holds of some messages; how many of them had none before."""
        new, end = 0, first + count
        while first < end:
            number, at = divmod(first, CHUNK)
            step = min(end - first, CHUNK - at)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = array("H", bytes(2 * CHUNK))
            if step > 1 and chunk[at : at + step] == _NONE[:step]:
                assert change > 0, f"messages from {first} on are held by no queue"
                chunk[at : at + step] = array("H", (change,)) * step
                new += step
            else:
                for row in range(at, at + step):
                    new += not chunk[row]
                    chunk[row] += change  # an OverflowError below zero: a hold that no queue had
            first += step
        return new

    def release(self, message: int, offset: int, count: int, deadline_ms: int, at_ms: int, undo: Undo | None) -> None:
        """One holder less; the last one frees the message, unless a queue has yet to read of it, and its retention has
        not ended at `at_ms`."""
        chunk = self._chunks[message // CHUNK]
        at = message % CHUNK
        left = chunk[at] - 1
        assert left >= 0, f"message {message} is released by a queue that did not hold it"
        chunk[at] = left
        self._released.add(message // CHUNK)
        freed = False
        if not left and message >= self.unread_from and deadline_ms >= at_ms:
            chunk[at] = 1
            if undo is not None:
                undo.append(partial(self._unrelease, message, offset, 0, False, kept=True))
            self.keep(Run(message, 1, offset, count, 0, deadline_ms), undo)
            return
        if not left:
            self._let_go(self._segment(message), 1)
            first = message - offset
            freed = first not in self.freed
            self.freed[first] = count
        if undo is not None:
            undo.append(partial(self._unrelease, message, offset, left, freed))

    def release_many(
        self,
        messages: Sequence[int],
        offsets: Sequence[int],
        counts: Sequence[int],
        deadlines: Sequence[int],
        at_ms: int,
        undo: Undo | None,
    ) -> None:
        """One holder less of each of these messages, all different."""
        if undo is None and self.unread_from == LIVE and self._release_run(messages, offsets, counts):
            return
        for message, offset, count, deadline_ms in zip(messages, offsets, counts, deadlines, strict=True):
            self.release(message, offset, count, deadline_ms, at_ms, undo)

    def _release_run(self, messages: Sequence[int], offsets: Sequence[int], counts: Sequence[int]) -> bool:
        """The common case in one step: neighbours that no other queue holds. False if it is another case."""
        first, length = messages[0], len(messages)
        number, at = divmod(first, CHUNK)
        segment = self._segment(first)
        if length < FEW or at + length > CHUNK or segment != self._segment(first + length - 1):
            return False
        chunk = self._chunks[number]
        if messages != list(range(first, first + length)) or chunk[at : at + length] != _ONE[:length]:
            return False
        chunk[at : at + length] = _NONE[:length]
        self._released.add(number)
        self._let_go(segment, length)
        if first - offsets[0] == messages[-1] - offsets[-1]:
            self.freed[first - offsets[0]] = counts[0]  # all from one record, since they are neighbours
        else:
            self.freed.update(zip(map(sub, messages, offsets), counts, strict=True))
        return True

    def _let_go(self, segment: int, count: int) -> None:
        """So many messages of a segment are held by no queue any more."""
        self.live[segment] -= count
        if not self.live[segment]:
            self._dead.add(self._starts[segment])  # unless more comes in, or it is taken back: looked at when it is due

    def _unrelease(self, message: int, offset: int, left: int, freed: bool, *, kept: bool = False) -> None:
        self._chunks[message // CHUNK][message % CHUNK] = left + 1
        if not left and not kept:
            self.live[self._segment(message)] += 1
            if freed:
                self.freed.pop(message - offset, None)

    def held_in(self, first: int, count: int) -> list[int]:
        """The places in a record of the messages that a queue holds."""
        if count == 1:
            return [0] if self.count(first) else []
        number, at = divmod(first, CHUNK)
        chunk = self._chunks.get(number)
        if at + count <= CHUNK:
            return [] if chunk is None else [index for index, held in enumerate(chunk[at : at + count]) if held]
        return [index for index in range(count) if self.count(first + index)]

    def load(self, messages: np.ndarray) -> None:
        """Count the holds of these messages, each named once for each holder."""
        found, holders = np.unique(messages, return_counts=True)
        numbers, starts = np.unique(found // CHUNK, return_index=True)
        ends = np.append(starts[1:], len(found)) if len(found) else starts
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
            counts = np.zeros(CHUNK, np.uint16)
            counts[(found[start:end] % CHUNK).astype(np.int64)] = holders[start:end]
            self._chunks[number] = array("H", counts.tobytes())
        if len(found) and self._starts:
            indexes = np.searchsorted(np.array(self._starts, np.uint64), found, "right") - 1
            for index, live in zip(*np.unique(indexes, return_counts=True), strict=True):
                self.live[int(index)] = int(live)
        self._dead = {start for start, live in zip(self._starts, self.live, strict=True) if not live}

    def drop_empty_chunks(self) -> None:
        """Let go of the counters in which no queue holds anything any more."""
        last = max(self._chunks, default=0)
        for number in self._released:
            chunk = self._chunks.get(number)
            if chunk is not None and number != last and chunk == _NONE[:CHUNK]:
                del self._chunks[number]
        self._released = {last} if last in self._released else set()

    # -- segments -----------------------------------------------------------------------------------------------

    def _segment(self, message: int) -> int:
        starts = self._starts
        if message >= starts[-1]:
            return len(starts) - 1
        return bisect_right(starts, message) - 1

    def add_segment(self, segment: LogSegment) -> None:
        """The log goes on in another segment."""
        self.segments.append(segment)
        self._starts.append(segment.start)
        self._heads.append(log.entry_head(segment.number, LOG_KEY))
        self.live.append(0)

    def drop_segment(self, segment: LogSegment) -> None:
        """A segment is gone."""
        index = self.segments.index(segment)
        for column in (self.segments, self._starts, self._heads, self.live):
            del column[index]
        self._dead.discard(segment.start)

    def drop_last_segment(self) -> None:
        """The last segment was never written."""
        self.segments.pop()
        self._dead.discard(self._starts.pop())
        self._heads.pop()
        self.live.pop()

    def needs_segment(self, message: int, log_end: int) -> bool:
        """Whether this message begins another segment, in a log that ends at `log_end`."""
        if not self._starts or message >= self._starts[-1] + SEGMENT_MESSAGES:
            return True
        return log_end <= self._starts[-1] != message  # one that was begun ahead: a restart has left numbers out since

    def entry_key(self, first: int) -> bytes:
        """Where the log entry is that begins with message `first`."""
        index = self._segment(first)
        return self._heads[index] + var_u64(first - self._starts[index])

    def newest_is_dead(self, passed: int, log_end: int) -> bool:
        """Whether no queue holds anything of the newest segment, which has messages, and all cursors have it behind."""
        return bool(self._starts) and not self.live[-1] and self._starts[-1] < log_end == passed

    def end_newest(self, log_end: int) -> LogSegment:
        """The log goes on in another segment, so that the newest one can go."""
        self._dead.add(self._starts[-1])
        segment = LogSegment(self.segments[-1].number + 1, log_end)
        self.add_segment(segment)
        return segment

    def dead_segment(self, passed: int) -> LogSegment | None:
        """A segment of which no queue holds anything, and which all cursors have behind them: they are at `passed`."""
        for start in self._dead:
            index = self._segment(start)
            if not self.live[index] and index + 1 < len(self.segments) and self.segments[index + 1].start <= passed:
                return self.segments[index]
        return None


def messages_in(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Message numbers of several arrays in one."""
    parts = list(chunks)
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)
