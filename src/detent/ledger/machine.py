"""The ledgers' state machine: which batches of a query have taken effect, and where a stream began.

All rows are read at the start and stay in memory. There are few, they are small, and a row that had to be fetched from
an object store would hold up everybody's transactions, not only the one that enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from detent.codec import ledger as records
from detent.codec.ledger import BatchInputs, Pin, Row
from detent.engine import ApplyContext, Done, Operation, Result
from detent.errors import LimitExceeded, NotFound
from detent.kv import Batch, View
from detent.ledger import entering
from detent.ledger import operations as ops
from detent.ledger.planning import Plans, Streams
from detent.ledger.shelf import Shelf


class LedgerMachine:
    """All ledgers and pins of one store, as their owner sees them."""

    operations: tuple[type[Operation], ...] = (
        ops.EnterLedger,
        ops.ResetLedger,
        ops.DeleteLedger,
        ops.DescribeLedgers,
        ops.PinOffsets,
        ops.Unpin,
        ops.DescribePins,
        ops.PlanOffsets,
        ops.DeclareStream,
        ops.DescribeStreams,
    )
    local: tuple[type[Operation], ...] = ()
    prepared: tuple[type[Operation], ...] = ()
    results: tuple[type[Result], ...] = (
        ops.Entered,
        ops.Pinned,
        ops.Planned,
        ops.LedgerDescriptions,
        ops.PinDescriptions,
        ops.StreamDescriptions,
    )

    def __init__(self) -> None:
        self._rows: Shelf[Row] = Shelf(records.ROW)
        self._pins: Shelf[bytes] = Shelf(records.PIN)  # as they are written: a tenth of what they take as dictionaries
        self._pin_bytes = 0
        self._inputs: Shelf[BatchInputs] = Shelf(records.INPUTS)
        self._restored: Shelf[int] = Shelf(records.RESTORED)
        self._plans = Plans()
        self._streams = Streams()
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.EnterLedger: self._enter,
            ops.ResetLedger: self._reset,
            ops.DeleteLedger: self._delete,
            ops.DescribeLedgers: self._describe,
            ops.PinOffsets: self._pin,
            ops.Unpin: self._unpin,
            ops.DescribePins: self._describe_pins,
            ops.PlanOffsets: self._plans.plan,
            ops.DeclareStream: self._streams.declare,
            ops.DescribeStreams: self._streams.describe,
        }

    # -- the machine's interface --------------------------------------------------------------------------------

    def prepare(self, operation: Any) -> None:
        """Nothing here needs slow checks."""

    def load(self, view: View) -> None:
        """Read all rows, inputs, pins and plans."""
        self._rows.load(view, Row.decode)
        self._inputs.load(view, BatchInputs.decode)
        self._restored.load(view, records.decode_restored)
        self._plans.load(view)
        self._streams.load(view)
        self._pins.load(view, bytes)
        self._pin_bytes = sum(len(value) for _, value in self._pins.items("", ""))

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """Nothing here waits for a time."""

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write what the group has changed."""
        del now_ms
        self._rows.flush(batch)
        self._inputs.flush(batch)
        self._restored.flush(batch)
        self._plans.flush(batch)
        self._streams.flush(batch)
        self._pins.flush(batch)

    def committed(self) -> None:
        """No caller waits for a ledger."""

    def due(self, now_ms: int) -> Iterable[Operation]:
        """Nothing is ever forgotten by itself."""
        del now_ms
        return ()

    def next_due_ms(self, now_ms: int) -> int | None:
        """So there is nothing to wake up for."""
        del now_ms
        return None

    def closing(self) -> Iterable[Operation]:
        """Nothing is left to do: every commit was whole."""
        return ()

    # -- ledgers ------------------------------------------------------------------------------------------------

    def _enter(self, op: ops.EnterLedger, context: ApplyContext) -> Result:
        ops.check_enter(op)
        row = self._rows.get(op.name)
        if row is None:
            if len(self._rows) >= ops.LEDGERS_MAX:
                raise LimitExceeded(f"there are {ops.LEDGERS_MAX} ledgers already: delete those that are not used")
            row = entering.new_row(context.now_ms)
        known = self._inputs_of(op.name)
        entered = entering.enter(row, op, context.now_ms, known)
        entering.require_next(op, self._restored.get(op.name))
        self._set(op.name, entered, context)
        self._goes_on(op.name, context)
        self._set_inputs(op.name, entering.add_input(known, op), context)
        return ops.Entered(op.name, row.batch)

    def _inputs_of(self, name: str) -> BatchInputs:
        return self._inputs.get(name) or entering.NO_INPUTS

    def _set_inputs(self, name: str, inputs: BatchInputs, context: ApplyContext) -> None:
        """Keep what the newest batches of a ledger were made from; nothing is kept of nothing."""
        if inputs.entries:
            self._inputs.set(name, inputs, inputs.encode(), context)
        elif self._inputs.get(name) is not None:
            self._inputs.set(name, None, None, context)

    def _reset(self, op: ops.ResetLedger, context: ApplyContext) -> Result:
        row = self._row_or_stream(op.name)
        if row is not None:
            self._set(op.name, entering.reset(row, context.now_ms), context)
        return self._forget(op.name, context)

    def _delete(self, op: ops.DeleteLedger, context: ApplyContext) -> Result:
        if self._row_or_stream(op.name) is not None:
            self._rows.set(op.name, None, None, context)
        return self._forget(op.name, context)

    def _goes_on(self, name: str, context: ApplyContext) -> None:
        """A ledger of a restored store has its next batch, or starts over."""
        if self._restored.get(name) is not None:
            self._restored.set(name, None, None, context)

    def _forget(self, name: str, context: ApplyContext) -> Result:
        """What is kept beside the row goes, whether the row stays or not."""
        self._goes_on(name, context)
        self._set_inputs(name, entering.NO_INPUTS, context)
        self._streams.forget(name, context)
        return Done()

    def _row_or_stream(self, name: str) -> Row | None:
        """A ledger's row; None if only its stream is known, which has entered no batch yet."""
        return None if self._rows.get(name) is None and self._streams.knows(name) else self._row(name)

    def _describe(self, op: ops.DescribeLedgers, context: ApplyContext) -> Result:
        context.idle += 1
        if op.name:
            return ops.LedgerDescriptions([_description(op.name, self._row(op.name), self._inputs_of(op.name))], False)
        ops.check_page(op.prefix, op.after, op.limit)
        found = list(islice(self._rows.items(op.prefix, op.after), op.limit + 1))
        shown = [_description(name, row, self._inputs_of(name)) for name, row in found[: op.limit]]
        return ops.LedgerDescriptions(shown, len(found) > op.limit)

    def _row(self, name: str) -> Row:
        """A ledger that exists."""
        ops.check_name(name)
        row = self._rows.get(name)
        if row is None:
            raise NotFound(f"there is no ledger {name!r}")
        return row

    def _set(self, name: str, row: Row, context: ApplyContext) -> None:
        self._rows.set(name, row, row.encode(), context)

    # -- pins ---------------------------------------------------------------------------------------------------

    def _pin(self, op: ops.PinOffsets, context: ApplyContext) -> Result:
        ops.check_pin(op)
        known = self._pins.get(op.name)
        if known is not None:
            context.idle += 1
            return ops.Pinned(Pin.decode(known).offsets, False)
        value = Pin(context.now_ms, op.offsets).encode()
        if len(value) > ops.PIN_BYTES_MAX:
            raise LimitExceeded(f"a pin of {len(value)} bytes is over the limit of {ops.PIN_BYTES_MAX}")
        if len(self._pins) >= ops.PINS_MAX or self._pin_bytes + len(value) > ops.PINS_BYTES_MAX:
            raise LimitExceeded(
                f"a store keeps at most {ops.PINS_MAX} pins, of {ops.PINS_BYTES_MAX} bytes together: unpin those that "
                "are not used"
            )
        self._set_pin(op.name, value, len(value), context)
        return ops.Pinned(dict(sorted(op.offsets.items())), True)

    def _unpin(self, op: ops.Unpin, context: ApplyContext) -> Result:
        ops.check_name(op.name, "pin")
        known = self._pins.get(op.name)
        if known is None:
            raise NotFound(f"there is no pin {op.name!r}")
        self._set_pin(op.name, None, -len(known), context)
        return Done()

    def _set_pin(self, name: str, value: bytes | None, growth: int, context: ApplyContext) -> None:
        self._pins.set(name, value, value, context)
        context.undo.append(lambda: self._grow(-growth))
        self._grow(growth)

    def _grow(self, size: int) -> None:
        self._pin_bytes += size

    def _describe_pins(self, op: ops.DescribePins, context: ApplyContext) -> Result:
        context.idle += 1
        ops.check_page(op.prefix, op.after, op.limit)
        found: list[ops.PinDescription] = []
        size = 0
        for name, value in self._pins.items(op.prefix, op.after):
            if len(found) == op.limit or size > ops.PAGE_BYTES:
                return ops.PinDescriptions(found, True)
            size += len(name) + len(value)
            pin = Pin.decode(value)
            found.append(ops.PinDescription(name, pin.offsets, pin.created_ms))
        return ops.PinDescriptions(found, False)


def _description(name: str, row: Row, inputs: BatchInputs) -> ops.LedgerDescription:
    return ops.LedgerDescription(
        name=name,
        query=row.query,
        batch=row.batch,
        run=row.run,
        replaced=list(row.replaced),
        entries=row.entries,
        generation=row.generation,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        inputs=list(inputs.entries),
    )
