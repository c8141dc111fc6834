"""One processor at work: it takes the fence, recovers, and then makes one step after another.

A step ends with one commit in the graph's own store: the outputs for that store, what other stores are owed, and the
snapshot of the next step. Then the other stores get what they are owed, each in one commit with its mark. Whoever comes
later finds in the record where to go on, and in the marks what is still to be given.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent import crash
from detent.engine import Operation
from detent.journal import operations as journal_ops
from detent.processor.calling import Caller
from detent.processor.declaration import Processor
from detent.processor.inputs import Inputs, Taken
from detent.processor.outcome import Outcome
from detent.processor.place import Place
from detent.processor.records import Attempt, Mark, Owed, Record, Shape, Snapshot
from detent.processor.recovery import Fresh, advanced, confirmed, recover
from detent.shard import operations as shard_ops

if TYPE_CHECKING:
    from detent.store import Store

FILTERED_ROWS: Final = 1_000
"""Input sets that a processor with filters looks at in one step: most of them may be none of its business."""


def consumer_name(graph: str, processor: str) -> str:
    """Under which name a store keeps a processor's record, and its mark."""
    return f"graph/{graph}/{processor}"


def new_series() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


class Runner:
    """A processor in this thread, from taking the fence to the end. Made anew for each life."""

    def __init__(
        self,
        graph: str,
        processor: Processor,
        stores: Mapping[str, Store],
        *,
        errors: Place | None,
        delivery: str,
        system: Any = None,
        run_coroutine: Callable[[Any], Any] | None = None,
        bell: threading.Event | None = None,
        migrate: bool = False,
    ) -> None:
        self.processor = processor
        self.name = f"{graph}/{processor.name}"
        self._consumer = consumer_name(graph, processor.name)
        self._stores = stores
        self._home = stores[""]
        self._errors = errors
        self._at_most_once = delivery == "at-most-once"
        self._migrate = migrate
        self._bell = threading.Event() if bell is None else bell
        self._stopping = False
        self._fence = 0
        self._fences: dict[str, int] = {}
        self._caller = Caller(graph, processor, errors, system, run_coroutine)
        self._inputs: Inputs | None = None
        self.record: Record | None = None
        self.is_waiting = False
        """Whether it has nothing to do."""
        written = [*processor.outputs.values(), *([] if errors is None else [errors])]
        self._others = sorted({place.store for place in written if place.store})
        self._decides = processor.mode == "any" or processor.whole
        self._shape = Shape(
            processor.kind,
            processor.mode,
            [str(place) for place in processor.inputs],
            sorted(str(place) for place in processor.outputs.values()),
            "" if errors is None else str(errors),
            delivery,
            processor.whole,
        )
        self._own_inputs = [place.journal for place in processor.inputs if not place.store]

    # -- starting -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the fences, then read what is durable, and finish what is owed. Whoever ran this processor before
        commits nothing any more, in any store."""
        opened = self._open_shard(self._home, self._own_inputs)
        self._fence = opened.fence
        crash.point("processor.after_fence")
        found = None if opened.checkpoint is None else Record.decode(opened.checkpoint)
        marks = self._take_marks(found)
        generation = opened.generation
        since = 0 if found is None else found.generation
        resets = {} if generation <= since else self._resets(since)
        recovery = recover(
            self.name,
            found,
            marks,
            self._shape,
            fresh=Fresh(new_series(), new_series()),
            starts=self._starts(found),
            generation=generation,
            resets=resets,
            migrate=self._migrate,
        )
        self.record = recovery.record
        self._give(recovery.owed, recovery.record)
        if recovery.is_new:
            crash.point("processor.before_record")
            self._home.commit([self._commit_record(recovery.record)])
            crash.point("processor.after_record")
        places = self.processor.inputs
        self._inputs = Inputs(self.processor.mode, places, self._stores, recovery.record.snapshot, self._bell)

    def _open_shard(self, store: Store, journals: list[str]) -> shard_ops.ShardOpened:
        """Raise the fence of this processor in a store."""
        register = shard_ops.RegisterConsumer(self._consumer, 1, journals)
        opened: shard_ops.ShardOpened = store.commit([register, shard_ops.OpenShard(self._consumer, 0)])[1]
        return opened

    def _take_marks(self, found: Record | None) -> dict[str, Mark | None]:
        """Raise the fence in every other store, and only then read its mark."""
        owed = [] if found is None or found.attempt is None else found.attempt.owed
        marks: dict[str, Mark | None] = {}
        for store in sorted({*self._others, *(one.store for one in owed)}):
            if store not in self._stores:
                continue  # which is refused, if something is owed to it
            opened = self._open_shard(self._stores[store], [])
            self._fences[store] = opened.fence
            marks[store] = None if opened.checkpoint is None else Mark.decode(opened.checkpoint)
            crash.point("processor.after_mark")
        return marks

    def _resets(self, since: int) -> dict[str, int]:
        found: shard_ops.ShardOpened = self._home.commit([shard_ops.FindShard(self._consumer, 0, since)])[0]
        return found.resets

    def _starts(self, found: Record | None) -> dict[str, int]:
        """Where inputs begin of which nothing is known."""
        known = {} if found is None else found.snapshot.positions
        return {str(place): self._start(place) for place in self.processor.inputs if str(place) not in known}

    def _start(self, place: Place) -> int:
        start = self.processor.start
        if isinstance(start, int):
            return start
        found = self._stores[place.store].reader.whereabouts(place.journal)
        if found is None:
            return 0
        return found[2] if start == "latest" else found[1]

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make steps until stopped."""
        assert self._inputs is not None, "open() comes first"
        if self.processor.mode == "none":
            while not self._stopping:
                self._poll()
            return
        while not self._stopping:
            taken = self._take(self._inputs)
            if taken is None:
                self.is_waiting = True
                self._inputs.wait(lambda: self._stopping)
                self.is_waiting = False
                continue
            crash.point("processor.after_read")
            self._step(self._inputs, taken)

    def stop(self) -> None:
        """End after the step under way. For any thread."""
        self._stopping = True
        self._bell.set()

    def close(self) -> None:
        """Let go of everything. What was not committed never was."""
        self._caller.close()
        if self._inputs is not None:
            self._inputs.close()

    @property
    def _snapshot(self) -> Snapshot:
        assert self.record is not None
        return self.record.snapshot

    def _take(self, inputs: Inputs) -> Taken | None:
        """The input sets of the next step; None if there are none yet."""
        if not self._decides:
            limit = self.processor.batch
            return inputs.take(max(limit, FILTERED_ROWS) if self._caller.filters else limit)
        if not self._snapshot.chosen:
            chosen = inputs.choose(self.processor.batch)
            if not chosen:
                return None
            self._decide(chosen, inputs)
        return inputs.take_chosen(self._snapshot.chosen)

    def _decide(self, chosen: list[tuple[str, int]], inputs: Inputs) -> None:
        """Make a choice durable before anybody is told of it: a retry takes the same, whatever has come since."""
        assert self.record is not None
        snapshot = msgspec.structs.replace(self._snapshot, chosen=chosen, journals=inputs.journals())
        record = msgspec.structs.replace(self.record, snapshot=snapshot)
        crash.point("processor.before_choice")
        self._home.commit([self._commit_record(record)])
        crash.point("processor.after_choice")
        self.record = record

    # -- a step -------------------------------------------------------------------------------------------------

    def _step(self, inputs: Inputs, taken: Taken) -> None:
        snapshot = self._snapshot
        sets = taken.sets
        if self._caller.filters and not self._decides:
            sets = self._within_batch(inputs, taken)
        if self._at_most_once:
            self._pass_by(inputs, taken, len(sets))
        outcome, error = self._caller.run(sets, snapshot.series, snapshot.number)
        crash.point("processor.after_function")
        if self._at_most_once:
            self._write_out(outcome, snapshot)
        elif outcome.sets:
            done = outcome.sets
            if done < len(taken.sets):
                inputs.move(taken.after(done))
            self._commit(outcome, self._next(inputs, taken, done))
        if error is not None:
            raise error

    def _within_batch(self, inputs: Inputs, taken: Taken) -> Any:
        """As many of the input sets as hold one batch of those that pass the filters."""
        passing = 0
        for index, one in enumerate(taken.sets):
            passing += self._caller.passing(one) is not None
            if passing == self.processor.batch:
                if index + 1 < len(taken.sets):
                    inputs.move(taken.after(index + 1))
                return taken.sets[: index + 1]
        return taken.sets

    def _next(self, inputs: Inputs, taken: Taken, done: int) -> Snapshot:
        """The snapshot of the next step: where the inputs stand after so many sets, and what is already chosen."""
        snapshot = self._snapshot
        chosen: list[tuple[str, int]] = []
        if self._decides:
            chosen = _rest(snapshot.chosen, done) or inputs.choose(self.processor.batch)
        return Snapshot(
            snapshot.series,
            snapshot.number + done,
            taken.after(done),
            inputs.journals(),
            chosen,
            snapshot.cursor,
        )

    def _commit(self, outcome: Outcome, snapshot: Snapshot) -> None:
        """The end of a step: what came of it, and where the next one begins, in one transaction. Then what other stores
        are owed."""
        assert self.record is not None
        number = self._snapshot.number
        attempt = Attempt(
            number, snapshot.number - number, outcome.outputs, outcome.errors, outcome.nils, outcome.owed()
        )
        assert outcome.sets == attempt.sets, "each input set gives an output, an error or nothing"
        record = advanced(self.record, snapshot, attempt)
        crash.point("processor.before_commit")
        self._home.commit([self._commit_record(record), *outcome.operations()])
        crash.point("processor.after_commit")
        self.record = record
        if attempt.owed:
            self._give(tuple(attempt.owed), record)

    def _commit_record(self, record: Record) -> Operation:
        processed = {name: record.snapshot.positions[name] for name in self._own_inputs}
        return shard_ops.CommitShard(self._consumer, 0, self._fence, record.encode(), processed=processed)

    def _give(self, owed: tuple[Owed, ...], record: Record) -> None:
        """Append what other stores are owed, each in one transaction with its mark."""
        if not owed:
            return
        assert record.attempt is not None
        mark = Mark(record.identity, record.attempt.end).encode()
        for store, some in groupby(sorted(owed, key=lambda one: one.store), key=lambda one: one.store):
            appends = [journal_ops.Append(one.journal, one.bodies, one.keys, one.headers) for one in some]
            commit = shard_ops.CommitShard(self._consumer, 0, self._fences[store], mark)
            crash.point("processor.before_output")
            self._stores[store].commit([commit, *appends])
            crash.point("processor.after_output")

    # -- at most once -------------------------------------------------------------------------------------------

    def _pass_by(self, inputs: Inputs, taken: Taken, sets: int) -> None:
        """Count input sets as done before anything is done with them: who dies now has dropped them, all inputs of a
        join together."""
        assert self.record is not None
        snapshot = self._next(inputs, taken, sets)
        record = msgspec.structs.replace(self.record, snapshot=snapshot, attempt=None, given=confirmed(self.record))
        crash.point("processor.before_pass")
        self._home.commit([self._commit_record(record)])
        crash.point("processor.after_pass")
        self.record = record

    def _write_out(self, outcome: Outcome, snapshot: Snapshot) -> None:
        """Write what came of input sets that count as done, under the same fences."""
        assert self.record is not None
        attempt = Attempt(snapshot.number, outcome.sets, outcome.outputs, outcome.errors, outcome.nils)
        record = msgspec.structs.replace(self.record, totals=self.record.totals.plus(attempt))
        crash.point("processor.before_commit")
        self._home.commit([self._commit_record(record), *outcome.operations()])
        crash.point("processor.after_commit")
        self.record = record
        if owed := tuple(outcome.owed()):
            self._give(owed, msgspec.structs.replace(record, attempt=attempt))

    # -- sources ------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Ask a source for what is new; its answer and where it goes on are one commit."""
        snapshot = self._snapshot
        outcome, cursor = self._caller.poll(snapshot.series, snapshot.number, snapshot.cursor)
        crash.point("processor.after_function")
        if outcome.sets and (outcome.outgoing or cursor != snapshot.cursor):
            after = msgspec.structs.replace(snapshot, number=snapshot.number + 1, cursor=cursor)
            self._commit(outcome, after)
        if not outcome.outgoing:
            self.is_waiting = True
            self._bell.clear()
            if not self._stopping:
                self._bell.wait(self.processor.every_ms / 1000)
            self.is_waiting = False


def _rest(chosen: list[tuple[str, int]], done: int) -> list[tuple[str, int]]:
    """What is left of a choice after so many sets."""
    left = []
    for name, count in chosen:
        used = min(count, done)
        done -= used
        if count > used:
            left.append((name, count - used))
    return left
