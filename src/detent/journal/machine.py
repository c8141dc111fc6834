"""The journals' state machine: applies their operations to memory, and writes a group's changes in one batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from detent.codec import journal as records
from detent.codec.journal import Fragment, Listing, OpenSpan
from detent.codec.keys import u32
from detent.engine import ApplyContext, Done, Operation, Result
from detent.errors import Conflict, Corrupt, Exists, Fenced, Invalid, LimitExceeded
from detent.journal import appending, fragments, housekeeping, spans
from detent.journal import operations as ops
from detent.journal.memory import JournalMemory
from detent.kv import Batch, Reader, View
from detent.settings.journal import JOURNAL

JOURNALS_LOADED_MAX: Final = 10_000
"""Journals with their end in memory; beyond this all are let go and read again when they are used."""

logger = logging.getLogger("detent.journal")


class JournalMachine(JournalMemory):
    """All journals of one store, as their owner sees them."""

    operations: tuple[type[Operation], ...] = (
        ops.CreateJournal,
        ops.ConfigureJournal,
        ops.DeleteJournal,
        ops.Append,
        ops.AppendPacked,
        ops.AppendStamped,
        ops.AppendBatch,
        ops.HoldSpan,
        ops.AdoptFragments,
        ops.CheckHead,
        ops.CheckRegisters,
        ops.UpdateRegisters,
        ops.TrimJournal,
    )
    local: tuple[type[Operation], ...] = (ops.RaiseHorizon,)
    prepared: tuple[type[Operation], ...] = (ops.AdoptFragments,)
    results: tuple[type[Result], ...] = (ops.Created, ops.Appended)

    def __init__(self, reader: Reader, *, random: Callable[[int], bytes] = os.urandom) -> None:
        super().__init__(reader, random=random)
        self.housekeeper = housekeeping.JournalHousekeeper(self)
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.CreateJournal: self.create,
            ops.ConfigureJournal: self._configure,
            ops.DeleteJournal: self._delete,
            ops.Append: partial(appending.append, self),
            ops.AppendPacked: partial(appending.append_packed, self),
            ops.AppendStamped: partial(appending.append_stamped, self),
            ops.AppendBatch: partial(appending.append_batch, self),
            ops.HoldSpan: partial(spans.hold, self),
            ops.AdoptFragments: self._adopt,
            ops.CheckHead: self._check_head,
            ops.CheckRegisters: self._check_registers,
            ops.UpdateRegisters: self._update_registers,
            ops.TrimJournal: self._trim,
            ops.RaiseHorizon: self._raise_horizon,
            **self.housekeeper.handlers,
        }

    # -- the machine's interface --------------------------------------------------------------------------------

    def load(self, view: View) -> None:
        """Read the names of all journals, and which spans are open; everything else waits until it is used."""
        self._states.clear()
        self._writes.clear()
        self.names = {key[3:].decode(): Listing.decode(value) for key, value in view.scan(*records.LISTING.range())}
        self.by_id = {listing.journal: name for name, listing in self.names.items()}
        self.deleted = {int.from_bytes(key[3:7], "big") for key, _ in view.scan(*records.DELETED.range())}
        self.open_spans = {}
        for key, value in view.scan(*records.OPEN_SPAN.range()):
            if len(key) != 13:
                raise Corrupt(f"an open-span key of {len(key)} bytes")
            journal, producer = int.from_bytes(key[3:7], "big"), int.from_bytes(key[7:], "big")
            self.open_spans[journal, producer] = OpenSpan.decode(value)
        self.next_id = self._number(view, records.NEXT_ID.raw, 1)
        self.horizon_ms = self._number(view, records.HORIZON.raw, 0)
        self.housekeeper.reset()

    @staticmethod
    def _number(view: View, key: bytes, default: int) -> int:
        stored = view.get(key)
        return default if stored is None else records.decode_number(stored, "number")

    def prepare(self, operation: Any) -> None:
        """Before adoption: the fragments exist and are whole."""
        fragments.check_written(self._reader.objects, operation.fragments)

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """Open spans keep what they have left until their deadline."""
        del now_ms
        self.housekeeper.set_back(by_ms)

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write the group's changes."""
        batch.extend(self._writes)
        self._writes.clear()
        for name, state in self._states.items():
            if state.touched:
                state.flush(batch, now_ms)
                self.watch.changed[name] = state.next_offset

    def committed(self) -> None:
        """Wake those who wait for what is now durable."""
        self.watch.announce()
        if len(self._states) > JOURNALS_LOADED_MAX:
            self._states.clear()

    def due(self, now_ms: int) -> Iterable[Operation]:
        """Retention, deadlines, pruning, deletion."""
        return self.housekeeper.due(now_ms)

    def next_due_ms(self, now_ms: int) -> int | None:
        """A tick a second is enough for journals."""
        del now_ms
        return None

    def closing(self) -> Iterable[Operation]:
        """Nothing is left to do: every commit was whole."""
        return ()

    # -- names and settings -------------------------------------------------------------------------------------

    def _configure(self, op: ops.ConfigureJournal, context: ApplyContext) -> Result:
        state, old = self.state(op.journal), self.names[op.journal]
        changes = {key: value for key in JOURNAL.by_key if (value := getattr(op, key)) is not None}
        listing = old._replace(**changes)

        def replace(new: Listing) -> None:
            self.names[op.journal] = new
            state.listing = new

        context.undo.append(lambda: replace(old))
        replace(listing)
        self.write(records.LISTING.key(op.journal.encode()), listing.encode(), context)
        return Done()

    def _delete(self, op: ops.DeleteJournal, context: ApplyContext) -> Result:
        state, listing = self.state(op.journal), self.names[op.journal]
        spans = {key: opened for key, opened in self.open_spans.items() if key[0] == listing.journal}

        def undo() -> None:
            self.names[op.journal] = listing
            self.by_id[listing.journal] = op.journal
            self._states[op.journal] = state
            self.deleted.discard(listing.journal)
            self.open_spans.update(spans)

        context.undo.append(undo)
        # What the group has gathered for it goes with it: appended and then deleted is deleted.
        del self.names[op.journal], self.by_id[listing.journal], self._states[op.journal]
        self.deleted.add(listing.journal)
        for span in spans:
            del self.open_spans[span]
        self._drop_strays(listing.journal, context)
        self.write(records.LISTING.key(op.journal.encode()), None, context)
        self.write(records.DELETED.key(u32(listing.journal)), op.journal.encode(), context)
        return Done()

    def _drop_strays(self, journal: int, context: ApplyContext) -> None:
        """Records of a deleted journal that do not stand below its number, durable or only in this group."""
        with self._reader.view() as view:
            for key, _ in view.scan(*records.OPEN_SPAN.range(u32(journal))):
                self.write(key, None, context)
        for key, value in list(self._writes.items()):
            if value is None:
                continue
            # A fragment adopted in this very group: the index that names it will never be written.
            if key.startswith(records.FRAGMENT.raw):
                record = Fragment.decode(value)
                if record.journal == journal:
                    self.write(key, record._replace(journal=0).encode(), context)

    # -- registers, checks, trimming ----------------------------------------------------------------------------

    def _check_head(self, op: ops.CheckHead, _: ApplyContext) -> Result:
        found = self.state(op.journal).next_offset if op.journal in self.names else 0
        if found != op.next_offset:
            raise Conflict(f"the journal {op.journal!r} ends at offset {found}, not at {op.next_offset}")
        return Done()

    def _check_registers(self, op: ops.CheckRegisters, _: ApplyContext) -> Result:
        registers = self.state(op.journal).registers if op.journal in self.names else {}
        for name, expected in op.expected.items():
            ops.check_register(name, expected)
            found = registers.get(name)
            if found != expected:
                error = Conflict(f"register {name!r} of {op.journal!r} is {found!r}, not {expected!r}")
                raise error.quoting("journal", op.journal, f"register {name!r} of {op.journal!r} is not {expected!r}")
        return Done()

    def _update_registers(self, op: ops.UpdateRegisters, context: ApplyContext) -> Result:
        for name, value in op.values.items():
            ops.check_register(name, value)
        state = self.state_for_append(op.journal, context)
        state.touch(context.undo)
        for name, value in op.values.items():
            state.put(state.registers, name, value, context.undo)
            key = records.part(state.id, records.REGISTER, name.encode())
            state.put(state.writes, key, None if value is None else value.encode(), context.undo)
        if len(state.registers) > ops.REGISTERS_MAX:
            raise LimitExceeded(f"a journal has at most {ops.REGISTERS_MAX} registers")
        return Done()

    def _trim(self, op: ops.TrimJournal, context: ApplyContext) -> Result:
        state = self.state(op.journal)
        if op.before > state.next_offset:
            raise Invalid(f"offset {op.before} is past the end of {op.journal!r}, which is {state.next_offset}")
        self.housekeeper.trim(state, op.before, context)
        return Done()

    # -- fragments ----------------------------------------------------------------------------------------------

    def _adopt(self, op: ops.AdoptFragments, context: ApplyContext) -> Result:
        fragments.check_refs(op.fragments)
        state = self.state_for_append(op.journal, context)
        state.touch(context.undo)
        first = state.next_offset
        with self._reader.view() as view:
            for ref in op.fragments:
                key = records.FRAGMENT.key(ref.id)
                if self.fragment(ref.id, view) is not None:
                    raise Exists(f"fragment {ref.id.hex()} was adopted before")
                if fragments.created_ms(ref.id) < self.horizon_ms:
                    behind_s = (self.horizon_ms - fragments.created_ms(ref.id)) // 1_000
                    raise Fenced(
                        f"fragment {ref.id.hex()} was begun {behind_s} s before the sweeper's horizon, by the clock of "
                        "the machine that wrote it: write it again, on a machine whose clock is right"
                    )
                record = Fragment(state.id, ref.rows, ref.size, ref.checksum, state.next_offset, context.now_ms)
                self.write(key, record.encode(), context)
                state.commit_run(0, ref.rows, ref.id)
                state.fragments += 1
                state.fragment_bytes += ref.size
        return ops.Appended(state.next_position, 0, first, state.next_offset - first)

    def _raise_horizon(self, op: ops.RaiseHorizon, context: ApplyContext) -> Result:
        if op.horizon_ms > context.now_ms:
            raise Invalid("the adoption horizon cannot lie in the future")
        old = self.horizon_ms
        if op.horizon_ms > old:
            context.undo.append(lambda: setattr(self, "horizon_ms", old))
            self.horizon_ms = op.horizon_ms
            self.write(records.HORIZON.raw, records.encode_number(op.horizon_ms), context)
            self._drop_tombstones(context)
        return Done()

    def _drop_tombstones(self, context: ApplyContext) -> None:
        """Below the horizon nothing can be adopted, so there is no need to remember what once was. In bounded steps."""
        start, _ = records.FRAGMENT.range()
        end = records.FRAGMENT.key(fragments.new_fragment_id(self.horizon_ms, b""))
        with self._reader.view() as view:
            for key, value in view.scan(start, end, limit=housekeeping.STEP_RECORDS * 10):
                if not Fragment.decode(value).journal:
                    self.write(key, None, context)
