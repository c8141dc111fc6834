"""A shard at work: it restores, and then takes transaction after transaction through their steps, in this order:

    consume       messages, in turns from each journal, until the transaction's time is over or nothing is ready
    seal          what they changed, when the transaction before is done
    append        what they published, pending, in every journal
    commit        state, checkpoint and intents, behind the state's fence
    acknowledge   the intents

The last three are done by one thread, `CommitThread`, one transaction after another: so data is durable before the
checkpoint, the checkpoint before the acknowledgements, and the acknowledgements before the first message of the next
transaction, in every journal. The shard's own thread consumes the next transaction meanwhile, and hands it over when
this one is done: two are under way, never three.

A failure on either side ends the shard. To go on, it starts over: with a new fence, the checkpoint as it is durable,
and new producers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent import crash, spans
from detent.consumer.application import Declaration
from detent.consumer.outbox import Outbox, Outlets
from detent.consumer.progress import Progress
from detent.consumer.sources import Sources, key_filter
from detent.errors import Conflict, Fenced, Invalid
from detent.journal import AckIntent, Message
from detent.runtime import thread
from detent.runtime.ground import drive, is_awaited
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
producers that are forgotten, and look for messages that are gone."""

MESSAGES_MAX: Final = 100_000
"""Messages of one transaction, if it has the time for so many."""

LOOK_EVERY: Final = 16
"""After how many messages it is looked whether a transaction is full, or the shard is to stop."""

WROTE_MAX: Final = 100
"""Journals that a checkpoint names because they were published to lately: a caller that waits for a message is told how
far they are, also by a shard that has just started."""

Caller = Callable[[Any], Any]
"""Runs a coroutine to its end."""

_NOT_AWAITED: Final = (
    "a function of the application answered a coroutine and is not declared with `async def`, so it is not awaited: "
    "declare it so, or decorate the asynchronous function itself"
)


@dataclass(frozen=True)
class ShardSetup:
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


class ConsumerTransaction:
    """What `finalize` gets: the transaction whose messages were all consumed, and which is about to commit.

    `state` and `publish` are those that `consume` had; `messages` is how many messages there were, `number` counts the
    shard's transactions over all its lives, `shard` is the shard's number.
    """

    def __init__(self, number: int, shard: int, state: Any, outbox: Outbox, began: float, ends: float) -> None:
        self.number = number
        self.shard = shard
        self.state = state
        self.outbox = outbox
        self.publish = outbox.publish
        self.messages = 0
        self.began = began
        self.ends = ends


@dataclass(slots=True)
class Sealed:
    """A transaction that only has to be committed."""

    changes: Any
    read: Checkpoint
    """How far it read: a checkpoint that lacks what only the committing thread knows."""
    progress: dict[str, int]
    """How far it read by committed offsets, for raw sources too."""
    numbers: dict[str, int]
    """Which journals these are."""
    outbox: Outbox
    messages: int


class Shard:
    """One life of a shard in this process. `run` it once."""

    def __init__(
        self,
        given: ShardSetup,
        state: ShardState,
        progress: Progress,
        messages_max: int = MESSAGES_MAX,
        before: Shard | None = None,
    ) -> None:
        self._given = given
        self._app = given.consumer
        self._state = state
        self._progress = progress
        self._bell = threading.Event()
        self._stopping = False
        self._outlets = Outlets(
            given.store,
            given.outputs,
            with_engine=state.takes_outputs,
            deadline=self._app.output_deadline,
        )
        earlier = [] if before is None else [*before._leftovers, before._outlets]
        self._leftovers: list[Outlets] = [one for one in earlier if one.has_published]
        """What lives before this one, in this process, may have left pending."""
        self._leftovers_due = 0.0
        self._kept: dict[str, list[AckIntent]] = {}
        """What the checkpoint has promised that this life began with."""
        self._sources = Sources(given.store, self._bell)
        self._committer = CommitThread(state, self._outlets, progress, self._bell.set)
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
        return self._committer.was_fenced

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
            self._committer.start(checkpoint, str(self._given.name))
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
            self._committer.close()
            self._sources.close()
            self._state.close()

    def _work(self, once: bool) -> None:
        """Transaction after transaction."""
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
        # Read after the fence: a reset that came before the fence is applied.
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
            created={name: created for name, created in checkpoint.created.items() if name not in resets},
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

    def _consume(self, transaction: ConsumerTransaction) -> None:
        """Consume messages until the transaction is to end."""
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
        run = self._given.run_coroutine if self._app.is_async else None
        (run or drive)(self._apply_each(transaction, source, messages, waits=run is not None))

    async def _apply_each(
        self, transaction: ConsumerTransaction, source: Any, messages: list[Message], *, waits: bool
    ) -> None:
        consume, state, publish = self._app.consume_function, transaction.state, transaction.publish
        if spans.tracer() is not None:
            consume = spans.traced(consume, self._span_of)
        for index, message in enumerate(messages):
            if self._is_full(transaction):
                source.put_back(messages[index:])
                return
            answer = consume(message, state, publish)
            if hasattr(answer, "__await__"):
                if not waits:
                    raise Invalid(_NOT_AWAITED)
                await answer
            transaction.messages += 1
        source.drained()

    def _span_of(self, message: Message, *_: Any) -> AbstractContextManager[Any]:
        about = f"{message.journal}#{message.offset}"
        return spans.processing(message.journal, [message.headers], group=self._app.name, message=about)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        answer = function(*arguments)
        if is_awaited(answer):
            if self._given.run_coroutine is None:
                raise Invalid(_NOT_AWAITED)
            self._given.run_coroutine(answer)

    def _submit(self, changes: Any, outbox: Outbox, messages: int) -> None:
        """Hand a transaction over to the committing thread, with how far it has read."""
        outbox.seal()
        read, known = self._sources, self._read
        # Journals that are not read any more keep their places: they may be named again.
        self._read = msgspec.structs.replace(
            known,
            offsets={**known.offsets, **read.offsets()},
            raw={**known.raw, **read.raw()},
            numbers={**known.numbers, **read.numbers()},
            created={**known.created, **read.created()},
            transaction=self._number,
        )
        self._committer.submit(Sealed(changes, self._read, read.progress(), read.numbers(), outbox, messages))
        self._busy_at = time.monotonic()

    # -- without a message ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Commit that nothing is promised any more, if something was, and what was passed over, if anything."""
        has_passed = any(self._read.offsets.get(name) != at for name, at in self._sources.offsets().items() if at)
        if self._committer.has_promised or has_passed:
            self._commit_nothing()

    def _commit_nothing(self) -> None:
        """A checkpoint without a message."""
        changes = self._state.seal(self._state.begin(self._committer.wait_committed))
        self._submit(changes, self._outlets.new_outbox(), 0)


