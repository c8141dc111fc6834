"""What streams read and write, so that one that comes under another name is known again."""

from __future__ import annotations

from itertools import islice

from detent.codec import ledger as records
from detent.codec.ledger import Declared
from detent.engine import Context, Done, Result
from detent.errors import LimitExceeded
from detent.kv import Batch, View
from detent.ledger import operations as ops
from detent.ledger.shelf import Shelf


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

    def declare(self, op: ops.DeclareStream, context: Context) -> Result:
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

    def describe(self, op: ops.DescribeStreams, context: Context) -> Result:
        """A page of streams."""
        context.idle += 1
        ops.check_page("", op.after, op.limit)
        found = list(islice(self._streams.items("", op.after), op.limit + 1))
        shown = [ops.StreamDescription(name, stream.reads, stream.writes) for name, stream in found[: op.limit]]
        return ops.StreamDescriptions(shown, len(found) > op.limit)

    def knows(self, name: str) -> bool:
        """Whether a stream of this name was declared."""
        return self._streams.get(name) is not None

    def forget(self, name: str, context: Context) -> None:
        """The ledger of this name was reset: its stream starts over, whatever it reads and writes."""
        if self.knows(name):
            self._streams.set(name, None, None, context)
