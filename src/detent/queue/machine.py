"""The queues' state machine: applies their operations to memory, and writes a group's changes in one batch.

Between checkpoints a group writes what it published and one record of the state log. A checkpoint folds the state log
into the buckets; :mod:`detent.queue.checkpoint` writes one, :mod:`detent.queue.loading` reads it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from detent.codec import queue as records
from detent.engine import MALFORMED, ApplyContext, Operation, Result
from detent.errors import Invalid
from detent.kv import Batch, Reader, View
from detent.queue import (
    admin,
    assigning,
    checkpoint,
    claiming,
    housekeeping,
    listing,
    loading,
    peeking,
    publishing,
    surveying,
)
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.queue.memory import QueueMemory


class QueueMachine(QueueMemory):
    """All queues of one store, as their owner sees them."""

    prepared: tuple[type[Operation], ...] = (
        ops.CreateQueue,
        ops.ConfigureQueue,
        ops.DeleteQueue,
        ops.SetDedupWindow,
        ops.Redrive,
        ops.Purge,
        ops.DescribeQueues,
        ops.ListFailed,
        ops.FindMessage,
        listing.ListMessages,
        listing.ListDone,
        listing.ListAttempts,
        peeking.PeekMessages,
        surveying.SurveyQueues,
        reader_ops.OpenReader,
        reader_ops.Assign,
        reader_ops.AckAssigned,
        reader_ops.ReadAssignment,
        reader_ops.ReleaseReader,
        reader_ops.DeleteReader,
        reader_ops.DescribeReaders,
    )
    operations: tuple[type[Operation], ...] = (
        *prepared,
        ops.Publish,
        ops.Claim,
        ops.Ack,
        ops.Fail,
        ops.Extend,
        ops.Unclaim,
        ops.ReadHeld,
    )
    local: tuple[type[Operation], ...] = (ops.WriteCheckpoint,)
    results: tuple[type[Result], ...] = (
        ops.QueueCreated,
        ops.PublishedMessages,
        ops.ClaimedMessages,
        ops.HeldMessages,
        ops.LeaseExtended,
        ops.Moved,
        ops.QueueDescriptions,
        surveying.QueueSurvey,
        ops.FailedMessages,
        ops.MessageFound,
        listing.ListedMessages,
        listing.DoneMessages,
        listing.TriedMessages,
        peeking.PeekedMessages,
        reader_ops.ReaderOpened,
        reader_ops.Assigned,
        reader_ops.AssignedMessages,
        reader_ops.ReaderReleased,
        reader_ops.ReaderDescriptions,
    )

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.handlers: dict[type[Operation], Callable[[Any, ApplyContext], Result]] = {
            ops.CreateQueue: partial(admin.create, self),
            ops.ConfigureQueue: partial(admin.configure, self),
            ops.DeleteQueue: partial(admin.delete, self),
            ops.SetDedupWindow: partial(admin.set_dedup_window, self),
            ops.Redrive: partial(admin.redrive, self),
            ops.Purge: partial(admin.purge, self),
            ops.Publish: partial(publishing.publish, self),
            ops.Claim: partial(claiming.claim, self),
            ops.Ack: partial(claiming.ack, self),
            ops.Fail: partial(claiming.fail, self),
            ops.Extend: partial(claiming.extend, self),
            ops.Unclaim: partial(claiming.unclaim, self),
            ops.ReadHeld: partial(claiming.read_held, self),
            ops.DescribeQueues: partial(listing.describe, self),
            ops.ListFailed: partial(listing.list_failed, self),
            ops.FindMessage: partial(listing.find_message, self),
            listing.ListMessages: partial(listing.list_messages, self),
            listing.ListDone: partial(listing.list_done, self),
            listing.ListAttempts: partial(listing.list_attempts, self),
            peeking.PeekMessages: partial(peeking.peek, self),
            surveying.SurveyQueues: partial(surveying.survey, self),
            reader_ops.OpenReader: partial(assigning.open_reader, self),
            reader_ops.Assign: partial(assigning.assign, self),
            reader_ops.AckAssigned: partial(assigning.ack, self),
            reader_ops.ReadAssignment: partial(assigning.read, self),
            reader_ops.ReleaseReader: partial(assigning.release, self),
            reader_ops.DeleteReader: partial(assigning.delete, self),
            reader_ops.DescribeReaders: partial(assigning.describe, self),
            ops.Advance: partial(housekeeping.run_timers, self),
            ops.CatchUp: partial(housekeeping.catch_up, self),
            ops.Collect: partial(housekeeping.collect, self),
            ops.WriteCheckpoint: partial(housekeeping.request_checkpoint, self),
        }
        for kind, apply in self.handlers.items():
            self.handlers[kind] = partial(self._apply, apply)

    # -- the machine's interface --------------------------------------------------------------------------------

    def prepare(self, operation: Any) -> None:
        """Rare operations of this process are held to the types that the wire would hold them to; the frequent ones are
        checked where they are made, which costs less."""
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(operation), type=type(operation))
        except (*MALFORMED, TypeError, OverflowError, UnicodeError) as error:
            raise Invalid(f"this is no {type(operation).__name__}: {error}") from error

    def load(self, view: View) -> None:
        """Read the last checkpoint, and replay the state log on it."""
        self.forget()
        loading.load(self, view)

    def set_back(self, by_ms: int, now_ms: int) -> None:
        """Leases and delays that were written under a clock that was ahead end as much earlier."""
        with self.reader.view() as view:
            loading.set_back(self, by_ms, now_ms, view)

    def flush(self, batch: Batch, now_ms: int) -> None:
        """Write the group's changes."""
        batch.extend(self.writes)
        if self.checkpoint_wanted or checkpoint.is_due(self, now_ms):
            checkpoint.write(self, batch, now_ms)
        elif self.steps:
            record = b"".join(self.steps)
            batch.put(records.state_log_key(self.next_record), record)
            self.next_record += 1
            self.log_bytes += len(record)
        self.writes.clear()
        self.steps.clear()
        self.published.clear()
        self.context = None
        self.look_ms = housekeeping.next_look_ms(self, now_ms)

    def due(self, now_ms: int) -> Iterable[Operation]:
        """Timers, queues that catch up, what can be collected, checkpoints."""
        return housekeeping.due(self, now_ms)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When a timer fires, or at once if there is work left over."""
        del now_ms
        return self.look_ms

    def closing(self) -> Iterable[Operation]:
        """A store that was closed opens without a state log to replay, and goes on with the next message number."""
        unused = self.allocator.unused
        if unused or self.steps or self.next_record > self.first_record:
            yield ops.WriteCheckpoint(closing=True)

    def _apply(self, apply: Callable[[Any, ApplyContext], Result], operation: Any, context: ApplyContext) -> Result:
        """Look at the clock before anything else, so that the operation sees what time has done.

        What time does is not taken back with a transaction. So only the first operation of one looks: after it there
        may be changes to take back, and they must be the last ones then.
        """
        if self.context is not context:
            self.context = context
            housekeeping.advance(self, context.now_ms)
        return apply(operation, context)

    # -- what others ask, from any thread -----------------------------------------------------------------------

    def claimable(self, name: str) -> bool:
        """Whether there is something to claim, as far as one sees from outside. For any thread."""
        state = self.queues.get(name)
        return state is None or state.claimable > 0

    def wait(self, name: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called once there is something to claim, also when only a timer brings it. For any thread.

        Returns how to stop waiting. Ask `claimable` after this: something may have come just before.
        """
        stop = self.watch.add(name, wake)
        if self.look_ms is not None:
            self.watch.timer(self.look_ms)
        return stop
