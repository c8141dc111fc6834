"""One transaction of a shard: from its first message until it is acknowledged.

The committing half of a shard is one thread that takes a transaction through its durable steps, one after another:

    append        pending messages, in every journal that was published to
    commit        state, checkpoint and intents, behind the state's fence
    acknowledge   the intents

One thread, one transaction: so data is durable before the checkpoint, the checkpoint before the acknowledgements, and
the acknowledgements before the first message of the next transaction, in every journal. The consuming half meanwhile
works on the next transaction, and hands it over when this one is done: two are under way, never three.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from detent import crash
from detent.consumer.outbox import Outbox, Outlets
from detent.consumer.progress import Progress
from detent.errors import Fenced
from detent.runtime import thread
from detent.state.base import ShardState
from detent.state.checkpoint import Checkpoint

WROTE_MAX: Final = 100
"""Journals that a checkpoint names because they were published to lately: who waits for a message is told how far they
are, also by a shard that has just started."""


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


class Sealed:
    """A transaction that only has to be committed: what changed, how far it read (`read`, a checkpoint that lacks what
    only the committing thread knows), what it publishes. `progress` is how far it read by committed offsets, for raw
    sources too, and `numbers` which journals these are."""

    __slots__ = ("changes", "messages", "numbers", "outbox", "progress", "read")

    def __init__(
        self,
        changes: Any,
        read: Checkpoint,
        progress: dict[str, int],
        numbers: dict[str, int],
        outbox: Outbox,
        messages: int,
    ) -> None:
        self.changes = changes
        self.read = read
        self.progress = progress
        self.numbers = numbers
        self.outbox = outbox
        self.messages = messages


class Committer:
    """Commits the transactions of one shard, in order. `restored` is the checkpoint that this life began with."""

    def __init__(
        self,
        state: ShardState,
        outlets: Outlets,
        progress: Progress,
        restored: Checkpoint,
        rung: Callable[[], None],
        name: str,
    ) -> None:
        self._state = state
        self._outlets = outlets
        self._progress = progress
        self._wrote = dict.fromkeys(restored.wrote)
        self._rung = rung
        self._changed = threading.Condition()
        self._job: Sealed | None = None
        self._is_committed = True
        self._failure: BaseException | None = None
        self._closed = False
        self.has_promised = bool(restored.intents)
        """Whether the last checkpoint has acknowledgements in it, which are written by now."""
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
        with self._changed:
            assert self._job is None, "a transaction is handed over when the one before is done"
            self._job = sealed
            self._is_committed = False
            self._changed.notify_all()

    def wait_committed(self) -> None:
        """Return once the last transaction's state is durable, whether or not it is acknowledged."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_committed or self._failure is not None)
        self.raise_failure()

    def wait_idle(self) -> None:
        """Return once the last transaction is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None or self._failure is not None)
        self.raise_failure()

    def close(self) -> None:
        """End the thread, after the transaction that it is at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # -- the committing thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            try:
                self._commit(job)
            except BaseException as error:  # noqa: BLE001 - the consuming half raises it
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                self._rung()
                return
            with self._changed:
                self._job = None
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
