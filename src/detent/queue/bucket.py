"""A bucket: up to a thousand messages of one queue, side by side in columns, each at its place for good."""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from detent.codec import queue as records
from detent.codec.published import FOREVER, RECORD_MESSAGES_MAX
from detent.codec.statelog import Run

GONE, HIDDEN, READY, HELD, BLOCKED = range(5)
"""A place's states: empty; available and not visible yet; available; in flight; available, behind another message of
its group, and so not looked at."""

AVAILABLE: Final = frozenset({HIDDEN, READY, BLOCKED})

_NEVER: Final = FOREVER
_OFFSETS: Final = array("H", range(RECORD_MESSAGES_MAX))


class Ready:
    """Claimable places of one priority: those that were so from the start, in order, and those that came back."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh: deque[int] = deque()
        self.returned: list[int] = []

    def cut(self, place: int) -> None:
        """Forget the places from this one on."""
        self.fresh = deque(row for row in self.fresh if row < place)
        self.returned = sorted(row for row in self.returned if row < place)


class Bucket:
    """Messages by place. Which of them can be claimed is worked out when a consumer comes near: until then a bucket is
    little more than its bytes on disk."""

    __slots__ = (
        "attempts",
        "bounds",
        "counts",
        "deadlines",
        "dirty",
        "expire_ms",
        "groups",
        "listed",
        "live",
        "messages",
        "number",
        "offsets",
        "priorities",
        "ready",
        "reveal_ms",
        "states",
        "stored",
        "visible",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages = array("Q")
        self.priorities = bytearray()
        self.visible = array("q")
        self.deadlines = array("q")
        self.attempts = array("H")
        self.offsets = array("H")
        self.counts = array("H")
        self.groups: list[bytes | None] | None = None  # in a queue without groups
        self.states = bytearray()
        self.live = 0  # places that are not empty
        self.bounds = (0, 0, 0)  # lowest and highest message of the first so many places
        self.ready: dict[int, Ready] | None = {}  # by priority; None: not worked out
        self.listed: set[int] = set()  # the priorities under which its queue knows it
        self.reveal_ms = _NEVER  # the timers that are set
        self.expire_ms = _NEVER
        self.dirty = False
        self.stored = False  # whether there is a record of it

    def __len__(self) -> int:
        return len(self.states)

    # -- coming and going ---------------------------------------------------------------------------------------

    def append(self, run: Run, priority: int, state: int, group: bytes | None = None) -> int:
        """Put a run of messages behind the others; the place of the first."""
        place, count = len(self.states), run.length
        if self.groups is not None:
            self.groups += [group] * count
        self.states += bytes((state,)) * count
        self.priorities += bytes((priority,)) * count
        if count == 1:
            self.messages.append(run.first)
            self.visible.append(run.visible_ms)
            self.deadlines.append(run.deadline_ms)
            self.attempts.append(0)
            self.offsets.append(run.offset)
            self.counts.append(run.record_count)
        else:
            self.messages.extend(array("Q", range(run.first, run.first + count)))
            self.visible.frombytes(run.visible_ms.to_bytes(8, "little", signed=True) * count)
            self.deadlines.frombytes(run.deadline_ms.to_bytes(8, "little", signed=True) * count)
            self.attempts.frombytes(bytes(2 * count))
            self.offsets.extend(_OFFSETS[run.offset : run.offset + count])
            self.counts.frombytes(run.record_count.to_bytes(2, "little") * count)
        self.live += count
        if state == READY and self.ready is not None:
            self._ready(priority).fresh.extend(range(place, place + count))
        return place

    def cut(self, place: int) -> None:
        """Take back what was appended from `place` on; nothing has happened to it since."""
        self.live -= len(self.states) - place
        self.bounds = (0, 0, 0)
        for priority in set(self.priorities[place:]):
            if self.ready is not None and priority in self.ready:
                self.ready[priority].cut(place)
        for column in (self.messages, self.visible, self.deadlines, self.attempts, self.offsets, self.counts):
            del column[place:]
        del self.states[place:]
        del self.priorities[place:]
        if self.groups is not None:
            del self.groups[place:]

    def offer(self, place: int) -> None:
        """Make the message at a place claimable."""
        self.states[place] = READY
        if self.ready is not None:
            heapq.heappush(self._ready(self.priorities[place]).returned, place)

    # -- what can be claimed ------------------------------------------------------------------------------------

    def _ready(self, priority: int) -> Ready:
        assert self.ready is not None
        found = self.ready.get(priority)
        if found is None:
            found = self.ready[priority] = Ready()
        return found

    def warm(self) -> dict[int, Ready]:
        """The places that can be claimed, by priority."""
        if self.ready is None:
            self.ready = {}
            states = np.frombuffer(self.states, np.uint8)
            for place in np.flatnonzero(states == READY).tolist():
                self._ready(self.priorities[place]).fresh.append(place)
        return self.ready

    def take(self, priority: int, limit: int) -> list[int]:
        """The oldest places of one priority, at most `limit`; they leave the claimable ones."""
        ready = self.warm().get(priority)
        if ready is None:
            return []
        taken: list[int] = []
        states, fresh, returned = self.states, ready.fresh, ready.returned
        if not returned and len(fresh) >= limit > 1:  # the usual case in few steps; the others go through the loop
            taken = [fresh.popleft() for _ in range(limit)]
            if states.count(READY, taken[0], taken[-1] + 1) < taken[-1] + 1 - taken[0]:
                taken = [place for place in taken if states[place] == READY]
        while len(taken) < limit:
            if fresh and not (returned and returned[0] < fresh[0]):
                place = fresh.popleft()
            elif returned:
                place = heapq.heappop(returned)
            else:
                break
            if states[place] == READY:  # one that went away meanwhile is still listed
                taken.append(place)
        return taken

    def first(self, priority: int) -> int | None:
        """The oldest claimable place of one priority."""
        found = self.take(priority, 1)
        if not found:
            return None
        heapq.heappush(self._ready(priority).returned, found[0])
        return found[0]

    # -- finding ------------------------------------------------------------------------------------------------

    def span(self) -> tuple[int, int]:
        """The lowest and the highest message that has ever had a place here: no other is worth looking for. It is
        worked out when it is asked for, since a publish does not need it."""
        lowest, highest, length = self.bounds
        if length != len(self.messages):
            messages = np.frombuffer(self.messages, "<u8")
            lowest, highest = int(messages.min()), int(messages.max())
            self.bounds = lowest, highest, len(messages)
        return lowest, highest

    def find(self, messages: np.ndarray) -> list[int]:
        """The places of those of these messages that are available. They need not stand in order: one that is redriven,
        or a dead letter, comes behind younger ones."""
        here = np.frombuffer(self.messages, "<u8")
        mask = here == messages[0] if len(messages) == 1 else np.isin(here, messages)
        places: list[int] = np.flatnonzero(mask & self._available()).tolist()
        return places

    # -- times --------------------------------------------------------------------------------------------------

    def reveal(self, now_ms: int) -> dict[int, int]:
        """Make the hidden messages claimable whose time has come; how many there are of each priority."""
        places = self._due_to_show(now_ms)
        if not len(places):
            return {}
        np.frombuffer(self.states, np.uint8)[places] = READY
        if self.ready is not None:
            for place in places.tolist():
                heapq.heappush(self._ready(self.priorities[place]).returned, place)
        found = np.bincount(np.frombuffer(self.priorities, np.uint8)[places])
        return {priority: int(found[priority]) for priority in np.flatnonzero(found).tolist()}

    def due_to_show(self, now_ms: int) -> list[int]:
        """Hidden places whose time has come."""
        places: list[int] = self._due_to_show(now_ms).tolist()
        return places

    def _due_to_show(self, now_ms: int) -> np.ndarray:
        states = np.frombuffer(self.states, np.uint8)
        return np.flatnonzero((states == HIDDEN) & (np.frombuffer(self.visible, "<i8") <= now_ms))

    def due_to_expire(self, now_ms: int) -> list[int]:
        """Available places whose retention has ended."""
        due = np.frombuffer(self.deadlines, "<i8") < now_ms
        places: list[int] = np.flatnonzero(due & self._available()).tolist()
        return places

    def blocked_until_later(self, now_ms: int) -> int:
        """How many blocked messages are not visible yet."""
        if BLOCKED not in self.states:
            return 0
        blocked = np.frombuffer(self.states, np.uint8) == BLOCKED
        return int(np.count_nonzero(blocked & (np.frombuffer(self.visible, "<i8") > now_ms)))

    def next_reveal_ms(self) -> int:
        """When the next hidden message becomes visible."""
        mask = np.frombuffer(self.states, np.uint8) == HIDDEN
        return int(np.frombuffer(self.visible, "<i8")[mask].min()) if mask.any() else _NEVER

    def next_expire_ms(self) -> int:
        """When the next available message's retention ends."""
        mask = self._available()
        return int(np.frombuffer(self.deadlines, "<i8")[mask].min()) if mask.any() else _NEVER

    def _available(self) -> np.ndarray:
        states = np.frombuffer(self.states, np.uint8)
        mask: np.ndarray = (states != GONE) & (states != HELD)
        return mask

    # -- bytes --------------------------------------------------------------------------------------------------

    def available(self) -> np.ndarray:
        """The available messages as they are stored."""
        rows = np.flatnonzero(self._available())
        table = np.empty(len(rows), records.AVAILABLE)
        table["message"] = np.frombuffer(self.messages, "<u8")[rows]
        table["priority"] = np.frombuffer(self.priorities, np.uint8)[rows]
        table["visible_ms"] = np.frombuffer(self.visible, "<i8")[rows]
        table["deadline_ms"] = np.frombuffer(self.deadlines, "<i8")[rows]
        table["attempts"] = np.frombuffer(self.attempts, "<u2")[rows]
        table["place"] = rows
        table["offset"] = np.frombuffer(self.offsets, "<u2")[rows]
        table["count"] = np.frombuffer(self.counts, "<u2")[rows]
        return table

    @classmethod
    def of(cls, number: int, rows: np.ndarray, length: int, groups: Sequence[bytes | None] | None = None) -> Bucket:
        """A bucket with these rows, each at its place; hidden all of them, until a step looks at the clock. In a
        queue with groups, each has its group."""
        bucket = cls(number)
        places = rows["place"]

        def column(kind: str, name: str, empty: int = 0) -> bytes:
            full = np.full(length, empty, kind)
            full[places] = rows[name]
            return full.tobytes()

        lowest = int(rows["message"].min()) if len(rows) else 0  # at empty places, where it widens no span
        bucket.messages.frombytes(column("<u8", "message", lowest))
        bucket.priorities += column("u1", "priority")
        bucket.visible.frombytes(column("<i8", "visible_ms"))
        bucket.deadlines.frombytes(column("<i8", "deadline_ms"))
        bucket.attempts.frombytes(column("<u2", "attempts"))
        bucket.offsets.frombytes(column("<u2", "offset"))
        bucket.counts.frombytes(column("<u2", "count"))
        states = np.zeros(length, np.uint8)
        states[places] = HIDDEN
        bucket.states += states.tobytes()
        bucket.live = len(rows)
        if groups is not None:
            bucket.groups = [None] * length
            for place, group in zip(places.tolist(), groups, strict=True):
                bucket.groups[place] = group
        bucket.ready = None
        bucket.stored = True
        return bucket
