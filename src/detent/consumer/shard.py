"""A shard at work: restore, then transaction after transaction, until it is told to stop or something fails.

This is the consuming half; `Committer` (transaction.py) is the other. A failure on either side ends the shard. To
go on, it starts over: with a new fence, the checkpoint as it is durable, and new producers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent import crash
from detent.consumer.application import Declaration
from detent.consumer.outbox import Outbox, Outlets
from detent.consumer.progress import Progress
from detent.consumer.sources import Sources, key_filter
from detent.consumer.transaction import Committer, ConsumerTransaction, Sealed
from detent.errors import Conflict, Invalid
from detent.journal import AckIntent, Message
from detent.shard import operations as ops
from detent.state.base import ShardName, ShardState
from detent.state.checkpoint import Checkpoint, RawPosition

if TYPE_CHECKING:
    from detent.store import Store

IDLE_S: Final = 1.0
"""How long a shard without messages waits before it looks around: for a stop, or for a failure."""

LEFTOVERS_S: Final = 60.0
"""How long until what an earlier life left pending is rolled back again, if that failed: its store may be away, and a
call to it waits."""

SETTLE_S: Final = 1.0
"""How long after its last commit a shard without messages writes a checkpoint that promises nothing, and that it has
passed over what is not its own. Otherwise one that rests for days would, when it starts again, send acknowledgements of
producers that everybody has forgotten, and look for messages that are gone."""

MESSAGES_MAX: Final = 100_000
"""Messages of one transaction, if it has the time for so many."""

LOOK_EVERY: Final = 16
"""After how many messages it is looked whether a transaction is full, or the shard is to stop."""

Caller = Callable[[Any], Any]
"""Runs a coroutine to its end."""

_NOT_AWAITED: Final = (
    "a function of the application answered a coroutine and is not declared with `async def`, so nobody awaits it: "
    "declare it so, or decorate the asynchronous function itself"
)


@dataclass(frozen=True)
class Assignment:
    """What a shard is given to work with: which one it is, its journals, the stores."""

    consumer: Declaration
    shard: int
    journals: tuple[str, ...]
    store: Store
    outputs: Mapping[str, Store]
    run_coroutine: Caller | None = None

    @property
    def name(self) -> ShardName:
        """Which shard of which consumer."""
        return ShardName(self.consumer.name, self.shard)


class Shard:
    """One life of a shard in this process. `run` it once."""

    def __init__(
        self,
        assignment: Assignment,
        state: ShardState,
        progress: Progress,
        messages_max: int = MESSAGES_MAX,
        before: Shard | None = None,
    ) -> None:
        self._given = assignment
        self._app = assignment.consumer
        self._state = state
        self._progress = progress
        self._bell = threading.Event()
        self._stopping = False
        self._outlets = Outlets(
            assignment.store,
            assignment.outputs,
            with_engine=state.takes_outputs,
            deadline=self._app.output_deadline,
        )
        earlier = [] if before is None else [*before._leftovers, before._outlets]
        self._leftovers: list[Outlets] = [one for one in earlier if one.has_published]
        """What lives before this one, in this process, may have left pending."""
        self._leftovers_due = 0.0
        self._kept: dict[str, list[AckIntent]] = {}
        """What the checkpoint has promised that this life began with."""
        self._sources = Sources(assignment.store, self._bell)
        self._committer: Committer | None = None
        self._number = 0
        self._busy_at = 0.0
        self._messages_max = messages_max
        self.last_messages = 0
        """How many messages the last transaction had that was handed over."""
        self._read = Checkpoint()
        """What this life began with, as far as it is not read anew."""
        self.generation = 0
        self.missing: list[str] = []
        """Journals whose acknowledgements could not be sent again, because they are gone."""

    @property
    def was_fenced(self) -> bool:
        """Whether another process has the state now."""
        return self._committer is not None and self._committer.was_fenced

    def stop(self) -> None:
        """Finish the transaction under way, and end. For any thread."""
        self._stopping = True
        self._bell.set()

    def run(self, *, once: bool = False) -> None:
        """Work until stopped; with `once`, until no message is ready."""
        self._progress.restart()
        try:
            checkpoint = self._restore()
            self._open_sources(checkpoint)
            self._committer = Committer(
                self._state, self._outlets, self._progress, checkpoint, self._bell.set, str(self._given.name)
            )
            self._progress.advance(
                self._sources.progress(), self._outlets.heads(checkpoint.wrote), numbers=self._sources.numbers()
            )
            self._progress.say("running")
            if self._begins_late(checkpoint):
                self._commit_nothing()
            self._work(once)
            self._committer.wait_idle()
            self._settle()
            self._committer.wait_idle()
        finally:
            if self._committer is not None:
                self._committer.close()
            self._sources.close()
            self._state.close()

    def _work(self, once: bool) -> None:
        """Transaction after transaction."""
        assert self._committer is not None
        try:
            while self._transact(once):
                pass
        except BaseException:
            self._committer.raise_failure()  # what failed first, if it is the reason of this
            raise

    # -- starting -------------------------------------------------------------------------------------------------

    def _restore(self) -> Checkpoint:
        """The checkpoint, behind the fence, with its acknowledgements sent again and pending resets applied."""
        found = self._state.restore()
        crash.point("consumer.after_restore")
        checkpoint = Checkpoint() if found is None else found
        name = self._given.name
        # Read after the fence: whoever reset the consumer before it sees their offsets applied.
        row, consumer = self._given.store.commit(
            [
                ops.FindShard(name.consumer, name.shard, checkpoint.generation),
                ops.DescribeConsumers(name=name.consumer),
            ]
        )
        born_ms = consumer.consumers[0].created_ms
        if found is not None and (found.shard, found.born_ms) != (row.number, born_ms):
            raise Conflict(
                f"the state of {name} is of another shard of that name: its consumer was deleted, or is one of another "
                "store. Delete the state too (its row in the database, its recovery log), or choose another name"
            )
        is_reset = row.generation > checkpoint.generation
        self.missing = self._outlets.recover(checkpoint.intents, is_reset=is_reset)
        self._kept = checkpoint.intents
        self._give_up_leftovers()
        crash.point("consumer.after_recover")
        self.generation, self._number = row.generation, checkpoint.transaction
        self._progress.identify(row.generation, row.number)
        known = self._reset(checkpoint, row.resets)
        return msgspec.structs.replace(known, generation=row.generation, shard=row.number, born_ms=born_ms)

    def _give_up_leftovers(self) -> None:
        """Roll back what lives before this one have left pending; now, and again later what cannot be now."""
        for one in self._leftovers:
            one.give_up(self._kept)
        self._leftovers = [one for one in self._leftovers if one.has_published]
        self._leftovers_due = time.monotonic() + LEFTOVERS_S

    def _reset(self, checkpoint: Checkpoint, resets: Mapping[str, int]) -> Checkpoint:
        """The checkpoint with other places to read from, in whichever journal of that name there is. Those of raw
        sources are positions."""
        named = {name for name in self._given.journals if self._app.source_of(name).raw}
        raw = named | (checkpoint.raw.keys() - set(self._given.journals))
        offsets = {name: at for name, at in checkpoint.offsets.items() if name not in resets}
        positions = {name: at for name, at in checkpoint.raw.items() if name not in resets}
        return msgspec.structs.replace(
            checkpoint,
            offsets={**offsets, **{name: at for name, at in resets.items() if name not in raw}},
            raw={**positions, **{name: RawPosition(at, 0, []) for name, at in resets.items() if name in raw}},
            numbers={name: number for name, number in checkpoint.numbers.items() if name not in resets},
        )

    def _open_sources(self, checkpoint: Checkpoint) -> None:
        app = self._app
        mine = key_filter(self._given.shard, app.shards) if app.partition == "key" and app.shards > 1 else None
        for journal in self._given.journals:
            self._sources.add(journal, app.source_of(journal), checkpoint, mine)
        self._read = checkpoint

    def _begins_late(self, checkpoint: Checkpoint) -> bool:
        """Whether a source begins at the end of its journal, as it is now: where that was must be durable, or a restart
        before the first message would skip what came meanwhile."""
        known = {*checkpoint.offsets, *checkpoint.raw}
        return any(
            journal not in known and self._app.source_of(journal).start == "latest" for journal in self._given.journals
        )

    # -- one transaction ------------------------------------------------------------------------------------------

    def _transact(self, once: bool) -> bool:
        """Consume one transaction and hand it over. False when there will be no more."""
        assert self._committer is not None
        if not self._await_message(once):
            return False
        outbox = self._outlets.new_outbox()
        handle = self._state.begin(self._committer.wait_committed)
        began = time.monotonic()
        transaction = ConsumerTransaction(
            self._number + 1, self._given.shard, handle, outbox, began, began + self._app.max_s
        )
        try:
            self._consume(transaction)
            if self._app.finalize_function is not None:
                self._call(self._app.finalize_function, transaction)
            self._committer.wait_idle()
            changes = self._state.seal(handle)
        except BaseException:
            self._state.discard(handle)
            raise
        self._number += 1
        self.last_messages = transaction.messages
        self._submit(changes, outbox, transaction.messages)
        return True

    def _await_message(self, once: bool) -> bool:
        """Wait for the first message of a transaction; what was found is put aside for it."""
        assert self._committer is not None
        while not self._stopping:
            self._bell.clear()
            self._committer.raise_failure()
            if self._leftovers and time.monotonic() >= self._leftovers_due:
                self._give_up_leftovers()
            found = self._sources.take()
            if found is not None:
                found[0].put_back(found[1])
                return True
            if self._committer.is_idle:
                self._progress.advance(self._sources.progress(), {}, numbers=self._sources.numbers())
                if once:
                    return False
                if time.monotonic() - self._busy_at >= SETTLE_S:
                    self._settle()
            self._sources.wait(IDLE_S)
        return False

    def _settle(self) -> None:
        """Commit that nothing is promised any more, if something was, and what was passed over, if anything."""
        assert self._committer is not None
        has_passed = any(self._read.offsets.get(name) != at for name, at in self._sources.offsets().items() if at)
        if self._committer.has_promised or has_passed:
            self._commit_nothing()

    def _commit_nothing(self) -> None:
        """A checkpoint without a message."""
        assert self._committer is not None
        changes = self._state.seal(self._state.begin(self._committer.wait_committed))
        self._submit(changes, self._outlets.new_outbox(), 0)

    def _submit(self, changes: Any, outbox: Outbox, messages: int) -> None:
        assert self._committer is not None
        outbox.seal()
        read, known = self._sources, self._read
        # Journals that are not read any more keep their places: they may be named again.
        self._read = msgspec.structs.replace(
            known,
            offsets={**known.offsets, **read.offsets()},
            raw={**known.raw, **read.raw()},
            numbers={**known.numbers, **read.numbers()},
            transaction=self._number,
        )
        self._committer.submit(Sealed(changes, self._read, read.progress(), read.numbers(), outbox, messages))
        self._busy_at = time.monotonic()

    def _consume(self, transaction: ConsumerTransaction) -> None:
        """Consume messages until the transaction is to end."""
        assert self._committer is not None
        app, began = self._app, transaction.began
        while True:
            self._bell.clear()
            self._committer.raise_failure()
            if self._is_over(transaction):
                return
            found = self._sources.take()
            if found is not None:
                self._apply(transaction, *found)
                continue
            elapsed = time.monotonic() - began
            waits_for_more = elapsed < app.min_s or self._sources.has_pending
            if self._committer.is_idle and not (waits_for_more and not self._stopping):
                return
            self._sources.wait(max(0.0, (app.min_s if elapsed < app.min_s else app.max_s) - elapsed))

    def _is_full(self, transaction: ConsumerTransaction) -> bool:
        """Whether the transaction takes no more messages. Asked before each one, it looks at the clock only, and now
        and then at the rest."""
        count = transaction.messages
        if count % LOOK_EVERY == 0 or count >= self._messages_max:
            return self._is_over(transaction)
        return time.monotonic() >= transaction.ends

    def _is_over(self, transaction: ConsumerTransaction) -> bool:
        """Whether the transaction is to end. One without a message is not."""
        return transaction.messages > 0 and (
            time.monotonic() >= transaction.ends
            or transaction.messages >= self._messages_max
            or transaction.outbox.is_full
            or self._state.is_full(transaction.state)
            or self._stopping
        )

    def _apply(self, transaction: ConsumerTransaction, source: Any, messages: list[Message]) -> None:
        """Consume messages of one journal, in their order, as many as the transaction has room for."""
        if self._given.run_coroutine is not None and self._app.is_async:
            self._given.run_coroutine(self._apply_async(transaction, source, messages))
            return
        consume, state, publish = self._app.consume_function, transaction.state, transaction.publish
        for index, message in enumerate(messages):
            if self._is_full(transaction):
                source.put_back(messages[index:])
                return
            if hasattr(consume(message, state, publish), "__await__"):
                raise Invalid(_NOT_AWAITED)
            transaction.messages += 1
        source.drained()

    async def _apply_async(self, transaction: ConsumerTransaction, source: Any, messages: list[Message]) -> None:
        consume, state, publish = self._app.consume_function, transaction.state, transaction.publish
        for index, message in enumerate(messages):
            if self._is_full(transaction):
                source.put_back(messages[index:])
                return
            answer = consume(message, state, publish)
            if hasattr(answer, "__await__"):
                await answer
            transaction.messages += 1
        source.drained()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        answer = function(*arguments)
        if hasattr(answer, "__await__"):
            if self._given.run_coroutine is None:
                raise Invalid(_NOT_AWAITED)
            self._given.run_coroutine(answer)
