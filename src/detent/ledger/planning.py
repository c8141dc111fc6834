"""What streams read and write, so that one that comes under another name is known again; and what readers of journals
have planned: the newest steps of each, so that one that asks again gets the same answer.

Spark logs the end of a batch before it runs it, and relies on that log alone to run it again. When the log has lost its
newest entry, Spark asks its source once more; the source asks here, and the batch is the one that it was.
"""

from __future__ import annotations

from itertools import islice

from detent.codec import ledger as records
from detent.codec.ledger import STEPS_MAX, Declared, Plan, PlanStep
from detent.engine import ApplyContext, Done, Result
from detent.errors import LimitExceeded
from detent.kv import Batch, View
from detent.ledger import operations as ops
from detent.ledger.shelf import Shelf


class Plans:
    """All plans of one store, as their owner sees them. The ones that were used last come last."""

    def __init__(self) -> None:
        self._plans: Shelf[bytes] = Shelf(records.PLAN)  # as they are written: a tenth of what they take as objects
        self._used: dict[str, int] = {}  # sizes, in the order of their use
        self._bytes = 0

    def load(self, view: View) -> None:
        """Read all plans."""
        self._plans.load(view, bytes)
        last = {name: Plan.decode(value).steps[-1].planned_ms for name, value in self._plans.items("", "")}
        self._used = {name: len(self._plans.get(name) or b"") for name in sorted(last, key=lambda name: last[name])}
        self._bytes = sum(self._used.values())

    def flush(self, batch: Batch) -> None:
        """Write what the group has changed."""
        self._plans.flush(batch)

    def plan(self, op: ops.PlanOffsets, context: ApplyContext) -> Result:
        """Keep a step, unless one from there is known."""
        ops.check_plan(op)
        value = self._plans.get(op.name)
        steps = Plan.decode(value).steps if value is not None else ()
        before = next((step.journals for step in reversed(steps) if step.end == op.start), b"")
        known = next((step for step in steps if step.start == op.start), None)
        if known is not None and not op.anew:
            context.idle += 1
            return ops.Planned(known.moved, known.journals, False, before)
        moved = dict(sorted(op.moved.items()))
        step = PlanStep(context.now_ms, op.start, op.end, op.journals, moved)
        self._set(op.name, with_step(steps, step), context)
        self._make_room(op.name, context)
        return ops.Planned(moved, op.journals, True, before)

    def _set(self, name: str, value: bytes | None, context: ApplyContext) -> None:
        self._plans.set(name, value, value, context)
        size = self._used.get(name)
        context.undo.append(lambda: self._use(name, size))
        self._use(name, None if value is None else len(value))

    def _use(self, name: str, size: int | None) -> None:
        """This plan was used last, and has so many bytes; None if it is gone."""
        self._bytes -= self._used.pop(name, 0)
        if size is not None:
            self._used[name] = size
            self._bytes += size

    def _make_room(self, newest: str, context: ApplyContext) -> None:
        while len(self._used) > ops.PLANS_MAX or self._bytes > ops.PLANS_BYTES_MAX:
            oldest = next(iter(self._used))
            if oldest == newest:
                return
            self._set(oldest, None, context)


def with_step(steps: tuple[PlanStep, ...], step: PlanStep) -> bytes:
    """A plan with one more step, and as many of the older ones as there is room for."""
    kept = [*(one for one in steps if one.start != step.start), step][-STEPS_MAX:]
    value = Plan(tuple(kept)).encode()
    while len(value) > ops.PLAN_BYTES_MAX and len(kept) > 1:
        kept = kept[1:]
        value = Plan(tuple(kept)).encode()
    return value


class Streams:
    """The streams of one store, as their owner sees them."""

    def __init__(self) -> None:
        self._streams: Shelf[Declared] = Shelf(records.STREAM)

    def load(self, view: View) -> None:
        """Read all streams."""
        self._streams.load(view, Declared.decode)

    def flush(self, batch: Batch) -> None:
        """Write what the group has changed."""
        self._streams.flush(batch)

    def declare(self, op: ops.DeclareStream, context: ApplyContext) -> Result:
        """Keep what a stream reads and writes."""
        ops.check_stream(op)
        known = self._streams.get(op.name)
        if known is None and len(self._streams) >= ops.STREAMS_MAX:
            raise LimitExceeded(f"a store knows at most {ops.STREAMS_MAX} streams: reset the ledgers of old ones")
        if known is not None and (known.reads, known.writes) == (op.reads, op.writes):
            context.idle += 1
            return Done()
        stream = Declared(context.now_ms, op.reads, op.writes)
        self._streams.set(op.name, stream, stream.encode(), context)
        return Done()

    def describe(self, op: ops.DescribeStreams, context: ApplyContext) -> Result:
        """A page of streams."""
        context.idle += 1
        ops.check_page("", op.after, op.limit)
        found = list(islice(self._streams.items("", op.after), op.limit + 1))
        shown = [ops.StreamDescription(name, stream.reads, stream.writes) for name, stream in found[: op.limit]]
        return ops.StreamDescriptions(shown, len(found) > op.limit)

    def knows(self, name: str) -> bool:
        """Whether a stream of this name was declared."""
        return self._streams.get(name) is not None

    def forget(self, name: str, context: ApplyContext) -> None:
        """The ledger of this name was reset: its stream starts over, whatever it reads and writes."""
        if self.knows(name):
            self._streams.set(name, None, None, context)