class CommitThread:
    """Takes the sealed transactions of one shard through their durable steps, in order."""

    def __init__(self, state: ShardState, outlets: Outlets, progress: Progress, rung: Callable[[], None]) -> None:
        self._state = state
        self._outlets = outlets
        self._progress = progress
        self._rung = rung
        self._wrote: dict[tuple[str, str], None] = {}
        self._changed = threading.Condition()
        self._job: Sealed | None = None
        self._is_committed = True
        self._is_closed = False
        self._failure: BaseException | None = None
        self._thread: thread.Thread | None = None
        self.has_promised = False
        """Whether the last checkpoint has acknowledgements in it, which are written by now."""

    def start(self, restored: Checkpoint, name: str) -> None:
        """Begin, after the checkpoint that this life begins with."""
        self._wrote = dict.fromkeys(restored.wrote)
        self.has_promised = bool(restored.intents)
        self._thread = thread.start(f"detent-commit-{name}", self._run)

    # -- the consuming half ---------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether the last transaction is done: committed and acknowledged."""
        self.raise_failure()
        return self._job is None

    @property
    def was_fenced(self) -> bool:
        """Whether a commit was refused because another process has the state."""
        return isinstance(self._failure, Fenced)

    def raise_failure(self) -> None:
        """Raise what stopped the last transaction."""
        if self._failure is not None:
            raise self._failure

    def submit(self, sealed: Sealed) -> None:
        """Begin to commit a transaction. The one before is done."""
        assert self._job is None, "a transaction is handed over when the one before is done"
        with self._changed:
            self._job, self._is_committed = sealed, False
            self._changed.notify_all()

    def wait_committed(self) -> None:
        """Return once the last transaction's state is durable, whether or not it is acknowledged."""
        self._wait(lambda: self._is_committed or self._failure is not None)
        self.raise_failure()

    def wait_idle(self) -> None:
        """Return once the last transaction is done."""
        self._wait(lambda: self._job is None or self._failure is not None)
        self.raise_failure()

    def close(self) -> None:
        """End the thread, after the transaction that it is at."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wait(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(holds)

    # -- the committing thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._failure is None:
            self._wait(lambda: self._job is not None or self._is_closed)
            job, failure = self._job, None
            if job is None:
                return
            try:
                self._commit(job)
            except BaseException as error:  # noqa: BLE001 - the consuming half raises it
                failure = error
            with self._changed:
                self._failure = failure
                self._job = None if failure is None else job
                self._changed.notify_all()
            self._rung()

    def _commit(self, job: Sealed) -> None:
        crash.point("consumer.before_append")
        self._outlets.append(job.outbox)
        crash.point("consumer.after_append")
        intents = self._outlets.build_intents()
        written = job.outbox.written()
        self._note_written(written)
        checkpoint = msgspec.structs.replace(job.read, intents=intents, wrote=list(self._wrote))
        crash.point("consumer.before_commit")
        self._state.commit(job.changes, checkpoint, self._outlets.operations(job.outbox))
        crash.point("consumer.after_commit")
        self.has_promised = bool(intents)
        with self._changed:
            self._is_committed = True
            self._changed.notify_all()
        crash.point("consumer.before_ack")
        self._outlets.acknowledge(intents)
        crash.point("consumer.after_ack")
        self._progress.advance(job.progress, self._outlets.heads(written), job.messages, numbers=job.numbers)

    def _note_written(self, written: list[tuple[str, str]]) -> None:
        """Remember which journals were written to last."""
        for one in written[-WROTE_MAX:]:
            self._wrote.pop(one, None)
            self._wrote[one] = None
        while len(self._wrote) > WROTE_MAX:
            del self._wrote[next(iter(self._wrote))]
