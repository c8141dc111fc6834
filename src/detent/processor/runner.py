"""One processor at work: it takes the fence, recovers, and then makes one step after another.

A step ends with one commit in the graph's own store: the outputs for that store, what other stores are owed, and the
snapshot of the next step. Then the other stores get what they are owed, each in one commit with its mark. A later run
finds in the record where to go on, and in the marks what is still to be given.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent import crash
from detent.engine import Operation, wall_ms
from detent.errors import Conflict, Corrupt, Fenced
from detent.journal import operations as journal_ops
from detent.processor.calling import FunctionCalls
from detent.processor.declaration import JournalPlace, Processor
from detent.processor.inputs import ProcessorInputs, Set, Taken, rest_of
from detent.processor.outcome import StepOutcome
from detent.processor.plan import consumer_name
from detent.processor.records import (
    JournalId,
    OutputMark,
    Owed,
    ProcessorRecord,
    Snapshot,
    StepAttempt,
    advanced,
    confirmed,
    settled,
    sunk,
    with_sunk,
)
from detent.processor.recovery import Fresh, recover, shape_of
from detent.processor.sink_base import sink_of
from detent.shard.operations import ShardOpened
from detent.stream.following import start_of
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

FILTERED_ROWS: Final = 1_000
"""Input sets that a processor with filters looks at in one step: most of them may be none of its business."""


def journal_ids(stores: Mapping[str, Store], places: Iterable[JournalPlace]) -> dict[str, JournalId]:
    """Which journals these are, as far as they exist: others of the same names do not have their offsets."""
    found = {str(place): stores[place.store].reader.whereabouts(place.journal) for place in places}
    return {name: (one.number, one.created_ms) for name, one in found.items() if one is not None}


def new_series() -> str:
    """The first part of delivery keys: 128 bits, the time and 80 random ones. So newer ones sort behind older ones."""
    return f"{wall_ms():012x}{secrets.token_hex(10)}"


class Runner:
    """A processor in this thread, from taking the fence to the end. Made anew for each life."""

    def __init__(
        self,
        graph: str,
        processor: Processor,
        stores: Mapping[str, Store],
        *,
        errors: JournalPlace | None,
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
        self._own = FencedRecord(self._home, self._consumer)
        self._at_most_once = delivery == "at-most-once"
        self._migrate = migrate
        self._bell = threading.Event() if bell is None else bell
        self.is_stopping = False
        """Whether it was told to end."""
        self.number: int | None = None
        """Which record of this name in the store it has."""
        self._marks: dict[str, FencedRecord] = {}
        self._caller = FunctionCalls(graph, processor, errors, system, run_coroutine, drops=self._at_most_once)
        self._inputs: ProcessorInputs | None = None
        self.record: ProcessorRecord | None = None
        self.is_waiting = False
        """Whether it has nothing to do."""
        written = [*processor.outputs.values(), *([] if errors is None else [errors])]
        self._others = sorted({place.store for place in written if place.store})
        self._decides = processor.mode == "any" or processor.whole
        self._shape = shape_of(processor, errors, delivery)
        self._sink = sink_of(processor.function)
        self._own_inputs = processor.own_inputs

    # -- starting -----------------------------------------------------------------------------------------------

    def open(self, number: int | None = None) -> None:
        """Take the fences, then read what is durable, and finish what is owed. A process that ran this processor before
        commits nothing any more, in any store. `number` is that of the record that is known to be there."""
        opened = self._own.open(self._own_inputs)
        self.number = opened.number
        if number not in {None, opened.number}:
            raise Conflict(
                f"the progress of {self.name} was deleted, or has another name now, while this process ran it or stood "
                "by: end it, and start the graph as it is declared now"
            )
        crash.point("processor.after_fence")
        found = None if opened.checkpoint is None else ProcessorRecord.decode(opened.checkpoint)
        marks = self._take_marks(found)
        generation = opened.generation
        since = 0 if found is None else found.generation
        resets = {} if generation <= since else self._own.find(since).resets
        try:
            recovery = recover(
                self.name,
                found,
                marks,
                self._shape,
                fresh=Fresh(new_series(), new_series()),
                starts=self._starts(found),
                journals=journal_ids(self._stores, self.processor.inputs),
                generation=generation,
                resets=resets,
                migrate=self._migrate,
            )
        except (Conflict, Corrupt):
            self._check_fence()
            raise
        self._require_sink(recovery.record)
        self.record = recovery.record
        self._caller.identity = recovery.record.identity
        self._give(recovery.owed, recovery.record)
        if recovery.is_new:
            crash.point("processor.before_record")
            self._home.commit([self._commit_record(recovery.record)])
            crash.point("processor.after_record")
        places = self.processor.inputs
        self._inputs = ProcessorInputs(self.processor.mode, places, self._stores, recovery.record.snapshot, self._bell)

    def _require_sink(self, record: ProcessorRecord) -> None:
        """`Corrupt` if the sink does not have what it is known to have had."""
        number = sunk(record)
        if self._sink is None or number is None:
            return
        if not self._sink.remembers(record.identity, record.snapshot.series, number):
            raise Corrupt(
                f"the sink of {self.name} has had delivery {number}, and has it no more: its database was deleted, or "
                "is an older copy or another one. Put it back; or reset the processor, to an offset from which it "
                "shall deliver again"
            )

    def _check_fence(self) -> None:
        """`Fenced` if another process has opened this processor since: what was read is old then, and fits no marks."""
        if self._own.is_replaced():
            raise Fenced(f"{self.name} was opened by another process while this one recovered")

    def _take_marks(self, found: ProcessorRecord | None) -> dict[str, OutputMark | None]:
        """Raise the fence in every other store, and only then read its mark."""
        owed = [] if found is None or found.attempt is None else found.attempt.owed
        opened: dict[str, ShardOpened] = {}
        for store in sorted({*self._others, *(one.store for one in owed)}):
            if store not in self._stores:
                continue  # which is refused, if something is owed to it
            mark = self._marks[store] = FencedRecord(self._stores[store], self._consumer)
            opened[store] = mark.open([])
            crash.point("processor.after_mark")
        if opened:
            self._refuse_twins()
        kept = {store: one.checkpoint for store, one in opened.items()}
        return {store: None if mark is None else OutputMark.decode(mark) for store, mark in kept.items()}

    def _refuse_twins(self) -> None:
        """`Conflict` if two of the stores are one, through a link or a server: raising the fence in one of them has
        raised the other's, and the processor would replace itself again and again."""
        raised = {"": self._own, **self._marks}
        seen: dict[tuple[int, int, int], str] = {}
        for name, record in raised.items():
            found = record.describe()
            assert found is not None, "it was opened"
            state = found.states[0]
            other = seen.setdefault((found.created_ms, state.number, state.fence), name)
            if other != name and raised[other].fence != state.fence:  # those of other stores are as they were left
                own = f"the store {other!r}" if other else "the graph's own store"
                raise Conflict(f"{own} and the store {name!r} are one: use one name for it")

    def _starts(self, found: ProcessorRecord | None) -> dict[str, int]:
        """Where inputs begin of which nothing is known."""
        known = {} if found is None else found.snapshot.positions
        start = self.processor.start
        new = [place for place in self.processor.inputs if str(place) not in known]
        return {str(place): start_of(self._stores[place.store].reader, place.journal, start)[0] for place in new}

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make steps until stopped."""
        assert self._inputs is not None, "open() comes first"
        while not self.is_stopping and self.processor.mode == "none":
            self._poll()
        taken = None
        while not self.is_stopping:
            # Behind a step there is often nothing more, and it is known. After a wait, look all the same.
            is_still = taken is not None and not self._snapshot.chosen and self._inputs.is_still()
            taken = None if is_still else self._take(self._inputs)
            if taken is None:
                self.is_waiting = True
                self._inputs.wait(lambda: self.is_stopping)
                self.is_waiting = False
                continue
            crash.point("processor.after_read")
            self._step(self._inputs, taken)
        self._confirm()

    def _confirm(self) -> None:
        """At the end, note that what was owed was given. Otherwise the next step does: until then it could not be
        told whether a store that the graph does not name any more has it."""
        assert self.record is not None
        if self.record.attempt is not None and self.record.attempt.owed:
            self.record = settled(self.record)
            self._home.commit([self._commit_record(self.record)])

    def stop(self) -> None:
        """End after the step under way. For any thread."""
        self.is_stopping = True
        self._caller.stop()
        self._bell.set()

    @property
    def fence(self) -> int:
        """What it commits with: a higher one in the store means that it was replaced, or reset."""
        return self._own.fence

    def close(self) -> None:
        """Let go of everything. What was not committed never was."""
        self._caller.close()
        if self._inputs is not None:
            self._inputs.close()

    @property
    def _snapshot(self) -> Snapshot:
        assert self.record is not None
        return self.record.snapshot

    def _take(self, inputs: ProcessorInputs) -> Taken | None:
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

    def _decide(self, chosen: list[tuple[str, int]], inputs: ProcessorInputs) -> None:
        """Make a choice durable before the function is told of it: a retry takes the same, whatever has come since."""
        assert self.record is not None
        snapshot = msgspec.structs.replace(self._snapshot, chosen=chosen, journals=inputs.journals())
        record = msgspec.structs.replace(self.record, snapshot=snapshot)
        crash.point("processor.before_choice")
        self._home.commit([self._commit_record(record)])
        crash.point("processor.after_choice")
        self.record = record

    # -- a step -------------------------------------------------------------------------------------------------

    def _step(self, inputs: ProcessorInputs, taken: Taken) -> None:
        snapshot = self._snapshot
        sets = taken.sets
        if self._caller.filters and not self._decides:
            sets = self._within_batch(inputs, taken)
        if self._at_most_once:
            if self._others and not self.processor.whole:
                sets = sets[:1]  # what another store is owed is all that is under way, and survives with the record
                inputs.move(taken.after(1))
            self._pass_by(inputs, taken, len(sets))
            self._run_passed(sets, snapshot)
            return
        outcome, error = self._caller.run(sets, snapshot.series, snapshot.number)
        crash.point("processor.after_function")
        if outcome.sets:
            done = outcome.sets
            if done < len(taken.sets):
                inputs.move(taken.after(done))
            self._commit(outcome, snapshot.number, self._next(inputs, taken, done))
        if error is not None:
            raise error

    def _within_batch(self, inputs: ProcessorInputs, taken: Taken) -> Sequence[Set]:
        """As many of the input sets as hold one batch of those that pass the filters."""
        passing = 0
        for index, one in enumerate(taken.sets):
            passing += self._caller.passing(one) is not None
            if passing == self.processor.batch:
                if index + 1 < len(taken.sets):
                    inputs.move(taken.after(index + 1))
                return taken.sets[: index + 1]
        return taken.sets

    def _next(self, inputs: ProcessorInputs, taken: Taken, done: int) -> Snapshot:
        """The snapshot of the next step: where the inputs stand after so many sets, and what is already chosen."""
        snapshot = self._snapshot
        chosen: list[tuple[str, int]] = []
        if self._decides:
            chosen = rest_of(snapshot.chosen, done) or inputs.choose(self.processor.batch)
        return Snapshot(
            snapshot.series,
            snapshot.number + done,
            taken.after(done),
            inputs.journals(),
            chosen,
            snapshot.cursor,
        )

    def _commit(self, outcome: StepOutcome, number: int, snapshot: Snapshot) -> None:
        """The end of a step: what came of its input sets, from this number on, and where the next one begins, in one
        transaction. Then what other stores are owed."""
        assert self.record is not None
        owed = outcome.owed()
        attempt = StepAttempt(number, outcome.sets, outcome.outputs, outcome.errors, outcome.nils, owed)
        assert attempt.end <= snapshot.number, "each input set gives an output, an error or nothing"
        record = self._with_sink(advanced(self.record, snapshot, attempt))
        crash.point("processor.before_commit")
        self._home.commit([self._commit_record(record), *outcome.operations()])
        crash.point("processor.after_commit")
        self.record = record
        self._give(tuple(owed), record)

    def _with_sink(self, record: ProcessorRecord) -> ProcessorRecord:
        """The record with the newest delivery that the sink is known to have."""
        newest = None if self._sink is None else self._sink.newest(record.identity)
        if newest is None or newest[0] != record.snapshot.series:
            return record
        return with_sunk(record, newest[1])

    def _commit_record(self, record: ProcessorRecord) -> Operation:
        processed = {name: record.snapshot.positions[name] for name in self._own_inputs}
        return self._own.replacing(record.encode(), processed=processed)

    def _give(self, owed: tuple[Owed, ...], record: ProcessorRecord) -> None:
        """Append what other stores are owed, each in one transaction with its mark."""
        if not owed:
            return
        assert record.attempt is not None
        mark = OutputMark(record.identity, record.attempt.end).encode()
        for store, some in groupby(sorted(owed, key=lambda one: one.store), key=lambda one: one.store):
            appends = [journal_ops.Append(one.journal, one.bodies, one.keys, one.headers) for one in some]
            commit = self._marks[store].replacing(mark)
            crash.point("processor.before_output")
            self._stores[store].commit([commit, *appends])
            crash.point("processor.after_output")

    # -- at most once -------------------------------------------------------------------------------------------

    def _pass_by(self, inputs: ProcessorInputs, taken: Taken, sets: int) -> None:
        """Count input sets as done before anything is done with them: who dies now has dropped them, all inputs of a
        join together."""
        assert self.record is not None
        snapshot = self._next(inputs, taken, sets)
        record = msgspec.structs.replace(self.record, snapshot=snapshot, attempt=None, given=confirmed(self.record))
        crash.point("processor.before_pass")
        self._home.commit([self._commit_record(record)])
        crash.point("processor.after_pass")
        self.record = record

    def _run_passed(self, sets: Sequence[Set], snapshot: Snapshot) -> None:
        """Run input sets that count as done. One that fails is dropped, and those behind it are not."""
        done, failure = 0, None
        while done < len(sets):
            number = snapshot.number + done
            outcome, error = self._caller.run(sets[done:], snapshot.series, number)
            crash.point("processor.after_function")
            assert outcome.sets, "an input set that fails gives nothing here"
            self._commit(outcome, number, self._snapshot)
            done += outcome.sets
            failure = failure or error
        if failure is not None:
            raise failure

    # -- sources ------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Ask a source for what is new; its answer and where it goes on are one commit."""
        snapshot = self._snapshot
        outcome, cursor = self._caller.poll(snapshot.series, snapshot.number, snapshot.cursor)
        crash.point("processor.after_function")
        if outcome.sets and (outcome.outgoing or cursor != snapshot.cursor):
            after = msgspec.structs.replace(snapshot, number=snapshot.number + 1, cursor=cursor)
            self._commit(outcome, snapshot.number, after)
        if not outcome.outgoing:
            self.is_waiting = True
            self._bell.clear()
            if not self.is_stopping:
                self._bell.wait(self.processor.every_ms / 1000)
            self.is_waiting = False
