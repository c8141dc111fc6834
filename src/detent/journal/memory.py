"""What the owner of a store remembers of its journals, and what the group in progress adds.

Every operation on journals takes this memory: :mod:`detent.journal.machine` puts them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from detent.codec import journal as records
from detent.codec.journal import Fragment, Listing, OpenSpan
from detent.engine import Context, Result
from detent.errors import Exists, LimitExceeded, NotFound
from detent.journal import operations as ops
from detent.journal.state import JournalState, set_undoably
from detent.journal.watch import Watch
from detent.kv import Reader, View
from detent.message import TICK, clock_of_ns, new_producer_id
from detent.settings.journal import JOURNAL


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

    def state_for_append(self, name: str, context: Context) -> JournalState:
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

    def write(self, key: bytes, value: bytes | None, context: Context) -> None:
        """Put or delete a record that belongs to no single journal's state."""
        set_undoably(self._writes, key, value, context.undo)

    def create(self, op: ops.CreateJournal, context: Context) -> Result:
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
