"""What the owner of a store remembers of its journals, what the group in progress adds, and which readers wait.

Every operation on journals takes this memory: :mod:`detent.journal.machine` puts them together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from detent.codec import journal as records
from detent.codec.journal import Fragment, Listing, OpenSpan
from detent.engine import ApplyContext, Result
from detent.errors import Exists, LimitExceeded, NotFound
from detent.journal import operations as ops
from detent.journal.state import JournalState, set_undoably
from detent.kv import Reader, View
from detent.message import TICK, clock_of_ns, new_producer_id
from detent.settings.journal import JOURNAL

WAITERS_MAX: Final = 10_000

ANNOUNCED_MAX: Final = 10_000
"""Journals whose last announcement is kept; beyond this all are forgotten, and who asks looks for itself."""


class Watch:
    """Waiters by journal. A waiter is called once, from the committing thread, and must return at once."""

    def __init__(self) -> None:
        self.changed: dict[str, int] = {}
        self._lock = threading.Lock()
        self._waiters: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self._announced: dict[str, int] = {}

    def add(self, journal: str, offset: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once the journal's next offset is above `offset`. Returns how to stop waiting.

        Look at the journal again after this: it may have grown just before.
        """
        waiter = (offset, wake)
        with self._lock:
            if sum(map(len, self._waiters.values())) >= WAITERS_MAX:
                raise LimitExceeded(f"{WAITERS_MAX} readers wait already")
            self._waiters.setdefault(journal, []).append(waiter)

        def remove() -> None:
            with self._lock:
                waiters = self._waiters.get(journal, [])
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters:
                    self._waiters.pop(journal, None)

        return remove

    def announced(self, journal: str) -> int | None:
        """The journal's next offset, as it was announced last; None if that is not known.

        A caller that `add`s first and then finds here the offset that it waits for has missed nothing: what is
        announced later wakes it. Of a journal that was deleted it says nothing.
        """
        return self._announced.get(journal)

    def announce(self) -> None:
        """Wake those whose journal has grown far enough in the group that was just committed."""
        changed, self.changed = self.changed, {}
        if len(self._announced) + len(changed) > ANNOUNCED_MAX:
            self._announced.clear()
        self._announced.update(changed)  # before any waiter is looked for
        if not self._waiters:
            return
        ready: list[Callable[[], None]] = []
        with self._lock:
            for journal, next_offset in changed.items():
                waiters = self._waiters.get(journal)
                if not waiters:
                    continue
                ready += [wake for offset, wake in waiters if offset < next_offset]
                left = [waiter for waiter in waiters if waiter[0] >= next_offset]
                if left:
                    self._waiters[journal] = left
                else:
                    del self._waiters[journal]
        for wake in ready:
            wake()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._waiters.values()))


class JournalMemory:
    """What the owner remembers of all journals of one store."""

    def __init__(self, reader: Reader, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._reader = reader
        self._view: View | None = None
        self._states: dict[str, JournalState] = {}
        self._writes: dict[bytes, bytes | None] = {}
        self.names: dict[str, Listing] = {}
        self.by_id: dict[int, str] = {}
        self.deleted: set[int] = set()
        self.open_spans: dict[tuple[int, int], OpenSpan] = {}
        self.next_id = 1
        self.horizon_ms = 0
        # A new producer at every start: an old one's late messages can never be mistaken for ours.
        self.producer = int(new_producer_id(random(6)))
        self.producer_bytes = self.producer.to_bytes(6, "big")
        self.clock = 0
        self._clock_ms = 0
        self.watch = Watch()

    def read(self) -> Any:
        """A view of what is durable: all that is not in memory."""
        return self._reader.view()

    def state(self, name: str) -> JournalState:
        """A journal that exists."""
        state = self._states.get(name)
        if state is None:
            listing = self.names.get(name)
            if listing is None:
                ops.check_name(name)
                raise NotFound(f"there is no journal {name!r}")
            with self._reader.view() as view:
                state = self._states[name] = JournalState(name, listing, view)
        return state

    def loaded(self) -> list[JournalState]:
        """The journals that are in memory."""
        return list(self._states.values())

    def state_for_append(self, name: str, context: ApplyContext) -> JournalState:
        """A journal to append to; the first append creates it."""
        if name not in self.names:
            self.create(ops.CreateJournal(name), context)
        return self.state(name)

    def reserve_clocks(self, count: int, now_ms: int) -> int:
        """The first of `count` clocks, `TICK` apart, above all that this owner has given out."""
        if now_ms != self._clock_ms:
            self._clock_ms = now_ms
            self.clock = max(self.clock, clock_of_ns(now_ms * 1_000_000))
        first = self.clock + TICK
        self.clock = first + (count - 1) * TICK
        return first

    def fragment(self, fragment: bytes, view: View) -> Fragment | None:
        """A fragment's record, as the group in progress has left it."""
        key = records.FRAGMENT.key(fragment)
        stored = self._writes[key] if key in self._writes else view.get(key)
        return None if stored is None else Fragment.decode(stored)

    def write(self, key: bytes, value: bytes | None, context: ApplyContext) -> None:
        """Put or delete a record that belongs to no single journal's state."""
        set_undoably(self._writes, key, value, context.undo)

    def create(self, op: ops.CreateJournal, context: ApplyContext) -> Result:
        """A new journal: its name, its number, its settings."""
        ops.check_name(op.journal)
        known = self.names.get(op.journal)
        if known is not None:
            if op.exist_ok:
                return ops.Created(known.journal, False)
            raise Exists(f"there is a journal {op.journal!r} already")
        if len(self.names) >= ops.JOURNALS_MAX:
            raise LimitExceeded(f"there are {ops.JOURNALS_MAX} journals already")
        name, number = op.journal, self.next_id
        listing = Listing(number, context.now_ms, **{key: getattr(op, key) for key in JOURNAL.by_key})
        self.next_id += 1
        self.names[name] = listing
        self.by_id[number] = name
        state = self._states[name] = JournalState(name, listing, None)

        def undo() -> None:
            del self.names[name], self.by_id[number]
            self._states.pop(name, None)
            self.next_id = number

        context.undo.append(undo)
        state.touch(context.undo)
        self.write(records.LISTING.key(name.encode()), listing.encode(), context)
        self.write(records.NEXT_ID.raw, records.encode_number(self.next_id), context)
        return ops.Created(number, True)
